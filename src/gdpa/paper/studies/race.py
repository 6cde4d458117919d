"""The race: every registered method on the paper's three problems and a toy, with printed constants and tuned ones.

Each run of a problem has the same number of passes, forward and backward together, and is judged as in Figures 1 and 2;
on the Markov decision process, whose optimum is known, also by its reward. Tuned constants are the winners of grids of
equal size, each point of which has half the passes of the race on a seed that no run of the race uses and is ranked as
the tables are. A unit is one method in one setting with all seeds; its record keeps rows with a smaller error, and the
last.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from gdpa.methods import method_names
from gdpa.methods.method import UnsupportedProblemError
from gdpa.methods.nested import FixedMomentum
from gdpa.oracles import library
from gdpa.paper.applications.cmdp import as_problem, paper_instance, solve_linear_program, start_of
from gdpa.paper.base import Finding, Log, Section, Settings, Table, Unit, Verdict, judge
from gdpa.paper.comparison import CLOCK, GOAL, HELD_OUT, WARM_UP_IMAGES, Case, contest
from gdpa.paper.contestants import build, printed, to_json
from gdpa.paper.data.images import Images, load
from gdpa.paper.figures import Chart, Panel
from gdpa.paper.records import Record
from gdpa.paper.sections import NOT_REACHED, best, cost_cells, costs_to, curves, groups, median, spread
from gdpa.paper.studies.cmdp import PRINTED
from gdpa.paper.studies.mnist import BUDGET, MNPC
from gdpa.run.compare import MaxPasses

NAME = "race"
title = "The race: every method on the paper's problems"

LEVELS = (1e-1, 1e-2, 1e-4)
#: Images of a class, and seconds of processor time of a run.
IMAGES, SECONDS = 100, 4.0
#: A row is kept if its error is at most this share of the last kept error, or the first below a level.
PROGRESS = 0.9
OURS, PAPER = "adaptive-gdpa", "gdpa"
#: Single-loop methods with a rate of O(eps^-2), and the rivals of the claim about 466 times fewer passes.
SUCCESSORS = ("ppl", "lipal", "directional-decomposition")
RIVALS, FACTOR = ("switching-subgradient", "ippp"), 466.0
#: The problem of the rates, HS12: one of those on which `gdpa reproduce rate` fits GDPA's.
TOY = "toy"
#: The problem with a known optimum: the linear program over occupancies has it.
CMDP = "cmdp"
#: Its threshold b, as in the second panel of Figure 3.
THRESHOLD = 8.0
#: O(eps^-2) passes to a residual eps: it falls like passes^(-1/2), up to a tolerance.
RATE, RATE_TOLERANCE = -1 / 2, 0.05
#: A residual of zero counts as this one.
ZERO = 1e-16


class Race(NamedTuple):
    """One problem: the values of the grids, passes of a run, and the KKT residual that ends it.

    ``printed`` is its name in ``printed_constants``; for Figure 3 the paper has constants of GDPA alone.
    """

    steps: tuple[float, float, float, float]
    penalties: tuple[float, float, float]
    passes: int = 2000
    goal: float = GOAL
    printed: str = ""


PROBLEMS = {
    "mnpc": Race((0.01, 0.03, 0.1, 0.3), (0.03, 0.3, 3.0), printed="mnpc"),
    "budget": Race((0.03, 0.1, 0.3, 1.0), (0.03, 0.3, 3.0), printed="network"),
    CMDP: Race((1.0, 10.0, 100.0, 1000.0), (0.1, 0.5, 2.5), goal=0.0),  # saturated policies have small residuals, too
    TOY: Race((0.001, 0.003, 0.01, 0.03), (0.1, 1.0, 10.0), passes=5000, goal=1e-12),
}
#: The problems on images: the studies of the paper's figures.
FIGURES = {"mnpc": MNPC, "budget": BUDGET}
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


def grid(method: str, race: Race) -> list[dict[str, Any]]:
    """Return the twelve points of a method's grid; none for a method without a declared one."""
    if method not in GRIDS:
        return []
    step, other = GRIDS[method]
    if other is None:  # one constant: as many values, as widely spread
        return [{step: float(value)} for value in np.geomspace(race.steps[0] / 3, race.steps[-1] * 3, 12)]
    values = TOLERANCES if other == "tolerance" else GAINS if method == "ppl" else race.penalties
    points = [{step: length, other: value} for length in race.steps for value in values]
    return [to_json({**p, "inner": FixedMomentum(p["inner"], 0.1)}) if step == "inner" else p for p in points]


