"""The units of a problem, so that a residual means the same whatever f, g and x are measured in.

Nothing here depends on the unit of f, of any g_i or of x: multiply one by a constant and every relative residual stays.
The exceptions are deliberate. A violation is never judged more loosely than by its absolute value, the gradient at
the reference point counts as at most 1, and an x of at most `ZERO` counts as 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gdpa.base.arrays import all_finite, every, from_numpy, machine_eps, namespace, peak, some, to_numpy, top, total
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.problem import Evaluation, Problem, unit_vectors
from gdpa.numerics.sparse.matrix import SparseMatrix, absolute, row_sizes

#: A value of g_i below this many roundings of its terms is indistinguishable from zero.
ROUNDINGS = 10.0
#: Coordinates may differ in length by this factor, a kilometer beside a millimeter. The second form of stationarity is
#: stricter than the first by no more, nor by more than the precision allows (`MIXED_ROUNDINGS` / eps).
MIXED = 1e6
MIXED_ROUNDINGS = 1e-4
#: If no coordinate is larger than this, x counts as 0: smaller lengths have to be stated as ``x_scale``.
ZERO = 2.0**-33
#: `nearby` moves every coordinate by at most this share of its length.
NEARBY = 0.1
#: Up to this many rows of J are worth a backward pass each, to find a length at x = 0.
FEW_ROWS = 30


@stored
class ReferencePoint(NamedTuple):
    """A point where the functions have a size, grad f and g there: a gradient that vanishes at a solution has no size.

    A certificate takes one near x (`nearby`), so it depends on the problem and on x alone. The residuals that the loop
    shows take the start of the run.
    """

    x: Array
    gradient: Array
    constraints: Array


@stored
class Units(NamedTuple):
    r"""The weights that make residuals at one point free of units.

    With the lengths :math:`L_j` of `lengths_of`, the largest of them L, the reference point :math:`x'`, and

    .. math::
        s &= \max(\lVert \nabla f(x) \rVert_\infty, \min(1, \lVert \nabla f(x') \rVert_\infty)) \\
        S &= \max\bigl(\max_j \lvert \partial_j f(x) \rvert L_j,
            \min(L, \max_j \lvert \partial_j f(x') \rvert L_j)\bigr) \\
        n_i &= \textstyle\sum_j \lvert \partial_j g_i(x) \rvert L_j

    s is the size of a gradient, S the same if :math:`x_j` is measured in :math:`L_j`, and :math:`n_i` the change of
    :math:`g_i` if x moves by its size. A coordinate near 0 has borrowed the length L of another one. It does not count
    in S unless the others leave S = 0, and as a coordinate of f its length is at most
    :math:`S / \lvert \partial_j f(x) \rvert`.

    Attributes:
        coordinates: :math:`w_j = \max(1/s, L_j/S)`, and at most `MIXED` / s.
        violations: :math:`c_i = 1 / \min(1, n_i)`, and 1 if :math:`n_i = 0`: a violation is never judged more loosely
            than absolute.
        slacks: :math:`a_i = 1 / \min(1, n_i b_i)`, and 1 if :math:`n_i = 0`: how far from active, with
            :math:`b_i = \min(1, (\lvert g_i(x') - g_i \rvert + \lvert g_i \rvert) / \lvert J_i (x' - x) \rvert)`, the
            share of its first-order change that :math:`g_i` makes on the way to :math:`x'`. A slope
            alone is not a unit: sin(1e6 x) - 2 changes by 1e6 to first order and never by more than 2.
        rounding: :math:`e_i = 10\, \mathrm{eps} \sum_j \lvert \partial_j g_i(x)\, x_j \rvert`: a smaller value of
            :math:`g_i` is indistinguishable from zero, because its terms have roundings of this size. A coordinate
            counts as at least sqrt(eps) of the largest one here.
        pushes: :math:`r_i = \max_j w_j \lvert \partial_j g_i \rvert`, so that :math:`r_i \lambda_i` is the share of
            constraint i in the stationarity.
    """

    coordinates: Array
    violations: Array
    slacks: Array
    rounding: Array
    pushes: Array


def reference_at(now: Evaluation, x: Array) -> ReferencePoint:
    """Return the reference point from the oracle call at ``x`` (one backward pass)."""
    return ReferencePoint(x, now.gradient(), now.constraints)


def loosest(x: Array, now: Evaluation) -> ReferencePoint:
    """Return a reference point whose units at ``x`` are as loose as any: its gradient and constraints are huge."""
    large = 1 / machine_eps(x) ** 2
    return ReferencePoint(x, 0 * x + large, 0 * now.constraints + large)


def nearby(problem: Problem, x: Array, now: Evaluation) -> ReferencePoint:
    """Return the reference point for a certificate of ``x``: a point of X within `NEARBY` of its lengths."""
    now.gradient()  # before another point is evaluated: SciPy's functions remember one
    lengths, shift, share = lengths_of(problem.x_scale, x, now), asymmetric_direction(x), NEARBY
    while share >= NEARBY / 1000:
        point = problem.domain.project(x + share * lengths * shift)
        reference = reference_at(problem.evaluate(point), point)
        if all_finite(reference.gradient, reference.constraints):
            return reference
        share /= 10
    return ReferencePoint(x, 0 * x, now.constraints)  # no point near x has sizes


def lengths_of(x_scale: Array | None, x: Array, now: Evaluation | None = None) -> Array:
    """Return L_j = |x_j|, or ``x_scale``.

    A coordinate of at most sqrt(eps) of the largest one gets the largest one. If all are at most `ZERO`, they get
    `length_at_zero` (1 in a batch, and without the oracle call ``now`` at x).

    >>> lengths_of(None, np.array([1.0, 1e-9, 5.0])).tolist()
    [1.0, 5.0, 5.0]
    """
    xp = namespace(x)
    if x_scale is not None:
        return from_numpy(to_numpy(x_scale), x) + xp.zeros_like(x)
    lengths = xp.abs(x)
    longest = peak(lengths)
    at_zero = 1.0
    if now is not None and isinstance(longest, float) and longest <= ZERO:
        at_zero = length_at_zero(now, x)
    longest = _unless_zero(longest, at_zero, ZERO)
    return _where(lengths > machine_eps(x) ** 0.5 * longest, lengths, longest)


def length_at_zero(now: Evaluation, x: Array) -> float:
    """Return the length of every coordinate at x = 0: the distance to the nearest constraint that is not active.

    A move of all coordinates by L changes g_i by L sum_j |dg_i/dx_j|. A distance of at most `ZERO` is rounding. If no
    other constraint has a slope, it is 1.
    """
    m = now.constraints.shape[-1]
    if m == 0 or not (now.has_cheap_jacobian or m <= FEW_ROWS):
        return 1.0
    g = np.abs(np.asarray(to_numpy(now.constraints), dtype=float))
    J = now.jacobian()
    slopes = np.asarray(to_numpy(weighted_sums(J, namespace(x).ones_like(x))), dtype=float)
    distances = g[slopes > 0] / slopes[slopes > 0]
    distances = distances[distances > ZERO]
    return float(distances.min()) if distances.size else 1.0


def asymmetric_direction(x: Array) -> Array:
    """Return a fixed vector without symmetry, components in [-1, 1]: the sines of squares."""
    n = np.arange(1, x.shape[-1] + 1, dtype=np.float64)
    return from_numpy(np.sin(n * n), x)


def _where(mask: Array, here: Array, there: Any) -> Array:
    """Return ``here`` if the mask is true and ``there`` elsewhere; on the host ``here`` itself if it always is."""
    if type(mask) is np.ndarray and every(mask):
        return here
    return namespace(mask).where(mask, here, there)


def _unless_zero(size: Any, other: Any, zero: float = 0.0) -> Any:
    """Return a size above ``zero`` as it is, else the other one; floats, or arrays for a batch."""
    if isinstance(size, float):
        return size if size > zero else other
    return namespace(size).where(size > zero, size, other + 0 * size)


def _size(here: Any, there: Any, cap: Any, other: Any) -> Any:
    """Return ``max(here, min(cap, there))``, or ``other`` if that is zero; floats, or arrays for a batch."""
    if isinstance(here, float):
        return _unless_zero(max(here, min(cap, there)), other)
    xp = namespace(here)
    return _unless_zero(xp.maximum(here, xp.minimum(cap + 0 * there, there)), other)


def _borrowed(lengths: Array, x: Array) -> Array | None:
    """Return which coordinates have the length of the largest one because they are nearly 0; None if none has."""
    sizes = namespace(x).abs(x)
    largest = peak(sizes)
    found = (sizes <= machine_eps(x) ** 0.5 * largest) & (lengths == largest)
    return found if some(found) else None


def units_at(lengths: Array, reference: ReferencePoint, x: Array, now: Evaluation, whole: bool = True) -> Units:
    """Return the units at ``x`` from the oracle call there: grad f and J (row by row unless ``whole``).

    >>> e = Evaluation(np.array(0.0), np.array([-5.0]), lambda w, objective=1.0: objective * np.array([4.0]) + 2 * w)
    >>> one = np.ones(1)
    >>> [u.tolist() for u in units_at(one, ReferencePoint(0 * one, one, -one), one, e)[:2]]
    [[0.25], [1.0]]
    """
    xp, eps = namespace(x), machine_eps(x)
    here, there = xp.abs(now.gradient()), xp.abs(reference.gradient)
    s = _size(peak(here), peak(there), 1.0, 1.0)
    longest, borrowed, reaches = peak(lengths), _borrowed(lengths, x), lengths
    S = _size(peak(here * lengths), peak(there * lengths), longest, longest)
    if borrowed is not None:
        own = xp.where(borrowed, 0 * lengths, lengths)
        S = _size(peak(here * own), peak(there * own), longest, S)
        reaches = xp.where(borrowed & (here * lengths > S), S / xp.where(here > 0, here, 0 * x + 1), lengths)
    weights = xp.maximum(1 / s, xp.minimum(reaches / S, min(MIXED, MIXED_ROUNDINGS / eps) / s))
    if now.constraints.shape[-1] == 0:
        empty = xp.zeros_like(now.constraints)
        return Units(weights, empty, empty, empty, empty)
    away, sizes = reference.x - x, _sizes(x)
    if whole:
        J = now.jacobian()
        if isinstance(J, SparseMatrix):
            slopes, pushes, J = J @ away, row_sizes(J * weights), absolute(J)
            changes, terms = J @ lengths, J @ sizes
        else:
            slopes = total(J * away[..., None, :])
            J = xp.abs(J)
            changes, terms = (total(J * vector[..., None, :]) for vector in (lengths, sizes))
            pushes = top(J * weights[..., None, :])
    else:
        rows = []
        for unit in unit_vectors(now.constraints):  # one row at a time: J does not fit
            row = now.pullback(unit, objective=0.0)
            size = xp.abs(row)
            rows.append((total(size * lengths), total(size * sizes), top(size * weights), total(row * away)))
        changes, terms, pushes, slopes = (xp.stack(column, axis=-1) for column in zip(*rows, strict=True))
    one = 1.0 if xp is np else xp.ones_like(changes)
    n = _where(changes > 0, changes, one)
    share = _linear_share(reference.constraints, now.constraints, slopes)
    violations, slacks = 1 / xp.minimum(n, one), 1 / xp.minimum(n * share, one)
    return Units(weights, violations, slacks, ROUNDINGS * eps * terms, pushes)


def weighted_sums(J: Array, weights: Array) -> Array:
    """Return ``sum_j |J_ij| w_j`` of every row of a dense or sparse matrix."""
    return absolute(J) @ weights if isinstance(J, SparseMatrix) else total(abs(J) * weights[..., None, :])


def roundings(x: Array, now: Evaluation) -> Array:
    """Return `Units.rounding` at ``x`` from the oracle call there, with J whole."""
    return ROUNDINGS * machine_eps(x) * weighted_sums(now.jacobian(), _sizes(x))


def _sizes(x: Array) -> Array:
    """Return |x_j|, at least sqrt(eps) of the largest."""
    xp = namespace(x)
    sizes = xp.abs(x)
    return xp.maximum(sizes, 0 * sizes + machine_eps(x) ** 0.5 * xp.max(sizes, axis=-1, keepdims=True))


def _linear_share(there: Array, here: Array, slopes: Array) -> Array:
    """Return the share of its first-order change ``slopes`` that g makes between two points, at most 1."""
    xp = namespace(here)
    slopes = xp.abs(slopes)
    moved = xp.maximum(xp.abs(there - here) + xp.abs(here), machine_eps(here) * slopes)
    return _where(slopes > moved, moved / _where(slopes > 0, slopes, 1 + 0 * slopes), 1 + 0 * slopes)
