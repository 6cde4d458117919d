import math
from types import SimpleNamespace

import numpy as np
import pytest

from gdpa import (
    GDPA,
    Evaluation,
    FeasibleBelow,
    KKTBelow,
    MaxOracleCalls,
    MaxSteps,
    MaxTime,
    Problem,
    Status,
    problems,
    solve,
)


def progress(**values):
    return SimpleNamespace(**values)


@pytest.mark.parametrize(
    ("rule", "field", "status"),
    [
        (MaxSteps(3), "step", Status.MAX_STEPS),
        (MaxOracleCalls(3), "forwards", Status.MAX_ORACLE_CALLS),
        (MaxTime(3), "seconds", Status.MAX_TIME),
    ],
)
def test_limits_are_met_not_passed(rule, field, status):
    assert rule(progress(**{field: 2})) is None
    assert rule(progress(**{field: 3})) is status
    assert rule(progress(**{field: 4})) is status


@pytest.mark.parametrize("make", [MaxOracleCalls, MaxTime, KKTBelow, FeasibleBelow])
@pytest.mark.parametrize("value", [0, -1, math.nan, "3"])
def test_limits_are_positive_numbers(make, value):
    with pytest.raises(ValueError, match=r"must be a positive number, got"):
        make(value)


@pytest.mark.parametrize("value", [-1, math.nan, None])
def test_a_step_limit_may_be_zero_but_not_less(value):
    MaxSteps(0)
    with pytest.raises(ValueError, match="limit must be a nonnegative number, got"):
        MaxSteps(value)


def feasibility(values, step, num_equalities=0):
    g = np.array(values)
    state = SimpleNamespace(evaluation=Evaluation(None, g, None))
    problem = Problem(print, num_equalities=num_equalities)
    return FeasibleBelow(0.01)(progress(step=step, state=state, problem=problem))


def test_the_papers_first_feasible_step_squares_the_violation():
    assert feasibility([0.05, 0.08], 2) is Status.FEASIBLE  # 0.0025 + 0.0064 <= 0.01
    assert feasibility([0.08, 0.08], 2) is None  # 0.0128
    assert feasibility([-5.0, 0.0], 1) is None  # T(eps) asks for r > 1
    assert feasibility([-5.0, 0.0], 2) is Status.FEASIBLE
    assert feasibility([-5.0, 0.0], 2, num_equalities=2) is None
    assert feasibility([[0.0], [0.2]], 2) is None  # every member of a batch


def test_a_state_without_an_oracle_call_has_it_made():
    problem = Problem(lambda x: Evaluation(None, x, None))
    for x, expected in (([0.05, 0.08], Status.FEASIBLE), ([0.08, 0.08], None)):
        state = SimpleNamespace(evaluation=None, x=np.array(x))
        assert FeasibleBelow(0.01)(progress(step=5, state=state, problem=problem)) is expected


def test_convergence_is_what_the_progress_certifies():
    asked = []

    def certified(tolerance):
        asked.append(tolerance)
        return len(asked) > 1

    rule = KKTBelow(1e-3)
    assert rule(progress(certified=certified)) is None
    assert rule(progress(certified=certified)) is Status.CONVERGED
    assert asked == [1e-3, 1e-3]


def test_c6_the_message_names_the_time_after_a_limit_on_time(monkeypatch):
    monkeypatch.setattr("gdpa.run.solve.WORTH_A_SENTENCE", -1.0)
    disc = problems.get("disc-product")
    result = solve(disc.problem, disc.x0, GDPA(), stop=MaxTime(1e-9))
    assert result.status is Status.MAX_TIME
    assert result.message.endswith("The final certificate took 0 s more.")
