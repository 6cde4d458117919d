"""The single-loop quadratic penalty method: GDPA at tau = 1."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from gdpa.algorithms.inner.limits import LimitState, limit_schedules, limit_start, limit_step
from gdpa.algorithms.method import Method, Table1Row
from gdpa.problem import Problem
from gdpa.schedules import Power
from gdpa.typing import Array, Schedule


@dataclass(frozen=True)
class Penalty(Method):
    r"""Gradient steps on a quadratic penalty that grows: nothing is remembered of past violations.

    .. math::
        x_{r+1} = P_X\bigl(x_r - \alpha_r(\nabla f(x_r) + J(x_r)^T [\beta_r g(x_r)]_+)\bigr), \qquad
        \lambda_{r+1} = [\beta_r g(x_{r+1})]_+

    The limit tau = 1 of `gdpa.GDPA`, as an ablation. One forward and one backward pass per update, and one forward per
    doubling of the curvature where alpha is None.

    Args:
        alpha: alpha_0 of ``alpha_r = alpha_0 r^(-1/3)``, or any schedule; None finds the step by backtracking.
        beta: beta_0 of ``beta_r = beta_0 r^(1/3)``, or any schedule. The default grows faster than GDPA's, because the
            violation left is lambda / beta_r.
        gate: keep a multiplier at zero where its constraint was not violated at x_r, as GDPA does.
        lipschitz: the curvature 1/alpha to begin the backtracking with.

    Example:
        >>> from gdpa import solve
        >>> from gdpa.problems import get
        >>> hs = get("HS12")
        >>> result = solve(hs.problem, hs.x0, Penalty(), tolerance=1e-2)
        >>> result.success, result.x.round(1).tolist(), result.multipliers.round(1).tolist()
        (True, [2.0, 3.0], [0.5])
    """

    alpha: float | Schedule | None = None
    beta: float | Schedule = Power(1.0, 0.75)
    gate: bool = True
    lipschitz: float = 1.0

    table1: ClassVar[Table1Row] = Table1Row(
        "Penalty (GDPA at tau = 1)", "penalty", "ncvx", "inequality", "single-loop", "none"
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
        return limit_step(problem, state, alpha, self.beta(r), tau=1.0, gate=self.gate)  # type: ignore[operator]
