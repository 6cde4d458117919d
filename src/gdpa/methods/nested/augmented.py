"""What the two inexact augmented Lagrangian methods share: the form of the problem and the damped dual step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.problem import Problem
from gdpa.methods.nested.forms import Plain, Slacked, view
from gdpa.methods.nested.solvers import ACCELERATED, FixedMomentum, InnerSolver
from gdpa.methods.nested.state import NestedMethod, NestedState


@stored
@dataclass(frozen=True, slots=True, kw_only=True)
class AugmentedState(NestedState):
    """Adds ``reference``, the violation at the end of the first outer iteration; NaN before it."""

    reference: float = math.nan


@dataclass(frozen=True, kw_only=True)
class AugmentedMethod(NestedMethod):
    """An augmented Lagrangian method for equalities, and for inequalities through slacks.

    Args:
        slack: work on ``g(x) + s = 0, s >= 0`` with explicit slacks, as the paper does. False eliminates them:
            the constraint becomes ``max(g, -y/beta)`` and its weights ``[y + beta g]_+``, with the same minimizers.
        inner: the inner solver.
    """

    slack: bool = False
    inner: InnerSolver = field(default=ACCELERATED)

    def form(self, problem: Problem, x: Array, constraints: Array) -> Plain | Slacked:
        """Return the form of the problem the method works on."""
        return view(problem, self.slack, x.shape[-1], constraints.shape[-1])


def damping(reference: float, size: float, k: int) -> float:
    """Return ``min(1, reference log^2(2) / (size (k + 1) log^2(k + 2)))``, which keeps the multipliers bounded.

    The sum of the damped dual steps converges whatever the violations ``size`` do, because the sum of
    1/(k log^2 k) does.

    >>> damping(1.0, 1.0, 0), damping(1.0, 0.0, 5)
    (1.0, 1.0)
    """
    bound = reference * math.log(2) ** 2 / ((k + 1) * math.log(k + 2) ** 2)
    return min(1.0, bound / size) if size > 0 else 1.0


def printed(dual_step: str) -> dict[str, dict[str, Any]]:
    """Return the appendix' constants: its "initial dual variable gamma_0" is read as the first dual step."""
    return {
        "mnpc": {dual_step: 1e-2, "slack": True, "inner": FixedMomentum(0.01, 0.1)},
        "network": {dual_step: 1e-3, "slack": True, "inner": FixedMomentum(1e-4, 0.1)},
    }
