"""The model of a step of stabilized SQP for sparse problems, and the matrices that its solvers factor."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gdpa.base.typing import Vector
from gdpa.numerics.dense import Matrix
from gdpa.numerics.lbfgs import LBFGS
from gdpa.numerics.sparse.factor import Solve, analyzed, with_low_rank
from gdpa.numerics.sparse.matrix import SparseMatrix, diagonal

#: A Hessian is kept for another step if it predicts the change of the gradient to this share. Values from 0.01 to 0.4
#: were tried on control problems with 75 to 480 variables and ten `coupled` ones of `benchmarks.ablation_cases`: 0.05
#: saves an eighth of the passes and hardly adds steps, 0.2 and more add steps.
PREDICTED = 0.05
#: A sparse model whose penalty is the largest has a stiff model with this multiple of it. With 1 the hanging chain of
#: `benchmarks.banded` takes 102 instead of 41 steps at 10,000 variables, and does not end at 100,000.
STIFFER = 1e4


def predicts(H: SparseMatrix, s: Vector, y: Vector) -> bool:
    """Return whether H s is y up to the share `PREDICTED` of ||y||."""
    return bool(np.linalg.norm(y - H @ s) <= PREDICTED * np.linalg.norm(y))


class Quadratic(NamedTuple):
    """B = H - W K^-1 W': a sparse matrix, and a low rank from limited-memory BFGS (None if there is none)."""

    H: SparseMatrix
    W: Matrix | None = None
    K: Matrix | None = None

    @classmethod
    def of(cls, curvature: LBFGS, hessian: SparseMatrix | None, d: int) -> Quadratic:
        """Return the sparse matrix of second derivatives, or the limited-memory BFGS matrix if there is none.

        Before the first step, when the multipliers of the Lagrangian are zero, sigma I is added.
        """
        if hessian is not None:
            return cls(hessian).shifted(curvature.sigma if curvature.is_fresh else 0.0)
        H = SparseMatrix(diagonal(d), np.full(d, curvature.sigma))
        if curvature.ring is None:
            return cls(H)
        k = curvature.pairs
        W = np.stack(curvature.ring.vectors(), axis=1)
        W[:, :k] *= curvature.sigma
        return cls(H, W, curvature.middle())

    def product(self, v: Vector) -> Vector:
        """Return B v."""
        out = self.H @ v
        if self.W is not None and self.K is not None:
            out = out - self.W @ np.linalg.solve(self.K, self.W.T @ v)
        return out

    def shifted(self, shift: Any) -> Quadratic:
        """Return B + shift I, or B + diag(shift); the diagonal belongs to the pattern of H."""
        if not np.any(shift):
            return self
        pattern = self.H.pattern
        on_diagonal = pattern.rows == pattern.indices
        shifts = np.broadcast_to(shift, pattern.shape[:1])[pattern.indices]
        return self._replace(H=SparseMatrix(pattern, self.H.data + np.where(on_diagonal, shifts, 0.0)))


class SparseModel(NamedTuple):
    """The model: B, c, J, r, beta, which rows are equalities, and the bounds of p."""

    B: Quadratic
    c: Vector
    J: SparseMatrix
    r: Vector
    beta: float
    is_equality: Vector
    lower: Vector
    upper: Vector

    def gradient(self, p: Vector, multipliers: Vector) -> Vector:
        """Return c + B p + J'l."""
        return np.asarray(self.c + self.B.product(p) + multipliers @ self.J)

    def factored(self, a: Vector, b: Vector, free: Vector, rows: Vector) -> Solve | None:
        """Return the solver of [[B + diag(a), J'], [J, -diag(b)]], fixed coordinates and rows left out taken apart."""
        H, J = self.B.H, self.J
        inside = free.astype(float)
        H = inside * (inside[:, None] * H)
        J = inside * (rows.astype(float)[:, None] * J)
        kkt = analyzed(H.pattern, J.pattern)
        solve = kkt.factor(H, J, np.where(free, a, 1.0), np.where(rows, b, 1.0))
        if solve is None or self.B.W is None or self.B.K is None:
            return solve
        W = np.vstack([inside[:, None] * self.B.W, np.zeros((J.shape[0], self.B.W.shape[1]))])
        return with_low_rank(solve, W, self.B.K)
