"""One run: a problem in other units, one solver, and what its answer is worth."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize

import gdpa
from benchmarks.units.problems import CASES, Case, Vector, complex_step

SOLVERS = ("gdpa", "SLSQP", "trust-constr")
#: One limit for all three; their own are 10,000, 100 and 1000. Everything else is at its default.
MAXITER = 1000
#: How near the solution x must be, in each variable, to be right.
NEAR = 0.01
#: Draws of the random rows for each problem.
RANDOM_DRAWS, OWN_DRAWS = 8, 4
SINGLE = {
    "none": (1.0, 1.0, 1.0),
    **{f"f 1e{a}": (10.0**a, 1.0, 1.0) for a in (-8, -4, 4, 8)},
    **{f"g 1e{b}": (1.0, 10.0**b, 1.0) for b in (-8, -4, 4, 8)},
    **{f"x 1e{c}": (1.0, 1.0, 10.0**c) for c in (-6, -3, 3, 6)},
}
RANDOM, OWN = "all three at random", "own unit for every g_i and x_j"


@dataclass(frozen=True)
class Units:
    """The user's values are ``f`` times f, ``c_i`` times constraint i, and ``x_j`` times variable j."""

    f: float
    c: Any
    x: Any


def changes(index: int, seed: int) -> Iterator[tuple[str, int, Units]]:
    """Yield (row of the table, draw, units) for problem ``index``."""
    for row, units in SINGLE.items():
        yield row, 0, Units(*units)
    case = CASES[index]
    size, m = len(case.x), len(case.lam) + len(case.mu)
    for draw in range(RANDOM_DRAWS):
        rng = np.random.default_rng([seed, index, draw, 0])
        yield RANDOM, draw, Units(10 ** rng.uniform(-8, 8), 10 ** rng.uniform(-8, 8), 10 ** rng.uniform(-6, 6))
    for draw in range(OWN_DRAWS):
        rng = np.random.default_rng([seed, index, draw, 1])
        yield OWN, draw, Units(1.0, 10 ** rng.uniform(-4, 4, m), 10 ** rng.uniform(-3, 3, size))


@dataclass(frozen=True)
class Posed:
    """A case in the user's units, as every solver gets it: values, exact derivatives, start and bounds."""

    case: Case
    units: Units

    @property
    def scale(self) -> Vector:
        return np.broadcast_to(np.asarray(self.units.x, dtype=float), (len(self.case.x),))

    def fun(self, x: Vector) -> float:
        return float(self.units.f * self.case.f(x / self.scale))

    def grad(self, x: Vector) -> Vector:
        slope = complex_step(lambda y: np.array([self.case.f(y)]), x / self.scale)[0]
        return np.asarray(self.units.f * slope / self.scale)

    def start(self) -> Vector:
        return np.array(self.case.x0, dtype=float) * self.scale

    def bounds(self) -> scipy.optimize.Bounds | None:
        lower, upper = (
            np.broadcast_to(np.asarray(side, dtype=float), self.scale.shape)
            for side in (self.case.lower, self.case.upper)
        )
        if np.isinf(lower).all() and np.isinf(upper).all():
            return None
        return scipy.optimize.Bounds(lower * self.scale, upper * self.scale)

    def constraints(self) -> list[scipy.optimize.NonlinearConstraint]:
        m = len(self.case.lam)
        c = np.broadcast_to(np.asarray(self.units.c, dtype=float), (m + len(self.case.mu),))
        parts = ((self.case.g, c[:m], -np.inf), (self.case.h, c[m:], 0.0))
        return [
            scipy.optimize.NonlinearConstraint(self._value(part, unit), low, 0.0, jac=self._jac(part, unit))
            for part, unit, low in parts
            if part is not None
        ]

    def _value(self, part: Callable[[Vector], Any], unit: Vector) -> Callable[[Vector], Vector]:
        return lambda x: unit * np.asarray(part(x / self.scale))

    def _jac(self, part: Callable[[Vector], Any], unit: Vector) -> Callable[[Vector], Vector]:
        return lambda x: unit[:, None] * complex_step(part, x / self.scale) / self.scale


def solve(posed: Posed, solver: str) -> Any:
    """Return the solver's `OptimizeResult`, at default tolerances."""
    minimize: Any
    minimize, method = (gdpa.minimize, None) if solver == "gdpa" else (scipy.optimize.minimize, solver)
    return minimize(
        posed.fun,
        posed.start(),
        method=method,
        jac=posed.grad,
        bounds=posed.bounds(),
        constraints=posed.constraints(),
        options={"maxiter": MAXITER},
    )


def judge(case: Case, x: Vector, success: bool) -> str:
    """Return what an answer ``x``, in the problem's own units, is worth.

    "right": success and the solution. "other": success and another known KKT point. "false": success, and wrong.
    "denied": the solution, but no success. "missed": neither.

    >>> [judge(CASES[0], np.array(x), said) for x, said in (((1, 0), True), ((2, 0), True), ((1, 0), False))]
    ['right', 'false', 'denied']
    """

    def near(point: Any) -> bool:
        return bool(np.all(np.abs(x - point) <= NEAR * np.maximum(np.abs(point), case.length)))

    if near(np.array(case.x, dtype=float)):
        return "right" if success else "denied"
    if not success:
        return "missed"
    return "other" if any(near(np.array(point, dtype=float)) for point in case.others) else "false"


def run(index: int, solver: str, row: str, draw: int, units: Units) -> dict[str, Any]:
    """Return the record of one run."""
    case = CASES[index]
    posed = Posed(case, units)
    clock = time.perf_counter()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of SciPy's updates, and of values that overflow on the way
        try:
            found = solve(posed, solver)
            x, success, message = np.asarray(found.x) / posed.scale, bool(found.success), str(found.message)
            nfev = int(found.nfev)
        except Exception as error:
            x, success, nfev = np.full(len(case.x), np.nan), False, 0
            message = f"{type(error).__name__}: {error}"
    return {
        "problem": case.name,
        "solver": solver,
        "change": row,
        "draw": draw,
        "units": {"f": units.f, "c": np.asarray(units.c).tolist(), "x": np.asarray(units.x).tolist()},
        "verdict": judge(case, x, success),
        "success": success,
        "x": x.tolist(),
        "message": message,
        "nfev": nfev,
        "seconds": round(time.perf_counter() - clock, 4),
    }