def units(settings: Settings) -> list[Unit]:
    """Every method on every problem with both kinds of constants."""
    kinds = ("printed", "tuned") if settings.preset == "both" else (settings.preset,)
    found = []
    for problem, race in PROBLEMS.items():
        shared = {
            "problem": problem,
            "images": IMAGES,
            "seeds": settings.seeds,
            "passes": settings.steps or race.passes,
            "budget": settings.budget or SECONDS,
            "clock": CLOCK,
        }
        for kind in kinds:
            setting = f"{kind}, {problem}"
            for method in method_names():
                constants = PRINTED if (method, problem) == (PAPER, CMDP) else printed(method, race.printed)
                points = grid(method, race) if kind == "tuned" else []
                choice = {"grid": points} if points else {"constants": constants}
                found.append(Unit(NAME, method, setting, 0, {**shared, **choice}))
            if settings.method is not None:
                found.append(Unit(NAME, settings.label, setting, 0, {**shared, **settings.choice}))
    return found


def _pose(problem: str, data: Images | None, images: int, seed: int) -> Case:
    """Return the problem in double precision, as the methods see it, and the start."""
    if problem == CMDP:
        cmdp = paper_instance(b=THRESHOLD)
        stated = as_problem(cmdp, check=False)
        return Case(stated, stated, start_of(cmdp, seed=seed))
    if problem == TOY:
        toy = library.get("HS12")
        return Case(toy.problem, toy.problem, toy.x0 + 0.1 * np.random.default_rng(seed).standard_normal(toy.x0.shape))
    return FIGURES[problem].case(data, images, seed, reduction="mean")


def _run(
    constants: Mapping[str, Any], unit: Unit, data: Images | None, seed: int, passes: int, log: Log
) -> tuple[list[dict[str, Any]], str]:
    """Run a method from one seed; return the rows that its record keeps, and how the run ended."""
    config, problem = unit.config, unit.config["problem"]
    method = build(config.get("method", unit.method), constants)
    case, small = (_pose(problem, data, size, seed) for size in (config["images"], WARM_UP_IMAGES))
    with np.errstate(all="ignore"):
        outcome = contest(method, case, small, config["budget"], [MaxPasses(passes)], log, PROBLEMS[problem].goal)
    best = solve_linear_program(paper_instance(b=THRESHOLD)).reward if problem == CMDP else None
    kept: list[dict[str, Any]] = []
    least, last = math.inf, math.inf
    for index, row in enumerate(outcome.rows):
        gap = {} if best is None else {"gap": float(f"{(best + row['objective']) / best:.3g}")}
        least = min(least, max(row["kkt"], *gap.values(), 0.0))
        below = any(least <= level < last for level in LEVELS)
        if least <= PROGRESS * last or below or index == len(outcome.rows) - 1:
            last, cost = least, {"passes": row["forwards"] + row["backwards"], "seconds": round(row["seconds"], 4)}
            kept.append({"seed": seed, **cost, "error": float(f"{least:.3g}"), **gap})
    return kept, outcome.summary["status"]


