"""A loop under `watch`: STEPS, SECONDS per step, MIB kept per step."""
import os
import sys
import time

import model_garden

steps, seconds, mib = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
kept = []
with model_garden.watch(examples=40, batch_size=2, gradient_accumulation=2, total_steps=steps, interval="50ms", report="report.txt") as run:
    for step in range(steps):
        time.sleep(seconds)
        kept.append(os.urandom(int(mib * (1 << 20))))
        run.step()
        if run.current_step % 10 == 0:
            run.epoch_end()
            with run.evaluation():
                time.sleep(0.01)
        if run.should_stop:
            os.makedirs(f"out/checkpoint-{run.current_step}")
            with open(f"out/checkpoint-{run.current_step}/trainer_state.json", "w") as file:
                file.write('{"global_step": %d}' % run.current_step)
            run.checkpoint(f"out/checkpoint-{run.current_step}")
            break
print("ended at step", run.current_step, "verdict", run.report and run.report.verdict, "trace", run.trace)
