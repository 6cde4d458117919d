"""AdaptiveGDPA with many variables: what it keeps of earlier points, and what it asks the oracle for again."""

import numpy as np
import pytest

from gdpa import Evaluation, MaxSteps, Problem, solve
from gdpa.base.arrays import LONG_ROW

D = LONG_ROW + 1000


def quadratic(cached=False):
    """Return the projection of a point on a ball with unlike axes, and the counts of its calls and pullbacks."""
    center, axes = np.linspace(-1.0, 2.0, D), np.linspace(1.0, 3.0, D)
    counts = {"forward": 0, "backward": 0}
    calls: dict[bytes, Evaluation] = {}

    def evaluate(x):
        key = x.tobytes()
        if cached and key in calls:
            return calls[key]
        counts["forward"] += 1

        def pullback(w, objective=1.0):
            counts["backward"] += 1
            return (objective * (x - center) + w[0] * axes * x) / D

        values = np.array(((x - center) ** 2).mean() / 2), np.array([(axes * x**2).mean() / 2 - 0.1])
        calls[key] = Evaluation(*values, pullback)
        return calls[key]

    return Problem(evaluate, num_constraints=1), counts


def test_a_run_counts_every_call():
    problem, counts = quadratic()
    result = solve(problem, np.ones(D), tolerance=1e-8)
    assert result.success
    assert counts["forward"] == result.forwards + result.measuring.forwards
    assert counts["backward"] == result.backwards + result.measuring.backwards


def test_the_end_does_not_depend_on_who_remembers_the_calls():
    plain, remembered = (solve(quadratic(cached)[0], np.ones(D), tolerance=1e-8) for cached in (False, True))
    assert remembered.success
    assert remembered.x.tolist() == plain.x.tolist()
    assert remembered.steps == plain.steps


def test_a_run_that_is_cut_goes_on_to_the_same_bits():
    whole = solve(quadratic()[0], np.ones(D), tolerance=1e-8)
    assert whole.steps > 3
    first = solve(quadratic()[0], np.ones(D), tolerance=1e-8, stop=MaxSteps(3))
    second = solve(quadratic()[0], run=first.run)
    assert second.x.tolist() == whole.x.tolist()
    assert (second.steps, second.forwards, second.backwards) == (whole.steps, whole.forwards, whole.backwards)


def test_a_released_call_is_made_again_once():
    problem, counts = quadratic()
    x = np.ones(D)
    now = problem.evaluate(x).own()
    expected = now.gradient().copy(), now.jacobian().copy()
    now.release(lambda: problem.evaluate(x))
    assert not now.knows_derivatives
    assert counts["forward"] == 1
    assert [now.gradient().tolist(), now.jacobian().tolist()] == [part.tolist() for part in expected]
    now.pullback(np.ones(1))
    assert counts["forward"] == 2


def test_a_call_that_the_problem_may_keep_is_not_released():
    problem, counts = quadratic(cached=True)
    now = problem.evaluate(np.ones(D))
    now.gradient()
    now.release(lambda: problem.evaluate(np.ones(D)))
    now.gradient()
    assert counts == {"forward": 1, "backward": 1}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_step_keeps_few_numbers_a_variable(dtype):
    torch = pytest.importorskip("torch")
    from benchmarks.large_device import count

    found = count(200_000, getattr(torch, dtype), "cpu", memory=10)
    assert found["numbers a variable"] <= {"float64": 62, "float32": 68}[dtype]
