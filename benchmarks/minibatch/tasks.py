"""The tasks: a network, batches, and f, g and sample counts of a batch. All constraints in their natural units.

Recipe tasks (the defaults were chosen on relatives of these): ``budget``, ``adult``. New tasks: ``compas``, ``digits``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from benchmarks.minibatch import tables

Batch = tuple[torch.Tensor, ...]


class Values(NamedTuple):
    """f, g and how many samples each g_i is a mean of; g_i of an absent group is NaN."""

    f: torch.Tensor
    g: torch.Tensor
    counts: torch.Tensor


@dataclass
class Task:
    """What is to be trained. ``limits`` are what violations are relative to."""

    name: str
    data: Batch
    limits: torch.Tensor
    batch_size: int
    names: tuple[str, ...]
    extra: dict[str, Any] = field(default_factory=dict)

    def network(self) -> torch.nn.Module:
        raise NotImplementedError

    def values(self, net: torch.nn.Module, batch: Batch) -> Values:
        raise NotImplementedError

    def batches(self, seed: int) -> Iterator[Batch]:
        """Uniform minibatches, without end."""
        rng, n = torch.Generator().manual_seed(seed), len(self.data[0])
        while True:
            order = torch.randperm(n, generator=rng)
            for start in range(0, n - self.batch_size + 1, self.batch_size):
                index = order[start : start + self.batch_size]
                yield tuple(t[index] for t in self.data)


class Budget(Task):
    """MNIST digits 1..6, 784-30-10 sigmoid: min CE(1) subject to CE(d) <= limit for d = 2..6."""

    def network(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(784, 30), torch.nn.Sigmoid(), torch.nn.Linear(30, 10))

    def values(self, net: torch.nn.Module, batch: Batch) -> Values:
        x, y = batch
        each = cross_entropy(net(x), y, reduction="none")
        member = (y[:, None] == torch.arange(1, 7)).to(each)
        counts = member.sum(0)
        means = (each @ member) / counts.clamp_min(1)
        absent = torch.where(counts > 0, 0.0, torch.nan)
        f = means[0]  # digit 1 is every sixth image: always in a batch
        return Values(f, means[1:] + absent[1:] - self.limits, counts[1:])

    def batches(self, seed: int) -> Iterator[Batch]:
        if not self.extra["stratified"]:
            yield from super().batches(seed)
        rng, (x, y) = torch.Generator().manual_seed(seed), self.data
        members = [torch.nonzero(y == d).flatten() for d in range(1, 7)]
        while True:
            picks = [m[torch.randint(len(m), (self.batch_size // 6,), generator=rng)] for m in members]
            index = torch.cat(picks)
            yield x[index], y[index]


class Parity(Task):
    """A 32-ReLU network on a table: min BCE subject to |gap of mean scores| <= limit, and a recall floor if asked.

    With ``among`` the gap is among rows of that label only.
    """

    def network(self) -> torch.nn.Module:
        width = self.data[0].shape[1]
        return torch.nn.Sequential(torch.nn.Linear(width, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def values(self, net: torch.nn.Module, batch: Batch) -> Values:
        x, y, group = batch
        out = net(x).squeeze(-1)
        score, among = torch.sigmoid(out), self.extra.get("among")
        rows = torch.ones_like(y) if among is None else (y == among).to(y)
        one, zero = rows * group, rows * (1 - group)
        n = torch.stack([one.sum(), zero.sum()])
        gap = (score @ one) / n[0].clamp_min(1) - (score @ zero) / n[1].clamp_min(1)
        gap = gap if bool((n > 0).all()) else gap * torch.nan
        g, counts = [gap - self.limits[0], -gap - self.limits[1]], [n.min(), n.min()]
        if "recall" in self.extra:
            g.append(self.extra["recall"] - (score @ y) / y.sum().clamp_min(1) + (0.0 if y.sum() > 0 else torch.nan))
            counts.append(y.sum())
        return Values(binary_cross_entropy_with_logits(out, y), torch.stack(g), torch.stack(counts))


class Digits(Task):
    """8x8 digits, 64-30-10 tanh: min CE subject to mean |weight| <= 0.12 and CE(8) <= 0.05, the 8s often absent."""

    def network(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(64, 30), torch.nn.Tanh(), torch.nn.Linear(30, 10))

    def values(self, net: torch.nn.Module, batch: Batch) -> Values:
        x, y = batch
        each = cross_entropy(net(x), y, reduction="none")
        size = torch.cat([p.flatten() for p in net.parameters()]).abs().mean()
        eights = (y == 8).to(each)
        n = eights.sum()
        loss = (each @ eights) / n.clamp_min(1) + (0.0 if n > 0 else torch.nan)
        return Values(
            each.mean(), torch.stack([size, loss]) - self.limits, torch.stack([torch.tensor(float(len(y))), n])
        )


@cache
def _mnist() -> Batch:
    from gdpa.experiments.data import load

    images = load("mnist")
    keep = (images.train_y >= 1) & (images.train_y <= 6)
    x = torch.tensor(images.train_x[keep].reshape(-1, 784) / 255.0, dtype=torch.float32)
    return x, torch.tensor(images.train_y[keep].astype("int64"))


@cache
def _digits() -> Batch:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def make(name: str) -> Task:
    """Return the task called ``name``; see `NAMES`."""
    kind, *options = name.split("-")
    if kind == "budget":
        limit, stratified = float(options[0]), "unstratified" not in options
        limits, names = torch.full((5,), limit), tuple(f"digit {d}" for d in range(2, 7))
        return Budget(name, _mnist(), limits, 126 if stratified else 128, names, {"stratified": stratified})
    if kind == "adult":
        limits, names = torch.tensor([0.05, 0.05]), ("gap up", "gap down")
        if "recall" in options:
            extra = {"recall": 0.7}
            return Parity(name, tables.adult(), torch.tensor([0.05, 0.05, 0.7]), 128, (*names, "recall"), extra)
        return Parity(name, tables.adult(), limits, 128, names)
    if kind == "compas":
        return Parity(name, tables.compas(), torch.tensor([0.05, 0.05]), 128, ("gap up", "gap down"), {"among": 0.0})
    if kind == "digits":
        return Digits(name, _digits(), torch.tensor([0.12, 0.05]), 32, ("mean weight", "loss of 8s"))
    raise ValueError(f"no task is called {name!r}; there are {NAMES}")


RECIPE = ("budget-0.3", "budget-0.1", "budget-0.3-unstratified", "budget-0.1-unstratified", "adult", "adult-recall")
NEW = ("compas", "digits")
NAMES = (*RECIPE, *NEW)
