"""Six tasks of shapes that the first study lacks.

| task | shape |
|---|---|
| finetune-kl | fine-tuning from a reference policy under a KL limit, whose gradient is zero at the start |
| groups-loss | 240 groups with a limit on each group's loss, four of five absent from a batch; convex |
| groups-rate | 215 cells of UCI Adult with a limit on each cell's false-positive score, most absent from a batch |
| saturated | COMPAS from a network that predicts 1 everywhere, so that the violated constraint has almost no gradient |
| narrow-limit | a limit of 1e-3 on a symmetry defect beside a limit of 5 on the norm of the weights |
| kept-task | transposed MNIST is learned while the loss on upright images, already trained, has a limit |
"""

from __future__ import annotations

import copy
from functools import cache

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, log_softmax

from benchmarks.minibatch import data
from benchmarks.minibatch.task import Batch, Task, Values, group_means

#: Steps and rate of Adam for the two networks that training starts from.
_PRETRAINING, _PRETRAINING_RATE = 600, 3e-3


class FineTune(Task):
    """A policy over 8 actions, 16-32-8 tanh: min expected cost subject to KL(policy || reference) <= 0.1.

    Training starts at the reference. Over all policies the optimum is ``pi ~ reference exp(-cost / eta)``.
    """

    def network(self) -> torch.nn.Module:
        return copy.deepcopy(_policy()[0])

    def values(self, net: torch.nn.Module, batch: Batch) -> Values:
        x, reference, cost = batch
        logs = log_softmax(net(x), dim=1)
        policy = logs.exp()
        kl = (policy * (logs - reference)).sum(1).mean()
        return Values((policy * cost).sum(1).mean(), kl[None] - self.limits, torch.tensor([len(x)]))


class GroupLosses(Task):
    """Logistic regression with an intercept per group: min mean loss subject to loss of group i <= limit, 240 groups.

    Nine groups of ten share one direction, the others have another one, and the weights are common: what serves the
    majority leaves the losses of the minority's groups above the limit.
    """

    def network(self) -> torch.nn.Module:
        return GroupLogit(self.data[0].shape[1], len(self.names))

    def values(self, net: torch.nn.Module, batch: Batch) -> Values:
        x, y, group = batch
        each = binary_cross_entropy_with_logits(net(x, group), y, reduction="none")
        means, counts = group_means(each, group, len(self.names))
        return Values(each.mean(), means - self.limits, counts)


class GroupLogit(torch.nn.Module):
    """``w . x + b[group]``."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, 1, bias=False)
        self.intercept = torch.nn.Parameter(torch.zeros(groups))

    def forward(self, x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.linear(x).squeeze(-1) + self.intercept[group]
        return scores


class CellRates(Task):
    """UCI Adult, 32-ReLU: min BCE subject to mean score on the negatives of cell i <= 0.25.

    Cells are occupation, education and sex, those of at least 8 negatives; the other rows are in cell m, which counts
    for f only.
    """

    def network(self) -> torch.nn.Module:
        width = self.data[0].shape[1]
        return torch.nn.Sequential(torch.nn.Linear(width, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def values(self, net: torch.nn.Module, batch: Batch) -> Values:
        x, y, cell = batch
        out, m = net(x).squeeze(-1), len(self.names)
        means, counts = group_means(torch.sigmoid(out), torch.where(y == 0, cell, m), m + 1)
        return Values(binary_cross_entropy_with_logits(out, y), means[:m] - self.limits, counts[:m])


class Saturated(Task):
    """COMPAS, 9-16-1 ReLU: min BCE subject to mean score on the negatives <= 0.3, from scores near 1 everywhere."""

    def network(self) -> torch.nn.Module:
        last = torch.nn.Linear(16, 1)
        net = torch.nn.Sequential(torch.nn.Linear(9, 16), torch.nn.ReLU(), last)
        with torch.no_grad():
            last.bias.fill_(8.0)
        return net

    def values(self, net: torch.nn.Module, batch: Batch) -> Values:
        x, y = batch
        out = net(x).squeeze(-1)
        means, counts = group_means(torch.sigmoid(out), y.long(), 2)
        return Values(binary_cross_entropy_with_logits(out, y), means[:1] - self.limits, counts[:1])


class Narrow(Task):
    """Regression, 4-32-1 tanh: min squared error subject to mean (u(x) - u(Tx))^2 <= 1e-3 and |weights| <= 5.

    T flips the sign of the first coordinate; a third of the variance of the target is odd in it.
    """

    def network(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

    def values(self, net: torch.nn.Module, batch: Batch) -> Values:
        x, y = batch
        flip = torch.tensor([-1.0, 1.0, 1.0, 1.0])
        both = net(torch.cat([x, x * flip])).squeeze(-1)
        here, there = both[: len(x)], both[len(x) :]
        norm = torch.cat([p.flatten() for p in net.parameters()]).norm()
        g = torch.stack([(here - there).square().mean(), norm]) - self.limits
        return Values((here - y).square().mean(), g, torch.tensor([len(x), len(x)]))


class Kept(Task):
    """MNIST 1..6 in 7x7 pixels, 49-12-6 tanh: min CE on transposed images subject to CE on upright images <= 0.27.

    Training starts at a network that was trained on upright images alone, whose CE on them is 0.25.
    """

    def network(self) -> torch.nn.Module:
        return copy.deepcopy(_upright())

    def values(self, net: torch.nn.Module, batch: Batch) -> Values:
        upright, transposed, y = batch
        out = net(torch.cat([upright, transposed]))
        old, new = cross_entropy(out[: len(y)], y), cross_entropy(out[len(y) :], y)
        return Values(new, old[None] - self.limits, torch.tensor([len(y)]))


def _pretrained(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, rng: torch.Generator) -> torch.nn.Module:
    opt = torch.optim.Adam(net.parameters(), lr=_PRETRAINING_RATE)
    for _ in range(_PRETRAINING):
        index = torch.randint(len(x), (128,), generator=rng)
        opt.zero_grad()
        cross_entropy(net(x[index]), y[index]).backward()
        opt.step()
    return net


def _linear(net: torch.nn.Sequential, rng: torch.Generator) -> torch.nn.Sequential:
    """Draw the weights of ``net`` from ``rng``, whatever torch's own generator holds."""
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=rng) / (p.shape[1] ** 0.5 if p.ndim == 2 else 10.0))
    return net


