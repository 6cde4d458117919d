"""Factorizations of sparse symmetric matrices whose pattern stays: banded by LAPACK, others by SuperLU.

The pattern is analyzed once: the reverse Cuthill-McKee order, and the place of every entry in the factored form. The
order of a banded problem has a band whose width does not grow with the problem, so a factorization takes linear time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from gdpa.base.typing import Vector
from gdpa.numerics.dense import Matrix, lapack, solve_symmetric
from gdpa.numerics.sparse.matrix import Pattern, SparseMatrix

#: Up to this many diagonals below the main one LAPACK is faster. At 300,000 rows and 5 diagonals it takes a ninth of
#: SuperLU's time; its work grows with the square of the band, and SuperLU's work on such matrices does not.
WIDEST_BAND = 60
#: A row of J with more entries than this has no part in a test of positive definiteness, because J'J has the square of
#: their number of entries. Without any row the problems of `benchmarks.ablation` take 1.7 % more passes.
LONGEST = 60

Solve = Callable[[Vector], Vector]


class SymmetricOrder:
    """The order and the storage of the factorization of symmetric matrices with one pattern.

    Args:
        rows, columns: the entries, of both triangles; an entry may occur twice, and its values are added.
        size: the number of rows.
    """

    def __init__(self, rows: Vector, columns: Vector, size: int) -> None:
        from scipy.sparse import csr_array, eye_array
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        self.size = size
        graph = csr_array((np.ones(len(rows)), (rows, columns)), shape=(size, size)) + eye_array(size)
        self.order = reverse_cuthill_mckee(graph.tocsr(), symmetric_mode=True)
        place = np.empty(size, dtype=np.int64)
        place[self.order] = np.arange(size)
        i, j = place[rows], place[columns]
        self.band = int(np.abs(i - j).max(initial=0))
        self.is_banded = self.band <= WIDEST_BAND
        self._rows, self._columns = i, j
        if self.is_banded:
            self._flat = 2 * self.band + i - j + j * (3 * self.band + 1)
            self._lower = i >= j
            self._flat_lower = (i - j + j * (self.band + 1))[self._lower]

    def factor(self, values: Vector) -> Solve | None:
        """Return the solver of the matrix with these values, or None if it is singular."""
        if self.is_banded:
            stored = self._stored(self._flat, values, 3 * self.band + 1)
            factors, pivots, info = lapack().dgbtrf(stored, self.band, self.band, overwrite_ab=1)
            failed = info != 0
        else:
            factors = self._superlu(values, "COLAMD", pivoting=1.0)
            failed = factors is None

        def solve(right: Vector) -> Vector:
            if self.is_banded:
                solution = lapack().dgbtrs(factors, self.band, self.band, right[self.order], pivots)[0]
            else:
                solution = factors.solve(right[self.order])
            out = np.empty_like(solution)
            out[self.order] = solution
            return np.asarray(out)

        return None if failed else solve

    def is_positive_definite(self, values: Vector) -> bool:
        """Return whether the matrix with these values is positive definite, by its Cholesky factorization."""
        if self.is_banded:
            stored = self._stored(self._flat_lower, values[self._lower], self.band + 1)
            return bool(lapack().dpbtrf(stored, lower=1, overwrite_ab=1)[1] == 0)
        factors = self._superlu(values, "MMD_AT_PLUS_A", pivoting=0.0)
        symmetric = factors is not None and np.array_equal(factors.perm_r, factors.perm_c)
        return symmetric and bool((factors.U.diagonal() > 0).all())

    def _stored(self, places: Vector, values: Vector, height: int) -> Vector:
        """Return LAPACK's band storage of the values."""
        flat = np.bincount(places, weights=values, minlength=height * self.size)
        return flat.reshape((height, self.size), order="F")

    def _superlu(self, values: Vector, order: Any, pivoting: float) -> Any:
        from scipy.sparse import csc_array
        from scipy.sparse.linalg import splu

        matrix: Any = csc_array((values, (self._rows, self._columns)), shape=(self.size, self.size))
        options: Any = {"SymmetricMode": pivoting == 0.0}
        try:
            return splu(matrix, permc_spec=order, diag_pivot_thresh=pivoting, options=options)
        except RuntimeError:  # exactly singular
            return None


class KKT:
    """Matrices ``[[H + diag(a), J'], [J, -diag(b)]]`` with H and J of fixed patterns."""

    def __init__(self, H: Pattern, J: Pattern) -> None:
        m, d = J.shape
        diagonal = np.arange(d + m)
        below = J.rows + d
        rows = np.concatenate([H.rows, J.indices, below, diagonal])
        columns = np.concatenate([H.indices, below, J.indices, diagonal])
        self.d, self.m = d, m
        self.order = SymmetricOrder(rows, columns, d + m)

    def factor(self, H: SparseMatrix, J: SparseMatrix, a: Vector, b: Vector) -> Solve | None:
        """Return the solver of the matrix, or None if it is singular or not finite."""
        values = np.concatenate([H.data, J.data, J.data, a, -b])
        return self.order.factor(values) if np.isfinite(values).all() else None


class Augmented:
    """Matrices ``H + diag(a) + J' diag(w) J`` with H and J of fixed patterns, for the test of positive definiteness.

    Rows of J with more than `LONGEST` entries are left out: a matrix positive definite without them is so with them.
    """

    def __init__(self, H: Pattern, J: Pattern) -> None:
        lengths = np.diff(J.indptr)
        counts = np.where(lengths <= LONGEST, lengths, 0)[J.rows]
        # Every pair of entries of a row of J is an entry of J'J.
        first = np.repeat(np.arange(len(J.indices)), counts)
        second = J.indptr[:-1][J.rows[first]] + np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._first, self._second, self._row = first, second, J.rows[first]
        diagonal = np.arange(H.shape[0])
        rows = np.concatenate([H.rows, J.indices[first], diagonal])
        columns = np.concatenate([H.indices, J.indices[second], diagonal])
        self.order = SymmetricOrder(rows, columns, H.shape[0])

    def is_positive_definite(self, H: SparseMatrix, J: SparseMatrix, a: Vector, w: Vector) -> bool:
        """Return whether the matrix is positive definite."""
        values = np.concatenate([H.data, J.data[self._first] * J.data[self._second] * w[self._row], a])
        return bool(np.isfinite(values).all()) and self.order.is_positive_definite(values)


#: KKT and Augmented of a pair of patterns; the last few are remembered.
analyzed, augmented = lru_cache(maxsize=4)(KKT), lru_cache(maxsize=4)(Augmented)


def with_low_rank(solve: Solve, W: Matrix, K: Matrix) -> Solve:
    """Return the solver of ``A - W K^-1 W'`` from the solver of A (Woodbury): one solve with A for each column."""
    inside = solve(W)
    small = K - W.T @ inside

    def corrected(right: Vector) -> Vector:
        first = solve(right)
        return np.asarray(first + inside @ solve_symmetric(small, W.T @ first))

    return corrected
