"""Draws a `Chart` with plotly.js: one plot for each panel, in a grid that narrow windows show as one column."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
import plotly

from gdpa.base.typing import Vector
from gdpa.paper.figures.chart import COLORS, LABELS, Chart, Panel, Series, log_ticks, visible

DASHES = {"line": "solid", "dashed": "dash", "dotted": "dot", "dashdot": "dashdot", "points": "solid"}
BORDERS = {"line": "solid", "dashed": "dashed", "dotted": "dotted", "dashdot": "dashed", "points": "dotted"}

STYLE = """
.panels { display: grid; grid-template-columns: repeat(var(--columns), minmax(0, 1fr)); gap: 0.5rem; }
.panels > div { height: 300px; }
.legend { display: flex; flex-wrap: wrap; gap: 0.2rem 0.9rem; margin: 0.5rem 0; }
.legend button { border: 0; background: none; padding: 0; font: inherit; font-size: 0.82rem; cursor: pointer; }
.legend i { display: inline-block; width: 1.6rem; border-top: 3px; margin-right: 0.35rem; vertical-align: middle; }
.legend .off { opacity: 0.35; }
@media (max-width: 700px) { .panels { grid-template-columns: minmax(0, 1fr); } }
"""

#: Draws the panels of a chart; a click on an entry of its legend hides or shows the curves in all of its panels.
SCRIPT = """
function drawChart(name, panels) {
  panels.forEach((panel, index) => Plotly.newPlot(`${name}-${index}`, panel.data, panel.layout,
    {displaylogo: false, displayModeBar: false, responsive: true}));
}
document.addEventListener("click", (event) => {
  const entry = event.target.closest(".legend button");
  if (!entry) return;
  const visible = !entry.classList.toggle("off");
  for (const plot of entry.closest("figure").querySelectorAll(".js-plotly-plot")) {
    const curves = [...plot.data.keys()].filter((index) => plot.data[index].legendgroup === entry.textContent);
    if (curves.length) Plotly.restyle(plot, {visible}, curves);
  }
});
"""


def head() -> str:
    """Return the part of a page's head that its charts need: plotly.js, the function that draws, and the style."""
    library = (files(plotly) / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    return f"<style>{STYLE}</style>\n<script>{library}</script>\n<script>{SCRIPT}</script>"


def to_html(chart: Chart) -> str:
    """Return the chart as HTML for a page with the `head` above."""
    series = {one.label: one for panel in reversed(chart.panels) for one in reversed(panel.series)}
    entries = "".join(_entry(series[label]) for label in reversed(series))
    plots = "".join(f'<div id="{chart.name}-{index}"></div>' for index in range(len(chart.panels)))
    columns = min(chart.columns, max(1, len(chart.panels)))
    panels = json.dumps([_plot(panel) for panel in chart.panels]).replace("</", "<\\/")
    return (
        f'<div class="legend">{entries}</div><div class="panels" style="--columns: {columns}">{plots}</div>'
        f'<script>drawChart("{chart.name}", {panels})</script>'
    )


def _entry(series: Series) -> str:
    color = COLORS[series.color % len(COLORS)]
    line = f'<i style="border-top-style: {BORDERS[series.style]}; border-color: {color}"></i>'
    return f"<button>{line}{escape(series.label)}</button>"


def _plot(panel: Panel) -> dict[str, Any]:
    """Return the data and the layout of one plot, as plotly.js reads them."""
    drawn = [visible(panel, series) for series in panel.series]
    layout = {
        "title": {"text": panel.title, "font": {"size": 14}},
        "xaxis": _axis(panel.x_label, panel.log_x, [points.x for points in drawn], dict(panel.x_ticks)),
        "yaxis": _axis(panel.y_label, panel.log_y, [points.heights for points in drawn], {}),
        "autosize": True,
        "margin": {"l": 64, "r": 12, "t": 40, "b": 48},
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "showlegend": False,
        "hovermode": "closest",
    }
    data = [
        trace for series, points in zip(panel.series, drawn, strict=True) for trace in _traces(panel, series, points)
    ]
    return {"data": data, "layout": layout}


def _axis(label: str, log: bool, columns: list[Vector], ticks: dict[float, str]) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": {"text": label}, "gridcolor": "#e6e6e6", "linecolor": "#999", "zeroline": False}
    ticks = ticks or (log_ticks(columns) if log else {})
    axis |= {"tickvals": list(ticks), "ticktext": list(ticks.values())} if ticks else {"nticks": LABELS}
    return {**axis, "type": "log" if log else "linear", "automargin": True}


def _traces(panel: Panel, series: Series, points: Any) -> list[dict[str, Any]]:
    color = COLORS[series.color % len(COLORS)]
    shared = {"legendgroup": series.label, "name": series.label}
    traces: list[dict[str, Any]] = []
    if points.low is not None and points.high is not None:
        area = {"fill": "toself", "fillcolor": color, "opacity": 0.15, "line": {"width": 0}, "hoverinfo": "skip"}
        edge = _numbers(points.high) + _numbers(points.low[::-1])
        traces.append({**shared, **area, "x": _numbers(points.x) + _numbers(points.x[::-1]), "y": edge})
    hover = f"{series.label}<br>{panel.x_label} %{{x:.4g}}<br>{panel.y_label} %{{y:.4g}}<extra></extra>"
    look = {
        "mode": "markers" if series.style == "points" else "lines",
        "line": {"color": color, "dash": DASHES[series.style], "width": 2},
        "marker": {"color": "white", "size": 6, "line": {"color": color, "width": 1.5}},
    }
    traces.append({**shared, **look, "x": _numbers(points.x), "y": _numbers(points.y), "hovertemplate": hover})
    return traces


def _numbers(values: Vector) -> list[float | None]:
    """Return a column for JSON, which has no infinity and no NaN."""
    return [float(value) if np.isfinite(value) else None for value in values]
