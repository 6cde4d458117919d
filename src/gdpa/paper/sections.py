"""The report's sections on Figures 1 and 2: charts, tables and verdicts from records."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gdpa.base.typing import Vector
from gdpa.paper.base import Section, Table, Verdict
from gdpa.paper.claims import LEVELS, best, chosen, reached, settings
from gdpa.paper.contestants import SEARCH, labels
from gdpa.paper.figures.chart import Chart, Panel, Series
from gdpa.paper.records.folder import Record

NOT_REACHED = "not reached"
#: A violation of zero has no place on a logarithmic axis: it is drawn here.
FLOOR = 1e-5
#: A curve is cut where it is this many times its first value: it diverged.
CEILING = 1e3

AXES = {"seconds": "computing time (seconds)", "forwards": "oracle calls", "step": "iterations"}

HOW = (
    " Every method starts at the same point on the same data. Settings: 'printed' uses the constants of the paper's "
    "appendix, with losses averaged or summed over the images of a class; 'tuned' gives every method the same number "
    "of grid points on a held-out seed, GDPA too, with averaged losses. AdaptiveGDPA is ours and runs with its "
    "defaults everywhere. Methods compute in single precision; the judge certifies their points in double precision, "
    "off their clocks."
)


def compare(
    experiment: str,
    figure: str,
    introduction: str,
    everything: Sequence[Record],
    judge: Callable[[Sequence[Record]], Sequence[Verdict]],
) -> Section:
    """Return the whole section of one experiment; ``judge`` gives the verdicts on its runs."""
    searches = [record for record in everything if record.unit.setting == SEARCH]
    records = [record for record in everything if record.unit.setting != SEARCH]
    if not records:
        return Section(introduction, (), (), ())
    images = records[0].unit.config["images"]
    budget = records[0].unit.config["budget"]
    size = "All images of these digits" if images is None else f"{images} images per digit"
    seeds = len({record.unit.seed for record in records})
    return Section(
        f"{introduction} {size}, {seeds} seed{'s' if seeds > 1 else ''}, {budget:g} seconds per method.{HOW}",
        charts=(figure_chart(experiment, figure, records), kkt_chart(experiment, records)),
        tables=(
            speed_table(records),
            points_table(records),
            readings_table(records),
            constants_table(searches),
            confusion_table(records),
        ),
        verdicts=judge(records),
    )


def _medians(records: Sequence[Record]) -> list[tuple[str, str, list[Record]]]:
    return [
        (setting, method, found)
        for setting in settings(records)
        for method in labels(records)
        if (found := chosen(records, setting, method))
    ]


def speed_table(records: Sequence[Record]) -> Table:
    """Return time and oracle calls to each level, medians and ranges over seeds."""
    head = ["setting", "method"]
    head += [f"{what} to {level:g}" for level in LEVELS for what in ("seconds", "oracle calls")]
    rows = []
    for setting, method, found in _medians(records):
        cells: list[Any] = [setting, method]
        for level in LEVELS:
            got = reached(found, level)
            cells += [_spread(got.seconds, *got.seconds_range), _spread(got.forwards, *got.forwards_range)]
        smallest = best(found)
        iterations = sorted(r.summary["steps"] for r in found)[len(found) // 2]
        cells += [None if math.isinf(smallest) else smallest, iterations, _endings(found)]
        rows.append(cells)
    return Table(
        "Time and oracle calls to a relative KKT residual"
        + (" (medians over seeds, in brackets least and most)" if len({r.unit.seed for r in records}) > 1 else ""),
        (*head, "smallest residual", "iterations", "how it ended"),
        rows,
    )


def _spread(middle: float, least: float, most: float) -> Any:
    """Return a median, with its range if there is one.

    >>> _spread(2.0, 2.0, 2.0), _spread(2.0, 1.5, math.inf), _spread(math.inf, math.inf, math.inf)
    (2.0, '2 (1.5 to not reached)', 'not reached')
    """
    if least == most:
        return NOT_REACHED if math.isinf(middle) else middle
    words = [NOT_REACHED if math.isinf(value) else f"{value:.3g}" for value in (middle, least, most)]
    return f"{words[0]} ({words[1]} to {words[2]})"


def _endings(records: Sequence[Record]) -> str:
    words = {"GOAL": "goal reached", "MAX_TIME": "out of time", "MAX_STEPS": "out of steps"}
    found = dict.fromkeys(r.summary["status"] for r in records)
    return ", ".join(words.get(status, status.lower().replace("_", " ")) for status in found)


def _numbers(values: Sequence[float] | None) -> str:
    return "" if values is None else ", ".join(f"{value:.3g}" for value in values)


def points_table(records: Sequence[Record]) -> Table:
    """Return the last points: losses, multipliers, violation and test accuracy, first seed."""
    classes = records[0].summary["classes"]
    rows = []
    for setting, method, found in _medians(records):
        summary = found[0].summary
        final = summary["final"] or {}
        rows.append(
            [
                setting,
                method,
                final.get("objective"),
                _numbers(summary.get("losses")),
                _numbers(summary.get("multipliers")),
                final.get("stationarity"),
                final.get("feasibility"),
                final.get("slackness"),
                _accuracy(summary),
            ]
        )
    digits = ", ".join(map(str, classes))
    head = (
        "setting",
        "method",
        "objective",
        f"losses of {digits}",
        "multipliers",
        "stationarity",
        "violation",
        "slackness",
        f"test accuracy of {digits} in %",
    )
    return Table("The last point of each method (first seed)", head, rows)


def _accuracy(summary: Any) -> str:
    table = summary.get("confusion")
    if table is None:
        return ""
    square = len(table[0]) == len(table)
    places = range(len(table)) if square else summary["classes"]
    return ", ".join(f"{100 * row[place] / sum(row):.1f}" for row, place in zip(table, places, strict=True))


def readings_table(records: Sequence[Record]) -> Table:
    """Return the residuals of GDPA with the printed constants in every reading of the paper, first seed."""
    rows = []
    for record in records:
        if record.unit.method != "GDPA" or record.unit.seed != 0 or record.unit.setting == "tuned":
            continue
        summary = record.summary
        final = summary["final"] or {}
        cells = (final.get("stationarity"), final.get("feasibility"), final.get("kkt"), _numbers(summary.get("losses")))
        rows.append([record.unit.setting, summary["steps"], *cells, _endings([record])])
    head = ("reading", "iterations", "stationarity", "violation", "relative KKT residual", "losses", "how it ended")
    return Table("GDPA with the printed constants in every reading (first seed)", head, rows)


def constants_table(searches: Sequence[Record]) -> Table:
    """Return the grids' winners."""
    rows = []
    for record in searches:
        points = record.summary["points"]
        winner = points[0]
        constants = json.dumps(winner["constants"])
        rows.append([record.unit.method, len(points), constants, winner["kkt"], record.unit.config["calls"]])
    head = ("method", "grid points", "winner", "its residual", "oracle calls each")
    return Table(
        "Tuned constants: the winners of the grids on the held-out seed (all points are in the records)", head, rows
    )


