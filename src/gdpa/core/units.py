"""The units of a problem, so that a residual means the same whatever f, g and x are measured in.

Nothing here depends on the unit of f, of any g_i or of x: multiply one by a constant and every relative residual stays.
The exceptions are deliberate. A violation is never judged more loosely than by its absolute value, the gradient at
the reference point counts as at most 1, and an x of at most `ZERO` counts as 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from gdpa.base.arrays import (
    LONG_ROW,
    all_finite,
    column_pieces,
    every,
    from_numpy,
    machine_eps,
    namespace,
    peaks,
    row_sizes,
    row_sums,
    some,
    to_float64,
    to_numpy,
)
from gdpa.base.stored import stored
from gdpa.base.typing import Array, Operand
from gdpa.core.problem import Evaluation, Problem, unit_vectors

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


def reference_at(now: Evaluation, x: Operand) -> ReferencePoint:
    """Return the reference point from the oracle call at ``x`` (one backward pass)."""
    return ReferencePoint(x, now.gradient(), now.constraints)


def loosest(x: Operand, now: Evaluation) -> ReferencePoint:
    """Return a reference point whose units at ``x`` are as loose as any: its gradient and constraints are huge."""
    large = 1 / machine_eps(x) ** 2
    return ReferencePoint(x, 0 * x + large, 0 * now.constraints + large)


def nearby(problem: Problem, x: Operand, now: Evaluation, lengths: Operand) -> ReferencePoint:
    """Return the reference point for a certificate of ``x``: a point of X within `NEARBY` of its ``lengths``."""
    now.gradient()  # before another point is evaluated: SciPy's functions remember one
    shift, share = asymmetric_direction(x), NEARBY
    while share >= NEARBY / 1000:
        point = problem.domain.project(x + share * lengths * shift)
        reference = reference_at(problem.evaluate(point), point)
        if all_finite(reference.gradient, reference.constraints):
            return reference
        share /= 10
    return ReferencePoint(x, 0 * x, now.constraints)  # no point near x has sizes


def lengths_of(x_scale: Operand | None, x: Operand, now: Evaluation | None = None) -> Array:
    """Return L_j = |x_j|, or ``x_scale``.

    A coordinate of at most sqrt(eps) of the largest one gets the largest one. If all are at most `ZERO`, they get
    `length_at_zero` (1 in a batch, and without the oracle call ``now`` at x).

    >>> lengths_of(None, np.array([1.0, 1e-9, 5.0])).tolist()
    [1.0, 5.0, 5.0]
    """
    xp = namespace(x)
    if x_scale is not None:
        return from_numpy(to_numpy(x_scale), x) + xp.zeros_like(x)
    lengths = abs(x)
    (longest,) = peaks(lengths)
    if not isinstance(longest, float):
        longest = xp.where(longest > ZERO, longest, 1.0)
    elif not longest > ZERO:
        longest = 1.0 if now is None or longest != longest else length_at_zero(now, x)
    own = lengths > machine_eps(x) ** 0.5 * longest
    return lengths if xp is np and every(own) else xp.where(own, lengths, longest)


def length_at_zero(now: Evaluation, x: Operand) -> float:
    """Return the length of every coordinate at x = 0: the distance to the nearest constraint that is not active.

    A move of all coordinates by L changes g_i by L sum_j |dg_i/dx_j|. A distance of at most `ZERO` is rounding. If no
    other constraint has a slope, it is 1.
    """
    m = now.constraints.shape[-1]
    if m == 0 or not (now.has_cheap_jacobian or m <= FEW_ROWS):
        return 1.0
    g, slopes = map(to_float64, (abs(now.constraints), row_sums(abs(now.jacobian()), namespace(x).ones_like(x))))
    distances = g[slopes > 0] / slopes[slopes > 0]
    distances = distances[distances > ZERO]
    return float(distances.min()) if distances.size else 1.0


def asymmetric_direction(x: Operand) -> Array:
    """Return a fixed vector without symmetry, components in [-1, 1]: the sines of squares."""
    if array_api_compat.is_torch_array(x) and (x.is_cuda or x.shape[-1] > LONG_ROW):  # NumPy takes four times as long
        n = namespace(x).arange(1, x.shape[-1] + 1, dtype=namespace(x).float64, device=x.device)
        return namespace(x).sin(n * n).to(x.dtype)
    n = np.arange(1, x.shape[-1] + 1, dtype=np.float64)
    return from_numpy(np.sin(n * n), x)


def _size(here: Any, there: Any, cap: Any, other: Any) -> Any:
    """Return ``max(here, min(cap, there))``, or ``other`` if that is zero; floats, or arrays for a batch."""
    if isinstance(here, float):
        size = max(here, min(cap, there))
        return size if size > 0 else other
    xp = namespace(here)
    size = xp.maximum(here, xp.minimum(cap + 0 * there, there))
    return xp.where(size > 0, size, other)


def units_at(lengths: Operand, reference: ReferencePoint, x: Operand, now: Evaluation, whole: bool = True) -> Units:
    """Return the units at ``x`` from the oracle call there: grad f and J (row by row unless ``whole``).

    >>> e = Evaluation(np.array(0.0), np.array([-5.0]), lambda w, objective=1.0: objective * np.array([4.0]) + 2 * w)
    >>> one = np.ones(1)
    >>> [u.tolist() for u in units_at(one, ReferencePoint(0 * one, one, -one), one, e)[:2]]
    [[0.25], [1.0]]
    """
    xp, eps, g = namespace(x), machine_eps(x), now.constraints
    here, there, sizes = abs(now.gradient()), abs(reference.gradient), abs(x)
    longest, size, slope, near, rise, rise_near = peaks(lengths, sizes, here, there, here * lengths, there * lengths)
    s, S = _size(slope, near, 1.0, 1.0), _size(rise, rise_near, longest, longest)
    borrowed, reaches = (sizes <= eps**0.5 * size) & (lengths == size), lengths
    if some(borrowed):
        own = xp.where(borrowed, 0.0, lengths)
        rise, rise_near = peaks(here * own, there * own)
        S = _size(rise, rise_near, longest, S)
        reaches = xp.where(borrowed & (here * lengths > S), S / xp.where(here > 0, here, 1.0), lengths)
    weights = xp.maximum(1 / s, xp.minimum(reaches / S, min(MIXED, MIXED_ROUNDINGS / eps) / s))
    if g.shape[-1] == 0:
        return Units(weights, g, g, g, g)
    del here, there
    vectors = reference.x, x, lengths, weights
    if whole:
        slopes, changes, terms, pushes = _row_sums(now.jacobian(), *vectors, eps**0.5 * size)
    else:  # one row at a time: J does not fit
        rows = (now.pullback(unit, objective=0.0)[..., None, :] for unit in unit_vectors(g))
        columns = zip(*(_row_sums(row, *vectors, eps**0.5 * size) for row in rows), strict=True)
        slopes, changes, terms, pushes = (xp.concat(column, axis=-1) for column in columns)
    # The share of its first-order change that g makes on the way to the reference point, at most 1.
    slopes = abs(slopes)
    moved = xp.maximum(abs(reference.constraints - g) + abs(g), machine_eps(g) * slopes)
    steep, varies, waits = slopes > moved, changes > 0, xp is not np  # a device would wait for the answer of a test
    used = n = xp.where(varies, changes, 1.0) if waits or not every(varies) else changes
    if waits or some(steep):
        used = n * (xp.where(steep, moved, 1.0) / xp.where(steep, slopes, 1.0))
    return Units(weights, 1 / _at_most_one(n), 1 / _at_most_one(used), ROUNDINGS * eps * terms, pushes)


def _at_most_one(v: Array) -> Array:
    return np.minimum(v, 1.0) if type(v) is np.ndarray else namespace(v).clip(v, max=1.0)


def _row_sums(
    J: Operand, there: Operand, x: Operand, lengths: Operand, weights: Operand, least: Any
) -> tuple[Array, ...]:
    """Return J (x' - x), |J| lengths, |J| max(|x|, least), and the largest entry of each row of |J| diag(weights)."""
    xp = namespace(x)
    if x.ndim == 1 and x.shape[0] > LONG_ROW and not (hasattr(J, "pattern") or array_api_compat.is_jax_array(x)):
        pieces = ((J[:, j], there[j], x[j], lengths[j], weights[j]) for j in column_pieces(J))
        *sums, sizes = (xp.stack(parts) for parts in zip(*(_sums_of_rows(*p, least) for p in pieces), strict=True))
        return *(xp.sum(parts, axis=0) for parts in sums), xp.max(sizes, axis=0)
    return _sums_of_rows(J, there, x, lengths, weights, least)


def _sums_of_rows(J: Array, there: Array, x: Array, lengths: Array, weights: Array, least: Any) -> tuple[Array, ...]:
    sizes = namespace(x).maximum(abs(x), least)
    if type(J) is np.ndarray and J.ndim == 2 and J.dtype == np.float64:  # products take a third of the time of sums
        steep = np.abs(J)
        return J.dot(there - x), steep.dot(lengths), steep.dot(sizes), np.maximum.reduce(steep * weights, axis=-1)
    slopes, J, weights = row_sums(J, there - x), abs(J), weights if weights.ndim == 1 else weights[..., None, :]
    return slopes, row_sums(J, lengths), row_sums(J, sizes), row_sizes(J * weights)


def roundings(x: Operand, now: Evaluation) -> Array:
    """Return `Units.rounding` at ``x`` from the oracle call there, with J whole."""
    sizes, xp = abs(x), namespace(x)
    sizes = xp.maximum(sizes, machine_eps(x) ** 0.5 * xp.max(sizes, axis=-1, keepdims=True))
    return ROUNDINGS * machine_eps(x) * row_sums(abs(now.jacobian()), sizes)
