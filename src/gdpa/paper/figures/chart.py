"""A chart, described once for `static` (PNG and SVG files) and `interactive` (the report)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from gdpa.base.typing import Vector

Numbers: TypeAlias = Sequence[float] | Vector

#: Okabe and Ito's colors, which color-blind readers can distinguish.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")

STYLES = ("line", "dashed", "dotted", "dashdot", "points")
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
        title, x_label, y_label: the texts above and next to it.
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


class Points(NamedTuple):
    """The numbers of a series that its panel can show; NaN where an axis has no place for a number."""

    x: Vector
    y: Vector
    low: Vector | None
    high: Vector | None

    @property
    def heights(self) -> Vector:
        """All numbers on the axis of y."""
        return np.concatenate([self.y, *(band for band in (self.low, self.high) if band is not None)])


def visible(panel: Panel, series: Series) -> Points:
    """Return the points of a series, without those that are not positive on a logarithmic axis.

    >>> shown = visible(Panel("", "", "", ()), Series("a", [0, 1, 2], [1, 0, 3]))
    >>> shown.x.tolist(), shown.y.tolist()
    ([1.0, 2.0], [nan, 3.0])
    """
    x = np.asarray(series.x, dtype=float)
    keep = x > 0 if panel.log_x else np.ones(len(x), dtype=bool)

    def column(values: Numbers) -> Vector:
        array = np.asarray(values, dtype=float)[keep]
        return np.where(array > 0, array, np.nan) if panel.log_y else array

    low, high = (None if band is None else column(band) for band in (series.low, series.high))
    return Points(x[keep], column(series.y), low, high)


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
    stride = max(1, round((last - first) / LABELS))
    powers = range(first, last + 1)
    digits = {1: (1,), 2: (1, 2, 5), 3: tuple(range(1, 10))}
    for finer, factors in digits.items():
        places = [factor * 10.0**k for k in (powers[::stride] if finer == 1 else powers) for factor in factors]
        places = [place for place in places if low * (1 - 1e-9) <= place <= high * (1 + 1e-9)]
        if len(places) >= (3 if finer == 1 else 2):
            break
    else:
        places = [float(f"{place:.3g}") for place in sorted({low, high})]
    return {place: re.sub(r"e([+-])0*", lambda sign: "e" + sign[1].strip("+"), f"{place:g}") for place in places}
