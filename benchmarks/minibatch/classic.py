"""The eight tasks of the first study: MNIST budgets, parity on UCI Adult and COMPAS, the 8x8 digits.

The defaults of the library's first rule were chosen on relatives of ``budget`` and ``adult``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from benchmarks.minibatch import data
from benchmarks.minibatch.task import Batch, Task, Values


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


def make(name: str) -> Task:
    """Return the task called ``name``; see `NAMES`."""
    kind, *options = name.split("-")
    if kind == "budget":
        limit, stratified = float(options[0]), "unstratified" not in options
        limits, names = torch.full((5,), limit), tuple(f"digit {d}" for d in range(2, 7))
        return Budget(name, data.mnist(), limits, 126 if stratified else 128, names, {"stratified": stratified})
    if kind == "adult":
        limits, names = torch.tensor([0.05, 0.05]), ("gap up", "gap down")
        if "recall" in options:
            extra = {"recall": 0.7}
            return Parity(name, data.adult(), torch.tensor([0.05, 0.05, 0.7]), 128, (*names, "recall"), extra)
        return Parity(name, data.adult(), limits, 128, names)
    if kind == "compas":
        return Parity(name, data.compas(), torch.tensor([0.05, 0.05]), 128, ("gap up", "gap down"), {"among": 0.0})
    return Digits(name, data.digits(), torch.tensor([0.12, 0.05]), 32, ("mean weight", "loss of 8s"))


NAMES = (
    *("budget-0.3", "budget-0.1", "budget-0.3-unstratified", "budget-0.1-unstratified"),
    *("adult", "adult-recall", "compas", "digits"),
)
