"""Nonmonotone acceptance of trial points, by values that stay exact while the multipliers change."""

from __future__ import annotations

import math
from typing import NamedTuple

from gdpa.arrays import max_norm, namespace, positive_part
from gdpa.perturbed import augmented_lagrangian, weights
from gdpa.typing import Array

#: Share of the decrease the slope promises that a trial must deliver (Armijo's constant).
SUFFICIENT = 1e-4
#: How many accepted points the reference value looks back on.
WINDOW = 8


class Merit(NamedTuple):
    """F_beta(., lambda) as a function of the values f and g, see `gdpa.perturbed`."""

    multipliers: Array
    beta: float
    tau: float
    num_equalities: int

    def __call__(self, objective: Array, constraints: Array) -> Array:
        """Return F_beta (leading axes: several points at once)."""
        return augmented_lagrangian(objective, constraints, self.multipliers, self.beta, self.tau, self.num_equalities)

    def weights(self, constraints: Array) -> Array:
        """Return the weights w of J^T in grad_x F_beta."""
        return weights(self.multipliers, constraints, self.beta, self.tau, self.num_equalities)

    def shifted(self, constraints: Array) -> Array:
        """Return ``g + (1 - tau) lambda / beta``, of which the weights are beta times the positive part."""
        return constraints + (1 - self.tau) * self.multipliers / self.beta

    def residual(self, constraints: Array) -> float:
        """Return ``max |max(g, -lambda/beta)|`` (g itself for equalities): violation and slackness in one number.

        It is measured without tau: where (1 - tau) lambda + beta g = lambda, g is still off by tau lambda / beta.
        """
        shift = self.multipliers / self.beta
        return float(max_norm(positive_part(constraints + shift, self.num_equalities) - shift))


class Window(NamedTuple):
    """Values (f, g) of the last accepted points, newest last.

    F_beta(x_j, lambda) needs nothing else of x_j, so after any change of lambda or beta the reference value is
    recomputed exactly and without an evaluation.
    """

    objectives: Array
    constraints: Array

    def push(self, objective: Array, constraints: Array) -> Window:
        """Return the window with one more point, the oldest dropped where it is full."""
        xp = namespace(constraints)
        return Window(
            xp.concat([self.objectives, objective[None]])[-WINDOW:],
            xp.concat([self.constraints, constraints[None]])[-WINDOW:],
        )

    def values(self, merit: Merit) -> tuple[float, float]:
        """Return F_beta at the newest point, and the largest over the window."""
        values = merit(self.objectives, self.constraints)
        return float(values[-1]), float(namespace(values).max(values))


def sufficient(value: float, current: float, reference: float, promised: float, noise: float) -> bool:
    """Tell whether a trial of merit ``value`` is accepted; one that is not finite never is.

    ``value <= reference + 1e-4 promised``, where promised = t slope < 0, up to the rounding ``noise`` of the values.

    >>> sufficient(1.0, current=0.5, reference=1.1, promised=-1.0, noise=0.0)
    True
    >>> sufficient(float("inf"), current=0.5, reference=1.1, promised=-1.0, noise=1e-15)
    False
    """
    size = noise * max(abs(current), abs(value))
    return math.isfinite(value) and value <= reference + SUFFICIENT * promised + size


def shorten(length: float, slope: float, rise: float) -> float:
    """Return the next trial length by quadratic interpolation, between a tenth and a half of this one.

    Args:
        length: the rejected t.
        slope: the derivative of F along the direction (negative).
        rise: F(x + t p) - F(x); not finite where the trial was not.

    >>> shorten(1.0, slope=-1.0, rise=1.0), shorten(1.0, slope=-1.0, rise=float("nan"))
    (0.25, 0.1)
    """
    curvature = 2 * (rise - length * slope)
    best = -slope * length * length / curvature if curvature > 0 else 0.0
    return min(max(best, 0.1 * length), 0.5 * length)
