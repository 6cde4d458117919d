"""What AdaptiveGDPA spends around the user's functions on small dense problems, beside SLSQP and IPOPT.

Every function value and derivative is computed in a first run and looked up in the runs that are timed, so that
what is left is a solver's own time (a look-up takes about a microsecond and counts). CPU seconds of one thread, solvers
in turn, the least of the repetitions, as in Python's timeit: what disturbs a run only adds to its time.

- ``step``: a step of `gdpa.solve` on four problems, from the difference of a run of all steps but the last and a run
  of one step. An iteration of SLSQP is its whole run over its iterations.
- ``total``: the 66 Hock-Schittkowski problems of `benchmarks.nonlinear`, each call from its beginning to its return, as
  a user makes it. Asked for: a relative KKT residual of 1e-6; of SLSQP a change of f below 1e-8; of IPOPT tol = 1e-6.
  `gdpa.minimize` does as `gdpa.solve` does: its last step, to a point without any violation, is switched off.

    python -m benchmarks.small_steps [--repetitions N] [--problems HS12 HS43 ...] [--without HS105 ...] [--out FOLDER]
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is loaded

import argparse
import importlib.util
import statistics
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
from scipy import optimize

import gdpa
from benchmarks.nonlinear import suite
from benchmarks.nonlinear.judge import is_kkt
from benchmarks.nonlinear.solvers import ipopt
from benchmarks.provenance import Study, markdown, told
from gdpa.numerics import model
from gdpa.paper.records import Row

TOLERANCE, FTOL = 1e-6, 1e-8
STEP_PROBLEMS = ("HS12", "HS43", "HS100", "HS113")
#: The rows of the second table: label -> (how it is called, with the C library for quadratic programs or without).
SOLVERS = {
    "solve": ("solve", True),
    "solve, SciPy alone": ("solve", False),
    "minimize": ("minimize", True),
    "minimize, SciPy alone": ("minimize", False),
    "SLSQP": ("SLSQP", True),
    "IPOPT": ("IPOPT", True),
}


class Replay:
    """The functions of a case, each computed once at a point."""

    def __init__(self, case: suite.Case) -> None:
        self.case = case
        self.points: dict[bytes, dict[str, Any]] = defaultdict(dict)

    def _known(self, name: str, x: Any, function: Callable[[Any], Any]) -> Any:
        known = self.points[x.tobytes()]
        if name not in known:
            known[name] = function(np.array(x, dtype=float))
        return known[name]

    def values(self, x: Any) -> tuple[float, Any]:
        """Return f and g."""
        pair: tuple[float, Any] = self._known("values", x, self.case.values)
        return pair

    def gradient(self, x: Any) -> Any:
        """Return grad f."""
        return self._known("gradient", x, self.case.gradient)

    def jacobian(self, x: Any) -> Any:
        """Return J."""
        return self._known("jacobian", x, self.case.jacobian)

    def problem(self) -> gdpa.Problem:
        """Return the case as the library's problem."""

        def evaluate(x: Any) -> gdpa.Evaluation:
            f, g = self.values(x)

            def pullback(w: Any, objective: Any = 1.0) -> Any:
                return objective * self.gradient(x) + w @ self.jacobian(x)

            return gdpa.Evaluation(np.asarray(f), g, pullback, lambda: self.jacobian(x))

        case = self.case
        bounded = np.isfinite(case.lower).any() or np.isfinite(case.upper).any()
        domain = gdpa.Box(case.lower, case.upper) if bounded else gdpa.REALS
        return gdpa.Problem(evaluate, num_constraints=case.m, domain=domain)

    def is_solved(self) -> bool:
        """Tell whether one of the points is a KKT point to the tolerance by the rule of `benchmarks.nonlinear`."""
        for key, known in reversed(self.points.items()):
            x = np.frombuffer(key)
            values = known.get("values")
            if values is None or np.max(values[1], initial=0.0) > TOLERANCE:
                continue
            if is_kkt(self.case, x, TOLERANCE, values, self.gradient(x), self.jacobian(x)):
                return True
        return False


def call(name: str, replay: Replay) -> int:
    """Solve as a user would; return the number of iterations, or 0 if the solver does not tell."""
    case = replay.case
    if name == "solve":
        return gdpa.solve(replay.problem(), case.x0, tolerance=TOLERANCE).steps
    if name == "IPOPT":
        ipopt(cast(Any, replay), TOLERANCE)
        return 0
    options: dict[str, Any] = {
        "jac": replay.gradient,
        "bounds": optimize.Bounds(case.lower, case.upper),
        "constraints": {"type": "ineq", "fun": lambda x: -replay.values(x)[1], "jac": lambda x: -replay.jacobian(x)},
    }
    if name == "minimize":
        found: Any = gdpa.minimize(lambda x: replay.values(x)[0], case.x0, tol=TOLERANCE, **options, feasible=False)
    else:
        limits = {"maxiter": 1000, "ftol": FTOL}
        solver: Any = optimize.minimize
        found = solver(lambda x: replay.values(x)[0], case.x0, method="SLSQP", options=limits, **options)
    return int(found.nit)


