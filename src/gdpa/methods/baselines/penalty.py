"""The single-loop quadratic penalty method: GDPA at tau = 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gdpa.base.schedules import Power, StepSize
from gdpa.base.stored import stored
from gdpa.methods.method import MethodCard
from gdpa.methods.nested.limits import Limit

#: The violation left is lambda / beta_r, so the penalty grows faster than GDPA's; backtracking follows.
FASTER = Power(1.0, 3 / 4)


@stored
@dataclass(frozen=True)
class Penalty(Limit):
    r"""Gradient steps on a quadratic penalty that grows: nothing is remembered of past violations.

    .. math::
        x_{r+1} = P_X\bigl(x_r - \alpha_r(\nabla f(x_r) + J(x_r)^T [\beta_r g(x_r)]_+)\bigr), \qquad
        \lambda_{r+1} = [\beta_r g(x_{r+1})]_+

    The limit tau = 1 of `gdpa.GDPA`, as an ablation. The arguments are those of `gdpa.methods.nested.limits.Limit`.
    One forward and one backward pass per update, and one forward per doubling of the curvature if alpha is None.

    Example:
        >>> from gdpa import problems, solve
        >>> disc = problems.get("disc-product")
        >>> result = solve(disc.problem, disc.x0, Penalty(), tolerance=1e-2)
        >>> result.success, result.x.round(1).tolist(), result.multipliers.round(1).tolist()
        (True, [1.0, 1.0], [0.5])
    """

    beta: StepSize = StepSize(FASTER, exponent=1 / 3)

    tau: ClassVar[float] = 1.0
    card: ClassVar[MethodCard] = MethodCard(
        "Penalty (GDPA at tau = 1)", "penalty", "ncvx", "inequality", "single-loop", "none"
    )
