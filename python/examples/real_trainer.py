"""A real transformers.Trainer on a tiny GPT-2 of random weights, with the memory callback: nothing is downloaded.

    python real_trainer.py --output_dir out                                          # starts a monitor of its own
    model-garden monitor -- python real_trainer.py --output_dir out
    model-garden run --memory-limit 1500MB -- python real_trainer.py --output_dir out --leak 4 --max_steps 2000
    python real_trainer.py --output_dir out --resume_from_checkpoint out/checkpoint-N

`--leak` keeps so many MiB per step in a list of tensors, as a metric that is never cleared would.
"""
import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from model_garden import MemoryMonitorCallback


class Tokens(torch.utils.data.Dataset):
    """Random tokens, the same ones at each access."""

    def __init__(self, examples, length):
        self.tokens = torch.randint(0, 1000, (examples, length), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Leak(TrainerCallback):
    """Keeps tensors for ever."""

    def __init__(self, mib):
        self.mib = mib
        self.kept = []

    def on_step_end(self, args, state, control, **context):
        if self.mib:
            self.kept.append(torch.ones(int(self.mib * (1 << 18)), dtype=torch.float32))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--output_dir", required=True)
    add("--examples", type=int, default=160)
    add("--length", type=int, default=64)
    add("--width", type=int, default=128)
    add("--batch_size", type=int, default=4)
    add("--accumulation", type=int, default=2)
    add("--max_steps", type=int, default=100)
    add("--save_steps", type=int, default=0, help="0: only when asked to stop, and at the end")
    add("--eval_steps", type=int, default=0)
    add("--workers", type=int, default=0)
    add("--leak", type=float, default=0, metavar="MIB")
    add("--every", type=int, default=10)
    add("--interval", default="1s")
    add("--gpu", action="store_true")
    add("--resume_from_checkpoint")
    return parser.parse_args()


def main():
    options = parse_arguments()
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=1000, n_positions=options.length, n_embd=options.width, n_layer=2, n_head=2)
    arguments = TrainingArguments(
        output_dir=options.output_dir,
        per_device_train_batch_size=options.batch_size,
        gradient_accumulation_steps=options.accumulation,
        max_steps=options.max_steps,
        save_strategy="steps" if options.save_steps else "no",
        save_steps=options.save_steps or 500,
        eval_strategy="steps" if options.eval_steps else "no",
        eval_steps=options.eval_steps or None,
        dataloader_num_workers=options.workers,
        logging_steps=50,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not options.gpu,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Tokens(options.examples, options.length),
        eval_dataset=Tokens(16, options.length),
        callbacks=[Leak(options.leak)],
    )
    trainer.add_callback(MemoryMonitorCallback(every=options.every, interval=options.interval))
    trainer.train(resume_from_checkpoint=options.resume_from_checkpoint)
    print(f"ended at step {trainer.state.global_step} of {options.max_steps}")


if __name__ == "__main__":
    main()
