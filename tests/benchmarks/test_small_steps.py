"""The benchmark of a solver's own time: values are looked up, and the table adds up."""

from collections import Counter

import numpy as np
import pytest

from benchmarks.nonlinear.suite import Case
from benchmarks.small_steps import Replay, call, tables


class Disc:
    """The projection of (2, 0) on the unit disc, with its calls counted."""

    n, m_linear_ub, m_nonlinear_ub, aub, bub = 2, 0, 1, None, None
    m_linear_eq, m_nonlinear_eq, aeq, beq = 0, 0, None, None

    def __init__(self):
        self.calls = Counter()  # type: ignore[var-annotated]

    def fun(self, x):
        self.calls["fun"] += 1
        return (x[0] - 2) ** 2 + x[1] ** 2

    def grad(self, x):
        self.calls["grad"] += 1
        return np.array([2 * (x[0] - 2), 2 * x[1]])

    def cub(self, x):
        return np.array([x @ x - 1])

    def jcub(self, x):
        self.calls["jcub"] += 1
        return 2 * x[None]


@pytest.fixture
def replay():
    free = np.full(2, np.inf)
    return Replay(Case("disc", Disc(), np.array([0.0, 0.5]), -free, free, 1))


@pytest.mark.parametrize("solver", ["solve", "minimize", "SLSQP"])
def test_a_second_run_computes_nothing(replay, solver):
    steps = call(solver, replay)
    made = replay.case.raw.calls.copy()
    assert call(solver, replay) == steps > 1
    assert replay.case.raw.calls == made
    assert replay.is_solved()


def test_a_start_is_no_solution(replay):
    replay.values(replay.case.x0)
    assert not replay.is_solved()


def test_the_table_sums_the_seconds_and_divides_by_those_of_slsqp():
    row = {"problem": "HS1", "d": 2, "m": 1, "steps": 9, "us step": 100.4, "us call": 120.0, "us SLSQP": 9}
    totals = [
        {"solver": solver, "problem": problem, "seconds": seconds, "solved": solved, "points": 3}
        for solver, problem, seconds, solved in (
            ("solve", "a", 0.02, True),
            ("solve", "b", 0.04, True),
            ("SLSQP", "a", 0.01, True),
            ("SLSQP", "b", 0.01, False),
        )
    ]
    lines = tables([row], totals).splitlines()
    assert "| HS1 | 2 | 1 | 9 | 100 us | 120 us | 9 us |" in lines
    assert "| solve | 2 | 0.060 | 3.00 | 30.00 |" in lines
    assert "| SLSQP | 1 | 0.020 | 1.00 | 10.00 |" in lines
