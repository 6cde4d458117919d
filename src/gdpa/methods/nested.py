"""Shared parts of the methods: the function to descend on, the descent step, and the solvers of inner loops."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Protocol, Self, TypeVar

from gdpa.base.arrays import namespace, norm
from gdpa.base.checks import check_at_least, check_positive
from gdpa.base.stored import stored
from gdpa.base.typing import Array, Operand
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.core.problem import Evaluation, Problem
from gdpa.methods.base import Probe, State
from gdpa.methods.method import Method

#: A rejected trial multiplies the curvature estimate M by this.
GROW = 2.0
#: An accepted one multiplies it by this, so that the step lengthens where the function is flatter.
SHRINK = 0.9
#: Above this curvature a step no longer moves: take it rather than look for ever.
LIMIT = 1e30


@dataclass(frozen=True)
class Subproblem:
    """``phi(x) = f(x) + (||[lambda + beta g(x)]_+||^2 - ||lambda||^2) / (2 beta) + (prox/2) ||x - center||^2`` on X.

    Its limits serve all methods: beta = 0 is the Lagrangian ``f + <lambda, g>``, lambda = 0 the quadratic penalty,
    prox = 0 the augmented Lagrangian. The slack of an inequality is eliminated: minimizing
    ``<lambda, g + s> + (beta/2)||g + s||^2`` over s >= 0 gives the positive part above.

    Args:
        problem: f, g and X.
        multipliers: lambda.
        beta: the penalty; 0 for the plain Lagrangian.
        prox: the weight of the proximal term.
        center: its center.
        tau: the perturbation of GDPA: phi contains lambda only as (1 - tau) lambda.

    >>> import numpy as np
    >>> from gdpa import problems
    >>> disc = problems.get("disc-product").problem
    >>> phi = Subproblem(disc, np.array([0.5]), beta=2.0, prox=1.0, center=np.zeros(2))
    >>> phi.gradient(phi.probe(np.ones(2), disc.evaluate(np.ones(2)))).tolist()   # J^T lambda = -grad f, prox term x
    [1.0, 1.0]
    """

    problem: Problem
    multipliers: Array
    beta: float | Array
    prox: float = 0.0
    center: Array | None = None
    tau: float = 0.0

    @property
    def lagrangian(self) -> AugmentedLagrangian:
        """The part of phi without the proximal term, as a function of f and g."""
        return AugmentedLagrangian(self.multipliers, self.beta, self.tau, self.problem.num_equalities)

    def value(self, x: Operand, at: Evaluation | Probe) -> Array:
        """Return phi(x) from f and g at x."""
        smooth = self.lagrangian.value(at.objective, at.constraints)
        if self.center is None:
            return smooth
        return smooth + self.prox / 2 * namespace(x).sum((x - self.center) ** 2, axis=-1)

    def probe(self, x: Operand, at: Evaluation, weight: float = 1.0) -> Probe:
        """Return the gradient of the Lagrangian at ``x`` and phi's weights (one backward pass), as a probe."""
        w = self.lagrangian.weights(at.constraints)
        return Probe(x, w, at.objective, at.constraints, at.pullback(w), weight, at)

    def gradient(self, at: Probe) -> Array:
        """Return grad phi from the probe at a point."""
        return at.gradient if self.center is None else at.gradient + self.prox * (at.x - self.center)


def first_curvature(x: Operand, lipschitz: float) -> Array:
    """Return the curvature to begin with, one for each member of a batch."""
    return namespace(x).ones_like(x[..., 0]) * lipschitz


class Descent(NamedTuple):
    """The point x, the oracle call there, phi(v) and phi(x), the curvature M used and the one to begin with next."""

    x: Array
    evaluation: Evaluation
    before: Array
    value: Array
    curvature: Array
    lipschitz: Array


