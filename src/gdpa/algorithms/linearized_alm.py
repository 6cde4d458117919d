"""The single-loop linearised augmented Lagrangian method: GDPA at tau = 0."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from gdpa.algorithms.inner.limits import LimitState, limit_schedules, limit_start, limit_step
from gdpa.algorithms.method import Method, Table1Row
from gdpa.problem import Problem
from gdpa.schedules import Constant
from gdpa.typing import Array, Schedule


@dataclass(frozen=True)
class LinearizedALM(Method):
    r"""A gradient step on the augmented Lagrangian, then a full dual step: no perturbation forgets the past.

    .. math::
        x_{r+1} &= P_X\bigl(x_r - \alpha_r(\nabla f(x_r) + J(x_r)^T [\lambda_r + \beta_r g(x_r)]_+)\bigr) \\
        [\lambda_{r+1}]_i &= [\lambda_r + \beta_r g(x_{r+1})]_{i,+} \text{ where } [\lambda_r + \beta_r g(x_r)]_i > 0,
            \quad 0 \text{ elsewhere}

    The limit tau = 0 of `gdpa.GDPA`, as an ablation. Its fixed points are KKT points with no bias, but no theorem
    keeps its multipliers bounded. One forward and one backward pass per update, and one forward per doubling of the
    curvature where alpha is None.

    Args:
        alpha: alpha_0 of ``alpha_r = alpha_0 r^(-1/3)``, or any schedule; None finds the step by backtracking.
        beta: beta_0 of ``beta_r = beta_0 r^(1/3)``, or any schedule.
        gate: evaluate the set of updated multipliers at x_r, as GDPA does.
        lipschitz: the curvature 1/alpha to begin the backtracking with.

    Example:
        >>> from gdpa import solve
        >>> from gdpa.problems import get
        >>> hs = get("HS12")
        >>> result = solve(hs.problem, hs.x0, LinearizedALM(), tolerance=1e-3)
        >>> result.success, result.x.round(2).tolist(), result.multipliers.round(2).tolist()
        (True, [2.0, 3.0], [0.5])
    """

    alpha: float | Schedule | None = None
    beta: float | Schedule = Constant(1.0)
    gate: bool = True
    lipschitz: float = 1.0

    table1: ClassVar[Table1Row] = Table1Row(
        "Linearized ALM (GDPA at tau = 0)", "primal-dual", "ncvx", "inequality", "single-loop", "none"
    )
    # GDPA's own constants, without its tau.
    printed_constants = MappingProxyType(
        {"mnpc": {"alpha": 0.1, "beta": 1e-4}, "network": {"alpha": 2e-4, "beta": 2e-4}}
    )

    def __post_init__(self) -> None:
        alpha, beta = limit_schedules(self.alpha, self.beta, self.lipschitz)
        object.__setattr__(self, "alpha", alpha)
        object.__setattr__(self, "beta", beta)

    def init(self, problem: Problem, x0: Array) -> LimitState:
        return limit_start(x0, self.begin(problem, x0), self.lipschitz)

    def update(self, problem: Problem, state: LimitState) -> LimitState:
        r = state.step + 1
        alpha = None if self.alpha is None else self.alpha(r)  # type: ignore[operator]
        return limit_step(problem, state, alpha, self.beta(r), tau=0.0, gate=self.gate)  # type: ignore[operator]
