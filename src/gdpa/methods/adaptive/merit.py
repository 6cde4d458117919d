"""The merit function, trial points, and their nonmonotone acceptance, exact under changing multipliers."""

from __future__ import annotations

import math
from typing import NamedTuple

from gdpa.base.arrays import namespace, top
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.methods.adaptive.rules import Rules


class Merit(NamedTuple):
    """The function that a phase minimizes: ``weight * f`` with the penalty terms of an augmented Lagrangian.

    F_beta itself has weight 1. Restoration has weight 0, lambda = 0 and beta = 1, which is ||[g]_+||^2 / 2.
    """

    weight: float
    lagrangian: AugmentedLagrangian

    def value(self, objective: Array, constraints: Array) -> Array:
        """Return the merit from scaled values (leading axes: several points at once)."""
        return self.lagrangian.value(objective if self.weight == 1.0 else self.weight * objective, constraints)


@stored
class Trial(NamedTuple):
    """The next trial point, x + t p.

    Attributes:
        direction: p, with x + p in X.
        slope: the derivative of the merit along p, negative.
        length: t.
        forced: accept the trial whatever its merit, and forget the points before it.
        correction: a step taken in place of a refused p (second-order correction).
    """

    direction: Array
    slope: float
    length: float = 1.0
    forced: bool = False
    correction: Array | None = None

    def point(self, x: Array) -> Array:
        """Return the trial point."""
        if self.correction is not None:
            return x + self.correction
        return x + (self.direction if self.length == 1.0 else self.length * self.direction)

    def rescaled(self, factor: float) -> Trial:
        """Return the trial in coordinates that are ``factor`` times as large."""
        correction = None if self.correction is None else factor * self.correction
        return self._replace(direction=factor * self.direction, correction=correction)


@stored
class Reference(NamedTuple):
    """The scaled values (f, g) of the last accepted points, newest last.

    F_beta(x_j, lambda) depends on x_j through these values alone, so after any change of lambda or beta the reference
    is recomputed exactly and without an evaluation.

    References:
        L. Grippo, F. Lampariello and S. Lucidi, "A nonmonotone line search technique for Newton's method", SIAM J.
        Numerical Analysis 23 (1986).
    """

    objectives: Array
    constraints: Array

    def push(self, objective: Array, constraints: Array) -> Reference:
        """Return the record with one more point."""
        xp = namespace(constraints)
        return Reference(
            xp.concat([self.objectives, objective[None]]), xp.concat([self.constraints, constraints[None]])
        )

    def newest(self, points: int = 1) -> Reference:
        """Return the record of the newest points alone."""
        return Reference(self.objectives[-points:], self.constraints[-points:])

    def values(self, merit: Merit) -> tuple[float, float, float]:
        """Return the merit at the newest point, at the one before, and the largest over all but the newest."""
        values = merit.value(self.objectives, self.constraints)
        return float(values[-1]), float(values[-2]), float(top(values[:-1]))


def sufficient(value: float, current: float, reference: float, promised: float, rounding: float, rules: Rules) -> bool:
    """Return whether a trial of merit ``value`` is accepted; a value that is not finite never is.

    The test is ``value <= reference + c promised`` up to the rounding of the values.

    Args:
        value: the merit at the trial point.
        current: the merit at x.
        reference: the largest merit of the last points.
        promised: t times the slope along the direction, negative.
        rounding: the relative rounding of the values.
        rules: for c.

    >>> sufficient(1.0, current=0.5, reference=1.1, promised=-1.0, rounding=0.0, rules=Rules())
    True
    >>> sufficient(float("inf"), current=0.5, reference=1.1, promised=-1.0, rounding=1e-15, rules=Rules())
    False
    """
    size = rounding * max(abs(current), abs(value))
    return math.isfinite(value) and value <= reference + rules.sufficient_decrease * promised + size


def shorten(length: float, slope: float, rise: float, rules: Rules) -> float:
    """Return the next step length: the minimizer of a parabola, between a tenth and a half of this one.

    Args:
        length: the refused t.
        slope: the derivative of the merit along the direction (negative).
        rise: the increase of the merit from x to x + t p; may be not finite.
        rules: for the two bounds.

    >>> shorten(1.0, slope=-1.0, rise=1.0, rules=Rules()), shorten(1.0, slope=-1.0, rise=math.nan, rules=Rules())
    (0.25, 0.1)
    """
    curvature = 2 * (rise - length * slope)
    best = -slope * length * length / curvature if curvature > 0 else 0.0
    return min(max(best, rules.shortest_cut * length), rules.longest_cut * length)
