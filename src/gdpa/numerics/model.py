"""The step of stabilized SQP: the minimizer of a model of F_beta with linearized constraints, over a box.

    p = argmin  c'p + p'Bp/2 + beta/2 ||[r + J p]_+||^2   subject to   lower <= p <= upper

with B a limited-memory BFGS matrix. Everything but sums over the coordinates happens in the span of
Z = [c; J; S; Y]: one Gram matrix of these rows, then algebra of size m + 2 pairs + 1 on the host. If B is known as a
matrix the model is one small program for the C library daqp, or without bounds its dual for nonnegative multipliers.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from gdpa.base.arrays import all_finite, column_pieces, from_numpy, machine_eps, namespace, products, to_float64
from gdpa.base.typing import Array
from gdpa.numerics.dense import Matrix, cholesky_divided, lapack, solve_symmetric
from gdpa.numerics.lbfgs import LBFGS
from gdpa.numerics.qp import ROUNDS, WORKING_SET, nonnegative_qp

#: Up to this many variables and constraints together daqp takes less time than the dual: 10 us against 23 with 10
#: variables and 8 constraints, 35 against 34 with 30 and 20, 109 against 55 with 50 and 30, 430 against 125 with 80 and
#: 50.
SMALL = 60
#: daqp's tolerance on the constraints. Its own 1e-6 would hide the last digits of a step near a solution.
PRIMAL_TOLERANCE = 1e-14


class ModelStep(NamedTuple):
    """The minimizer p of the model and the multipliers l = beta [r + J p]_+ of its constraints."""

    direction: Array
    multipliers: Array


class _Span(NamedTuple):
    """The model in coordinates: vectors are combinations of the rows of Z, W = [sigma S, Y] = Z^T E."""

    E: Matrix
    K: Matrix
    sigma: float
    rows: slice
    offset: Matrix
    beta: float
    num_equalities: int

    def curved(self, u: Matrix) -> Matrix:
        """Return the coefficients of B v - sigma v, where u = Z v."""
        return -self.E @ solve_symmetric(self.K, self.E.T @ u) if u.any() else np.zeros(len(u))

    def minimize(self, gram: Matrix, u: Matrix) -> tuple[Matrix, Matrix]:
        """Return the coefficients of p on the free coordinates, and l.

        ``gram`` is Z Z^T over the free coordinates and ``u`` is Z times the fixed part of p. The dual of the model is
        min over l >= 0 of l'(J H J' + I/beta)l/2 - l'(r - J H c), and p = -H(c + J'l), with H the
        inverse of B on the free coordinates: I/sigma + W (K - W'W/sigma)^-1 W'/sigma^2.
        """
        E, sigma, rows = self.E, self.sigma, self.rows
        WZ = E.T @ gram
        X = solve_symmetric(self.K - WZ @ E / sigma, WZ) / sigma**2  # H = I/sigma + E X in coefficients: never formed
        a = self.curved(u)
        a[0] += 1.0
        A = gram[rows, rows] / sigma + WZ[:, rows].T @ X[:, rows]
        b = self.offset + u[rows] - gram[rows] @ (a / sigma + E @ (X @ a))
        multipliers = nonnegative_qp((A + A.T) / 2 + np.eye(len(b)) / self.beta, b, self.num_equalities)
        a[rows] += multipliers
        return -(a / sigma + E @ (X @ a)), multipliers


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # the line search refuses non-finite numbers
def model_step(
    curvature: LBFGS,
    c: Array,
    J: Array,
    r: Array,
    beta: float,
    num_equalities: int = 0,
    bounds: tuple[Array, Array] | None = None,
) -> ModelStep:
    """Return the minimizer of the model and its multipliers (stabilized SQP; with m = 0 a quasi-Newton step).

    c is the gradient of all but the constraints in J, r = g + lambda / beta their shifted values, lower <= 0 <= upper
    the bounds of p, and [.]_+ the identity on the last ``num_equalities`` rows. The active bounds are found by a
    primal-dual active-set iteration: free coordinates that leave the box are put on its edge, those on the edge whose
    gradient points inwards are freed. The last guess is clipped.

    References:
        S. J. Wright, "Superlinear convergence of a stabilized SQP method to a degenerate solution", Computational
        Optimization and Applications 11 (1998). P. E. Gill and D. P. Robinson, "A globally convergent stabilized SQP
        method", SIAM J. Optimization 23 (2013).

    Example:
        >>> step = model_step(LBFGS(), np.array([-2.0, 0.0]), np.array([[1.0, 0.0]]), np.array([-0.5]), beta=1e6)
        >>> step.direction.round(3).tolist(), step.multipliers.round(3).tolist()
        ([0.5, 0.0], [1.5])
    """
    m = J.shape[0]
    if m - num_equalities > WORKING_SET:
        return _on_rows_that_matter(curvature, c, J, r, beta, num_equalities, bounds)
    return _minimize(curvature, c, J, r, beta, num_equalities, bounds)


def _on_rows_that_matter(
    curvature: LBFGS, c: Array, J: Array, r: Array, beta: float, p: int, bounds: tuple[Array, Array] | None
) -> ModelStep:
    """Return the step of the rows that are positive along it, found by adding those that it makes positive."""
    xp, values, m = namespace(J), to_float64(r), J.shape[0]
    inside = (np.arange(m) >= m - p) | (values > 0)
    inside[np.argsort(values)[: -WORKING_SET - J.shape[1] - p]] = False
    inside[m - p :] = True
    step = ModelStep(c, r)
    for _ in range(ROUNDS):
        index = xp.asarray(np.flatnonzero(inside), device=array_api_compat.device(J))
        rows, offsets = xp.take(J, index, axis=0), xp.take(r, index, axis=0)
        step = _minimize(curvature, c, rows, offsets, beta, p, bounds)
        changed = to_float64(J @ step.direction)
        above = np.where(inside, 0.0, values + changed)
        joining = above > machine_eps(c) * (np.abs(values) + np.abs(changed))
        joining[np.argsort(above)[: -max(WORKING_SET, len(index))]] = False  # the largest first
        multipliers = np.zeros(m)
        multipliers[inside] = to_float64(step.multipliers)
        step = ModelStep(step.direction, from_numpy(multipliers, c))
        if not joining.any():
            break
        inside |= joining
    return step


def _minimize(
    curvature: LBFGS, c: Array, J: Array, r: Array, beta: float, num_equalities: int, bounds: tuple[Array, Array] | None
) -> ModelStep:
    known = curvature.matrix is not None or (curvature.ring is None and len(c) <= WORKING_SET)
    if known and type(c) is np.ndarray:
        B = curvature.sigma * np.eye(len(c)) if curvature.matrix is None else np.asarray(curvature.matrix)
        small = None
        if bounds is not None or len(c) + len(r) <= SMALL:
            small = elastic_qp(B, c, J, r, beta, num_equalities, bounds)
        if small is None and bounds is None:
            small = dual_qp(B, c, J, r, beta, num_equalities)
        if small is not None:
            return ModelStep(small[0].astype(c.dtype, copy=False), small[1].astype(c.dtype, copy=False))
    xp, m, k = namespace(c), J.shape[0], curvature.pairs
    Z = _Rows(xp.concat([c[None, :], J]), curvature)
    gram, size = Z.gram(), 1 + m + 2 * k
    E = np.zeros((size, 2 * k))
    E[1 + m :] = np.diag(np.repeat([curvature.sigma, 1.0], k))
    span = _Span(E, curvature.middle(), curvature.sigma, slice(1, 1 + m), to_float64(r), beta, num_equalities)
    if bounds is None:
        coefficients, multipliers = span.minimize(gram, np.zeros(size))
        return ModelStep(Z.combine(coefficients), from_numpy(multipliers, c))
    lower, upper = bounds
    zero = xp.zeros_like(c)
    at_lower, at_upper = (lower >= 0) & (c > 0), (upper <= 0) & (c < 0)
    p, multipliers = zero, np.zeros(m)
    for _ in range(ROUNDS):
        free = ~(at_lower | at_upper)
        fixed = xp.where(at_lower, lower, xp.where(at_upper, upper, zero))
        if bool(xp.all(free)):
            coefficients, multipliers = span.minimize(gram, np.zeros(size))
        else:
            coefficients, multipliers = span.minimize(Z.gram_on(free), Z.products(fixed))
        p = xp.where(free, Z.combine(coefficients), fixed)
        slope = span.curved(Z.products(p))
        slope[0] += 1.0
        slope[1 : 1 + m] += multipliers
        z = Z.combine(slope) + curvature.sigma * p  # the model's gradient at p: zero on the free coordinates
        lower_next = (at_lower & (z > 0)) | (free & (p < lower))
        upper_next = (at_upper & (z < 0)) | (free & (p > upper))
        if not bool(xp.any((lower_next ^ at_lower) | (upper_next ^ at_upper))):
            break
        at_lower, at_upper = lower_next, upper_next
    return ModelStep(xp.minimum(xp.maximum(p, lower), upper), from_numpy(multipliers, c))


class _Rows(NamedTuple):
    """The rows Z = [c; J; S; Y] with new = [c; J]; the matrix has S, Y and their products with each other."""

    new: Array
    curvature: LBFGS

    def products(self, v: Array) -> Matrix:
        """Return Z v."""
        return np.concatenate((products(self.new, v[None, :]), self.curvature.products(v[None, :])))[:, 0]

    def combine(self, coefficients: Matrix) -> Array:
        """Return Z' coefficients."""
        n, ring = self.new.shape[0], self.curvature.ring
        sum_of_new = from_numpy(coefficients[:n], self.new) @ self.new
        return sum_of_new if ring is None else sum_of_new + ring.combine(coefficients[n:])

    def gram(self) -> Matrix:
        """Return Z Z'."""
        n = self.new.shape[0]
        gram = np.empty((n + len(self.curvature.gram),) * 2)
        gram[:n, :n], gram[n:, n:] = products(self.new, self.new), self.curvature.gram
        gram[n:, :n] = self.curvature.products(self.new)
        gram[:n, n:] = gram[n:, :n].T
        return gram

    def gram_on(self, free: Array) -> Matrix:
        """Return Z Z' over the free coordinates, in pieces so that Z is not copied whole."""
        xp, n, ring = namespace(free), self.new.shape[0], self.curvature.ring
        gram: Any = 0.0
        for piece in column_pieces(self.new):
            part = self.new[:, piece]
            if ring is not None:
                part = xp.concat([part, ring.rows[:, piece]])
            part = xp.where(free[None, piece], part, xp.zeros_like(part))
            gram = gram + products(part, part)
        if ring is None:
            return np.asarray(gram)
        index, factors = np.r_[:n, n + ring.index], np.r_[np.ones(n), ring.factors]
        return np.asarray(np.outer(factors, factors) * gram[np.ix_(index, index)])


def dual_qp(
    B: Matrix, c: Matrix, J: Matrix, r: Matrix, beta: float, num_equalities: int
) -> tuple[Matrix, Matrix] | None:
    """Return p and l of `model_step` without bounds, or None if B is not positive definite or a number is not finite.

    The dual of the model is min over l >= 0 of l'(J B^-1 J' + I/beta)l/2 - l'(r - J B^-1 c), and p = -B^-1(c + J'l).
    """
    factor = cholesky_divided(B, np.column_stack((c, J.T)))
    if factor is None:
        return None
    L, v, W = factor[0], factor[1][:, 0], factor[1][:, 1:]
    A = W.T.dot(W)
    A.ravel()[:: len(A) + 1] += 1 / beta
    multipliers = nonnegative_qp(A, r - W.T.dot(v), num_equalities)
    p = -lapack().dtrtrs(L, v + W.dot(multipliers), lower=1, trans=1)[0]
    return (p, multipliers) if all_finite(p) else None


@functools.cache
def _library() -> Any:
    """Return daqp, or None if it is not installed.

    D. Arnstrom, A. Bemporad and D. Axehill, "A dual active-set solver for embedded quadratic programming using
    recursive LDL^T updates", IEEE Transactions on Automatic Control 67 (2022).
    """
    try:
        library = importlib.import_module("daqp")
    except ImportError:
        return None
    return library if hasattr(library, "solve") else None  # a folder of that name is not a library


def elastic_qp(
    B: Matrix,
    c: Matrix,
    J: Matrix,
    r: Matrix,
    beta: float,
    num_equalities: int,
    bounds: tuple[Matrix, Matrix] | None,
) -> tuple[Matrix, Matrix] | None:
    """Return p and l of `model_step`, or None if there is no solver for this size, or it fails.

    daqp is used up to `WORKING_SET` variables and constraints: at 100 of each it takes as long as the span.

    With v = sqrt(beta) [r + J p]_+ the model is a strictly convex program with linear constraints::

        min  c'p + p'Bp/2 + v'v/2   subject to   J p - v / sqrt(beta) <= -r  (= for equalities),  lower <= p <= upper
    """
    library = _library()
    m, d = J.shape
    n = d + m
    if library is None or max(d, m) > WORKING_SET:
        return None
    H, f, A = np.zeros((n, n)), np.zeros(n), np.zeros((m, n))
    upper = np.full(n + m, np.inf)
    lower = -upper
    H[:d, :d], f[:d], upper[n:], A[:, :d] = B, c, -r, J
    H.ravel()[d * (n + 1) :: n + 1] = 1.0
    A.ravel()[d :: n + 1] = -(beta**-0.5)
    if num_equalities:
        lower[-num_equalities:] = upper[-num_equalities:]
    if bounds is not None:
        lower[:d], upper[:d] = bounds
    try:
        solution, _, flag, info = library.solve(H, f, A, upper, lower, primal_tol=PRIMAL_TOLERANCE, eps_prox=0.0)
    except ValueError:  # not finite
        return None
    if flag != 1 or not all_finite(solution):
        return None
    p, multipliers = solution[:d], info["lam"]
    if bounds is not None:  # a bound that pushes is met to the last bit: near it is not a KKT point
        lower, upper, push = lower[:d], upper[:d], multipliers[:d]
        p = np.minimum(np.maximum(p, lower), upper)
        np.copyto(p, lower, where=push < 0)
        np.copyto(p, upper, where=push > 0)
    return p, multipliers[n:]
