"""The race at toy size: every registered method has a unit, runs or says why not, and losses are printed as losses."""

import numpy as np
import pytest

from gdpa import method_names
from gdpa.paper.base import Settings, Unit
from gdpa.paper.records import Record
from gdpa.paper.studies import race
from tests.paper.running import record
from tests.paper.small import toy_images


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setattr(race, "load", toy_images)
    monkeypatch.setattr(race, "IMAGES", 5)


def test_every_method_is_in_the_race_with_grids_of_one_size():
    units = race.units(Settings(seeds=2))
    for problem in race.PROBLEMS:
        for kind in ("printed", "tuned"):
            assert [u.method for u in units if u.setting == f"{kind}, {problem}"] == list(method_names())
    assert {len(u.config["grid"]) for u in units if "grid" in u.config} == {12}
    assert {u.config["seeds"] for u in units} == {2}
    without = {u.method for u in units if u.setting.startswith("tuned") and "grid" not in u.config}
    assert without == {"adaptive-gdpa", "proximal-admm"}  # nothing to tune, and linear constraints alone


@pytest.mark.parametrize("problem", ["mnpc", "cmdp", "toy"])
@pytest.mark.parametrize("method", method_names())
def test_every_method_runs_or_says_why_not(problem, method):
    units = race.units(Settings(steps=20, preset="printed"))
    unit = next(u for u in units if u.method == method and u.setting == f"printed, {problem}")
    if method == "proximal-admm":
        assert "linear" in race.run(unit, Quiet())["refusal"]
    else:
        finished = record(race, unit)
        assert (finished.columns["passes"] > 0).all()
        assert (np.diff(finished.columns["error"]) <= 0).all()


class Quiet:
    def progress(self, fraction, note=""):
        pass

    def row(self, **columns):
        pass


def test_a_winner_of_a_grid_is_run():
    units = race.units(Settings(steps=20, preset="tuned"))
    unit = next(u for u in units if u.method == "gdpa" and u.setting == "tuned, mnpc")
    summary = race.run(unit, Quiet())
    assert sorted(place for place, _ in summary["points"]) == list(range(12))
    assert summary["constants"] == unit.config["grid"][summary["points"][0][0]]


def test_points_of_a_grid_are_ranked_by_passes_to_the_smallest_level_first():
    quick = [{"passes": 10, "error": 0.05}, {"passes": 90, "error": 1e-5}]
    slow_but_closer = [{"passes": 5, "error": 0.005}, {"passes": 100, "error": 1e-12}]
    early_only = [{"passes": 1, "error": 0.005}]
    assert race._rank(quick) == [90, 90, 10, 1e-5]
    assert sorted([early_only, slow_but_closer, quick], key=race._rank) == [quick, slow_but_closer, early_only]


def test_a_saturated_policy_does_not_win_by_its_small_residual():
    """Steps of 3000 end where gradients vanish, with a third of the linear program's reward missing."""
    units = race.units(Settings(steps=100, preset="printed"))
    unit = next(u for u in units if (u.method, u.setting) == ("directional-decomposition", "printed, cmdp"))
    unit = Unit(unit.experiment, unit.method, unit.setting, 0, {**unit.config, "constants": {"eta": 3000.0}})
    columns = record(race, unit).columns
    assert columns["gap"][-1] > 0.3
    assert (columns["error"] >= columns["gap"] - 1e-12).all()
    (_, *cells), *_ = race.section([record(race, unit)]).tables[0].rows
    assert cells[0] == "not reached"
    assert cells[-2] == columns["gap"][-1]


def finished(method, passes, levels, setting="tuned, mnpc"):
    """A record that reaches levels after some passes, each of half a second."""
    passes = np.asarray(passes, dtype=float)
    columns = {"seed": 0 * passes, "passes": passes, "seconds": passes / 2, "error": np.asarray(levels)}
    config = {"problem": "mnpc", "seeds": 1, "budget": 2.0}
    return Record(Unit("race", method, setting, 0, config), {"constants": {}, "status": "GOAL"}, columns, {})


def test_verdicts_count_passes_and_a_loss_is_a_loss():
    records = [
        finished("adaptive-gdpa", [20, 40, 60], [0.05, 0.005, 5e-5]),
        finished("gdpa", [100, 1000], [0.05, 0.005]),
        finished("ppl", [10, 100, 1000], [0.05, 0.005, 5e-5]),
        finished("ippp", [5000], [0.05]),
    ]
    records += [
        finished("gdpa", [100, 1000], [1e-1, 5e-2], "tuned, toy"),
        finished("ppl", [100, 1000], [1e-1, 1e-2], "tuned, toy"),
    ]
    faster, rate, factor, ours = race.section(records).verdicts
    assert faster.holds is True
    assert "tuned, mnpc, to 0.01: ppl 100, GDPA 1000." in faster.words
    assert rate.holds is True
    assert "gdpa -0.30, ppl -1.00." in rate.words
    assert factor.holds is True
    assert "to 0.1: 500 times." in factor.words
    assert ours.holds is False
    assert "to 0.1: AdaptiveGDPA 20, the fewest 10 by ppl." in ours.words
    table = race.section(records).tables[0]
    assert [row[0] for row in table.rows] == ["adaptive-gdpa", "ppl", "gdpa", "ippp"]
    assert table.rows[2][1:7] == [100.0, 50.0, 1000.0, 500.0, "not reached", "not reached"]
