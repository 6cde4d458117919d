"""The switching subgradient method of Huang and Lin, a single loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gdpa.base.arrays import namespace, total
from gdpa.base.checks import check_at_least
from gdpa.base.schedules import StepSize
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.problem import Evaluation, Problem, unit_vector
from gdpa.methods.base import Probe, State
from gdpa.methods.method import Method, MethodCard


@stored
@dataclass(frozen=True, slots=True, kw_only=True)
class SubgradientState(State):
    """Adds the sums of the steps on each constraint, ``pushed``, and on the objective, ``pulled``."""

    pushed: Any = 0.0
    pulled: float = 0.0


@stored
@dataclass(frozen=True)
class SwitchingSubgradient(Method):
    r"""A step on f if x is feasible to a tolerance, else a Polyak step on the largest constraint.

    .. math::
        x_{t+1} = \begin{cases} P_X(x_t - \eta_t \nabla f(x_t)) & \text{if } g_i(x_t) \le \epsilon_t \\
        P_X\bigl(x_t - g_i(x_t) \nabla g_i(x_t) / \|\nabla g_i(x_t)\|^2\bigr) & \text{otherwise} \end{cases}
        \qquad i = \arg\max_j g_j(x_t)

    The multiplier of a constraint is the sum of its steps divided by the sum of the steps on f. One forward and one
    backward pass per update. f and g need not be smooth.

    Args:
        eta: eta_0 of ``eta_t = eta_0 t^(-1/2)``, or any schedule. Theory: the constant
            (nu / 4 L^2) min(epsilon^2 / L, nu / 4 rho), L the Lipschitz constant of f and g, rho their weak
            convexity and nu the constant of a uniform Slater condition.
        tolerance: epsilon_0 of ``epsilon_t = epsilon_0 t^(-1/2)``, or any schedule; theory has a constant.
        memory: the sums forget the share 1 - memory at every step.

    Example:
        >>> from gdpa import problems, solve
        >>> hs = problems.get("HS12")
        >>> solve(hs.problem, hs.x0, SwitchingSubgradient(), tolerance=1e-2).x.round(1).tolist()
        [2.0, 3.0]

    References:
        Y. Huang, Q. Lin, "Oracle Complexity of Single-Loop Switching Subgradient Methods for Non-Smooth Weakly Convex
        Functional Constrained Optimization", NeurIPS 2023 (arXiv 2301.13314). The method for convex problems is
        B. T. Polyak's, 1967.

    Deviations from the source:
        Both schedules are ours; so are the multipliers, which the source does not estimate.
    """

    eta: StepSize = StepSize(0.05, exponent=-1 / 2)
    tolerance: StepSize = StepSize(0.01, exponent=-1 / 2)
    memory: float = 0.999

    batches: ClassVar[bool] = False
    card: ClassVar[MethodCard] = MethodCard(
        "Switching subgradient (Huang and Lin, 2023)", "primal", constraint_type="inequality",
        own_claim="O(1/eps^4) for weakly convex f and g that need not be smooth",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_at_least(0, memory=self.memory)
        if self.memory > 1:
            raise ValueError(f"memory must be at most 1, got {self.memory!r}: it is the share of the sums kept")

    def objection(self, problem: Problem, x0: Array, start: Evaluation) -> str:
        if problem.num_equalities:
            return f"{problem.num_equalities} constraints are equalities, and max_i g_i <= 0 cannot state an equality"
        return "" if start.constraints.shape[-1] else "it has no constraints; use a gradient method"

    def init(self, problem: Problem, x0: Array) -> SubgradientState:
        return self.first_state(SubgradientState, x0, self.begin(problem, x0))

    def update(self, problem: Problem, state: SubgradientState) -> SubgradientState:
        now = state.evaluation or problem.evaluate(state.x)
        g, t = now.constraints, state.step + 1
        worst = int(namespace(g).argmax(g))
        unit, zero = unit_vector(g, worst), 0 * g
        level = float(g[worst])
        pushed, pulled = self.memory * state.pushed, self.memory * state.pulled
        probe = None
        # A value that is not finite counts as feasible: the step then shows it to the loop.
        if not level > self.tolerance(t):
            length, gradient = self.eta(t), now.gradient()
            pulled += length
            probe = Probe(state.x, zero, now.objective, g, gradient, evaluation=now)
        else:
            gradient = now.pullback(unit, objective=0.0)
            size = float(total(gradient * gradient))
            length = level / size if size > 0 else 0.0
            pushed = pushed + length * unit
        x = problem.domain.project(state.x - length * gradient)
        return SubgradientState(
            step=t, x=x, multipliers=pushed / pulled + zero if pulled else zero, evaluation=problem.evaluate(x),
            probe=probe, pushed=pushed, pulled=pulled,
        )  # fmt: skip
