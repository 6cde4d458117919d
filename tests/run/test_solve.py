"""The loop: every status provoked once, the points it keeps, what it counts, how it continues."""

import time
from dataclasses import dataclass, replace

import numpy as np
import pytest

from gdpa import (
    GDPA,
    Box,
    Constant,
    Evaluation,
    FeasibleBelow,
    MaxOracleCalls,
    MaxSteps,
    MaxTime,
    Problem,
    Status,
    certify,
    from_functions,
    load_run,
    problems,
    save_run,
    solve,
)
from tests.libraries import Library, to_numpy

# A bowl whose solution (0, 0) is interior: GDPA with a constant step reaches any tolerance.


def bowl(hook=lambda calls: None, f=lambda calls, f: f, g=lambda calls, g: g, gradient=lambda calls, v: v, names=None):
    """``min |x|^2 / 2`` subject to ``x0 <= 1``, with hooks that see how many forwards there were."""
    calls = [0]

    def evaluate(x):
        calls[0] += 1
        n = calls[0]
        hook(n)
        slope = np.array([1.0, 0.0])
        pullback = lambda w, objective=1.0: gradient(n, objective * x + w[0] * slope)  # noqa: E731
        return Evaluation(np.asarray(f(n, x @ x / 2)), g(n, np.array([x[0] - 1])), pullback)

    return Problem(evaluate, names=names)


START = np.array([0.5, -2.0])
QUICK = GDPA(alpha=Constant(0.5), beta=1.0, tau=0.5)
SLOW = GDPA(alpha=1e-3)


# Statuses


def test_converged():
    result = solve(bowl(), START, QUICK)
    assert result.status is Status.CONVERGED
    assert result.success
    assert np.abs(result.x).max() <= 1e-4
    assert result.steps < 100


def test_max_steps():
    result = solve(bowl(), START, SLOW, stop=MaxSteps(7))
    assert (result.status, result.steps, result.success) == (Status.MAX_STEPS, 7, False)
    assert "Allow more steps" in result.message


def test_max_oracle_calls():
    result = solve(bowl(), START, SLOW, stop=MaxOracleCalls(8))
    assert (result.status, result.forwards, result.steps) == (Status.MAX_ORACLE_CALLS, 8, 7)


def test_max_time(monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    result = solve(bowl(), START, SLOW, stop=MaxTime(5))
    assert result.status is Status.MAX_TIME
    assert result.seconds == 5.0  # one tick for init and one for each of four updates
    assert result.steps == 4


def test_feasible():
    result = solve(bowl(), np.array([3.0, 0.0]), GDPA(alpha=0.05), stop=FeasibleBelow(1e-6))
    assert result.status is Status.FEASIBLE
    assert not result.success
    assert result.constraints[0] <= 1e-3


def test_diverging():
    own = problems.get("open-strip")
    result = solve(own.problem, own.x0, GDPA(alpha=Constant(0.5)), stop=MaxSteps(10_000))
    assert result.status is Status.DIVERGING
    assert not result.success
    assert np.isfinite(result.x).all()
    assert "unbounded" in result.message


def test_an_infeasible_problem_is_no_success():
    own = problems.get("disjoint-discs")
    result = solve(own.problem, own.x0, GDPA(alpha=0.01, beta=0.1), stop=MaxSteps(300))
    assert not result.success
    assert result.certificate.relative.feasibility > 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("part", "culprit"),
    [
        ("f", "The objective is"),
        ("g", "The constraint budget is"),
        ("gradient", "The gradient of the objective is not finite"),
    ],
)
def test_invalid_number_names_the_culprit_and_keeps_the_best(part, culprit, value):
    broken = bowl(**{part: lambda n, v: v * value if n > 20 else v}, names=("budget",))
    with np.errstate(all="ignore"):
        result = solve(broken, START, GDPA(alpha=Constant(0.1)), stop=MaxSteps(1000))
    assert result.status is Status.INVALID_NUMBER
    assert culprit in result.message
    assert np.isfinite(result.x).all()
    assert result.steps <= 22
    # the best finite point is the one from just before, not the start
    assert np.linalg.norm(result.x) < 0.2 * np.linalg.norm(START)
    assert not result.success


def test_interrupted_from_the_keyboard():
    def ctrl_c(n):
        if n == 12:
            raise KeyboardInterrupt

    result = solve(bowl(hook=ctrl_c), START, GDPA(alpha=Constant(0.1)))
    assert result.status is Status.INTERRUPTED
    assert result.steps == 10
    assert np.linalg.norm(result.x) < np.linalg.norm(START)


