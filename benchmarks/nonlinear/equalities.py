"""The 218 problems with equalities: `gdpa.minimize` and SLSQP, judged apart from both."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np

from benchmarks.nonlinear.judge import stationarity, violation
from benchmarks.nonlinear.suite import Case, load, with_equalities
from benchmarks.provenance import markdown, told

SOLVERS = ("gdpa", "SLSQP")
#: A point is solved if its stationarity and its violation are at most this.
LEVEL = 2e-4
#: The rows of the table: the set and whether there is an objective.
GROUPS = {
    "n, m <= 50, objective": ("eq", "1"),
    "n, m <= 50, f = 0": ("eq", "0"),
    "larger, objective": ("large", "1"),
    "larger, f = 0": ("large", "0"),
}


def posed(case: Case) -> dict[str, Any]:
    """Return the arguments of `minimize` for a problem, without its start."""
    from scipy.optimize import Bounds, NonlinearConstraint

    free = case.m - case.equalities
    low = np.concatenate([np.full(free, -np.inf), np.zeros(case.equalities)])
    rows = NonlinearConstraint(lambda x: case.values(x)[1], low, 0.0, jac=case.jacobian)
    bounded = np.isfinite(case.lower).any() or np.isfinite(case.upper).any()
    bounds = Bounds(case.lower, case.upper) if bounded else None
    return {"fun": lambda x: case.values(x)[0], "jac": case.gradient, "constraints": rows, "bounds": bounds}


def run(name: str, solver: str, steps: int, seconds: float) -> dict[str, Any]:
    """Return the record of one run; ``seconds`` of CPU time end it after a step."""
    import scipy.optimize

    import gdpa

    case = load(name)
    minimize: Any = gdpa.minimize if solver == "gdpa" else scipy.optimize.minimize
    clock = time.process_time()
    last = case.x0

    def watch(x: Any) -> None:
        nonlocal last
        last = np.array(x, dtype=float)
        if time.process_time() - clock > seconds:
            raise StopIteration

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            method = None if solver == "gdpa" else solver
            found = minimize(x0=case.x0, method=method, callback=watch, options={"maxiter": steps}, **posed(case))
            x, success, nfev, message = np.asarray(found.x), bool(found.success), int(found.nfev), str(found.message)
            status = int(found.status)
        except Exception as error:  # a run that breaks has not solved the problem; the record says how
            x, success, nfev, status = last, False, 0, -1
            message = f"{type(error).__name__}: {error}"
        used = time.process_time() - clock
        residuals = judged(case, x)
    return {
        "problem": name,
        "solver": solver,
        "solved": max(residuals) <= LEVEL,
        "success": success,
        "nfev": nfev,
        "stationarity": residuals[0],
        "violation": residuals[1],
        "objective": case.values(x)[0],
        "status": status,
        "message": message[:300],
        "seconds": round(used, 3),
    }


def judged(case: Case, x: Any) -> tuple[float, float]:
    """Return stationarity and violation at x; infinity if a number is not finite."""
    (f, g), grad, J = case.values(x), case.gradient(x), case.jacobian(x)
    if not all(np.isfinite(a).all() for a in (x, f, g, grad, J)):
        return np.inf, np.inf
    return stationarity(case, x, LEVEL, g, grad, J), violation(case, x, g)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table in Markdown: one line for each kind of problem, one column for each solver.

    >>> row = {"problem": "ALSOTAME", "solver": "gdpa", "solved": True, "success": True, "nfev": 7, "status": 0}
    >>> print(table([row]).splitlines()[4])
    | n, m <= 50, objective | 1 of 1, 0, 7 |
    """
    about = {row["name"]: (row["set"], row["objective"]) for row in with_equalities()}
    solvers = list(dict.fromkeys(row["solver"] for row in rows))
    lines = []
    for name, group in GROUPS.items():
        members = [row for row in rows if about.get(row["problem"]) == group]
        if members:
            lines.append([name, *(_cell([row for row in members if row["solver"] == s]) for s in solvers)])
    text = (
        f"Solved at {LEVEL:g} by the judge, of all; **success said and not solved**; median evaluations of the solved."
    )
    text += "\n\n" + markdown(["problems", *solvers], lines)
    infeasible = [row["problem"] for row in rows if row["solver"] == "gdpa" and row["status"] == 4]
    if infeasible:
        text += f'\n\ngdpa said "Locally infeasible" of {", ".join(infeasible)}.'
    origin = told(rows)
    return f"{text}\n\n{origin}" if origin else text


def _cell(rows: list[dict[str, Any]]) -> str:
    solved = [row["nfev"] for row in rows if row["solved"]]
    false = sum(row["success"] and not row["solved"] for row in rows)
    wrong = f"**{false}**" if false else "0"
    return f"{len(solved)} of {len(rows)}, {wrong}, {np.median(solved):.0f}" if solved else f"0 of {len(rows)}, {wrong}"
