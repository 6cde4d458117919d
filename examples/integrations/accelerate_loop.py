"""Accelerate: prepare model, optimizer and data; ask the optimizer you built for the Lagrangian.

Start it with

    pip install accelerate
    python examples/integrations/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import gdpa.torch


def main():
    torch.manual_seed(0)
    x = torch.randn(256, 4)
    net = torch.nn.Linear(4, 1)
    opt = gdpa.torch.constrain(torch.optim.AdamW(net.parameters(), lr=0.02), ["mean"])
    accelerator = Accelerator(cpu=True)
    model, stepper, loader = accelerator.prepare(
        net, opt, DataLoader(TensorDataset(x, x[:, 0]), batch_size=32, shuffle=True)
    )
    for _ in range(60):
        for inputs, labels in loader:
            stepper.zero_grad()
            out = model(inputs).squeeze(-1)
            loss = opt.lagrangian((out - labels).square().mean(), {"mean": 1 - out.mean()}, samples=len(out))
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 10.0)
            stepper.step()
    print(opt.report(tolerance=0.1))
    return net, opt, x


if __name__ == "__main__":
    main()
