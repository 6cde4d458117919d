"""The small quadratic programme in the multipliers, on the host in double precision."""

from __future__ import annotations

import numpy as np

from gdpa.algorithms._lbfgs import Matrix, solve_symmetric


def dual_qp(A: Matrix, b: Matrix, num_equalities: int = 0) -> Matrix:
    """Return argmin ``l'Al/2 - b'l`` over l >= 0, the last ``num_equalities`` components free; A positive definite.

    Block principal pivoting: the components taken as positive solve ``A_PP l_P = b_P``; those that come out
    negative, and those left out whose gradient is negative, change sides all together while that makes them
    fewer, else one at a time, largest index first, which always ends.

    References:
        J. J. Judice and F. M. Pires, "A block principal pivoting algorithm for large-scale strictly monotone linear
        complementarity problems", Computers and Operations Research 21 (1994).

    >>> dual_qp(np.eye(2), np.array([3.0, -1.0])).tolist()
    [3.0, 0.0]
    """
    m = len(b)
    free = np.arange(m) >= m - num_equalities
    positive = (b > 0) | free
    fewest, patience = m + 1, 3
    tolerance = 1e-14 * (1 + np.abs(b).max(initial=0.0))
    solution = np.zeros(m)
    for _ in range(20 * (m + 5)):  # a bound on rounding, not on the method
        solution = np.zeros(m)
        solution[positive] = solve_symmetric(A[np.ix_(positive, positive)], b[positive])
        wrong = np.where(positive, solution < 0, A @ solution - b < -tolerance) & ~free
        count = int(wrong.sum())
        if count == 0:
            break
        if count < fewest:
            fewest, patience = count, 3
        elif patience:
            patience -= 1
        else:
            wrong &= np.arange(m) == np.flatnonzero(wrong)[-1]
        positive = positive ^ wrong
    return np.where(free, solution, np.maximum(solution, 0.0))
