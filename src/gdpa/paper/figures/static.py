"""Draws a `Chart` with matplotlib."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from gdpa.paper.figures.chart import COLORS, Chart, Panel

LINES = {"line": "-", "dashed": "--", "dotted": ":", "dashdot": "-.", "points": "none"}


def draw(chart: Chart) -> Figure:
    """Return the chart as a matplotlib figure, one legend below all panels."""
    columns = min(chart.columns, max(1, len(chart.panels)))
    figure = Figure(figsize=(3.6 * columns + 0.4, 2.9 * chart.rows + 1.1), layout="constrained")
    figure.suptitle(chart.title, fontsize=12)
    handles: dict[str, Any] = {}
    for index, panel in enumerate(chart.panels):
        _draw_panel(figure.add_subplot(chart.rows, columns, index + 1), panel, handles)
    if handles:
        wide = max(map(len, handles)) > 14
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=min(len(handles), columns if wide else 2 * columns),
            frameon=False,
            fontsize=9,
        )
    # Lay it out once: otherwise each file it is saved to does it again, which takes longer than drawing.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def _draw_panel(axes: Any, panel: Panel, handles: dict[str, Any]) -> None:
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.x_label, fontsize=9)
    axes.set_ylabel(panel.y_label, fontsize=9)
    axes.set_xscale("log" if panel.log_x else "linear")
    axes.set_yscale("log" if panel.log_y else "linear")
    axes.tick_params(which="both", labelsize=8)
    axes.xaxis.set_minor_locator(NullLocator())
    if panel.x_ticks:
        axes.set_xticks(list(panel.x_ticks), list(panel.x_ticks.values()))
    axes.grid(True, which="major", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    for series in panel.series:
        color = COLORS[series.color % len(COLORS)]
        x, y = np.asarray(series.x, dtype=float), np.asarray(series.y, dtype=float)
        if panel.log_y:
            y = np.where(y > 0, y, np.nan)
        points = series.style == "points"
        (line,) = axes.plot(
            x,
            y,
            linestyle=LINES[series.style],
            marker="o" if points else None,
            markersize=3.8,
            markerfacecolor="white" if points else color,
            markeredgewidth=1.1,
            linewidth=1.4,
            color=color,
            label=series.label,
            zorder=3 if points else 2,
        )
        handles.setdefault(series.label, line)
        if series.low is not None and series.high is not None:
            low, high = np.asarray(series.low, dtype=float), np.asarray(series.high, dtype=float)
            if panel.log_y:
                low = np.where(low > 0, low, np.nan)
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
