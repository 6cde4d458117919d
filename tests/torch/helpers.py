"""A small network with constraints, and both optimizers on it."""

from __future__ import annotations

import torch

import gdpa.torch
from gdpa.torch.rules.base import advance_rows

NAMES = ("mean", "norm", "balance")


def network(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to(dtype)


def batch(i, n=16, dtype=torch.float32):
    rng = torch.Generator().manual_seed(1000 + i)
    return torch.randn(n, 4, generator=rng).to(dtype)


def terms(net, x):
    out = net(x)
    f = (out[:, 0] - x[:, 0]).square().mean()
    g = {
        "mean": 0.2 - out[:, 0].mean(),
        "norm": out[:, 1].square().mean() - 0.05,
        "balance": (out[:, 0] - out[:, 1]).mean() - 0.1,
    }
    return f, g


def make(kind, params, names=NAMES, **kwargs):
    """One of the two optimizers: "paper", or "adam" and "sgd" with the minibatch rule."""
    kwargs.setdefault("equalities", ["balance"])
    if kind == "paper":
        return gdpa.torch.GDPA(params, names, lr=0.05, **kwargs)
    if kind == "adam":
        return gdpa.torch.constrain(torch.optim.Adam(params, lr=0.01), names, **kwargs)
    return gdpa.torch.constrain(torch.optim.SGD(params, lr=0.05, momentum=0.9), names, **kwargs)


KINDS = ("paper", "adam", "sgd")


def train(net, opt, steps, start=0, dtype=torch.float32):
    for i in range(start, start + steps):
        opt.zero_grad()
        opt.lagrangian(*terms(net, batch(i, dtype=dtype))).backward()
        opt.step()


def flat(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()]).clone()


def duals(opt):
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in opt.dual_state.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(
        torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k] for k in a
    )


def advance_each(rule, dual, values, present, first_equality):
    """Apply a rule number by number to a dual state of lists; return (the entries that change, the weights)."""
    rows = list(zip(*(dual[key] for key in (*rule.vectors, *rule.given)), strict=True))
    states, updates, w = advance_rows(
        rule, dual, rows, values, present, [i >= first_equality for i in range(len(rows))]
    )
    return dict(zip(rule.vectors, map(list, zip(*states, strict=True)), strict=True)) | updates, w
