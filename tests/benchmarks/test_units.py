"""The problems of benchmarks/units against hand-computed multipliers and SLSQP; the judge; a small run."""

import json
import sys
from typing import Any

import numpy as np
import pytest
import scipy.optimize

from benchmarks.units import __main__ as command
from benchmarks.units.problems import CASES, complex_step
from benchmarks.units.report import ONE, table
from benchmarks.units.runs import OWN, RANDOM, SINGLE, Posed, Units, changes, judge, run, solve

ORDER_ONE = Units(1.0, 1.0, 1.0)
BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def sides(case):
    shape = (len(case.x),)
    return np.broadcast_to(case.lower, shape), np.broadcast_to(case.upper, shape)


def values(case, x, part):
    function = getattr(case, part)
    return np.zeros(0) if function is None else np.asarray(function(x), dtype=float)


def test_thirty_problems_make_the_rows_of_the_table():
    assert len(CASES) == len({case.name for case in CASES}) == 30
    rows = [row for index in range(30) for row, _, _ in changes(index, seed=0)]
    assert sum(row in SINGLE for row in rows) == 390
    assert (rows.count(RANDOM), rows.count(OWN)) == (240, 120)


@BY_NAME
def test_the_solution_is_a_kkt_point_with_the_multipliers_given(case):
    x = np.array(case.x, dtype=float)
    lower, upper = sides(case)
    lam, mu = np.array(case.lam), np.array(case.mu)
    g, h = values(case, x, "g"), values(case, x, "h")
    assert case.f(x) == pytest.approx(case.objective, rel=1e-14, abs=1e-14)
    assert np.all((lower <= x) & (x <= upper))
    assert np.all(lam >= 0)
    np.testing.assert_array_less(g, 1e-14)
    np.testing.assert_allclose(h, 0, atol=1e-14)
    np.testing.assert_allclose(lam * g, 0, atol=1e-14)
    balance = complex_step(lambda y: np.array([case.f(y)]), x)[0]
    for weights, part in ((lam, case.g), (mu, case.h)):
        if part is not None:
            balance = balance + weights @ complex_step(part, x)
    free = (lower < x) & (x < upper)
    np.testing.assert_allclose(balance[free], 0, atol=1e-13)
    assert np.all(balance[x == lower] > 0)  # strictly: no bound is active by accident
    assert np.all(balance[x == upper] < 0)


@BY_NAME
def test_no_feasible_point_nearby_is_better(case):
    rng = np.random.default_rng(0)
    x, (lower, upper) = np.array(case.x, dtype=float), sides(case)
    for radius in (0.3, 0.03):
        for step in rng.uniform(-radius, radius, (400, len(x))):
            y = np.clip(x + step, lower, upper)
            for _ in range(30):  # back onto the constraints by Gauss-Newton steps, inside the bounds
                broken = [(values(case, y, "h"), case.h), (np.maximum(values(case, y, "g"), 0), case.g)]
                rows = [(c[c != 0], complex_step(part, y)[c != 0]) for c, part in broken if part is not None]
                c, J = np.concatenate([r[0] for r in rows]), np.concatenate([r[1] for r in rows])
                if np.abs(c).max(initial=0.0) < 1e-13:
                    break
                y = np.clip(y - np.linalg.lstsq(J, c, rcond=None)[0], lower, upper)
            else:
                continue  # no feasible point found from here
            assert case.f(y) >= case.objective - 1e-11


@BY_NAME
def test_slsqp_agrees_in_order_one_units(case):
    found = solve(Posed(case, ORDER_ONE), "SLSQP")
    assert found.success
    np.testing.assert_allclose(found.x, case.x, atol=1e-3 * case.length)
    assert found.fun == pytest.approx(case.objective, rel=1e-5, abs=1e-5)


@BY_NAME
def test_other_points_listed_are_kkt_points(case):
    for point in case.others:
        x = np.array(point, dtype=float)
        lower, upper = sides(case)
        g, h = values(case, x, "g"), values(case, x, "h")
        assert np.all((lower < x) & (x < upper) & (np.max(g, initial=-1) <= 1e-14))
        np.testing.assert_allclose(h, 0, atol=1e-14)
        gradient = complex_step(lambda y: np.array([case.f(y)]), x)[0]
        columns = (
            [] if case.g is None else [row for row, c in zip(complex_step(case.g, x), g, strict=True) if c > -1e-9]
        )
        if case.h is not None:
            J = complex_step(case.h, x)
            columns += [*J, *-J]
        residual = scipy.optimize.nnls(np.array(columns).T, -gradient)[1] if columns else np.linalg.norm(gradient)
        assert residual < 1e-13


@BY_NAME
def test_derivatives_follow_the_units(case):
    rng = np.random.default_rng(1)
    m = len(case.lam) + len(case.mu)
    units = Units(30.0, 10 ** rng.uniform(-1, 1, m), 10 ** rng.uniform(-1, 1, len(case.x)))
    posed = Posed(case, units)
    x = posed.start()
    np.testing.assert_allclose(
        posed.grad(x), scipy.optimize.approx_fprime(x, posed.fun, 1e-7 * posed.scale), rtol=1e-4, atol=1e-2
    )
    np.testing.assert_allclose(posed.fun(np.array(case.x) * posed.scale), 30 * case.objective, rtol=1e-9, atol=1e-9)
    constraints: list[Any] = posed.constraints()
    for constraint in constraints:
        slope = scipy.optimize.approx_fprime(x, constraint.fun, 1e-7 * posed.scale)
        np.testing.assert_allclose(constraint.jac(x), slope.reshape(-1, len(x)), rtol=1e-4, atol=1e-3)
        assert constraint.ub == 0


def test_the_judge_knows_five_verdicts():
    case = next(case for case in CASES if case.name == "outside of a disc")
    seen = [((1.005, 0.0), True), ((-1.0, 0.0), True), ((1.02, 0), True), ((1.0, 0.009), False), ((np.nan, 0), False)]
    assert [judge(case, np.array(x), said) for x, said in seen] == ["right", "other", "false", "denied", "missed"]


def test_a_solver_that_raises_is_a_miss(monkeypatch):
    def broken(*args, **keywords):
        raise FloatingPointError("mine")

    monkeypatch.setattr("gdpa.minimize", broken)
    row = run(0, "gdpa", "none", 0, ORDER_ONE)
    assert (row["verdict"], row["message"]) == ("missed", "FloatingPointError: mine")


def test_rows_add_up_and_goals_are_told():
    rows = [{"solver": "gdpa", "problem": "p", "change": row, "verdict": "right"} for row in SINGLE]
    rows[3]["verdict"] = "false"
    text = table(rows)
    assert f"| {ONE} | 12 of 13, **1**, 0 |" in text
    assert "false 1 (0)" in text
    assert "not met" in text


def test_the_command_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "CASES", CASES[:1])
    monkeypatch.setattr(sys, "argv", ["units", "--out", str(tmp_path), "--solvers", "SLSQP"])
    command.main()
    records = (tmp_path / "records.jsonl").read_text().splitlines()
    assert len(records) == 13 + 8 + 4
    assert {json.loads(line)["solver"] for line in records} == {"SLSQP"}
    (tmp_path / "records.jsonl").write_text("\n".join(records[:20]) + "\n")
    command.main()
    again = (tmp_path / "records.jsonl").read_text().splitlines()
    assert again[:20] == records[:20]
    assert len(again) == 25
    assert "20 runs" not in capsys.readouterr().err
    assert "| none | 1 of 1, 0, 0 |" in (tmp_path / "table.md").read_text()
