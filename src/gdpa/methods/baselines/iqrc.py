"""The inexact quadratically regularized constrained method of Ma et al., a double loop."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from gdpa.base.arrays import namespace, norm
from gdpa.base.checks import check_at_least, check_positive, check_positive_if_given
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.problem import Evaluation, Problem, unit_vector
from gdpa.methods.base import Probe, State
from gdpa.methods.method import Method, MethodCard


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
class IQRC(Method):
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

    batches: ClassVar[bool] = False
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

    def objection(self, problem: Problem, x0: Array, start: Evaluation) -> str:
        if problem.num_equalities:
            return f"{problem.num_equalities} constraints are equalities, and max_i g_i <= 0 cannot state an equality"
        if start.constraints.shape[-1] == 0:
            return "it has no constraints; use a gradient method"
        return ""

    def init(self, problem: Problem, x0: Array) -> IQRCState:
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

    def _curvature(self, state: IQRCState, kind: int, z: Array, zeta: Array) -> float:
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
