"""The inexact augmented Lagrangian method of Sahin et al., a double loop."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

from gdpa.algorithms.inner import (
    Accelerated,
    FixedMomentum,
    InnerSolver,
    NestedState,
    Subproblem,
    inner_step,
    solved,
    view,
)
from gdpa.algorithms.method import Method, Table1Row, check_positive, one_problem_only
from gdpa.arrays import namespace, norm, positive_part
from gdpa.problem import Evaluation, Problem
from gdpa.typing import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class IALMSahinState(NestedState):
    """Adds ``reference``: ``||A(x_1)||``, to which the dual steps are relative; None before the first outer end."""

    reference: float


@dataclass(frozen=True)
class IALMSahin(Method):
    r"""Inexact augmented Lagrangian with a dual step that shrinks (Algorithm 1 of Sahin et al.).

    With A(x) = 0 the constraints and L_beta(x, y) = f + <y, A> + (beta/2)||A||^2, for k = 1, 2, ...

    .. math::
        x_{k+1} &: \operatorname{dist}(-\nabla_x L_{\beta_k}(x_{k+1}, y_k), N_X(x_{k+1})) \le 1/\beta_k, \quad
            \beta_k = \beta_1 b^{k-1} \\
        \sigma_{k+1} &= \sigma_1 \min\Bigl(\frac{\|A(x_1)\| \log^2 2}{\|A(x_{k+1})\| (k+1)\log^2(k+2)}, 1\Bigr) \\
        y_{k+1} &= y_k + \sigma_{k+1} A(x_{k+1})

    An update is one gradient step of the inner solver; the outer lines run in the update that ends a subproblem.

    Args:
        beta: beta_1, the first penalty.
        growth: b, the factor between penalties.
        sigma: sigma_1, the first dual step.
        initial_multiplier: every entry of y_0.
        slack: work on ``g(x) + s = 0, s >= 0`` with explicit slacks, as the paper does. False eliminates them:
            ``A = max(g, -y/beta)`` and the weights ``[y + beta g]_+`` (the same minimisers, better conditioned).
        inner: the inner solver.

    Example:
        >>> from gdpa import solve
        >>> from gdpa.problems import get
        >>> hs = get("HS12")
        >>> result = solve(hs.problem, hs.x0, IALMSahin(), tolerance=1e-3)
        >>> result.success, result.x.round(2).tolist(), result.multipliers.round(2).tolist()
        (True, [2.0, 3.0], [0.5])

    References:
        M. F. Sahin, A. Eftekhari, A. Alacaoglu, F. Latorre, V. Cevher, "An Inexact Augmented Lagrangian Framework for
        Nonconvex Optimization with Nonlinear Constraints", NeurIPS 2019.

    Deviations from the source:
        Inequalities, by slacks or their elimination. The inner solver is `Accelerated`, which finds its step by
        backtracking, instead of the accelerated method of Ghadimi and Lan (2016) with a known Lipschitz constant.
    """

    beta: float = 1.0
    growth: float = 2.0
    sigma: float = 10.0
    initial_multiplier: float = 0.0
    slack: bool = False
    inner: InnerSolver = Accelerated()

    table1: ClassVar[Table1Row] = Table1Row(
        "IALM (Sahin et al., 2019)",
        "inexact",
        "ncvx",
        "equality",
        "double-loop",
        "O(1/eps^4)",
        own_claim="O~(1/eps^3) as published, corrected to O~(1/eps^4)",
        in_table1=True,
    )
    # "Initial dual variable gamma_0" is read as the first dual step sigma_1; the rest the appendix leaves open.
    printed_constants = MappingProxyType(
        {
            "mnpc": {"sigma": 1e-2, "slack": True, "inner": FixedMomentum(0.01, 0.1)},
            "network": {"sigma": 1e-3, "slack": True, "inner": FixedMomentum(1e-4, 0.1)},
        }
    )

    def __post_init__(self) -> None:
        check_positive(beta=self.beta, growth=self.growth, sigma=self.sigma)
        if self.growth <= 1:
            raise ValueError(f"growth must exceed 1, got {self.growth!r}: the penalties must be unbounded")

    def objection(self, problem: Problem, x0: Array, start: Evaluation) -> str:
        return one_problem_only(x0)

    def init(self, problem: Problem, x0: Array) -> IALMSahinState:
        start = self.begin(problem, x0)
        form = view(problem, self.slack, x0.shape[-1], start.constraints.shape[-1])
        xp = namespace(x0)
        return IALMSahinState(
            step=0,
            x=x0,
            multipliers=xp.ones_like(start.constraints) * self.initial_multiplier,
            evaluation=form.keep(start),
            probe=None,
            inner=self.inner.start(form.start(x0, start)),
            reference=math.nan,
        )

    def update(self, problem: Problem, state: IALMSahinState) -> IALMSahinState:
        k = state.outer + 1
        beta = self.beta * self.growth ** (k - 1)
        y = state.multipliers
        form = view(problem, self.slack, state.x.shape[-1], y.shape[-1])
        phi = Subproblem(form.problem, y, beta)
        state, then = inner_step(self.inner, phi, state, form)
        if not solved(self.inner, state.inner, 1 / beta):  # eps_{k+1} = 1/beta_k
            return state

        then = then or form.problem.evaluate(state.inner.x)
        A = phi.shortfall(then)
        size = float(norm(A))
        reference = size if k == 1 else state.reference
        decay = (k + 1) * math.log(k + 2) ** 2
        ratio = reference * math.log(2) ** 2 / (size * decay) if size > 0 else 1.0
        sigma = self.sigma * min(ratio, 1.0)
        return replace(
            state,
            # With slacks eliminated a dual step longer than beta could leave the nonnegative numbers.
            multipliers=positive_part(y + sigma * A, form.problem.num_equalities),
            evaluation=form.keep(then),
            inner=state.inner.restart(),
            outer=k,
            reference=reference,
        )
