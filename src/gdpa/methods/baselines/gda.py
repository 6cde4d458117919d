"""Gradient descent ascent on the Lagrangian, a single loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.problem import Problem
from gdpa.methods.method import Method, MethodCard
from gdpa.methods.nested import Subproblem, descend
from gdpa.methods.nested.minmax import DualSet, MinMaxState, check_minmax, minmax_start


@stored
@dataclass(frozen=True)
class GDA(Method):
    r"""Simultaneous gradient steps down in x and up in lambda, with lambda in the compact set [0, B]^m.

    .. math::
        x_{t+1} &= P_X(x_t - \alpha \nabla_x L(x_t, \lambda_t)) \\
        \lambda_{t+1} &= P_{[0, B]}(\lambda_t + \beta \nabla_\lambda L(x_t, \lambda_t))

    L is the augmented Lagrangian with penalty ``augmentation``, the plain one f + <lambda, g> if that is 0. A KKT
    point of a nonconvex problem need not be a saddle point of the plain Lagrangian, and there GDA circles or leaves.

    One forward and one backward pass per update, and one forward per doubling of the curvature 1/alpha.

    Args:
        alpha: the primal step; None finds it by backtracking.
        beta: the dual step.
        bound: B. ``state.at_bound`` says which multipliers sit on it.
        augmentation: the penalty of the augmented Lagrangian; 0 for the plain Lagrangian.
        lipschitz: the curvature 1/alpha to begin the backtracking with.

    Example:
        >>> from gdpa import problems, solve
        >>> hs = problems.get("HS12")
        >>> result = solve(hs.problem, hs.x0, GDA(), tolerance=1e-3)
        >>> result.success, result.x.round(2).tolist(), bool(result.state.at_bound.any())
        (True, [2.0, 3.0], False)

    References:
        T. Lin, C. Jin, M. Jordan, "On Gradient Descent Ascent for Nonconvex-Concave Minimax Problems", ICML 2020.

    Deviations from the source:
        The source has constant steps from known constants and the plain function; alpha = None and augmentation > 0
        are ours.
    """

    alpha: float | None = None
    beta: float = 0.1
    bound: float = 100.0
    augmentation: float = 1.0
    lipschitz: float = 1.0

    card: ClassVar[MethodCard] = MethodCard(
        "GDA (Lin et al., 2020)", "min-max", "ncvx", "compact dual set", "single-loop", "none",
        own_claim="O(1/eps^6) for nonconvex-concave min-max problems",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_minmax(self.alpha, self.augmentation, beta=self.beta, bound=self.bound, lipschitz=self.lipschitz)

    def init(self, problem: Problem, x0: Array) -> MinMaxState:
        return minmax_start(self, problem, x0, self.lipschitz)

    def update(self, problem: Problem, state: MinMaxState) -> MinMaxState:
        now = state.evaluation or problem.evaluate(state.x)
        dual = DualSet(self.bound, problem.num_equalities)
        L = Subproblem(problem, state.multipliers, self.augmentation)
        slope = L.slope(state.x, now)
        new = descend(L, state.x, slope, state.lipschitz, self.alpha)
        multipliers = dual.project(state.multipliers + self.beta * L.shortfall(now))  # at x_t: simultaneous
        return MinMaxState(
            step=state.step + 1, x=new.x, multipliers=multipliers, evaluation=new.evaluation, probe=slope.probe,
            at_bound=dual.touched(multipliers), lipschitz=new.lipschitz,
        )  # fmt: skip
