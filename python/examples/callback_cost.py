"""What the callback costs: steps of one real Trainer run with and without its hooks, interleaved.

    python callback_cost.py --steps 2000

Blocks of a few steps alternate, with the hooks and without them, so that whatever else the machine does falls on both. Printed are
the ratio of the mean step times with a 95 % interval (bootstrap over pairs of neighbouring blocks), the share of the step time that the hooks took by their own
clock, the longest hook, and the processor time of the monitor that the callback starts.
"""
import argparse
import contextlib
import io
import os
import random
import tempfile
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from model_garden import MemoryMonitorCallback
from real_trainer import Tokens

# No divisor or multiple of `every`: lines and counts must fall on both kinds of blocks alike.
BLOCK = 15


class Alternating(MemoryMonitorCallback):
    """The callback in every other block of steps, with its time."""

    spent = longest = 0.0
    monitor_s = 0.0

    def on_train_begin(self, args, state, control, **context):
        super().on_train_begin(args, state, control, **context)
        # Its share is one of the whole time, and here only half of that is paid for.
        self._counter.share /= 2
        return control

    def on_step_end(self, args, state, control, **context):
        if (state.global_step // BLOCK) % 2 == 0:
            return control
        begin = time.perf_counter()
        super().on_step_end(args, state, control, **context)
        took = time.perf_counter() - begin
        self.spent += took
        self.longest = max(self.longest, took)
        return control

    def on_train_end(self, args, state, control, **context):
        with open(f"/proc/{self.run._monitor.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        self.monitor_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return super().on_train_end(args, state, control, **context)


class Clock(TrainerCallback):
    """The time of each step, the hooks of the other callback included."""

    def __init__(self):
        self.blocks = {}

    def on_train_begin(self, args, state, control, **context):
        self.last = self.begin = time.perf_counter()

    def on_step_end(self, args, state, control, **context):
        now = time.perf_counter()
        if state.global_step > 2 * BLOCK:  # the first steps are like no other
            self.blocks.setdefault(state.global_step // BLOCK, []).append(now - self.last)
        self.last = now


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--gpu", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=64, n_embd=options.width, n_layer=options.layers, n_head=2))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=options.steps, per_device_train_batch_size=8, save_strategy="no", logging_steps=10**6,
            report_to="none", disable_tqdm=True, use_cpu=not options.gpu,
        )
        # The hooks of the one are called before the clock stops.
        callback, clock = Alternating(trace=f"{folder}/trace.jsonl"), Clock()
        trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(256, 64), callbacks=[callback, clock])
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.train()
    full = {number: sum(times) for number, times in clock.blocks.items() if len(times) == BLOCK}
    pairs = [(full[number], full[number + 1]) for number in sorted(full) if number % 2 == 0 and number + 1 in full]
    ratio = lambda chosen: sum(watched for _, watched in chosen) / sum(bare for bare, _ in chosen)
    draws = sorted(ratio(random.choices(pairs, k=len(pairs))) for _ in range(2000))
    watched_s = sum(watched for _, watched in pairs)
    print(f"{len(pairs)} pairs of {BLOCK} steps of {1000 * sum(bare for bare, _ in pairs) / len(pairs) / BLOCK:.0f} ms")
    print(f"step time with the hooks / without: {ratio(pairs):.4f} (95 %: {draws[50]:.4f} to {draws[1949]:.4f})")
    print(f"the hooks' own time: {callback.spent / watched_s:.3%} of the steps that have them, the longest {callback.longest * 1000:.0f} ms")
    print(f"the monitor: {callback.monitor_s / (clock.last - clock.begin):.3%} of one core; {callback._counter.done} counts, {callback._counter.skipped} left out")


if __name__ == "__main__":
    main()
