"""Figures 1 and 2 at toy size: units, judge, grids, resumption, claims and tables. No network, no real images."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from gdpa import GDPA, Evaluation, Problem, certify
from gdpa.paper import contestants, get, sections
from gdpa.paper.base import Settings, Unit
from gdpa.paper.cli import app
from gdpa.paper.comparison import Size
from gdpa.paper.contestants import SEARCH
from gdpa.paper.data import images as data
from gdpa.paper.data.images import DataNotAvailableError
from gdpa.paper.records import Folder, Record
from gdpa.paper.runner import run_units
from gdpa.paper.sections import FLOOR, band
from gdpa.paper.studies import mnist
from gdpa.paper.studies.mnist import BUDGET, MNPC
from tests.paper.small import toy_images

METHODS = list(contestants.METHODS)


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr("gdpa.paper.comparison.load", toy_images)


class Rows:
    def __init__(self):
        self.rows, self.notes = [], []

    def row(self, **columns):
        self.rows.append(columns)

    def progress(self, fraction, note=""):
        assert fraction >= 0
        self.notes.append(note)

    def summary(self, unit):
        return {"points": [{"constants": unit.config["grid"][5], "kkt": 0.5}]}


@pytest.mark.parametrize("name", ["mnpc", "budget"])
def test_units(name):
    experiment = get(name)
    both = experiment.units(Settings())
    names = [unit.name for unit in both]
    assert len(set(names)) == len(names)
    for setting in ("printed, averaged", "printed, summed", "tuned"):
        assert [unit.method for unit in both if unit.setting == setting] == METHODS
    json.dumps([unit.config for unit in both])
    printed, tuned = (experiment.units(Settings(preset=preset)) for preset in ("printed", "tuned"))
    assert sorted(unit.name for unit in [*printed, *tuned]) == sorted(names)
    assert not any(unit.after or unit.setting == SEARCH for unit in printed)
    searches = {unit.method: unit for unit in tuned if unit.setting == SEARCH}
    assert {len(unit.config["grid"]) for unit in searches.values()} == {25}  # every method the same effort
    assert set(searches) == set(METHODS) - {"AdaptiveGDPA"}
    for unit in tuned:
        if unit.setting == "tuned":
            assert unit.after == searches.get(unit.method)
    everything = experiment.units(Settings(seeds=3, budget=7.0))
    study = [unit for unit in everything if unit.setting != SEARCH]
    assert len(everything) - len(study) == len(searches)  # searched once, not once for each seed
    assert {unit.config["images"] for unit in study} == {None}
    assert {unit.config["budget"] for unit in study} == {7.0}
    assert {unit.seed for unit in study} == {0, 1, 2}


def test_printed_constants_are_the_appendix():
    def config(name, method):
        return next(u for u in get(name).units(Settings()) if u.method == method and "constants" in u.config).config

    assert config("mnpc", "GDPA")["constants"] == {"alpha": 0.1, "beta": 1e-4, "tau": 0.1}
    assert config("budget", "GDPA")["constants"] == {"alpha": 2e-4, "beta": 2e-4, "tau": 0.1}
    assert config("mnpc", "IPPP")["constants"]["beta"] == 1e-3
    assert config("budget", "IPPP")["constants"]["inner"]["alpha"] == 1e-4
    iqrc = config("mnpc", "IQRC")["constants"]
    assert (iqrc["gamma"], iqrc["steps"], iqrc["tolerance"]) == (0.1, 30, 1.0)
    assert config("budget", "IALM (Sahin)")["constants"]["sigma"] == 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_constants_survive_json(method):
    for constants in [
        contestants.printed(method, "mnpc"),
        *contestants.grid(method, (0.1, 0.2, 0.3, 0.4), (1.0, 2.0, 3.0, 4.0), (1.0, 0.1, 0.01, 0.001)),
    ]:
        again = json.loads(json.dumps(constants))
        assert contestants.build(method, again) == contestants.build(method, constants)
    if method == "GDPA":
        assert contestants.build(method, {"alpha": 0.5, "beta": 2.0, "tau": 0.2}) == GDPA(0.5, 2.0, 0.2)


@pytest.mark.parametrize("name", ["mnpc", "budget"])
def test_a_unit_runs_and_is_judged_in_double_precision(toy, name):
    unit = next(u for u in get(name).units(Settings(steps=25)) if u.method == "GDPA" and u.setting == "tuned")
    choice = dict(unit.after.config["grid"][5])
    unit = Unit(name, "GDPA", "tuned", 0, {**unit.config, "budget": 100.0}, unit.after)
    log = Rows()
    summary = get(name).run(unit, log)
    assert summary["status"] == "MAX_STEPS"
    assert (summary["steps"], summary["forwards"], summary["backwards"]) == (25, 26, 25)
    assert summary["constants"] == choice
    assert log.rows[-1]["step"] == 25
    assert [row["step"] for row in log.rows][:3] == [1, 2, 3]
    # The last row, recomputed here from scratch.
    case = get(name).case(toy_images(), unit.config["images"], 0, **unit.config["problem"])
    problem, x = case.problem, case.x0
    state = GDPA(**choice).init(problem, x)
    for _ in range(25):
        state = GDPA(**choice).update(problem, state)
    f, g, _ = case.judge.problem.evaluate(state.x.double())
    assert log.rows[-1]["objective"] == pytest.approx(float(f), rel=1e-12)
    assert log.rows[-1]["feasibility"] == pytest.approx(float(g.clip(min=0).norm()), rel=1e-12)
    assert summary["losses"][1] == pytest.approx(float(g[0]) + {"mnpc": 0.1, "budget": 1.0}[name], rel=1e-9)
    assert np.sum(summary["confusion"]) == 10 * len(summary["classes"])


def test_a_diverging_run_is_a_record_not_a_crash(toy):
    unit = BUDGET.units(Settings(steps=40, preset="printed"))[0]
    wild = {"alpha": 1e20, "beta": 1e20, "tau": 0.1}
    unit = Unit("budget", "GDPA", "tuned", 0, {**unit.config, "constants": wild})
    summary = BUDGET.run(unit, Rows())
    assert summary["status"] in ("DIVERGING", "INVALID_NUMBER")
    json.dumps(summary, allow_nan=False)


def test_the_goal_ends_a_run(toy):
    unit = next(u for u in MNPC.units(Settings(steps=500)) if u.method == "AdaptiveGDPA" and u.setting == "tuned")
    unit = Unit("mnpc", unit.method, "tuned", 0, {**unit.config, "budget": 100.0})
    summary = MNPC.run(unit, Rows())
    assert summary["status"] == "GOAL"
    assert summary["best_kkt"] <= 1e-4
    assert summary["steps"] < 500
    assert max(summary["losses"][1:]) <= 0.1 + 1e-4


def test_search_ranks_by_what_certify_says(toy):
    case = MNPC.case(toy_images(), 10, 3, reduction="mean")
    grid = [{"alpha": alpha, "beta": 1.0, "tau": 0.1} for alpha in (1e-6, 0.1, 1e30)]
    ranked = contestants.search("GDPA", grid, case.problem, case.x0, 60)
    assert ranked[0]["constants"]["alpha"] == 0.1
    assert ranked[0]["kkt"] < ranked[1]["kkt"]
    assert ranked == contestants.search("GDPA", grid, case.problem, case.x0, 60)  # counts calls, not seconds


def test_variants_differ_as_named(toy):
    x = torch.zeros(784 * 4, dtype=torch.float64)

    def at_zero(options):
        return MNPC.case(toy_images(), 10, 0, **options).judge.problem.evaluate(x)

    mean, total = at_zero({"reduction": "mean"}), at_zero({"reduction": "sum"})
    torch.testing.assert_close(total.constraints + 0.1, 10 * (mean.constraints + 0.1))
    case = MNPC.case(toy_images(), 10, 0, reduction="sum", start_variance=1e-6)
    assert case.x0.std().item() == pytest.approx(1e-3, rel=0.1)
    net = BUDGET.case(toy_images(), 10, 0, reduction="sum", budget_per_image=True)
    each = BUDGET.case(toy_images(), 10, 0, reduction="mean")
    x = net.x0.double()
    torch.testing.assert_close(
        net.judge.problem.evaluate(x).constraints, 10 * each.judge.problem.evaluate(x).constraints
    )


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    arguments = ["--steps", "3", "--jobs", "1", "--out", str(out), "--preset", "printed"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gdpa.paper.comparison.load", toy_images)
        patch.setattr("gdpa.paper.report._picture", lambda folder, name, chart: ("", []))  # drawing takes long
        answer = CliRunner().invoke(app, ["reproduce", "mnpc", "budget", *arguments])
    assert answer.exit_code == 0, answer.output
    return out


def test_through_the_command_line(reproduced):
    report = (reproduced / "report.html").read_text()
    for name, figure in (("mnpc", "Figure 1"), ("budget", "Figure 2")):
        assert figure in report
        section = get(name).section(Folder(reproduced).read(name))
        words = (reproduced / name / "summary.md").read_text()
        assert f"Command: `gdpa reproduce {name}" in words
        assert all(verdict.claim in words for verdict in section.verdicts)
        assert words.count("not reached") >= 10
        assert [panel.title for panel in section.charts[0].panels][:2] == [
            "stationarity, printed, averaged",
            "feasibility, printed, averaged",
        ]
        speed = section.tables[0]
        assert len(speed.rows) == 2 * len(METHODS)
        assert "not reached" in {cell for row in speed.rows for cell in row}
        assert all(len(row) == len(speed.head) for row in speed.rows)
        for table in section.tables:
            assert all(len(row) == len(table.head) for row in table.rows)
        assert all(verdict.words for verdict in section.verdicts)


def test_a_lost_record_comes_back_the_same(toy, tmp_path):
    units = [u for u in MNPC.units(Settings(steps=6, preset="printed")) if u.method in ("GDPA", "IQRC")][:3]
    folder = Folder(tmp_path)

    def run():
        events: list = []
        with folder.lock():
            folder.begin("mnpc", units)
            assert run_units(folder, units, events.append) == []
        kinds = [event.kind for event in events if event.kind in ("finished", "skipped")]
        return kinds, {record.unit.name: record for record in folder.read("mnpc")}

    kinds, before = run()
    assert kinds == ["finished"] * 3
    folder.forget([units[1]])
    kinds, after = run()
    assert sorted(kinds) == ["finished", "skipped", "skipped"]
    for name, record in before.items():
        same = after[name]
        assert {**record.summary, "seconds": 0} == {**same.summary, "seconds": 0}
        for column in set(record.columns) - {"seconds"}:
            np.testing.assert_array_equal(record.columns[column], same.columns[column])


def test_a_grid_is_searched_once_and_every_seed_runs_its_winner(toy, tmp_path, monkeypatch):
    small = replace(MNPC, size=Size(5, 60.0, 3, 6))
    monkeypatch.setattr("gdpa.paper.report._picture", lambda folder, name, chart: ("", []))  # drawing takes long
    monkeypatch.setattr(mnist, "MNPC", small)
    searched = []

    def search(*arguments):
        searched.append(arguments[0])
        return contestants.search(*arguments)

    monkeypatch.setattr("gdpa.paper.comparison.search", search)
    arguments = ["reproduce", "mnpc", "--seeds", "2", "--steps", "2", "--jobs", "1", "--out", str(tmp_path)]
    answer = CliRunner().invoke(app, [*arguments, "--only", "IPPP_tuned"])
    assert answer.exit_code == 0, answer.output
    assert searched == ["IPPP"]
    search_record, *runs = Folder(tmp_path).read("mnpc")
    points = search_record.summary["points"]
    assert (search_record.unit.setting, len(points)) == (SEARCH, 25)
    found = [math.inf if point["kkt"] is None else point["kkt"] for point in points]
    assert found == sorted(found)
    assert [(run.unit.setting, run.unit.seed) for run in runs] == [("tuned", 0), ("tuned", 1)]
    assert all(run.summary["constants"] == points[0]["constants"] for run in runs)
    table = get("mnpc").section([search_record, *runs]).tables[3]
    assert table.rows == [["IPPP", 25, json.dumps(points[0]["constants"]), points[0]["kkt"], 6]]
    # A lost run reads the search again and does not repeat it; another grid is another search.
    Folder(tmp_path).forget([runs[1].unit])
    assert "2 of 3 units were already recorded" in CliRunner().invoke(app, [*arguments, "--only", "IPPP_tuned"]).output
    assert searched == ["IPPP"]
    steps, _, tolerances = MNPC.axes
    other = replace(small, axes=(steps, (1.0, 2.0, 3.0, 4.0, 5.0), tolerances)).units(Settings(preset="tuned"))
    names = {unit.name for unit in small.units(Settings(preset="tuned"))}
    assert [unit.method for unit in other if unit.name in names] == ["IQRC", "IQRC", "AdaptiveGDPA"]


def test_no_data_is_exit_code_4(monkeypatch, tmp_path):
    def nothing(*args, **options):
        raise DataNotAvailableError("mnist is not in the cache and no source served it")

    monkeypatch.setattr("gdpa.paper.comparison.load", nothing)
    answer = CliRunner().invoke(app, ["reproduce", "mnpc", "--jobs", "1", "--out", str(tmp_path)])
    assert answer.exit_code == 4
    assert Folder(tmp_path).read("mnpc") == []


def test_data_command(monkeypatch, tmp_path):
    monkeypatch.setattr(data, "fetch", lambda name, cache, progress: data.Fetched(tmp_path / name, "a fake"))
    answer = CliRunner().invoke(app, ["data", "fetch", "mnist"])
    assert answer.exit_code == 0
    assert "(from a fake)" in answer.output.replace("\n", "")


def test_unknown_data_set_is_exit_code_2():
    assert CliRunner().invoke(app, ["data", "fetch", "cifar"]).exit_code == 2


def record(method, kkt, setting="tuned", seed=0, seconds=None, feasibility=None):
    kkt = np.asarray(kkt, dtype=float)
    columns = {
        "seconds": np.arange(1.0, len(kkt) + 1) if seconds is None else np.asarray(seconds, dtype=float),
        "forwards": 10 * np.arange(1.0, len(kkt) + 1),
        "step": np.arange(1.0, len(kkt) + 1),
        "kkt": kkt,
        "feasibility": kkt if feasibility is None else np.asarray(feasibility, dtype=float),
        "regularity": kkt,
    }
    summary = {"best_kkt": float(kkt.min()) if len(kkt) else None, "start": {"feasibility": 1.0}}
    return Record(Unit("mnpc", method, setting, seed, {}), summary, columns, {})


def test_the_cost_to_a_level_is_a_median_and_infinite_where_half_fail():
    runs = [record("GDPA", values, seed=k) for k, values in enumerate([[1, 0.05], [0.05, 1], [1, 1]])]
    assert sections.costs_to(runs, 0.1) == [2.0, 1.0, math.inf]
    assert sections.median(sections.costs_to(runs, 0.1, "forwards")) == 20.0
    assert sections.median(sections.costs_to(runs[1:], 0.1)) == math.inf
    assert sections.costs_to(runs[:1], 1e-3) == [math.inf]


def test_a_loss_that_vanishes_is_judged_by_its_gradient_at_the_start():
    def oracle(x):
        return Evaluation((x**4).sum(), x - 5.0, lambda w, objective=1.0: objective * 4 * x**3 + w)

    quartic, x, none = Problem(oracle, num_constraints=1), np.array([1e-3]), np.zeros(1)
    # f' is 4 at the start and 4e-9 at x, and near x it is no larger.
    assert contestants.certify_from(quartic, np.ones(1))(x, none, quartic.evaluate(x)).relative.stationarity < 1e-8
    assert certify(quartic, x).relative.stationarity > 0.1


def test_faster_needs_the_factor():
    slow = record("IPPP", [1] * 30 + [0.05])
    assert mnist.faster("c", [record("GDPA", [1, 0.05]), slow], 10.0).holds is True
    assert mnist.faster("c", [record("GDPA", [1] * 20 + [0.05]), slow], 10.0).holds is False
    verdict = mnist.faster("c", [record("GDPA", [1, 0.5]), slow], 1.0)
    assert verdict.holds is False
    assert "GDPA not reached, IPPP 31 s" in verdict.words
    # First to 0.1, but a rival alone gets to 0.01: neither true nor false.
    further = record("IPPP", [1] * 30 + [0.005])
    assert mnist.faster("c", [record("GDPA", [1, 0.05]), further], 1.0).holds is None


def test_faster_where_nobody_arrives():
    assert mnist.faster("c", [record("GDPA", [0.9]), record("IPPP", [0.5])], 1.0).holds is False
    assert mnist.faster("c", [record("GDPA", [0.4]), record("IPPP", [0.5])], 1.0).holds is None


def test_other_claims():
    runs = [record("GDPA", [1, 1], feasibility=[1, 0.5]), record("IQRC", [1, 1], feasibility=[1, 0.05])]
    assert mnist.sooner_feasible("c", runs, "IQRC").holds is True
    assert mnist.sooner_feasible("c", runs, "GDPA").holds is False
    runs = [record("IALM (Li)", [0.5]), record("IALM (Sahin)", [0.2]), record("IPPP", [0.3])]
    assert mnist.worse("c", runs, ("IALM (Li)",), "IPPP").holds is True
    assert mnist.worse("c", runs, ("IALM (Li)", "IALM (Sahin)"), "IPPP").holds is None
    assert mnist.regular("c", [record("GDPA", [2.0, 1.0])]).holds is True
    assert mnist.regular("c", [record("GDPA", [2.0, 1e-3])]).holds is False


def test_words_say_over_how_many_seeds():
    runs = [
        record(method, kkt, seed=seed)
        for method, kkt in (("GDPA", [1, 0.05]), ("IPPP", [1, 1, 0.05]))
        for seed in (0, 1)
    ]
    assert mnist.faster("c", runs, 1.0).words.startswith("Medians over 2 seeds. tuned, to 0.1: GDPA 2 s, IPPP 3 s.")
    assert "seeds" not in mnist.faster("c", runs[::2], 1.0).words
    assert mnist.worse("c", runs, ("GDPA",), "IPPP").words.startswith("Smallest relative KKT residuals. Medians over 2")
    # Each seed against its own beginning: 4 -> 2 and 0.03 -> 0.02 are both regular.
    assert mnist.regular("c", [record("GDPA", [4.0, 2.0]), record("GDPA", [0.03, 0.02], seed=1)]).holds is True


def test_band_carries_values_forward():
    a = record("GDPA", [3.0, 1.0], seconds=[1.0, 10.0])
    b = record("GDPA", [5.0, 0.0], seconds=[2.0, 4.0])
    x, (low, middle, high) = band([a, b], "seconds", "feasibility")
    assert (x[0], x[-1]) == (2.0, pytest.approx(10.0))
    assert (low[0], middle[0], high[0]) == (3.0, 4.0, 5.0)
    assert (low[-1], high[-1]) == (FLOOR, 1.0)  # b ended at zero, drawn at the floor
    inside = int(np.searchsorted(x, 5.0))
    assert (low[inside], high[inside]) == (FLOOR, 3.0)
