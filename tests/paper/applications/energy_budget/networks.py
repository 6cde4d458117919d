"""Small networks that the tests share."""

from __future__ import annotations

import torch
from torch import nn


def perceptron() -> nn.Sequential:
    """3-5-4-2 in double precision."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def convolutional() -> nn.Sequential:
    """Two convolutions with batch normalization and pooling, two linear layers, for images of 10 by 10."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 16, 5),
        nn.BatchNorm1d(5),
        nn.ReLU(),
        nn.Linear(5, 3),
    ).double()
    net(torch.randn(32, 1, 10, 10, dtype=torch.float64))  # running means that are not the start's
    return net.eval()
