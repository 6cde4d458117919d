"""Sparse second derivatives by differences of gradients; columns without a common row are found together.

References:
    A. R. Curtis, M. J. D. Powell and J. K. Reid, "On the estimation of sparse Jacobian matrices", IMA J. Applied
    Mathematics 13 (1974). M. J. D. Powell and Ph. L. Toint, "On the estimation of sparse Hessian matrices", SIAM J.
    Numerical Analysis 16 (1979).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gdpa.base.arrays import row_sizes
from gdpa.base.sets import ConvexSet
from gdpa.base.typing import Pullback, Vector
from gdpa.core.problem import Evaluation
from gdpa.numerics.differences import GroupedDifferences
from gdpa.numerics.sparse.matrix import SparseMatrix, products, read, transposed, union

#: With more groups of columns than this, a Hessian by differences costs more than it saves.
MOST_GROUPS = 60
#: The step of the central differences over max(1, |x|). Rounding favors a longer step, a fine grid a shorter one: a
#: slope between neighbors at distance 1e-5 changes by 0.01.
STEP = 1e-7
#: A pattern that was guessed is kept if it predicts the change of the gradient along a random direction to this share.
FORETOLD = 1e-3
#: If H by one-sided differences predicts it to this share, third derivatives do not matter and central differences,
#: at twice the cost, are not needed. Of the problems of `benchmarks.banded`, all control and chain problems pass. The
#: obstacle problem passes with 100 variables and not with 1,000: its third derivatives grow with the grid.
STRAIGHT = 1e-5


class HessianDifferences:
    """The Hessian of the Lagrangian of one problem by differences, its pattern and groups found at the first call.

    ``sparsity`` is a sparse array of shape (d, d), nonzero where the second derivative of f or of a constraint may be,
    in both triangles. None takes the pattern of J'J: which variables occur together in a constraint. It is right for a
    separable objective, and checked at the first point; if it is not, there is no Hessian.
    """

    def __init__(self, evaluate: Callable[[Vector], Evaluation], domain: ConvexSet, sparsity: Any = None) -> None:
        self._evaluate, self._domain = evaluate, domain
        self._given = None if sparsity is None else read(sparsity, "the sparsity of the hessian").pattern
        self._differences: GroupedDifferences | None = None
        self._failed, self._scheme, self._calls = False, "2-point", 0

    def attach(self, x: Vector, now: Evaluation) -> None:
        """Give the oracle call at ``x`` its Hessian."""
        pullback = now.pullback  # before a run counts it: the cost of a Hessian is counted as a whole

        def hessian(w: Vector, objective: float = 1.0) -> SparseMatrix | None:
            before, H = self._calls, None
            if self._differences is None and not self._failed:
                self._begin(x, now, pullback, objective)
            if not self._failed:
                H = self._at(x, pullback, w, objective)
            now.hessian_passes = self._calls - before if H is None else max(1, self._calls - before)
            return H

        now.second = hessian

    def _begin(self, x: Vector, now: Evaluation, pullback: Pullback, objective: float) -> None:
        """Find the pattern, the groups of columns, and whether one-sided differences suffice."""
        d = x.shape[-1]
        if self._given is not None:
            if self._given.shape != (d, d):
                raise ValueError(
                    f"the sparsity of the hessian must have shape {(d, d)}, got {self._given.shape}: "
                    "one row and one column for each component of x"
                )
            pattern = union(self._given, transposed(self._given)[0])
        else:
            J = now.jacobian()
            if not isinstance(J, SparseMatrix):
                self._failed = True
                return
            pattern = products(J.pattern)
        self._differences = GroupedDifferences(pattern)
        self._failed = self._differences.num_groups > MOST_GROUPS
        if self._failed:
            return
        w = _every_row(now, objective)
        if not self._error(self._at(x, pullback, w, objective), x, pullback, w, objective) <= STRAIGHT:
            self._scheme = "3-point"
            error = self._error(self._at(x, pullback, w, objective), x, pullback, w, objective)
            self._failed = self._given is None and not error <= FORETOLD

    def _at(self, x: Vector, pullback: Pullback, w: Vector, objective: float) -> SparseMatrix:
        """Return the Hessian by differences inside the box, made symmetric."""
        assert self._differences is not None
        gradient, here = partial(self._gradient, w, objective), pullback(w, objective)
        H = self._differences(gradient, x, here, self._scheme, self._domain, step=_steps(x))
        return SparseMatrix(H.pattern, (H.data + H.data[transposed(H.pattern)[1]]) / 2)

    def _gradient(self, w: Vector, objective: float, y: Vector) -> Vector:
        self._calls += 1
        return np.asarray(self._evaluate(y).pullback(w, objective))

    def _error(self, H: SparseMatrix, x: Vector, pullback: Pullback, w: Vector, objective: float) -> float:
        """Return the share of the change of the gradient along a random direction that H does not predict."""
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=x.shape)
        there = self._domain.project(x + _steps(x) * signs)
        here = pullback(w, objective)
        change = self._gradient(w, objective, there) - here
        rounding = 100 * float(np.finfo(x.dtype).eps) * float(np.abs(here).max(initial=0.0))
        error = float(np.abs(change - H @ (there - x)).max(initial=0.0)) - rounding
        return max(error, 0.0) / max(float(np.abs(change).max(initial=0.0)), float(np.finfo(float).tiny))


def _every_row(now: Evaluation, objective: float) -> Vector:
    """Return multipliers of both signs with which every constraint has a gradient as large as the gradient of f."""
    signs: Vector = np.random.default_rng(1).choice([-1.0, 1.0], size=now.constraints.shape)
    if not len(signs):
        return signs
    sizes = row_sizes(now.jacobian())
    largest = abs(objective) * float(np.abs(now.gradient()).max(initial=0.0))
    return np.asarray(signs * np.divide(largest or 1.0, sizes, out=np.ones_like(sizes), where=sizes > 0))


def _steps(x: Vector) -> Vector:
    return np.asarray(STEP * np.maximum(1.0, np.abs(x)))
