"""The points worth keeping, from probes made by hand; when units and certificates are measured."""

import numpy as np
import pytest

from gdpa import Evaluation, Probe, Problem, Progress, Run, State
from gdpa.core.problem import detach
from gdpa.core.units import ReferencePoint, Units
from gdpa.run.oracle import CountingOracle, Counts
from gdpa.run.progress import ATTEMPT_GROWTH, ATTEMPT_ROWS, DIVERGED, FIRST_ATTEMPT


def state_at(step, x, f, g, gradient, weight=1.0, multipliers=None, evaluation=None):
    x, g, gradient = np.array(x), np.array(g), np.array(gradient)
    lam = np.zeros_like(g) if multipliers is None else np.array(multipliers)
    probe = Probe(x, lam, np.array(f), g, gradient, weight, evaluation)
    return State(step=step, x=x, multipliers=lam, evaluation=evaluation, probe=probe)


def look(progress, step, x, f, g, gradient, weight=1.0, multipliers=None):
    progress.count(state_at(step, x, f, g, gradient, weight, multipliers), 0.0)
    progress.look()


def start(x, tolerance=1e-4):
    """A progress with units of 1 that are not measured again, so that the probes' own numbers are the residuals."""
    x = np.array(x)
    state = State(step=0, x=x, multipliers=np.zeros((*x.shape[:-1], 1)), evaluation=None, probe=None)
    one = np.ones((*x.shape[:-1], 1))
    run = Run(
        algorithm=None,
        state=state,
        start=ReferencePoint(x, 0 * x, one),
        shape=(1, 1, 0),
        units=Units(one, one, one, 0 * one, one),
        next_units=1_000_000,
    )
    problem = Problem(lambda x: Evaluation(x[..., 0], x[..., :1], lambda w, objective=1.0: 0 * x))
    return Progress(CountingOracle(problem), run, tolerance)


def test_the_best_is_the_one_with_the_smallest_worst_residual():
    progress = start([0.0])
    look(progress, 1, [1.0], 5.0, [0.0], [0.3])
    look(progress, 2, [2.0], 4.0, [0.2], [0.0])
    look(progress, 3, [3.0], 3.0, [0.25], [0.1])
    assert progress.best.x.tolist() == [2.0]
    assert progress.kkt == pytest.approx(0.25)
    assert progress.last.x.tolist() == [3.0]


def test_the_best_feasible_is_the_lowest_within_the_tolerance():
    progress = start([0.0], tolerance=1e-2)
    look(progress, 1, [1.0], 5.0, [-1.0], [1.0])
    look(progress, 2, [2.0], 1.0, [0.02], [1.0])  # lower, but not feasible
    look(progress, 3, [3.0], 3.0, [0.009], [1.0])
    look(progress, 4, [4.0], 4.0, [-1.0], [1.0])
    assert progress.best_feasible.x.tolist() == [3.0]


def test_the_average_is_weighted():
    progress = start([0.0])
    look(progress, 1, [1.0], 0.0, [0.0], [1.0], weight=1.0)
    look(progress, 2, [4.0], 0.0, [0.0], [1.0], weight=3.0)
    look(progress, 3, [0.0], 0.0, [0.0], [1.0], weight=4.0)
    assert progress.average == pytest.approx([(1 + 12) / 8])


@pytest.mark.parametrize(
    "bad",
    [
        {"f": np.nan},
        {"f": np.inf},
        {"g": [np.nan]},
        {"g": [np.inf]},
        {"g": [-np.inf]},
        {"gradient": [np.nan]},
        {"gradient": [-np.inf]},
        {"multipliers": [np.nan]},
    ],
)
def test_what_is_not_finite_is_never_kept(bad):
    progress = start([0.0])
    look(progress, 1, [1.0], 5.0, [-1.0], [1.0])
    assert progress.finite
    with np.errstate(invalid="ignore"):
        look(progress, 2, **{"x": [2.0], "f": 1.0, "g": [-1.0], "gradient": [0.0], **bad})
    assert not progress.finite
    for kept in (progress.best, progress.best_feasible, progress.last):
        assert kept.x.tolist() == [1.0]
    assert progress.average.tolist() == [1.0]


