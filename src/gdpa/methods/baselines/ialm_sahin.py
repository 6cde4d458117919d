"""The inexact augmented Lagrangian method of Sahin et al., a double loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

from gdpa.base.arrays import namespace, norm
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
        slack, inner: see `gdpa.methods.nested.augmented.AugmentedMethod`.

    Example:
        >>> from gdpa import problems, solve
        >>> hs = problems.get("HS12")
        >>> result = solve(hs.problem, hs.x0, IALMSahin(), tolerance=1e-3)
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
    printed_constants = MappingProxyType(printed("sigma"))

    def __post_init__(self) -> None:
        check_positive(beta=self.beta, growth=self.growth, sigma=self.sigma)
        if self.growth <= 1:
            raise ValueError(f"growth must exceed 1, got {self.growth!r}: the penalties must be unbounded")

    def init(self, problem: Problem, x0: Array) -> AugmentedState:
        start = self.begin(problem, x0)
        form = self.form(problem, x0, start.constraints)
        y = namespace(x0).ones_like(start.constraints) * self.initial_multiplier
        inner = self.inner.start(form.start(x0, start))
        return self.first_state(AugmentedState, x0, start, multipliers=y, evaluation=form.keep(start), inner=inner)

    def update(self, problem: Problem, state: AugmentedState) -> AugmentedState:
        k, y = state.outer + 1, state.multipliers
        beta = self.beta * self.growth ** (k - 1)
        form = self.form(problem, state.x, y)
        phi = Subproblem(form.problem, y, beta)
        state, then = inner_step(self.inner, phi, state, form)
        if not solved(self.inner, state.inner, 1 / beta):  # eps_{k+1} = 1/beta_k
            return state

        then = then or form.problem.evaluate(state.inner.x)
        A = phi.shortfall(then)
        size = float(norm(A))
        reference = size if k == 1 else state.reference
        sigma = self.sigma * damping(reference, size, k)
        return replace(
            state,
            # With slacks eliminated a dual step longer than beta could leave the nonnegative numbers.
            multipliers=AugmentedLagrangian(y, sigma, num_equalities=form.problem.num_equalities).weights(A),
            evaluation=form.keep(then),
            inner=state.inner.restart(),
            outer=k,
            reference=reference,
        )
