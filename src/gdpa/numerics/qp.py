"""Least squares and quadratic programs in nonnegative multipliers, and small programs with slacks, in double precision.

Least squares problems and programs in multipliers are solved by SciPy's `nnls` (Lawson and Hanson). Of many multipliers
few are positive, so they are solved on a working set that grows by the multipliers whose derivative is negative. The
model of stabilized SQP is one small program for the C library daqp, if it is installed.

References:
    C. L. Lawson and R. J. Hanson, "Solving Least Squares Problems" (1974), chapter 23.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gdpa.base.arrays import all_finite
from gdpa.numerics.dense import Matrix, cholesky_divided, diagonal_sizes, solve_symmetric

#: With more multipliers than this, solve on a working set that grows by this many at a time. daqp is used up to this
#: many variables and constraints: at 100 of each it takes as long as `gdpa.numerics.model`.
WORKING_SET = 100

#: A least squares problem is made triangular first if it has this many times more rows than columns: the time of a
#: triangle of 10 columns is that of `nnls` with some 50 rows.
TALL = 4

#: daqp's tolerance on the constraints. Its own 1e-6 would hide the last digits of a step near a solution.
PRIMAL_TOLERANCE = 1e-14


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


@functools.cache
def _library() -> Any:
    """Return daqp, or None if it is not installed.

    D. Arnstrom, A. Bemporad and D. Axehill, "A dual active-set solver for embedded quadratic programming using
    recursive LDL^T updates", IEEE Transactions on Automatic Control 67 (2022).
    """
    try:
        library = importlib.import_module("daqp")
    except ImportError:
        return None
    return library if hasattr(library, "solve") else None  # a folder of that name is no library


class _Program(NamedTuple):
    """The parts of a program that depend on its size alone."""

    H: Matrix
    f: Matrix
    A: Matrix
    lower: Matrix
    upper: Matrix


@functools.lru_cache(maxsize=16)
def _empty_program(d: int, m: int) -> _Program:
    """Return the program of d variables and m constraints before B, c, J, r and bounds are written into it."""
    none = np.full(d + 2 * m, np.inf)
    return _Program(np.eye(d + m), np.zeros(d + m), np.zeros((m, d + m)), -none, none)


def elastic_qp(
    B: Matrix,
    c: Matrix,
    J: Matrix,
    r: Matrix,
    beta: float,
    num_equalities: int,
    bounds: tuple[Matrix, Matrix] | None,
) -> tuple[Matrix, Matrix] | None:
    """Return p and l of `gdpa.numerics.model.model_step`, or None if there is no solver for this size, or it fails.

    With v = sqrt(beta) [r + J p]_+ the model is a strictly convex program with linear constraints::

        min  c'p + p'Bp/2 + v'v/2   subject to   J p - v / sqrt(beta) <= -r  (= for equalities),  lower <= p <= upper

    >>> elastic_qp(np.eye(1), np.array([-2.0]), np.eye(1), np.array([-0.5]), 1e6, 0, None) is None or True
    True
    """
    library = _library()
    m, d = J.shape
    n = d + m
    if library is None or max(d, m) > WORKING_SET:
        return None
    program = _empty_program(d, m)
    H, f, A, lower, upper = program.H.copy(), program.f.copy(), program.A.copy(), program.lower, program.upper.copy()
    H[:d, :d], f[:d], upper[n:], A[:, :d] = B, c, -r, J
    A.ravel()[d :: n + 1] = -(beta**-0.5)
    if num_equalities or bounds is not None:
        lower = lower.copy()
    if num_equalities:
        lower[-num_equalities:] = upper[-num_equalities:]
    if bounds is not None:
        lower[:d], upper[:d] = bounds
    try:
        solution, _, flag, info = library.solve(H, f, A, upper, lower, primal_tol=PRIMAL_TOLERANCE, eps_prox=0.0)
    except ValueError:  # not finite
        return None
    if flag != 1 or not all_finite(solution):
        return None
    p, multipliers = solution[:d], info["lam"]
    if bounds is not None:  # a bound that pushes is met to the last bit: near it is no KKT point
        lower, upper, push = lower[:d], upper[:d], multipliers[:d]
        p = np.where(push < 0, lower, np.where(push > 0, upper, np.minimum(np.maximum(p, lower), upper)))
    return p, multipliers[n:]
