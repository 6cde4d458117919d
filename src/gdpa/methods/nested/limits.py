"""GDPA's update at the ends of its range of tau, shared by the two ablations."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from gdpa.base.arrays import namespace
from gdpa.base.checks import check_positive
from gdpa.base.schedules import StepSize, as_schedule
from gdpa.base.stored import stored
from gdpa.base.typing import Array, Schedule
from gdpa.core.problem import Problem
from gdpa.methods.base import State
from gdpa.methods.method import Method
from gdpa.methods.nested.descent import descend
from gdpa.methods.nested.subproblem import Subproblem


@stored
@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState(State):
    """Adds the curvature estimate ``lipschitz``, used if no step is given."""

    lipschitz: Array


@dataclass(frozen=True)
class Limit(Method):
    """Eq. (alg) of the paper with tau at 0 or 1, which `gdpa.GDPA` excludes; alpha = None backtracks on F_beta.

    Args:
        alpha: alpha_0 of ``alpha_r = alpha_0 r^(-1/3)``, or any schedule; None finds the step by backtracking.
        beta: beta_0 of ``beta_r = beta_0 r^(1/3)``, or any schedule.
        gate: update a multiplier only if ``(1 - tau) lambda_r + beta_r g(x_r) > 0``, as GDPA does.
        lipschitz: the curvature 1/alpha to begin the backtracking with.
    """

    alpha: float | Schedule | None = None
    beta: StepSize = StepSize(1.0, exponent=1 / 3)
    gate: bool = True
    lipschitz: float = 1.0

    tau: ClassVar[float]
    # GDPA's own constants, without its tau.
    printed_constants = MappingProxyType(
        {"mnpc": {"alpha": 0.1, "beta": 1e-4}, "network": {"alpha": 2e-4, "beta": 2e-4}}
    )

    def __post_init__(self) -> None:
        check_positive(lipschitz=self.lipschitz)
        if self.alpha is not None:
            object.__setattr__(self, "alpha", as_schedule("alpha", self.alpha, -1 / 3))

    def init(self, problem: Problem, x0: Array) -> LimitState:
        start = self.begin(problem, x0)
        curvature = namespace(x0).ones_like(x0[..., 0]) * self.lipschitz
        return self.first_state(LimitState, x0, start, lipschitz=curvature)

    def update(self, problem: Problem, state: LimitState) -> LimitState:
        r = state.step + 1
        alpha = self.alpha(r) if callable(self.alpha) else None
        beta = self.beta(r)
        now = state.evaluation or problem.evaluate(state.x)

        F = Subproblem(problem, state.multipliers, beta, tau=self.tau)
        slope = F.slope(state.x, now)
        new = descend(F, state.x, slope, state.lipschitz, alpha)
        gate = F.lagrangian.gate(now.constraints) if self.gate else None
        return LimitState(
            step=r,
            x=new.x,
            multipliers=F.lagrangian.ascend(new.evaluation.constraints, gate),
            evaluation=new.evaluation,
            probe=slope.probe._replace(weight=1 / beta),
            lipschitz=new.lipschitz,
        )
