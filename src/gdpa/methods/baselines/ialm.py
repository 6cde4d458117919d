"""Inexact augmented Lagrangian methods: a double loop of Sahin et al. and a triple loop of Li et al."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from gdpa.base.arrays import namespace, norm
from gdpa.base.checks import check_positive
from gdpa.base.stored import stored
from gdpa.base.typing import Array, Operand
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.core.problem import Evaluation, Problem
from gdpa.core.slack import SlackForm
from gdpa.methods.base import Probe
from gdpa.methods.method import MethodCard
from gdpa.methods.nested import FixedMomentum, NestedMethod, NestedState, Subproblem, inner_step, solved


@stored
@dataclass(frozen=True, slots=True, kw_only=True)
class AugmentedState(NestedState):
    """Adds ``reference``, the violation at the end of the first outer iteration; NaN before it."""

    reference: float = math.nan


A = TypeVar("A", bound=AugmentedState)


@dataclass(frozen=True, kw_only=True)
class AugmentedMethod(NestedMethod):
    """An augmented Lagrangian method for equalities, and for inequalities through slacks.

    Args:
        slack: work on ``g(x) + s = 0, s >= 0`` with explicit slacks, as the paper does. False eliminates them:
            the constraint becomes ``max(g, -y/beta)`` and its weights ``[y + beta g]_+``, with the same minimizers.
    """

    slack: bool = False

    def first(self, kind: type[A], problem: Problem, x0: Operand, **more: Any) -> A:
        """Return the state before the first update."""
        start = self.begin(problem, x0)
        z = slack_form(problem, x0, start.constraints).lift(x0, start.constraints) if self.slack else x0
        fields = {"inner": self.inner.start(z), "evaluation": None if self.slack else start}
        return self.first_state(kind, x0, start, **fields, **more)

    def descend(self, problem: Problem, state: A, beta: float, **prox: Any) -> tuple[A, Subproblem, Evaluation | None]:
        """Return the state after one inner step on L_beta, L_beta, and its oracle call there if there was one.

        With slacks L_beta is a function of (x, s); the state's x and probe are in x alone. It then has no probe if an
        inequality's weight is negative and so no multiplier, but values that are not finite are never held back.
        """
        if not self.slack:
            phi = Subproblem(problem, state.multipliers, beta, **prox)
            state, _ = inner_step(self.inner, phi, state)
            return state, phi, state.evaluation
        form = slack_form(problem, state.x, state.multipliers)
        phi = Subproblem(form.problem, state.multipliers, beta, **prox)
        state, (z, w, f, c, gradient, *_) = inner_step(self.inner, phi, replace(state, evaluation=None))
        xp, n, (x, s) = namespace(w), form.num_slacks, form.split(z)
        finite = xp.all(xp.isfinite(f)) & xp.all(xp.isfinite(c))
        probe = None
        if not bool(finite & xp.any(w[..., :n] < 0)):
            g = xp.concat([c[..., :n] - s, c[..., n:]], axis=-1)
            probe = Probe(x, w, f, g, form.split(gradient)[0])
        return replace(state, x=form.split(state.x)[0], evaluation=None, probe=probe), phi, state.evaluation

    def ascend(self, state: A, phi: Subproblem, then: Evaluation | None, step: float, k: int) -> tuple[A, float]:
        """Return the state after the k-th dual step ``y + w c``, w = ``step`` damped, and the violation ||c||."""
        then = then or phi.problem.evaluate(state.inner.x)
        c = phi.lagrangian.complementarity(then.constraints)  # of the eliminated slack form: g + s
        size = float(norm(c))
        reference = size if math.isnan(state.reference) else state.reference
        # With slacks eliminated a dual step longer than beta could leave the nonnegative numbers.
        w = step * damping(reference, size, k)
        y = AugmentedLagrangian(phi.multipliers, w, num_equalities=phi.problem.num_equalities).weights(c)
        return replace(state, multipliers=y, evaluation=None if self.slack else then, reference=reference), size


def slack_form(problem: Problem, x: Operand, constraints: Operand) -> SlackForm:
    """Return the problem over (x, s), by the shapes of x and g."""
    return SlackForm(problem, x.shape[-1], constraints.shape[-1])


def damping(reference: float, size: float, k: int) -> float:
    """Return ``min(1, reference log^2(2) / (size (k + 1) log^2(k + 2)))``, which keeps the multipliers bounded.

    The sum of the damped dual steps converges whatever the violations ``size`` do, because the sum of
    1/(k log^2 k) does.

    >>> damping(1.0, 1.0, 0), damping(1.0, 0.0, 5)
    (1.0, 1.0)
    """
    bound = reference * math.log(2) ** 2 / ((k + 1) * math.log(k + 2) ** 2)
    return min(1.0, bound / size) if size > 0 else 1.0


def printed(dual_step: str) -> dict[str, dict[str, Any]]:
    """Return the appendix' constants: its "initial dual variable gamma_0" is read as the first dual step."""
    return {
        "mnpc": {dual_step: 1e-2, "slack": True, "inner": FixedMomentum(0.01, 0.1)},
        "network": {dual_step: 1e-3, "slack": True, "inner": FixedMomentum(1e-4, 0.1)},
    }


