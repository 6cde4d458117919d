"""Sums and counts of f and g over ranks and micro-batches.

The weights of a step are nonlinear in g, so they need the mean of g over *all* samples of the step before the
backward pass: the mean of local weights, or the weights of local means, are something else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

#: Whether this process is one of several; False if torch was built without distributed support.
initialized: Callable[[], bool] = dist.is_initialized if dist.is_available() else lambda: False


class Pooled(NamedTuple):
    """Means over all samples of a step in the precision of g, and their numbers of samples."""

    objective: torch.Tensor
    values: torch.Tensor
    present: torch.Tensor
    samples: torch.Tensor
    counts: torch.Tensor


def pack(f: Any, g: torch.Tensor, samples: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the vector (f n, n, g_i c_i, c_i) that ranks and micro-batches add up; absent groups add nothing.

    In double precision, so that the mean of many parts is as good as the mean of the whole.
    """
    wide = torch.float32 if g.device.type == "mps" else torch.float64  # which knows no other
    f, n = torch.as_tensor(f, device=g.device).to(wide).reshape(1), samples.to(wide).reshape(1)
    g, c = g.to(wide), counts.to(wide)
    f, g = torch.where(n > 0, f, torch.zeros_like(f)), torch.where(c > 0, g, torch.zeros_like(g))
    return torch.cat([f * n, n, g * c, c])


def unpack(packed: torch.Tensor, dtype: torch.dtype) -> Pooled:
    """Return the means of a sum of packed vectors."""
    m = (packed.shape[0] - 2) // 2
    n, counts = packed[1], packed[2 + m :]
    present = counts > 0
    values = packed[2 : 2 + m] / torch.where(present, counts, torch.ones_like(counts))
    objective = packed[0] / torch.where(n > 0, n, torch.ones_like(n))
    return Pooled(objective.to(dtype), values.to(dtype), present, n, counts)


def share(part: torch.Tensor, whole: torch.Tensor, world: int) -> torch.Tensor:
    """Return the weight of a local mean in the loss: part / whole, times the ranks that gradients are averaged over."""
    ratio = torch.where(
        whole > 0, part / torch.where(whole > 0, whole, torch.ones_like(whole)), torch.zeros_like(whole)
    )
    return (ratio * world).to(part.dtype)


class Group:
    """The ranks that train together: "world" for the default group if one is set up, None for this process alone."""

    def __init__(self, process_group: Any) -> None:
        if isinstance(process_group, str) and process_group != "world":
            raise ValueError(f'process_group must be "world", None or a process group, got {process_group!r}')
        self._group = process_group

    @property
    def size(self) -> int:
        """How many ranks there are."""
        if self._group is None or not initialized():
            return 1
        return dist.get_world_size(None if self._group == "world" else self._group)

    def sum_(self, packed: torch.Tensor) -> torch.Tensor:
        """Add ``packed`` up over the ranks, in place. One blocking collective: the backward pass needs its result."""
        if self.size > 1:
            dist.all_reduce(packed, group=None if self._group == "world" else self._group)
        return packed

    def __getstate__(self) -> dict[str, Any]:
        # A process group belongs to its process; a copy elsewhere finds the default group there.
        return {"_group": None if self._group is None else "world"}


def mask(values: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """Return ``values`` with 0 for absent constraints.

    >>> mask(torch.tensor([1.0, float("nan")]), torch.tensor([True, False])).tolist()
    [1.0, 0.0]
    """
    return torch.where(present, values, torch.zeros_like(values))
