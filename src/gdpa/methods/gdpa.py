"""Gradient descent and perturbed ascent, exactly as published."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Self

from gdpa.base.checks import check_inside
from gdpa.base.schedules import StepSize
from gdpa.base.stored import stored
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.core.problem import Problem
from gdpa.methods.base import Probe, State
from gdpa.methods.method import Method, MethodCard


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
        alpha: alpha_0 of ``alpha_r = alpha_0 r^(-1/3)``, or any schedule r -> alpha_r.
        beta: beta_0 of ``beta_r = beta_0 r^(1/3)``, or any schedule r -> beta_r.
        tau: the perturbation tau in (0, 1), fixed. A constraint with multiplier lambda_i is left
            violated by ``tau lambda_i / beta_r`` (see `gdpa.core.lagrangian.AugmentedLagrangian.residual_violation`).
        gate: evaluate S_r at x_r, as eq. (alg) prints it. ``False`` updates every multiplier, as eq. (updatel0) reads.

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
    """

    # Power schedules of eq. (spcon) unless the caller brings schedules.
    alpha: StepSize = StepSize(0.01, exponent=-1 / 3)
    beta: StepSize = StepSize(1.0, exponent=1 / 3)
    tau: float = 0.1
    gate: bool = True

    card: ClassVar[MethodCard] = MethodCard(
        "GDPA (Lu, 2022)", "primal-dual", "ncvx", "inequality", "single-loop", "O(1/eps^3)", in_table1=True
    )
    printed_constants = MappingProxyType(
        {"mnpc": {"alpha": 0.1, "beta": 1e-4, "tau": 0.1}, "network": {"alpha": 2e-4, "beta": 2e-4, "tau": 0.1}}
    )

    @classmethod
    def tuned(cls) -> Self:
        """Return the method with the constants tuned on the certified problems: a small step and little bias."""
        return cls(alpha=0.01, beta=1.0, tau=0.01)

    def __post_init__(self) -> None:
        check_inside(0, 1, tau=self.tau)

    def update(self, problem: Problem, state: State) -> State:
        r = state.step + 1
        alpha, beta, tau = self.alpha(r), self.beta(r), self.tau
        x, multipliers = state.x, state.multipliers
        now = state.evaluation or problem.evaluate(x)
        F = AugmentedLagrangian(multipliers, beta, tau, problem.num_equalities)

        w = F.weights(now.constraints)
        gradient = now.pullback(w)  # grad_x F_beta, eq. (as)
        x_next = problem.domain.project(x - alpha * gradient)  # eq. (primal)

        then = problem.evaluate(x_next)
        gate = F.gate(now.constraints) if self.gate else None  # S_r, eq. (defs)
        multipliers_next = F.ascend(then.constraints, gate)  # eq. (dualupated)

        probe = Probe(x, w, now.objective, now.constraints, gradient, 1 / beta, now)
        return State(step=r, x=x_next, multipliers=multipliers_next, evaluation=then, probe=probe)
