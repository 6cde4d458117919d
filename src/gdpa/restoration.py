"""Restoration: the nearest point that is feasible to rounding, at the end of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdpa.kkt import Certificate, certify
from gdpa.problem import Problem

Vector = np.ndarray[Any, np.dtype[Any]]

#: Gauss-Newton steps at most; from a violation of 1e-6 two are enough unless the constraints are degenerate.
RESTORATIONS = 3


def restored(problem: Problem, certificate: Certificate, tolerance: float) -> Certificate:
    r"""Return a certificate at a nearby point with less violation, or ``certificate`` if there is none as good.

    With the rows v that are violated (every equality, and g_i > 0) and lengths L of the variables, the step is the
    shortest one in units of L that satisfies them to first order, put back into X:

    .. math:: x \leftarrow P_X(x - L (J_v L)^+ g_v)

    The point is taken only if it is certified to ``tolerance`` as the first one was. NumPy alone.

    Args:
        problem: the problem.
        certificate: of the point to begin with.
        tolerance: of the certificate to return.

    >>> from gdpa.problems import get
    >>> disc = get("disc-product")
    >>> before = certify(disc.problem, disc.solution + 1e-7)
    >>> after = restored(disc.problem, before, 1e-6)
    >>> float(before.constraints[0]) > 1e-7, abs(float(after.constraints[0])) < 1e-15
    (True, True)
    """
    best = certificate
    lengths = certificate.start.lengths(certificate.x)
    for _ in range(RESTORATIONS):
        violated, worst = _violated(problem, best.constraints)
        if not worst > 0:
            break
        now = problem.evaluate(best.x)
        J = now.jacobian()[violated] * lengths
        if not np.isfinite(J).all():
            break
        step = lengths * np.linalg.lstsq(J, -now.constraints[violated], rcond=None)[0]
        x = problem.domain.project(best.x + step)
        if np.array_equal(x, best.x):
            break
        found = problem.evaluate(x)
        if not _violated(problem, found.constraints)[1] < worst:
            break
        next_one = certify(problem, x, best.multipliers, start=certificate.start, evaluation=found, snap=0.0)
        if not next_one.holds(tolerance):
            break
        best = next_one
    return best


def _violated(problem: Problem, g: Vector) -> tuple[Vector, float]:
    """Return which rows are violated, and by how much at most."""
    equality = np.arange(g.shape[0]) >= g.shape[0] - problem.num_equalities
    amounts = np.where(equality, np.abs(g), np.maximum(g, 0.0))
    return amounts > 0, float(amounts.max(initial=0.0))
