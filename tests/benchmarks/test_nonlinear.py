"""The judge of benchmarks/nonlinear against a problem solved by hand, and the processes its runs live in."""

import multiprocessing
import os
import time

import numpy as np
import pytest

from benchmarks.nonlinear.equalities import LEVEL, judged
from benchmarks.nonlinear.equalities import table as equalities_table
from benchmarks.nonlinear.judge import Finished, Judge, certificate_holds, is_kkt
from benchmarks.nonlinear.report import table
from benchmarks.nonlinear.solvers import run
from benchmarks.nonlinear.suite import Case, with_equalities
from benchmarks.provenance import origin
from benchmarks.supervised import supervised


class Disc(Case):
    """The projection of (2, 0) on the unit disc, with x_2 >= 0: x = (1, 0), lambda = 1/2."""

    def __init__(self):
        super().__init__("disc", None, np.array([0.0, 0.5]), np.array([-5.0, 0.0]), np.array([5.0, 5.0]), 1)

    def values(self, x):
        return float((x - [2.0, 0.0]) @ (x - [2.0, 0.0])) / 2, np.array([x @ x - 1])

    def gradient(self, x):
        return x - [2.0, 0.0]

    def jacobian(self, x):
        return 2 * x[None, :]


def kkt(*x, tolerance):
    case, x = Disc(), np.array(x)  # type: ignore[assignment]
    return is_kkt(case, x, tolerance, case.values(x), case.gradient(x), case.jacobian(x))


def test_the_judges_own_rule():
    assert kkt(1.0, 0.0, tolerance=1e-8)
    assert not kkt(0.99, 0.0, tolerance=1e-3)  # the constraint is not active, so it may have no multiplier
    assert not kkt(1.01, 0.0, tolerance=1e-3)  # outside
    assert not kkt(-1.0, 0.0, tolerance=1e-3)  # its multiplier would be negative


@pytest.mark.parametrize(
    ("x", "multiplier", "holds"),
    [
        ((1.0, 0.0), 0.5, True),
        ((1.0, 0.0), 0.5 + 1e-3, False),  # stationarity 2e-3
        ((1.0 - 1e-3, 0.0), (1.001) / (2 * 0.999), False),  # stationary, but lambda |g| = 1e-3
        ((1.0 + 1e-3, 0.0), 0.999 / (2 * 1.001), False),  # stationary, but outside by 2e-3
        ((-1.0, 0.0), -1.5, False),  # a negative multiplier
        ((1.0, -1e-9), 0.5, False),  # outside the box
    ],
)
def test_the_librarys_measure_computed_anew(x, multiplier, holds):
    assert certificate_holds(Disc(), np.array(x), np.array([multiplier]), 1e-4) == holds


def test_the_judge_counts_notes_and_ends():
    met = []
    judge = Judge(Disc(), 10, 60.0, note=lambda judge: met.append(dict(judge.hits)))
    judge.values(np.array([0.5, 0.0]))
    judge.jacobian(np.array([0.5, 0.0]))
    assert (judge.forwards, judge.backwards, met) == (1, 1, [])
    with pytest.raises(Finished):
        judge.values(np.array([1.0, 0.0]))
    assert list(met[-1]) == [1e-2, 1e-4, 1e-6]
    counting = Judge(Disc(), 1, 60.0, ends=False)
    for _ in range(3):
        counting.values(np.array([1.0, 0.0]))
        counting.values(np.array([0.0, 0.0]))
    assert counting.forwards == 6


@pytest.mark.parametrize("solver", ["SLSQP", "NLopt MMA", "IPOPT", "GDPA"])
def test_a_run_the_judge_ends_says_so_however_the_solver_hands_it_on(solver):
    pytest.importorskip({"NLopt MMA": "nlopt", "IPOPT": "ipyopt"}.get(solver, "scipy"))
    judge = Judge(Disc(), 2, 60.0)
    assert run(solver, judge) == "budget or tightest level"
    assert judge.forwards == 2


def test_invocations_are_told_below_the_table():
    row = {
        "problem": "P",
        "solver": "SLSQP",
        "hits": {},
        "budget": {"forwards": 1000, "seconds": 20.0},
        "seconds": 20.5,
        "about": {"command": "c", "commit": "1a", "machine": {"cores": 2}, "versions": {"numpy": "2.4.6"}},
    }
    text = table([row], ["P"])
    assert "| SLSQP | 1 | 0 (0.0 %) | 0 (0.0 %) | 0 (0.0 %) | none | none | none | 1, of 20 s |" in text
    assert text.endswith("- `c`: 1 runs, commit 1a, 2 cores\n\nwith numpy 2.4.6.")


def test_an_invocation_is_told_without_the_place_it_wrote_to(monkeypatch):
    monkeypatch.setattr("sys.argv", ["x", "run", "--out", "somewhere/else", "--solvers", "NLopt MMA"])
    assert origin("benchmarks.nonlinear")["command"] == "python -m benchmarks.nonlinear run --solvers 'NLopt MMA'"


def _says_and_hangs(pipe, value):
    pipe.send({"value": value})
    time.sleep(600)


def _says_and_ends(pipe, value):
    pipe.send({"value": value})
    pipe.send({"ended": "by itself", "process": os.getpid()})
    pipe.close()


def _dies(pipe):
    raise SystemExit(1)


def test_what_a_process_said_is_kept_when_it_is_ended():
    context = multiprocessing.get_context("spawn")
    row = supervised(context, _says_and_ends, (3,), 60.0)
    assert (row["value"], row["ended"]) == (3, "by itself")
    assert row["process"] != os.getpid()
    assert supervised(context, _says_and_hangs, (4,), 12.0) == {"value": 4, "ended": "ended from outside"}
    with pytest.raises(RuntimeError, match="died before its run began"):
        supervised(context, _dies, (), 60.0)


class Circle(Disc):
    """The same projection on the unit circle: the multiplier of an equality has either sign."""

    def __init__(self):
        super().__init__()
        object.__setattr__(self, "equalities", 1)


@pytest.mark.parametrize(
    ("x", "solved"),
    [((1.0, 0.0), True), ((-1.0, 0.0), True), ((0.99, 0.0), False), ((0.6, 0.8), False)],
)
def test_equalities_are_violated_on_both_sides_and_push_both_ways(x, solved):
    assert (max(judged(Circle(), np.array(x))) <= LEVEL) == solved


def test_the_table_of_equalities_counts_false_success_and_claims_of_infeasibility():
    rows = [
        {"problem": "HS6", "solver": "gdpa", "solved": True, "success": True, "nfev": 7, "status": 0},
        {"problem": "HS7", "solver": "gdpa", "solved": False, "success": True, "nfev": 9, "status": 0},
        {"problem": "HS8", "solver": "gdpa", "solved": False, "success": False, "nfev": 9, "status": 4},
    ]
    text = equalities_table(rows)
    assert "| n, m <= 50, objective | 1 of 2, **1**, 7 |" in text
    assert "| n, m <= 50, f = 0 | 0 of 1, 0 |" in text
    assert 'gdpa said "Locally infeasible" of HS8.' in text


def test_the_list_of_problems_with_equalities_is_as_large_as_it_says():
    rows = with_equalities()
    assert len(rows) == len({row["name"] for row in rows}) == 218
    assert all(int(row["equalities"]) > 0 for row in rows)
