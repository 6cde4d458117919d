"""The inner solvers of the double- and triple-loop methods, and the state and step of a method that has one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Protocol, Self, TypeVar

from gdpa.base.arrays import namespace, norm
from gdpa.base.checks import check_at_least, check_positive
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.problem import Evaluation, Problem
from gdpa.methods.base import Probe, State
from gdpa.methods.method import Method
from gdpa.methods.nested.subproblem import Subproblem, descend


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
    """Minimizes a `Subproblem`; ``step`` is one gradient step, ``max_steps`` the most it may take."""

    @property
    def max_steps(self) -> int:
        """The most steps a subproblem may take."""
        ...

    def start(self, x: Array) -> Iterate:
        """Return the record before the first step."""
        ...

    def step(self, phi: Subproblem, at: Iterate, evaluation: Evaluation | None) -> InnerStep:
        """Take one gradient step; ``evaluation`` is the oracle call at ``at.x`` if known."""
        ...


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

    def start(self, x: Array) -> Iterate:
        xp = namespace(x)
        return Iterate(x, x, xp.ones_like(x[..., 0]) * self.lipschitz)

    def step(self, phi: Subproblem, at: Iterate, evaluation: Evaluation | None) -> InnerStep:
        now = phi.problem.evaluate(at.v) if at.age or evaluation is None else evaluation
        slope = phi.slope(at.v, now)
        value = at.value if at.age else float(slope.value)
        new = descend(phi, at.v, slope, at.lipschitz)
        if at.age and not float(new.value) <= value:  # momentum overshot: back to x
            undone = replace(at, v=at.x, age=0, count=at.count + 1, lipschitz=new.lipschitz)
            return InnerStep(undone, evaluation, slope.probe)
        xp = namespace(at.x)
        moved, back = new.x - at.x, at.v - new.x
        uphill = bool(xp.sum(back * moved) > 0)
        theta = 0.0 if uphill else self._momentum(phi, at, float(new.lipschitz))
        iterate = Iterate(
            x=new.x,
            v=new.x + theta * moved if theta else new.x,
            lipschitz=new.lipschitz,
            count=at.count + 1,
            age=at.age + 1 if theta else 0,
            value=float(new.value),
            residual=2 * float(new.curvature) * float(norm(back)),
        )
        return InnerStep(iterate, new.evaluation, slope.probe)

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

    def start(self, x: Array) -> Iterate:
        xp = namespace(x)
        return Iterate(x, x, xp.ones_like(x[..., 0]) / self.alpha)

    def step(self, phi: Subproblem, at: Iterate, evaluation: Evaluation | None) -> InnerStep:
        now = phi.problem.evaluate(at.v) if at.age or evaluation is None else evaluation
        slope = phi.slope(at.v, now)
        x = phi.problem.domain.project(at.v - self.alpha * slope.gradient)
        residual = 2 / self.alpha * float(norm(at.v - x))
        v = x + self.momentum * (x - at.x)
        iterate = replace(at, x=x, v=v, count=at.count + 1, age=at.age + 1, residual=residual)
        return InnerStep(iterate, None, slope.probe)


@dataclass(frozen=True)
class Form:
    """The form in which a method sees its problem: here as given, so every way there and back is the identity."""

    problem: Problem

    def start(self, x0: Array, evaluation: Evaluation) -> Array:
        return x0

    def point(self, z: Array) -> Array:
        return z

    def keep(self, evaluation: Evaluation | None) -> Evaluation | None:
        return evaluation

    def probe(self, probe: Probe) -> Probe | None:
        return probe


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


class NestedMethod(Method):
    """A method whose loops branch on the data, and so takes one problem at a time."""

    batches: ClassVar[bool] = False


N = TypeVar("N", bound=NestedState)


def inner_step(solver: InnerSolver, phi: Subproblem, state: N, form: Form | None = None) -> tuple[N, Evaluation | None]:
    """Return the state after one gradient step of the inner solver on ``phi``, and the oracle call at its new x.

    The oracle call is one of ``phi.problem`` (with slacks if ``form`` has them), None if the solver made none.
    A step that was cut short gives no residual of the subproblem.
    """
    form = Form(phi.problem) if form is None else form
    taken = solver.step(phi, state.inner, form.keep(state.evaluation))
    iterate = replace(taken.iterate, residual=math.inf) if phi.problem.domain.shortens else taken.iterate
    after = replace(
        state,
        step=state.step + 1,
        x=form.point(iterate.x),
        evaluation=form.keep(taken.evaluation),
        probe=form.probe(taken.probe),
        inner=iterate,
    )
    return after, taken.evaluation