@stored
@dataclass(frozen=True)
class IALMSahin(AugmentedMethod):
    r"""Inexact augmented Lagrangian with a dual step that shrinks (Algorithm 1 of Sahin et al.).

    With A(x) = 0 the constraints and L_beta(x, y) = f + <y, A> + (beta/2)||A||^2, for k = 1, 2, ...

    .. math::
        x_{k+1} &: \operatorname{dist}(-\nabla_x L_{\beta_k}(x_{k+1}, y_k), N_X(x_{k+1})) \le 1/\beta_k, \quad
            \beta_k = \beta_1 b^{k-1} \\
        \sigma_{k+1} &= \sigma_1 \min\Bigl(\frac{\|A(x_2)\| \log^2 2}{\|A(x_{k+1})\| (k+1)\log^2(k+2)}, 1\Bigr) \\
        y_{k+1} &= y_k + \sigma_{k+1} A(x_{k+1})

    An update is one gradient step of the inner solver; the outer lines run in the update that ends a subproblem.

    Args:
        beta: beta_1, the first penalty.
        growth: b, the factor between penalties.
        sigma: sigma_1, the first dual step.
        initial_multiplier: every entry of y_0.
        slack, inner: see `gdpa.methods.baselines.ialm.AugmentedMethod`.

    Example:
        >>> from gdpa import problems, solve
        >>> result = solve(problems.get("HS12"), algorithm=IALMSahin(), tolerance=1e-3)
        >>> result.success, result.x.round(2).tolist(), result.multipliers.round(2).tolist()
        (True, [2.0, 3.0], [0.5])

    References:
        M. F. Sahin, A. Eftekhari, A. Alacaoglu, F. Latorre, V. Cevher, "An Inexact Augmented Lagrangian Framework for
        Nonconvex Optimization with Nonlinear Constraints", NeurIPS 2019.

    Deviations from the source:
        Inequalities, by slacks or their elimination. The dual steps are relative to ||A|| at the first subproblem's
        solution; the source takes the start, where a feasible start would stop every dual step. The inner solver is
        `Accelerated`, which finds its step by backtracking, instead of the accelerated method of Ghadimi and Lan
        (2016) with a known Lipschitz constant.
    """

    beta: float = 1.0
    growth: float = 2.0
    sigma: float = 10.0
    initial_multiplier: float = 0.0

    card: ClassVar[MethodCard] = MethodCard(
        "IALM (Sahin et al., 2019)", "inexact", "ncvx", "equality", "double-loop", "O(1/eps^4)",
        own_claim="O~(1/eps^3) as published, corrected to O~(1/eps^4)", in_table1=True,
    )  # fmt: skip
    printed_constants: ClassVar = printed("sigma")

    def __post_init__(self) -> None:
        check_positive(beta=self.beta, growth=self.growth, sigma=self.sigma)
        if self.growth <= 1:
            raise ValueError(f"growth must exceed 1, got {self.growth!r}: the penalties must be unbounded")

    def init(self, problem: Problem, x0: Operand) -> AugmentedState:
        state = self.first(AugmentedState, problem, x0)
        return replace(state, multipliers=state.multipliers + self.initial_multiplier)

    def update(self, problem: Problem, state: AugmentedState) -> AugmentedState:
        k = state.outer + 1
        beta = self.beta * self.growth ** (k - 1)
        state, phi, then = self.descend(problem, state, beta)
        if not solved(self.inner, state.inner, 1 / beta):  # eps_{k+1} = 1/beta_k
            return state

        state, _ = self.ascend(state, phi, then, self.sigma, k)
        return replace(state, inner=state.inner.restart(), outer=k)


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
        slack, inner: see `gdpa.methods.baselines.ialm.AugmentedMethod`.

    Example:
        >>> from gdpa import problems, solve
        >>> result = solve(problems.get("HS12"), algorithm=IALMLi(), tolerance=1e-3)
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
    printed_constants: ClassVar = printed("w")

    def __post_init__(self) -> None:
        check_positive(beta=self.beta, growth=self.growth, w=self.w, rho=self.rho, epsilon=self.epsilon)
        check_positive(max_middle=self.max_middle)

    def init(self, problem: Problem, x0: Operand) -> IALMLiState:
        state = self.first(IALMLiState, problem, x0, center=x0, beta=self.beta)
        return replace(state, center=state.inner.x)

    def update(self, problem: Problem, state: IALMLiState) -> IALMLiState:
        center, k, eps = state.center, state.outer, self.epsilon
        state, phi, then = self.descend(problem, state, state.beta, prox=2 * self.rho, center=center)
        if not solved(self.inner, state.inner, eps / 4):
            return state

        x = state.inner.x
        state = replace(state, inner=state.inner.restart(), center=x, middle=state.middle + 1)
        if 2 * self.rho * float(norm(x - center)) > eps / 2 and state.middle < self.max_middle:
            return state

        state, size = self.ascend(state, phi, then, self.w, k)
        return replace(state, outer=k + 1, middle=0, beta=state.beta * (self.growth if size > eps else 1.0))
