"""The single-loop linearized augmented Lagrangian method: GDPA at tau = 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gdpa.base.schedules import Constant, StepSize
from gdpa.base.stored import stored
from gdpa.methods.method import MethodCard
from gdpa.methods.nested.limits import Limit

#: Without a bias to outgrow, the penalty need not grow.
STEADY = Constant(1.0)


@stored
@dataclass(frozen=True)
class LinearizedALM(Limit):
    r"""A gradient step on the augmented Lagrangian, then a full dual step: no perturbation forgets the past.

    .. math::
        x_{r+1} &= P_X\bigl(x_r - \alpha_r(\nabla f(x_r) + J(x_r)^T [\lambda_r + \beta_r g(x_r)]_+)\bigr) \\
        [\lambda_{r+1}]_i &= [\lambda_r + \beta_r g(x_{r+1})]_{i,+} \text{ if } [\lambda_r + \beta_r g(x_r)]_i > 0,
            \quad 0 \text{ elsewhere}

    The limit tau = 0 of `gdpa.GDPA`, as an ablation. Its fixed points are KKT points with no bias, but no theorem
    keeps its multipliers bounded. The arguments are those of `gdpa.methods.nested.limits.Limit`. One forward and
    one backward pass per update, and one forward per doubling of the curvature if alpha is None.

    Example:
        >>> from gdpa import problems, solve
        >>> hs = problems.get("HS12")
        >>> result = solve(hs.problem, hs.x0, LinearizedALM(), tolerance=1e-3)
        >>> result.success, result.x.round(2).tolist(), result.multipliers.round(2).tolist()
        (True, [2.0, 3.0], [0.5])
    """

    beta: StepSize = StepSize(STEADY, exponent=1 / 3)

    tau: ClassVar[float] = 0.0
    card: ClassVar[MethodCard] = MethodCard(
        "Linearized ALM (GDPA at tau = 0)", "primal-dual", "ncvx", "inequality", "single-loop", "none"
    )
