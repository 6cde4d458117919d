"""What AdaptiveGDPA carries from one trial point to the next: the state, and the three phases as a tagged union."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from gdpa.base.arrays import machine_eps, top
from gdpa.base.sets import Box, ConvexSet, Reals
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.certificate import violation
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.methods.adaptive.merit import Correction, Merit, Reference, Trial
from gdpa.methods.adaptive.units import Scaling
from gdpa.methods.base import State
from gdpa.numerics.lbfgs import LBFGS


@stored
class QuasiNewton(NamedTuple):
    """Phase 1: quasi-Newton steps on F_beta, with rare multiplier updates (an inexact augmented Lagrangian).

    Attributes:
        complementarity: max |max(g, -lambda/beta)| at the last multiplier update.
    """

    complementarity: float = math.inf


@stored
class SQP(NamedTuple):
    """Phase 2: stabilized SQP. The linearization at x: grad f', J', and the multipliers l of the model's step."""

    gradient: Array
    jacobian: Array
    multipliers: Array


@stored
class Descending(NamedTuple):
    """Restoration goes down."""


@stored
class AfterSlope(NamedTuple):
    """Restoration took a step as long as x down the slope that is left.

    Attributes:
        violation: the violation before.
        points: accepted points since.
    """

    violation: float
    points: int = 0


@stored
class AfterShove(NamedTuple):
    """Restoration moved x in a fixed direction without symmetry; attributes as in `AfterSlope`."""

    violation: float
    points: int = 0


@stored
class Restoration(NamedTuple):
    """Phase 3: quasi-Newton steps on ||[g]_+||^2 / 2 (feasibility restoration).

    Attributes:
        violation: the violation at the entry.
        stage: what the phase is doing.
    """

    violation: float
    stage: Descending | AfterSlope | AfterShove = Descending()


@stored
class Monitor(NamedTuple):
    """Watches whether the violation falls.

    Attributes:
        violation: what it was when the monitor was last reset.
        points: accepted points since, weighted.
        restorations: how often it was restored.
    """

    violation: float = math.inf
    points: int = 0
    restorations: int = 0

    def reset(self, violation: float = math.inf) -> Monitor:
        """Return the monitor with its count at zero."""
        return Monitor(violation, 0, self.restorations)

    def patience(self, first: int) -> int:
        """Return how many points may pass without progress: ``first``, doubled by every restoration."""
        return first << self.restorations


@stored
@dataclass(frozen=True, kw_only=True)
class AdaptiveState(State):
    """The state of `AdaptiveGDPA`; its own fields are those of the scaled problem.

    Attributes:
        scaling: the units of f and g.
        lagrangian: F_beta with its lambda, beta and tau.
        curvature: the quasi-Newton matrix of the phase.
        reference: values of the last accepted points.
        gradient: the gradient of the phase's merit at x.
        trial: the next trial point.
        monitor: whether the violation falls.
        phase: which phase it is, with what it alone needs.
        phase_since: ``step`` when the quasi-Newton or SQP phase began.
        unmoved_points: accepted points in a row that did not move.
        lengths: D of the change of variables x = D z, in which all fields but x and the multipliers are; None for the
            identity.
    """

    scaling: Scaling
    lagrangian: AugmentedLagrangian
    curvature: LBFGS
    reference: Reference
    gradient: Array
    trial: Trial | Correction
    monitor: Monitor
    phase: QuasiNewton | SQP | Restoration
    phase_since: int = 0
    unmoved_points: int = 0
    lengths: Array | None = None

    @property
    def constraints(self) -> Array:
        """The scaled g at x."""
        return self.reference.constraints[-1]

    @property
    def violation(self) -> float:
        """The largest violation of a scaled constraint at x."""
        return largest_violation(self.constraints, self.lagrangian.num_equalities)

    @property
    def merit(self) -> Merit:
        """What the phase minimizes."""
        if isinstance(self.phase, Restoration):
            return Merit(0.0, AugmentedLagrangian(0 * self.constraints, 1.0, 0.0, self.lagrangian.num_equalities))
        return Merit(1.0, self.lagrangian)

    def replaced(self, **changes: Any) -> AdaptiveState:
        """Return the state with other values of some fields: `dataclasses.replace` without its check of each field."""
        state = object.__new__(AdaptiveState)
        vars(state).update(vars(self), **changes)
        return state

    def in_units(self, a: float, b: Array) -> AdaptiveState:
        """Return the state with the units of f and g multiplied by a and b; x and the user's multipliers stay.

        With f' <- a f' and g' <- b g': lambda' <- a lambda' / b, and B <- a B. F_beta weighs its parts anew.
        """
        scaling, lagrangian, curvature, reference = self.scaling, self.lagrangian, self.curvature, self.reference
        return self.replaced(
            scaling=Scaling(a * scaling.objective, b * scaling.constraints),
            lagrangian=lagrangian._replace(multipliers=a * lagrangian.multipliers / b),
            curvature=curvature.rescaled(a),
            reference=Reference(a * reference.objectives, b * reference.constraints),
            monitor=self.monitor.reset(),
        )


def largest_violation(constraints: Array, num_equalities: int) -> float:
    """Return ``max [g]_+`` (absolute values for equalities).

    >>> import numpy as np
    >>> largest_violation(np.array([-1.0, -2.0]), num_equalities=1)
    2.0
    """
    if num_equalities == 0:
        return max(float(top(constraints)), 0.0)  # the same in one operation
    return float(top(violation(constraints, num_equalities)))


def step_bounds(domain: ConvexSet, x: Array) -> tuple[Array, Array] | None:
    """Return how far each coordinate may move down and up inside a box; None for other sets.

    >>> import numpy as np
    >>> [v.tolist() for v in step_bounds(Box(0.0, 3.0), np.ones(1))]
    [[-1.0], [2.0]]
    """
    if isinstance(domain, Reals) or not isinstance(domain, Box):  # in this order: the sets are abstract base classes
        return None
    lower, upper = domain.bounds(x)
    return lower - x, upper - x


def sqrt_eps(x: Array) -> float:
    """Return the square root of the precision of ``x``: a violation below it is negligible.

    >>> import numpy as np
    >>> sqrt_eps(np.zeros(1)) == 2.0**-26
    True
    """
    return math.sqrt(machine_eps(x))
