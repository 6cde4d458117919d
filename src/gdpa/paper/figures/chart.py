"""A chart described once and drawn twice: by matplotlib as PNG and SVG, by plotly in the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gdpa.base.writing import write_whole

Numbers: TypeAlias = Sequence[float] | np.ndarray[Any, np.dtype[Any]]

#: Okabe and Ito's colors, which color-blind readers can distinguish.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")

STYLES = ("line", "dashed", "dotted", "dashdot", "points")


@dataclass(frozen=True)
class Series:
    """One curve or cloud of points.

    Args:
        label: its name in the legend; series of one label share a legend entry across panels.
        x, y: the data.
        style: "line", "dashed", "dotted", "dashdot" or "points".
        color: an index into `COLORS`.
        low, high: a band around y, e.g. the range over seeds.
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
    """One pair of axes; logarithmic unless said otherwise.

    Args:
        title, x_label, y_label: what is written above and beside it.
        series: the curves.
        log_x, log_y: whether an axis is logarithmic.
        x_ticks: place -> label, if the ticks of x are chosen and not found.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = True
    log_y: bool = True
    x_ticks: Mapping[float, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Chart:
    """Panels side by side.

    Args:
        name: of the files, e.g. "rate-violation".
        title: above the chart.
        caption: below it, in plain words.
        panels: the panels, row by row.
        columns: how many panels a row has.
    """

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    columns: int = 3

    @property
    def rows(self) -> int:
        """How many rows of panels there are."""
        return max(1, math.ceil(len(self.panels) / self.columns))


def save(chart: Chart, folder: Path) -> list[Path]:
    """Write the chart as ``NAME.png`` and ``NAME.svg`` and return their paths."""
    import matplotlib

    from gdpa.paper.figures.static import draw

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
