"""Gradient descent and damped ascent at a fixed step, for noisy oracles. Ours; see docs/fixed-step.md."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from gdpa.base.arrays import max_norm, namespace, row_sizes
from gdpa.base.checks import check_at_least, check_positive, check_share
from gdpa.base.schedules import StepSize
from gdpa.base.stored import stored
from gdpa.base.typing import Array, Operand
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.core.problem import Evaluation, Problem
from gdpa.methods.base import Probe, State
from gdpa.methods.method import Method, MethodCard

#: Above this many constraints each keeps its own units: measuring a gradient each would cost m backward passes.
SCALING_LIMIT = 100
#: A constraint counts as having a gradient of at least this share of its value at the start, so that one whose
#: gradient vanishes there is not blown up. A share, not a number: the rule does not depend on the constraint's units.
LEAST_SLOPE = 0.1


@stored
@dataclass(frozen=True, slots=True, kw_only=True)
class DampedState(State):
    """The state of `DampedGDPA`, in the units of the problem as the user wrote it.

    Attributes:
        unit: s_f, the factor of alpha.
        beta: beta s_i^2 / s_f, one for each constraint.
        previous: x_{r-1}, for the momentum.
        smoothed: the moving average of the constraint values.
        average: the tail average of the points x_1 .. x_r.
        total: the sum of the weights in ``average``.
    """

    unit: Array
    beta: Array
    previous: Array
    smoothed: Array
    average: Array
    total: float


@stored
@dataclass(frozen=True)
class DampedGDPA(Method):
    r"""GDPA's relative for a fixed step and noisy oracles: constant beta on scaled constraints, a damped dual step.

    .. math::
        w_r &= [(1-\tau)\lambda_r + \beta \hat g_r]_+ \\
        x_{r+1} &= P_X\bigl(x_r - \alpha s_f (\nabla f(x_r) + J(x_r)^T w_r) + \mu (x_r - x_{r-1})\bigr) \\
        \hat g_{r+1} &= \rho \hat g_r + (1-\rho) g(x_{r+1}) \\
        \lambda_{r+1} &= \lambda_r + \theta\bigl([(1-\tau)\lambda_r + \beta \hat g_{r+1}]_+ - \lambda_r\bigr)

    with beta_i = beta s_i^2 / s_f for constraint i. The scales are read off the start once, by largest components:
    s_f = 1 / max(1, |grad f|) and s_i = 1 / max(|grad g_i|, |g_i| / 10). This is the recursion with f scaled by s_f and
    g_i by s_i, in the user's units: multiplying a constraint by a constant leaves the points x_r as they are.

    One forward and one backward pass per update. The start costs m + 1 backward passes if ``scaled``.

    Each option has its measured effect in docs/fixed-step.md; the defaults were chosen from those tables.

    Args:
        alpha: the primal step on the scaled problem, constant, or a schedule r -> alpha_r.
        beta: the dual step and penalty on the scaled problem, constant.
        theta: the damping in (0, 1]; 1 is the paper's dual step. theta * beta is the rate of the multipliers.
        tau: the perturbation in [0, 1); above 0 it leaves a violation of tau lambda_i / beta_i.
        momentum: mu in [0, 1), heavy ball. The step in the long run is alpha / (1 - mu): lower alpha when raising mu.
        smoothing: rho in [0, 1), the memory of the moving average of g inside [.]_+; 0 takes g as it is.
        tail: the weight of x_r in the average is r^tail, so that no horizon need be known: the last fifth of the steps
            has 1 - 0.8^(tail + 1) of the weight. 0 is the plain mean.
        scaled: whether to scale at the start. Above `SCALING_LIMIT` constraints only f is scaled.

    Example:
        >>> from gdpa import MaxSteps, problems, solve
        >>> result = solve(problems.get("HS12"), algorithm=DampedGDPA(), stop=MaxSteps(3000))
        >>> result.x_last.round(2).tolist(), result.state.average.round(2).tolist()
        ([2.0, 3.0], [2.0, 3.0])

    References:
        The average: O. Shamir, T. Zhang, "Stochastic Gradient Descent for Non-smooth Optimization", ICML 2013.

    Deviations from the paper:
        Ours; the paper's theorem does not cover it. alpha and beta are constant, tau may be 0, and the dual step is
        damped and has no gate S_r. With tau = 0 and no option it is a damped one-loop augmented Lagrangian method.
    """

    alpha: StepSize = StepSize(0.03, exponent=0.0)
    beta: float = 3.0
    theta: float = 0.03
    tau: float = 0.0
    momentum: float = 0.0
    smoothing: float = 0.9
    tail: float = 8.0
    scaled: bool = True

    card: ClassVar[MethodCard] = MethodCard("DampedGDPA (ours)", "primal-dual")

    def __post_init__(self) -> None:
        check_positive(beta=self.beta, theta=self.theta)
        check_at_least(0, tail=self.tail)
        if self.theta > 1:
            raise ValueError(f"theta must lie in (0, 1], got {self.theta!r}: the dual moves to its target, not past it")
        check_share(tau=self.tau, momentum=self.momentum, smoothing=self.smoothing)
        if not isinstance(self.scaled, bool):
            raise TypeError(f"scaled must be True or False, got {self.scaled!r}")

    def init(self, problem: Problem, x0: Operand) -> DampedState:
        now = self.begin(problem, x0)
        g = now.constraints
        xp = namespace(g)
        unit, scales = xp.ones_like(now.objective), xp.ones_like(g)
        if self.scaled:
            unit, scales = _scales(now)
        return self.first_state(
            DampedState, x0, now, unit=unit,
            beta=self.beta * scales**2 / unit[..., None], previous=x0, smoothed=g, average=x0, total=0.0,
        )  # fmt: skip

    def update(self, problem: Problem, state: DampedState) -> DampedState:
        r = state.step + 1
        x = state.x
        now = state.evaluation or problem.evaluate(x)
        F = AugmentedLagrangian(state.multipliers, state.beta, self.tau, problem.num_equalities)

        w = F.weights(state.smoothed)
        gradient = now.pullback(w)
        alpha = self.alpha(r) * state.unit[..., None]
        # Polyak's form of the momentum: the part that the projection removed is not carried on.
        x_next = problem.domain.project(x - alpha * gradient + self.momentum * (x - state.previous))

        then = problem.evaluate(x_next)
        smoothed = self.smoothing * state.smoothed + (1 - self.smoothing) * then.constraints
        multipliers = F.damped(smoothed, self.theta)

        weight = float(r**self.tail)
        total = state.total + weight
        average = state.average + (weight / total) * (x - state.average)
        probe = Probe(x, w, now.objective, now.constraints, gradient, weight, now)
        return replace(
            state, step=r, x=x_next, multipliers=multipliers, evaluation=then, probe=probe, previous=x,
            smoothed=smoothed, average=average, total=total,
        )  # fmt: skip


def _scales(now: Evaluation) -> tuple[Array, Array]:
    """Return s_f and the s_i of every member of a batch."""
    g = now.constraints
    xp = namespace(g)
    one, ones = xp.ones_like(now.objective), xp.ones_like(g)
    unit = one / xp.maximum(max_norm(now.gradient()), one)
    if not 0 < g.shape[-1] <= SCALING_LIMIT:
        return unit, ones
    sizes = xp.maximum(row_sizes(now.jacobian()), LEAST_SLOPE * xp.abs(g))
    return unit, ones / xp.where(sizes > 0, sizes, ones)  # a constraint that is 0 with its gradient has no size
