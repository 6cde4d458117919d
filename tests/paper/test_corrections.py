"""Figures of `gdpa reproduce`: clocks, axes, narrow windows, added methods. Named after the corrections."""

from __future__ import annotations

import time

import numpy as np
import pytest
from typer.testing import CliRunner

from gdpa import GDPA, MaxSteps, problems, solve
from gdpa.methods import registry
from gdpa.paper import get
from gdpa.paper.base import Settings
from gdpa.paper.cli import app
from gdpa.paper.contestants import Clock
from gdpa.paper.figures import Chart, Panel, Series, draw
from gdpa.paper.records import Folder
from gdpa.paper.studies import cmdp
from gdpa.paper.studies.mnist import MNPC
from tests.paper.running import record
from tests.paper.small import toy_images


@pytest.fixture
def toy_data(monkeypatch):
    monkeypatch.setattr("gdpa.paper.comparison.load", toy_images)


def test_n7_waiting_is_not_on_the_clock():
    disc, clock = problems.get("disc-product"), Clock()

    def evaluate(x):
        time.sleep(0.01)
        return disc.problem.evaluate(x)

    slow = type(disc.problem)(evaluate, num_constraints=1)
    method = clock.watch(GDPA(tau=0.5))
    result = solve(slow, disc.x0, method, stop=MaxSteps(10), observers=[lambda progress: sum(range(100_000))])  # type: ignore[list-item]
    assert result.seconds > 0.1  # on the wall
    assert 0 < clock.seconds < 0.05  # neither the waiting nor the observer
    assert isinstance(method, GDPA)
    assert method == GDPA(tau=0.5)
    assert solve(slow, disc.x0, GDPA(), stop=[clock.stop_at(0.0)]).status.name == "MAX_TIME"


@pytest.mark.parametrize("method", ["GDPA", "AdaptiveGDPA"])
def test_n7_one_off_work_is_done_before_the_clock_starts(toy_data, monkeypatch, method):
    unit = next(u for u in MNPC.units(Settings(steps=3, preset="printed")) if u.method == method)
    order = []
    monkeypatch.setattr("gdpa.paper.comparison.warm_up", lambda *arguments: order.append("warm-up"))
    monkeypatch.setattr("gdpa.paper.comparison.Clock.watch", lambda self, m: order.append("clock") or m)  # type: ignore[func-returns-value]
    record(MNPC, unit)
    assert order == ["warm-up", "clock"]


def test_n7_n8_a_method_without_a_step_is_named_and_step_0_is_not_drawn(toy_data):
    units = [u for u in MNPC.units(Settings(steps=4, preset="printed")) if u.setting == "printed, averaged"]
    chosen = [u for u in units if u.method in ("GDPA", "AdaptiveGDPA")]
    cut = [u if u.method == "GDPA" else type(u)(u.experiment, u.method, u.setting, 0, {**u.config, "budget": 1e-12})
           for u in chosen]  # fmt: skip
    records = [record(MNPC, unit) for unit in cut]
    assert [r.summary["steps"] for r in records] == [4, 0]
    assert records[1].columns["step"].tolist() == [0]
    for chart in get("mnpc").section(records).charts:
        named = "Stopped before its first step, and so without a curve: AdaptiveGDPA (printed, averaged, seed 0)."
        assert named in chart.caption
        assert {series.label for panel in chart.panels for series in panel.series} == {"GDPA"}
        assert all(np.min(series.x) > 0 for panel in chart.panels for series in panel.series)


def test_n8_log_axes_have_two_labels_or_more():
    ranges = ([0.1, 4.0], [2.0, 9.0], [0.8, 2.3], [3.2, 3.4], [1e-8, 1.0], [0.01, 1e7])
    drawn = draw(Chart("c", "t", "words", [Panel("p", "x", "y", [Series("a", [1, 2], values)]) for values in ranges]))
    for axes in drawn.axes:
        low, high = axes.get_ylim()
        ticks = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
        small = zip(axes.get_yticks(minor=True), axes.get_yticklabels(minor=True), strict=True)
        assert sum(low <= place <= high and bool(label.get_text()) for place, label in (*ticks, *small)) >= 2


