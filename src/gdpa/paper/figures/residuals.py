"""Residuals along a run beside the slope r^(-1/3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gdpa.paper.figures.chart import Chart, Panel, Series
from gdpa.paper.records.folder import Record

#: The color of the slope, which no curve has.
GUIDE = 6


def residuals_chart(records: Sequence[Record], names: Sequence[str]) -> Chart:
    """Return one panel per residual and tau with a curve per problem and the slope of Theorem 1."""
    settings = list(dict.fromkeys(record.unit.setting for record in records))
    panels = []
    for tau in dict.fromkeys(record.unit.config["tau"] for record in records):
        for name in names:
            chosen = [r for r in records if r.unit.config["tau"] == tau and r.columns]
            series = [
                Series(r.unit.setting, r.columns["step"], r.columns[name], *_look(settings.index(r.unit.setting)))
                for r in chosen
            ]
            if chosen:
                steps = chosen[0].columns["step"]
                ends = np.array([r.columns[name][-1] for r in chosen])
                top = float(np.max(ends[ends > 0], initial=1e-300))
                guide = 3 * top * (steps / steps[-1]) ** (-1 / 3)
                series.append(Series("slope r^(-1/3)", steps, guide, "dashed", GUIDE))
            panels.append(Panel(f"{name}, tau = {tau}", "step r", name, series))
    return Chart(
        "rate-residuals",
        "Residuals of Definition 2 along the run, and the slope of Theorem 1",
        "Absolute residuals at (x_r, lambda_r), the method's own multipliers. A curve parallel to the dashed line "
        "falls like r^(-1/3), a steeper one falls faster.",
        panels,
        columns=len(names),
    )


def _look(index: int) -> tuple[str, int]:
    """Return a style and a color that differ for the first 18 curves."""
    return ("line", "dotted", "dashdot")[index // GUIDE % 3], index % GUIDE
