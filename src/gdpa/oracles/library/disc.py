"""Two nonconvex objectives on a disc."""

from __future__ import annotations

import numpy as np

from gdpa.oracles.functions import from_functions
from gdpa.oracles.library.base import TestProblem


def disc_product() -> TestProblem:
    """``min -x0 x1`` on the disc of radius sqrt(2): the Lagrangian is flat along the active normal."""
    problem = from_functions(
        lambda x: -x[0] * x[1],
        lambda x: np.array([x @ x - 2]),
        gradient=lambda x: np.array([-x[1], -x[0]]),
        jacobian=lambda x: 2 * x[None],
    )
    source = "closed form: grad f + 2 lambda x = 0 at x = (1, 1) gives lambda = 1/2"
    return TestProblem("disc-product", problem, np.array([0.5, 1.5]), np.ones(2), np.array([0.5]), source)


def disc_square() -> TestProblem:
    """``min -(x0 x1)^2`` on the disc of radius sqrt(2): the solution is not a saddle point of the Lagrangian."""
    problem = from_functions(
        lambda x: -((x[0] * x[1]) ** 2),
        lambda x: np.array([x @ x - 2]),
        gradient=lambda x: -2 * x[0] * x[1] * np.array([x[1], x[0]]),
        jacobian=lambda x: 2 * x[None],
    )
    source = "closed form: grad f + 2 lambda x = 0 at x = (1, 1) gives lambda = 1"
    return TestProblem("disc-square", problem, np.array([0.5, 1.5]), np.ones(2), np.ones(1), source)
