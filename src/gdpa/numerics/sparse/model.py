"""The step of stabilized SQP for sparse problems: the model of `gdpa.numerics.model` in time linear in the nonzeros.

    p = argmin  c'p + p'Bp/2 + beta/2 ||[r + J p]_+||^2   subject to   lower <= p <= upper

An active-set iteration finds the step near a solution in one or two factorizations; in every round B is shifted until
the model is convex on the active set. If the iteration does not settle, B is shifted until the whole model is convex,
and an interior-point method takes over, whose number of factorizations hardly depends on the size of the problem.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gdpa.base.arrays import max_norm, row_sizes
from gdpa.base.typing import Vector
from gdpa.numerics.model import ModelStep
from gdpa.numerics.sparse.factor import augmented
from gdpa.numerics.sparse.interior import interior_point
from gdpa.numerics.sparse.matrix import SparseMatrix, diagonal, transposed
from gdpa.numerics.sparse.program import Quadratic, SparseModel

#: The number of guesses of the active set.
ROUNDS = 8
#: A shift is in proportion to the lack of each diagonal entry to outweigh its row, plus this share of the largest lack.
#: Without that share the problems of `benchmarks.ablation` take 0.3 % more passes.
FLOOR = 1e-3
#: The first shift is this share of the shape, and every further one is GROWTH times larger. The larger the shift, the
#: shorter the step along directions without curvature, so it is not to exceed the least one by much: with 10 in place
#: of 2, ten `coupled` problems of `benchmarks.ablation_cases` take 21 to 89 steps instead of 11 to 31.
FIRST_SHIFT, GROWTH = 1e-2, 2.0
#: A matrix is tested with this share of the shift it gets, so that the rest is clearly positive.
CLEARLY = 0.9
#: No matrix counts as smaller than this, and no shift is larger than its reciprocal.
LEAST = 1e-8
#: A multiplier or a slack below this share of the largest one has no sign.
SIGNLESS = 1e-12


class _Guess(NamedTuple):
    """A guess of the active set: rows, and coordinates at their lower and upper bounds."""

    rows: Vector
    at_lower: Vector
    at_upper: Vector


def sparse_model_step(
    B: Quadratic,
    c: Vector,
    J: SparseMatrix,
    r: Vector,
    beta: float,
    num_equalities: int = 0,
    bounds: tuple[Vector, Vector] | None = None,
    interior: bool = True,
    near: ModelStep | None = None,
) -> ModelStep:
    """Return the minimizer of the model and its multipliers; with the arguments of `gdpa.numerics.model`.

    If no active set is found, an interior-point method takes over; without ``interior`` the step is NaN instead. The
    first guess of the active set comes from the step ``near``, which minimizes a model with another beta.

    References:
        M. Hintermueller, K. Ito and K. Kunisch, "The primal-dual active set strategy as a semismooth Newton method",
        SIAM J. Optimization 13 (2002).

    Example:
        >>> from gdpa.numerics.sparse.matrix import read
        >>> B = Quadratic(read(np.eye(2)))
        >>> step = sparse_model_step(B, np.array([-2.0, 1.0]), read([[1.0, 0.0]]), np.array([-0.5]), beta=1e6)
        >>> step.direction.round(3).tolist(), step.multipliers.round(3).tolist()
        ([0.5, -1.0], [1.5])
    """
    m = len(r)
    is_equality = np.arange(m) >= m - num_equalities
    infinite = np.full(len(c), np.inf)
    lower, upper = (-infinite, infinite) if bounds is None else bounds
    if near is None:
        rows = is_equality | (r > 0)
        slope = c + (beta * np.where(rows, r, 0.0)) @ J
        guess = _Guess(rows, (lower >= 0) & (slope > 0), (upper <= 0) & (slope < 0))
    else:
        guess = _Guess(is_equality | (near.multipliers > 0), near.direction <= lower, near.direction >= upper)
    model = SparseModel(B, c, J, r, beta, is_equality, lower, upper)
    step = _settle(model, guess)
    if step is not None:
        return step
    model = model._replace(B=_convex(model, is_equality, infinite > 0)) if interior else model
    inner = interior_point(model) if interior else None
    if inner is None:
        return ModelStep(np.full(len(c), np.nan), np.full(m, np.nan))
    active = is_equality | (inner.multipliers > inner.slacks)
    guess = _Guess(active, inner.lower_multipliers > inner.p - lower, inner.upper_multipliers > upper - inner.p)
    polished = _settle(model, guess)
    if polished is not None:
        return polished
    p = np.where(guess.at_lower, lower, np.where(guess.at_upper, upper, np.clip(inner.p, lower, upper)))
    return ModelStep(p, inner.multipliers)


def _settle(model: SparseModel, guess: _Guess) -> ModelStep | None:
    """Return the step of the primal-dual active-set iteration, or None if it does not settle."""
    c, J, r, beta, is_equality = model.c, model.J, model.r, model.beta, model.is_equality
    lower, upper = model.lower, model.upper
    d, m = len(c), len(r)
    for _ in range(ROUNDS):
        rows, at_lower, at_upper = guess
        free = ~(at_lower | at_upper)
        fixed = np.where(at_lower, lower, np.where(at_upper, upper, 0.0))
        convex = model._replace(B=_convex(model, rows, free))
        solve = convex.factored(np.zeros(d), np.full(m, 1 / beta), free, rows)
        if solve is None:
            return None
        slope = np.where(free, -(c + convex.B.product(fixed)), 0.0)
        solution = solve(np.concatenate([slope, np.where(rows, -(r + J @ fixed), 0.0)]))
        p = np.where(free, solution[:d], fixed)
        multipliers = np.where(rows, solution[d:], 0.0)
        if not np.isfinite(solution).all():
            return None
        z = convex.gradient(p, multipliers)
        values = r + J @ p
        least = SIGNLESS * (max_norm(multipliers) + np.finfo(float).tiny)
        tiny, out = SIGNLESS * (1.0 + max_norm(values)), SIGNLESS * (1.0 + max_norm(p))
        none = SIGNLESS * (max_norm(z) + max_norm(c))
        follow = _Guess(
            is_equality | (rows & (multipliers > -least)) | (~rows & (values > tiny)),
            (at_lower & (z > -none)) | (free & (p < lower - out)),
            (at_upper & (z < none)) | (free & (p > upper + out)),
        )
        if all(np.array_equal(a, b) for a, b in zip(follow, guess, strict=True)):
            return ModelStep(np.clip(p, lower, upper), np.where(is_equality, multipliers, np.maximum(multipliers, 0.0)))
        guess = follow
    return None


def _convex(model: SparseModel, rows: Vector, free: Vector) -> Quadratic:
    """Return B with the least shift tried for which B + beta J_A'J_A is positive definite on the free coordinates.

    A are the given rows. The shift has the shape of the diagonal's lack to outweigh its row: that much of it leaves
    no negative eigenvalue (Gershgorin), and coordinates with enough curvature of their own keep it.
    """
    B, inside = model.B, free.astype(float)
    if B.W is not None:  # limited-memory BFGS is positive definite
        return B
    H, pattern = B.H * inside[:, None] * inside, B.H.pattern
    own = pattern.rows == pattern.indices
    lacking = np.bincount(pattern.rows, np.where(own, -H.data, np.abs(H.data)), pattern.shape[0])
    if (lacking[free] < 0).all():
        return B
    test, weights = augmented(pattern, model.J.pattern), np.where(rows, model.beta, 0.0)
    J = model.J * inside
    size = max(float(max_norm(H.data)), LEAST)
    shape = np.maximum(lacking, 0.0) + FLOOR * max(float(lacking.max(initial=0.0)), 0.0) + LEAST * size
    share = 0.0
    while not test.is_positive_definite(H, J, np.where(free, CLEARLY * share * shape, 1.0), weights):
        share = FIRST_SHIFT if share == 0 else GROWTH * share
        if not share < 1 / LEAST:
            break
    return B.shifted(np.where(free, share * shape, 0.0))


def sparse_least_squares(D: SparseMatrix, slack: Vector, b: Vector, num_equalities: int = 0) -> Vector:
    """Return argmin ``||D^T y - b||^2 + ||slack y||^2`` over y >= 0, the last ``num_equalities`` components free.

    It is the model with B = diag(slack)^2 and the residuals as equalities of penalty 1. A share of `SIGNLESS` of the
    largest row of D keeps B positive definite if rows depend on each other.
    """
    m, d = D.shape
    size = np.where(row_sizes(D) > 0, row_sizes(D), 1.0)
    turned, places = transposed(D.pattern)
    A = SparseMatrix(turned, (D / size[:, None]).data[places])
    B = Quadratic(SparseMatrix(diagonal(m), (slack / size) ** 2 + SIGNLESS))
    lower = np.where(np.arange(m) >= m - num_equalities, -np.inf, 0.0)
    y = np.zeros(m)
    for _ in range(2):  # the second time the term that keeps B definite pulls to the first answer, not to zero
        y = sparse_model_step(B, -SIGNLESS * y, A, -b, 1.0, d, (lower, np.full(m, np.inf))).direction
        if not np.isfinite(y).all():
            return np.zeros(m)
    return y / size
