"""StopIteration ends a run if an observer or a callback raises it, and is an error anywhere else."""

import numpy as np
import pytest

from gdpa import GDPA, AdaptiveGDPA, Status, certify, from_functions, minimize, solve


class Late:
    """A function that raises StopIteration at its n-th call, as ``next`` on a used-up iterator does."""

    def __init__(self, function, at):
        self.function, self.left = function, iter(range(at))

    def __call__(self, x):
        next(self.left)
        return self.function(x)


PARTS = {
    "objective": lambda x: (x[0] - 2) ** 2 + x[1] ** 2,
    "constraints": lambda x: np.array([x @ x - 1]),
    "gradient": lambda x: np.array([2 * (x[0] - 2), 2 * x[1]]),
    "jacobian": lambda x: 2 * x[None],
}


@pytest.mark.parametrize("algorithm", [AdaptiveGDPA(), GDPA(alpha=0.1)], ids=["AdaptiveGDPA", "GDPA"])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("at", [2, 3, 5])
def test_solve_raises_it_as_an_error(part, at, algorithm):
    problem = from_functions(**{**PARTS, part: Late(PARTS[part], at)})
    with pytest.raises(RuntimeError, match="the problem's own code raised StopIteration") as raised:
        solve(problem, np.array([0.5, 0.5]), algorithm)
    assert isinstance(raised.value.__cause__, StopIteration)
    partial = raised.value.partial_result
    assert partial.status is Status.FAILED
    assert not partial.success


def test_at_the_start_too():
    with pytest.raises(RuntimeError, match="the problem's own code raised StopIteration"):
        solve(from_functions(**{**PARTS, "objective": Late(PARTS["objective"], 0)}), np.array([0.5, 0.5]))


def test_a_measurement_is_no_place_for_it_either():
    # The code fails when an observer asks for a value: that is not the observer's wish to end the run.
    problem = from_functions(**PARTS)
    broken = from_functions(**{**PARTS, "objective": Late(PARTS["objective"], 1)})

    def ask(progress):
        progress.problem.evaluate(progress.state.x + 1.0)

    with pytest.raises(RuntimeError, match="the problem's own code raised StopIteration"):
        solve(broken, np.array([0.5, 0.5]), GDPA(alpha=0.1), observers=[ask])
    assert certify(problem, np.array([1.0, 0.0])).holds(1e-6)


@pytest.mark.parametrize("argument", ["observers", "stop"])
def test_an_observer_and_a_stop_rule_may(argument):
    def stop(progress):
        if progress.step == 3:
            raise StopIteration

    result = solve(from_functions(**PARTS), np.array([0.5, 0.5]), GDPA(alpha=0.1), **{argument: [stop]})
    assert (result.status, result.steps) == (Status.STOPPED, 3)


@pytest.mark.parametrize("part", ["fun", "jac", "constraint", "constraint jac"])
@pytest.mark.parametrize("at", [2, 4])
def test_minimize_raises_it_as_an_error(part, at):
    functions = {
        "fun": PARTS["objective"],
        "jac": PARTS["gradient"],
        "constraint": lambda x: 1 - x @ x,
        "constraint jac": lambda x: -2 * x,
    }
    functions[part] = Late(functions[part], at)
    disc = {"type": "ineq", "fun": functions["constraint"], "jac": functions["constraint jac"]}
    with pytest.raises(RuntimeError, match="the problem's own code raised StopIteration") as raised:
        minimize(functions["fun"], [0.5, 0.5], jac=functions["jac"], constraints=disc)
    assert raised.value.partial_result.status is Status.FAILED


def test_a_callback_of_minimize_may():
    steps = []

    def callback(x):
        steps.append(x)
        if len(steps) == 2:
            raise StopIteration

    found = minimize(PARTS["objective"], [0.5, 0.5], callback=callback)
    assert found.nit == 2
    assert found.status == 99
