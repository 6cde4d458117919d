"""Lightning, automatic optimization: build the optimizer in configure_optimizers, return the Lagrangian.

Start it with

    pip install lightning
    python examples/integrations/lightning_module.py

`LogReport` sends value, violation and multiplier of every constraint to whatever logger the trainer has.
"""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import gdpa.torch


class Regression(lightning.LightningModule):
    """Least squares with a mean output of at least 1."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def configure_optimizers(self):
        self.opt = gdpa.torch.constrain(torch.optim.Adam(self.net.parameters(), lr=0.02), ["mean"])
        return self.opt

    def training_step(self, batch, index):
        x, y = batch
        out = self.net(x).squeeze(-1)
        return self.opt.lagrangian((out - y).square().mean(), {"mean": 1 - out.mean()})


class LogReport(lightning.Callback):
    """Logs the numbers of ``opt.report()`` every ``every`` batches, and prints the report at the end of training."""

    def __init__(self, every=50, tolerance=0.1):
        self.every, self.tolerance = every, tolerance

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step % self.every == 0:
            pl_module.log_dict(gdpa.torch.scalars(pl_module.opt.report().snapshot))

    def on_train_end(self, trainer, pl_module):
        print(pl_module.opt.report(self.tolerance))


def main(folder="."):
    torch.manual_seed(0)
    x = torch.randn(256, 4)
    data = TensorDataset(x, x[:, 0])
    model = Regression()
    trainer = lightning.Trainer(
        max_epochs=60, logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
        default_root_dir=folder, enable_checkpointing=True, gradient_clip_val=10.0, callbacks=[LogReport(every=20)],
    )  # fmt: skip
    trainer.fit(model, DataLoader(data, batch_size=32, shuffle=True))
    trainer.save_checkpoint(f"{folder}/last.ckpt")
    return model, x, trainer


if __name__ == "__main__":
    main()
