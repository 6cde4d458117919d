"""Records of methods side by side: their costs to a residual, and the charts and tables of a report."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gdpa.base.typing import Vector
from gdpa.paper.base import Table
from gdpa.paper.contestants import labels
from gdpa.paper.figures import Chart, Panel, Series, look
from gdpa.paper.records import Record

#: The relative KKT residuals at which methods are compared.
LEVELS = (1e-1, 1e-2, 1e-3)
NOT_REACHED = "not reached"
#: A violation of zero has no place on a logarithmic axis: it is drawn here.
FLOOR = 1e-5
#: A curve is cut where it is this many times its first value: it diverged.
CEILING = 1e3

AXES = {"seconds": "computing time (seconds)", "forwards": "oracle calls", "step": "iterations"}
ENDINGS = {"GOAL": "goal reached", "MAX_TIME": "out of time", "MAX_STEPS": "out of steps"}


def settings(records: Sequence[Record]) -> list[str]:
    """Return the settings of the figures in the order of the records: those in which not GDPA alone ran."""
    return list(dict.fromkeys(record.unit.setting for record in records if record.unit.method != "GDPA"))


def chosen(records: Iterable[Record], setting: str, method: str) -> list[Record]:
    """Return the records of a method in a setting."""
    return [r for r in records if r.unit.setting == setting and r.unit.method == method]


def costs_to(records: Iterable[Record], level: float, cost: str = "seconds", column: str = "kkt") -> list[float]:
    """Return the ``cost`` of each run to its first row with ``column`` at most ``level``; infinite if it has none."""
    costs = []
    for columns in (record.columns for record in records):
        hits = np.flatnonzero(columns[column] <= level).tolist() if columns else []
        costs.append(float(columns[cost][hits[0]]) if hits else math.inf)
    return costs


def median(values: Sequence[float]) -> float:
    """Return the upper median: infinite as soon as half of the values are."""
    return sorted(values)[len(values) // 2] if values else math.inf


def best(records: Iterable[Record]) -> float:
    """Return the median over seeds of the smallest residual of a run; infinite if there is none."""
    return median([math.inf if (value := r.summary["best_kkt"]) is None else value for r in records])


def groups(records: Sequence[Record]) -> list[tuple[str, str, list[Record]]]:
    """Return setting, method and records of each group that differs by the seed alone."""
    pairs = [(setting, method) for setting in settings(records) for method in labels(records)]
    return [(*pair, found) for pair in pairs if (found := chosen(records, *pair))]


def cost_cells(runs: Sequence[Record], levels: Sequence[float], costs: Sequence[str]) -> list[Any]:
    """Return the cells of a table with each cost to each level: median, and range over seeds."""
    return [spread(costs_to(runs, level, cost)) for level in levels for cost in costs]


def spread(values: Sequence[float]) -> Any:
    """Return a median, with the range if there is one.

    >>> spread([2.0]), spread([1.5, 2.0, math.inf]), spread([math.inf])
    (2.0, '2 (1.5 to not reached)', 'not reached')
    """
    middle, least, most = median(values), min(values), max(values)
    if least == most:
        return NOT_REACHED if math.isinf(middle) else middle
    words = [NOT_REACHED if math.isinf(value) else f"{value:.3g}" for value in (middle, least, most)]
    return f"{words[0]} ({words[1]} to {words[2]})"


def tables(records: Sequence[Record], searches: Sequence[Record]) -> list[Table]:
    """Return the tables of a figure's section; ``searches`` are the records of the grids."""
    firsts = [_speed_table(records), _points_table(records), _readings_table(records)]
    return [*firsts, _constants_table(searches), _confusion_table(records)]