def _no_library() -> None:
    """Say that there is none."""


def library(used: bool) -> AbstractContextManager[Any]:
    """Return a context in which the C library for quadratic programs is used, or is not."""
    return nullcontext() if used else mock.patch.object(model, "_library", _no_library)


def timed(function: Callable[[], Any]) -> float:
    """Return the CPU seconds of a call."""
    clock = time.process_time()
    function()
    return time.process_time() - clock


def step_rows(repetitions: int) -> list[Row]:
    """Return one row for each problem: the own time of a step and of the whole call."""
    rows = []
    for name in STEP_PROBLEMS:
        replay = Replay(suite.load(name))
        problem, x0 = replay.problem(), replay.case.x0

        def run(steps: int, problem: Any = problem, x0: Any = x0) -> gdpa.Result:
            stop = (gdpa.KKTBelow(TOLERANCE), gdpa.MaxSteps(steps))
            return gdpa.solve(problem, x0, stop=stop, tolerance=TOLERANCE, record=0)

        steps, iterations = run(1000).steps, call("SLSQP", replay)
        times = defaultdict[str, list[float]](list)
        for _ in range(repetitions):
            first, rest = timed(partial(run, 1)), timed(partial(run, steps - 1))
            times["first"].append(first)
            times["rest"].append(rest)
            times["call"].append(timed(partial(run, 1000)))
            times["SLSQP"].append(timed(partial(call, "SLSQP", replay)))
        least = {part: 1e6 * min(values) for part, values in times.items()}
        row = {"problem": name, "d": len(x0), "m": replay.case.m, "steps": steps, "iterations": iterations}
        row |= {"us step": (least["rest"] - least["first"]) / (steps - 2), "us call": least["call"] / steps}
        rows.append(row | {"us SLSQP": least["SLSQP"] / iterations})
    return rows


def total_rows(problems: list[str], solvers: list[str], repetitions: int) -> list[Row]:
    """Return one row for each problem and solver: the CPU seconds of a call, and whether it was solved."""
    rows = []
    for done, name in enumerate(problems, 1):
        case = suite.load(name)
        replays = {label: Replay(case) for label in solvers}
        times: dict[str, list[float]] = {label: [] for label in solvers}
        for repetition in range(repetitions + 1):
            for label, replay in replays.items():
                kind, used = SOLVERS[label]
                with library(used):
                    seconds = timed(partial(call, kind, replay))
                if repetition:  # the first run computes the values
                    times[label].append(seconds)
        for label, replay in replays.items():
            points = len(replay.points)
            row = {"solver": label, "problem": name, "points": points, "seconds": min(times[label])}
            rows.append(row | {"solved": replay.is_solved()})
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{done}/{len(problems)} {name:<8}")
    return rows


def tables(steps: list[Row], totals: list[Row]) -> str:
    """Return both tables in Markdown."""
    head = ["problem", "variables", "constraints", "steps", "a step", "the call / steps", "an iteration of SLSQP"]
    cells = [
        [row["problem"], row["d"], row["m"], row["steps"], *(f"{row[f'us {part}']:.0f} us" for part in PARTS)]
        for row in steps
    ]
    seconds: dict[str, float] = defaultdict(float)
    for row in totals:
        seconds[row["solver"]] += row["seconds"]
    problems = len({row["problem"] for row in totals})
    lines = []
    for label in seconds:
        mine = [row for row in totals if row["solver"] == label]
        median = statistics.median(row["seconds"] for row in mine)
        solved, ratio = sum(row["solved"] for row in mine), seconds[label] / seconds["SLSQP"]
        lines.append([label, solved, f"{seconds[label]:.3f}", f"{ratio:.2f}", f"{1e3 * median:.2f}"])
    second = markdown(["solver", f"solved of {problems}", "CPU seconds", "over SLSQP's", "median, ms"], lines)
    return f"{markdown(head, cells)}\n\n{second}\n\n{told([*steps, *totals])}"


#: The times of a row of the first table.
PARTS = ("step", "call", "SLSQP")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--problems", nargs="*", help="of the second table; default: all 66")
    parser.add_argument("--without", nargs="*", default=[], help="problems to leave out, such as HS105, which is slow")
    parser.add_argument("--out", type=Path, default=None, help="default: results/small_steps")
    options = parser.parse_args()
    solvers = list(SOLVERS)
    if importlib.util.find_spec("ipyopt") is None:
        print("IPOPT is left out: ipyopt is not installed", file=sys.stderr)
        solvers.remove("IPOPT")
    names = options.problems or [name for name in suite.names() if suite.is_development(name)]
    names = [name for name in names if name not in options.without]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        steps, totals = step_rows(5 * options.repetitions), total_rows(names, solvers, options.repetitions)
    step_study, total_study = (
        Study("benchmarks.small_steps", "small_steps", part=part, out=options.out) for part in ("step", "total")
    )
    text = tables(step_study.replace(steps), total_study.replace(totals))
    total_study.write(text)
    print(text)


if __name__ == "__main__":
    main()
