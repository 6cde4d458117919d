"""The judge: counts passes, owns the clock and finds the first point that is KKT to each level, off that clock.

Written apart from the library it judges. A point is KKT to t if, with nonnegative multipliers for the constraints
that are active to within t,

    ||grad f + J_A^T lambda||_inf <= t max(1, ||grad f||_inf)   and   max g_+ <= t.

The rest get no multiplier, so complementarity max_i |min(-g_i, lambda_i)| <= t holds by construction. The multipliers
are the best for the point (nonnegative least squares), whatever the solver's own are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from benchmarks.large.cases import Case, Point, Tensor

LEVELS = (1e-2, 1e-3, 1e-5)
#: Points between judgments, as a share of the points so far (where a Jacobian is one pass, and where it is m): all of
#: the first hundred, then a hundredth part of the way is skipped. A hit is late by that share at most, for everyone.
SPACING = (0.01, 0.03)


class Finished(Exception):  # noqa: N818 - not an error
    """The judge has seen enough: the tightest level is met, or the budget is spent."""


def stationarity(point: Point, tolerance: float) -> float:
    """Return ``min over lambda_A >= 0 of ||grad f + J_A^T lambda||`` (2-norm), in the max norm over that of grad f."""
    gradient = point.pullback(torch.zeros_like(point.g)).numpy()
    unit = max(1.0, float(np.abs(gradient).max()))
    rows = point.jacobian().numpy()[point.g.numpy() >= -tolerance]
    if len(rows):
        columns = rows.T / np.maximum(np.linalg.norm(rows, axis=1), 1e-300)
        q, r = np.linalg.qr(columns)
        try:
            multipliers, _ = nnls(r, -(q.T @ gradient), maxiter=50 * len(rows) + 200)
        except RuntimeError:
            return math.inf
        gradient = gradient + columns @ multipliers
    return float(np.abs(gradient).max()) / unit


class Judge:
    """One solver's account on one case.

    ``forwards`` counts points, each f and all of g. ``backwards`` counts passes as the case makes them: with
    ``one_pass`` the first gradient at a point is one and the others there are free, the whole Jacobian included;
    without, grad f or a pullback is one and a Jacobian m. ``seconds`` is CPU time of the one thread, which is steady on
    a shared machine; ``wall`` is the clock on the wall.
    """

    def __init__(
        self,
        case: Case,
        max_seconds: float,
        max_forwards: float = math.inf,
        note: Callable[[], None] = lambda: None,
    ) -> None:
        self.case, self.max_seconds, self.max_forwards = case, max_seconds, max_forwards
        self.forwards = self.backwards = 0
        self.hits: dict[float, dict[str, float]] = {}
        self.trace: list[tuple[int, int, float, float, float]] = []
        self.end_at_tightest = True
        self.finished = False
        self.violation = math.inf  # the least so far
        self._note = note
        self._last: _Counted | None = None
        self._next = 0.0
        self._off = self._off_wall = 0.0
        self._start, self._start_wall = time.process_time(), time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.process_time() - self._start - self._off

    @property
    def wall(self) -> float:
        return time.perf_counter() - self._start_wall - self._off_wall

    def at(self, x: Tensor) -> _Counted:
        """The problem at x: one forward, unless x is the last point asked for."""
        last = self._last
        if last is not None and torch.equal(last.x, x):
            return last
        if self.forwards >= self.max_forwards or self.seconds > self.max_seconds:
            self._finish()
        self.forwards += 1
        self._note()
        own = x.detach().clone()
        self._last = _Counted(self, own, self.case.at(own))
        self._judge(self._last)
        return self._last

    def final(self) -> None:
        """Judge the last point, whether its turn had come or not."""
        if self._last is not None:
            self._next = 0.0
            self._judge(self._last)

    def _judge(self, point: _Counted) -> None:
        seconds, wall = self.seconds, self.wall
        violation = max(0.0, float(point.g.max()))
        self.violation = min(self.violation, violation)
        open_levels = [level for level in LEVELS if level not in self.hits]
        if self.forwards < self._next or not open_levels or not violation <= open_levels[0]:
            self._off += self.seconds - seconds
            self._off_wall += self.wall - wall
            return
        self._next = self.forwards + max(1.0, SPACING[not self.case.one_pass] * self.forwards)
        fresh = self.case.at(point.x)  # the solver's own point must not find its gradients ready made
        residual = math.inf
        for level in open_levels:
            residual = max(stationarity(fresh, level), violation)
            if not residual <= level:
                break
            counts = {"forwards": self.forwards, "backwards": self.backwards, "seconds": seconds, "wall": wall}
            self.hits[level] = {**counts, "objective": float(point.f)}
        if math.isfinite(residual):
            self.trace.append((self.forwards, self.backwards, round(seconds, 4), residual, violation))
        self._off += self.seconds - seconds
        self._off_wall += self.wall - wall
        if self.end_at_tightest and LEVELS[-1] in self.hits:
            self._finish()

    def _finish(self) -> None:
        self.finished = True  # a solver may turn the exception into one of its own
        raise Finished


class _Counted:
    """A point whose backward passes are counted."""

    def __init__(self, judge: Judge, x: Tensor, inner: Point) -> None:
        self.x, self.f, self.g = x, inner.f, inner.g
        self._judge, self._inner = judge, inner
        self._kept: dict[str, Any] = {}
        self._free = False

    def _count(self, passes: int) -> None:
        if self._judge.case.one_pass:
            passes = 0 if self._free else 1
            self._free = True
        self._judge.backwards += passes

    def pullback(self, w: Tensor, objective: float = 1.0) -> Tensor:
        self._count(1)
        return self._inner.pullback(w, objective)

    def gradient(self) -> Tensor:
        if "gradient" not in self._kept:
            self._kept["gradient"] = self.pullback(torch.zeros_like(self.g))
        gradient: Tensor = self._kept["gradient"]
        return gradient

    def jacobian(self) -> Tensor:
        if "jacobian" not in self._kept:
            self._count(len(self.g))
            self._kept["jacobian"] = self._inner.jacobian()
        rows: Tensor = self._kept["jacobian"]
        return rows
