"""What the min-max methods share: a compact dual set, and a flag for multipliers at its bound."""

from __future__ import annotations

from dataclasses import dataclass

from gdpa.base.arrays import namespace
from gdpa.base.checks import check_at_least, check_positive
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.problem import Problem
from gdpa.methods.base import State
from gdpa.methods.method import Method


@stored
@dataclass(frozen=True, slots=True, kw_only=True)
class MinMaxState(State):
    """What a min-max method carries.

    Attributes:
        at_bound: which multipliers sit on the bound B. While any does, the method solves
            ``min f + B sum [g]_+`` instead of the constrained problem, and nothing is promised on feasibility.
        lipschitz: the curvature estimate of the primal step.
        center: the proximal center z of the smoothed method; None for the others.
    """

    at_bound: Array
    lipschitz: Array
    center: Array | None = None


@dataclass(frozen=True)
class DualSet:
    """``0 <= lambda_i <= B`` for inequalities, ``|lambda_i| <= B`` for equalities.

    >>> import numpy as np
    >>> DualSet(2.0, 1).project(np.array([-1.0, 3.0, -5.0])).tolist()
    [0.0, 2.0, -2.0]
    """

    bound: float
    num_equalities: int

    def project(self, multipliers: Array) -> Array:
        xp, m = namespace(multipliers), multipliers.shape[-1]
        # Built from comparisons, so that one line serves every array library.
        equality = xp.cumulative_sum(xp.ones_like(multipliers), axis=-1) > m - self.num_equalities
        lowest = xp.where(equality, -self.bound + xp.zeros_like(multipliers), xp.zeros_like(multipliers))
        return xp.minimum(xp.maximum(multipliers, lowest), self.bound + xp.zeros_like(multipliers))

    def touched(self, multipliers: Array) -> Array:
        """Return which multipliers sit on the bound."""
        return namespace(multipliers).abs(multipliers) >= self.bound


def minmax_start(method: Method, problem: Problem, x0: Array, lipschitz: float, center: bool = False) -> MinMaxState:
    """Return the state of ``method`` at ``x0`` with zero multipliers; with ``center``, z = x0."""
    start = method.begin(problem, x0)
    free = namespace(x0).zeros_like(start.constraints) > 0  # no multiplier is at its bound
    curvature = namespace(x0).ones_like(x0[..., 0]) * lipschitz
    z = x0 if center else None
    return method.first_state(MinMaxState, x0, start, at_bound=free, lipschitz=curvature, center=z)


def check_minmax(step: float | None, augmentation: float, /, **positive: float) -> None:
    """Validate the arguments all min-max methods share."""
    if step is not None:
        check_positive(primal_step=step)
    check_at_least(0, augmentation=augmentation)
    check_positive(**positive)
