"""The solvers, each in a process of its own, and the judge that they share: a certificate of `gdpa`."""

from __future__ import annotations

import resource
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from scipy.sparse import csr_array

import gdpa
from benchmarks.banded.families import FAMILIES, Banded

#: The largest relative residual that counts as solved.
TOLERANCE = 1e-6
#: The tolerance of IPOPT. Its residuals have other units; with 1e-6 some of its answers miss ours.
IPOPT_TOLERANCE = 1e-8
#: Coordinates this near to a bound are judged on it, too: an interior point never reaches it.
SNAP = 1e-5
#: What IPOPT takes for infinity.
INFINITE = 2e19
SOLVERS = ("gdpa", "gdpa, exact Hessian", "IPOPT, limited memory", "IPOPT, exact Hessian")

Row = dict[str, Any]


def symmetric(case: Banded, data: Any) -> Any:
    """Return the Hessian from the entries of its lower triangle."""
    n = len(case.x0)
    rows, columns = case.hessian_pattern
    off = rows != columns
    values = np.concatenate([data, data[off]])
    return csr_array((values, (np.concatenate([rows, columns[off]]), np.concatenate([columns, rows[off]]))), (n, n))


def problem_of(case: Banded, exact: bool = False) -> gdpa.Problem:
    """Return the problem as a user of `gdpa` writes it."""
    n, m = len(case.x0), len(case.constraints(case.x0))
    rows, columns = case.pattern
    order = np.lexsort((columns, rows))
    indices, ends = columns[order], np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=m))])
    given: dict[str, Any] = {"gradient": case.gradient, "num_equalities": case.equalities}
    if m:
        given["constraints"] = case.constraints
        given["jacobian"] = lambda x: csr_array((case.jacobian(x)[order], indices, ends), shape=(m, n))
    if exact:
        given["hessian"] = lambda x, w: symmetric(case, case.hessian(x, w))
    elif not m:  # without constraints there is no pattern to guess from
        given["hessian_sparsity"] = symmetric(case, np.ones(len(case.hessian_pattern[0])))
    if np.isfinite(case.lower).any() or np.isfinite(case.upper).any():
        given["domain"] = gdpa.Box(case.lower, case.upper)
    return gdpa.from_functions(case.objective, **given)


def _gdpa(case: Banded, exact: bool) -> tuple[Any, int]:
    result = gdpa.solve(problem_of(case, exact), case.x0, tolerance=TOLERANCE, record=0)
    return result.x, result.steps


def _ipopt(case: Banded, exact: bool) -> tuple[Any, int]:
    import ipyopt

    n, m = len(case.x0), len(case.constraints(case.x0))
    steps = 0

    def count(*args: Any) -> bool:
        nonlocal steps
        steps = args[1]
        return True

    def hessian(x: Any, w: Any, weight: float, out: Any) -> None:
        if weight:
            np.copyto(out, weight * case.hessian(x, w / weight))
        else:
            np.copyto(out, case.hessian(x, w) - case.hessian(x, 0 * w))

    options: dict[str, Any] = {"print_level": 0, "sb": "yes", "tol": IPOPT_TOLERANCE, "max_iter": 3000}
    none = np.zeros(0, dtype=int)
    if not exact:
        options["hessian_approximation"] = "limited-memory"
    problem = ipyopt.Problem(
        n,
        np.maximum(case.lower, -INFINITE),
        np.minimum(case.upper, INFINITE),
        m,
        np.where(np.arange(m) < m - case.equalities, -INFINITE, 0.0),
        np.zeros(m),
        case.pattern,
        case.hessian_pattern if exact else (none, none),
        case.objective,
        lambda x, out: np.copyto(out, case.gradient(x)),
        lambda x, out: np.copyto(out, case.constraints(x)),
        lambda x, out: np.copyto(out, case.jacobian(x)),
        hessian if exact else None,
        intermediate_callback=count,
        ipopt_options=options,
    )
    return problem.solve(case.x0.copy())[0], steps


def run(pipe: Connection, solver: str, family: str, n: int) -> None:
    """Solve one problem and send seconds, steps, memory and the certificate."""
    import scipy.optimize
    import scipy.sparse.csgraph  # noqa: F401 - loading SciPy is not part of a solve

    case = FAMILIES[family](n)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, clock = time.perf_counter(), time.process_time()
    x, steps = (_gdpa if solver.startswith("gdpa") else _ipopt)(case, "exact" in solver)
    seconds, wall = time.process_time() - clock, time.perf_counter() - wall
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    problem = problem_of(case)
    certificate = gdpa.certify(problem, x, snap=SNAP)
    pipe.send(
        {
            "ended": "by itself",
            "seconds": seconds,
            "wall": wall,
            "steps": steps,
            "megabytes": memory / 1024,
            "objective": certificate.objective,
            "worst": certificate.relative.worst,
            "solved": certificate.holds(TOLERANCE),
        }
    )
    pipe.close()
