"""Reports, writers and limits say what is true."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest
import torch

import gdpa.torch
from gdpa.torch import CSVWriter, Limits, TensorBoardWriter, at_least, at_most, between, equal_to
from gdpa.torch.limits import Roster
from gdpa.torch.report import diagnose
from tests.torch.helpers import batch, make, network, terms, train


class TestLimits:
    @pytest.mark.parametrize(
        ("limit", "value", "violations"),
        [
            (at_most(0.05), 0.07, {"v": 0.4}),
            (at_least(0.9), 0.81, {"v": 0.1}),
            (at_least(-2.0), -3.0, {"v": 0.5}),
            (at_most(0.0), 0.3, {"v": 0.3}),
            (at_most(0.5, scale=0.1), 0.3, {"v": -2.0}),
            (between(0.2, 0.4), 0.5, {"v (upper)": 0.25, "v (lower)": -0.75}),
            (equal_to(2.0), 1.0, {"v": -0.5}),
        ],
    )
    def test_violations(self, limit, value, violations):
        limits = Limits(v=limit)
        x = torch.tensor(value, dtype=torch.float64)
        found = {k: v.item() for k, v in limits.violations({"v": x}).items()}
        assert found == pytest.approx(violations)
        for side, g in found.items():
            assert limits.value(side, g)[0] == pytest.approx(value)

    def test_names_scales_and_text(self):
        limits = Limits({"a b": at_most(3.0)}, c=equal_to(0.0))
        assert limits.names == ("a b", "c")
        assert limits.equalities == ("c",)
        assert "violations divided by 3" in repr(limits)

    @pytest.mark.parametrize(
        ("make_limit", "message"),
        [
            (lambda: at_most(math.nan), "a limit must be a number, got nan"),
            (lambda: at_most("0.5"), "a limit must be a number"),
            (lambda: at_most(math.inf), "one of them finite"),
            (lambda: between(2.0, 1.0), "lower <= upper"),
            (lambda: at_most(1.0, scale=0.0), "scale must be a positive finite number"),
            (lambda: Limits(), "Limits holds no limit"),
            (lambda: Limits({"a": at_most(1)}, a=at_most(2)), "limits given twice"),
        ],
    )
    def test_bad_limits(self, make_limit, message):
        with pytest.raises(ValueError, match=message):
            make_limit()

    def test_only_limits(self):
        with pytest.raises(TypeError, match="the limit of 'a' must be made by at_most"):
            Limits(a=0.5)

    def test_training_with_values(self):
        """min (x - 3)^2 with x <= 2 given as a value and a limit: x = 2; the multiplier is in the limit's scale."""
        x = torch.nn.Parameter(torch.tensor([0.0], dtype=torch.float64))
        opt = gdpa.torch.GDPA([x], Limits(size=at_most(2.0), rest=equal_to(0.0)), lr=0.05, beta=4.0)
        y = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
        opt.add_param_group({"params": [y]})
        for _ in range(2000):
            opt.zero_grad()
            opt.lagrangian((x[0] - 3) ** 2, {"size": x[0], "rest": y[0]}).backward()
            opt.step()
        report = opt.report(tolerance=0.01)
        bias = 2.0 * 0.1 * 4.0 / (4.0 * 2000 ** (1 / 3))  # scale times tau lambda / beta_r
        assert report["size"].value == pytest.approx(2.0 + bias, abs=1e-3)
        assert report["size"].limit == 2.0
        assert report["size"].multiplier == pytest.approx(2 * 2.0, rel=0.02)  # lambda * scale = 4 for |x - 2| / 2
        assert report["rest"].equality
        assert report["rest"].value == pytest.approx(0.0, abs=1e-3)
        assert report.feasible


