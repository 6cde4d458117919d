"""Draws a `Chart` with plotly, as a piece of HTML that needs plotly.js once on its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from gdpa.paper.figures.chart import COLORS, Chart, Numbers, Panel, Series

DASHES = {"line": "solid", "dashed": "dash", "dotted": "dot", "dashdot": "dashdot", "points": "solid"}
ROW_HEIGHT = 300
#: About how many labels an axis has.
LABELS = 6


def draw(chart: Chart) -> Any:
    """Return the chart as a plotly figure; a click on a legend entry hides its curves in every panel."""
    columns = min(chart.columns, max(1, len(chart.panels)))
    figure = make_subplots(
        rows=chart.rows,
        cols=columns,
        subplot_titles=[panel.title for panel in chart.panels],
        vertical_spacing=0.28 / chart.rows,
        horizontal_spacing=0.2 / columns,
    )
    seen: set[str] = set()
    for index, panel in enumerate(chart.panels):
        row, column = index // columns + 1, index % columns + 1
        for series in panel.series:
            for trace in _traces(panel, series, series.label not in seen):
                figure.add_trace(trace, row=row, col=column)
            seen.add(series.label)
        axis = {"exponentformat": "power", "gridcolor": "#e6e6e6", "linecolor": "#999", "zeroline": False}
        x_axis = _scale(panel.log_x, [series.x for series in panel.series])
        y_axis = _scale(panel.log_y, [series.y for series in panel.series])
        figure.update_xaxes(title_text=panel.x_label, row=row, col=column, **axis, **x_axis)
        if panel.x_ticks:
            figure.update_xaxes(
                tickvals=list(panel.x_ticks), ticktext=list(panel.x_ticks.values()), row=row, col=column
            )
        # The label of the next panel serves for this one, too; three columns have no space for a second.
        known = column > 1 and chart.panels[index - 1].y_label == panel.y_label
        figure.update_yaxes(title_text="" if known else panel.y_label, row=row, col=column, **axis, **y_axis)
    height = ROW_HEIGHT * chart.rows + 130
    figure.update_layout(
        height=height,
        margin={"l": 70, "r": 20, "t": 60, "b": 90},
        legend={"orientation": "h", "yanchor": "top", "y": -70 / (height - 150), "x": 0},
        font={"family": "system-ui, sans-serif", "size": 12},
        plot_bgcolor="white",
        hovermode="closest",
    )
    return figure


def _scale(log: bool, columns: Sequence[Numbers]) -> dict[str, Any]:
    """Return the kind of an axis and the distance of its labels: decades, or 1, 2 and 5 if it has less than two.

    >>> _scale(True, [[1.0, 300.0]]), _scale(True, [[1e-12, 1.0]]), _scale(True, [[2.0], [9.0]])
    ({'type': 'log', 'dtick': 1}, {'type': 'log', 'dtick': 2}, {'type': 'log', 'dtick': 'D2'})
    """
    if not log:
        return {"type": "linear", "nticks": LABELS}
    values = np.concatenate([np.asarray(column, dtype=float) for column in columns] or [np.ones(1)])
    values = values[(values > 0) & np.isfinite(values)]
    decades = float(np.log10(values.max() / values.min())) if len(values) else 0.0
    return {"type": "log", "dtick": max(1, round(decades / LABELS)) if decades >= 2 else "D2"}


def _traces(panel: Panel, series: Series, first: bool) -> list[Any]:
    color = COLORS[series.color % len(COLORS)]
    x, y = np.asarray(series.x, dtype=float), np.asarray(series.y, dtype=float)
    if panel.log_y:
        y = np.where(y > 0, y, np.nan)
    traces = []
    if series.low is not None and series.high is not None:
        low, high = np.asarray(series.low, dtype=float), np.asarray(series.high, dtype=float)
        traces.append(
            go.Scatter(
                x=[*x, *x[::-1]],
                y=[*high, *low[::-1]],
                fill="toself",
                fillcolor=color,
                opacity=0.15,
                line={"width": 0},
                legendgroup=series.label,
                showlegend=False,
                hoverinfo="skip",
            )
        )
    points = series.style == "points"
    traces.append(
        go.Scatter(
            x=x.tolist(),
            y=y.tolist(),
            name=series.label,
            legendgroup=series.label,
            showlegend=first,
            mode="markers" if points else "lines",
            line={"color": color, "dash": DASHES[series.style], "width": 2},
            marker={"color": "white", "size": 6, "line": {"color": color, "width": 1.5}},
            hovertemplate=f"{series.label}<br>{panel.x_label} %{{x:.4g}}<br>{panel.y_label} %{{y:.4g}}<extra></extra>",
        )
    )
    return traces


def to_html(chart: Chart) -> str:
    """Return the chart as HTML without plotly.js."""
    html = draw(chart).to_html(
        full_html=False, include_plotlyjs=False, div_id=chart.name, config={"displaylogo": False, "responsive": True}
    )
    return str(html)