def descend(phi: Subproblem, at: Probe, lipschitz: Operand) -> Descent:
    """Return the projected gradient step ``x = P_X(v - grad phi(v) / M)`` from ``at.x`` = v (one forward per trial).

    M starts at ``lipschitz`` and doubles until the quadratic model bounds phi (Beck and Teboulle 2009)::

        phi(x) <= phi(v) + <grad phi(v), x - v> + (M/2) ||x - v||^2

    Every member of a batch has its own M. A value that is not finite counts as too large; if phi or its gradient is not
    finite at v itself, no M helps and the first trial is returned.

    >>> import numpy as np
    >>> from gdpa import problems
    >>> disc = problems.get("disc-product").problem
    >>> phi = Subproblem(disc, np.zeros(1), beta=1.0)
    >>> x = np.ones(2)
    >>> step = descend(phi, phi.probe(x, disc.evaluate(x)), lipschitz=np.asarray(1.0))
    >>> step.x.tolist(), float(step.lipschitz)      # M = 16 is the first power of 2 that bounds the penalty: 16 * 0.9
    ([1.0625, 1.0625], 14.4)
    """
    v, before, gradient = at.x, phi.value(at.x, at), phi.gradient(at)
    xp = namespace(v)
    rounding = 10 * float(xp.finfo(v.dtype).eps) * (1 + xp.abs(before))
    lost = ~(xp.isfinite(before) & xp.all(xp.isfinite(gradient), axis=-1))
    while True:
        x = phi.problem.domain.project(v - gradient / lipschitz[..., None])
        then = phi.problem.evaluate(x)
        value = phi.value(x, then)
        move = x - v
        decrease = xp.sum(gradient * move, axis=-1) + lipschitz / 2 * xp.sum(move * move, axis=-1)
        bounded = (value <= before + decrease + rounding) | (lipschitz > LIMIT) | lost
        if bool(xp.all(bounded)):
            break
        lipschitz = xp.where(bounded, lipschitz, GROW * lipschitz)
    # If the decrease is below rounding, the test is meaningless and M stays.
    told = xp.abs(decrease) > 100 * rounding
    return Descent(x, then, before, value, lipschitz, xp.where(told, SHRINK * lipschitz, lipschitz))


@stored
@dataclass(frozen=True, slots=True, kw_only=True)
class DescentState(State):
    """Adds the curvature estimate ``lipschitz``, with which `descend` begins."""

    lipschitz: Array


D = TypeVar("D", bound=DescentState)


def descended(
    phi: Subproblem, state: D, now: Evaluation, alpha: float | None, weight: float = 1.0
) -> tuple[D, Evaluation]:
    """Return the state after one projected gradient step on ``phi``, and the oracle call there.

    Args:
        phi: the function to descend on.
        state: the state before; its multipliers stay.
        now: the oracle call at ``state.x``.
        alpha: the length of the step; None finds it by `descend`.
        weight: the weight of ``state.x`` in the averaged iterate.
    """
    at = phi.probe(state.x, now, weight)
    lipschitz = state.lipschitz
    if alpha is None:
        x, then, *_, lipschitz = descend(phi, at, lipschitz)
    else:
        x = phi.problem.domain.project(state.x - alpha * phi.gradient(at))
        then = phi.problem.evaluate(x)
    return replace(state, step=state.step + 1, x=x, evaluation=then, probe=at, lipschitz=lipschitz), then


@stored
@dataclass(frozen=True, slots=True)
class Iterate:
    """Where an inner solver stands.

    Attributes:
        x: the iterate.
        v: where the next gradient is taken; ``x`` itself after a (re)start.
        lipschitz: the curvature estimate M.
        count: gradient steps in this subproblem.
        age: steps since the momentum was last restarted.
        value: phi(x), NaN if not known.
        residual: ``2 M ||v - x||`` of the last step, twice the gradient mapping at v. It bounds the distance of
            -grad phi(x) from N_X(x) if M bounds the curvature between the two, and costs no gradient at x.
    """

    x: Array
    v: Array
    lipschitz: Array
    count: int = 0
    age: int = 0
    value: float = math.nan
    residual: float = math.inf

    def restart(self) -> Self:
        """Return the record at the start of another subproblem: same point and curvature, no momentum."""
        return replace(self, v=self.x, count=0, age=0, value=math.nan, residual=math.inf)


class InnerStep(NamedTuple):
    """The record after a step, the oracle call at its ``x`` if there was one, and the probe at the old ``v``."""

    iterate: Iterate
    evaluation: Evaluation | None
    probe: Probe


class InnerSolver(Protocol):
    """Minimizes a `Subproblem`: ``step`` is one gradient step, given the oracle call at ``at.x`` if that is known."""

    @property
    def max_steps(self) -> int: ...

    def start(self, x: Operand) -> Iterate: ...

    def step(self, phi: Subproblem, at: Iterate, evaluation: Evaluation | None) -> InnerStep: ...


def solved(solver: InnerSolver, at: Iterate, tolerance: float) -> bool:
    """Return whether a subproblem is solved to ``tolerance`` or has used up its steps."""
    return at.residual <= tolerance or at.count >= solver.max_steps


