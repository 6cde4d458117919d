"""The race: every registered method on the paper's three problems, with printed constants and with tuned ones.

Tuned constants are the winners of grids of equal size on a seed that no run of the race uses. Each run has the same
number of passes, forward and backward together, and is judged as in Figures 1 and 2.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gdpa.core.problem import Problem
from gdpa.methods import get_method, method_names
from gdpa.methods.method import UnsupportedProblemError
from gdpa.methods.nested import FixedMomentum
from gdpa.paper.applications.cmdp import as_problem, paper_instance, start_of
from gdpa.paper.base import Log, Section, Settings, Table, Unit, Verdict
from gdpa.paper.claims import chosen
from gdpa.paper.clock import Clock, warm_up
from gdpa.paper.comparison import CLOCK, GOAL, HELD_OUT, Judge
from gdpa.paper.contestants import SEARCH, build, search, to_json
from gdpa.paper.data.images import load
from gdpa.paper.figures.chart import Chart, Panel, Series
from gdpa.paper.records.folder import Record
from gdpa.paper.studies.mnist import BUDGET, MNPC
from gdpa.run.compare import MaxPasses
from gdpa.run.solve import solve

NAME = "race"
title = "The race: every method on the paper's problems"

LEVELS = (1e-1, 1e-2, 1e-4)
#: Passes of a run and of a point of a grid, seconds of processor time of a run, and images of a class.
PASSES, PILOT_CALLS, SECONDS, IMAGES = 2000, 100, 2.0, 200
OURS, PAPER = "adaptive-gdpa", "gdpa"
#: Single-loop methods with a rate of O(eps^-2), and the rivals of the claim about 466 times fewer passes.
SUCCESSORS = ("ppl", "lipal", "directional-decomposition")
RIVALS, FACTOR = ("switching-subgradient", "ippp"), 466.0


class Axes(NamedTuple):
    """The values of a problem's grids: step lengths and penalties."""

    steps: tuple[float, float, float]
    penalties: tuple[float, float, float]


PROBLEMS = {
    "mnpc": Axes((0.03, 0.1, 0.3), (0.03, 0.3, 3.0)),
    "budget": Axes((0.1, 0.3, 1.0), (0.03, 0.3, 3.0)),
    "cmdp": Axes((10.0, 100.0, 1000.0), (0.1, 0.5, 2.5)),
}
#: Name in ``printed_constants``; for Figure 3 the paper has constants of GDPA alone.
PRINTED = {"mnpc": "mnpc", "budget": "network"}
CMDP_PRINTED = {PAPER: {"alpha": 100.0, "beta": 0.5, "tau": 0.1}}
#: Method -> the constants of its grid: a step length, and one that weighs the constraints or names a tolerance.
GRIDS = {
    PAPER: ("alpha", "beta"),
    "damped-gdpa": ("alpha", "beta"),
    "ialm-sahin": ("inner", "beta"),
    "ialm-li": ("inner", "beta"),
    "ippp": ("inner", "beta"),
    "iqrc": ("gamma", "tolerance"),
    "pdd": ("inner", "rho"),
    "gda": ("alpha", "beta"),
    "hibsa": ("rho", "gamma"),
    "smoothed-gda": ("step", "alpha"),
    "penalty": ("alpha", "beta"),
    "linearized-alm": ("alpha", "beta"),
    "ppl": ("eta", "alpha"),
    "switching-subgradient": ("eta", "tolerance"),
    "lipal": ("eta", "beta"),
    "directional-decomposition": ("eta", None),
}
TOLERANCES, GAINS = (0.1, 0.03, 0.01), (20.0, 200.0, 2000.0)


def grid(method: str, axes: Axes) -> list[dict[str, Any]]:
    """Return the nine points of a method's grid; none for a method without a declared one.

    >>> grid("gdpa", PROBLEMS["mnpc"])[0], len(grid("directional-decomposition", PROBLEMS["cmdp"]))
    ({'alpha': 0.03, 'beta': 0.03}, 9)
    """
    if method not in GRIDS:
        return []
    step, other = GRIDS[method]
    if other is None:  # one constant: as many values, as widely spread
        return [{step: float(value)} for value in np.geomspace(axes.steps[0] / 3, axes.steps[-1] * 3, 9)]
    values = TOLERANCES if other == "tolerance" else GAINS if method == "ppl" else axes.penalties
    points = [{step: length, other: value} for length in axes.steps for value in values]
    return [to_json({**p, "inner": FixedMomentum(p["inner"], 0.1)}) if step == "inner" else p for p in points]


def printed(method: str, problem: str) -> dict[str, Any]:
    """Return the constants that the paper prints for a problem, else none: the defaults of the class."""
    known = getattr(get_method(method), "printed_constants", {})
    return to_json(known.get(PRINTED[problem], {})) if problem in PRINTED else CMDP_PRINTED.get(method, {})


