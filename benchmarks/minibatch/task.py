"""What a task is: a network, batches, and f, g and sample counts of a batch, in natural units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

Batch = tuple[torch.Tensor, ...]


class Values(NamedTuple):
    """f, g and how many samples each g_i is a mean of; g_i of an absent group is NaN."""

    f: torch.Tensor
    g: torch.Tensor
    counts: torch.Tensor


@dataclass
class Task:
    """What is to be trained.

    Attributes:
        name: its row in the tables.
        data: tensors whose first axis runs over the samples.
        limits: the sizes of the limits. Violations are relative to them.
        batch_size: samples of a batch.
        names: of the constraints.
        extra: what a kind of task needs besides.
    """

    name: str
    data: Batch
    limits: torch.Tensor
    batch_size: int
    names: tuple[str, ...]
    extra: dict[str, Any] = field(default_factory=dict)

    def network(self) -> torch.nn.Module:
        """Return the network to start from; torch's generator is seeded before."""
        raise NotImplementedError

    def values(self, net: torch.nn.Module, batch: Batch) -> Values:
        """Return f, g and counts of a batch; of the whole training set if ``batch`` is ``data``."""
        raise NotImplementedError

    def batches(self, seed: int) -> Iterator[Batch]:
        """Yield uniform minibatches without end."""
        rng, n = torch.Generator().manual_seed(seed), len(self.data[0])
        while True:
            order = torch.randperm(n, generator=rng)
            for start in range(0, n - self.batch_size + 1, self.batch_size):
                index = order[start : start + self.batch_size]
                yield tuple(t[index] for t in self.data)


def group_means(each: torch.Tensor, group: torch.Tensor, m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean of ``each`` in every group 0, ..., m - 1 (NaN if the group is absent) and the sizes.

    >>> means, counts = group_means(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 2]), 3)
    >>> means.tolist(), counts.tolist()
    ([2.0, nan, 5.0], [2.0, 0.0, 1.0])
    """
    counts = torch.bincount(group, minlength=m).to(each)
    sums = torch.zeros(m, dtype=each.dtype).index_add(0, group, each)
    return sums / counts.clamp_min(1) + torch.where(counts > 0, 0.0, torch.nan), counts
