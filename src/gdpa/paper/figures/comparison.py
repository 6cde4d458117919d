"""The paper's Figures 1 and 2: residuals against computing time, one curve per method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gdpa.paper.claims import chosen, settings
from gdpa.paper.contestants import labels
from gdpa.paper.figures.chart import Chart, Panel, Series
from gdpa.paper.records.folder import Record

#: A violation of zero has no place on a logarithmic axis: it is drawn here.
FLOOR = 1e-5
#: A curve is cut where it is this many times what the methods' runs begin with: it diverged.
CEILING = 1e3

AXES = {"seconds": "computing time (seconds)", "forwards": "oracle calls", "step": "iterations"}


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
            low, middle, high = (np.where(np.asarray(y) <= ceiling, y, np.nan) for y in bands)
            several = len(runs) > 1
            series.append(Series(method, x, middle, "line", color, low if several else None, high if several else None))
    return series


def band(
    runs: Sequence[Record], axis: str, name: str, points: int = 120
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], tuple[Sequence[float], Sequence[float], Sequence[float]]]:
    """Return common abscissae and the least, median and largest value over seeds there.

    Between two rows a run has the value of the earlier one; a run that ended keeps its last value to the end of
    the longest.
    """
    floor = FLOOR if name == "feasibility" else 0.0
    columns = [(r.columns[axis], np.maximum(r.columns[name], floor)) for r in runs]
    if len(columns) == 1:
        x, y = columns[0]
        return x, (y, y, y)
    first, last = max(x[0] for x, _ in columns), max(x[-1] for x, _ in columns)
    grid = np.geomspace(first, max(last, first * (1 + 1e-9)), points)
    values = np.array([y[np.searchsorted(x, grid * (1 + 1e-12), side="right") - 1] for x, y in columns])
    low, middle, high = values.min(axis=0), np.median(values, axis=0), values.max(axis=0)
    return grid, (low.tolist(), middle.tolist(), high.tolist())
