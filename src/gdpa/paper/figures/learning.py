"""Learning curves of policies under budgets: return, costs against their limits, multipliers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gdpa.paper.figures.chart import Chart, Panel, Series

#: The rows of one run by column: update, steps, return, "cost NAME", "multiplier NAME".
Columns = Mapping[str, np.ndarray[Any, np.dtype[Any]]]


def learning_chart(runs: Mapping[str, Sequence[Columns]], budgets: Mapping[str, float]) -> Chart:
    """Return the chart of several methods; each line is the mean over a method's seeds, its band their range.

    Args:
        runs: method -> the runs of its seeds, of equal length.
        budgets: name -> limit.
    """

    def curves(column: str) -> list[Series]:
        series = []
        for color, (method, seeds) in enumerate(runs.items()):
            values = np.stack([np.asarray(run[column], dtype=float) for run in seeds])
            known = np.isfinite(values).all(0)  # no episode has ended in the first updates
            x, values = np.asarray(seeds[0]["steps"], dtype=float)[known] / 1000, values[:, known]
            series.append(Series(method, x, values.mean(0), "line", color, values.min(0), values.max(0)))
        return series

    def limited(name: str) -> list[Series]:
        series = curves(f"cost {name}")
        ends = [float(series[0].x[0]), float(series[0].x[-1])]
        return [*series, Series("limit", ends, [budgets[name]] * 2, "dotted", 6)]

    def panel(title: str, y_label: str, series: list[Series]) -> Panel:
        return Panel(title, "environment steps (thousands)", y_label, series, log_x=False, log_y=False)

    panels = [panel("return of an episode", "return", curves("return"))]
    panels += [panel(f"cost: {name}", "mean per step", limited(name)) for name in budgets]
    panels += [panel(f"multiplier: {name}", "multiplier", curves(f"multiplier {name}")) for name in budgets]
    return Chart(
        "learning-curves",
        "Learning under budgets",
        "Lines: means over seeds; bands: their range; dotted: the budgets. Costs are running means per step.",
        panels,
        columns=1 + len(budgets),
    )
