"""The experiment `energy` at toy size: its units, its records and what the report says of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gdpa.paper import get
from gdpa.paper.applications.energy_budget import Chain, CountedEnergy, EnergyModel, fit_widths
from gdpa.paper.base import Settings
from gdpa.paper.figures import draw
from gdpa.paper.records import Record
from gdpa.paper.studies import energy
from tests.paper.running import record
from tests.paper.small import toy_images


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """Every method on both networks, with one step an epoch (seconds in all)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(energy, "load", toy_images)
        patch.setattr(energy, "MEASUREMENTS", 20)
        return [record(energy, unit) for unit in energy.units(Settings(steps=1))]


def test_it_is_registered():
    assert get("energy").NAME == "energy"


def test_units_are_every_method_on_every_network_for_every_seed():
    quick, study = energy.units(Settings()), energy.units(Settings(seeds=3))
    assert {(unit.method, unit.setting) for unit in quick} == {(m, n) for m in energy.METHODS for n in energy.NETWORKS}
    assert len(quick) == 6
    assert len({unit.name for unit in study}) == 18
    assert {unit.seed for unit in study} == {1, 2, 3}  # settings were chosen on seed 0
    assert energy.units(Settings(steps=10))[0].config["images"] == 640
    assert {0.25, 0.1} <= set(quick[0].config["budgets"])


def test_every_network_is_inside_its_budget_on_a_count_of_its_own(records):
    for one in records:
        meter = CountedEnergy(torch.zeros(1, 1, 28, 28))
        dense = meter(energy.build(one.unit.setting))
        for row in one.summary["chosen"]:
            widths = [int(width) for width in row["widths"].split("-")]
            assert meter(energy.build(one.unit.setting, widths)) / dense == pytest.approx(row["energy"])
            assert row["energy"] <= row["budget"]


def test_the_variant_that_counts_is_the_best_on_the_held_out_images(records):
    for one in records:
        for row in one.summary["chosen"]:
            same = (one.columns["method"] == row["method"]) & (one.columns["budget"] == row["budget"])
            assert row["validation"] == one.columns["validation"][same].max()


def test_rivals_try_at_least_as_many_variants(records):
    tried = {one.unit.method: len(set(one.columns["variant"])) for one in records}
    assert tried[energy.GDPA] <= min(tried[energy.MAGNITUDE], tried[energy.UNIFORM])


def test_the_report_shows_accuracies_sizes_and_widths(records):
    section = energy.section(records)
    assert section.verdicts[0].holds is True
    accuracies, sizes, _ = section.tables
    assert len(accuracies.rows) == 2 * (1 + 2 * 4)  # the dense network, and three methods and a control a budget
    assert len(sizes.rows) == 4
    assert all(len(row) == len(table.head) for table in section.tables for row in table.rows)
    curves, widths = section.charts
    assert [len(curves.panels), len(widths.panels)] == [2, 4]
    labels = ["1 (of 300)", "2 (of 100)"]
    assert [text.get_text() for text in draw(widths).axes[0].get_xticklabels()] == labels


def changed(one: Record, **changes) -> Record:
    chosen = [{**row, **changes} for row in one.summary["chosen"]]
    return replace(one, summary={**one.summary, "chosen": chosen})


def test_verdicts_say_by_how_much_a_rival_is_better(records):
    accuracy = {energy.GDPA: 90.0, energy.MAGNITUDE: 92.5, energy.UNIFORM: 89.0}
    made_up = [changed(one, test=accuracy[one.unit.method]) for one in records]
    _, magnitude, uniform, _ = energy.section(made_up).verdicts
    assert magnitude.holds is False
    assert "worse by 2.50 points" in magnitude.words
    assert uniform.holds is True
    assert "better by 1.00 points" in uniform.words


def test_a_rival_that_is_better_on_one_network_alone_refutes_the_claim(records):
    made_up = [
        changed(one, test=95.0 if one.unit.method == energy.GDPA or one.unit.setting == energy.PERCEPTRON else 96.0)
        for one in records
    ]
    _, magnitude, _, _ = energy.section(made_up).verdicts
    assert magnitude.holds is False
    assert "better by 0.00 points" in magnitude.words
    assert "worse by 1.00 points" in magnitude.words


def test_verdicts_notice_a_network_over_its_budget_or_no_smaller(records):
    over = energy.section([changed(one, energy=0.3) for one in records]).verdicts
    assert over[0].holds is False
    slow = energy.section([changed(one, seconds=1.0, **{"dense seconds": 0.5}) for one in records]).verdicts
    assert slow[3].holds is False


def test_a_section_without_records_says_what_the_experiment_is():
    section = energy.section([])
    assert "energy" in section.introduction
    assert not section.tables


def test_networks_have_the_widths_asked_for():
    assert Chain(energy.build(energy.PERCEPTRON, (7, 3))).widths == (7, 3)
    assert energy.build(energy.CONVOLUTIONAL, (3, 4, 5))(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_rivals_choose_widths_inside_psi():
    psi = EnergyModel((0.01, 1.0, 8.0, 1.0), full=(30, 20))
    scores = [torch.linspace(0.5, 1.5, 30), torch.linspace(0.9, 1.1, 20)]
    for limit in (5.0, 1.0, 0.3):
        alike = np.array(fit_widths(psi, limit, psi.full), dtype=float)
        ranked = np.array(energy.ranked_widths(psi, limit, scores), dtype=float)
        assert psi(alike) <= limit
        assert psi(ranked) <= limit
        assert abs(alike[0] / 30 - alike[1] / 20) < 0.05
    first, second = energy.ranked_widths(psi, 5.0, scores)
    cut = sorted(torch.cat(scores).tolist())[30 + 20 - first - second]  # what is left lies above what went
    assert int((scores[0] >= cut).sum()) == first
