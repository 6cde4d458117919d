"""Two problems without an answer, to provoke the statuses that say so."""

from __future__ import annotations

import numpy as np

from gdpa.oracles.functions import from_functions
from gdpa.oracles.library.base import TestProblem


def disjoint_discs() -> TestProblem:
    """``min x1`` in two unit discs around (-2, 0) and (2, 0), which have no point in common."""
    centers = np.array([[-2.0, 0.0], [2.0, 0.0]])
    problem = from_functions(
        lambda x: x[1],
        lambda x: ((x - centers) ** 2).sum(axis=1) - 1,
        gradient=lambda x: np.array([0.0, 1.0]),
        jacobian=lambda x: 2 * (x - centers),
        names=("left", "right"),
    )
    source = "the centers are 4 apart, the radii sum to 2; the violation is least at the origin"
    return TestProblem("disjoint-discs", problem, np.array([1.0, 1.0]), None, None, source, "infeasible")


def open_strip() -> TestProblem:
    """``min -x0 x1`` subject to ``(x0 - x1)^2 <= 1``: along the diagonal f falls without bound."""
    problem = from_functions(
        lambda x: -x[0] * x[1],
        lambda x: np.array([(x[0] - x[1]) ** 2 - 1]),
        gradient=lambda x: np.array([-x[1], -x[0]]),
        jacobian=lambda x: 2 * (x[0] - x[1]) * np.array([[1.0, -1.0]]),
    )
    source = "x = (t, t) is feasible for every t and f = -t^2"
    return TestProblem("open-strip", problem, np.array([1.0, 0.5]), None, None, source, "unbounded")
