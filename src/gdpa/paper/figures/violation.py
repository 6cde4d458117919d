"""The measured violation on top of the predicted tau lambda / beta_r."""

from __future__ import annotations

from collections.abc import Sequence

from gdpa.paper.figures.chart import Chart, Panel, Series
from gdpa.paper.records.folder import Record


def violation_chart(records: Sequence[Record], taus: Sequence[float]) -> Chart:
    """Return one panel per problem: a line per tau for the prediction, points for what was measured."""
    panels = []
    for name in dict.fromkeys(record.unit.setting for record in records):
        series = []
        for record in records:
            tau = record.unit.config["tau"]
            if record.unit.setting != name or not record.columns:
                continue
            r, color = record.columns["step"], list(taus).index(tau)
            series.append(Series(f"predicted, tau = {tau}", r, record.columns["predicted"], "line", color))
            series.append(Series(f"measured, tau = {tau}", r, record.columns["measured"], "points", color))
        panels.append(Panel(name, "step r", "violation of active constraints", series))
    return Chart(
        "rate-violation",
        "The violation GDPA leaves: measured (points) on the predicted tau λ/β (lines)",
        "Lines: the norm of tau lambda*/beta_r over the active constraints, from the recorded multipliers. "
        "Points: the norm of the measured g_+ on the same constraints. Early steps are the transient before the run "
        "follows the law; steps at which the active constraints hold have no point on logarithmic axes. beta_0 was "
        "chosen run by run, so the lines need not be in the order of tau.",
        panels,
    )
