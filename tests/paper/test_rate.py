"""The experiment `rate` against closed forms."""

import numpy as np
import pytest

from gdpa import problems
from gdpa.paper.base import Settings, Unit
from gdpa.paper.records import Record
from gdpa.paper.studies import rate


class Rows(list):
    def row(self, **columns):
        self.append(columns)

    def progress(self, fraction, note=""):
        assert 0 <= fraction <= 1


def unit_of(name, tau, **settings):
    return next(u for u in rate.units(Settings(**settings)) if u.setting == name and u.config["tau"] == tau)


def test_units_are_the_problems_with_an_active_inequality():
    units = rate.units(Settings(seeds=2))
    names = {unit.setting for unit in units}
    assert {"disc-product", "disc-square", "HS12"} <= names
    assert all(
        max(problems.get(name).multipliers) > 0 and problems.get(name).problem.num_equalities == 0 for name in names
    )
    assert len(units) == 2 * 3 * len(names)


def test_the_violation_on_the_disc_is_the_closed_form():
    """min -x0 x1 on x'x <= 2 has lambda = 1/2, so GDPA must end at g = tau / (2 beta_0 r^(1/3))."""
    rows = Rows()
    summary = rate.run(unit_of("disc-product", 0.5, steps=3000), rows)
    r, last = 3000, rows[-1]
    assert last["step"] == r
    expected = 0.5 * 0.5 / (summary["beta"] * r ** (1 / 3))
    assert last["predicted"] == pytest.approx(expected, rel=1e-12)
    assert last["measured"] == pytest.approx(expected, rel=0.01)
    assert last["feasibility"] == last["measured"]
    assert last["slackness"] == pytest.approx(0.5 * expected, rel=0.02)
    assert summary["settled"] is True
    assert summary["multipliers"] == pytest.approx([0.5], rel=0.01)


def test_the_choice_is_the_best_pilot_and_is_recorded():
    summary = rate.run(unit_of("HS12", 0.1, steps=100), Rows())
    pilots = summary["pilots"]
    assert len(pilots) == len(rate.ALPHAS) * len(rate.BETAS)
    best = min(pilots, key=lambda pilot: pilot["kkt"])
    assert (summary["alpha"], summary["beta"]) == (best["alpha"], best["beta"])
    assert any(pilot["kkt"] == np.inf or pilot["kkt"] > 2 * best["kkt"] for pilot in pilots)


def test_seeds_move_the_start_and_seed_zero_does_not():
    firsts = []
    for seed in (0, 0, 1):
        rows = Rows()
        unit = unit_of("disc-product", 0.1, steps=10)
        rate.run(Unit(unit.experiment, unit.method, unit.setting, seed, unit.config), rows)
        firsts.append(rows[0]["stationarity"])
    assert firsts[0] == firsts[1] != firsts[2]


def record(setting="p", tau=0.1, exponent=-1 / 3, ratio=1.0, settled=True, points=40):
    r = np.geomspace(10, 1e5, points)
    columns = {"step": r, "measured": r**exponent, "predicted": r ** (-1 / 3)}
    columns |= dict.fromkeys(rate.RESIDUALS, 2 * r**exponent)
    summary = {"alpha": 0.1, "beta": 1.0, "ratios": [ratio], "settled": settled, "step": 1e5}
    return Record(Unit("rate", f"GDPA tau={tau}", setting, 0, {"tau": tau}), summary, columns, {})


@pytest.mark.parametrize("exponent", [-1 / 3, -1.0, 0.25])
def test_slopes_of_powers_are_their_exponents(exponent):
    assert rate.slope(record(exponent=exponent), "feasibility") == pytest.approx(exponent)


def test_slopes_need_three_points():
    few = record(points=2)
    assert np.isnan(rate.slope(few, "feasibility"))


def verdicts(*records):
    return [verdict.holds for verdict in rate.section(list(records)).verdicts]


def test_verdicts_follow_the_records():
    assert verdicts(record(), record("q")) == [True] * 5
    assert verdicts(record(ratio=1.2), record("q", ratio=0.7))[0] is False
    assert verdicts(record(exponent=-0.1), record("q", exponent=-0.1)) == [True, False, False, False, False]
    # faster than Theorem 1 keeps its promise, but not our claim that it is never faster
    assert verdicts(record(exponent=-1.0), record("q", exponent=-1.0)) == [True, True, True, True, False]
    assert verdicts(record(settled=False)) == [None]


def test_runs_that_did_not_settle_are_named_and_left_out():
    section = rate.section([record(), record("stiff", tau=0.9, ratio=9.0, settled=False)])
    assert section.verdicts[0].holds is True
    assert "stiff (tau = 0.9)" in section.verdicts[0].words
    assert "1 of 2 runs have settled" in section.verdicts[0].words


def test_the_figure_puts_the_measured_on_the_predicted():
    violation, residuals = rate.section([record(), record("q", tau=0.9)]).charts
    assert [panel.title for panel in violation.panels] == ["p", "q"]
    predicted, measured = violation.panels[0].series
    assert (predicted.style, measured.style) == ("line", "points")
    assert predicted.color == measured.color
    assert np.array_equal(predicted.y, measured.y)
    guide = residuals.panels[0].series[-1]
    assert np.polyfit(np.log(guide.x), np.log(guide.y), 1)[0] == pytest.approx(-1 / 3)