def test_stopped_by_an_observer():
    def enough(progress):
        if progress.step == 5:
            raise StopIteration

    result = solve(bowl(), START, SLOW, observers=[enough])
    assert (result.status, result.steps) == (Status.STOPPED, 5)


def test_failed_with_the_partial_result_attached():
    def broken(n):
        if n == 12:
            raise ZeroDivisionError("the user's own")

    with pytest.raises(ZeroDivisionError, match="the user's own") as caught:
        solve(bowl(hook=broken), START, GDPA(alpha=Constant(0.1)))
    result = caught.value.partial_result
    assert result.status is Status.FAILED
    assert result.steps == 10
    assert np.linalg.norm(result.x) < np.linalg.norm(START)
    assert result.certificate.relative.stationarity > 1e-2
    assert any("partial_result" in note for note in caught.value.__notes__)
    assert "Result of GDPA" in repr(result)


def test_failed_before_the_first_step_is_over_still_has_a_result():
    def broken(n):
        if n == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        solve(bowl(hook=broken), START, QUICK)
    assert caught.value.partial_result.steps == 0
    assert caught.value.partial_result.x.tolist() == START.tolist()
    assert not caught.value.partial_result.success


def test_failed_at_once_after_loading_a_run(tmp_path):
    save_run(tmp_path / "run", solve(bowl(), START, SLOW, stop=MaxSteps(3)).run)

    def broken(n, v):
        raise ZeroDivisionError("the user's own")

    with pytest.raises(ZeroDivisionError, match="the user's own") as caught:
        solve(bowl(gradient=broken), run=load_run(tmp_path / "run"))
    assert caught.value.partial_result.steps == 3


@pytest.mark.parametrize(
    ("x0", "status"),
    [(np.array([5.0, -2.0]), Status.LOCALLY_INFEASIBLE), (START, Status.STALLED)],
    ids=["never feasible", "a feasible point refutes it"],
)
def test_a_methods_own_verdict_ends_the_run(x0, status):
    class Resigned(GDPA):
        def update(self, problem, state):
            from dataclasses import replace

            after = super().update(problem, state)
            return replace(after, verdict=Status.LOCALLY_INFEASIBLE if after.step == 3 else None)

    result = solve(bowl(), x0, Resigned(alpha=1e-3))
    assert (result.status, result.steps, result.success) == (status, 3, False)


def test_a_rule_looser_than_the_tolerance_is_no_success():
    result = solve(bowl(), START, QUICK, stop=lambda run: Status.CONVERGED if run.step == 3 else None, tolerance=1e-8)
    assert result.status is Status.STOPPED
    assert not result.success


def test_a_limit_reached_at_a_solution_is_a_success():
    result = solve(bowl(), START, QUICK, stop=MaxSteps(60))
    assert result.status is Status.CONVERGED
    assert result.success


# Points


def test_the_result_keeps_the_points_it_promises():
    own = problems.get("HS12")
    seen = []

    def watch(progress):
        probe = progress.state.probe
        seen.append((probe.x.copy(), float(probe.objective), probe.constraints.copy(), probe.weight))

    method = GDPA(alpha=0.02, beta=0.05)
    result = solve(own.problem, own.x0, method, stop=MaxSteps(300), observers=[watch])
    assert len(seen) == 300
    weights = np.array([w for *_, w in seen])
    assert weights == pytest.approx([1 / (0.05 * r ** (1 / 3)) for r in range(1, 301)])
    points = np.array([x for x, *_ in seen])
    assert result.x_average == pytest.approx((weights @ points) / weights.sum())  # Theorem 1's weights
    # n = |dg/dx0| L0 + |dg/dx1| L1 > 1 at every point that violates g, so the violation counts by its absolute value
    assert all(np.abs([8 * x[0], 2 * x[1]]) @ np.abs(x) > 1 for x, _, g, _ in seen if g > 0)
    feasible = [(f, x) for x, f, g, _ in seen if (g <= 1e-6).all()]
    assert 0 < len(feasible) < 300
    assert result.x_best_feasible.tolist() == min(feasible, key=lambda pair: pair[0])[1].tolist()
    assert result.x_last.tolist() == result.state.x.tolist()
    worst = [certify(own.problem, x).relative.worst for x in points[::10]]
    assert result.certificate.relative.worst <= min(worst) + 1e-12


def test_no_feasible_iterate_means_none():
    own = problems.get("disjoint-discs")
    assert solve(own.problem, own.x0, SLOW, stop=MaxSteps(5)).x_best_feasible is None


