"""Several starts: the global minimum of problems whose local minima are known, and honest books."""

import numpy as np
import pytest

from gdpa import AdaptiveGDPA, Ball, Box, Evaluation, MaxSteps, Problem, Status, minimize, solve
from gdpa.run.multistart import starts
from tests.libraries import scipy_minimize, to_numpy


def wells(x):
    """x^4 - 2 x^2 + 0.3 x has minima near -1.04 and 0.96, the first one lower."""
    return x**4 - 2 * x**2 + 0.3 * x


MINIMA = sorted(root.real for root in np.roots([4, 0, -4, 0.3]) if 12 * root.real**2 > 4)
LOWEST, OTHER = MINIMA


class Calls:
    """The wells on [-2, 2] with x <= 1.5, as an oracle that counts."""

    def __init__(self, domain=None, fails=lambda x: False):
        self.forwards = self.backwards = 0
        self.seen = []
        self._fails = fails
        self.problem = Problem(self.evaluate, num_constraints=1, domain=Box(-2.0, 2.0) if domain is None else domain)

    def evaluate(self, x):
        self.forwards += 1
        self.seen.append(float(x[0]))
        if self._fails(x):
            raise ArithmeticError("not here")

        def pullback(w, objective=1.0):
            self.backwards += 1
            return objective * (4 * x**3 - 4 * x + 0.3) + w[0]

        return Evaluation(wells(x[0]), x - 1.5, pullback)


def test_the_lowest_of_two_wells_is_found():
    assert solve(Calls().problem, np.array([1.0])).x == pytest.approx([OTHER], abs=1e-5)
    result = solve(Calls().problem, np.array([1.0]), best_of=6)
    assert result.success
    assert result.x == pytest.approx([LOWEST], abs=1e-5)
    assert result.objective == pytest.approx(wells(LOWEST), abs=1e-9)
    assert len(result.others) == 5
    first = result.others[0]
    assert (first.status, first.success) == (Status.CONVERGED, True)
    assert first.x == pytest.approx([OTHER], abs=1e-5)
    assert first.objective == pytest.approx(wells(OTHER), abs=1e-9)
    assert "5 of 5 other starts certified, with objectives " in repr(result)


def test_one_start_is_the_plain_run():
    plain, one = solve(Calls().problem, np.array([1.0])), solve(Calls().problem, np.array([1.0]), best_of=1)
    assert (one.x.tolist(), one.steps, one.others) == (plain.x.tolist(), plain.steps, ())
    assert "others" not in repr(plain)


def test_the_counts_are_those_of_all_starts():
    calls = Calls()
    result = solve(calls.problem, np.array([1.0]), best_of=5)
    assert (result.calls.forwards, result.calls.backwards) == (calls.forwards, calls.backwards)
    alone = [solve(Calls().problem, x) for x in starts(Calls().problem, np.array([1.0]), 5)]
    assert result.forwards == sum(one.forwards for one in alone)
    assert result.backwards == sum(one.backwards for one in alone)
    assert result.steps == sum(one.steps for one in alone)
    assert result.measuring.forwards == sum(one.measuring.forwards for one in alone)


def test_the_seed_decides(library):
    problem, x0 = Calls(Box([-2.0, -np.inf], [2.0, np.inf])).problem, library.array([1.0, 3.0])

    def drawn(seed):
        return [to_numpy(x).tolist() for x in starts(problem, x0, 4, seed)]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    assert drawn(7)[0] == [1.0, 3.0]
    assert np.array(drawn(7)) == pytest.approx(
        np.array([x.tolist() for x in starts(problem, np.array([1.0, 3.0]), 4, 7)])
    )


def test_bounded_coordinates_are_drawn_between_their_bounds_and_others_around_the_start():
    domain = Box([-1.0, 0.0, -np.inf, 5.0], [3.0, np.inf, np.inf, 5.0])
    x0 = np.array([2.9, 10.0, 1e-3, 5.0])
    points = np.array(list(starts(Calls(domain).problem, x0, 4001))[1:])
    assert points[:, 0].min() >= -1
    assert points[:, 0].max() <= 3
    assert points[:, 0].mean() == pytest.approx(1.0, abs=4 * 4 / np.sqrt(12 * 4000))
    assert points[:, 1].min() >= 0
    assert np.std(points[:, 2]) == pytest.approx(1e-3, rel=0.1)
    assert (points[:, 3] == 5).all()


def test_starts_go_with_the_unit_of_x():
    plain = Problem(lambda x: None)  # type: ignore[return-value]
    one = list(starts(plain, np.array([1.0, -3.0]), 4))
    other = list(starts(plain, np.array([1e6, -3e6]), 4))
    assert np.array(other) == pytest.approx(1e6 * np.array(one))
    scaled = list(starts(plain, np.array([1.0, -3.0]), 4, x_scale=np.array([10.0, 30.0])))
    assert np.array(scaled) - [1, -3] == pytest.approx(10 * (np.array(one) - [1, -3]))


def test_starts_lie_in_the_set():
    domain = Ball(2.0)
    for x in starts(Problem(lambda x: None, domain=domain), np.array([1.0, 1.0]), 20):  # type: ignore[return-value]
        assert np.linalg.norm(x) <= 2 + 1e-12


