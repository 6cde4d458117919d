"""A double and a single loop that switch between steps on the objective and on the largest constraint."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from gdpa.base.arrays import namespace, norm, total
from gdpa.base.checks import check_at_least, check_positive, check_positive_if_given
from gdpa.base.schedules import StepSize
from gdpa.base.stored import stored
from gdpa.base.typing import Array, Operand
from gdpa.core.problem import Evaluation, Problem, unit_vector
from gdpa.methods.base import Probe, State
from gdpa.methods.method import Method, MethodCard


class SwitchingMethod(Method):
    """A method whose steps switch by the largest constraint, on one problem with inequalities at a time."""

    batches: ClassVar[bool] = False

    def objection(self, problem: Problem, x0: Operand, start: Evaluation) -> str:
        if problem.num_equalities:
            return f"{problem.num_equalities} constraints are equalities, and max_i g_i <= 0 cannot state an equality"
        return "" if start.constraints.shape[-1] else "it has no constraints; use a gradient method"


@stored
@dataclass(frozen=True, slots=True, kw_only=True)
class IQRCState(State):
    """Where the two loops stand; ``x`` is the inner iterate z_k.

    Attributes:
        center: x_t, the regularization's center.
        outer: t, outer iterations done.
        inner: k, switching steps done in this one.
        total: the sum of k + 1 over the steps on the objective, I.
        mean: the average of z_k over I, weighted by k + 1.
        pressure: for every constraint the sum of k + 1 over the steps it decided.
        curvature: the largest slope of a gradient seen so far, for the safe step.
        last: the previous (z, gradient), to measure that slope; None if the kind of step changed.
        kind: the constraint the previous step was on, -1 for the objective.
    """

    center: Array
    outer: int = 0
    inner: int = 0
    total: float = 0.0
    mean: Array
    pressure: Array
    curvature: float = 0.0
    last: tuple[Array, Array] | None = None
    kind: int = -1


@stored
@dataclass(frozen=True)
class IQRC(SwitchingMethod):
    r"""Proximal-point steps on objective and constraint alike, each by a switching gradient method.

    With g(x) = max_i g_i(x), F_t(x) = f(x) + (rho/2)||x - x_t||^2 and G_t(x) = g(x) + (rho/2)||x - x_t||^2,

    .. math::
        x_{t+1} \approx \arg\min_{x \in X} F_t(x) \text{ subject to } G_t(x) \le 0

    by K switching steps from z_0 = x_t: along grad F_t if G_t(z_k) <= tolerance (call these steps I), along the
    gradient of a largest constraint of G_t elsewhere,

    .. math::
        z_{k+1} = P_X(z_k - \gamma_k \zeta_k), \qquad \gamma_k = \frac{2}{\mu(k+2) + L^2/(\mu(k+1))}, \qquad
        x_{t+1} = \frac{\sum_{k \in I} (k+1) z_k}{\sum_{k \in I} (k+1)}

    and z_K if I is empty. The multiplier of constraint i is the weight of the steps it decided over the weight of I.
    One forward and one backward pass per update; the update that ends an outer iteration takes a second of each, at
    x_{t+1}, the backward for the Lagrangian gradient at the reported multipliers.

    Args:
        rho: the regularization, to exceed the weak convexity of f and g.
        mu: the strong convexity left, rho minus the weak convexity; default rho.
        steps: K of the first outer iteration.
        growth: how many steps more every outer iteration takes, so that the inner error falls with the outer one.
        tolerance: how much violation a step on the objective may have.
        gamma: gamma_0 of the steps ``gamma_k = 2 gamma_0/(k + 2)``; None takes the safe steps above.
        lipschitz: L of the safe step; None measures it from successive gradients of one kind.

    Example:
        >>> from gdpa import problems, solve
        >>> result = solve(problems.get("disc-square"), algorithm=IQRC(), tolerance=1e-2)
        >>> result.success, result.x.round(1).tolist(), result.multipliers.round(1).tolist()
        (True, [1.0, 1.0], [1.0])

    References:
        R. Ma, Q. Lin, T. Yang, "Quadratically Regularized Subgradient Methods for Weakly Convex Optimization with
        Weakly Convex Constraints", ICML 2020.

    Deviations from the source:
        ``growth`` is ours; the source's K is a constant of the final accuracy. The best outer iterate by certificate
        is returned, not a random one. The start need not be feasible. The measured L halves with every outer
        iteration, to forget a wild start. The averaging weights k + 1 also weigh the multipliers: summing
        (k + 1)<zeta_k, z_k - z> bounds F_t + sum_i lambda_i G_t,i with exactly these lambda_i.
    """

    rho: float = 5.0
    mu: float | None = None
    steps: int = 30
    growth: int = 10
    tolerance: float = 3e-3
    gamma: float | None = None
    lipschitz: float | None = None

    card: ClassVar[MethodCard] = MethodCard(
        "IQRC (Ma et al., 2020)", "primal", "ncvx", "inequality", "double-loop", "O(1/eps^3)",
        own_claim="O(1/eps^4) deterministic, O(1/eps^6) stochastic", in_table1=True,
    )  # fmt: skip
    printed_constants: ClassVar = {
        "mnpc": {"rho": 1.0, "gamma": 0.1, "steps": 30, "growth": 0, "tolerance": 1.0},
        "network": {"rho": 1.0, "gamma": 1e-4, "steps": 30, "growth": 0, "tolerance": 0.01},
    }

    def __post_init__(self) -> None:
        check_positive(rho=self.rho, steps=self.steps)
        check_at_least(0, tolerance=self.tolerance, growth=self.growth)
        check_positive_if_given(mu=self.mu, gamma=self.gamma, lipschitz=self.lipschitz)

    def init(self, problem: Problem, x0: Operand) -> IQRCState:
        start = self.begin(problem, x0)
        xp = namespace(x0)
        zeros = xp.zeros_like(start.constraints)
        return self.first_state(IQRCState, x0, start, center=x0, mean=xp.zeros_like(x0), pressure=zeros)

    def update(self, problem: Problem, state: IQRCState) -> IQRCState:
        z, k = state.x, state.inner
        now = state.evaluation or problem.evaluate(z)
        g, offset = now.constraints, z - state.center
        xp = namespace(z)
        worst = int(xp.argmax(g))
        unit = unit_vector(g, worst)
        level = g[worst] + self.rho / 2 * xp.sum(offset * offset)
        level = float(xp.where(xp.isfinite(now.objective), level, level * math.nan))
        if not math.isfinite(level):  # let the loop see it: most steps yield no probe
            return replace(
                state, step=state.step + 1, probe=Probe(z, state.multipliers, now.objective, g, z * math.nan)
            )
        on_objective = level <= self.tolerance
        pulled = now.gradient() if on_objective else now.pullback(unit, objective=0.0)
        zeta = pulled + self.rho * offset

        kind = -1 if on_objective else worst
        curvature = self._curvature(state, kind, z, zeta)
        z_next = problem.domain.project(z - self._step(k, curvature) * zeta)
        weight = float(k + 1)
        total = state.total + (weight if on_objective else 0.0)
        mean, pressure = state.mean, state.pressure
        if on_objective:
            mean = mean + (weight / total) * (z - mean)
        else:
            pressure = pressure + weight * unit
        after = replace(
            state, step=state.step + 1, x=z_next, evaluation=None, probe=None, inner=k + 1, total=total, mean=mean,
            pressure=pressure, curvature=curvature, last=(z, zeta), kind=kind,
        )  # fmt: skip
        return after if k + 1 < self.steps + self.growth * state.outer else self._next_center(problem, after)

    def _next_center(self, problem: Problem, state: IQRCState) -> IQRCState:
        x = state.mean if state.total > 0 else state.x
        lam = state.pressure / state.total if state.total > 0 else 0 * state.pressure
        then = problem.evaluate(x)
        probe = Probe(x, lam, then.objective, then.constraints, then.pullback(lam), evaluation=then)
        return replace(
            state, x=x, multipliers=lam, evaluation=then, probe=probe, center=x, outer=state.outer + 1, inner=0,
            total=0.0, mean=0 * x, pressure=0 * lam, last=None, curvature=state.curvature / 2,
        )  # fmt: skip

    def _curvature(self, state: IQRCState, kind: int, z: Operand, zeta: Operand) -> float:
        if self.lipschitz is not None:
            return self.lipschitz
        if state.last is None or state.kind != kind:
            return state.curvature
        moved = float(norm(z - state.last[0]))
        slope = float(norm(zeta - state.last[1])) / moved if moved > 0 else 0.0
        return max(state.curvature, slope) if math.isfinite(slope) else state.curvature

    def _step(self, k: int, curvature: float) -> float:
        if self.gamma is not None:
            return 2 * self.gamma / (k + 2)
        mu = self.rho if self.mu is None else self.mu
        return 2 / (mu * (k + 2) + curvature**2 / (mu * (k + 1)))


@stored
@dataclass(frozen=True, slots=True, kw_only=True)
class SubgradientState(State):
    """Adds the sums of the steps on each constraint, ``pushed``, and on the objective, ``pulled``."""

    pushed: Any = 0.0
    pulled: float = 0.0


@stored
@dataclass(frozen=True)
class SwitchingSubgradient(SwitchingMethod):
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

    card: ClassVar[MethodCard] = MethodCard(
        "Switching subgradient (Huang and Lin, 2023)", "primal", constraint_type="inequality",
        own_claim="O(1/eps^4) for weakly convex f and g that need not be smooth",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_at_least(0, memory=self.memory)
        if self.memory > 1:
            raise ValueError(f"memory must be at most 1, got {self.memory!r}: it is the share of the sums kept")

    def init(self, problem: Problem, x0: Operand) -> SubgradientState:
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
