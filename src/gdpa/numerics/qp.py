"""Least squares and quadratic programs in nonnegative multipliers, on the host in double precision.

Both are solved by SciPy's `nnls` (Lawson and Hanson). Of many multipliers few are positive, so they are solved on a
working set that grows by the multipliers whose derivative is negative.

References:
    C. L. Lawson and R. J. Hanson, "Solving Least Squares Problems" (1974), chapter 23.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from gdpa.base.arrays import all_finite
from gdpa.numerics.dense import Matrix, cholesky_divided, diagonal_sizes, solve_symmetric

#: With more multipliers than this, solve on a working set that grows by this many at a time. daqp is used up to this
#: many variables and constraints: at 100 of each it takes as long as `gdpa.numerics.model`.
WORKING_SET = 100

#: A least squares problem is made triangular first if it has this many times more rows than columns: the time of a
#: triangle of 10 columns is that of `nnls` with some 50 rows.
TALL = 4


def nonnegative_qp(A: Matrix, b: Matrix, num_equalities: int = 0) -> Matrix:
    """Return argmin ``l'Al/2 - b'l`` over l >= 0, the last ``num_equalities`` components free; A positive definite.

    The free components are eliminated. With A = R'R the rest is the least squares problem ||R l - R^-T b||.

    >>> nonnegative_qp(np.eye(2), np.array([3.0, -1.0])).tolist()
    [3.0, 0.0]
    """
    n = len(b) - num_equalities
    if len(b) == 0:
        return b
    if not all_finite(A, b):
        return np.full(len(b), np.nan)
    if num_equalities:
        free = solve_symmetric(A[n:, n:], np.column_stack([A[n:, :n], b[n:]]))  # l_free = free_b - free_A l
        signed = nonnegative_qp(A[:n, :n] - A[:n, n:] @ free[:, :n], b[:n] - A[:n, n:] @ free[:, n])
        return np.concatenate([signed, free[:, n] - free[:, :n] @ signed])

    def solve_on(inside: Any) -> Matrix:
        part = A[inside][:, inside]
        size = diagonal_sizes(part)
        return _nnls(*_root(part / np.outer(size, size), b[inside] / size), 0) / size

    if n <= WORKING_SET:
        return solve_on(slice(None))
    floor = np.full(n, _rounding(n) * (1 + np.abs(b).max(initial=0.0)))
    return _on_working_set(solve_on, lambda y: A @ y - b, floor, np.argsort(-b), 0)


def nonnegative_least_squares(D: Matrix, slack: Matrix, b: Matrix, num_equalities: int = 0) -> Matrix:
    """Return argmin ``||D^T y - b||^2 + ||slack y||^2`` over y >= 0, the last ``num_equalities`` components free.

    >>> nonnegative_least_squares(np.eye(2), np.zeros(2), np.array([3.0, -1.0])).tolist()
    [3.0, 0.0]
    """

    def solve_on(inside: Any) -> Matrix:
        rows, slacks = D[inside], slack[inside]
        m, d = rows.shape
        A, right = np.zeros((d + m, m)), np.zeros(d + m)
        A[:d], right[:d] = rows.T, b
        A[d:].ravel()[:: m + 1] = slacks
        return _nnls(A, right, num_equalities)

    if len(slack) <= WORKING_SET + num_equalities:
        return solve_on(slice(None))
    floor = _rounding(len(slack)) * np.linalg.norm(D, axis=1) * (1 + np.linalg.norm(b))
    return _on_working_set(solve_on, lambda y: D @ (D.T @ y - b), floor, np.argsort(slack), num_equalities)


def _on_working_set(
    solve_on: Callable[[Any], Matrix], slope: Callable[[Matrix], Matrix], floor: Matrix, order: Any, p: int
) -> Matrix:
    """Solve on a working set and add the components it leaves wrong, the worst first, until there are none.

    Args:
        solve_on: returns the solution on a set of components.
        slope: returns the derivative at a point, at zero components.
        floor: minus this, a derivative counts as zero.
        order: the components, the likeliest to be positive first.
        p: the last p components are free.
    """
    m = len(floor)
    inside = np.arange(m) >= m - p
    inside[order[: WORKING_SET + p]] = True
    y = np.zeros(m)
    while True:
        y[inside] = solve_on(inside)
        if inside.all():
            return y
        slopes = np.where(inside, 0.0, slope(y))
        joining = np.argsort(slopes)[:WORKING_SET]
        joining = joining[slopes[joining] < -floor[joining]]
        if not len(joining):
            return y
        inside[joining] = True


def _rounding(m: int) -> float:
    """Return the relative rounding of a sum of m terms: a derivative above minus this counts as zero."""
    return m * float(np.finfo(float).eps)


def _root(A: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    """Return R and R^-T b with A = R'R; eigenvalues that rounding has made negative count as zero."""
    factor = cholesky_divided(A, b)
    if factor is not None:
        return factor[0].T, factor[1]
    values, vectors = np.linalg.eigh(A)
    roots = np.sqrt(np.maximum(values, 0.0))
    return roots[:, None] * vectors.T, (vectors.T @ b) / np.where(roots > 0, roots, np.inf)


@functools.cache
def _scipy_nnls() -> Any:
    """Return SciPy's solver."""
    from scipy.optimize import nnls

    return nnls


def _nnls(A: Matrix, b: Matrix, p: int) -> Matrix:
    """Solve min ||A y - b|| with y >= 0 except its last p entries, which are free (split in two)."""
    if A.shape[1] == 0:
        return np.zeros(0)
    if A.shape[0] > TALL * (A.shape[1] + 1):  # the same least squares on a triangle of m + 1 rows
        R: Any = np.linalg.qr(np.column_stack([A, b]), mode="r")
        A, b = R[:, :-1], R[:, -1]
    m = A.shape[1]
    size = np.sqrt(np.add.reduce(A * A, axis=0))
    if not size.all():
        size[size == 0] = 1.0
    A = A / size
    y: Matrix = _scipy_nnls()(np.concatenate([A, -A[:, m - p :]], axis=1) if p else A, b, maxiter=(m + 2) ** 2)[0]
    if p:
        y[m - p : m] -= y[m:]
        y = y[:m]
    return np.asarray(y / size)
