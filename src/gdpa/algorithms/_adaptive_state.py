"""What AdaptiveGDPA carries from one trial point to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from gdpa.algorithms._acceptance import Merit, Window
from gdpa.algorithms._lbfgs import Memory, forgotten
from gdpa.algorithms._scaling import Scaling, scaling_from
from gdpa.algorithms.base import State
from gdpa.arrays import max_norm, namespace, positive_part
from gdpa.problem import Evaluation, Problem
from gdpa.sets import Box, ConvexSet
from gdpa.typing import Array


class Trial(NamedTuple):
    """The next trial point, x + t p, and what it promises.

    Attributes:
        direction: p, with x + p in X.
        slope: p' grad_x F_beta, negative.
        length: t.
        correction: the step that replaces t p in the next trial, corrected for the curvature of the constraints.
        forced: accept the trial whatever its merit, and forget the points before it.
    """

    direction: Array
    slope: float
    length: float = 1.0
    correction: Array | None = None
    forced: bool = False

    def point(self, x: Array) -> Array:
        """Return the trial point."""
        return x + (self.length * self.direction if self.correction is None else self.correction)


class Knowledge(NamedTuple):
    """What the step that knows the Jacobian keeps of the point x: grad f', J', and the model's multipliers l."""

    gradient: Array
    rows: Array
    multipliers: Array


class Watch(NamedTuple):
    """How the violation goes: what it was some multiplier updates ago, how many, and after how many it is due."""

    violation: float = math.inf
    waited: int = 0
    patience: int = 20


class Restoration(NamedTuple):
    """What waits while the violation alone is minimised: the problem's own scaling and merit, and the entry."""

    scaling: Scaling
    merit: Merit
    violation: float
    steps: int = 0
    probes: int = 0
    probed: float = math.inf
    until: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveState(State):
    """The state of `AdaptiveGDPA`; its own fields are those of the scaled problem.

    Attributes:
        scaling: the units.
        merit: lambda, beta and tau, which make F_beta.
        memory: the pairs of the quasi-Newton matrix.
        window: values of the last accepted points.
        gradient: grad_x F_beta at x.
        trial: the next trial point.
        knowledge: what the step with the Jacobian keeps; None in the one-pullback step.
        measure: max |max(g, -lambda/beta)| at the last multiplier update.
        since: accepted points since then.
        still: accepted points in a row that did not move.
        watch: how the violation goes.
        restoration: what waits while the violation alone is minimised; None otherwise.
        lengths: D of the change of variables x = D z in which all other fields but x and the multipliers are; None: 1.
        changed: ``step`` when the one of the two steps that is in use was taken up.
    """

    scaling: Scaling
    merit: Merit
    memory: Memory
    window: Window
    gradient: Array
    trial: Trial
    knowledge: Knowledge | None
    measure: float
    since: int
    still: int
    watch: Watch
    restoration: Restoration | None
    changed: int = 0
    lengths: Array | None = None

    @property
    def violation(self) -> float:
        """The largest violation of a (scaled) constraint at x."""
        return largest_violation(self.window.constraints[-1], self.merit.num_equalities)


def begin(
    problem: Problem, x0: Array, now: Evaluation, J: Array | None, beta: float, tau: float, knows: bool
) -> tuple[AdaptiveState, Array, Array | None]:
    """Return the state at the start without a trial, and the scaled grad f and J (None where J was not formed)."""
    zero = namespace(now.constraints).zeros_like(now.constraints)
    c = now.gradient()
    scaling = scaling_from((now.objective, now.constraints), c, J, enlarge=not knows)
    f, g = scaling.values(now)
    merit = Merit(zero, float(beta), float(tau), problem.num_equalities)
    c = scaling.objective * c
    if J is None:
        gradient = scaling.pullback(now, merit.weights(g))
    else:
        J = J * scaling.constraints[:, None]
        gradient = c + merit.weights(g) @ J
    state = AdaptiveState(
        step=0,
        x=x0,
        multipliers=zero,
        evaluation=now,
        probe=None,
        scaling=scaling,
        merit=merit,
        memory=forgotten(gradient),
        window=Window(f[None], g[None, :]),
        gradient=gradient,
        trial=Trial(-gradient, 0.0),
        knowledge=None,
        measure=math.inf,
        since=0,
        still=0,
        watch=Watch(),
        restoration=None,
    )
    return state, c, J


def largest_violation(constraints: Array, num_equalities: int) -> float:
    """Return ``max [g]_+`` (absolute values for equalities).

    >>> import numpy as np
    >>> largest_violation(np.array([-1.0, -2.0]), num_equalities=1)
    2.0
    """
    return float(max_norm(positive_part(constraints, num_equalities)))


def room(domain: ConvexSet, x: Array) -> tuple[Array, Array] | None:
    """Return how far each coordinate may move down and up inside a box; None for other sets.

    >>> import numpy as np
    >>> [v.tolist() for v in room(Box(0.0, 3.0), np.ones(1))]
    [[-1.0], [2.0]]
    """
    if not isinstance(domain, Box):
        return None
    lower, upper = domain.bounds(x)
    return lower - x, upper - x


def negligible(x: Array) -> float:
    """Return the square root of the precision of ``x``: violations below it are rounding."""
    return math.sqrt(namespace(x).finfo(x.dtype).eps)
