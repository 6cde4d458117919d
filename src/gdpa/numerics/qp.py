"""Least squares and quadratic programs in nonnegative multipliers, on the host in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdpa.numerics.dense import Matrix, solve_symmetric

#: The number of exchanges in a row that may fail to reduce the number of wrong guesses.
PATIENCE = 5
#: With more multipliers than this, solve on a working set that grows by this many at a time.
WORKING_SET = 100
#: A derivative above minus this, relative to the data, counts as zero.
ROUNDING = 1e-13


def nonnegative_qp(A: Matrix, b: Matrix, num_equalities: int = 0) -> Matrix:
    """Return argmin ``l'Al/2 - b'l`` over l >= 0, the last ``num_equalities`` components free; A positive definite.

    Block principal pivoting: the components guessed positive solve ``A_PP l_P = b_P``; those that come out negative,
    and those left out whose gradient is negative, change sides together. That usually ends after a few solves. If it
    stops making progress, the active-set method of Lawson and Hanson takes over, which always ends. Of many components
    few are positive (no more than x has coordinates), so they are solved on a working set, to which those whose
    gradient is negative are added until there are none.

    References:
        J. J. Judice and F. M. Pires, "A block principal pivoting algorithm for large-scale strictly monotone linear
        complementarity problems", Computers and Operations Research 21 (1994).
        C. L. Lawson and R. J. Hanson, "Solving Least Squares Problems" (1974), chapter 23.

    >>> nonnegative_qp(np.eye(2), np.array([3.0, -1.0])).tolist()
    [3.0, 0.0]
    """
    m = len(b)
    free = np.arange(m) >= m - num_equalities
    tolerance = ROUNDING * (1 + np.abs(b).max(initial=0.0))
    if m > num_equalities + WORKING_SET:
        return _grow(A, b, free, tolerance)
    return _pivot(A, b, free, tolerance, (b > 0) | free)


def _pivot(A: Matrix, b: Matrix, free: Any, tolerance: float, positive: Any, known: Matrix | None = None) -> Matrix:
    """Exchange all wrong guesses at once while that helps.

    Args:
        A, b: the program.
        free: the components without a sign.
        tolerance: of the gradient.
        positive: the first guess.
        known: a solution with some components held at zero, from which the active-set method may start.
    """
    fewest, patience = len(b) + 1, PATIENCE
    while patience:
        solution = _on(positive, A, b)
        wrong = np.where(positive, solution < 0, A @ solution - b < -tolerance) & ~free
        count = int(wrong.sum())
        if count == 0:
            return solution
        if count < fewest:
            fewest, patience = count, PATIENCE
        else:
            patience -= 1
        positive = positive ^ wrong
    return _active_set(A, b, free, tolerance, known)


def _grow(A: Matrix, b: Matrix, free: Any, tolerance: float) -> Matrix:
    """Solve on a working set and add the components it leaves wrong, the worst first, until there are none."""
    inside = free.copy()
    solution = _on(inside, A, b)
    gradient = np.where(inside, np.inf, A @ solution - b)
    while gradient.min(initial=0.0) < -tolerance:
        worst = np.argsort(gradient)[:WORKING_SET]
        inside[worst[gradient[worst] < -tolerance]] = True
        part, known = np.ix_(inside, inside), solution[inside]
        guess = (known > 0) | (gradient[inside] < -tolerance) | free[inside]
        solution = np.zeros(len(b))
        solution[inside] = _pivot(A[part], b[inside], free[inside], tolerance, guess, known)
        gradient = np.where(inside, np.inf, A @ solution - b)
    return solution


def _on(positive: Any, A: Matrix, b: Matrix) -> Matrix:
    """Return the solution of A_PP l_P = b_P, zero elsewhere."""
    solution = np.zeros(len(b))
    solution[positive] = solve_symmetric(A[np.ix_(positive, positive)], b[positive])
    return solution


def _active_set(A: Matrix, b: Matrix, free: Any, tolerance: float, known: Matrix | None = None) -> Matrix:
    """Lawson and Hanson: admit the component of steepest descent; drop those that would turn negative on the way."""
    positive = free.copy() if known is None else free | (known > 0)
    current = _on(positive, A, b) if known is None else known
    for _ in range(3 * len(b)):
        gradient = np.where(positive, np.inf, A @ current - b)
        if not gradient.min() < -tolerance:
            break
        positive[np.argmin(gradient)] = True
        target = _on(positive, A, b)
        while (leaving := positive & ~free & (target < 0)).any():
            ratio = np.where(leaving, current / np.where(leaving, current - target, 1.0), np.inf)
            current = current + max(ratio.min(), 0.0) * (target - current)
            positive &= ~(leaving & (ratio <= ratio.min()))
            current[~positive] = 0.0
            target = _on(positive, A, b)
        current = target
    return current


def nonnegative_least_squares(D: Matrix, slack: Matrix, b: Matrix, num_equalities: int = 0) -> Matrix:
    """Return argmin ``||D^T y - b||^2 + ||slack y||^2`` over y >= 0, the last ``num_equalities`` components free.

    Of many multipliers few are positive. Those of least slack are solved for first. Then those join whose derivative
    is negative, the most negative first, until there are none.

    >>> nonnegative_least_squares(np.eye(2), np.zeros(2), np.array([3.0, -1.0])).tolist()
    [3.0, 0.0]
    """
    m, p = len(slack), num_equalities
    inside = np.arange(m) >= m - p
    inside[np.argsort(slack)[: WORKING_SET + p]] = True
    inside = inside if m > WORKING_SET + p else np.ones(m, dtype=bool)
    y = np.zeros(m)
    while True:
        A = np.vstack([D[inside].T, np.diag(slack[inside])])
        y[inside] = _nnls(A, np.concatenate([b, np.zeros(int(inside.sum()))]), p)
        slope = np.where(inside, 0.0, D @ (D.T @ y - b))
        floor = ROUNDING * np.linalg.norm(D, axis=1) * (1 + np.linalg.norm(b))
        joining = np.argsort(slope)[:WORKING_SET]
        joining = joining[slope[joining] < -floor[joining]]
        if not len(joining):
            return y
        inside[joining] = True


def _nnls(A: Matrix, b: Matrix, p: int) -> Matrix:
    """Solve min ||A y - b|| with y >= 0 except its last p entries, which are free (split in two)."""
    from scipy.optimize import nnls

    if A.shape[0] > A.shape[1] + 1:  # the same least squares on a triangle of m + 1 rows
        R: Any = np.linalg.qr(np.column_stack([A, b]), mode="r")
        A, b = R[:, :-1], R[:, -1]
    m = A.shape[1]
    size = np.linalg.norm(A, axis=0)
    size[size == 0] = 1.0
    A = A / size
    y, _ = nnls(np.column_stack([A, -A[:, m - p :]]), b, maxiter=max(100, 30 * m))
    y[m - p : m] -= y[m:]
    return np.asarray(y[:m] / size)
