"""A primal-dual interior-point method for the convex model of `gdpa.numerics.sparse.model`.

The optimality conditions, with l the multipliers of the rows and s their slacks, z and w multipliers of the bounds::

    c + B p + J'l - z + w = 0,   r + J p - l / beta + s = 0  (s = 0 for equalities),
    l s = 0,   z (p - lower) = 0,   w (upper - p) = 0,   l, s, z, w >= 0  (l free for equalities)

Every iteration factors one matrix of the same pattern and solves with it twice (Mehrotra's predictor and corrector).

References:
    S. Mehrotra, "On the implementation of a primal-dual interior point method", SIAM J. Optimization 2 (1992).
    J. Nocedal and S. J. Wright, "Numerical Optimization" (2006), chapter 16.6.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from gdpa.base.arrays import max_norm
from gdpa.base.typing import Vector
from gdpa.numerics.sparse.factor import Solve
from gdpa.numerics.sparse.program import SparseModel

#: Iterations at most; a convex model takes 10 to 30.
ITERATIONS = 60
#: The iteration ends when residuals are this small a share of the numbers they are made of ...
ACCURACY = 1e-10
#: ... and products of multipliers and distances this small a share of the gradient.
PRODUCTS = 1e-14
#: A step leaves this share of the distance to the boundary.
KEPT = 0.005
#: The first point is this far inside the bounds, or this share of their distance; the first multipliers are MARGIN
#: of the size of the gradient, the first slacks MARGIN.
MARGIN, SHARE = 0.1, 0.25
#: A gradient counts as at least this large when the first multipliers are chosen.
LEAST_GRADIENT = 1e-2


class Interior(NamedTuple):
    """A point, the multipliers and slacks of the rows, and the multipliers of the bounds; or a step of all of them."""

    p: Vector
    multipliers: Vector
    slacks: Vector
    lower_multipliers: Vector
    upper_multipliers: Vector

    def moved(self, t: float, step: Interior) -> Interior:
        """Return the point a share t of the step away."""
        return Interior(*(v + t * dv for v, dv in zip(self, step, strict=True)))


class _Sides(NamedTuple):
    """Which rows are inequalities, which coordinates have a lower and an upper bound and room, and the sum of these."""

    rows: Vector
    lower: Vector
    upper: Vector
    free: Vector
    total: int


def interior_point(model: SparseModel) -> Interior | None:
    """Return the minimizer of a convex model to about `ACCURACY`; None if a matrix could not be factored."""
    free = model.upper > model.lower
    masks = (~model.is_equality, free & np.isfinite(model.lower), free & np.isfinite(model.upper))
    sides = _Sides(*masks, free, total=int(sum(mask.sum() for mask in masks)))
    now = _first(model, sides)
    every = np.ones(len(model.r), dtype=bool)
    for i in range(ITERATIONS):
        p, lam, s, z, w = now
        below, above = _distances(model, sides, p)
        curved, pushed, inside = model.B.product(p), lam @ model.J, lam / model.beta - s
        dual = np.where(free, model.c + curved + pushed - z + w, 0.0)
        primal = model.r + model.J @ p - inside
        mu = _gap(now, sides, below, above)
        size = _largest(model.c) + _largest(curved) + _largest(pushed)
        feasible = _largest(primal) <= ACCURACY * (_largest(model.r) + _largest(inside))
        if feasible and _largest(dual) <= ACCURACY * size and mu <= PRODUCTS * size:
            break
        divisor = np.where(sides.rows, lam, 1.0)
        solve = model.factored(z / below + w / above, 1 / model.beta + s / divisor, free, every)
        if solve is None:
            return now if i else None
        newton = partial(_newton, solve, now, sides, below, above, dual, primal)
        products = (-lam * s * sides.rows, -z * below, -w * above)
        step = newton(*products)
        if not all(np.isfinite(v).all() for v in step):
            return now if i else None
        t = _longest(now, step, sides, below, above)
        if sides.total:
            predicted = now.moved(t, step)
            after = _gap(predicted, sides, *_distances(model, sides, predicted.p))
            target = mu * min(max(after / mu, 0.0), 1.0) ** 3
            _, dl, ds, dz, dw = step
            step = newton(
                sides.rows * (products[0] + target - dl * ds),
                sides.lower * (products[1] + target - dz * step.p),
                sides.upper * (products[2] + target + dw * step.p),
            )
            t = min(1.0, (1 - KEPT) * _longest(now, step, sides, below, above, most=2.0))
        now = now.moved(t, step)
    return now._replace(multipliers=np.where(sides.rows, np.maximum(now.multipliers, 0.0), now.multipliers))


def _first(model: SparseModel, sides: _Sides) -> Interior:
    """Return the first point: near zero and inside the bounds, with positive multipliers and slacks."""
    lower, upper = model.lower, model.upper
    width = np.where(sides.lower & sides.upper, upper - lower, np.inf)
    margin = np.minimum(SHARE * width, MARGIN)
    low = np.where(sides.lower, lower + margin, -np.inf)
    high = np.where(sides.upper, upper - margin, np.inf)
    p = np.where(sides.free, np.clip(0.0, low, high), np.clip(0.0, lower, upper))
    size = MARGIN * max(LEAST_GRADIENT, _largest(model.c))
    multipliers = np.where(sides.rows, np.maximum(model.beta * model.r, 0.0) + size, 0.0)
    slacks = np.where(sides.rows, np.maximum(multipliers / model.beta - model.r - model.J @ p, MARGIN), 0.0)
    return Interior(p, multipliers, slacks, size * sides.lower, size * sides.upper)


def _distances(model: SparseModel, sides: _Sides, p: Vector) -> tuple[Vector, Vector]:
    """Return the distances to the bounds; 1 if there is none."""
    return np.where(sides.lower, p - model.lower, 1.0), np.where(sides.upper, model.upper - p, 1.0)


def _gap(now: Interior, sides: _Sides, below: Vector, above: Vector) -> float:
    """Return the mean of the products that are to vanish."""
    _, lam, s, z, w = now
    return float((lam * sides.rows) @ s + z @ below + w @ above) / max(sides.total, 1)


def _newton(
    solve: Solve, now: Interior, sides: _Sides, below: Vector, above: Vector, dual: Vector, primal: Vector,
    rows: Vector, lower: Vector, upper: Vector,
) -> Interior:  # fmt: skip
    """Return the Newton step that removes the residuals and changes the products by rows, lower and upper."""
    _, lam, s, z, w = now
    d, divisor = len(dual), np.where(sides.rows, lam, 1.0)
    right = np.where(sides.free, -dual + lower / below - upper / above, 0.0)
    solution = solve(np.concatenate([right, -primal - rows / divisor]))
    dp, dl = solution[:d], solution[d:]
    ds, dz, dw = (rows - s * dl) / divisor, (lower - z * dp) / below, (upper + w * dp) / above
    sided = ((sides.rows, ds), (sides.lower, dz), (sides.upper, dw))
    return Interior(dp, dl, *(np.where(mask, change, 0.0) for mask, change in sided))


def _longest(now: Interior, step: Interior, sides: _Sides, below: Vector, above: Vector, most: float = 1.0) -> float:
    """Return the longest step, at most ``most``, that keeps multipliers, slacks and distances nonnegative."""
    _, lam, s, z, w = now
    dp, dl, ds, dz, dw = step
    pairs = ((lam, dl * sides.rows), (s, ds), (z, dz), (w, dw), (below, dp * sides.lower), (above, -dp * sides.upper))
    for v, dv in pairs:
        shrinking = dv < 0
        most = min(most, float(np.min(v[shrinking] / -dv[shrinking], initial=np.inf)))
    return most


def _largest(v: Vector) -> float:
    return float(max_norm(v))
