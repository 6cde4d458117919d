"""A chart, described by its data and drawn once by matplotlib: PNG and SVG files, and the same SVG in the report."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gdpa.base.typing import Vector
from gdpa.base.writing import write_whole

Numbers: TypeAlias = Sequence[float] | Vector

#: Okabe and Ito's colors, which color-blind readers can distinguish.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
#: The styles of a series, as matplotlib's lines.
STYLES = {"line": "-", "dashed": "--", "dotted": ":", "dashdot": "-.", "points": "none"}


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


def mask_nonpositive(values: Numbers, log: bool) -> Vector:
    """Return the values, on a logarithmic axis with NaN for those that are not positive.

    >>> mask_nonpositive([1, 0, 3], log=True).tolist()
    [1.0, nan, 3.0]
    """
    array = np.asarray(values, dtype=float)
    return np.where(array > 0, array, np.nan) if log else array


def save(chart: Chart, folder: Path) -> list[Path]:
    """Write the chart as ``NAME.png`` and ``NAME.svg`` and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = draw(chart)
    contents = {folder / f"{chart.name}.{kind}": _file(figure, chart.name, kind) for kind in ("png", "svg")}
    for path, content in contents.items():
        write_whole(path, content)
    return list(contents)


def to_svg(chart: Chart) -> str:
    """Return the chart as SVG; its text is escaped."""
    return _file(draw(chart), chart.name, "svg").decode()


def without_declaration(svg: str) -> str:
    """Return the SVG for a page of HTML, which has no XML declaration."""
    return svg[svg.find("<svg") :]


def _file(figure: Any, name: str, kind: str) -> bytes:
    """Return the content of a file; without dates and with fixed ids: the same records give the same bytes."""
    import matplotlib

    drawn, metadata = BytesIO(), {"Date": None} if kind == "svg" else {}
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(drawn, format=kind, dpi=150, metadata=metadata)
    return drawn.getvalue()


def draw(chart: Chart) -> Any:
    """Return the chart as a matplotlib figure, one legend below all panels.

    In its SVG the curves, bands and legend entries of a label have ids with a common start, by which the script of the
    report finds them: ``NAME:3:0``, ``NAME:3:1``, ..., and ``NAME:3:key``, ``NAME:3:text`` in the legend.
    """
    from matplotlib.figure import Figure

    columns, rows = min(chart.columns, max(1, len(chart.panels))), max(1, math.ceil(len(chart.panels) / chart.columns))
    figure = Figure(figsize=(3.6 * columns + 0.4, 2.9 * rows + 1.1), layout="constrained")
    if chart.title:
        figure.suptitle(textwrap.fill(chart.title, 40 * columns), fontsize=12)
    labels = list(dict.fromkeys(series.label for panel in chart.panels for series in panel.series))
    handles: dict[str, Any] = {}
    numbers = itertools.count()
    for index, panel in enumerate(chart.panels):
        axes = figure.add_subplot(rows, columns, index + 1)
        _draw_panel(axes, panel, handles, lambda label: f"{chart.name}:{labels.index(label)}:{next(numbers)}")
    if labels:
        across = min(len(labels), columns if max(map(len, labels)) > 14 else 2 * columns)
        place: dict[str, Any] = {"loc": "outside lower center", "ncols": across, "frameon": False, "fontsize": 9}
        legend = figure.legend(list(handles.values()), list(handles), **place)
        for index, (key, text) in enumerate(zip(legend.get_lines(), legend.get_texts(), strict=True)):
            key.set_gid(f"{chart.name}:{index}:key")
            text.set_gid(f"{chart.name}:{index}:text")
    # Lay it out once: otherwise each file it is saved to does it again, which takes longer than drawing.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def _draw_panel(axes: Any, panel: Panel, handles: dict[str, Any], name: Callable[[str], str]) -> None:
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.x_label, fontsize=9)
    axes.set_ylabel(panel.y_label, fontsize=9)
    axes.set(xscale="log" if panel.log_x else "linear", yscale="log" if panel.log_y else "linear")
    axes.tick_params(which="both", labelsize=8)
    axes.grid(True, which="major", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    for series in panel.series:
        x, y = mask_nonpositive(series.x, panel.log_x), mask_nonpositive(series.y, panel.log_y)
        edges = [mask_nonpositive(edge, panel.log_y) for edge in (series.low, series.high) if edge is not None]
        color = COLORS[series.color % len(COLORS)]
        line = {"linestyle": STYLES[series.style], "linewidth": 1.4, "color": color, "zorder": 2}
        if series.style == "points":
            line |= {"marker": "o", "markersize": 3.8, "markerfacecolor": "white", "markeredgewidth": 1.1, "zorder": 3}
        (curve,) = axes.plot(x, y, label=series.label, gid=name(series.label), **line)
        handles.setdefault(series.label, curve)
        if edges:
            axes.fill_between(x, *edges, color=color, alpha=0.15, linewidth=0, gid=name(series.label))
    if panel.x_ticks:
        axes.set_xticks(list(panel.x_ticks), list(panel.x_ticks.values()))