@stored
@dataclass(frozen=True)
class Accelerated:
    r"""Accelerated proximal gradient with backtracking, monotone.

    .. math::
        x^+ = P_X(v - \nabla\phi(v)/M), \qquad v^+ = x^+ + \theta (x^+ - x)

    with theta = (1 - a)/(1 + a), a = sqrt(mu/M), for the strong convexity mu = prox/2 that a proximal term leaves
    (weight 2 rho on a rho-weakly convex function), and theta = t/(t + 3) after t steps without one. The momentum
    restarts if it points uphill, and a step that does not decrease phi is undone and retaken without momentum.
    So every second step at least descends as plain projected gradient does, convex or not.

    One backward pass per step; two forward passes, less one if there is no momentum, plus one per doubling of M.

    Args:
        lipschitz: the curvature M to begin with.
        max_steps: the most gradient steps in one subproblem.

    References:
        A. Beck and M. Teboulle, SIAM J. Imaging Sciences 2009; B. O'Donoghue and E. Candes, Foundations of
        Computational Mathematics 2015 (restart); Y. Nesterov, Introductory Lectures, 2004, section 2.2 (theta).
    """

    lipschitz: float = 1.0
    max_steps: int = 1000

    def __post_init__(self) -> None:
        check_positive(lipschitz=self.lipschitz, max_steps=self.max_steps)

    def start(self, x: Operand) -> Iterate:
        return Iterate(x, x, first_curvature(x, self.lipschitz))

    def step(self, phi: Subproblem, at: Iterate, evaluation: Evaluation | None) -> InnerStep:
        now = phi.problem.evaluate(at.v) if at.age or evaluation is None else evaluation
        probe = phi.probe(at.v, now)
        new = descend(phi, probe, at.lipschitz)
        if at.age and not float(new.value) <= at.value:  # momentum overshot: back to x
            undone = replace(at, v=at.x, age=0, count=at.count + 1, lipschitz=new.lipschitz)
            return InnerStep(undone, evaluation, probe)
        xp = namespace(at.x)
        moved, back = new.x - at.x, at.v - new.x
        uphill = bool(xp.sum(back * moved) > 0)
        theta = 0.0 if uphill else self._momentum(phi, at, float(new.lipschitz))
        v, age = (new.x + theta * moved, at.age + 1) if theta else (new.x, 0)
        residual = 2 * float(new.curvature) * float(norm(back))
        iterate = Iterate(new.x, v, new.lipschitz, at.count + 1, age, float(new.value), residual)
        return InnerStep(iterate, new.evaluation, probe)

    @staticmethod
    def _momentum(phi: Subproblem, at: Iterate, lipschitz: float) -> float:
        if phi.prox == 0:
            return (at.age + 1) / (at.age + 4)
        a = math.sqrt(min(phi.prox / 2 / lipschitz, 1.0))
        return (1 - a) / (1 + a)


#: The inner solver of the tuned presets.
ACCELERATED = Accelerated()


@stored
@dataclass(frozen=True)
class FixedMomentum:
    """Nesterov's accelerated gradient with a constant step and a constant momentum, as the paper's appendix uses it.

    ``x+ = P_X(v - alpha grad phi(v))``, ``v+ = x+ + momentum (x+ - x)``: one forward and one backward pass per step,
    and no care for overshooting.

    Args:
        alpha: the step length (0.01 in the paper's first experiment).
        momentum: the factor of ``x+ - x`` (0.1 in the paper).
        max_steps: the most gradient steps in one subproblem; the paper does not print it.
    """

    alpha: float = 0.01
    momentum: float = 0.1
    max_steps: int = 200

    def __post_init__(self) -> None:
        check_positive(alpha=self.alpha, max_steps=self.max_steps)
        check_at_least(0, momentum=self.momentum)

    def start(self, x: Operand) -> Iterate:
        return Iterate(x, x, first_curvature(x, 1 / self.alpha))

    def step(self, phi: Subproblem, at: Iterate, evaluation: Evaluation | None) -> InnerStep:
        now = phi.problem.evaluate(at.v) if at.age or evaluation is None else evaluation
        probe = phi.probe(at.v, now)
        x = phi.problem.domain.project(at.v - self.alpha * phi.gradient(probe))
        residual = 2 / self.alpha * float(norm(at.v - x))
        v = x + self.momentum * (x - at.x)
        iterate = replace(at, x=x, v=v, count=at.count + 1, age=at.age + 1, residual=residual)
        return InnerStep(iterate, None, probe)


@stored
@dataclass(frozen=True, slots=True, kw_only=True)
class NestedState(State):
    """The state of a double- or triple-loop method.

    Attributes:
        inner: where the inner solver stands; its ``x`` and ``v`` hold the slacks, too, in the slack form.
        outer: number of outer iterations done.
    """

    inner: Iterate
    outer: int = 0


@dataclass(frozen=True, kw_only=True)
class NestedMethod(Method):
    """A method whose loops branch on the data, and so takes one problem at a time; ``inner`` is its inner solver."""

    inner: InnerSolver = ACCELERATED

    batches: ClassVar[bool] = False


N = TypeVar("N", bound=NestedState)


def inner_step(solver: InnerSolver, phi: Subproblem, state: N) -> tuple[N, Probe]:
    """Return the state after one gradient step of the inner solver on ``phi``, which has this probe, too.

    A step that was cut short gives no residual of the subproblem.
    """
    inner, then, probe = solver.step(phi, state.inner, state.evaluation)
    inner = replace(inner, residual=math.inf) if phi.problem.domain.shortens else inner
    return replace(state, step=state.step + 1, x=inner.x, evaluation=then, probe=probe, inner=inner), probe
