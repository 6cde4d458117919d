"""Sparse matrices of a fixed pattern, for Jacobians and Hessians with few nonzeros.

SciPy's CSR arrays do the work. A `SparseMatrix` adds arithmetic that reads like a dense matrix, entries that can be
stored in a file, and a pattern that many matrices share, so that it is analyzed once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from gdpa.base.stored import stored
from gdpa.base.typing import Vector

#: A sparse Jacobian with at most this many columns, or with this many rows and no Hessian, is made dense: the dense
#: step is faster. So is one with more than the share FULL of its entries nonzero.
FEW_COLUMNS, FEW_ROWS, FULL = 50, 30, 0.2
#: A sparse matrix is made dense by NumPy functions only up to this many entries (400 MB).
DENSE_LIMIT = 50_000_000


@stored
@dataclass(frozen=True, eq=False)
class Pattern:
    """Where the stored entries of a matrix are, row by row (compressed sparse rows, columns sorted).

    Attributes:
        indices: the columns of the entries.
        indptr: the entries of row i are those from ``indptr[i]`` to ``indptr[i + 1]``.
        shape: (rows, columns).
    """

    indices: Vector
    indptr: Vector
    shape: tuple[int, int]

    @cached_property
    def rows(self) -> Vector:
        """The row of every entry."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.indptr))

    @cached_property
    def _keys(self) -> Vector:
        return self.rows.astype(np.int64) * self.shape[1] + self.indices

    def csr(self, data: Vector | None = None) -> Any:
        """Return the SciPy CSR array with these entries, ones by default."""
        from scipy.sparse import csr_array

        data = np.ones(len(self.indices)) if data is None else data
        return csr_array((data, self.indices, self.indptr), shape=self.shape)

    def places(self, other: Pattern) -> Vector:
        """Return the place in this pattern of every entry of ``other``; -1 if it has none."""
        if not len(self._keys):
            return np.full(len(other._keys), -1)
        found = np.minimum(np.searchsorted(self._keys, other._keys), len(self._keys) - 1)
        return np.where(self._keys[found] == other._keys, found, -1)

    def is_same(self, other: Pattern) -> bool:
        """Return whether both have the same entries."""
        if self is other or self.shape != other.shape:
            return self is other
        return np.array_equal(self.indptr, other.indptr) and np.array_equal(self.indices, other.indices)


