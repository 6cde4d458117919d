"""The judge: one KKT test for every solver, written apart from the library it judges.

x is t-KKT if, with the constraints and bounds that are active to within t,
nonnegative multipliers exist such that::

    ||grad f + J_A^T lambda + bounds||_inf <= t max(1, ||grad f||_inf),   max g_+ <= t,   x in the box to within t.

Inactive constraints get no multiplier, so complementarity |min(-g_i, lambda_i)| <= t holds by construction. The
multipliers of equalities have either sign, and an equality is violated by |h|.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from scipy.optimize import nnls

from benchmarks.nonlinear.suite import Case, Vector

LEVELS = (1e-2, 1e-4, 1e-6)


class Finished(Exception):  # noqa: N818 - no error
    """The judge has seen enough: the tightest level is met, or a limit is reached."""


def is_kkt(case: Case, x: Vector, tolerance: float, f_g: tuple[float, Vector], grad: Vector, J: Vector) -> bool:
    """Return whether x is a KKT point to ``tolerance``."""
    f, g = f_g
    if not (np.isfinite(f) and np.isfinite(g).all() and np.isfinite(grad).all() and np.isfinite(J).all()):
        return False
    return violation(case, x, g) <= tolerance and stationarity(case, x, tolerance, g, grad, J) <= tolerance


def violation(case: Case, x: Vector, g: Vector) -> float:
    """Return the largest absolute violation of a constraint or a bound."""
    m = case.m - case.equalities
    rows = np.concatenate([g[:m], np.abs(g[m:]), case.lower - x, x - case.upper])
    return float(np.max(rows, initial=0.0))


def stationarity(case: Case, x: Vector, tolerance: float, g: Vector, grad: Vector, J: Vector) -> float:
    """Return the largest component of the gradient of the Lagrangian over max(1, |grad f|), with the best multipliers.

    A constraint or a bound that is not active to within ``tolerance`` has none.
    """
    size = max(1.0, float(np.abs(grad).max()))
    m = case.m - case.equalities
    eye = np.eye(len(x))
    active = g[:m] >= -tolerance
    at_lower, at_upper = x - case.lower <= tolerance, case.upper - x <= tolerance
    columns = np.vstack([J[:m][active], -eye[at_lower], eye[at_upper], J[m:], -J[m:]]).T
    if columns.shape[1] == 0:
        return float(np.abs(grad).max()) / size
    lengths = np.linalg.norm(columns, axis=0)
    lengths[lengths == 0] = 1.0
    try:
        y, _ = nnls(columns / lengths, -grad, maxiter=50 * columns.shape[1] + 200)
    except RuntimeError:
        return np.inf
    return float(np.abs(grad + (columns / lengths) @ y).max()) / size


def certificate_holds(case: Case, x: Vector, multipliers: Vector, tolerance: float) -> bool:
    """Tell whether (x, lambda) meets the library's stated measure, computed here from its formulas alone.

    They are those of docs/certificate.md, for a box and inequalities::

        w_j |P_T(-grad f - J^T lambda)_j| <= t,   c_i [g_i]_+ <= t,   min(a_i |g_i|, r_i lambda_i) <= t
    """
    eps = np.finfo(float).eps
    gradient, g, J = case.gradient(x), case.values(x)[1], case.jacobian(x)
    lengths = np.abs(x)
    longest = lengths.max()
    if longest <= 2.0**-33:  # x counts as 0: the distance to the nearest constraint that is not active
        slopes = np.abs(J).sum(axis=1)
        distances = np.abs(g)[slopes > 0] / slopes[slopes > 0]
        longest = np.min(distances[distances > 2.0**-33], initial=np.inf)
        longest = longest if np.isfinite(longest) else 1.0
        lengths = np.full_like(x, longest)
    lengths[lengths <= np.sqrt(eps) * longest] = longest
    near = np.clip(x + 0.1 * lengths * np.sin(np.arange(1, len(x) + 1.0) ** 2), case.lower, case.upper)
    c0, g0 = case.gradient(near), case.values(near)[1]
    s = max(np.abs(gradient).max(), min(1.0, np.abs(c0).max())) or 1.0
    S = max(np.abs(gradient * lengths).max(), min(longest, np.abs(c0 * lengths).max())) or longest
    w = np.maximum(1 / s, np.minimum(lengths / S, 1e6 / s))
    n = np.abs(J) @ lengths
    n[n == 0] = 1.0
    size = np.where(np.abs(g) <= 10 * eps * (np.abs(J) @ lengths), 0.0, np.abs(g))
    slope = np.abs(J @ (near - x))
    share = np.minimum(1.0, np.maximum(np.abs(g0 - g) + np.abs(g), eps * slope) / np.where(slope > 0, slope, 1.0))
    share[slope == 0] = 1.0
    slack = np.minimum(size / np.minimum(1.0, n * share), (w * np.abs(J)).max(axis=1) * multipliers)
    descent = -(gradient + multipliers @ J)
    # The tangent cone of the box: no way out at a bound.
    descent[(x <= case.lower) & (descent < 0)] = 0.0
    descent[(x >= case.upper) & (descent > 0)] = 0.0
    inside = bool((x >= case.lower).all() and (x <= case.upper).all() and (multipliers >= 0).all())
    violation = np.max(np.where(g > 0, size, 0.0) / np.minimum(1.0, n), initial=0.0)
    residual = max(np.abs(w * descent).max(), violation, np.max(slack, initial=0.0))
    return inside and bool(residual <= tolerance)


class Judge:
    """Counts a solver's passes over one problem and notes when each level is first met. Judging is off the clock.

    A forward is f and all of g at one point (asked in any order, counted once); backwards count one for grad f or a
    pullback and m for a Jacobian. Seconds are CPU seconds of the one thread, which are steady on a shared machine.
    ``note`` is called at every level met. With ``ends``
    the judge ends a run that has met the tightest level or spent its budget; without, it only counts.
    """

    def __init__(
        self,
        case: Case,
        max_forwards: int,
        max_seconds: float,
        note: Callable[[Judge], None] = lambda judge: None,
        ends: bool = True,
    ) -> None:
        self.case, self.max_forwards, self.max_seconds = case, max_forwards, max_seconds
        self._note, self._ends = note, ends
        self.forwards = self.backwards = 0
        self.finished = False
        self.hits: dict[float, dict[str, float]] = {}
        self._x: Vector | None = None
        self._values: tuple[float, Vector] = (np.nan, np.zeros(0))
        self._gradient: Vector | None = None
        self._jacobian: Vector | None = None
        self._start, self._off = time.process_time(), 0.0

    @property
    def seconds(self) -> float:
        return time.process_time() - self._start - self._off

    def values(self, x: Vector) -> tuple[float, Vector]:
        """f and g at x, counted; judged there."""
        if self._x is None or not np.array_equal(x, self._x):
            if self._ends and (self.forwards >= self.max_forwards or self.seconds > self.max_seconds):
                self.finished = True
                raise Finished
            self.forwards += 1
            self._x = np.array(x, dtype=float)
            self._values = self.case.values(self._x)
            self._gradient = self._jacobian = None
            if self._ends:
                self._judge()
        return self._values

    def gradient(self, x: Vector) -> Vector:
        """Grad f at x: one backward."""
        self.values(x)
        if self._gradient is None:
            self.backwards += 1
            self._gradient = self.case.gradient(x)
        return self._gradient

    def jacobian(self, x: Vector) -> Vector:
        """J at x: m backwards."""
        self.values(x)
        if self._jacobian is None:
            self.backwards += self.case.m
            self._jacobian = self.case.jacobian(x)
        return self._jacobian

    def known_jacobian(self, x: Vector) -> Vector:
        """J at x for a pullback there, not counted: the one the solver has asked for already, where it has."""
        here = self._x is not None and np.array_equal(x, self._x)
        return self._jacobian if here and self._jacobian is not None else self.case.jacobian(x)

    def _judge(self) -> None:
        seconds, x, met = self.seconds, self._x, len(self.hits)
        assert x is not None
        if np.max(self._values[1], initial=0.0) <= LEVELS[0]:
            grad, J = self.case.gradient(x), self.case.jacobian(x)
            for level in LEVELS:
                if level not in self.hits and is_kkt(self.case, x, level, self._values, grad, J):
                    self.hits[level] = {
                        "forwards": self.forwards,
                        "backwards": self.backwards,
                        "seconds": seconds,
                        "objective": self._values[0],
                    }
        self._off += self.seconds - seconds
        if len(self.hits) > met:
            self._note(self)
        if LEVELS[-1] in self.hits:
            self.finished = True
            raise Finished
