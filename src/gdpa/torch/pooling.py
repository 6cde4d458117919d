"""Steps whose samples lie on several ranks or in several micro-batches: sums and counts of f and g.

The weights of a step are nonlinear in g, so they need the mean of g over *all* samples of the step before the
backward pass: the mean of local weights, or the weights of local means, are something else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

#: Whether this process is one of several; False if torch was built without distributed support.
initialized: Callable[[], bool] = dist.is_initialized if dist.is_available() else lambda: False


class Group:
    """The ranks that train together: "world" for the default group if one is set up, None for this process alone."""

    def __init__(self, process_group: Any) -> None:
        if isinstance(process_group, str) and process_group != "world":
            raise ValueError(f'process_group must be "world", None or a process group, got {process_group!r}')
        self._group = process_group

    @property
    def size(self) -> int:
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


class Pool:
    """Sums of f and g over the parts of a step; ``mode`` None has one call of ``lagrangian`` a step."""

    def __init__(self, mode: str | None, group: Group) -> None:
        self.mode, self.group = mode, group
        self.forget()

    def forget(self) -> None:
        """Drop the parts of a step that did not happen."""
        self._sums: torch.Tensor | None = None
        self.calls = 0

    def add(self, f: torch.Tensor, g: torch.Tensor, samples: torch.Tensor) -> None:
        """Add the means f and g over ``samples`` (of f, then of each g) of one part, in double precision."""
        wide = torch.float32 if g.device.type == "mps" else torch.float64  # mps has no other
        values = torch.cat([f.detach().reshape(1).to(g.device, wide), g.detach().to(wide)])
        counts = samples.to(wide)
        sums = torch.stack([torch.where(counts > 0, values, torch.zeros_like(values)) * counts, counts])
        self._sums = sums if self._sums is None else self._sums + sums
        self.calls += 1

    def means(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (f and all g, their samples) over all ranks and parts, in the precision of ``like``."""
        if self._sums is None:
            raise RuntimeError(
                'accumulate="exact" needs the mean of g before the first backward pass: call '
                "opt.add_micro_batch(f, g) on every micro-batch under torch.no_grad() first"
            )
        total, samples = self.group.sum_(self._sums.clone())
        return (total / torch.where(samples > 0, samples, torch.ones_like(samples))).to(like.dtype), samples

    def shares(self, part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """Return the weights of a part's means in the loss, times the ranks that gradients are averaged over."""
        ratio = part / torch.where(whole > 0, whole, torch.ones_like(whole))
        return (ratio * self.group.size).to(part.dtype)
