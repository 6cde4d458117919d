"""Problems whose set X carries part of the answer: a simplex, a box with active bounds, a ball."""

from __future__ import annotations

import numpy as np

from gdpa.base.sets import Ball, Box, Simplex
from gdpa.oracles.functions import from_functions
from gdpa.oracles.library.base import TestProblem


def portfolio() -> TestProblem:
    """``min sum q_i x_i^2 / 2`` over the simplex at a mean return of at least 7/2; the last asset stays out.

    The closed form: with nu = 1/2 for ``sum x = 1``, q_i x_i - lambda mu_i + nu is zero where x_i > 0 and
    1/2 > 0 where x_i = 0.
    """
    q = np.array([4.0, 8.0, 2.0, 1.0])
    mean = np.array([3.0, 5.0, 3.0, 0.0])
    problem = from_functions(
        lambda x: x @ (q * x) / 2,
        lambda x: np.array([3.5 - mean @ x]),
        gradient=lambda x: q * x,
        jacobian=lambda x: -mean[None],
        domain=Simplex(),
        names=("return",),
    )
    source = "closed form: (1, 2, 1, 0) - lambda (3, 5, 3, 0) + 1/2 = (0, 0, 0, 1/2) at lambda = 1/2"
    solution = np.array([0.25, 0.25, 0.5, 0.0])
    return TestProblem("portfolio", problem, np.full(4, 0.25), solution, np.array([0.5]), source)


def box_corner() -> TestProblem:
    """``min (x0 - 3)^2 + (x1 - 2)^2 + (x2 + 2)^2`` subject to ``x1^2 + x0 x1 <= 2``; two bounds are active.

    The box is [0, 1] x [0, 3] x [-1, 1] and the constraint is not convex. At (1, 1, -1) the gradient of the
    Lagrangian is (-10/3, 0, 2): it pushes against the upper bound of x0 and the lower bound of x2.
    """
    center = np.array([3.0, 2.0, -2.0])
    problem = from_functions(
        lambda x: (x - center) @ (x - center),
        lambda x: np.array([x[1] ** 2 + x[0] * x[1] - 2]),
        gradient=lambda x: 2 * (x - center),
        jacobian=lambda x: np.array([[x[1], 2 * x[1] + x[0], 0.0]]),
        domain=Box([0.0, 0.0, -1.0], [1.0, 3.0, 1.0]),
    )
    source = "closed form: -2 + 3 lambda = 0 in the free coordinate gives lambda = 2/3"
    solution = np.array([1.0, 1.0, -1.0])
    return TestProblem("box-corner", problem, np.array([0.5, 2.0, 0.5]), solution, np.array([2 / 3]), source)


def ball_product() -> TestProblem:
    """``min -x0 x1`` on the ball of radius 5 around (1, 1) subject to ``x1 <= 4``; the ball's edge is active."""
    problem = from_functions(
        lambda x: -x[0] * x[1],
        lambda x: np.array([x[1] - 4]),
        gradient=lambda x: np.array([-x[1], -x[0]]),
        jacobian=lambda x: np.array([[0.0, 1.0]]),
        domain=Ball(5.0, [1.0, 1.0]),
    )
    source = "closed form at (5, 4): (-4, -5) + lambda (0, 1) + nu (4, 3) = 0 gives nu = 1, lambda = 2"
    return TestProblem("ball-product", problem, np.array([1.0, 2.0]), np.array([5.0, 4.0]), np.array([2.0]), source)
