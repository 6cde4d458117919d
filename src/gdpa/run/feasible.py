"""The last digits of feasibility: from a solution with a small violation to one without, by a few Newton steps."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gdpa.base.arrays import from_numpy, machine_eps, row_sizes, to_float64
from gdpa.base.sets import Box, Reals
from gdpa.base.status import Status
from gdpa.base.typing import Array
from gdpa.core.certificate import Certificate, certify
from gdpa.core.problem import Evaluation, Problem
from gdpa.core.units import roundings
from gdpa.numerics.lbfgs import LBFGS
from gdpa.numerics.model import model_step
from gdpa.numerics.sparse.matrix import SparseMatrix, diagonal
from gdpa.numerics.sparse.model import sparse_model_step
from gdpa.numerics.sparse.program import Quadratic
from gdpa.run.result import Result

#: Newton steps at most. Each squares the violation; the rest is for sets whose boundary is curved.
ROUNDS = 12
#: The penalty of the linearized constraints: a step leaves about one part in this of the violation.
PENALTY = 1e8
#: Inequalities are aimed at minus this share of their rounding, so that the rest after a step is still negative.
MARGIN = 0.5
#: Coordinates within this many roundings of the boundary of X are on it: a projection may miss it by one.
SNAP = 10.0
#: A run that ends with a restoration is to stop at this share of its tolerance: moving x costs some stationarity.
SHARE = 0.1


class Restored(NamedTuple):
    """The outcome of a restoration: the largest violation ``before`` and ``after``, in the units of the constraints.

    ``reached`` if no inequality is positive and no equality nonzero there, up to `core.units.Units.rounding`.
    """

    before: float
    after: float
    reached: bool

    def __str__(self) -> str:
        if self.reached:
            return f"Restored: the violation of {self.before:.1e} is now {self.after:.1e}."
        return f"Not restored: a violation of {self.after:.1e} is left of {self.before:.1e}."


def restored(problem: Problem, result: Result) -> Result:
    """Return the result at a point feasible to rounding, judged there again; success requires that it was reached."""
    certificate, done = restore(problem, result.certificate)
    success = result.success and done.reached and certificate.holds(result.tolerance)
    status = Status.STALLED if result.success and not success else result.status
    return replace(
        result,
        x=certificate.x,
        multipliers=certificate.multipliers,
        certificate=certificate,
        success=success,
        status=status,
        message=f"{status.value} {done} {certificate.summary}",
        restored=done,
    )


class _Point(NamedTuple):
    """A point of X, the oracle call there, how far it is from feasible in roundings, and its largest violation."""

    x: Array
    now: Evaluation
    excess: float
    violation: float


def restore(problem: Problem, certificate: Certificate) -> tuple[Certificate, Restored]:
    r"""Return a certificate of a point of X near the given one that is feasible to rounding, and the outcome.

    Each step is the least change p, coordinates in their lengths L, that solves the linearized constraints

    .. math:: \min_p \|p / L\|^2 \quad\text{subject to}\quad
        g_i + J_i p \le -e_i/2 \;(i < m - p), \quad g_i + J_i p = 0 \text{ for equalities}

    with e_i the rounding of g_i. Coordinates that the multipliers of X hold on its boundary stay there, because a point
    next to the boundary is not a KKT point; if that leads nowhere they are freed. The multipliers are fitted again. An
    oracle call with its Jacobian per step.

    >>> from gdpa import problems
    >>> disc = problems.get("disc-product")
    >>> near = certify(disc.problem, disc.solution * (1 + 1e-6))
    >>> exact, done = restore(disc.problem, near)
    >>> bool(near.constraints[0] > 1e-6), bool(exact.constraints[0] <= 0), exact.holds(1e-6), done.reached
    (True, True, True, True)
    """
    first = _at(problem, certificate.x)
    best = first
    for held in (False,) if isinstance(problem.domain, Reals) else (True, False):
        point = first
        for _ in range(ROUNDS):
            if point.excess <= 0 or not np.isfinite(point.excess):
                break
            point = _at(problem, _step(problem, certificate, point, held))
            best = point if point.excess < best.excess else best
        if best.excess <= 0:
            break
    if best is not first:  # the usual snap would undo the step
        certificate = certify(
            problem, best.x, certificate.multipliers, snap=SNAP * machine_eps(best.x), evaluation=best.now
        )
    return certificate, Restored(first.violation, best.violation, best.excess <= 1)


def _at(problem: Problem, x: Array) -> _Point:
    """Evaluate a point. Its excess is at most 0 if it is feasible, at most 1 if it is so to rounding."""
    now = problem.evaluate(x)
    g, e = map(to_float64, (now.constraints, roundings(x, now)))
    split = len(g) - problem.num_equalities
    violations = np.concatenate([g[:split], np.abs(g[split:])])
    e = np.maximum(e, np.finfo(float).tiny)
    excess = violations / e
    excess[split:] = np.where(excess[split:] <= 1, 0.0, excess[split:])  # no equality is met to the last bit
    worst = float(np.max(excess, initial=-np.inf))
    return _Point(x, now, worst if np.isfinite(violations).all() else np.inf, float(np.max(violations, initial=0.0)))


def _step(problem: Problem, certificate: Certificate, point: _Point, held: bool) -> Array:
    """Return the next point."""
    x, now, domain, p = point.x, point.now, problem.domain, problem.num_equalities
    J, boxed = now.jacobian(), isinstance(domain, (Reals, Box))
    known = now.constraints, x, roundings(x, now), -certificate.gradient, certificate.lengths
    g, z, e, v, lengths = map(to_float64, known)
    lengths = lengths if boxed else np.ones_like(z)
    if sparse := isinstance(J, SparseMatrix) and boxed:
        if held:
            J = J * ((domain.tangent(x, v) != 0) | (v == 0))
        rows = J * lengths
        sizes = row_sizes(rows)
    else:
        J = to_float64(J)
        longest = np.abs(J).max(axis=1, keepdims=True)
        h = 1e-6 * np.abs(v).max() / np.where(longest > 0, longest, 1.0)
        if held and h.all():
            # The derivative of the projection on the tangent cone along the rows: zero for coordinates at a bound of X.
            J = (domain.tangent(np.broadcast_to(z, J.shape), v + h * J) - domain.tangent(z, v)) / h
        rows = J * lengths
        sizes = np.linalg.norm(rows, axis=1)
    sizes = np.where(sizes > 0, sizes, 1.0)
    aim = np.where(np.arange(len(g)) < len(g) - p, MARGIN * e, 0.0)
    rows, offset = rows / sizes[:, None], (g + aim) / sizes
    # Divided by the largest violation, a violation of a few roundings is not rounding to a QP solver.
    split = len(offset) - p
    size = float(max(offset[:split].max(initial=0.0), abs(offset[split:]).max(initial=0.0))) or 1.0
    if sparse:
        B = Quadratic(SparseMatrix(diagonal(len(z)), np.ones(len(z))))
        step = sparse_model_step(B, np.zeros_like(z), rows, offset / size, PENALTY, p)
    else:
        step = model_step(LBFGS(), np.zeros_like(z), rows, offset / size, PENALTY, p)
    return domain.snap(from_numpy(z + size * lengths * step.direction, x), SNAP * machine_eps(x))
