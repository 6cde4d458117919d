"""The methods of the paper's figures: their constants as JSON, their grids and the search of one, and their clock."""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any

from gdpa.base.status import Status
from gdpa.base.typing import Array
from gdpa.core.certificate import Certificate, certificate_at
from gdpa.core.problem import Evaluation, Problem
from gdpa.core.units import ReferencePoint
from gdpa.methods import get_method
from gdpa.methods.base import State
from gdpa.methods.nested import Accelerated, FixedMomentum
from gdpa.paper.base import UsageError
from gdpa.paper.records import Record
from gdpa.run.solve import solve
from gdpa.run.stopping import MaxOracleCalls, MaxSteps, StopRule

Constants = Mapping[str, Any]

#: Label in the figures -> name in `gdpa.methods`. The paper's five, then ours.
METHODS = {
    "GDPA": "gdpa",
    "IALM (Sahin)": "ialm-sahin",
    "IALM (Li)": "ialm-li",
    "IQRC": "iqrc",
    "IPPP": "ippp",
    "AdaptiveGDPA": "adaptive-gdpa",
}
#: Has nothing to tune: runs with its defaults in every setting.
UNTUNED = "AdaptiveGDPA"
#: The setting of the units that search a grid, one per method for all seeds.
SEARCH = "grid search"

#: Steps of the warm-up, enough to import and allocate everything that a method uses.
WARM_UP = 3

_INNER = {"Accelerated": Accelerated, "FixedMomentum": FixedMomentum}


def to_json(constants: Constants) -> dict[str, Any]:
    """Return a method's constants as JSON values; an inner solver becomes its name and fields."""
    inner = constants.get("inner")
    return {**constants, **({"inner": {"solver": type(inner).__name__, **asdict(inner)}} if inner else {})}


def build(method: str, constants: Constants) -> Any:
    """Return a method, by label or registered name, with constants as `to_json` writes them.

    "module:name" imports the module, which may lie in the current folder, to register the name.
    """
    values = dict(constants)
    if "inner" in values:
        fields = dict(values["inner"])
        values["inner"] = _INNER[fields.pop("solver")](**fields)
    module, _, name = METHODS.get(method, method).rpartition(":")
    if module:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        import_module(module)
    return get_method(name)(**values)


def check_method(method: str, constants: Constants) -> None:
    """Raise `UsageError` unless the method can be made with these constants."""
    try:
        build(method, constants)
    except Exception as error:  # importing the user's module may raise anything
        raise UsageError(f"--method {method} with {dict(constants)} cannot be made: {error}") from error


def labels(records: Iterable[Record]) -> list[str]:
    """Return the methods of the records as the figures order them: the paper's, ours, then the others."""
    found = dict.fromkeys(record.unit.method for record in records)
    return [*(label for label in METHODS if label in found), *(label for label in found if label not in METHODS)]


def printed(method: str, experiment: str) -> dict[str, Any]:
    """Return the constants the paper's appendix prints for "mnpc" or "network", if any."""
    known = getattr(get_method(METHODS.get(method, method)), "printed_constants", {})
    return to_json(known.get(experiment, {}))


def grid(
    method: str, steps: Sequence[float], penalties: Sequence[float], tolerances: Sequence[float]
) -> list[dict[str, Any]]:
    """Return the declared grid of a method: step lengths (shortest first) times values of its other main constant.

    The nested methods may also find their step by backtracking (in place of the shortest step), and IQRC may take its
    own safe steps; its other constant is the feasibility tolerance at which it switches. Its weak regularization and
    short first outer iterations suited it better than its class's defaults in trials on both experiments.
    """
    if method == UNTUNED:
        return []
    if method == "GDPA":
        return [{"alpha": step, "beta": beta, "tau": 0.1} for step in steps for beta in penalties]
    longer = [None, *steps[1:]]
    if method == "IQRC":
        more = {"rho": 0.01, "steps": 10, "growth": 5}
        return [{"gamma": step, "tolerance": tolerance, **more} for step in longer for tolerance in tolerances]
    # IALM (Li) solves every subproblem to this accuracy; tighter ones end runs of these lengths in the first of them.
    accuracy = {"epsilon": 0.1} if method == "IALM (Li)" else {}
    inner = [Accelerated() if step is None else FixedMomentum(step, 0.1) for step in longer]
    return [to_json({"beta": beta, **accuracy, "inner": solver}) for solver in inner for beta in penalties]


def certify_from(problem: Problem, x0: Array) -> Callable[[Array, Array, Evaluation], Certificate]:
    """Return the judge of all methods that start at ``x0``.

    It takes x, multipliers and the oracle call at x, and returns the certificate with the best multipliers.

    Residuals are relative to the sizes of grad f and g at the common start. `gdpa.certify` takes sizes near x, and
    near a point where f and its gradient vanish, such as a loss that reaches 0, there are none.
    """
    start = problem.evaluate(x0)
    reference = ReferencePoint(x0, start.gradient(), start.constraints)
    return lambda x, multipliers, now: certificate_at(problem, x, reference, now, multipliers)


def search(
    method: str,
    candidates: Sequence[Constants],
    problem: Problem,
    x0: Array,
    calls: int,
    note: Callable[[float, str], None] = lambda fraction, words: None,
) -> list[dict[str, Any]]:
    """Try each candidate for ``calls`` oracle calls; return them with their KKT residuals (None: diverged), best first.

    Calls and not seconds are counted, so that the outcome is the same on every machine. ``note`` gets the share of
    candidates done, and it in words.
    """
    tried, judge = [], certify_from(problem, x0)
    for index, constants in enumerate(candidates):
        note(index / len(candidates), f"{index} of {len(candidates)} points tried")
        result = solve(problem, x0, build(method, constants), stop=MaxOracleCalls(calls), record=0)
        x = result.x_last
        worst = float(judge(x, result.multipliers_last, problem.evaluate(x)).relative.worst)
        tried.append({"constants": dict(constants), "kkt": worst if worst == worst else None})
    return sorted(tried, key=lambda one: float("inf") if one["kkt"] is None else one["kkt"])


class Clock:
    """Counts the processor time of one method, over all threads of the process, in ``seconds``.

    Wall-clock time depends on the other work of the machine, so a budget in wall-clock seconds would decide differently
    on a busy machine. Processor time is charged to `init` and `update` of a method and to nothing else.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, method: Any) -> Any:
        """Return a copy of the method whose ``init`` and ``update`` are on the clock."""

        def counting(compute: Callable[..., State]) -> Callable[..., State]:
            def counted(*arguments: Any) -> State:
                start = time.process_time()
                try:
                    return compute(*arguments)
                finally:
                    self.seconds += time.process_time() - start

            return counted

        watched = copy.copy(method)
        for name in ("init", "update"):
            object.__setattr__(watched, name, counting(getattr(method, name)))  # a frozen dataclass
        return watched

    def stop_at(self, budget: float | None) -> StopRule:
        """Return a stop rule for ``budget`` seconds on this clock (None: no end)."""
        return lambda progress: Status.MAX_TIME if budget is not None and self.seconds >= budget else None


def warm_up(method: Any, problem: Problem, x0: Any) -> None:
    """Run a few steps on a small problem, so that imports and first allocations are on nobody's clock."""
    solve(problem, x0, method, stop=MaxSteps(WARM_UP), record=0)
