"""Limited-memory BFGS: the matrix B built from ``sigma I`` by the BFGS formula with pairs (s_i, y_i), and H = B^-1."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gdpa.base.arrays import dot, machine_eps, max_norm, namespace, products
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.numerics.dense import Matrix, cholesky_divided, solve_symmetric, strictly_lower
from gdpa.numerics.pairs import Pairs, ShortPairs
from gdpa.numerics.qp import WORKING_SET

#: Powell's damping keeps s'y at this share of s'Bs at least (Powell 1978; Nocedal and Wright, Procedure 18.2).
POWELL = 0.2
#: A pair with s'y below this share of s'Bs has no curvature. It is skipped if its step is shorter than the one before:
#: near a solution the damped pairs would make B singular, and the last digits were lost (disc-square at 1e-9).
FLAT = 1e-6
#: Only a step below this share of the one before counts as shorter. Steps along a direction whose curvature B takes
#: too large shrink by a share `FLAT` at most: without a margin B never learned it, and a quadratic with a unit for each
#: variable was not solved in 10,000 steps (234 of 240 runs with such units are right, 223 before).
SHRINKING = 0.9


@stored
class LBFGS(NamedTuple):
    """A limited-memory BFGS matrix.

    Args:
        rows: steps s, then changes y of the gradient along them, oldest first, each divided by ||s||. (BFGS does not
            depend on the length of a pair; unit steps keep the small matrices below well scaled.) For JAX rows of zeros
            follow, see `padded`. None without pairs.
        gram: the products of these rows with each other; a new pair costs two products of the rows by a vector.
        sigma: the curvature of B_0 = sigma I.
        length: the last ||s||; 0 before the first step.
        limit: the number of pairs that are kept.
        matrix: B itself, for NumPy arrays of at most `WORKING_SET` components; None if it was not formed.

    Example:
        >>> B = LBFGS().updated(np.array([2.0, 0.0]), np.array([8.0, 0.0]))
        >>> B.product(np.array([1.0, 1.0])).tolist(), B.inverse_product(np.array([4.0, 4.0])).tolist()
        ([4.0, 4.0], [1.0, 1.0])
    """

    ring: Pairs | None = None
    gram: Matrix = np.zeros((0, 0))
    sigma: float = 1.0
    length: float = 0.0
    limit: int = 20
    matrix: Matrix | None = None

    @classmethod
    def fresh(cls, gradient: Array, limit: int = 20) -> LBFGS:
        """Return a matrix without pairs, whose step -H gradient has length 1 at most (largest component)."""
        return cls(sigma=max(1.0, float(max_norm(gradient))), limit=limit)

    @property
    def pairs(self) -> int:
        """The number of pairs."""
        return len(self.gram) // 2

    @property
    def is_fresh(self) -> bool:
        """Whether no step has been taken in."""
        return self.length == 0

    @property
    def steps(self) -> list[Array]:
        """The steps s, oldest first."""
        return [] if self.ring is None else self.ring.vectors()[: self.pairs]

    @property
    def changes(self) -> list[Array]:
        """The changes y of the gradient, oldest first."""
        return [] if self.ring is None else self.ring.vectors()[self.pairs :]

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # the line search refuses non-finite numbers
    def updated(self, s: Array, y: Array, moderate: bool = False) -> LBFGS:
        """Return the matrix with one more pair and sigma = y'y / s'y.

        If s'y < 0.2 s'Bs, Powell's damping replaces y by the point between y and B s with s'y = 0.2 s'Bs, so B stays
        positive definite. Without curvature B would collapse along s. That is allowed only while the steps do not
        shrink (the function has no lower bound there, or is nearly flat); otherwise the pair is skipped.

        Args:
            s: the step.
            y: the change of the gradient along it.
            moderate: sigma = ||y|| / ||s|| if the pair is damped. Its s'y is not measured and may be far smaller than
                ||s|| ||y||. The multipliers of an SQP step grow with sigma, and the curvature of their Lagrangian grows
                with them: with y'y / s'y both reached 1e9 on ORTHREGA.

        References:
            M. J. D. Powell, "A fast algorithm for nonlinearly constrained optimization calculations" (1978);
            J. Nocedal and S. J. Wright, "Numerical Optimization", Procedure 18.2.
        """
        dense = type(s) is np.ndarray and len(s) <= WORKING_SET
        inner: Any = np.ndarray.dot if dense else dot
        size = float(inner(s, s)) ** 0.5
        if not size > 0:
            return self
        s, y = s / size, y / size
        if dense:
            curvature, model = float(s.dot(y)), float(s.dot(self.product(s)))
        else:
            pair = namespace(s).stack([s, y])
            seen, ((unit, curvature), (_, square)) = self.products(pair), products(pair, pair).tolist()
            del pair
            model = float(self.sigma * unit - self._lowered(seen[:, 0]) @ seen[:, 0])
        if curvature <= FLAT * model and size < SHRINKING * self.length:
            return self._replace(length=size)
        damped = curvature < POWELL * model
        if damped:
            theta = (1 - POWELL) * model / (model - curvature)
            y = theta * y + (1 - theta) * self.product(s)
            curvature = float(inner(s, y))
            if not dense:
                seen[:, 1], square = self.products(y[None, :])[:, 0], dot(y, y)
        if not curvature > 0:
            return self
        if dense:
            square = float(y.dot(y))
        sigma = square**0.5 if damped and moderate else square / curvature
        if not 0 < sigma < math.inf:
            return self
        if dense:
            ring = (self.ring or ShortPairs(np.zeros((0, len(s)), s.dtype), -1, ())).joined(s, y, self.limit)
            Z = ring.data.astype(np.float64, copy=False)
            gram = Z.dot(Z.T)
            return LBFGS(ring, gram, sigma, size, self.limit, _matrix(Z, gram, sigma))
        ring = (self.ring or Pairs.none(s, self.limit)).joined(s, y, self.limit)
        gram = self._extended(seen, np.array([[unit, curvature], [curvature, square]]))
        return LBFGS(ring, gram, sigma, size, self.limit)

    def _extended(self, seen: Matrix, own: Matrix) -> Matrix:
        """Return the products with one more pair, and without the oldest if there are more than `limit`.

        ``seen`` are the products of the s and y before with the new s and y, ``own`` those of the new ones.
        """
        k = self.pairs
        first = max(0, k + 1 - self.limit)  # the oldest pair that is kept
        before, kept = np.r_[first:k, k + first : 2 * k], k - first
        old, new = np.r_[:kept, kept + 1 : 2 * kept + 1], np.array([kept, 2 * kept + 1])
        gram = np.empty((2 * kept + 2, 2 * kept + 2))
        gram[np.ix_(old, old)] = self.gram[np.ix_(before, before)]
        gram[np.ix_(old, new)], gram[np.ix_(new, old)] = seen[before], seen[before].T
        gram[np.ix_(new, new)] = own
        return gram

    def rescaled(self, factor: float) -> LBFGS:
        """Return the matrix of a function that was multiplied by ``factor``."""
        if self.ring is None:
            return self._replace(sigma=factor * self.sigma)
        factors = np.repeat([1.0, factor], self.pairs)
        return self._replace(
            ring=self.ring.rescaled(factor),
            gram=np.outer(factors, factors) * self.gram,
            sigma=factor * self.sigma,
            matrix=None if self.matrix is None else factor * self.matrix,
        )

    def spectral(self, s: Array, y: Array) -> LBFGS:
        """Return the matrix sigma I with sigma = s'y / s's, or a fifth of the sigma before if s has no curvature.

        There is no other damping: one number has no positive definiteness to lose. sigma stays between the square root
        of the precision and its reciprocal.

        References:
            J. Barzilai and J. M. Borwein, "Two-point step size gradient methods", IMA J. Numerical Analysis 8 (1988).
        """
        size, curvature = dot(s, s), dot(s, y)
        if not size > 0:
            return self
        sigma = curvature / size if curvature > 0 else POWELL * self.sigma
        least = machine_eps(s) ** 0.5
        return LBFGS(sigma=min(max(sigma, least), 1 / least), length=size**0.5, limit=self.limit)

    def cleared(self, sigma: float = 1.0) -> LBFGS:
        """Return sigma I, with the same limit."""
        return LBFGS(sigma=sigma, limit=self.limit)

    def inverse_product(self, v: Array) -> Array:
        """Return H v by the two-loop recursion (Nocedal and Wright, Algorithm 7.4) on products with the pairs."""
        if self.ring is None:
            return v / self.sigma
        k, gram, u = self.pairs, self.gram, self.products(v[None, :])[:, 0]
        curvatures = gram.diagonal(k)  # s'y
        a, taken = np.zeros(k), np.zeros(2 * k)  # the vector of the recursion is v plus these shares of the s and y
        for i in reversed(range(k)):
            a[i] = (u[i] + gram[i] @ taken) / curvatures[i]
            taken[k + i] = -a[i]
        u, taken = u / self.sigma, taken / self.sigma
        for i in range(k):
            taken[i] = a[i] - (u[k + i] + gram[k + i] @ taken) / curvatures[i]
        return v / self.sigma + self.ring.combine(taken)

    def product(self, v: Array) -> Array:
        """Return B v by the compact form."""
        if self.ring is None:
            return self.sigma * v
        if self.matrix is not None:
            return self.matrix.dot(v).astype(v.dtype, copy=False)
        return self.sigma * v - self.ring.combine(self._lowered(self.products(v[None, :])[:, 0]))

    def products(self, vectors: Array) -> Matrix:
        """Return the products of the s, then of the y, with each of the vectors, on the host."""
        return np.zeros((0, vectors.shape[0])) if self.ring is None else self.ring.products(vectors)

    def _lowered(self, u: Matrix) -> Matrix:
        """Return the coefficients of sigma v - B v, where u are the products of the s and y with v."""
        units = np.repeat([self.sigma, 1.0], self.pairs)
        return units * solve_symmetric(self.middle(), units * u)

    def middle(self) -> Matrix:
        """Return K of the compact form, see `middle_matrix`."""
        k = self.pairs
        return middle_matrix(self.gram[:k, :k], self.gram[:k, k:], self.sigma)


def _matrix(Z: Matrix, gram: Matrix, sigma: float) -> Matrix:
    """Return B by the compact form, with the lower block of its middle matrix eliminated.

    With S^T Y = L + D + R (strictly lower, diagonal, strictly upper), M = sigma S^T S + L D^-1 L^T is positive definite
    and B = sigma I + Y D^-1 Y^T - T^T M^-1 T, T = sigma S^T + L D^-1 Y^T: a sum of two squares, by one Cholesky factor.

    References:
        R. H. Byrd, J. Nocedal and R. B. Schnabel (see `middle_matrix`), eq. (2.26).
    """
    k = len(gram) // 2
    S, ss, sy = Z[:k], gram[:k, :k], gram[:k, k:]
    roots = np.sqrt(sy.diagonal())
    L, Y = strictly_lower(k) * sy / roots, Z[k:] / roots[:, None]
    factor = cholesky_divided(sigma * ss + L.dot(L.T), sigma * S + L.dot(Y))
    if factor is not None:
        B = Y.T.dot(Y) - factor[1].T.dot(factor[1])
    else:  # pairs that nearly depend on each other
        W = np.concatenate((sigma * S, Z[k:]))
        B = -W.T @ solve_symmetric(middle_matrix(ss, sy, sigma), W)
        B = (B + B.T) / 2
    B = np.ascontiguousarray(B)
    B.ravel()[:: len(B) + 1] += sigma
    return B


def middle_matrix(ss: Matrix, sy: Matrix, sigma: float) -> Matrix:
    """Return K of the compact form ``B = sigma I - W K^-1 W^T`` with ``W = [sigma S, Y]`` (columns s_i, y_i).

    References:
        R. H. Byrd, J. Nocedal and R. B. Schnabel, "Representations of quasi-Newton matrices and their use in limited
        memory methods", Mathematical Programming 63 (1994), eq. (2.17).
    """
    k, L = len(ss), strictly_lower(len(ss)) * sy
    K = np.zeros((2 * k, 2 * k))
    K[:k, :k] = sigma * ss
    K[:k, k:], K[k:, :k] = L, L.T
    K.flat[2 * k * k + k :: 2 * k + 1] = -np.diagonal(sy)
    return K
