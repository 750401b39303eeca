"""Lightning: a callback of a few lines around `model_garden.watch`, and a tiny model to try it on."""
import argparse
import os

import lightning
import torch

import model_garden


class MemoryWatch(lightning.Callback):
    """Tells the steps, epochs, evaluations and checkpoints of a Lightning trainer, and stops it when asked to."""

    def __init__(self, **options):
        self.options = options
        self.run = None

    def on_train_start(self, trainer, module):
        self.run = model_garden.watch(
            steps_per_epoch=trainer.num_training_batches // trainer.accumulate_grad_batches,
            total_steps=trainer.estimated_stepping_batches,
            **self.options,
        )

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        if trainer.global_step == self.run.current_step:
            return  # in the middle of an accumulation
        self.run.step(trainer.global_step)
        if self.run.should_stop:
            path = os.path.join(trainer.default_root_dir, f"step={trainer.global_step}.ckpt")
            trainer.save_checkpoint(path)
            self.run.checkpoint(path)
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer, module):
        self.run.epoch_end()

    def on_validation_start(self, trainer, module):
        if self.run and not trainer.sanity_checking:
            self.run.evaluation_start()

    def on_validation_end(self, trainer, module):
        if self.run and not trainer.sanity_checking:
            self.run.evaluation_end()

    def on_train_end(self, trainer, module):
        self.run.finish()

    def on_exception(self, trainer, module, exception):
        if self.run:
            self.run.finish()


class Tiny(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 1)

    def training_step(self, batch, index):
        return self.layer(batch).square().mean()

    def validation_step(self, batch, index):
        self.layer(batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--interval", default="1s")
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    loader = torch.utils.data.DataLoader(torch.randn(256, 64), batch_size=8)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=arguments.epochs,
        accumulate_grad_batches=2,
        default_root_dir=arguments.output_dir,
        callbacks=[MemoryWatch(interval=arguments.interval)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Tiny(), loader, torch.utils.data.DataLoader(torch.randn(16, 64), batch_size=8))
    print(f"ended at step {trainer.global_step}")