def test_a_batch_keeps_the_best_of_each_member():
    progress = start([[0.0], [0.0]], tolerance=1e-2)
    look(progress, 1, [[1.0], [10.0]], [5.0, 5.0], [[-1.0], [1.0]], [[0.3], [0.1]])
    look(progress, 2, [[2.0], [20.0]], [4.0, 4.0], [[-1.0], [-1.0]], [[0.1], [0.5]])
    look(progress, 3, [[3.0], [30.0]], [4.5, 3.0], [[-1.0], [-1.0]], [[0.2], [0.9]])
    assert progress.best.x.tolist() == [[2.0], [20.0]]
    assert progress.best_feasible.x.tolist() == [[2.0], [30.0]]
    assert progress.kkt == pytest.approx(0.9)
    look(progress, 4, [[3.0], [30.0]], [4.5, np.nan], [[-1.0], [-1.0]], [[0.2], [0.9]])
    assert not progress.finite


def test_a_member_that_was_never_feasible_is_nan():
    progress = start([[0.0], [0.0]])
    look(progress, 1, [[1.0], [10.0]], [5.0, 5.0], [[-1.0], [1.0]], [[0.3], [0.1]])
    assert progress.best_feasible.x[0].tolist() == [1.0]
    assert np.isnan(progress.best_feasible.x[1]).all()


def test_divergence_is_measured_against_the_start():
    progress = start([10.0])
    look(progress, 1, [5 * DIVERGED], 0.0, [0.0], [1.0])
    assert not progress.diverged
    look(progress, 2, [-20 * DIVERGED], 0.0, [0.0], [1.0])
    assert progress.diverged


# Units and certificates, on f = x^2 / 2 with the constraints x - 9 <= 0 (m of them), counted


def bowl(m=1, cheap=False):
    def evaluate(x):
        whole = (lambda: np.ones((m, 1))) if cheap else None
        return Evaluation(x[0] ** 2 / 2, x - 9 * np.ones(m), lambda w, objective=1.0: objective * x + w.sum(), whole)

    return CountingOracle(Problem(evaluate))


def walking(oracle, m=1, next_attempt=0):
    x0 = np.array([4.0])
    state = State(step=0, x=x0, multipliers=np.zeros(m), evaluation=None, probe=None)
    run = Run(
        algorithm=None,
        state=state,
        start=ReferencePoint(x0, x0, x0 - 9 * np.ones(m)),
        shape=(1, m, 0),
        next_attempt=next_attempt,
    )
    return Progress(oracle, run, 1e-6)


def step_to(oracle, progress, step, x, keep=False):
    x = np.array([x])
    now = oracle.problem.evaluate(x)
    m = len(now.constraints)
    probe = Probe(x, np.zeros(m), now.objective, now.constraints, x, evaluation=now if keep else None)
    progress.count(State(step=step, x=x, multipliers=np.zeros(m), evaluation=now, probe=probe), 0.0)
    with oracle:
        progress.look()
    return now


def test_units_are_measured_at_steps_that_double_unless_they_are_free():
    oracle = bowl()
    progress = walking(oracle)
    costs = []
    for step in range(1, 9):
        step_to(oracle, progress, step, 4.0 / step)
        costs.append((oracle.measuring.forwards, oracle.measuring.backwards))
    # at 1, 2, 4 and 8: one forward at the probe, one backward for grad f and one for the row of J
    assert costs == [(1, 2), (2, 4), (2, 4), (3, 6), (3, 6), (3, 6), (3, 6), (4, 8)]


@pytest.mark.parametrize(("tolerance", "sizes"), [(1e-6, [1, 1, 2 / 3, 1, 0.8, 2 / 3]), (0.1, [1] * 6)])
def test_units_that_are_known_at_the_probe_cost_nothing(tolerance, sizes):
    oracle = bowl()
    progress = walking(oracle)
    progress.tolerance = tolerance
    for step, size in enumerate(sizes, 1):
        x = np.array([40.0 / step])
        now = oracle.problem.evaluate(x)
        now.gradient(), now.jacobian()
        before = (Counts(**vars(oracle.method)), Counts(**vars(oracle.measuring)))
        probe = Probe(x, np.zeros(1), now.objective, now.constraints, x, evaluation=now)
        progress.count(State(step=step, x=x, multipliers=np.zeros(1), evaluation=now, probe=probe), 0.0)
        with oracle:
            progress.look()
        assert (oracle.method, oracle.measuring) == before
        # |grad f(x)| = x relative to itself, or to the x of step 1, 2 or 4
        assert progress.residuals.stationarity == pytest.approx(size)


