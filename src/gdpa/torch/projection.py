"""Projection of parameters, whole or sharded, on the convex sets of `gdpa.sets`."""

from __future__ import annotations

from typing import Any

import torch

from gdpa.sets import ConvexSet


def project_(domain: ConvexSet, p: torch.Tensor) -> None:
    """Project the rows (last axis) of ``p`` on the set, in place."""
    full: Any = p.full_tensor() if hasattr(p, "full_tensor") else p
    projected = domain.project(full if full.ndim else full.reshape(1)).reshape(full.shape)
    if full is not p:
        from torch.distributed.tensor import distribute_tensor

        projected = distribute_tensor(projected, p.device_mesh, p.placements)  # type: ignore[attr-defined]
    p.copy_(projected)
