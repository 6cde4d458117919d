"""Finite differences of a function whose Jacobian is sparse: columns without a common row are found together.

A banded Jacobian takes as many evaluations as its band is wide, whatever the number of variables (A. R. Curtis,
M. J. D. Powell and J. K. Reid, "On the estimation of sparse Jacobian matrices", IMA J. Applied Mathematics 13, 1974).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gdpa.base.typing import Vector
from gdpa.numerics.differences import scheme_and_steps
from gdpa.numerics.sparse.matrix import Pattern, SparseMatrix

#: A central difference is made near a bound if the step need not be shortened by more than this.
SHORTEST = 1e-3


class GroupedDifferences:
    """Differences for one pattern, whose groups are found once.

    Args:
        pattern: which entries of the Jacobian may be nonzero.

    >>> from gdpa.numerics.sparse.matrix import read
    >>> differences = GroupedDifferences(read(np.eye(3)).pattern)
    >>> calls = []
    >>> square = lambda x: calls.append(1) or x * x
    >>> x = np.array([1.0, 2.0, 3.0])
    >>> differences(square, x, x * x, "3-point").data.round(6).tolist(), len(calls)
    ([2.0, 4.0, 6.0], 2)
    """

    def __init__(self, pattern: Pattern) -> None:
        from scipy.optimize._numdiff import group_columns  # SciPy documents it, and exports it from there alone

        self.pattern = pattern
        self.group_of = np.asarray(group_columns(pattern.csr(), order=np.arange(pattern.shape[1])))
        self.num_groups = int(self.group_of.max(initial=-1)) + 1

    def __call__(
        self,
        function: Callable[[Vector], Vector],
        x: Vector,
        at: Vector,
        scheme: str = "2-point",
        lower: Any = -np.inf,
        upper: Any = np.inf,
        relative_step: Any = None,
        precision: float = 0.0,
        step: Any = None,
    ) -> SparseMatrix:
        """Return the Jacobian at ``x``; with the arguments of `gdpa.numerics.differences.derivative`.

        ``step`` are absolute steps instead of the usual ones. At a bound "3-point" is a difference to one side.
        """
        pattern = self.pattern
        lower, upper = np.broadcast_to(lower, x.shape), np.broadcast_to(upper, x.shape)
        scheme, usual, _ = scheme_and_steps(x, scheme, relative_step, precision)
        step = usual if step is None else step
        near, far = np.minimum(upper - x, x - lower), np.maximum(upper - x, x - lower)
        if scheme == "3-point":  # a shorter step to both sides is better than one to one side
            step = np.where(near >= SHORTEST * step, np.minimum(step, near), step)
        step = np.minimum(step, far)
        forth = np.where(x + step <= upper, step, -step)
        back = np.where((x + step <= upper) & (x - step >= lower), -step, 0.0)
        data = np.zeros(len(pattern.indices))
        for group in range(self.num_groups):
            chosen = self.group_of == group
            mine = chosen[pattern.indices]
            rows, columns = pattern.rows[mine], pattern.indices[mine]
            if scheme == "cs":
                change = np.imag(function(x + 1j * np.where(chosen, step, 0.0)))
                data[mine] = change[rows] / step[columns]
                continue
            there = np.clip(x + np.where(chosen, forth, 0.0), lower, upper)
            value, start, here = function(there), x, at
            if scheme == "3-point":
                start = np.clip(x + np.where(chosen, back, 0.0), lower, upper)
                here = function(start)
            moved = (there - start)[columns]
            change = (value - here)[rows]
            data[mine] = np.divide(change, moved, out=np.zeros_like(change), where=moved != 0)
        return SparseMatrix(pattern, data)
