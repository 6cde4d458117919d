"""Least squares and quadratic programs in nonnegative multipliers, in double precision.

They are solved by SciPy's `nnls` (Lawson and Hanson), those of many multipliers by block pivoting.

References:
    C. L. Lawson and R. J. Hanson, "Solving Least Squares Problems" (1974), chapter 23.
    O. L. Mangasarian, "A Newton method for linear programming", J. Optimization Theory and Applications 121 (2004).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from gdpa.base.arrays import all_finite
from gdpa.numerics.dense import Matrix, cholesky_divided, diagonal_sizes, lapack, solve_symmetric

#: Up to this many variables or multipliers the algebra is that of small dense matrices: with more, nnls takes too long.
#: Up to it B is kept as a matrix, too, and `AdaptiveGDPA` keeps as many pairs as variables. 20 pairs are too few for 72
#: variables (AC power flow ACOPP30: 77 evaluations, before more than 149). The model in the span of the pairs may end
#: at a clipped guess of the active bounds, one with a matrix does not (DNIEPER: 19, before 1,010).
WORKING_SET = 100
#: Guesses of a set of active constraints or bounds at most. Where guessing works it takes 5 to 10.
ROUNDS = 12
#: Shares of its row that a slack is raised to on the path of penalties, in turn. Each takes 4 to 15 steps of Newton.
PATH = (1e-1, 1e-2, 2e-3, 1e-4, 1e-5, 1e-6)
#: Slacks above this share of their row are eliminated from a least squares problem; smaller ones would lose digits.
HEAVY = 1e-3
#: Rows whose unit vectors differ by less than this are one row.
PARALLEL = 1e-12


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

    if n > WORKING_SET:
        floor = np.full(n, _rounding(n) * (1 + np.abs(b).max(initial=0.0)))
        y = _pivot(lambda inside: solve_symmetric(A[inside][:, inside], b[inside]), lambda y: A @ y - b, floor, b > 0)
        if y is not None:
            return y
    size = diagonal_sizes(A)
    return _nnls(*_root(A / np.outer(size, size), b / size), 0) / size


def nonnegative_least_squares(D: Matrix, slack: Matrix, b: Matrix, num_equalities: int = 0) -> Matrix:
    """Return argmin ``||D^T y - b||^2 + ||slack y||^2`` over y >= 0, the last ``num_equalities`` components free.

    If block pivoting does not find the positive components, the problem is solved on a working set. If that is too
    small, block pivoting begins again where a path of penalties ends; the working set grows if that fails, too.

    >>> nonnegative_least_squares(np.eye(2), np.zeros(2), np.array([3.0, -1.0])).tolist()
    [3.0, 0.0]
    """
    m, p = len(slack), num_equalities
    if m <= WORKING_SET + p:
        return _nnls(*_stack(D, slack, b), p)
    floor = _rounding(m) * np.linalg.norm(D, axis=1) * (1 + np.linalg.norm(b))

    def slope(y: Matrix) -> Matrix:
        return D @ (D.T @ y - b) + slack * slack * y

    merged = _merge_parallel(D[: m - p], slack[: m - p])
    if merged is not None:
        rows, slacks, shares, group = merged
        joint = nonnegative_least_squares(
            np.concatenate([rows, D[m - p :]]), np.concatenate([slacks, slack[m - p :]]), b, p
        )
        return np.concatenate([shares * joint[group], joint[len(rows) :]])
    order = np.argsort(slack)  # the likeliest to be positive first
    first = np.zeros(m, dtype=bool)
    first[order[: len(b)]] = True

    def settle(first: Any) -> Matrix | None:
        return _pivot(lambda inside: _least_squares(D[inside], slack[inside], b), slope, floor, first)

    if p == 0 and (found := settle(first)) is not None:
        return found
    inside, small = np.arange(m) >= m - p, True
    inside[order[: len(b) + WORKING_SET + p]] = True  # a cone that holds b may have len(b) edges, all without slack
    y = np.zeros(m)
    while True:
        y[inside] = _nnls(*_stack(D[inside], slack[inside], b), p)
        slopes = np.where(inside, 0.0, slope(y))
        joining = np.argsort(slopes)[:WORKING_SET]
        joining = joining[slopes[joining] < -floor[joining]]
        if not len(joining):
            return y
        if p == 0 and small and (found := settle(_follow_path(D, slack, b))) is not None:
            return found
        inside[joining], small = True, False


def _merge_parallel(D: Matrix, slack: Matrix) -> tuple[Matrix, Matrix, Matrix, Any] | None:
    """Return one row and slack for each group of parallel rows, the shares y_i / y and the groups; None if none are.

    Rows D_i = c_i u of one direction u have sum_i (slack_i y_i)^2 = (slack y)^2 at least for a given y = sum_i c_i y_i,
    with slack^-2 = sum_i (c_i / slack_i)^2 and y_i = c_i (slack / slack_i)^2 y. `nnls` cycles between such rows.
    """
    c = np.linalg.norm(D, axis=1)
    c[c == 0] = 1.0
    units = D / c[:, None]
    keys = units @ np.sin(np.arange(1.0, D.shape[1] + 1))
    order = np.argsort(keys)
    close = np.flatnonzero(np.diff(keys[order]) <= PARALLEL)
    close = close[np.abs(units[order[close]] - units[order[close + 1]]).max(axis=1, initial=0.0) <= PARALLEL]
    if not len(close):
        return None
    begins = np.ones(len(D), dtype=bool)
    begins[close + 1] = False
    group = np.empty(len(D), dtype=int)
    group[order] = np.cumsum(begins) - 1
    pulls = (c / np.maximum(slack, PARALLEL * c)) ** 2
    slacks: Matrix = 1 / np.sqrt(np.bincount(group, pulls), dtype=float)
    return units[order[begins]], slacks, pulls / c * slacks[group] ** 2, group


def _least_squares(D: Matrix, slack: Matrix, b: Matrix) -> Matrix:
    """Return argmin ``||D^T y - b||^2 + ||slack y||^2`` of any sign, at a cost linear in the rows with large slacks.

    With T = I + D_1' S_1^-2 D_1 of these rows, the others minimize ||L^-1 (D_0' y_0 - b)||^2 + ||S_0 y_0||^2, T = L L'.
    """
    heavy = slack > HEAVY * np.linalg.norm(D, axis=1)
    scaled = D[heavy] / slack[heavy, None]
    L = np.linalg.cholesky(np.eye(len(b)) + scaled.T @ scaled)
    turned = lapack().dtrtrs(L, np.column_stack([D[~heavy].T, b]), lower=1)[0]
    y = np.empty(len(slack))
    y[~heavy] = np.linalg.lstsq(*_stack(turned[:, :-1].T, slack[~heavy], turned[:, -1]), rcond=None)[0]
    left = lapack().dpotrs(L, b - y[~heavy] @ D[~heavy], lower=1)[0]
    y[heavy] = scaled @ left / slack[heavy]
    return y


def _follow_path(D: Matrix, slack: Matrix, b: Matrix) -> Any:
    """Return the components that are positive once slacks are raised to the last share of `PATH`: the likely ones.

    The residual r = b - D'y is argmin ``||r - b||^2 / 2 + sum_i max(0, D_i r)^2 / (2 slack_i^2)``, a piecewise
    quadratic function of few variables, on which Newton's method with an exact line search ends.
    """
    sizes = np.linalg.norm(D, axis=1)
    sizes[sizes == 0] = 1.0
    r, inside = b, np.zeros(len(slack), dtype=bool)
    for share in PATH:
        raised, pulls = np.maximum(slack, share * sizes), D @ r
        for _ in range(4 * ROUNDS):
            inside, y = pulls > 0, np.zeros(len(slack))
            y[inside] = _least_squares(D[inside], raised[inside], b)
            d = b - y @ D - r
            change = np.where(inside, raised**2 * y, pulls + D @ d) - pulls
            if np.array_equal(pulls + change > 0, inside):
                r = r + d
                break
            step = _minimize_along((r - b) @ d, d @ d, pulls, change, raised**-2)
            r, pulls = r + step * d, pulls + step * change
    return inside


def _minimize_along(slope: Any, curvature: Any, pulls: Matrix, change: Matrix, weights: Matrix) -> float:
    """Return argmin ``slope t + curvature t^2 / 2 + sum_i weights_i max(0, pulls_i + t change_i)^2 / 2`` over t > 0.

    >>> _minimize_along(-3.0, 1.0, np.array([-1.0]), np.array([1.0]), np.array([1.0]))  # -3 + t + max(0, t - 1) = 0
    2.0
    """
    kinks = np.divide(-pulls, change, out=np.zeros_like(pulls), where=change != 0)
    order = np.flatnonzero(kinks > 0)
    order = order[np.argsort(kinks[order])]
    on = (pulls > 0) | ((pulls == 0) & (change > 0))
    slopes, curvatures = weights * change * pulls, weights * change**2
    signs = np.where(on[order], -1.0, 1.0)
    slopes = np.cumsum([slope + slopes[on].sum(), *(signs * slopes[order])])
    curvatures = np.cumsum([curvature + curvatures[on].sum(), *(signs * curvatures[order])])
    piece = int(np.argmax(slopes + curvatures * np.append(kinks[order], np.inf) >= 0))
    return float(max(-slopes[piece] / curvatures[piece], 0.0))


def _stack(D: Matrix, slack: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    """Return the matrix and the right-hand side of ``||D^T y - b||^2 + ||slack y||^2``."""
    m, d = D.shape
    A, right = np.zeros((d + m, m)), np.zeros(d + m)
    A[:d], right[:d] = D.T, b
    A[d:].ravel()[:: m + 1] = slack
    return A, right


def _pivot(
    solve_on: Callable[[Any], Matrix], slope: Callable[[Matrix], Matrix], floor: Matrix, first: Any
) -> Matrix | None:
    """Return the solution by block pivoting, or None if it does not settle: components of the wrong sign change sides.

    Args:
        solve_on: returns the solution on a set of components without regard to signs.
        slope: returns the derivative at a point.
        floor: minus this, a derivative counts as zero.
        first: the first guess of the positive components.

    References:
        L. F. Portugal, J. J. Judice and L. N. Vicente, "A comparison of block pivoting and interior-point algorithms
        for linear least squares problems with nonnegative variables", Mathematics of Computation 63 (1994).
    """
    inside = first
    for _ in range(ROUNDS):
        y = np.zeros(len(floor))
        y[inside] = solve_on(inside)
        wrong = np.where(inside, y < 0, slope(y) < -floor)
        if not wrong.any():
            return y
        inside = inside ^ wrong
    return None


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
def scipy_nnls() -> Any:
    """Return SciPy's solver."""
    from scipy.optimize import nnls

    return nnls


def _nnls(A: Matrix, b: Matrix, p: int) -> Matrix:
    """Solve min ||A y - b|| with y >= 0 except its last p entries, which are free (split in two)."""
    if A.shape[1] == 0:
        return np.zeros(0)
    m = A.shape[1]
    size = np.sqrt(np.add.reduce(A * A, axis=0))
    size[size == 0] = 1.0
    A = A / size
    y: Matrix = scipy_nnls()(np.concatenate([A, -A[:, m - p :]], axis=1) if p else A, b, maxiter=(m + 2) ** 2)[0]
    if p:
        y[m - p : m] -= y[m:]
        y = y[:m]
    return np.asarray(y / size)