@cache
def _policy() -> tuple[torch.nn.Module, Batch]:
    rng = torch.Generator().manual_seed(101)
    x = torch.randn(4000, 16, generator=rng)
    teacher, taste = (torch.randn(16, 8, generator=rng) / 4 for _ in range(2))
    y = torch.multinomial(torch.softmax(2 * x @ teacher, dim=1), 1, generator=rng).flatten()
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))
    _pretrained(_linear(net, rng), x, y, rng)
    with torch.no_grad():
        reference = log_softmax(net(x), dim=1)
    return net, (x, reference, torch.sigmoid(2 * torch.sin(x) @ taste))


@cache
def _groups(m: int, width: int) -> Batch:
    rng = torch.Generator().manual_seed(102)
    sizes = torch.randint(20, 100, (m,), generator=rng)
    group = torch.repeat_interleave(torch.arange(m), sizes)
    most, few = (torch.randn(width, generator=rng) for _ in range(2))
    directions = torch.where((torch.arange(m) % 10 == 0)[:, None], few, most)
    x = torch.randn(len(group), width, generator=rng)
    base = torch.randn(m, generator=rng) / 2
    chance = torch.sigmoid((x * directions[group]).sum(1) / width**0.5 * 2 + base[group])
    return x, torch.bernoulli(chance, generator=rng), group


@cache
def _cells() -> tuple[Batch, int]:
    x, y, _ = data.adult()
    raw, least = data.adult_cells(), 8
    kinds, counts = torch.unique(raw[y == 0], return_counts=True)
    kinds = kinds[counts >= least]
    place = torch.searchsorted(kinds, raw).clamp_max(len(kinds) - 1)
    return (x, y, torch.where(kinds[place] == raw, place, len(kinds))), len(kinds)


@cache
def _symmetry() -> Batch:
    rng = torch.Generator().manual_seed(103)
    x = torch.rand(4000, 4, generator=rng) * 2 - 1
    even = torch.cos(3 * x[:, 0]) + x[:, 1] * x[:, 2]
    odd = torch.sin(2 * x[:, 0]) * x[:, 3]
    return x, even + odd + 0.1 * torch.randn(4000, generator=rng)


@cache
def _turned() -> Batch:
    x, y = data.mnist()
    small = torch.nn.functional.avg_pool2d(x[::3].reshape(-1, 1, 28, 28), 4).squeeze(1)
    return small.flatten(1), small.transpose(1, 2).flatten(1).contiguous(), y[::3] - 1


@cache
def _upright() -> torch.nn.Module:
    rng = torch.Generator().manual_seed(104)
    upright, _, y = _turned()
    net = torch.nn.Sequential(torch.nn.Linear(49, 12), torch.nn.Tanh(), torch.nn.Linear(12, 6))
    return _pretrained(_linear(net, rng), upright, y, rng)


def make(name: str) -> Task:
    """Return the task called ``name``; see `NAMES`."""
    if name == "finetune-kl":
        return FineTune(name, _policy()[1], torch.tensor([0.1]), 64, ("KL",))
    if name == "groups-loss":
        m = 240
        return GroupLosses(name, _groups(m, 12), torch.full((m,), 0.7), 64, tuple(f"group {i}" for i in range(m)))
    if name == "groups-rate":
        rows, m = _cells()
        return CellRates(name, rows, torch.full((m,), 0.25), 128, tuple(f"cell {i}" for i in range(m)))
    if name == "saturated":
        return Saturated(name, data.compas()[:2], torch.tensor([0.3]), 64, ("false positives",))
    if name == "narrow-limit":
        return Narrow(name, _symmetry(), torch.tensor([1e-3, 5.0]), 64, ("defect", "norm"))
    return Kept(name, _turned(), torch.tensor([0.27]), 64, ("old task",))


NAMES = ("finetune-kl", "groups-loss", "groups-rate", "saturated", "narrow-limit", "kept-task")
