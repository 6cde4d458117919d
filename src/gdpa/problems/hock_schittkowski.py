"""Problems of Hock and Schittkowski, "Test Examples for Nonlinear Programming Codes", 1981."""

from __future__ import annotations

import numpy as np

from gdpa.backends.functions import from_functions
from gdpa.problems.base import TestProblem


def hs12() -> TestProblem:
    """``min x0^2/2 + x1^2 - x0 x1 - 7 x0 - 7 x1`` subject to ``4 x0^2 + x1^2 <= 25``."""
    problem = from_functions(
        lambda x: 0.5 * x[0] ** 2 + x[1] ** 2 - x[0] * x[1] - 7 * x[0] - 7 * x[1],
        lambda x: np.array([4 * x[0] ** 2 + x[1] ** 2 - 25]),
        gradient=lambda x: np.array([x[0] - x[1] - 7, 2 * x[1] - x[0] - 7]),
        jacobian=lambda x: np.array([[8 * x[0], 2 * x[1]]]),
    )
    return TestProblem("HS12", problem, np.zeros(2), np.array([2.0, 3.0]), np.array([0.5]), "Hock-Schittkowski 12")