def test_success_is_judged_at_the_returned_point():
    own = problems.get("HS22")
    method = GDPA(alpha=Constant(0.002), beta=Constant(50.0), tau=0.001)
    result = solve(own.problem, own.x0, method, tolerance=1e-4)
    assert result.success
    again = certify(own.problem, result.x)
    assert again.holds(1e-4)
    assert again.relative == result.certificate.relative
    assert result.x == pytest.approx(own.solution, abs=1e-3)
    assert result.objective == pytest.approx(1.0, abs=1e-3)
    assert result.constraints.tolist() == own.problem.evaluate(result.x).constraints.tolist()


def test_the_start_is_projected_and_lists_are_taken():
    own = from_functions(lambda x: x[0], gradient=lambda x: np.ones(1), domain=Box(0.0, 1.0))
    result = solve(own, [5.0], stop=MaxSteps(0))
    assert result.x_last.tolist() == [1.0]
    assert solve(own, (0.5,), GDPA(alpha=Constant(1.0))).success


def test_the_start_is_not_changed_in_place():
    x0 = START.copy()
    solve(bowl(), x0, QUICK)
    assert x0.tolist() == START.tolist()


def formulas(stack, x):
    a, b = x[..., 0], x[..., 1]
    return a**2 / 2 + b**2 - a * b - 7 * a - 7 * b, stack([4 * a**2 + b**2 - 25])


def gradient(x):
    a, b = x[..., 0], x[..., 1]
    return np.stack([a - b - 7, 2 * b - a - 7], -1)


def jacobian(x):
    return np.stack([8 * x[..., 0], 2 * x[..., 1]], -1)[..., None, :]


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_batch_is_solved_as_its_members_would_be(name):
    library = Library(name)
    hs12 = library.problem(formulas, gradient, jacobian)
    starts = np.array([[0.0, 0.0], [1.0, 1.0], [2.5, 3.5]])
    options = {"algorithm": GDPA(alpha=0.005, beta=0.05), "stop": MaxSteps(200)}
    whole = solve(hs12, library.array(starts), **options)
    for i, start in enumerate(starts):
        one = solve(hs12, library.array(start), **options)
        for field in ("x_last", "multipliers_last", "x_average", "x", "multipliers"):
            expected = to_numpy(getattr(one, field))
            assert to_numpy(getattr(whole, field))[i] == pytest.approx(expected, rel=1e-8, abs=1e-10), field
        best = to_numpy(whole.x_best_feasible)[i]
        if one.x_best_feasible is None:
            assert np.isnan(best).all()
        else:
            assert best == pytest.approx(to_numpy(one.x_best_feasible), rel=1e-8)
        for column in ("objective", "stationarity", "feasibility", "slackness"):
            assert whole.history[column][:, i] == pytest.approx(one.history[column], rel=1e-6, abs=1e-9)
        assert float(whole.objective[i]) == pytest.approx(one.objective)
    assert "Result of GDPA" in repr(whole)


def test_a_batch_converges_when_its_last_member_does(library):
    def function(stack, x):
        return (x**2).sum(-1) / 2, stack([x[..., 0] - 1])

    own = library.problem(function, lambda x: x, lambda x: np.broadcast_to([[1.0, 0.0]], (*x.shape[:-1], 1, 2)))
    result = solve(own, library.array([[0.5, 0.1], [100.0, -3.0]]), QUICK)
    assert result.success
    assert result.status is Status.CONVERGED


def test_single_precision_runs_in_single_precision(library):
    hs12 = library.problem(formulas, gradient, jacobian)
    start = library.array([0.0, 0.0], "float32")
    result = solve(hs12, start, GDPA(alpha=0.005, beta=0.05), stop=MaxSteps(20))
    assert result.x.dtype == result.x_last.dtype == result.multipliers_last.dtype == start.dtype


# Counts and options


def test_user_functions_are_called_once_a_point_certificates_included():
    calls = {"f": 0, "g": 0, "df": 0, "dg": 0}

    def count(name, value):
        calls[name] += 1
        return value

    own = from_functions(
        lambda x: count("f", x @ x),
        lambda x: count("g", x - 1),
        gradient=lambda x: count("df", 2 * x),
        jacobian=lambda x: count("dg", np.eye(2)),
    )
    result = solve(own, np.ones(2), SLOW, stop=MaxSteps(1000))
    assert (result.forwards, result.backwards) == (1001, 1000)
    # the certificates use the oracle calls that the method has made, and one more near each certified point
    more = result.measuring.forwards
    assert calls["f"] == calls["g"] == result.calls.forwards == 1001 + more
    assert more <= 2
    assert calls["df"] <= 1001 + more


