"""Steps whose samples lie on several ranks or in several micro-batches."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from gdpa.torch.pooling import Group, pack, share, unpack
from gdpa.torch.roster import Roster
from gdpa.torch.stage import Stage, host, tensor
from gdpa.torch.terms.term import has_terms, resolve


class MicroBatches:
    """The part of `ConstrainedOptimizer` that pools samples before the weights are formed."""

    _roster: Roster
    _group: Group
    _stage: Stage | None
    _accumulate: str | None
    _nan: str
    _capturable: bool
    _observed: torch.Tensor | None
    _observations: int

    @property
    @abstractmethod
    def _slot(self) -> dict[str, Any]: ...

    @abstractmethod
    def _advance(self, values: Any, present: Any) -> tuple[dict[str, Any], Any]: ...

    @abstractmethod
    def _measuring(self) -> bool: ...

    @abstractmethod
    def _measure(self, f: torch.Tensor, g: torch.Tensor, counts: torch.Tensor | None) -> Stage: ...

    @abstractmethod
    def _settle(self, stage: Stage) -> None: ...

    def observe(self, f: Any, g: Any, *, true: Any = None, samples: int | None = None, counts: Any = None) -> None:
        """Add one micro-batch to the means that ``accumulate="exact"`` needs before the first backward pass.

        Call it for every micro-batch under ``torch.no_grad()``, then `lagrangian` and ``backward`` for each again.
        """
        if self._accumulate != "exact":
            raise RuntimeError('observe is for accumulate="exact"; build the optimizer with it')
        if self._stage is not None:
            raise RuntimeError("observe came after lagrangian; observe all micro-batches first, then train on them")
        if true is not None or has_terms(g):
            g, counts = resolve(g, true, counts, samples)
        vector = self._roster.vector(g, differentiable=False).detach()
        n, c = self._sizes(vector, samples, counts)
        packed = pack(torch.as_tensor(f).detach(), vector, n, c)
        self._observed = packed if self._observed is None else self._observed + packed
        self._observations += 1

    def _sizes(self, vector: torch.Tensor, samples: int | None, counts: Any) -> tuple[torch.Tensor, torch.Tensor]:
        n = torch.tensor(1.0 if samples is None else float(samples), dtype=vector.dtype, device=vector.device)
        c = n.expand(vector.shape) if counts is None else self._roster.counts(counts, vector)
        if self._nan == "absent":
            c = torch.where(torch.isnan(vector.detach()), torch.zeros_like(c), c)
        return n, c

    def _pooled(self, f: torch.Tensor, vector: torch.Tensor, samples: int | None, counts: Any) -> torch.Tensor:
        n, c = self._sizes(vector, samples, counts)
        safe = torch.where(c > 0, vector, torch.zeros_like(vector))
        f = torch.where(n > 0, f, torch.zeros_like(f))
        stage = self._stage
        if stage.measuring if stage is not None else self._measuring():
            self._stage = self._measure(f, safe, c)
            product = torch.dot(safe, torch.zeros_like(vector))
            self._stage.product = product
            return f + product
        if self._accumulate == "stale":
            return self._stale(f, safe, n, c)
        if stage is None:
            if self._accumulate == "exact":
                if self._observed is None:
                    raise RuntimeError(
                        'accumulate="exact" needs the mean of g before the first backward pass: call opt.observe(f, g) '
                        "on every micro-batch under torch.no_grad() first"
                    )
                packed = self._observed.clone()
            else:
                packed = pack(f.detach(), safe.detach(), n, c)
            pooled = unpack(self._group.sum_(packed), vector.dtype)
            updates, weights = self._advance(
                view(pooled.values, self._capturable), view(pooled.present, self._capturable)
            )
            weights = tensor(weights)
            check = pooled.objective + torch.dot(pooled.values, weights)
            stage = Stage(check, pooled.objective, pooled.values, updates)
            stage.weights, stage.present, stage.pooled, stage.calls = weights, pooled.present, pooled, 0
            self._settle(stage)
            self._stage = stage
        assert stage.pooled is not None
        assert stage.weights is not None
        world = self._group.size
        stage.calls += 1
        product = torch.dot(safe, stage.weights * share(c, stage.pooled.counts, world))
        stage.product = product
        return f * share(n, stage.pooled.samples, world) + product

    def _stale(self, f: torch.Tensor, safe: torch.Tensor, n: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        packed = pack(f.detach(), safe.detach(), n, c)
        stage = self._stage
        if stage is None:
            stage = self._stage = Stage(f.detach(), f.detach(), safe.detach(), {})
            stage.packed = packed
        else:
            assert stage.packed is not None
            stage.packed, stage.calls = stage.packed + packed, stage.calls + 1
        weights = self._slot["stale_weights"].to(safe)
        product = torch.dot(safe, torch.where(c > 0, weights, torch.zeros_like(weights)))
        stage.product = product
        return f + product

    def _close_round(self, stage: Stage) -> None:
        """Finish a step of several micro-batches."""
        observations, self._observations, self._observed = self._observations, 0, None
        if stage.measuring:
            return
        if self._accumulate == "exact":
            if stage.calls != observations:
                raise RuntimeError(
                    f"observe saw {observations} micro-batches but lagrangian {stage.calls}; both must see the same"
                )
            return
        assert stage.packed is not None
        pooled = unpack(self._group.sum_(stage.packed.clone()), stage.values.dtype)
        updates, weights = self._advance(view(pooled.values, self._capturable), view(pooled.present, self._capturable))
        stage.updates = {**updates, "stale_weights": weights}
        stage.objective, stage.values, stage.present = pooled.objective, pooled.values, pooled.present
        stage.check = pooled.objective + torch.dot(pooled.values, tensor(weights))


def view(value: torch.Tensor, capturable: bool) -> Any:
    """Return what the formulas work on: the tensor where it must stay on the device, else see `host`."""
    return value if capturable else host(value)
