"""What the callback costs: the same steps of a real Trainer with and without it, interleaved in one run.

    python callback_cost.py --rounds 12 --steps 60

Each round trains twice for as many steps, once bare and once with the callback (and the monitor that it starts), in turn the one and the
other first, and the step times are compared in pairs: what else the machine does falls on both. Printed are the median ratio of the mean
step times over the rounds with its middle half, and the share that the hooks themselves took, by their own clock.
"""
import argparse
import contextlib
import io
import statistics
import tempfile
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from model_garden import MemoryMonitorCallback
from real_trainer import Tokens


class Clock(TrainerCallback):
    """When the first and the last step ended."""

    def on_step_end(self, args, state, control, **context):
        if state.global_step == 1:
            self.begin = time.perf_counter()
        self.end = time.perf_counter()


class Timed(MemoryMonitorCallback):
    """The callback, with the time that its step hook takes."""

    spent = 0.0

    def on_step_end(self, *words, **context):
        begin = time.perf_counter()
        try:
            return super().on_step_end(*words, **context)
        finally:
            self.spent += time.perf_counter() - begin


def train(model, steps, folder, callback):
    clock = Clock()
    arguments = TrainingArguments(
        output_dir=folder, max_steps=steps, per_device_train_batch_size=8, save_strategy="no", logging_steps=10_000,
        report_to="none", disable_tqdm=True, use_cpu=True,
    )
    callbacks = [clock] if callback is None else [callback, clock]
    trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(256, 64), callbacks=callbacks)
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    return (clock.end - clock.begin) / (steps - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=64, n_embd=options.width, n_layer=4, n_head=4))
    ratios, shares, bare_times = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        train(model, 5, folder, None)  # warm-up
        for number in range(options.rounds):
            took = {}
            for watched in ((True, False) if number % 2 else (False, True)):
                callback = Timed(trace=f"{folder}/trace.jsonl") if watched else None
                took[watched] = train(model, options.steps, folder, callback)
                if watched:
                    shares.append(callback.spent / (took[True] * options.steps))
            ratios.append(took[True] / took[False])
            bare_times.append(took[False])
            print(f"round {number + 1}: bare {took[False] * 1000:.1f} ms, with the callback {took[True] * 1000:.1f} ms, "
                  f"ratio {ratios[-1]:.4f}, hooks {shares[-1]:.3%}", flush=True)
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"step of {statistics.median(bare_times) * 1000:.0f} ms: ratio {middle:.4f} (middle half {low:.4f} to {high:.4f}); "
          f"the hooks took {statistics.median(shares):.2%} of step time")


if __name__ == "__main__":
    main()