def confusion_table(records: Sequence[Record]) -> Table:
    """Return the confusion on the test set in the last setting, first seed."""
    classes = records[0].summary["classes"]
    last = settings(records)[-1:]
    rows: list[list[Any]] = []
    width = 0
    for setting, method, found in _medians(records):
        table = found[0].summary.get("confusion")
        if setting in last and table is not None:
            width = len(table[0])
            rows += [[method, digit, *row] for digit, row in zip(classes, table, strict=True)]
    columns = classes if width == len(classes) else range(width)
    head = ("method", "true digit", *(f"as {digit}" for digit in columns))
    return Table(f"Test images by true and found digit ({', '.join(last)}, first seed)", head, rows)


def figure_chart(experiment: str, figure: str, records: Sequence[Record]) -> Chart:
    """Return stationarity and feasibility against seconds in the paper's layout, a row per setting."""
    panels = [
        Panel(f"{name}, {setting}", _axes(records)["seconds"], label, _curves(records, setting, "seconds", name))
        for setting in settings(records)
        for name, label in (("stationarity", "||∇f + Jᵀλ||"), ("feasibility", "||g₊||"))
    ]
    return Chart(
        f"{experiment}-figure",
        f"{figure}: stationarity and feasibility against computing time",
        "Absolute residuals of the paper's Definition 2 at each method's current point, with the best multipliers for "
        "that point whatever the method. Lines: median over seeds; bands: range. Each method on its own clock, "
        f"measuring off it. A violation of zero is drawn at {FLOOR:g}; a curve that diverges is cut.{_absent(records)}",
        panels,
        columns=2,
    )


def kkt_chart(experiment: str, records: Sequence[Record]) -> Chart:
    """Return the largest relative KKT residual against seconds, oracle calls and iterations, a row per setting."""
    panels = [
        Panel(setting, label, "relative KKT residual", _curves(records, setting, axis, "kkt"))
        for setting in settings(records)
        for axis, label in _axes(records).items()
    ]
    return Chart(
        f"{experiment}-kkt",
        "The largest relative KKT residual against time, oracle calls and iterations",
        "One number per point: the largest of relative stationarity, feasibility and slackness. Lines: median over "
        f"seeds; bands: range.{_absent(records)}",
        panels,
        columns=3,
    )


def _axes(records: Sequence[Record]) -> dict[str, str]:
    """Return the label of every axis; the seconds of records name their clock, if all have the same."""
    clocks = {record.unit.config.get("clock") for record in records}
    known = len(clocks) == 1 and None not in clocks
    return {**AXES, "seconds": f"{clocks.pop()} time (seconds)"} if known else AXES


def _absent(records: Sequence[Record]) -> str:
    """Name the runs that have no curve because they stopped before their first step."""
    found = dict.fromkeys(
        f"{r.unit.method} ({r.unit.setting}, seed {r.unit.seed})" for r in records if r.summary["steps"] == 0
    )
    return f" Stopped before its first step, and so without a curve: {', '.join(found)}." if found else ""


def _curves(records: Sequence[Record], setting: str, axis: str, name: str) -> list[Series]:
    series = []
    drawn = [r for r in records if r.unit.setting == setting and r.summary["steps"] > 0 and r.columns]
    ceiling = CEILING * float(np.median([r.columns[name][0] for r in drawn])) if drawn else np.inf
    for color, method in enumerate(labels(records)):
        runs = chosen(drawn, setting, method)
        if runs:
            x, bands = band(runs, axis, name)
            low, middle, high = (np.where(y <= ceiling, y, np.nan) for y in bands)
            several = len(runs) > 1
            series.append(Series(method, x, middle, "line", color, low if several else None, high if several else None))
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