def charts(experiment: str, figure: str, records: Sequence[Record]) -> list[Chart]:
    """Return the charts of a figure's section, a row of panels per setting.

    The first has the paper's layout: stationarity and feasibility against seconds. The second shows the largest
    relative KKT residual against seconds, oracle calls and iterations.
    """
    axes, absent = _axes(records), _absent(records)
    measures = (("stationarity", "||∇f + Jᵀλ||"), ("feasibility", "||g₊||"))
    return [
        Chart(
            f"{experiment}-figure",
            f"{figure}: stationarity and feasibility against computing time",
            "Absolute residuals of the paper's Definition 2 at each method's current point, with the best multipliers "
            "for that point whatever the method. Lines: median over seeds; bands: range. Each method on its own clock, "
            f"measuring off it. A violation of zero is drawn at {FLOOR:g}; a curve that diverges is cut.{absent}",
            [
                Panel(f"{name}, {setting}", axes["seconds"], label, curves(records, setting, "seconds", name))
                for setting in settings(records)
                for name, label in measures
            ],
            columns=2,
        ),
        Chart(
            f"{experiment}-kkt",
            "The largest relative KKT residual against time, oracle calls and iterations",
            "One number per point: the largest of relative stationarity, feasibility and slackness. Lines: median over "
            f"seeds; bands: range.{absent}",
            [
                Panel(setting, label, "relative KKT residual", curves(records, setting, axis, "kkt"))
                for setting in settings(records)
                for axis, label in axes.items()
            ],
            columns=3,
        ),
    ]


def _speed_table(records: Sequence[Record]) -> Table:
    rows = []
    for setting, method, found in groups(records):
        smallest, iterations = best(found), median([r.summary["steps"] for r in found])
        ends = (None if math.isinf(smallest) else smallest, iterations, _endings(found))
        rows.append([setting, method, *cost_cells(found, LEVELS, ("seconds", "forwards")), *ends])
    head = [f"{what} to {level:g}" for level in LEVELS for what in ("seconds", "oracle calls")]
    several = len({r.unit.seed for r in records}) > 1
    return Table(
        "Time and oracle calls to a relative KKT residual"
        + (" (medians over seeds, in brackets least and most)" if several else ""),
        ("setting", "method", *head, "smallest residual", "iterations", "how it ended"),
        rows,
    )


def _endings(records: Sequence[Record]) -> str:
    found = dict.fromkeys(r.summary["status"] for r in records)
    return ", ".join(ENDINGS.get(status, status.lower().replace("_", " ")) for status in found)


def _numbers(values: Sequence[float] | None) -> str:
    return "" if values is None else ", ".join(f"{value:.3g}" for value in values)


def _points_table(records: Sequence[Record]) -> Table:
    """Return the last points: losses, multipliers, violation and test accuracy, first seed."""
    rows = []
    for setting, method, (first, *_) in groups(records):
        summary, final = first.summary, first.summary["final"] or {}
        losses, multipliers = (_numbers(summary.get(name)) for name in ("losses", "multipliers"))
        residuals = (final.get(name) for name in ("stationarity", "feasibility", "slackness"))
        table = summary.get("confusion", [])
        places = range(len(table)) if table and len(table) == len(table[0]) else summary["classes"]
        shares = [f"{100 * row[place] / sum(row):.1f}" for row, place in zip(table, places, strict=False)]
        rows.append([setting, method, final.get("objective"), losses, multipliers, *residuals, ", ".join(shares)])
    digits = ", ".join(map(str, records[0].summary["classes"]))
    head = (
        *("setting", "method", "objective", f"losses of {digits}", "multipliers", "stationarity", "violation"),
        *("slackness", f"test accuracy of {digits} in %"),
    )
    return Table("The last point of each method (first seed)", head, rows)


def _readings_table(records: Sequence[Record]) -> Table:
    """Return the residuals of GDPA with the printed constants in every reading of the paper, first seed."""
    rows = []
    for record in records:
        unit, summary, final = record.unit, record.summary, record.summary["final"] or {}
        if unit.method == "GDPA" and unit.seed == 0 and unit.setting != "tuned":
            cells = [final.get(name) for name in ("stationarity", "feasibility", "kkt")]
            rows.append([unit.setting, summary["steps"], *cells, _numbers(summary.get("losses")), _endings([record])])
    head = ("reading", "iterations", "stationarity", "violation", "relative KKT residual", "losses", "how it ended")
    return Table("GDPA with the printed constants in every reading (first seed)", head, rows)


