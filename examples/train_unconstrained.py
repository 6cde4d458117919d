"""Classify digits with small weights, and the 8s (the hardest) no worse than the rest: one line makes it so."""

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import gdpa.torch
from gdpa.torch import Limits, at_most

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
net = torch.nn.Sequential(torch.nn.Linear(64, 30), torch.nn.Tanh(), torch.nn.Linear(30, 10))
limits = Limits({"mean weight": at_most(0.12), "loss of 8s": at_most(0.1)})
opt = gdpa.torch.constrain(torch.optim.Adam(net.parameters(), lr=0.01), limits, nan="absent")


def values(net, batch):
    x, y = batch
    each = cross_entropy(net(x), y, reduction="none")
    size = torch.cat([p.flatten() for p in net.parameters()]).abs().mean()
    return each.mean(), {"mean weight": size, "loss of 8s": each[y == 8].mean()}  # no 8 in a batch: NaN


for _ in range(40):
    for batch in DataLoader(data, batch_size=64, shuffle=True):
        opt.zero_grad()
        f, g = values(net, batch)
        loss = f
        loss.backward()
        opt.step()

print(opt.finish(net, [data.tensors], values, tolerance=0.1))  # the last weights or their average
