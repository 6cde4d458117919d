"""Steps whose samples lie on several ranks or in several micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gdpa.torch.pooling import Group, Pooled, pack, share, unpack
from gdpa.torch.staging import Stage

#: Forms the staged updates and the weights from the pooled means.
Advance = Callable[[Pooled], tuple[dict[str, Any], torch.Tensor]]


class MicroBatches:
    """Pools sums and counts of f and g before (exact) or after (stale) the weights are formed.

    Args:
        mode: None (one call of ``lagrangian`` a step), "exact" or "stale".
        group: the ranks that train together.
    """

    def __init__(self, mode: str | None, group: Group) -> None:
        self.mode, self.group = mode, group
        self.forget()

    def forget(self) -> None:
        """Drop the observations for a step that did not happen."""
        self._observed: torch.Tensor | None = None
        self._observations = 0

    def observe(self, packed: torch.Tensor) -> None:
        """Add one micro-batch to the means that the exact mode needs before the first backward pass."""
        self._observed = packed if self._observed is None else self._observed + packed
        self._observations += 1

    def open(self, packed: torch.Tensor, dtype: torch.dtype, advance: Advance) -> Stage:
        """Return the stage of a step whose means are known: observed before, or from this call alone."""
        if self.mode == "exact":
            if self._observed is None:
                raise RuntimeError(
                    'accumulate="exact" needs the mean of g before the first backward pass: call opt.observe(f, g) '
                    "on every micro-batch under torch.no_grad() first"
                )
            packed = self._observed.clone()
        pooled = unpack(self.group.sum_(packed), dtype)
        updates, weights = advance(pooled)
        stage = Stage(None, pooled.objective, _shown(pooled), updates)
        stage.check = pooled.objective + torch.dot(pooled.values, weights.to(dtype))
        stage.weights, stage.pooled, stage.calls = weights.to(dtype), pooled, 0
        return stage

    def loss(self, stage: Stage, f: torch.Tensor, g: torch.Tensor, n: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """Return the loss of one call: its share in the step's means."""
        assert stage.pooled is not None
        assert stage.weights is not None
        stage.calls += 1
        w = stage.weights * share(c, stage.pooled.counts, self.group.size)
        return f * share(n, stage.pooled.samples, self.group.size) + torch.dot(g, w)

    def close(self, stage: Stage, dtype: torch.dtype, advance: Advance) -> None:
        """Finish a step of several micro-batches."""
        observations = self._observations
        self.forget()
        if self.mode == "exact":
            if stage.calls != observations:
                raise RuntimeError(
                    f"observe saw {observations} micro-batches but lagrangian {stage.calls}; both must see the same"
                )
            return
        assert stage.packed is not None
        pooled = unpack(self.group.sum_(stage.packed.clone()), dtype)
        updates, weights = advance(pooled)
        stage.updates = {**updates, **stage.updates, "stale_weights": weights}
        stage.objective, stage.values, stage.pooled = pooled.objective, _shown(pooled), pooled
        stage.check = pooled.objective + torch.dot(pooled.values, weights.to(dtype))

    def add_stale(self, stage: Stage | None, packed: torch.Tensor, f: torch.Tensor, g: torch.Tensor) -> Stage:
        """Return the stage with one more micro-batch in its sums."""
        if stage is None:
            stage = Stage(f.detach(), f.detach(), g.detach(), {})
            stage.packed = packed
        else:
            assert stage.packed is not None
            stage.packed, stage.calls = stage.packed + packed, stage.calls + 1
        return stage


def _shown(pooled: Pooled) -> torch.Tensor:
    return torch.where(pooled.present, pooled.values, torch.full_like(pooled.values, float("nan")))


__all__ = ["Advance", "MicroBatches", "pack"]
