"""Accuracy against energy, and the widths that each method keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from gdpa.paper.figures.chart import Chart, Panel, Series

#: The color of the dense network, which no method has.
DENSE = 6
#: By method: a dashed line shows a solid one under it, because pruning in equal shares has the uniform widths.
STYLES = ("line", "line", "dashed", "dotted")


class Results(Protocol):
    """What the charts need to know of the records."""

    networks: tuple[str, ...]
    budgets: tuple[float, ...]

    def rows(self, network: str, budget: float, method: str) -> list[Mapping[str, Any]]:
        """Return one row per seed."""
        ...

    def dense(self, network: str) -> list[Mapping[str, Any]]:
        """Return what is known of the dense network."""
        ...


def accuracy_chart(results: Results, methods: Sequence[str]) -> Chart:
    """Return test accuracy against the energy used, one panel per network."""
    panels = []
    for network in results.networks:
        series = []
        for color, method in enumerate(methods):
            found = [rows for budget in results.budgets if (rows := results.rows(network, budget, method))]
            if not found:
                continue
            energy = [100 * float(np.mean([row["energy"] for row in rows])) for rows in found]
            tests = [[row["test"] for row in rows] for rows in found]
            middle, low, high = ([float(pick(values)) for values in tests] for pick in (np.mean, min, max))
            series.append(Series(method, energy, middle, STYLES[color], color, low, high))
            series.append(Series(method, energy, middle, "points", color))
        ends = [100 * min(results.budgets), 100 * max(results.budgets)]
        dense = float(np.mean([row["test"] for row in results.dense(network)]))
        series.append(Series("dense network", ends, [dense, dense], "dashed", DENSE))
        panels.append(Panel(network, "true energy (% of dense)", "test accuracy (%)", series, log_x=False, log_y=False))
    return Chart(
        "energy-accuracy",
        "Test accuracy against energy",
        "Lines: means over seeds; bands: least and most. All methods have the same number of epochs in all; the dense "
        "network has fewer, those before pruning.",
        panels,
        columns=2,
    )


def widths_chart(results: Results, methods: Sequence[str]) -> Chart:
    """Return the share of channels kept in every hidden width, one panel per network and budget."""
    panels = []
    for network in results.networks:
        full = np.array([int(width) for width in results.dense(network)[0]["widths"].split("-")])
        places = np.arange(1, len(full) + 1)
        for budget in results.budgets:
            series = []
            for color, method in enumerate(methods):
                rows = results.rows(network, budget, method)
                if not rows:
                    continue
                shares = np.array([[int(width) for width in row["widths"].split("-")] for row in rows]) / full * 100
                band = (shares.min(axis=0), shares.max(axis=0))
                series.append(Series(method, places, shares.mean(axis=0), STYLES[color], color, *band))
                series.append(Series(method, places, shares.mean(axis=0), "points", color))
            title = f"{network}, {budget:.0%} of the energy"
            ticks = {float(place): f"{place} (of {width})" for place, width in zip(places, full, strict=True)}
            panels.append(Panel(title, "hidden width u", "channels kept (%)", series, False, False, ticks))
    return Chart(
        "energy-widths",
        "Channels that are kept in each hidden width",
        "Shares of the dense widths, which stand in brackets. Lines: means over seeds; bands: least and most.",
        panels,
        columns=max(1, len(results.budgets)),
    )
