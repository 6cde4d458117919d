"""The rate-improved inexact augmented Lagrangian method of Li et al., a triple loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

from gdpa.base.arrays import norm
from gdpa.base.checks import check_positive
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.core.problem import Problem
from gdpa.methods.method import MethodCard
from gdpa.methods.nested import Subproblem, solved
from gdpa.methods.nested.augmented import AugmentedMethod, AugmentedState, damping, printed
from gdpa.methods.nested.state import inner_step


@stored
@dataclass(frozen=True, slots=True, kw_only=True)
class IALMLiState(AugmentedState):
    """Adds ``beta`` and the middle loop's ``center`` x^t and count ``middle``."""

    center: Array
    middle: int = 0
    beta: float


@stored
@dataclass(frozen=True)
class IALMLi(AugmentedMethod):
    r"""Inexact augmented Lagrangian around an inexact proximal-point method around accelerated gradients.

    With c(x) = 0 the constraints, for k = 0, 1, ... and beta_k = beta_0 growth^k

    .. math::
        x^{t+1} &\approx \arg\min_{x \in X} L_{\beta_k}(x, y^k) + \rho \|x - x^t\|^2 \text{ to } \epsilon/4,
            \text{ until } 2\rho\|x^{t+1} - x^t\| \le \epsilon/2 \\
        y^{k+1} &= y^k + w_k c(x^{k+1}) \\
        w_k &= w_0 \min\Bigl(1, \frac{\log^2 2 \, \|c(x^1)\|}{(k+1)\log^2(k+2) \|c(x^{k+1})\|}\Bigr)

    An update is one accelerated gradient step; the middle and outer lines run in the update that ends a subproblem.

    Args:
        beta: beta_0, the first penalty.
        growth: the factor between penalties.
        w: w_0, the first dual step.
        rho: the weight of the proximal term, to exceed the weak convexity of the augmented Lagrangian.
        epsilon: the accuracy aimed at; it decides how exactly every subproblem is solved.
        max_middle: the most proximal-point steps per penalty.
        slack, inner: see `gdpa.methods.nested.augmented.AugmentedMethod`.

    Example:
        >>> from gdpa import problems, solve
        >>> hs = problems.get("HS12")
        >>> result = solve(hs.problem, hs.x0, IALMLi(), tolerance=1e-3)
        >>> result.success, result.x.round(2).tolist(), result.multipliers.round(2).tolist()
        (True, [2.0, 3.0], [0.5])

    References:
        Z. Li, P.-Y. Chen, S. Liu, S. Lu, Y. Xu, "Rate-improved Inexact Augmented Lagrangian Method for Constrained
        Nonconvex Optimization", AISTATS 2021.

    Deviations from the source:
        rho is a constant here; the source computes rho_k and the Lipschitz constants from bounds on f and c, which
        the backtracking of `Accelerated` makes unnecessary. Once ||c|| <= epsilon, where the source stops, the
        penalty stays: the loop of the library decides when to stop.
    """

    beta: float = 1.0
    growth: float = 3.0
    w: float = 1.0
    rho: float = 1.0
    epsilon: float = 1e-4
    max_middle: int = 100

    card: ClassVar[MethodCard] = MethodCard(
        "IALM (Li et al., 2021)", "inexact", "ncvx", "equality", "triple-loop", "O(1/eps^3)",
        own_claim="O~(1/eps^3); O~(1/eps^2.5) if the constraints are convex", in_table1=True,
    )  # fmt: skip
    printed_constants = MappingProxyType(printed("w"))

    def __post_init__(self) -> None:
        check_positive(beta=self.beta, growth=self.growth, w=self.w, rho=self.rho, epsilon=self.epsilon)
        check_positive(max_middle=self.max_middle)

    def init(self, problem: Problem, x0: Array) -> IALMLiState:
        start = self.begin(problem, x0)
        form = self.form(problem, x0, start.constraints)
        z = form.start(x0, start)
        return self.first_state(
            IALMLiState, x0, start, evaluation=form.keep(start), inner=self.inner.start(z), center=z, beta=self.beta
        )

    def update(self, problem: Problem, state: IALMLiState) -> IALMLiState:
        y, center, k, eps = state.multipliers, state.center, state.outer, self.epsilon
        form = self.form(problem, state.x, y)
        phi = Subproblem(form.problem, y, state.beta, prox=2 * self.rho, center=center)
        state, then = inner_step(self.inner, phi, state, form)
        if not solved(self.inner, state.inner, eps / 4):
            return state

        x = state.inner.x
        state = replace(state, inner=state.inner.restart(), center=x, middle=state.middle + 1)
        if 2 * self.rho * float(norm(x - center)) > eps / 2 and state.middle < self.max_middle:
            return state

        then = then or form.problem.evaluate(x)
        c = phi.shortfall(then)
        size = float(norm(c))
        reference = size if k == 0 else state.reference
        w = self.w * damping(reference, size, k)
        return replace(
            state,
            multipliers=AugmentedLagrangian(y, w, num_equalities=form.problem.num_equalities).weights(c),
            evaluation=form.keep(then),
            outer=k + 1,
            middle=0,
            beta=state.beta * (self.growth if size > eps else 1.0),
            reference=reference,
        )
