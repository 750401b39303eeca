"""A trainer that calls the hooks of a callback as transformers.Trainer does, without torch or transformers.

It trains nothing: each step sleeps and keeps some memory. A checkpoint is a folder with a trainer_state.json.
"""
import argparse
import json
import os
import sys
import time
import types

from model_garden import MemoryMonitorCallback


class Loader:
    def __init__(self, examples, batch_size):
        self.dataset = range(examples)
        self.batch_size = batch_size

    def __len__(self):
        return -(-len(self.dataset) // self.batch_size)


def main():
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--output_dir", default="out")
    add("--max_steps", type=int, default=40)
    add("--examples", type=int, default=32)
    add("--batch_size", type=int, default=2)
    add("--accumulation", type=int, default=2)
    add("--step_time", type=float, default=0.03)
    add("--leak", type=float, default=0.0, metavar="MIB")
    add("--every", type=int, default=10)
    add("--eval_steps", type=int, default=0)
    add("--save_steps", type=int, default=0)
    add("--interval", default="50ms")
    options = parser.parse_args()

    args = types.SimpleNamespace(
        output_dir=options.output_dir,
        per_device_train_batch_size=options.batch_size,
        train_batch_size=options.batch_size,
        gradient_accumulation_steps=options.accumulation,
        world_size=1,
    )
    state = types.SimpleNamespace(global_step=0, max_steps=options.max_steps, is_local_process_zero=True)
    control = types.SimpleNamespace(should_save=False, should_training_stop=False, should_evaluate=False)
    loader = Loader(options.examples, options.batch_size)
    callback = MemoryMonitorCallback(every=options.every, interval=options.interval)
    steps_per_epoch = -(-len(loader) // options.accumulation)
    kept = []

    def call(hook):
        result = getattr(callback, hook)(args, state, control, train_dataloader=loader, model=None, optimizer=None)
        assert result is control, hook

    call("on_init_end")
    call("on_train_begin")
    while state.global_step < options.max_steps and not control.should_training_stop:
        call("on_step_begin")
        time.sleep(options.step_time)
        kept.append(os.urandom(int(options.leak * (1 << 20))))
        call("on_substep_end")
        call("on_pre_optimizer_step")
        call("on_optimizer_step")
        state.global_step += 1
        control.should_save = bool(options.save_steps) and state.global_step % options.save_steps == 0
        control.should_evaluate = bool(options.eval_steps) and state.global_step % options.eval_steps == 0
        call("on_step_end")
        if control.should_evaluate:
            for _ in range(3):
                call("on_prediction_step")
            call("on_evaluate")
        if control.should_save:
            folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, "trainer_state.json"), "w") as file:
                json.dump({"global_step": state.global_step}, file)
            call("on_save")
        if state.global_step % steps_per_epoch == 0:
            call("on_epoch_end")
    call("on_train_end")
    print(f"ended at step {state.global_step}, verdict {callback.verdict}")
    assert "torch" not in sys.modules and "transformers" not in sys.modules


if __name__ == "__main__":
    main()
