"""Two penalty methods: the inexact proximal-point penalty of Lin et al. and penalty dual decomposition."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from gdpa.base.arrays import max_norm, norm
from gdpa.base.checks import check_inside, check_positive
from gdpa.base.stored import stored
from gdpa.base.typing import Array, Operand
from gdpa.core.certificate import violation
from gdpa.core.problem import Problem
from gdpa.methods.method import MethodCard
from gdpa.methods.nested import FixedMomentum, NestedMethod, NestedState, Subproblem, inner_step, solved


@stored
@dataclass(frozen=True, slots=True, kw_only=True)
class IPPPState(NestedState):
    """Adds the proximal ``center`` x_k and its count within the stage, ``middle``; ``outer`` counts stages."""

    center: Array
    middle: int = 0


@stored
@dataclass(frozen=True)
class IPPP(NestedMethod):
    r"""Quadratic penalty, solved by proximal-point steps, each by accelerated gradients.

    In stage s = 0, 1, ... with beta_s = beta_0 growth^s and eps_s = min(1, 1/beta_s),

    .. math::
        x_{k+1} \approx \arg\min_{x \in X} f(x) + \frac{\beta_s}{2}\|[g(x)]_+\|^2 + \frac{\gamma}{2}\|x - x_k\|^2
            \text{ to } \epsilon_s, \qquad \text{until } \gamma\|x_{k+1} - x_k\| \le \epsilon_s

    and the multipliers are beta_s [g(x)]_+. An update is one accelerated gradient step.

    Args:
        beta: beta_0, the first penalty.
        growth: the factor between penalties.
        gamma: the proximal weight, to exceed the weak convexity of f + penalty.
        max_middle: the most proximal-point steps per stage.
        inner: the inner solver.

    Example:
        >>> from gdpa import problems, solve
        >>> result = solve(problems.get("HS12"), algorithm=IPPP(), tolerance=1e-3)
        >>> result.success, result.x.round(2).tolist(), result.multipliers.round(2).tolist()
        (True, [2.0, 3.0], [0.5])

    References:
        Q. Lin, R. Ma, Y. Xu, "Complexity of an inexact proximal-point penalty method for constrained smooth
        non-convex optimization", Computational Optimization and Applications 2022 (arXiv 1908.11518).

    Deviations from the source:
        gamma is a constant; the source ties it to known constants of weak convexity. The penalty grows by stages,
        which is how Table 1 counts three loops; eps_s ~ 1/beta_s follows from the source's beta ~ 1/eps.
    """

    beta: float = 1.0
    growth: float = 3.0
    gamma: float = 1.0
    max_middle: int = 50

    card: ClassVar[MethodCard] = MethodCard(
        "IPPP (Lin et al., 2022)", "penalty", "ncvx", "inequality", "triple-loop", "O(1/eps^3)",
        own_claim="O~(1/eps^3); O~(1/eps^2.5) for convex g; O~(1/eps^4) from a feasible start without regularity",
        in_table1=True,
    )  # fmt: skip
    printed_constants: ClassVar = {
        "mnpc": {"beta": 1e-3, "inner": FixedMomentum(0.01, 0.1)},
        "network": {"beta": 1e-4, "inner": FixedMomentum(1e-4, 0.1)},
    }

    def __post_init__(self) -> None:
        check_positive(beta=self.beta, growth=self.growth, gamma=self.gamma, max_middle=self.max_middle)

    def init(self, problem: Problem, x0: Operand) -> IPPPState:
        return self.first_state(IPPPState, x0, self.begin(problem, x0), inner=self.inner.start(x0), center=x0)

    def update(self, problem: Problem, state: IPPPState) -> IPPPState:
        center = state.center
        beta = self.beta * self.growth**state.outer
        eps = min(1.0, 1 / beta)
        phi = Subproblem(problem, 0 * state.multipliers, beta, prox=self.gamma, center=center)
        state, probe = inner_step(self.inner, phi, state)
        state = replace(state, multipliers=probe.multipliers)  # beta [g]_+ where the gradient was taken
        if not solved(self.inner, state.inner, eps):
            return state

        x = state.inner.x
        state = replace(state, inner=state.inner.restart(), center=x, middle=state.middle + 1)
        if self.gamma * float(norm(x - center)) > eps and state.middle < self.max_middle:
            return state
        return replace(state, outer=state.outer + 1, middle=0)


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
        >>> result = solve(problems.get("HS12"), algorithm=PDD(), tolerance=1e-6)
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

    card: ClassVar = MethodCard("PDD (Shi and Hong, 2020)", "penalty", "ncvx", "equality", "double-loop")

    def __post_init__(self) -> None:
        check_positive(rho=self.rho, epsilon=self.epsilon)
        check_inside(0, 1, c=self.c, shrink=self.shrink)

    def init(self, problem: Problem, x0: Operand) -> PDDState:
        start = self.begin(problem, x0)
        largest = float(max_norm(violation(start.constraints, problem.num_equalities)))
        first = self.inner.start(x0)
        return self.first_state(PDDState, x0, start, inner=first, rho=self.rho, eta=self.shrink * largest)

    def update(self, problem: Problem, state: PDDState) -> PDDState:
        lam, eta, k = state.multipliers, state.eta, state.outer + 1
        phi = Subproblem(problem, lam, 1 / state.rho)
        state, _ = inner_step(self.inner, phi, state)
        if not solved(self.inner, state.inner, self.epsilon * self.c**k):
            return state

        then = state.evaluation or problem.evaluate(state.x)
        size = float(max_norm(phi.lagrangian.complementarity(then.constraints)))
        state = replace(state, evaluation=then, inner=state.inner.restart(), outer=k, eta=self.shrink * size)
        if size <= eta:
            return replace(state, multipliers=phi.lagrangian.weights(then.constraints))  # lambda + h/rho
        return replace(state, rho=self.c * state.rho)
