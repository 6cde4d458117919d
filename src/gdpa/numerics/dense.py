"""Dense algebra of small size, on the host in double precision."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

Matrix = np.ndarray[Any, np.dtype[np.float64]]


@functools.cache
def lapack() -> Any:
    """Return SciPy's LAPACK: on matrices of a few rows the wrappers of `numpy.linalg` take longer than the algebra."""
    from scipy.linalg import lapack

    return lapack


def cholesky_divided(A: Matrix, b: Matrix) -> tuple[Matrix, Matrix] | None:
    """Return the lower factor L of A = L L' and L^-1 b; None if A is not positive definite."""
    L, failed = lapack().dpotrf(A, lower=1)
    return None if failed else (L, lapack().dtrtrs(L, b, lower=1)[0])


@functools.cache
def strictly_lower(n: int) -> Matrix:
    """Return the matrix of ones below the diagonal and zeros elsewhere."""
    return np.tri(n, k=-1)


def diagonal_sizes(A: Matrix) -> Matrix:
    """Return the sizes s for which A / (s s') has diagonal 1 (or -1, or 0)."""
    size = np.sqrt(np.abs(np.diag(A)))
    size[size == 0] = 1.0
    return size


def solve_symmetric(A: Matrix, b: Matrix) -> Matrix:
    """Return the solution of A y = b, with the diagonal of A scaled to one; of least squares if A is singular."""
    size = diagonal_sizes(A)
    scaled, right = A / (size[:, None] * size), (b.T / size).T
    try:
        y = np.linalg.solve(scaled, right)
    except np.linalg.LinAlgError:
        y = np.linalg.lstsq(scaled, right, rcond=None)[0]
    return np.asarray((y.T / size).T)