def test_without_a_certificate_the_smallest_residual_wins():
    result = solve(Calls().problem, np.array([1.0]), best_of=4, stop=MaxSteps(1), tolerance=1e-12)
    assert not result.success
    alone = [
        solve(Calls().problem, x, stop=MaxSteps(1), tolerance=1e-12)
        for x in starts(Calls().problem, np.array([1.0]), 4)
    ]
    assert result.certificate.relative.worst == min(one.certificate.relative.worst for one in alone)
    assert len(result.others) == 3


class Raises:
    """An observer that raises in the ``run``-th run."""

    def __init__(self, error, run):
        self.error, self.run, self.runs = error, run, 0

    def __call__(self, progress):
        self.runs += progress.step == 1
        if self.runs == self.run and progress.step == 2:
            raise self.error


def test_low_items_the_message_counts_the_starts():
    result = solve(Calls().problem, np.array([1.0]), best_of=8)
    certified = result.success + sum(other.success for other in result.others)
    assert result.message.endswith(f"The best of 8 starts, {certified} of them certified.")


@pytest.mark.parametrize("error", [KeyboardInterrupt, StopIteration])
def test_ctrl_c_and_stop_iteration_return_the_best_so_far(error):
    result = solve(Calls().problem, np.array([1.0]), best_of=50, observers=[Raises(error, run=6)])
    assert result.success
    assert result.x == pytest.approx([LOWEST], abs=1e-5)
    assert len(result.others) == 5
    assert result.others[-1].status in (Status.INTERRUPTED, Status.STOPPED)
    assert result.message.endswith("Ended after 6 of 50 starts.")


def test_ctrl_c_in_the_first_run_returns_what_there_is():
    result = solve(Calls().problem, np.array([1.0]), best_of=5, observers=[Raises(KeyboardInterrupt, run=1)])
    assert (result.status, result.others) == (Status.INTERRUPTED, ())


def test_a_run_that_a_custom_rule_ends_is_no_reason_to_stop():
    def rule(progress):
        return Status.CONVERGED if progress.step >= 1 else None

    result = solve(Calls().problem, np.array([1.0]), best_of=3, stop=rule, tolerance=1e-12)
    assert len(result.others) == 2


def test_an_exception_at_a_random_start_ends_that_attempt_alone():
    calls = Calls(fails=lambda x: x[0] < 0)  # both at random starts and on the way from others
    result = solve(calls.problem, np.array([1.0]), best_of=8)
    assert result.success
    assert result.x == pytest.approx([OTHER], abs=1e-5)
    failed = [other for other in result.others if other.status is Status.FAILED]
    assert failed
    assert len(result.others) == 7
    assert (result.calls.forwards, result.calls.backwards) == (calls.forwards, calls.backwards)


def test_an_exception_at_the_users_start_propagates():
    with pytest.raises(ArithmeticError, match="not here"):
        solve(Calls(fails=lambda x: x[0] > 0).problem, np.array([1.0]), best_of=8)


def test_what_makes_no_sense_is_refused(tmp_path):
    calls, x0 = Calls(), np.array([1.0])
    for count in (0, -1, 2.5, "3"):
        with pytest.raises(ValueError, match="best_of must be a positive number of starts"):
            solve(calls.problem, x0, best_of=count)
    with pytest.raises(ValueError, match="best_of starts several runs: give it without run and checkpoint"):
        solve(calls.problem, x0, best_of=2, checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match=r"best_of needs one problem, got x0 of shape \(2, 1\)"):
        solve(calls.problem, np.ones((2, 1)), best_of=2)
    with pytest.raises(TypeError, match="x0 is missing"):
        solve(calls.problem, best_of=2)


def test_stop_rules_and_observers_may_be_iterators():
    seen: list = []
    rules = iter([MaxSteps(2)])
    result = solve(
        Calls().problem, np.array([1.0]), AdaptiveGDPA(), best_of=3, stop=rules, observers=iter([seen.append])
    )
    assert len(result.others) == 2
    assert len(seen) == result.steps


def test_minimize_takes_the_same_options():
    points = []

    def fun(x):
        points.append(x[0])
        return wells(x[0])

    keywords = {"bounds": [(-2, 2)], "options": {"best_of": 6, "seed": 3}}
    assert minimize(fun, [1.0], bounds=[(-2, 2)]).x == pytest.approx([OTHER], abs=1e-4)
    points.clear()
    found = minimize(fun, [1.0], **keywords)
    assert found.success
    assert found.x == pytest.approx([LOWEST], abs=1e-4)
    assert found.nfev == len(points)
    assert len(found.result.others) == 5
    assert scipy_minimize(fun, [1.0], method=minimize, **keywords).x == pytest.approx([LOWEST], abs=1e-4)


def test_a_limit_on_calls_holds_for_all_starts_of_minimize():
    points = []

    def fun(x):
        points.append(x[0])
        return wells(x[0])

    found = minimize(fun, [1.0], bounds=[(-2, 2)], options={"best_of": 20, "maxfev": 60})
    assert len(points) <= 60
    assert found.x == pytest.approx([LOWEST], abs=1e-2) or found.x == pytest.approx([OTHER], abs=1e-2)
