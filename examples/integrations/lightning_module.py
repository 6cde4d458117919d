"""Lightning, automatic optimization: build the optimizer in configure_optimizers, return the Lagrangian."""

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


def main(folder="."):
    torch.manual_seed(0)
    x = torch.randn(256, 4)
    data = TensorDataset(x, x[:, 0])
    model = Regression()
    trainer = lightning.Trainer(
        max_epochs=30, logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
        default_root_dir=folder, enable_checkpointing=True, gradient_clip_val=10.0,
    )  # fmt: skip
    trainer.fit(model, DataLoader(data, batch_size=32, shuffle=True))
    trainer.save_checkpoint(f"{folder}/last.ckpt")
    print(model.opt.report(tolerance=0.1))
    return model, x


if __name__ == "__main__":
    main()
