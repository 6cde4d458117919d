"""The best multipliers for a point, by nonnegative least squares on the host in double precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from array_api_compat import is_jax_array

from gdpa.base.arrays import all_finite, column_pieces, every, from_numpy, namespace, on_host, to_float64
from gdpa.base.sets import Box, ConvexSet, Reals
from gdpa.base.typing import Array, Operand
from gdpa.core.units import Units
from gdpa.numerics.dense import Matrix, cholesky_divided
from gdpa.numerics.qp import WORKING_SET, nonnegative_least_squares
from gdpa.numerics.sparse.matrix import SparseMatrix
from gdpa.numerics.sparse.model import sparse_least_squares

#: A constraint this many units from active has no multiplier; more would spoil the conditioning.
LARGEST_SLACK = 1e8
#: Up to this many bounds that hold x have multipliers of their own in the least squares problem. With hundreds of them
#: it would take far longer than Newton's iteration, whose unknowns are the multipliers of the constraints alone.
FEW_BOUNDS = 20
#: Pieces of the sum of squares that are tried if J is sparse.
PIECES = 20
#: From this many coordinates on, the rows stay where they are and (m, m) numbers travel to the host. A triangle of
#: (1,000,000, 4) numbers takes 115 ms on a CPU, their products 5 ms; on a GPU the copy to the host takes longer still.
#: More than `WORKING_SET` rows travel all the same: `nonnegative_least_squares` chooses the few that are near active.
MANY = 10_000
#: The products square the condition of the rows: below this share of a row outside the others, the triangle decides.
LEAST_SHARE = 1e-4


def fit(
    domain: ConvexSet, x: Operand, grad_f: Operand, J: Operand, g: Operand, num_equalities: int, units: Units
) -> Array:
    """Return argmin ``||w P_T(-grad f - J^T lambda)||^2 + sum (a_i g_i r_i lambda_i)^2`` over lambda >= 0.

    >>> from gdpa import REALS
    >>> one = np.ones(1)
    >>> fit(REALS, 0 * one, -2 * one, one[None], 0 * one, 0, Units(one, one, one, 0 * one, one)).tolist()
    [2.0]
    """
    if isinstance(J, SparseMatrix):
        return _fit_sparse(domain, x, grad_f, J, g, num_equalities, units)
    if g.ndim == 1 and _has_long_rows(domain, J):
        values, *weights = map(to_float64, on_host(g, *units[1:]))
        slack = _slack(values, Units(units.coordinates, *weights))
        found = _fit_by_products(units.coordinates, grad_f, J, slack, num_equalities)
        if found is not None:
            return from_numpy(found, like=g)
    host = _on_host(x, grad_f, J, g, *units)
    if g.ndim == 1:
        return from_numpy(_fit_point(domain, num_equalities, *host), like=g)
    out = np.zeros(host[3].shape)
    for index in np.ndindex(*host[3].shape[:-1]):
        out[index] = _fit_point(domain, num_equalities, *(a[index] for a in host))
    return from_numpy(out, like=g)


def _on_host(*arrays: Array) -> tuple[Matrix, ...]:
    """Return arrays of one library as NumPy arrays in double precision."""
    first = arrays[0]
    return arrays if type(first) is np.ndarray and first.dtype == np.float64 else tuple(map(to_float64, arrays))


def _has_long_rows(domain: ConvexSet, J: Operand) -> bool:
    """Return whether `_fit_by_products` takes these rows."""
    return 0 < J.shape[0] <= WORKING_SET and J.shape[1] >= MANY and isinstance(domain, Reals)


def _fit_by_products(w: Operand | None, grad_f: Operand, J: Operand, slack: Matrix, p: int) -> Matrix | None:
    """Return the multipliers from J J^T and J times vectors, in double precision; None if the rows nearly depend.

    With J J^T = L L^T the least squares problem is ``||L^T lambda - c||``. The first c is ``L^-1 J b``, b = -grad f.
    The second is ``L^T lambda + L^-1 J r`` with the residual r = b - J^T lambda: products of small numbers keep the
    digits that products of large ones round away. Coordinates are weighted by ``w``, in pieces: no copy of J is made.
    """
    xp = namespace(J)
    if is_jax_array(J) and J.dtype != xp.float64:  # JAX may have no double precision
        return None

    def pieces() -> Iterator[tuple[Array, Array]]:
        for j in column_pieces(J):
            parts = (grad_f[j], J[:, j]) if w is None else (w[j] * grad_f[j], w[j] * J[:, j])
            b, rows = (xp.astype(part, xp.float64, copy=False) for part in parts)
            yield b, rows

    sums: Any = sum(rows @ xp.concat([rows, b[None]]).T for b, rows in pieces())
    products = np.array(to_float64(sums))
    gram, right = products[:, :-1], -products[:, -1]
    if not all_finite(gram, right, slack):
        return None
    sizes, zero = np.sqrt(gram.diagonal()), gram.diagonal() == 0  # rows that were not evaluated
    sizes[zero], slack[zero], gram[zero, zero] = 1.0, 1.0, 1.0
    factor = cholesky_divided(gram / np.outer(sizes, sizes), np.eye(len(sizes)))
    if factor is None or not (factor[0].diagonal() >= LEAST_SHARE).all():
        return None
    slack[len(slack) - p :] = 0.0
    triangle, inverse = sizes[:, None] * np.tril(factor[0]), factor[1] / sizes
    lam = nonnegative_least_squares(triangle, slack, inverse @ right, p)
    known: Any = None
    sums = 0.0
    for b, rows in pieces():
        known = from_numpy(lam, b) if known is None else known
        sums = sums - rows @ (b + known @ rows)
    right = to_float64(sums)
    return nonnegative_least_squares(triangle, slack, triangle.T @ lam + inverse @ right, p)


def _fit_point(domain: ConvexSet, p: int, x: Any, grad_f: Any, J: Any, g: Any, w: Any, *weights: Any) -> Any:
    """Return the multipliers of one point; zeros if a number is not finite."""
    if not all_finite(x, grad_f, J, g):
        return np.zeros(len(g))
    slack = _slack(g, Units(w, *weights))
    w = w if isinstance(domain, (Reals, Box)) else w.min()
    # P_T acts on each coordinate of a box alone, so the weights may go inside.
    return _fit_one(domain, x, w * grad_f, w * J, slack, p)


def _slack(g: Matrix, units: Units) -> Any:
    """Return the weights of the second term from numbers on the host."""
    sizes = np.abs(g)
    return units.pushes * np.minimum(np.where(sizes <= units.rounding, 0.0, units.slacks * sizes), LARGEST_SLACK)


def best_multipliers(
    domain: ConvexSet, x: Operand, grad_f: Operand, J: Operand, g: Operand, num_equalities: int
) -> Array:
    """Return argmin ``||P_T(-grad f - J^T lambda)||^2 + sum ([-g_i]_+ lambda_i)^2`` over lambda >= 0: units of 1.

    The arguments are as in `fit`, at one point. A violated constraint has no slack.
    """
    (values,) = _on_host(g)
    slack = np.minimum(np.maximum(-values, 0.0), LARGEST_SLACK)
    if _has_long_rows(domain, J):
        found = _fit_by_products(None, grad_f, J, slack, num_equalities)
        if found is not None:
            return from_numpy(found, like=g)
    point, gradient, rows = _on_host(x, grad_f, J)
    if not all_finite(gradient, rows, values):
        return namespace(g).zeros_like(g)
    return from_numpy(_fit_one(domain, point, gradient, rows, slack, num_equalities), like=g)


def _fit_sparse(domain: ConvexSet, x: Any, grad_f: Any, J: SparseMatrix, g: Any, p: int, units: Units) -> Any:
    """The same for a sparse J, in time linear in its nonzeros if it is banded.

    Of the pieces between the kinks of P_T the one is taken on which the coordinates at a bound have no residual, then
    the piece that the multipliers found there belong to, and so on while phi falls.
    """
    if not isinstance(domain, (Reals, Box)):
        return _fit_point(domain, p, x, grad_f, np.asarray(J), g, *units)
    if not all_finite(x, grad_f, J.data, g):
        return np.zeros(len(g))
    values, *weights = _on_host(g, *units)
    slack, w = _slack(values, Units(*weights)), units.coordinates
    slack[len(g) - p :] = 0.0

    def tangent(lam: Any) -> Any:
        return w * domain.tangent(x, -(grad_f + lam @ J))

    inside = domain.tangent(x, np.ones_like(x)) + domain.tangent(x, -np.ones_like(x)) == 0
    best, lowest = np.zeros(len(g)), np.inf
    free = inside if isinstance(domain, Box) else np.ones_like(inside)
    for _ in range(PIECES):
        lam = sparse_least_squares(J * (w * free), slack, -w * free * grad_f, p)
        t = tangent(lam)
        phi = float(t @ t + (slack * lam) @ (slack * lam))
        if not phi < lowest:
            break
        best, lowest = lam, phi
        follow = inside | (t != 0)
        if np.array_equal(follow, free):
            break
        free = follow
    return best


def _fit_one(domain: ConvexSet, x: Any, grad_f: Any, J: Any, slack: Any, p: int) -> Any:
    """Nonnegative least squares for the multipliers of one point.

    phi(lambda) = ||P_T(-grad f - J^T lambda)||^2 + ||slack lambda||^2 is convex, and quadratic between the kinks of
    P_T, for the tangent cones of our sets are polyhedral: solve the present piece, and halve the step while it
    leaves the piece for the worse (Newton's method for piecewise quadratics). A few bounds need no such iteration.
    """
    m = len(slack)
    slack[m - p :] = 0.0
    if isinstance(domain, Reals):
        return nonnegative_least_squares(J, slack, -grad_f, p)
    if isinstance(domain, Box) and (found := _fit_in_box(domain, x, grad_f, J, slack, p)) is not None:
        return found

    def phi(lam: Any) -> float:
        t = domain.tangent(x, -(grad_f + J.T @ lam))
        return float(t @ t + (slack * lam) @ (slack * lam))

    multipliers = np.zeros(m)
    value = phi(multipliers)
    lengths = np.maximum(np.abs(J).max(axis=1, keepdims=True), np.finfo(float).tiny)
    for _ in range(100):
        v = -(grad_f + J.T @ multipliers)
        t = domain.tangent(x, v)
        h = 1e-6 * np.abs(v).max() / lengths
        if value == 0 or not h.all():
            break
        # The derivative of P_T along the rows of J: exact between kinks up to rounding, which the next turn removes.
        D = (domain.tangent(np.broadcast_to(x, J.shape), v + h * J) - t) / h
        step = nonnegative_least_squares(D, slack, t + D.T @ multipliers, p) - multipliers
        least = 1e-9 * (1 + np.abs(multipliers).max())
        while (lower := phi(multipliers + step)) >= value:
            step = step / 2
            if np.abs(step).max() <= least:
                return multipliers
        multipliers, value = multipliers + step, lower
        if np.abs(step).max() <= least:
            break
    return multipliers


def _fit_in_box(box: Box, x: Any, grad_f: Any, J: Any, slack: Any, p: int) -> Any:
    """Nonnegative least squares for the multipliers of one point and of the bounds that hold it; None if many do."""
    lower, upper = box.bounds(x)
    side = (x >= upper) * 1.0 - (x <= lower)  # both for a fixed coordinate: nothing is asked of it
    free = (lower < upper) | (side != 0)
    if not every(free):
        grad_f, J, side = grad_f[free], J[:, free], side[free]
    (held,) = side.nonzero()
    if len(held) > FEW_BOUNDS:
        return None
    if len(held) == 0:
        return nonnegative_least_squares(J, slack, -grad_f, p)
    m, n = len(slack) - p, len(held)
    D, slacks = np.zeros((m + n + p, len(side))), np.zeros(m + n + p)
    D[:m], D[m + n :], slacks[:m] = J[:m], J[m:], slack[:m]
    D[np.arange(m, m + n), held] = side[held]
    y = nonnegative_least_squares(D, slacks, -grad_f, p)
    return np.concatenate((y[:m], y[m + n :]))
