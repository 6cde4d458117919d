"""Penalty dual decomposition of Shi and Hong, a double loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from gdpa.base.arrays import max_norm
from gdpa.base.checks import check_positive
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.certificate import violation
from gdpa.core.problem import Problem
from gdpa.methods.method import MethodCard
from gdpa.methods.nested import ACCELERATED, InnerSolver, NestedMethod, NestedState, Subproblem, inner_step, solved


@stored
@dataclass(frozen=True, slots=True, kw_only=True)
class PDDState(NestedState):
    """Adds the penalty ``rho`` and the feasibility asked for, ``eta``."""

    rho: float
    eta: float


@stored
@dataclass(frozen=True)
class PDD(NestedMethod):
    r"""A dual step if the constraints improved enough, else a penalty step.

    With h(z) = 0 the constraints and L_k(z) = F(z) + <lambda, h> + ||h||^2 / (2 rho_k), for k = 1, 2, ...

    .. math::
        z_k &\approx \arg\min_{z \in Z} L_k(z) \text{ to } \epsilon_k = \epsilon_0 c^k \\
        \|h(z_k)\|_\infty \le \eta_k &: \quad \lambda_{k+1} = \lambda_k + h(z_k)/\rho_k, \quad \rho_{k+1} = \rho_k \\
        \text{otherwise} &: \quad \lambda_{k+1} = \lambda_k, \quad \rho_{k+1} = c \rho_k

    and eta_{k+1} = shrink * ||h(z_k)||_inf. Inequalities enter by h = max(g, -rho lambda), their slack eliminated.
    An update is one gradient step.

    Args:
        rho: rho_1, the inverse of the first penalty.
        c: the factor of rho and epsilon, in (0, 1).
        epsilon: epsilon_0, the accuracy of the first subproblem.
        shrink: how much ||h|| must fall for a dual step, in (0, 1).
        inner: the inner solver, for the source's block successive upper-bound minimization with one block.

    Example:
        >>> from gdpa import problems, solve
        >>> hs = problems.get("HS12")
        >>> result = solve(hs.problem, hs.x0, PDD(), tolerance=1e-6)
        >>> result.success, result.x.round(4).tolist(), result.multipliers.round(4).tolist()
        (True, [2.0, 3.0], [0.5])

    References:
        Q. Shi, M. Hong, "Penalty Dual Decomposition Method for Nonsmooth Nonconvex Optimization - Part I", IEEE
        Transactions on Signal Processing 2020. It shows convergence to KKT points, no rate.
    """

    rho: float = 1.0
    c: float = 0.6
    epsilon: float = 1.0
    shrink: float = 0.9
    inner: InnerSolver = ACCELERATED

    card: ClassVar[MethodCard] = MethodCard(
        "PDD (Shi and Hong, 2020)", "penalty", "ncvx", "equality", "double-loop", "none"
    )

    def __post_init__(self) -> None:
        check_positive(rho=self.rho, c=self.c, epsilon=self.epsilon, shrink=self.shrink)
        if self.c >= 1 or self.shrink >= 1:
            raise ValueError(f"c and shrink must lie below 1, got c={self.c!r}, shrink={self.shrink!r}")

    def init(self, problem: Problem, x0: Array) -> PDDState:
        start = self.begin(problem, x0)
        largest = float(max_norm(violation(start.constraints, problem.num_equalities)))
        return self.first_state(
            PDDState, x0, start, inner=self.inner.start(x0), rho=self.rho, eta=self.shrink * largest,
        )  # fmt: skip

    def update(self, problem: Problem, state: PDDState) -> PDDState:
        lam, eta, k = state.multipliers, state.eta, state.outer + 1
        phi = Subproblem(problem, lam, 1 / state.rho)
        state, then = inner_step(self.inner, phi, state)
        if not solved(self.inner, state.inner, self.epsilon * self.c**k):
            return state

        then = then or problem.evaluate(state.x)
        size = float(max_norm(phi.shortfall(then)))
        state = replace(state, evaluation=then, inner=state.inner.restart(), outer=k, eta=self.shrink * size)
        if size <= eta:
            return replace(state, multipliers=phi.weights(then))  # lambda + h/rho
        return replace(state, rho=self.c * state.rho)
