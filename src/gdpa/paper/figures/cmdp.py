"""The paper's Figure 3, and how far each method is from the optimum along its run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gdpa.paper.figures.chart import Chart, Panel, Series
from gdpa.paper.records.folder import Record


def rewards_chart(records: Sequence[Record], shown: Sequence[str]) -> Chart:
    """Return Figure 3: objective and constrained reward of the first seed against iterations, optima dashed.

    Args:
        records: all records of the experiment.
        shown: the methods of the figure, in the order of their colors.
    """
    objective, constrained = [], []
    first = [record for record in records if record.unit.seed == 0 and record.unit.method in shown and record.columns]
    for color, record in enumerate(sorted(first, key=lambda record: shown.index(record.unit.method))):
        r, b = record.columns["step"], record.unit.config["b"]
        label = record.unit.method if b is None else f"{record.unit.method}, b = {b:g}"
        ends, optimum = [float(r[0]), float(r[-1])], record.summary["optimum"]
        objective.append(Series(label, r, record.columns["reward"], "line", color))
        objective.append(Series("optimum (linear program)", ends, [optimum, optimum], "dashed", color))
        constrained.append(Series(label, r, record.columns["utility"], "line", color))
        if b is not None:
            constrained.append(Series("threshold b", ends, [b, b], "dotted", color))
    return Chart(
        "cmdp-rewards",
        "Constrained Markov decision process: rewards along the run",
        "Left: the value of the reward. Right: the value of the constrained reward (utility), which must reach b. "
        "Dashed: the linear program's optimum, without the constraint for policy gradient; dotted: the threshold.",
        (
            Panel("objective reward", "iteration r", "V of the reward", objective, log_y=False),
            Panel("constrained reward", "iteration r", "V of the utility", constrained, log_y=False),
        ),
        columns=2,
    )


def distance_chart(records: Sequence[Record]) -> Chart:
    """Return relative distance from the optimum and violation of every method, one column of panels per threshold."""
    methods = list(dict.fromkeys(record.unit.method for record in records if record.unit.config["b"] is not None))
    thresholds = sorted({record.unit.config["b"] for record in records if record.unit.config["b"] is not None})
    rows: tuple[list[Panel], list[Panel]] = ([], [])
    for b in thresholds:
        gaps, violations = [], []
        for record in records:
            if record.unit.config["b"] != b or record.unit.seed != 0 or not record.columns:
                continue
            r, optimum = record.columns["step"], record.summary["optimum"]
            color, label = methods.index(record.unit.method), record.unit.method
            gap = np.abs(record.columns["reward"] - optimum) / abs(optimum)
            gaps.append(Series(label, r, gap, "line", color))
            violations.append(Series(label, r, np.maximum(b - record.columns["utility"], 0.0), "line", color))
        rows[0].append(Panel(f"b = {b:g}", "iteration r", "|reward - optimum| / optimum", gaps))
        rows[1].append(Panel(f"b = {b:g}", "iteration r", "violation [b - utility]_+", violations))
    return Chart(
        "cmdp-distance",
        "Distance from the linear program's optimum and violation of the threshold",
        "Iterations at which the constraint holds have no point in the lower row. GDPA settles on the line "
        "tau lambda / beta_r; the natural primal-dual method swings around the threshold.",
        (*rows[0], *rows[1]),
        columns=max(1, len(thresholds)),
    )