def _rank(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return passes to each level, the smallest level first, and the smallest error: the order of the tables."""
    costs = [min((row["passes"] for row in rows if row["error"] <= level), default=math.inf) for level in LEVELS[::-1]]
    return [*costs, min((row["error"] for row in rows), default=math.inf)]


def run(unit: Unit, log: Log) -> Mapping[str, Any]:
    """Search the grid, if there is one, and run every seed; or return why the method does not take the problem."""
    summary = dict[str, Any]()
    constants, passes, problem = unit.config.get("constants"), unit.config["passes"], unit.config["problem"]
    # Read and checked once: a unit has up to 17 runs.
    data = load("mnist", progress=lambda line: log.progress(0.0, line)) if problem in FIGURES else None
    try:
        if constants is None:
            points = unit.config["grid"]
            ranks = [_rank(_run(point, unit, data, HELD_OUT, passes // 2, log)[0]) for point in points]
            order = sorted(range(len(points)), key=ranks.__getitem__)
            # Best first: the place in the grid and the smallest error, None if there is none.
            summary["points"] = [[i, ranks[i][-1] if math.isfinite(ranks[i][-1]) else None] for i in order]
            constants = points[order[0]]
        for seed in range(unit.config["seeds"]):
            rows, status = _run(constants, unit, data, seed, passes, log)
            for row in rows:
                log.row(**row)
    except UnsupportedProblemError as refusal:
        return {"refusal": str(refusal)}
    return {**summary, "constants": dict(constants), "status": status}


def runs_of(records: Sequence[Record]) -> list[Record]:
    """Return a record for each seed of each unit that ran, with its smallest error and its steps."""
    found = []
    for record in records:
        if "refusal" in record.summary:
            continue
        for seed in range(record.unit.config["seeds"]):
            rows = record.columns["seed"] == seed if record.columns else ()
            columns = {name: column[rows] for name, column in record.columns.items()}
            if columns:
                columns["kkt"] = columns.pop("error")  # as the shared tables and curves name it
            least = float(columns["kkt"].min()) if columns and len(columns["kkt"]) else None
            summary = {**record.summary, "best_kkt": least, "steps": 1}
            found.append(replace(record, unit=replace(record.unit, seed=seed), summary=summary, columns=columns))
    return found


def exponent(runs: Sequence[Record]) -> float:
    """Return the median exponent p of an error that falls like passes^p, from the last decade of passes."""
    fits = []
    for passes, kkt in ((r.columns["passes"], np.maximum(r.columns["kkt"], ZERO)) for r in runs if r.columns):
        if len(passes) and passes[0] <= passes[-1] / 10:
            logs = np.log10(passes), np.log10(kkt)
            fits.append(float(logs[1][-1] - np.interp(logs[0][-1] - 1, *logs)))
    return float(np.median(fits)) if fits else math.nan


def section(records: Sequence[Record]) -> Section:
    """Return the curves, a table for each setting, the refusals and the verdicts."""
    runs, config = runs_of(records), records[0].unit.config if records else {"seeds": 0, "budget": SECONDS}
    introduction = (
        f"Every registered method on Neyman-Pearson classification and the network with loss budgets ({IMAGES} images "
        "of a digit, averaged losses), on the constrained Markov decision process (b = 8) and on a toy problem (HS12), "
        "where exponents are measured. Printed: the constants of the paper's appendix, else the defaults of the class. "
        "Tuned: the winner of twelve points, ranked as the tables are after half of the passes on a held-out seed; "
        f"AdaptiveGDPA has nothing to tune. Every run has {PROBLEMS['mnpc'].passes} passes, forward and backward "
        f"together, on the toy {PROBLEMS[TOY].passes}, or {config['budget']:g} seconds of processor time. Medians over "
        f"{config['seeds']} seed(s), in brackets the range. On the Markov decision process a long step saturates the "
        "softmax policies: "
        "gradients vanish there, and a small residual does not mean a reward near the optimum. The error there is the "
        "larger of the residual and the gap, the share of the linear program's reward that is missing."
    )
    return Section(introduction, (_chart(runs),), _tables(records, runs), _verdicts(runs) if runs else ())


def _chart(runs: Sequence[Record]) -> Chart:
    settings = dict.fromkeys(run.unit.setting for run in runs)
    labels = ("passes, forward and backward", "smallest error")
    panels = [Panel(setting, *labels, curves(runs, setting, "passes", "kkt")) for setting in settings]
    caption = (
        "The smallest relative KKT residual so far, with the best multipliers for each point; on the Markov decision "
        "process the larger of it and the missing share of the reward. Lines: median over seeds; bands: range. A run "
        "that ended, at its goal or early, keeps its last value."
    )
    return Chart("race-passes", "Error against passes", caption, panels, columns=2)


def _tables(records: Sequence[Record], runs: Sequence[Record]) -> list[Table]:
    tables: dict[str, list[tuple[list[float], list[Any]]]] = {}
    for setting, method, found in groups(runs):
        # Sorted by passes to the smallest level, then to the others, then by the smallest error.
        order = [*(median(costs_to(found, level, "passes")) for level in LEVELS[::-1]), best(found)]
        more: list[Any] = [exponent(found)] if setting.endswith(TOY) else []
        if setting.endswith(CMDP):
            more = [spread([float(r.columns["gap"][-1]) for r in found if r.columns and len(r.columns["gap"])])]
        cells = [*cost_cells(found, LEVELS, ("passes", "seconds")), best(found), *more]
        row = [method, *cells, json.dumps(found[0].summary["constants"])]
        tables.setdefault(setting, []).append((order, row))
    costs = [f"{cost} to {level:g}" for level in LEVELS for cost in ("passes", "seconds")]
    added = {TOY: ["exponent"], CMDP: ["gap at the end"]}
    drawn = []
    for setting, rows in tables.items():
        head = ("method", *costs, "smallest error", *added.get(setting.partition(", ")[2], []), "constants")
        ranked = [row for _, row in sorted(rows, key=lambda pair: pair[0])]
        drawn.append(Table(f"{setting}: passes and seconds to an error", head, ranked))
    refusals = [(r.unit.method, r.unit.config["problem"], r.summary.get("refusal")) for r in records]
    refused = [row for row in dict.fromkeys(refusals) if row[-1] is not None]
    return [*drawn, Table("Methods that do not take a problem", ("method", "problem", "reason"), refused)]


def _verdicts(runs: Sequence[Record]) -> list[Verdict]:
    tuned = [(setting, method, found) for setting, method, found in groups(runs) if setting.startswith("tuned")]
    contests = dict.fromkeys(setting for setting, _, _ in tuned if not setting.endswith(TOY))
    fewer: list[Finding] = []
    ours: list[Finding] = []
    factors: list[tuple[float, str]] = []

    def show(passes: float) -> str:
        return NOT_REACHED if math.isinf(passes) else f"{passes:g}"

    for setting, level in ((setting, level) for setting in contests for level in LEVELS):
        where = f"{setting}, to {level:g}"
        found = {m: median(costs_to(some, level, "passes")) for name, m, some in tuned if name == setting}
        finite = {method: passes for method, passes in found.items() if math.isfinite(passes)}
        for method in SUCCESSORS:
            if {method, PAPER} <= set(found) and {method, PAPER} & set(finite):
                words = f"{where}: {method} {show(found[method])}, GDPA {show(found[PAPER])}."
                fewer.append((found[method] < found[PAPER], words))
        slowest = [finite[rival] for rival in RIVALS if rival in finite]
        fastest = [finite[method] for method in SUCCESSORS if method in finite]
        if slowest and fastest:
            factor = max(slowest) / min(fastest)
            factors.append((factor, f"{where}: {factor:.3g} times."))
        if OURS in found and finite:
            winner = min(finite, key=lambda method: finite[method])
            words = f"{where}: AdaptiveGDPA {show(found[OURS])}, the fewest {show(finite[winner])} by {winner}."
            ours.append((found[OURS] <= finite[winner], words))
    fits = {m: exponent(found) for setting, m, found in tuned if setting.endswith(TOY) and m in (*SUCCESSORS, PAPER)}
    fast = [(fits[m] <= RATE + RATE_TOLERANCE, "") for m in SUCCESSORS if math.isfinite(fits.get(m, math.nan))]
    named = ", ".join(f"{m} {fit:.2f}" for m, fit in fits.items())
    words = " ".join([*(sentence for _, sentence in factors), "The claim is about the SPIDER penalty:"])
    return [
        judge("Later papers: methods of O(eps^-2) need fewer passes than GDPA.", fewer),
        judge(
            "Later papers: the residual of methods of O(eps^-2) falls at least as fast as passes^(-1/2).",
            fast,
            f"Exponents in the last decade of passes on the toy, tuned: {named}.",
        ),
        Verdict(
            f"Later papers: a successor needs up to {FACTOR:g} times fewer passes than switching steps or IPPP.",
            max(factors)[0] >= FACTOR if factors else None,
            f"{words} python -m benchmarks.spider.",
        ),
        judge(
            "AdaptiveGDPA needs the fewest passes.",
            ours,
            f"{sum(bool(won) for won, _ in ours)} of {len(ours)} comparisons won. ",
            ours=True,
            strict=True,
        ),
    ]