def test_many_rows_are_measured_once():
    m = ATTEMPT_ROWS + 1
    oracle = bowl(m)
    progress = walking(oracle, m)
    for step in range(1, 5):
        step_to(oracle, progress, step, 4.0 / step, keep=True)
    assert oracle.measuring == Counts(0, m + 1)
    cheap = bowl(m, cheap=True)
    progress = walking(cheap, m)
    for step in range(1, 5):
        step_to(cheap, progress, step, 4.0 / step, keep=True)
    assert cheap.measuring == Counts(0, 6)  # at 1, 2 and 4: a gradient and a whole Jacobian


def test_a_certificate_is_attempted_at_steps_that_grow():
    oracle = bowl()
    progress = walking(oracle, next_attempt=FIRST_ATTEMPT)
    attempts = []
    for step in range(1, 101):
        step_to(oracle, progress, step, 1e-5, keep=True)
        progress.certificate = None
        with oracle:
            assert not progress.certified(2e-6)  # grad f = 1e-5 is near enough for an attempt
        if progress.certificate is not None:
            attempts.append(step)
    expected = [FIRST_ATTEMPT]
    while (following := int(np.ceil(ATTEMPT_GROWTH * expected[-1]))) <= 100:
        expected.append(following)
    assert attempts == expected == [20, 30, 45, 68]


def test_a_hopeless_point_is_not_evaluated_again():
    oracle = bowl()
    progress = walking(oracle)
    step_to(oracle, progress, 1, 3.0, keep=True)  # grad f = 3
    before = oracle.measuring.forwards
    with oracle:
        assert not progress.certified(1e-6)
    assert progress.certificate is None
    assert oracle.measuring.forwards == before


def test_a_certificate_of_a_point_that_was_evaluated_makes_one_forward_near_it():
    oracle = bowl()
    progress = walking(oracle)
    step_to(oracle, progress, 1, 1e-5, keep=True)
    before = oracle.measuring.forwards
    with oracle:
        progress.certified(2e-6)
    assert progress.certificate is not None
    assert oracle.measuring.forwards == before + 1


@pytest.mark.parametrize(("cheap", "attempted"), [(False, False), (True, True)])
def test_a_certificate_of_many_rows_is_attempted_only_if_the_jacobian_is_cheap(cheap, attempted):
    m = ATTEMPT_ROWS + 1
    oracle = bowl(m, cheap)
    progress = walking(oracle, m)
    step_to(oracle, progress, 1, 3.0)
    progress.certified(1e-6)
    assert (progress.certificate is not None) is attempted


def test_a_promising_step_is_certified_and_then_waits_a_tenth_of_the_steps():
    oracle = bowl()
    progress = walking(oracle, next_attempt=10_000)
    progress.run.attempts = False
    tries = []

    def certify(point):
        tries.append((progress.step, point.x.tolist()))
        progress.certificate = type("No", (), {"holds": lambda self, tolerance: False})()
        return progress.certificate

    progress.certify = certify
    step_to(oracle, progress, 99, 3.0)
    assert not progress.certified(1e-6)
    assert tries == []  # the residuals that the step yields for free are too large
    for step in (100, *range(101, 111), 112):
        step_to(oracle, progress, step, 1e-9)
        assert not progress.certified(1e-6)
    assert tries == [(100, [1e-9]), (112, [1e-9])]


def test_a_run_is_what_the_progress_was():
    oracle = bowl()
    progress = walking(oracle)
    step_to(oracle, progress, 1, 3.0)
    step_to(oracle, progress, 2, 2.0)
    run = progress.record()
    again = Progress(bowl(), run, 1e-6)
    for name in ("step", "forwards", "backwards", "seconds", "kkt", "residuals", "best", "best_feasible", "last"):
        assert getattr(again, name) is getattr(progress, name) or getattr(again, name) == getattr(progress, name), name
    assert again.average.tolist() == progress.average.tolist() == [2.5]
    assert detach(run).best.evaluation is None
    assert detach(run).state.evaluation is None
    assert run.values[0] == 2.0
    assert run.values[1].tolist() == [-7.0]
