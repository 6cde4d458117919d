"""Gradient descent and perturbed ascent, exactly as published, and its limits tau = 0 and tau = 1 as ablations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from gdpa.base.checks import check_positive, is_number
from gdpa.base.schedules import Constant, Power, StepSize
from gdpa.base.stored import stored
from gdpa.base.typing import Array, Operand
from gdpa.core.problem import Problem
from gdpa.methods.method import Method, MethodCard
from gdpa.methods.nested import DescentState, Subproblem, descended, first_curvature


@stored
@dataclass(frozen=True, kw_only=True)
class GDPAState(DescentState):
    """The state of GDPA and its limits."""

    lipschitz: Array | None = None


@stored
@dataclass(frozen=True)
class GDPA(Method):
    r"""The paper's single-loop method, eq. (alg), line by line.

    .. math::
        q_r &= (1-\tau)\lambda_r + \beta_r g(x_r), \qquad S_r = \{i : [q_r]_i > 0\} \\
        x_{r+1} &= P_X\bigl(x_r - \alpha_r(\nabla f(x_r) + J(x_r)^T [q_r]_+)\bigr) \\
        [\lambda_{r+1}]_i &= [(1-\tau)\lambda_r + \beta_r g(x_{r+1})]_{i,+} \text{ for } i \in S_r,
            \quad 0 \text{ otherwise}

    One forward and one backward pass per iteration: g(x_{r+1}) of the dual update is the next iteration's forward.

    Args:
        alpha: alpha_0 of ``alpha_r = alpha_0 r^(-1/3)``, or any schedule r -> alpha_r. None finds the step by
            backtracking on F_beta (ours), with one more forward pass per doubling of the curvature.
        beta: beta_0 of ``beta_r = beta_0 r^(1/3)``, or any schedule r -> beta_r.
        tau: the perturbation, fixed; the paper has tau in (0, 1). A constraint with multiplier lambda_i is left
            violated by ``tau lambda_i / beta_r`` (see `gdpa.core.lagrangian.AugmentedLagrangian.residual_violation`).
        gate: evaluate S_r at x_r, as eq. (alg) prints it. ``False`` updates every multiplier, as eq. (updatel0) reads.
        lipschitz: the curvature 1/alpha to begin the backtracking with.

    Example:
        >>> import numpy as np
        >>> from gdpa import GDPA, MaxSteps, problems, solve
        >>> disc = problems.get("disc-product")  # min -x0 x1 on the disc of radius sqrt(2): x* = (1, 1), multiplier 1/2
        >>> result = solve(disc.problem, disc.x0, GDPA(alpha=0.05, beta=0.5, tau=0.1), stop=MaxSteps(3000))
        >>> result.x_last.round(3).tolist(), result.multipliers_last.round(3).tolist()
        ([1.002, 1.002], [0.5])

    References:
        Songtao Lu, "A Single-Loop Gradient Descent and Perturbed Ascent Algorithm for Nonconvex Functional
        Constrained Optimization", ICML 2022.

    Deviations from the paper:
        Equality constraints, which the paper does not treat, keep their multiplier unclamped and always pass the gate.
        ``alpha=None`` and the ends 0 and 1 of tau are ours.
    """

    # Power schedules of eq. (spcon) unless the caller brings schedules.
    alpha: StepSize = StepSize(0.01, exponent=-1 / 3, optional=True)
    beta: StepSize = StepSize(1.0, exponent=1 / 3)
    tau: float = 0.1
    gate: bool = True
    lipschitz: float = 1.0

    card: ClassVar[MethodCard] = MethodCard(
        "GDPA (Lu, 2022)", "primal-dual", "ncvx", "inequality", "single-loop", "O(1/eps^3)", in_table1=True
    )
    printed_constants: ClassVar = {
        "mnpc": {"alpha": 0.1, "beta": 1e-4, "tau": 0.1},
        "network": {"alpha": 2e-4, "beta": 2e-4, "tau": 0.1},
    }

    @classmethod
    def tuned(cls) -> Self:
        """Return the method with the constants tuned on the certified problems: a small step and little bias."""
        return cls(alpha=0.01, beta=1.0, tau=0.01)

    def __post_init__(self) -> None:
        if not (is_number(self.tau) and 0 <= self.tau <= 1):
            raise ValueError(f"tau must lie in [0, 1], got {self.tau!r}; the paper's theorem has it strictly inside")
        check_positive(lipschitz=self.lipschitz)

    def init(self, problem: Problem, x0: Operand) -> GDPAState:
        start = self.begin(problem, x0)
        curvature = first_curvature(x0, self.lipschitz) if self.alpha is None else None
        return self.first_state(GDPAState, x0, start, lipschitz=curvature)

    def update(self, problem: Problem, state: GDPAState) -> GDPAState:
        r = state.step + 1
        alpha = None if self.alpha is None else self.alpha(r)
        beta = self.beta(r)
        now = state.evaluation or problem.evaluate(state.x)
        F = Subproblem(problem, state.multipliers, beta, tau=self.tau)

        after, then = descended(F, state, now, alpha, weight=1 / beta)  # along grad_x F_beta, eq. (as) and (primal)
        gate = F.lagrangian.gate(now.constraints) if self.gate else None  # S_r, eq. (defs)
        return replace(after, multipliers=F.lagrangian.ascend(then.constraints, gate))  # eq. (dualupated)


@stored
@dataclass(frozen=True)
class Penalty(GDPA):
    r"""GDPA at tau = 1: gradient steps on a quadratic penalty that grows, without memory of past violations.

    .. math::
        x_{r+1} = P_X\bigl(x_r - \alpha_r(\nabla f(x_r) + J(x_r)^T [\beta_r g(x_r)]_+)\bigr), \qquad
        \lambda_{r+1} = [\beta_r g(x_{r+1})]_+

    It has the arguments of `GDPA`. The violation left is lambda / beta_r, so the penalty grows faster than GDPA's,
    beta_r = r^(3/4), and backtracking follows.

    Example:
        >>> from gdpa import problems, solve
        >>> result = solve(problems.get("disc-product"), algorithm=Penalty(), tolerance=1e-2)
        >>> result.success, result.x.round(1).tolist(), result.multipliers.round(1).tolist()
        (True, [1.0, 1.0], [0.5])
    """

    alpha: StepSize = StepSize(None, exponent=-1 / 3, optional=True)
    beta: StepSize = StepSize(Power(1.0, 3 / 4), exponent=1 / 3)
    tau: float = 1.0

    card: ClassVar[MethodCard] = MethodCard("Penalty (GDPA at tau = 1)", "penalty", constraint_type="inequality")
    # GDPA's own constants, without its tau.
    printed_constants: ClassVar = {"mnpc": {"alpha": 0.1, "beta": 1e-4}, "network": {"alpha": 2e-4, "beta": 2e-4}}

    @classmethod
    def tuned(cls) -> Self:
        """Return the method with its defaults."""
        return cls()


@stored
@dataclass(frozen=True)
class LinearizedALM(Penalty):
    r"""GDPA at tau = 0: a gradient step on the augmented Lagrangian, then a full dual step.

    .. math::
        x_{r+1} &= P_X\bigl(x_r - \alpha_r(\nabla f(x_r) + J(x_r)^T [\lambda_r + \beta_r g(x_r)]_+)\bigr) \\
        [\lambda_{r+1}]_i &= [\lambda_r + \beta_r g(x_{r+1})]_{i,+} \text{ if } [\lambda_r + \beta_r g(x_r)]_i > 0,
            \quad 0 \text{ elsewhere}

    It has the arguments of `GDPA`. Its fixed points are KKT points with no bias, so the penalty need not grow:
    beta_r = 1. No theorem keeps its multipliers bounded.

    Example:
        >>> from gdpa import problems, solve
        >>> result = solve(problems.get("HS12"), algorithm=LinearizedALM(), tolerance=1e-3)
        >>> result.success, result.x.round(2).tolist(), result.multipliers.round(2).tolist()
        (True, [2.0, 3.0], [0.5])
    """

    beta: StepSize = StepSize(Constant(1.0), exponent=1 / 3)
    tau: float = 0.0

    card: ClassVar = MethodCard("Linearized ALM (GDPA at tau = 0)", "primal-dual", constraint_type="inequality")