class TestReport:
    def test_rows_are_means_over_the_last_steps(self):
        net = network()
        opt = make("paper", net.parameters())
        assert "No step has used the constraints yet" in opt.report().advice[0]
        seen = []
        for i in range(4):
            opt.zero_grad()
            f, g = terms(net, batch(i))
            seen.append(g)
            opt.lagrangian(f, g).backward()
            opt.step()
        report, last = opt.report(), opt.snapshot()
        for row, batch_row in zip(report.snapshot.rows, last.rows, strict=True):
            value = sum(g[row.name].item() for g in seen) / 4
            assert row.value == pytest.approx(value, rel=1e-6)
            assert batch_row.value == pytest.approx(seen[-1][row.name].item(), rel=1e-6)
            expected = abs(value) if row.name == "balance" else max(value, 0.0)
            assert row.violation == pytest.approx(expected, rel=1e-6)
            assert row.feasible() == (expected == 0)
            assert row.active == (row.multiplier != 0)
        text = str(report)
        assert all(name in text for name in seen[0])
        assert "mean of the last 4 batches" in text
        with pytest.raises(KeyError):
            report["nothing"]

    def test_absent_is_shown_as_absent_and_violations_in_words_of_the_limit(self):
        x = torch.nn.Parameter(torch.tensor([0.3, 0.9], dtype=torch.float64))
        limits = Limits(rate=at_most(0.12), recall=at_least(0.85))
        opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.0), limits, nan="absent")
        for _ in range(2):
            opt.zero_grad()
            opt.lagrangian(x.sum(), {"rate": x[0], "recall": x[:0].mean()}).backward()
            opt.step()
        report = opt.report()
        assert report["recall"].absent
        assert not report["recall"].feasible()
        assert not report.feasible
        lines = {line.split()[0]: line.split() for line in str(report).splitlines()}
        assert lines["recall"] == ["recall", "absent", "0.85", "-", "0", "-"]
        assert lines["rate"] == ["rate", "0.3", "0.12", "150", "%", "0", "NO"]
        assert "over limit" in str(report)

    def test_logs_once_when_a_constraint_looks_unattainable(self, caplog):
        x = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        base = torch.optim.SGD([x], lr=0.01)
        opt = gdpa.torch.constrain(base, ["below -1", "above 1"])
        with caplog.at_level("WARNING", logger="gdpa.torch"):
            for _ in range(2400):
                opt.zero_grad()
                opt.lagrangian((x**2).sum() + 0.1 * x.sum(), torch.cat([x + 1, 1 - x])).backward()
                opt.step()
        advice = " ".join(opt.report().advice)
        assert "'below -1' looks unattainable" in advice
        assert "'above 1' looks unattainable" in advice
        assert sum("'above 1' looks unattainable" in message for message in caplog.messages) == 1

    @pytest.mark.parametrize(("swing", "said"), [(0.8, True), (0.05, False)])
    def test_says_when_multipliers_oscillate(self, swing, said):
        t = np.arange(200) / 8.0
        notes = diagnose(Roster(["disc"]), np.cos(t)[:, None], 1 + swing * np.sin(t)[:, None])
        assert any("'disc' oscillates" in line for _, line in notes) == said

    def test_oscillation_has_a_floor_and_one_sentence(self):
        t = np.arange(200)[:, None] / 8.0
        lam = 1 + 0.8 * np.sin(t + np.arange(20))
        ((_, line),) = diagnose(Roster(20), np.cos(t + np.arange(20)), lam)
        assert line.startswith("'g[0]', 'g[1]', 'g[2]', 'g[3]', 'g[4]' and 15 more oscillate: ")
        lam[:, 1:] *= 1e-40
        ((_, line),) = diagnose(Roster(20), np.cos(t + np.arange(20)), lam)
        assert line.startswith("'g[0]' oscillates: ")

    @pytest.mark.parametrize(
        ("growth", "ratio", "said"),
        [
            (1.0, 0.05, "looks unattainable"),  # the multiplier is 2, its gradient weighs 40 times that of f
            (
                1.0,
                1.0,
                "is still violated by 0.1 with a multiplier of 2",
            ),  # it does not outweigh f yet: our rate may be what is slow
            (29.0, None, "looks unattainable"),
            (1.0, None, "is still violated by 0.1 with a multiplier of 2"),
            (0.0, 0.1, "is still violated by 0.1 with a multiplier of 1"),
        ],
    )
    def test_a_slow_rate_is_not_called_unattainable(self, growth, ratio, said):
        steps = np.linspace(0, 1, 200)[:, None]
        ratio = None if ratio is None else np.array([ratio])
        notes = diagnose(Roster(["rate"]), 0.1 + 0 * steps, 1 + growth * steps, ratio)
        assert said in notes[0][1]
        if "unattainable" not in said:
            assert "more steps or a larger dual_rate" in notes[0][1]

    def test_silent_on_a_calm_run(self):
        x = torch.nn.Parameter(torch.tensor([0.5, 1.5], dtype=torch.float64))
        opt = gdpa.torch.GDPA([x], ["disc"], lr=0.05, beta=0.5)
        for _ in range(1000):
            opt.zero_grad()
            opt.lagrangian(-x[0] * x[1], (x @ x - 2)[None]).backward()
            opt.step()
        assert opt.report().advice == ()

    def test_counts_skipped_steps(self):
        x = torch.nn.Parameter(torch.ones(1))
        opt = gdpa.torch.GDPA([x], 1)
        opt.lagrangian(x.sum() * math.nan, x).backward()
        with pytest.warns(gdpa.torch.NonFiniteWarning):
            opt.step()
        assert any("1 steps were skipped" in line for line in opt.report().advice)

    def test_many_constraints_are_cut_short(self):
        x = torch.nn.Parameter(torch.ones(50))
        opt = gdpa.torch.GDPA([x], 50)
        opt.lagrangian(x.sum(), x).backward()
        opt.step()
        assert "The 30 constraints not shown have smaller violations or none." in str(opt.report())


