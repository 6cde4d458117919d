"""Hugging Face Trainer: pass the optimizer in, return the Lagrangian from compute_loss.

Start it with

    pip install transformers accelerate
    python examples/integrations/huggingface_trainer.py

What the trainer logs (to the console, TensorBoard, ...) has value, violation and multiplier of every constraint in it.
"""

import torch
from transformers import Trainer, TrainingArguments

import gdpa.torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        return self.linear(x).squeeze(-1)


class ConstrainedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(inputs["x"])
        f = (out - inputs["labels"]).square().mean()
        loss = self.constrained.lagrangian(f, {"mean": 1 - out.mean()}) if model.training else f
        return (loss, out) if return_outputs else loss

    def log(self, logs, *args, **kwargs):
        super().log({**logs, **gdpa.torch.scalars(self.constrained.snapshot())}, *args, **kwargs)


def main(folder="."):
    torch.manual_seed(0)
    x = torch.randn(256, 4)
    rows = [{"x": row, "labels": row[0]} for row in x]
    net = Net()
    opt = gdpa.torch.constrain(torch.optim.AdamW(net.parameters(), lr=0.02), ["mean"])
    args = TrainingArguments(
        folder, num_train_epochs=60, per_device_train_batch_size=32, report_to=[], save_strategy="no", use_cpu=True,
        disable_tqdm=True, remove_unused_columns=False, logging_steps=100,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.ConstantLR(opt, factor=1.0)
    trainer = ConstrainedTrainer(model=net, args=args, train_dataset=rows, optimizers=(opt, schedule))
    trainer.constrained = opt  # the trainer wraps the optimizer it steps; the Lagrangian is ours to ask for
    trainer.train()
    print(opt.report(tolerance=0.1))
    return net, opt, x, trainer


if __name__ == "__main__":
    main()
