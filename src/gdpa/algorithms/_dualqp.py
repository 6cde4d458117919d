"""The small quadratic programme in the multipliers, on the host in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdpa.algorithms._lbfgs import Matrix, solve_symmetric

#: How many exchanges in a row may fail to reduce the number of wrong guesses.
PATIENCE = 5
#: Above so many components a working set, grown by so many at a time, is solved in the place of the whole.
WORKING_SET = 100


def dual_qp(A: Matrix, b: Matrix, num_equalities: int = 0) -> Matrix:
    """Return argmin ``l'Al/2 - b'l`` over l >= 0, the last ``num_equalities`` components free; A positive definite.

    Block principal pivoting: the components guessed positive solve ``A_PP l_P = b_P``; those that come out negative,
    and those left out whose gradient is negative, change sides all together. That ends after a few solves, or
    not at all; where it stops making progress, the active-set method of Lawson and Hanson, which always ends, does it.
    Of many components few are positive (no more than x has coordinates): they are solved on a working set, to which
    those whose gradient is negative are added until there are none.

    References:
        J. J. Judice and F. M. Pires, "A block principal pivoting algorithm for large-scale strictly monotone linear
        complementarity problems", Computers and Operations Research 21 (1994).
        C. L. Lawson and R. J. Hanson, "Solving Least Squares Problems" (1974), chapter 23.

    >>> dual_qp(np.eye(2), np.array([3.0, -1.0])).tolist()
    [3.0, 0.0]
    """
    m = len(b)
    free = np.arange(m) >= m - num_equalities
    tolerance = 1e-13 * (1 + np.abs(b).max(initial=0.0))
    if m > num_equalities + WORKING_SET:
        return _grow(A, b, free, tolerance)
    return _pivot(A, b, free, tolerance, (b > 0) | free)


def _pivot(A: Matrix, b: Matrix, free: Any, tolerance: float, positive: Any, known: Matrix | None = None) -> Matrix:
    """Exchange all wrong guesses at once while that helps.

    Args:
        A, b: the programme.
        free: the components without a sign.
        tolerance: of the gradient.
        positive: the first guess.
        known: a solution where some components are held at zero, from which the active-set method may start.
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
    """Solve on a working set and add what it leaves wrong, the worst first; a set that only grows ends."""
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