class TestWriters:
    def test_csv_is_continued_by_a_resumed_run(self, tmp_path):
        path = tmp_path / "run.csv"
        net = network()
        opt = make("paper", net.parameters())
        opt.observe_steps(CSVWriter(path), every=2)
        train(net, opt, 4)
        new = make("paper", net.parameters())
        new.load_state_dict(opt.state_dict())
        new.observe_steps(CSVWriter(path), every=2)
        train(net, new, 4, start=4)
        rows = list(csv.DictReader(path.read_text().splitlines()))
        assert [int(r["step"]) for r in rows] == [2, 4, 6, 8]
        assert float(rows[-1]["norm multiplier"]) == pytest.approx(new.multipliers[1].item())
        other = gdpa.torch.GDPA([torch.nn.Parameter(torch.ones(1))], ["x"])
        content = path.read_bytes()
        with pytest.raises(ValueError, match="has other columns than this run"):
            other.observe_steps(CSVWriter(path))
        assert path.read_bytes() == content

    def test_tensorboard(self):
        class Summary:
            seen: list = []  # noqa: RUF012

            def add_scalar(self, tag, value, step):
                self.seen.append((tag, value, step))

        net = network()
        opt = make("adam", net.parameters())
        opt.observe_steps(TensorBoardWriter(Summary(), prefix="run"))
        train(net, opt, 4)
        tags = {tag for tag, _, _ in Summary.seen}
        assert {"run/objective", "run/norm/multiplier", "run/mean/violation"} <= tags
        assert {step for _, _, step in Summary.seen} == {1, 2, 3, 4}
        with pytest.raises(TypeError, match="writer must have add_scalar"):
            TensorBoardWriter(None)

    def test_observer_must_be_callable(self):
        opt = make("paper", network().parameters())
        with pytest.raises(ValueError, match="observer must be callable"):
            opt.observe_steps("file.csv")
        with pytest.raises(ValueError, match="every a positive integer"):
            opt.observe_steps(print, every=0)
