"""The experiment `cmdp`: its units, its records and what the report says of them."""

from __future__ import annotations

import numpy as np
import pytest

from gdpa.paper import get
from gdpa.paper.applications.cmdp import paper_instance, solve_linear_program
from gdpa.paper.base import Settings
from gdpa.paper.records import Record
from gdpa.paper.studies import cmdp
from tests.paper.running import record


@pytest.fixture(scope="module")
def full_run() -> list[Record]:
    """The paper's methods at full length (a second in all)."""
    return [record(cmdp, unit) for unit in cmdp.units(Settings()) if unit.method in (cmdp.PAPER, cmdp.PLAIN)]


def test_it_is_registered():
    assert get("cmdp").NAME == "cmdp"


def test_units_cover_every_threshold_and_seed():
    units = cmdp.units(Settings(seeds=2))
    paper = [(unit.config["b"], unit.seed) for unit in units if unit.method == cmdp.PAPER]
    assert paper == [(b, seed) for b in (6.0, 7.0, 8.0) for seed in (0, 1)]
    assert sum(unit.method == cmdp.PLAIN for unit in units) == 2
    assert len({unit.name for unit in units}) == len(units)


def test_records_hold_the_run_and_the_optimum(full_run):
    first = full_run[0]
    assert first.columns["step"].tolist() == [*range(1, 101), *range(110, 1001, 10)]
    assert first.summary["optimum"] == pytest.approx(solve_linear_program(paper_instance(6.0)).reward)
    assert first.columns["reward"][-1] == first.summary["reward"]


def test_verdicts_on_the_full_run_hold(full_run):
    section = cmdp.section(full_run)
    assert [verdict.holds for verdict in section.verdicts] == [True, True, True]
    assert len(section.tables[0].rows) == 4
    assert all(len(row) == len(section.tables[0].head) for row in section.tables[0].rows)


def test_the_adaptive_method_reaches_the_optimum():
    adaptive = [record(cmdp, unit) for unit in cmdp.units(Settings()) if unit.method == cmdp.ADAPTIVE]
    assert len(adaptive) == 3
    (verdict,) = cmdp.section(adaptive).verdicts
    assert verdict.holds is True


def test_verdicts_on_a_run_cut_short_do_not_hold():
    short = [record(cmdp, unit) for unit in cmdp.units(Settings(steps=3)) if unit.method == cmdp.PAPER]
    assert cmdp.section(short).verdicts[0].holds is False


def test_figures_show_every_threshold_with_its_optimum(full_run):
    rewards, distance = cmdp.section(full_run).charts
    labels = [series.label for series in rewards.panels[0].series]
    assert {"GDPA, b = 6", "GDPA, b = 7", "GDPA, b = 8", "policy gradient"} <= set(labels)
    dashed = sorted(series.y[0] for series in rewards.panels[0].series if series.style == "dashed")
    assert dashed == pytest.approx([8.2915, 8.9058, 9.1451, 9.2276], abs=5e-5)
    assert [panel.title for panel in distance.panels] == ["b = 6", "b = 7", "b = 8"] * 2


@pytest.mark.parametrize("method", sorted({unit.method for unit in cmdp.units(Settings())}))
def test_every_method_runs_at_toy_size(method):
    unit = next(unit for unit in cmdp.units(Settings(steps=5)) if unit.method == method)
    finished = record(cmdp, unit)
    assert finished.summary["step"] <= 5
    assert np.isfinite(finished.columns["reward"]).all()


def test_no_records_make_an_empty_section():
    section = cmdp.section([])
    assert section.verdicts == []
    assert section.tables[0].rows == []
