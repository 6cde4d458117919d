"""Nonmonotone acceptance of trial points, by values that stay exact while the multipliers change."""

from __future__ import annotations

from typing import NamedTuple

from gdpa.arrays import namespace
from gdpa.perturbed import augmented_lagrangian
from gdpa.typing import Array

#: Share of the decrease the slope promises that a trial must deliver (Armijo's constant).
SUFFICIENT = 1e-4
#: How many accepted points the reference value looks back on.
WINDOW = 8


class Merit(NamedTuple):
    """F_beta(., lambda) as a function of values: the multipliers, penalty and perturbation in force."""

    multipliers: Array
    beta: float
    tau: float
    num_equalities: int

    def __call__(self, objective: Array, constraints: Array) -> Array:
        """Return F_beta from f and g (leading axes: several points at once)."""
        return augmented_lagrangian(objective, constraints, self.multipliers, self.beta, self.tau, self.num_equalities)


class Window(NamedTuple):
    """Values (f, g) of the last accepted points, newest last.

    F_beta(x_j, lambda) needs nothing else of x_j, so after any change of lambda or beta the reference value is
    recomputed exactly and without an evaluation.
    """

    objectives: Array
    constraints: Array

    def push(self, objective: Array, constraints: Array) -> Window:
        xp = namespace(constraints)
        return Window(
            xp.concat([self.objectives, objective[None]])[-WINDOW:],
            xp.concat([self.constraints, constraints[None]])[-WINDOW:],
        )

    def newest(self) -> Window:
        """Return the window of the newest point alone: acceptance is monotone again from there."""
        return Window(self.objectives[-1:], self.constraints[-1:])


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
    return min(max(best, 0.1 * length), 0.5 * length) if best == best else 0.1 * length