def units(settings: Settings) -> list[Unit]:
    """Every method on every problem with both kinds of constants; its grid is searched once for all seeds."""
    limits = {"passes": PASSES if settings.steps is None else settings.steps, "budget": settings.budget or SECONDS}
    shared = {"images": IMAGES, "clock": CLOCK}
    found: list[Unit] = []

    def add(method: str, setting: str, choice: Mapping[str, Any], after: Unit | None = None) -> None:
        config = {**shared, **limits, **choice}
        found.extend(Unit(NAME, method, setting, seed, config, after) for seed in range(settings.seeds))

    for problem, axes in PROBLEMS.items():
        for method in method_names():
            shared["problem"] = problem
            if settings.preset != "tuned":
                add(method, f"printed, {problem}", {"constants": printed(method, problem)})
            points = grid(method, axes)
            if settings.preset != "printed" and points:
                pilot = {**shared, "grid": points, "calls": PILOT_CALLS}
                first = Unit(NAME, method, f"{SEARCH}, {problem}", HELD_OUT, pilot)
                found.append(first)
                add(method, f"tuned, {problem}", {"constants_of": first.name}, first)
            elif settings.preset != "printed":
                add(method, f"tuned, {problem}", {"constants": {}})
        if settings.method is not None:
            add(settings.label, f"tuned, {problem}", settings.choice)
    return found


def _pose(problem: str, images: int, seed: int, log: Log) -> tuple[Problem, Problem, Any]:
    """Return the problem in double precision, as the methods see it, and the start."""
    if problem == "cmdp":
        cmdp = paper_instance(b=8.0)
        stated = as_problem(cmdp)
        return stated, stated, start_of(cmdp, seed=seed)
    study = {"mnpc": MNPC, "budget": BUDGET}[problem]
    data = load("mnist", progress=lambda line: log.progress(0.0, line))
    case = study.case(data, images, seed, reduction="mean")
    return case.judge.problem, case.problem, case.x0


def run(unit: Unit, log: Log) -> Mapping[str, Any]:
    """Search a grid, or run one method; if a method does not take the problem, return its reason."""
    config = unit.config
    exact, problem, x0 = _pose(config["problem"], config["images"], unit.seed, log)
    try:
        if "grid" in config:
            return {"points": search(unit.method, config["grid"], problem, x0, config["calls"])}
        constants = config["constants"] if unit.after is None else log.summary(unit.after)["points"][0]["constants"]
        method, clock = build(config.get("method", unit.method), constants), Clock()
        _, small, start = _pose(config["problem"], 2, unit.seed, log)
        warm_up(method, small, start)
        judge = Judge(exact, x0, log, clock, config["budget"])
        stop = (MaxPasses(config["passes"]), clock.stop_at(config["budget"]))
        result = solve(problem, x0, clock.watch(method), stop=stop, observers=[judge], record=0)
        judge.last(result.state, result.steps, result.forwards, result.backwards)
    except UnsupportedProblemError as refusal:
        return {"refusal": str(refusal), "points": [{"constants": {}, "kkt": None}]}
    status = "GOAL" if judge.best <= GOAL else result.status.name
    best = judge.best if math.isfinite(judge.best) else None
    return {"constants": dict(constants), "status": status, "steps": result.steps, "best_kkt": best}