def _constants_table(searches: Sequence[Record]) -> Table:
    rows = []
    for record in searches:
        points = record.summary["points"]
        winner = (json.dumps(points[0]["constants"]), points[0]["kkt"])
        rows.append([record.unit.method, len(points), *winner, record.unit.config["calls"]])
    caption = "Tuned constants: the winners of the grids on the held-out seed (all points are in the records)"
    return Table(caption, ("method", "grid points", "winner", "its residual", "oracle calls each"), rows)


def _confusion_table(records: Sequence[Record]) -> Table:
    """Return the confusion on the test set in the last setting, first seed."""
    classes, last = records[0].summary["classes"], settings(records)[-1]
    firsts = [(method, found[0].summary) for setting, method, found in groups(records) if setting == last]
    rows = [
        [method, digit, *row]
        for method, summary in firsts
        if "confusion" in summary
        for digit, row in zip(classes, summary["confusion"], strict=True)
    ]
    width = len(rows[0]) - 2 if rows else 0
    columns = classes if width == len(classes) else range(width)
    head = ("method", "true digit", *(f"as {digit}" for digit in columns))
    return Table(f"Test images by true and found digit ({last}, first seed)", head, rows)


def _axes(records: Sequence[Record]) -> dict[str, str]:
    """Return the label of every axis; the seconds of records name their clock, if all have the same."""
    clocks = {record.unit.config.get("clock") for record in records}
    known = len(clocks) == 1 and None not in clocks
    return {**AXES, "seconds": f"{clocks.pop()} time (seconds)"} if known else AXES


def _absent(records: Sequence[Record]) -> str:
    """Name the runs that have no curve because they stopped before their first step."""
    still = [r.unit for r in records if r.summary["steps"] == 0]
    found = dict.fromkeys(f"{unit.method} ({unit.setting}, seed {unit.seed})" for unit in still)
    return f" Stopped before its first step, and so without a curve: {', '.join(found)}." if found else ""


def curves(records: Sequence[Record], setting: str, axis: str, name: str) -> list[Series]:
    """Return a curve for each method in a setting: the median over seeds and the range."""
    series = []
    drawn = [
        r for r in records if r.unit.setting == setting and r.summary["steps"] and r.columns and len(r.columns[axis])
    ]
    ceiling = CEILING * float(np.median([r.columns[name][0] for r in drawn])) if drawn else np.inf
    for index, method in enumerate(labels(records)):
        if runs := chosen(drawn, setting, method):
            x, bands = band(runs, axis, name)
            low, middle, high = (np.where(y <= ceiling, y, np.nan) for y in bands)
            edges = (low, high) if len(runs) > 1 else (None, None)
            series.append(Series(method, x, middle, *look(index), *edges))
    return series


def band(runs: Sequence[Record], axis: str, name: str, points: int = 120) -> tuple[Vector, list[Vector]]:
    """Return common abscissae and the least, median and largest value over seeds there.

    Between two rows a run has the value of the earlier one; a run that ended keeps its last value to the end of
    the longest.
    """
    floor = FLOOR if name == "feasibility" else 0.0
    columns = [(r.columns[axis], np.maximum(r.columns[name], floor)) for r in runs]
    if len(columns) == 1:
        x, y = columns[0]
        return x, [y, y, y]
    first, last = max(x[0] for x, _ in columns), max(x[-1] for x, _ in columns)
    grid = np.geomspace(first, max(last, first * (1 + 1e-9)), points)
    values = np.array([y[np.searchsorted(x, grid * (1 + 1e-12), side="right") - 1] for x, y in columns])
    return grid, [values.min(axis=0), np.median(values, axis=0), values.max(axis=0)]
