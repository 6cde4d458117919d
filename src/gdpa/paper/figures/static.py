"""Draws a `Chart` with matplotlib, as PNG and SVG files."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from gdpa.base.writing import write_whole
from gdpa.paper.figures.chart import COLORS, Chart, Panel, log_ticks, visible

LINES = {"line": "-", "dashed": "--", "dotted": ":", "dashdot": "-.", "points": "none"}


def save(chart: Chart, folder: Path) -> list[Path]:
    """Write the chart as ``NAME.png`` and ``NAME.svg`` and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = draw(chart)
    paths = []
    # Fixed ids and no date: the same records give the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": chart.name, "svg.fonttype": "none"}):
        for kind, metadata in (("png", {}), ("svg", {"Date": None})):
            path = folder / f"{chart.name}.{kind}"
            drawn = BytesIO()
            figure.savefig(drawn, format=kind, dpi=150, metadata=metadata)
            write_whole(path, drawn.getvalue())
            paths.append(path)
    return paths


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
    axes.set(xscale="log" if panel.log_x else "linear", yscale="log" if panel.log_y else "linear")
    axes.tick_params(which="both", labelsize=8)
    axes.grid(True, which="major", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    drawn = [visible(panel, series) for series in panel.series]
    for series, (x, y, low, high) in zip(panel.series, drawn, strict=True):
        color = COLORS[series.color % len(COLORS)]
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
        if low is not None and high is not None:
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    for axis, log, values in (
        ("x", panel.log_x, [points.x for points in drawn]),
        ("y", panel.log_y, [points.heights for points in drawn]),
    ):
        ticks = dict(panel.x_ticks) if axis == "x" and panel.x_ticks else log_ticks(values) if log else {}
        if ticks:
            axes.set(**{f"{axis}ticks": list(ticks), f"{axis}ticklabels": list(ticks.values())})
            getattr(axes, f"{axis}axis").set_minor_locator(NullLocator())
