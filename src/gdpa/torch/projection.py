"""Projection of parameters, whole or sharded, on the convex sets of `gdpa.base.sets`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gdpa.base.sets import REALS, ConvexSet, Product


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


def product_of_sets(
    groups: Sequence[dict[str, Any]], domains: Sequence[ConvexSet | None], params: Sequence[torch.Tensor]
) -> ConvexSet:
    """Return the set that the vector of ``params`` lies in; ``domains`` are the sets of the parameter groups.

    >>> from gdpa import Box
    >>> free, unit = (torch.nn.Parameter(torch.zeros(size)) for size in (2, 1))
    >>> groups = [{"params": [free]}, {"params": [unit]}]
    >>> product_of_sets(groups, [None, Box(0.0, 1.0)], [unit, free]).project(torch.tensor([2.0, -1.0, 5.0])).tolist()
    [1.0, -1.0, 5.0]
    """
    sets = {id(p): domain for group, domain in zip(groups, domains, strict=True) if domain for p in group["params"]}
    blocks: list[tuple[int, ConvexSet]] = []
    for p in params:
        if p.numel():
            domain, row = sets.get(id(p)), p.shape[-1] if p.ndim else 1
            blocks += [(p.numel(), REALS)] if domain is None else [(row, domain)] * (p.numel() // row)
    return Product(blocks) if any(id(p) in sets for p in params) else REALS