@stored
@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A matrix of the entries ``data`` of a pattern.

    >>> J = read([[2.0, 0.0], [0.0, 3.0]])
    >>> (J @ np.ones(2)).tolist(), (np.ones(2) @ J).tolist(), (np.array([[5.0], [1.0]]) * J).toarray().tolist()
    ([2.0, 3.0], [2.0, 3.0], [[10.0, 0.0], [0.0, 3.0]])
    """

    pattern: Pattern
    data: Vector

    __array_ufunc__ = None  # NumPy arrays leave products with this to its own methods

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.pattern.shape

    @cached_property
    def csr(self) -> Any:
        """The matrix as a SciPy CSR array. Building it takes longer than a product with a short vector."""
        return self.pattern.csr(self.data)

    @cached_property
    def _transpose(self) -> Any:
        return self.csr.T

    def toarray(self) -> Vector:
        """Return the matrix as a dense array."""
        return np.asarray(self.csr.toarray())

    def __array__(self, dtype: Any = None, copy: Any = None) -> Vector:
        size = self.shape[0] * self.shape[1]
        if size > DENSE_LIMIT:
            raise ValueError(
                f"a sparse matrix of shape {self.shape} would have {size} entries as a dense one, above {DENSE_LIMIT}; "
                "use its attribute csr instead"
            )
        return np.asarray(self.toarray(), dtype=dtype)

    def row_sizes(self) -> Vector:
        """Return the largest absolute value in every row; 0 for a row without entries."""
        out, starts = np.zeros(self.shape[0]), self.pattern.indptr[:-1]
        has_entries = np.diff(self.pattern.indptr) > 0
        if has_entries.any():
            out[has_entries] = np.maximum.reduceat(np.abs(self.data), starts[has_entries])
        return out

    def restricted(self, columns: Vector) -> SparseMatrix:
        """Return the matrix of some columns, given by a mask."""
        return self if columns.all() else read(self.csr[:, np.flatnonzero(columns)])

    def spread(self, columns: Vector, total: int) -> SparseMatrix:
        """Return the matrix with ``total`` columns, its own at the places ``columns``."""
        pattern = Pattern(columns[self.pattern.indices], self.pattern.indptr, (self.shape[0], total))
        return SparseMatrix(pattern, self.data)

    def __matmul__(self, v: Vector) -> Vector:
        return np.asarray(self.csr @ v)

    def __rmatmul__(self, v: Vector) -> Vector:
        return np.asarray(self._transpose @ v)

    def __mul__(self, factor: Any) -> SparseMatrix:
        """Return the matrix times a number, a row of factors of its columns, or a column of factors of its rows."""
        factor = np.asarray(factor)
        if factor.ndim == 2:
            factor = factor[:, 0][self.pattern.rows]
        elif factor.ndim == 1:
            factor = factor[self.pattern.indices]
        return SparseMatrix(self.pattern, self.data * factor)

    __rmul__ = __mul__

    def __abs__(self) -> SparseMatrix:
        return SparseMatrix(self.pattern, np.abs(self.data))

    def __truediv__(self, divisor: Any) -> SparseMatrix:
        return self * (1 / np.asarray(divisor))

    def within(self, pattern: Pattern, name: str) -> SparseMatrix:
        """Return the same matrix with the entries of ``pattern``; raise if it has others."""
        if self.pattern.is_same(pattern):
            return self if self.pattern is pattern else SparseMatrix(pattern, self.data)
        places = pattern.places(self.pattern)
        outside = (places < 0) & (self.data != 0)
        if outside.any():
            k = int(np.argmax(outside))
            raise ValueError(
                f"{name} has the entry ({self.pattern.rows[k]}, {self.pattern.indices[k]}), which it did not have at "
                "the first point; return every entry that can be nonzero at every point, as explicit zeros if need be"
            )
        data = np.zeros(len(pattern.indices))
        data[places[places >= 0]] = self.data[places >= 0]
        return SparseMatrix(pattern, data)


def is_sparse(value: Any) -> bool:
    """Return whether ``value`` is a sparse matrix of ours or of SciPy."""
    return type(value) is not np.ndarray and (isinstance(value, SparseMatrix) or hasattr(value, "tocsr"))


def read(value: Any, name: str = "the matrix", shape: tuple[int, int] | None = None) -> SparseMatrix:
    """Return a matrix of SciPy, NumPy or ours as a `SparseMatrix`; raise unless it has this shape.

    Explicit zeros of a sparse matrix stay entries. Entries that are not finite stay as they are: a trial point may be
    one where the function is not defined.
    """
    from scipy.sparse import csr_array

    if not is_sparse(value):
        value = np.atleast_2d(np.asarray(value, dtype=np.float64))
    if len(value.shape) != 2 or (shape is not None and value.shape != shape):
        raise ValueError(
            f"{name} must have shape {shape}, got {tuple(value.shape)}: one row per value, one column per variable"
        )
    if isinstance(value, SparseMatrix):
        return value
    if value.dtype.kind not in "biuf":
        raise TypeError(f"{name} must hold real numbers, got a sparse matrix of dtype {value.dtype}")
    _check_indices(value, name)
    csr = csr_array(value, dtype=np.float64, copy=False)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    return SparseMatrix(Pattern(csr.indices, csr.indptr, csr.shape), csr.data)


def _check_indices(matrix: Any, name: str) -> None:
    """Raise if the index arrays of a sparse matrix point outside it. SciPy does not look when they were assigned."""
    try:
        if hasattr(matrix, "check_format"):
            matrix.check_format(full_check=True)
        for indices, limit in zip(getattr(matrix, "coords", ()), matrix.shape, strict=False):
            if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < limit:
                raise ValueError(f"an index is not between 0 and {limit - 1}")
    except ValueError as error:
        raise ValueError(
            f"{name}, a sparse matrix of shape {matrix.shape}, has wrong index arrays: {error}; correct them"
        ) from None


def filled(J: Vector) -> SparseMatrix:
    """Return a dense matrix with every entry stored, so that its pattern is always the same."""
    return SparseMatrix(_full(J.shape), np.ravel(J))


@lru_cache(maxsize=4)
def _full(shape: tuple[int, int]) -> Pattern:
    rows, columns = shape
    return Pattern(np.tile(np.arange(columns), rows), columns * np.arange(rows + 1), shape)


@lru_cache(maxsize=4)
def diagonal(size: int) -> Pattern:
    """Return the pattern of the diagonal."""
    return Pattern(np.arange(size), np.arange(size + 1), (size, size))


@lru_cache(maxsize=4)
def transposed(pattern: Pattern) -> tuple[Pattern, Vector]:
    """Return the pattern of the transpose, and for each of its entries the place of the same entry in ``pattern``."""
    turned = pattern.csr(np.arange(len(pattern.indices))).T.tocsr()
    return Pattern(turned.indices, turned.indptr, turned.shape), turned.data


def union(*patterns: Pattern) -> Pattern:
    """Return the pattern of all entries of the patterns and of the diagonal."""
    return _pattern_of(sum((pattern.csr() for pattern in patterns), start=diagonal(patterns[0].shape[0]).csr()))


def products(pattern: Pattern) -> Pattern:
    """Return the pattern of J'J and the diagonal: which variables occur together in a row of J."""
    ones = pattern.csr()
    return union(_pattern_of((ones.T @ ones).tocsr()))


def _pattern_of(csr: Any) -> Pattern:
    csr.sort_indices()
    return Pattern(csr.indices, csr.indptr, csr.shape)
