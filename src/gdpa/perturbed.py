"""The formulas of `gdpa.lagrangian` as functions of the parts."""

from __future__ import annotations

from gdpa.lagrangian import AugmentedLagrangian, in_gate
from gdpa.typing import Array

__all__ = ["augmented_lagrangian", "dual_update", "in_gate", "pressure", "weights"]


def pressure(multipliers: Array, constraints: Array, beta: float | Array, tau: float | Array) -> Array:
    """Return ``q = (1 - tau) lambda + beta g``."""
    return AugmentedLagrangian(multipliers, beta, tau).shifted(constraints)


def weights(
    multipliers: Array, constraints: Array, beta: float | Array, tau: float | Array, num_equalities: int = 0
) -> Array:
    """Return ``w = [(1 - tau) lambda + beta g]_+``."""
    return AugmentedLagrangian(multipliers, beta, tau, num_equalities).weights(constraints)


def dual_update(
    multipliers: Array,
    constraints_next: Array,
    beta: float | Array,
    tau: float | Array,
    gate: Array | None = None,
    num_equalities: int = 0,
) -> Array:
    """Return ``lambda_{r+1}`` of eq. (dualupated)."""
    return AugmentedLagrangian(multipliers, beta, tau, num_equalities).ascend(constraints_next, gate)


def augmented_lagrangian(
    objective: Array,
    constraints: Array,
    multipliers: Array,
    beta: float | Array,
    tau: float | Array,
    num_equalities: int = 0,
) -> Array:
    """Return ``F_beta(x, lambda)`` of eq. (defF)."""
    return AugmentedLagrangian(multipliers, beta, tau, num_equalities).value(objective, constraints)