def test_checking_rarely_leaves_the_iterates_alone():
    own = problems.get("HS43")
    often = solve(own.problem, own.x0, SLOW, stop=MaxSteps(40))
    rarely = solve(own.problem, own.x0, SLOW, stop=MaxSteps(40), check_every=8)
    assert rarely.x_last.tolist() == often.x_last.tolist()
    assert rarely.multipliers_last.tolist() == often.multipliers_last.tolist()
    assert rarely.history["step"].tolist() == [8, 16, 24, 32, 40]
    assert (rarely.forwards, rarely.backwards) == (41, 40)


def test_recording_may_be_thinned_or_off():
    assert solve(bowl(), START, SLOW, stop=MaxSteps(10), record=3).history["step"].tolist() == [3, 6, 9]
    assert len(solve(bowl(), START, SLOW, stop=MaxSteps(10), record=0).history) == 0


def test_one_rule_or_several():
    assert solve(bowl(), START, SLOW, stop=[MaxSteps(5), MaxSteps(3)]).steps == 3
    assert solve(bowl(), START, SLOW, stop=lambda progress: Status.STOPPED if progress.step == 2 else None).steps == 2


def test_nothing_is_done_when_a_rule_already_holds():
    result = solve(bowl(), START, SLOW, stop=MaxSteps(0))
    assert (result.steps, result.forwards, result.backwards) == (0, 1, 0)
    assert result.x.tolist() == START.tolist()


# Continuing


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_run_in_two_parts_is_the_run_in_one_bit_for_bit(name, tmp_path):
    library = Library(name)
    hs12 = library.problem(formulas, gradient, jacobian, domain=Box(-10.0, 10.0))
    method = GDPA(alpha=0.005, beta=0.05)
    x0 = library.array([0.3, -0.7])
    straight = solve(hs12, x0, method, stop=MaxSteps(200))
    first = solve(hs12, x0, method, stop=MaxSteps(80))
    save_run(tmp_path / "run", first.run)
    for run in (load_run(tmp_path / "run"), first.run):
        rest = solve(hs12, run=run, stop=MaxSteps(200))
        assert rest.steps == 200
        for part in ("x", "multipliers", "x_last", "multipliers_last", "x_average", "x_best_feasible"):
            assert to_numpy(getattr(rest, part)).tobytes() == to_numpy(getattr(straight, part)).tobytes(), part
        assert (rest.status, rest.success) == (straight.status, straight.success)
        assert rest.certificate.relative == straight.certificate.relative
        for column in ("step", "forwards", "backwards", "objective", "kkt"):
            assert rest.history[column].tolist() == straight.history[column].tolist(), column


def test_a_continued_run_counts_what_both_parts_used(tmp_path):
    straight = solve(bowl(), START, SLOW, stop=MaxSteps(100))
    assert (straight.forwards, straight.backwards) == (101, 100)
    first = solve(bowl(), START, SLOW, stop=MaxSteps(80))
    assert (first.forwards, first.backwards) == (81, 80)
    save_run(tmp_path / "run", first.run)
    for run in (first.run, load_run(tmp_path / "run")):
        rest = solve(bowl(), run=run, stop=MaxSteps(100))
        # the oracle call at the cut is made anew, for measuring: the method has paid for it
        assert (rest.forwards, rest.backwards) == (101, 100)
        nearby = first.measuring.forwards  # of the certificates at the end
        assert straight.measuring.forwards == nearby <= 2
        assert nearby + 1 <= rest.measuring.forwards <= 2 * nearby + 1


def test_a_run_continues_with_the_seconds_it_has_used(monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    first = solve(bowl(), START, SLOW, stop=MaxTime(5))
    assert (first.steps, first.seconds) == (4, 5.0)
    assert solve(bowl(), run=first.run, stop=MaxTime(5)).steps == 4  # the time is used up
    rest = solve(bowl(), run=first.run, stop=MaxTime(8))
    assert (rest.steps, rest.seconds) == (7, 8.0)


def test_a_verdict_ends_the_run_between_two_looks():
    @dataclass(frozen=True)
    class Gives(GDPA):
        def update(self, problem, state):
            return replace(super().update(problem, state), verdict=Status.STALLED if state.step == 2 else None)

    disc = problems.get("disc-product")
    result = solve(disc.problem, disc.x0, Gives(), stop=MaxSteps(100), check_every=10)
    assert (result.status, result.steps) == (Status.STALLED, 3)
