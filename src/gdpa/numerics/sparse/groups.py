"""Groups of columns without a common row: finite differences find the columns of a group together.

References:
    A. R. Curtis, M. J. D. Powell and J. K. Reid, "On the estimation of sparse Jacobian matrices", IMA J. Applied
    Mathematics 13 (1974).
"""

from __future__ import annotations

import numpy as np

from gdpa.base.typing import Vector
from gdpa.numerics.sparse.matrix import Pattern, transposed


def column_groups(pattern: Pattern, most: int | None = None) -> list[Vector] | None:
    """Return the groups by the greedy rule, columns in their order; None if there are more than ``most``.

    >>> from gdpa.numerics.sparse.matrix import read
    >>> [group.tolist() for group in column_groups(read(np.eye(3)).pattern)]
    [[0, 1, 2]]
    >>> [group.tolist() for group in column_groups(read([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]).pattern)]
    [[0, 2], [1]]
    """
    by_column, _ = transposed(pattern)
    rows_of, ends = by_column.indices.tolist(), by_column.indptr.tolist()
    taken: list[int] = [0] * pattern.shape[0]  # for every row, the groups that have a column in it, as bits
    group_of = np.zeros(pattern.shape[1], dtype=np.int64)
    for j in range(pattern.shape[1]):
        rows = rows_of[ends[j] : ends[j + 1]]
        used = 0
        for i in rows:
            used |= taken[i]
        bit = ~used & (used + 1)  # the lowest group that no row of this column has
        for i in rows:
            taken[i] |= bit
        group_of[j] = bit.bit_length() - 1
        if most is not None and group_of[j] >= most:
            return None
    order = np.argsort(group_of, kind="stable")
    counts = np.bincount(group_of)
    return np.split(order, np.cumsum(counts)[:-1])