def test_n8_points_without_a_place_are_left_out():
    series = [Series("a", [0, 1, 50], [3.0, 2.0, 5.0]), Series("b", [1, 5], [0.0, 2.0])]
    lines = draw(Chart("c", "t", "words", [Panel("p", "iterations", "residual", series)])).axes[0].lines
    drawn = [line.get_xydata()[np.isfinite(line.get_xydata()).all(axis=1)].tolist() for line in lines]
    assert drawn == [[[1.0, 2.0], [50.0, 5.0]], [[5.0, 2.0]]]


MINE = """
from dataclasses import dataclass

import gdpa


@gdpa.register("tests-halved")
@dataclass(frozen=True)
class Halved(gdpa.GDPA):
    factor: float = 0.5
"""


def test_n10_a_registered_method_is_in_the_figures(toy_data, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "METHODS", dict(registry.METHODS))  # other tests see the library's own methods
    monkeypatch.setattr("gdpa.paper.report._picture", lambda folder, name, chart: ("", []))  # drawing takes long
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ["--method", "mine:tests-halved", "--set", "alpha=0.1", "--preset", "printed", "--steps", "3"]
    arguments += ["--jobs", "1", "--only", "tests-halved"]
    answer = CliRunner().invoke(app, ["reproduce", "figure1", "Figure2", "figure3", *arguments])
    assert answer.exit_code == 0, answer.output
    label, folder = "tests-halved (alpha=0.1)", Folder("out")
    for name in ("mnpc", "budget", "cmdp"):
        records = folder.read(name)
        assert {r.unit.method for r in records} == {label}
        assert {r.unit.config["constants"]["alpha"] for r in records} == {0.1}
        for chart in get(name).section(records).charts:
            assert any(series.label.startswith(label) for panel in chart.panels for series in panel.series)
    assert "--method mine:tests-halved --set alpha=0.1" in (tmp_path / "out/report.html").read_text()


def test_n10_an_added_method_is_beside_the_papers():
    settings = Settings(method="gdpa", constants={"alpha": 0.3})
    for name, count in (("mnpc", 3), ("budget", 3), ("cmdp", 3)):
        units = get(name).units(settings)
        added = [unit for unit in units if unit.method == "gdpa (alpha=0.3)"]
        assert len(added) == count
        assert [unit for unit in units if unit not in added] == get(name).units(Settings())
    unit = next(unit for unit in cmdp.units(Settings(steps=2, method="gdpa")) if unit.method == "gdpa")
    assert record(cmdp, unit).summary["step"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mnpc", "--set", "alpha=1"], "--set gives the constants of a method; name it with --method"),
        (["mnpc", "--method", "gdpa", "--set", "alpha"], "--set must be CONSTANT=VALUE, got 'alpha'"),
        (["mnpc", "--method", "nonsense"], "method 'nonsense' is unknown"),
        (["mnpc", "--method", "gdpa", "--set", "gamma=1"], "unexpected keyword argument 'gamma'"),
        (["mnpc", "--method", "no_such_module:gdpa"], "No module named 'no_such_module'"),
        (["rate", "--method", "gdpa"], "--method adds a method to mnpc, budget, cmdp, race; name one of these"),
        (["figure4"], "no experiment is called 'figure4'"),
    ],
)
def test_n10_bad_methods_end_with_two(tmp_path, arguments, message):
    answer = CliRunner().invoke(app, ["reproduce", *arguments, "--out", str(tmp_path / "out")])
    assert (answer.exit_code, message in answer.stderr) == (2, True), answer.stderr
    assert not (tmp_path / "out").exists()
