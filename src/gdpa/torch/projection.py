"""Projection of parameters, whole or sharded, on the convex sets of `gdpa.base.sets`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gdpa.base.sets import REALS, ConvexSet


@torch.no_grad()
def project_groups_(groups: Sequence[dict[str, Any]], domains: Sequence[ConvexSet | None]) -> None:
    """Project the rows (last axis) of the parameters of each group on its set, in place; None is the whole space."""
    for group, domain in zip(groups, domains, strict=True):
        if domain is None:
            continue
        for p in group["params"]:
            full: Any = p.full_tensor() if hasattr(p, "full_tensor") else p
            projected = domain.project(full if full.ndim else full.reshape(1)).reshape(full.shape)
            if full is not p:
                from torch.distributed.tensor import distribute_tensor

                projected = distribute_tensor(projected, p.device_mesh, p.placements)
            p.copy_(projected)


@dataclass(frozen=True)
class ParameterSet(ConvexSet):
    """The product of the parameters' sets, for the vector of all parameters.

    ``sets`` has the set that each parameter's rows (last axis) lie in; None for the whole space.

    >>> from gdpa import Box
    >>> both = ParameterSet((torch.Size([2]), torch.Size([1])), (Box(0.0, 1.0), None))
    >>> both.project(torch.tensor([2.0, -1.0, 5.0])).tolist()
    [1.0, 0.0, 5.0]
    """

    shapes: tuple[torch.Size, ...]
    sets: tuple[ConvexSet | None, ...]

    def _each(self, change: Callable[..., torch.Tensor], *vectors: torch.Tensor) -> torch.Tensor:
        parts, start = [], 0
        for shape, domain in zip(self.shapes, self.sets, strict=True):
            end = start + shape.numel()
            pieces = [v[start:end] for v in vectors]
            if domain is not None:
                rows = shape if len(shape) else torch.Size((1,))
                pieces[-1] = change(domain, *(piece.reshape(rows) for piece in pieces)).reshape(-1)
            parts.append(pieces[-1])
            start = end
        return torch.cat(parts)

    def project(self, x: torch.Tensor) -> torch.Tensor:
        return self._each(lambda domain, rows: domain.project(rows), x)

    def tangent(self, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self._each(lambda domain, rows, moves: domain.tangent(rows, moves), x, v)

    def snap(self, x: torch.Tensor, tolerance: float) -> torch.Tensor:
        return self._each(lambda domain, rows: domain.snap(rows, tolerance), x)


def product_of_sets(
    groups: Sequence[dict[str, Any]], domains: Sequence[ConvexSet | None], params: Sequence[torch.Tensor]
) -> ConvexSet:
    """Return the set that the vector of ``params`` lies in; ``domains`` are the sets of the parameter groups."""
    sets = {id(p): domain for group, domain in zip(groups, domains, strict=True) if domain for p in group["params"]}
    if not any(id(p) in sets for p in params):
        return REALS
    return ParameterSet(tuple(p.shape for p in params), tuple(sets.get(id(p)) for p in params))
