"""A plain loop with accelerate, watched: `python accelerate_loop.py`, or under `accelerate launch`, `model-garden monitor` or `run`."""
import argparse
import os

import torch
from accelerate import Accelerator

import model_garden


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--interval", default="1s")
    options = parser.parse_args()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    examples, batch_size = 256, 8
    data = torch.utils.data.TensorDataset(torch.randn(examples, 64), torch.randn(examples, 1))
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader(data, batch_size=batch_size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    facts = dict(
        examples=examples,
        batch_size=batch_size * accelerator.num_processes,
        gradient_accumulation=accelerator.gradient_accumulation_steps,
    )
    with model_garden.watch(**facts, interval=options.interval) as run:
        for epoch in range(options.epochs):
            for inputs, targets in loader:
                with accelerator.accumulate(model):
                    loss = torch.nn.functional.mse_loss(model(inputs), targets)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                if accelerator.sync_gradients:
                    run.step()
                if run.should_stop:
                    break
            run.epoch_end()
            folder = os.path.join(options.output_dir, f"checkpoint-{run.current_step}")
            accelerator.save_state(folder)
            run.checkpoint(folder)
            if run.should_stop:
                break
    accelerator.print(f"ended at step {run.current_step}")


if __name__ == "__main__":
    main()
