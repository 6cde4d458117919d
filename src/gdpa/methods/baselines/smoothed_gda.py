"""The smoothed gradient descent ascent of Zhang et al. on the Lagrangian, a single loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from gdpa.base.checks import check_at_least
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.problem import Problem
from gdpa.methods.method import Method, MethodCard
from gdpa.methods.nested import Subproblem, descend
from gdpa.methods.nested.minmax import DualSet, MinMaxState, check_minmax, minmax_start


@stored
@dataclass(frozen=True)
class SmoothedGDA(Method):
    r"""Alternating steps on the Lagrangian plus a proximal term whose center follows slowly.

    .. math::
        x_{t+1} &= P_X\bigl(x_t - c(\nabla_x L(x_t, \lambda_t) + p(x_t - z_t))\bigr) \\
        \lambda_{t+1} &= P_{[0, B]}(\lambda_t + \alpha \nabla_\lambda L(x_{t+1}, \lambda_t)) \\
        z_{t+1} &= z_t + \beta (x_{t+1} - z_t)

    One forward and one backward pass per update, and one forward per doubling of the curvature 1/c.

    Args:
        alpha: the dual step.
        prox: p. Theory requires p > 3L; its authors recommend p and beta between 1/2 and 1 in practice.
        beta: the step of the center, in (0, 1].
        step: c, the primal step; None finds it by backtracking. Theory: c < 1/(p + L).
        bound: B. ``state.at_bound`` says which multipliers sit on it.
        augmentation: the penalty of the augmented Lagrangian; 0 for the plain Lagrangian.
        lipschitz: the curvature 1/c to begin the backtracking with.

    Example:
        >>> from gdpa import problems, solve
        >>> hs = problems.get("HS12")
        >>> result = solve(hs.problem, hs.x0, SmoothedGDA(), tolerance=1e-3)
        >>> result.success, result.x.round(2).tolist(), bool(result.state.at_bound.any())
        (True, [2.0, 3.0], False)

    References:
        J. Zhang, P. Xiao, R. Sun, Z.-Q. Luo, "A Single-Loop Smoothed Gradient Descent-Ascent Algorithm for
        Nonconvex-Concave Min-Max Problems", NeurIPS 2020.

    Deviations from the source:
        Backtracking and augmentation are ours.
    """

    alpha: float = 0.1
    prox: float = 1.0
    beta: float = 0.5
    step: float | None = None
    bound: float = 100.0
    augmentation: float = 1.0
    lipschitz: float = 1.0

    card: ClassVar[MethodCard] = MethodCard(
        "Smoothed-GDA (Zhang et al., 2020)", "min-max", "ncvx", "compact dual set", "single-loop", "none",
        own_claim="O(1/eps^4) for nonconvex-concave min-max problems; O(1/eps^2) for a finite max",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_minmax(self.step, self.augmentation, alpha=self.alpha, bound=self.bound, lipschitz=self.lipschitz)
        check_at_least(0, prox=self.prox, beta=self.beta)
        if not 0 < self.beta <= 1:
            raise ValueError(f"beta must lie in (0, 1], got {self.beta!r}: the center moves towards x, not past it")

    def init(self, problem: Problem, x0: Array) -> MinMaxState:
        return minmax_start(self, problem, x0, self.lipschitz, center=True)

    def update(self, problem: Problem, state: MinMaxState) -> MinMaxState:
        x, z = state.x, state.center
        dual = DualSet(self.bound, problem.num_equalities)
        L = Subproblem(problem, state.multipliers, self.augmentation, prox=self.prox, center=z)
        slope = L.slope(x, state.evaluation or problem.evaluate(x))
        new = descend(L, x, slope, state.lipschitz, self.step)
        multipliers = dual.project(state.multipliers + self.alpha * L.shortfall(new.evaluation))
        return replace(
            state, step=state.step + 1, x=new.x, multipliers=multipliers, evaluation=new.evaluation,
            probe=slope.probe, at_bound=dual.touched(multipliers), lipschitz=new.lipschitz,
            center=z + self.beta * (new.x - z),
        )  # fmt: skip