def _reached(records: Sequence[Record], level: float) -> tuple[float, float]:
    """Return the median passes and seconds to a relative KKT residual; infinite if half of the seeds miss it."""
    needed = []
    for columns in (record.columns for record in records):
        hits = np.flatnonzero(columns["kkt"] <= level).tolist() if columns else []
        spent = [columns["forwards"] + columns["backwards"], columns["seconds"]] if hits else []
        needed.append((float(spent[0][hits[0]]), float(spent[1][hits[0]])) if hits else (math.inf, math.inf))
    return sorted(needed)[len(needed) // 2] if needed else (math.inf, math.inf)


def _settings(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(r.unit.setting for r in records if not r.unit.setting.startswith(SEARCH)))


def _fields(records: Sequence[Record], setting: str) -> Iterator[tuple[str, list[Record]]]:
    """Yield the methods that ran in a setting with their records."""
    for method in dict.fromkeys(record.unit.method for record in records):
        if runs := [r for r in chosen(records, setting, method) if "refusal" not in r.summary]:
            yield method, runs


def section(records: Sequence[Record]) -> Section:
    """Return the curves, a table for each setting, the refusals and the verdicts."""
    seeds = len({r.unit.seed for r in records if not r.unit.setting.startswith(SEARCH)})
    introduction = (
        "Every registered method on Neyman-Pearson classification and the network with loss budgets (200 images of a "
        "digit, averaged losses) and on the constrained Markov decision process (b = 8). Printed: the constants of the "
        "paper's appendix, else the defaults of the class. Tuned: the winner of nine points on a held-out seed, "
        f"{PILOT_CALLS} forward passes each; AdaptiveGDPA has nothing to tune. Every run has {PASSES} passes, forward "
        f"and backward together, or {SECONDS:g} seconds of processor time. Medians over {seeds} seed(s)."
    )
    return Section(introduction, (_chart(records),), _tables(records), _verdicts(records) if records else ())


def _chart(records: Sequence[Record]) -> Chart:
    panels = []
    methods = list(dict.fromkeys(record.unit.method for record in records))
    for setting in _settings(records):
        series = []
        for method, runs in _fields(records, setting):
            columns, index = runs[0].columns, methods.index(method)
            if columns:
                passes, best = columns["forwards"] + columns["backwards"], np.minimum.accumulate(columns["kkt"])
                series.append(Series(method, passes, best, ("line", "dotted", "dashdot")[index // 8 % 3], index % 8))
        panels.append(Panel(setting, "passes, forward and backward", "best relative KKT residual", series))
    caption = "The smallest residual so far of the first seed, with the best multipliers for each point."
    return Chart("race-passes", "Residual against passes", caption, panels, columns=2)


def _tables(records: Sequence[Record]) -> list[Table]:
    tables = []
    head = (
        "method",
        *(f"{unit} to {level:g}" for level in LEVELS for unit in ("passes", "seconds")),
        "best",
        "constants",
    )
    for setting in _settings(records):
        rows: list[list[Any]] = []
        for method, runs in _fields(records, setting):
            needed = [number for level in LEVELS for number in _reached(runs, level)]
            bests = sorted(math.inf if (best := r.summary["best_kkt"]) is None else best for r in runs)
            cells = ["not reached" if math.isinf(number) else number for number in needed]
            rows.append([method, *cells, bests[len(bests) // 2], json.dumps(runs[0].summary["constants"])])
        rows.sort(key=lambda row: [math.inf if isinstance(cell, str) else cell for cell in row[-4:0:-2]] + [row[-2]])
        tables.append(Table(f"{setting}: median passes and seconds to a relative KKT residual", head, rows))
    refusals = {
        (r.unit.method, r.unit.config["problem"]): r.summary["refusal"] for r in records if "refusal" in r.summary
    }
    rows = [[*key, reason] for key, reason in refusals.items()]
    return [*tables, Table("Methods that do not take a problem", ("method", "problem", "reason"), rows)]


def _verdicts(records: Sequence[Record]) -> list[Verdict]:
    tuned = [setting for setting in _settings(records) if setting.startswith("tuned")]
    passes = {
        (setting, level): {method: _reached(runs, level)[0] for method, runs in _fields(records, setting)}
        for setting in tuned
        for level in LEVELS
    }
    successors, factors, wins = [], [], []
    words: tuple[list[str], list[str], list[str]] = ([], [], [])
    for (setting, level), found in passes.items():
        where = f"{setting}, to {level:g}"
        finite = {method: number for method, number in found.items() if math.isfinite(number)}
        for method in SUCCESSORS:
            if {method, PAPER} <= set(found) and {method, PAPER} & set(finite):
                successors.append(found[method] < found[PAPER])
                words[0].append(f"{where}: {method} {found[method]:g}, GDPA {found[PAPER]:g}.")
        slowest = [found[rival] for rival in RIVALS if rival in finite]
        fastest = [finite[method] for method in SUCCESSORS if method in finite]
        if slowest and fastest:
            factors.append(max(slowest) / min(fastest))
            words[1].append(f"{where}: {factors[-1]:.3g} times.")
        if OURS in found and finite:
            winner = min(finite, key=lambda method: finite[method])
            wins.append(found[OURS] <= finite[winner])
            words[2].append(f"{where}: AdaptiveGDPA {found[OURS]:g}, the fewest {finite[winner]:g} by {winner}.")

    def overall(marks: Sequence[bool]) -> bool | None:
        return marks[0] if len(set(marks)) == 1 else None

    return [
        Verdict(
            "Later papers: methods of O(eps^-2) need fewer passes than GDPA.", overall(successors), " ".join(words[0])
        ),
        Verdict(
            f"Later papers: a successor needs up to {FACTOR:g} times fewer passes than switching steps or IPPP.",
            max(factors) >= FACTOR if factors else None,
            f"{' '.join(words[1])} The claim is about a stochastic method that is not in this race.",
        ),
        Verdict("AdaptiveGDPA needs the fewest passes.", all(wins) if wins else None, " ".join(words[2]), ours=True),
    ]
