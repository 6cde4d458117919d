"""Sparse second derivatives by differences of gradients, several columns with each difference.

Columns of the Hessian without a common row are found together, so a banded Hessian takes as many gradients as its band
is wide, whatever the number of variables.

References:
    A. R. Curtis, M. J. D. Powell and J. K. Reid, "On the estimation of sparse Jacobian matrices", IMA J. Applied
    Mathematics 13 (1974). M. J. D. Powell and Ph. L. Toint, "On the estimation of sparse Hessian matrices", SIAM J.
    Numerical Analysis 16 (1979).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gdpa._grouped_differences import SHORTEST, GroupedDifferences
from gdpa._problem import Evaluation, Problem
from gdpa._typing import Vector
from gdpa.numerics.sparse import FEW_ROWS, SparseMatrix, products, read, transposed, union
from gdpa.sets import Box, ConvexSet

#: With more groups of columns than this, a Hessian by differences costs more than it saves.
MOST_GROUPS = 60
#: The step of the central differences over max(1, |x|). The roundings of the gradient ask for a longer one, a fine grid
#: for a shorter one: a slope between neighbors at distance 1e-5 changes by 0.01.
STEP = 1e-7
#: A pattern that was guessed is kept if it predicts the change of the gradient along a random direction to this share.
FORETOLD = 1e-3


def with_hessian(problem: Problem, sparsity: Any = None) -> Problem:
    """Return the problem with sparse second derivatives by differences of its gradients.

    Args:
        problem: the problem, whose oracle takes NumPy arrays.
        sparsity: a sparse array of shape (d, d), nonzero where the second derivative of f or of a constraint may be;
            both triangles. None takes the pattern of J'J: which variables occur together in a constraint. It is right
            for a separable objective, and checked at the first point; if it is not, there is no Hessian.

    Example:
        >>> from gdpa.backends.functions import from_functions
        >>> problem = from_functions(lambda x: x @ x * x[0], gradient=lambda x: 2 * x * x[0] + np.r_[x @ x, 0.0])
        >>> H = with_hessian(problem, np.ones((2, 2))).evaluate(np.array([1.0, 2.0])).hessian(np.zeros(0))
        >>> H.toarray().round(6).tolist()
        [[6.0, 4.0], [4.0, 2.0]]
    """
    differences = HessianDifferences(problem.evaluate, problem.domain, sparsity)

    def evaluate(x: Vector) -> Evaluation:
        return differences.added(x, problem.evaluate(x))

    return replace(problem, evaluate=evaluate)


class HessianDifferences:
    """The Hessian of the Lagrangian of one problem by differences, its pattern and groups found at the first call."""

    def __init__(self, evaluate: Callable[[Vector], Evaluation], domain: ConvexSet, sparsity: Any = None) -> None:
        self._evaluate, self._domain = evaluate, domain
        self._given = None if sparsity is None else read(sparsity, "the sparsity of the hessian").pattern
        self._differences: GroupedDifferences | None = None
        self._failed = False

    def added(self, x: Vector, now: Evaluation) -> Evaluation:
        """Return the oracle call at ``x`` with the Hessian; as it is if few rows leave the pattern to guess."""
        if self._given is None and now.constraints.shape[-1] <= FEW_ROWS:
            return now

        def hessian(w: Vector, objective: float = 1.0) -> SparseMatrix | None:
            return self._hessian(x, now, w, objective)

        whole = now.jacobian if now.has_jacobian else None
        passes = 1 if self._differences is None else 2 * len(self._differences.groups)
        f, g, pullback = now
        return Evaluation(f, g, pullback, whole, now.passes, hessian, passes, now.is_sparse)

    def _hessian(self, x: Vector, now: Evaluation, w: Vector, objective: float) -> SparseMatrix | None:
        first = self._differences is None and not self._failed
        if first:
            self._begin(x, now)
        if self._failed:
            return None
        H = self._at(x, now, w, objective)
        if first and self._given is None and not self._foretells(H, x, now, w, objective):
            self._failed = True
            return None
        return H

    def _begin(self, x: Vector, now: Evaluation) -> None:
        """Find the pattern and the groups of columns."""
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
        self._failed = len(self._differences.groups) > MOST_GROUPS

    def _at(self, x: Vector, now: Evaluation, w: Vector, objective: float) -> SparseMatrix:
        """Return the Hessian by central differences, inside the box."""
        assert self._differences is not None

        def gradient(y: Vector) -> Vector:
            return np.asarray(self._evaluate(y).pullback(w, objective))

        lower, upper = self._domain.bounds(x) if isinstance(self._domain, Box) else (-np.inf, np.inf)
        here = now.pullback(w, objective)
        step = STEP * np.maximum(1.0, np.abs(x))
        H = self._differences(gradient, x, here, "3-point", lower, upper, step=step)
        pattern, (_, places) = H.pattern, transposed(H.pattern)
        one_sided = np.minimum(upper - x, x - lower) < SHORTEST * step
        known = ~one_sided[pattern.indices]
        data = np.where(known == known[places], (H.data + H.data[places]) / 2, np.where(known, H.data, H.data[places]))
        if one_sided.any():
            # The error of a difference to one side may make H indefinite: its diagonal is to outweigh its row.
            own = pattern.rows == pattern.indices
            others = np.bincount(pattern.rows, np.where(own, 0.0, np.abs(data)), len(x))
            held = own & one_sided[pattern.indices]
            data[held] = np.maximum(data[held], others[pattern.indices[held]])
        return SparseMatrix(pattern, data)

    def _foretells(self, H: SparseMatrix, x: Vector, now: Evaluation, w: Vector, objective: float) -> bool:
        """Tell whether H predicts the gradient along a random direction."""
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=x.shape)
        there = self._domain.project(x + STEP * np.maximum(1.0, np.abs(x)) * signs)
        change = self._evaluate(there).pullback(w, objective) - now.pullback(w, objective)
        foretold = H @ (there - x)
        rounding = 100 * float(np.finfo(x.dtype).eps) * float(np.abs(now.pullback(w, objective)).max(initial=0.0))
        error = float(np.abs(change - foretold).max(initial=0.0))
        return error <= FORETOLD * float(np.abs(change).max(initial=0.0)) + rounding
