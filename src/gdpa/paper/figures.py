"""A chart, described once, drawn by matplotlib (PNG and SVG files) and by plotly.js (the report)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gdpa.base.typing import Vector
from gdpa.base.writing import write_whole

Numbers: TypeAlias = Sequence[float] | Vector

#: Okabe and Ito's colors, which color-blind readers can distinguish.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
#: The styles of a series: the line of matplotlib, the dash of plotly.js, the border in the legend of the report.
STYLES = {
    "line": ("-", "solid", "solid"),
    "dashed": ("--", "dash", "dashed"),
    "dotted": (":", "dot", "dotted"),
    "dashdot": ("-.", "dashdot", "dashed"),
    "points": ("none", "solid", "dotted"),
}
#: About how many labels an axis has.
LABELS = 6


def look(index: int, colors: int = len(COLORS)) -> tuple[str, int]:
    """Return a style and a color; the first 3 * colors curves differ.

    >>> look(1), look(9)
    (('line', 1), ('dotted', 1))
    """
    return ("line", "dotted", "dashdot")[index // colors % 3], index % colors


@dataclass(frozen=True)
class Series:
    """One curve or cloud of points, with a band from ``low`` to ``high``, such as the range over seeds.

    ``style`` is a key of `STYLES`, ``color`` an index into `COLORS`. Series of one label share a legend entry.
    """

    label: str
    x: Numbers
    y: Numbers
    style: str = "line"
    color: int = 0
    low: Numbers | None = None
    high: Numbers | None = None

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise ValueError(f"style must be one of {', '.join(STYLES)}, got {self.style!r}")


@dataclass(frozen=True)
class Panel:
    """One pair of axes; ``x_ticks`` maps places to labels, if the ticks of x are chosen and not found."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = True
    log_y: bool = True
    x_ticks: Mapping[float, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Chart:
    """Panels, row by row with ``columns`` in a row; ``name`` is the name of the files."""

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    columns: int = 3


def visible(panel: Panel, series: Series) -> tuple[Vector, Vector, list[Vector]]:
    """Return x, y and the edges of the band, without points that have no place on a logarithmic axis.

    >>> x, y, _ = visible(Panel("", "", "", ()), Series("a", [0, 1, 2], [1, 0, 3]))
    >>> x.tolist(), y.tolist()
    ([1.0, 2.0], [nan, 3.0])
    """
    x = np.asarray(series.x, dtype=float)
    keep = x > 0 if panel.log_x else np.ones(len(x), dtype=bool)

    def column(values: Numbers) -> Vector:
        array = np.asarray(values, dtype=float)[keep]
        return np.where(array > 0, array, np.nan) if panel.log_y else array

    return x[keep], column(series.y), [column(edge) for edge in (series.low, series.high) if edge is not None]


def ticks_of(panel: Panel) -> tuple[Mapping[float, str], Mapping[float, str]]:
    """Return places and labels of the axes x and y; none if the drawing library is to choose them."""
    drawn = [visible(panel, series) for series in panel.series]
    heights = [column for _, y, edges in drawn for column in (y, *edges)]
    along = panel.x_ticks or (log_ticks([x for x, _, _ in drawn]) if panel.log_x else {})
    return along, log_ticks(heights) if panel.log_y else {}


def log_ticks(values: Iterable[Vector]) -> dict[float, str]:
    """Return places and labels for a logarithmic axis: powers of ten, and digits between them if these are few.

    >>> log_ticks([np.array([1e-12, 1.0])])
    {1e-12: '1e-12', 1e-10: '1e-10', 1e-08: '1e-8', 1e-06: '1e-6', 0.0001: '0.0001', 0.01: '0.01', 1.0: '1'}
    >>> log_ticks([np.array([2.0]), np.array([9.0])])
    {2.0: '2', 5.0: '5'}
    """
    found = np.concatenate([np.ravel(column) for column in values] or [np.zeros(0)])
    found = found[(found > 0) & np.isfinite(found)]
    if not len(found):
        return {}
    low, high = float(found.min()), float(found.max())
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = range(first, last + 1)
    stride = max(1, round((last - first) / LABELS))
    for factors, chosen, least in (((1,), powers[::stride], 3), ((1, 2, 5), powers, 2), (range(1, 10), powers, 2)):
        places = [factor * 10.0**power for power in chosen for factor in factors]
        places = [place for place in places if low * (1 - 1e-9) <= place <= high * (1 + 1e-9)]
        if len(places) >= least:
            break
    else:
        places = [float(f"{place:.3g}") for place in sorted({low, high})]
    return {place: re.sub(r"e([+-])0*", lambda sign: "e" + sign[1].strip("+"), f"{place:g}") for place in places}


def save(chart: Chart, folder: Path) -> list[Path]:
    """Write the chart as ``NAME.png`` and ``NAME.svg`` and return their paths."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    figure = draw(chart)
    paths = []
    # Fixed ids and no date: the same records give the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": chart.name, "svg.fonttype": "none"}):
        for kind, metadata in (("png", {}), ("svg", {"Date": None})):
            drawn = BytesIO()
            figure.savefig(drawn, format=kind, dpi=150, metadata=metadata)
            paths.append(folder / f"{chart.name}.{kind}")
            write_whole(paths[-1], drawn.getvalue())
    return paths


def draw(chart: Chart) -> Any:
    """Return the chart as a matplotlib figure, one legend below all panels."""
    from matplotlib.figure import Figure

    columns, rows = min(chart.columns, max(1, len(chart.panels))), max(1, math.ceil(len(chart.panels) / chart.columns))
    figure = Figure(figsize=(3.6 * columns + 0.4, 2.9 * rows + 1.1), layout="constrained")
    figure.suptitle(chart.title, fontsize=12)
    handles: dict[str, Any] = {}
    for index, panel in enumerate(chart.panels):
        _draw_panel(figure.add_subplot(rows, columns, index + 1), panel, handles)
    if handles:
        across = min(len(handles), columns if max(map(len, handles)) > 14 else 2 * columns)
        place: dict[str, Any] = {"loc": "outside lower center", "ncols": across, "frameon": False, "fontsize": 9}
        figure.legend(list(handles.values()), list(handles), **place)
    # Lay it out once: otherwise each file it is saved to does it again, which takes longer than drawing.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def _draw_panel(axes: Any, panel: Panel, handles: dict[str, Any]) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.x_label, fontsize=9)
    axes.set_ylabel(panel.y_label, fontsize=9)
    axes.set(xscale="log" if panel.log_x else "linear", yscale="log" if panel.log_y else "linear")
    axes.tick_params(which="both", labelsize=8)
    axes.grid(True, which="major", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    for series in panel.series:
        (x, y, edges), color = visible(panel, series), COLORS[series.color % len(COLORS)]
        line = {"linestyle": STYLES[series.style][0], "linewidth": 1.4, "color": color, "zorder": 2}
        if series.style == "points":
            line |= {"marker": "o", "markersize": 3.8, "markerfacecolor": "white", "markeredgewidth": 1.1, "zorder": 3}
        handles.setdefault(series.label, axes.plot(x, y, label=series.label, **line)[0])
        if edges:
            axes.fill_between(x, *edges, color=color, alpha=0.15, linewidth=0)
    for axis, ticks in zip("xy", ticks_of(panel), strict=True):
        if ticks:
            axes.set(**{f"{axis}ticks": list(ticks), f"{axis}ticklabels": list(ticks.values())})
            getattr(axes, f"{axis}axis").set_minor_locator(NullLocator())


#: The style of the charts in a page: a plot for each panel, in a grid that narrow windows show as one column.
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


def to_html(chart: Chart) -> str:
    """Return the chart as HTML for a page with plotly.js, `STYLE` and `SCRIPT`."""
    series = {one.label: one for panel in reversed(chart.panels) for one in reversed(panel.series)}
    entries = "".join(
        f'<button><i style="border-top-style: {STYLES[one.style][2]}; border-color: {COLORS[one.color % len(COLORS)]}">'
        f"</i>{escape(label)}</button>"
        for label, one in reversed(series.items())
    )
    plots = "".join(f'<div id="{chart.name}-{index}"></div>' for index in range(len(chart.panels)))
    columns = min(chart.columns, max(1, len(chart.panels)))
    panels = json.dumps([_plot(panel) for panel in chart.panels]).replace("</", "<\\/")
    return (
        f'<div class="legend">{entries}</div><div class="panels" style="--columns: {columns}">{plots}</div>'
        f'<script>drawChart("{chart.name}", {panels})</script>'
    )


def _plot(panel: Panel) -> dict[str, Any]:
    """Return the data and the layout of one plot, as plotly.js reads them."""
    layout: dict[str, Any] = {
        "title": {"text": panel.title, "font": {"size": 14}},
        "autosize": True,
        "margin": {"l": 64, "r": 12, "t": 40, "b": 48},
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "showlegend": False,
        "hovermode": "closest",
    }
    along, up = ticks_of(panel)
    for axis, label, log, ticks in (("x", panel.x_label, panel.log_x, along), ("y", panel.y_label, panel.log_y, up)):
        layout[f"{axis}axis"] = {
            "title": {"text": label},
            "gridcolor": "#e6e6e6",
            "linecolor": "#999",
            "zeroline": False,
            **({"tickvals": list(ticks), "ticktext": list(ticks.values())} if ticks else {"nticks": LABELS}),
            "type": "log" if log else "linear",
            "automargin": True,
        }
    return {"data": [trace for series in panel.series for trace in _traces(panel, series)], "layout": layout}


def _traces(panel: Panel, series: Series) -> list[dict[str, Any]]:
    (x, y, edges), color = visible(panel, series), COLORS[series.color % len(COLORS)]
    shared = {"legendgroup": series.label, "name": series.label}
    traces: list[dict[str, Any]] = []
    if edges:
        area = {"fill": "toself", "fillcolor": color, "opacity": 0.15, "line": {"width": 0}, "hoverinfo": "skip"}
        low, high = edges
        around = {"x": _numbers([*x, *x[::-1]]), "y": _numbers([*high, *low[::-1]])}
        traces.append({**shared, **area, **around})
    curve = {
        "mode": "markers" if series.style == "points" else "lines",
        "line": {"color": color, "dash": STYLES[series.style][1], "width": 2},
        "marker": {"color": "white", "size": 6, "line": {"color": color, "width": 1.5}},
        "hovertemplate": f"{series.label}<br>{panel.x_label} %{{x:.4g}}<br>{panel.y_label} %{{y:.4g}}<extra></extra>",
    }
    return [*traces, {**shared, **curve, "x": _numbers(x), "y": _numbers(y)}]


def _numbers(values: Iterable[float]) -> list[float | None]:
    """Return a column for JSON, which has no infinity and no NaN."""
    return [float(value) if np.isfinite(value) else None for value in values]
