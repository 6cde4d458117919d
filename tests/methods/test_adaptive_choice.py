"""Which of AdaptiveGDPA's two steps is taken: counted passes, and the answers all the same."""

import dataclasses

import numpy as np
import pytest

from gdpa import AdaptiveGDPA, Evaluation, from_functions, problems, solve
from gdpa.core.problem import row_by_row
from gdpa.methods.adaptive.quasi_newton import QuasiNewton
from gdpa.methods.adaptive.sqp import SQP
from gdpa.run.oracle import CountingOracle
from tests.libraries import scipy_minimize
from tests.methods.adaptive_cases import walk
from tests.stored import through_a_file


def crowded(m, tight, d=60):
    """A nonconvex program given row by row: of its m constraints the first few have 30 times less room.

    min sum c_j (x_j - t_j)^2 / 2   subject to   2 a_i'x + sin(3 a_i'x)/3 + b_i'x^2 <= r_i.
    """
    rng = np.random.default_rng([m, tight])
    t, c = 2 * rng.standard_normal(d), np.exp(rng.uniform(-2, 2, d))
    A, B = rng.standard_normal((m, d)) / np.sqrt(d), rng.random((m, d)) / (2 * np.sqrt(d))
    room = np.where(np.arange(m) < tight, 1.0, 30.0)
    problem = from_functions(
        lambda x: c @ (x - t) ** 2 / 2,
        lambda x: 2 * A @ x + np.sin(3 * A @ x) / 3 + B @ x**2 - room,
        gradient=lambda x: c * (x - t),
        jacobian=lambda x: (2 + np.cos(3 * A @ x))[:, None] * A + 2 * B * x,
    )
    return problem, np.zeros(d)


def test_a_given_jacobian_costs_two_backwards_a_point():
    case = problems.get("HS43")
    calls = []

    def evaluate(x):
        now = row_by_row(case.problem).evaluate(x)

        def jacobian():
            calls.append(x)
            return np.stack([now.pullback(row, objective=0.0) for row in np.eye(3)])

        return Evaluation(*now, jacobian)  # type: ignore[call-arg]

    oracle = CountingOracle(dataclasses.replace(case.problem, evaluate=evaluate))
    states = walk(AdaptiveGDPA(), oracle.problem, case.x0, 10)
    accepted = sum(s.probe is not None for s in states)  # the start's included
    assert len(calls) == accepted
    assert oracle.method.backwards == 2 * accepted


def test_of_many_constraints_only_those_that_may_matter_are_pulled_back():
    # min ||x - 2||^2/2 with x_0 <= 1 and 19 constraints far from active.
    levels = np.array([1.0] + [1e3] * 19)
    rows = np.eye(20)
    problem = from_functions(
        lambda x: (x - 2) @ (x - 2) / 2,
        lambda x: rows @ x - levels,
        gradient=lambda x: x - 2,
        jacobian=lambda x: rows,
    )
    oracle = CountingOracle(row_by_row(problem))
    method = AdaptiveGDPA()
    state = method.init(oracle.problem, np.zeros(20))
    assert oracle.method.backwards == 21
    for _ in range(3):
        state = method.update(oracle.problem, state)
    assert isinstance(state.phase, SQP)
    assert oracle.method.backwards <= 21 + 3 * 2


def test_the_jacobian_is_not_formed_for_many_constraints():
    rows = np.eye(200)
    problem = from_functions(lambda x: x @ x, lambda x: 1 - x, gradient=lambda x: 2 * x, jacobian=lambda x: -rows)
    oracle = CountingOracle(row_by_row(problem))
    state = AdaptiveGDPA().init(oracle.problem, np.zeros(200))
    assert isinstance(state.phase, QuasiNewton)
    assert oracle.method.backwards == 2  # no scaling of each constraint either
    assert solve(row_by_row(problem), np.zeros(200), AdaptiveGDPA(), tolerance=1e-6).success


def test_a_jacobian_given_whole_is_used_however_many_its_rows():
    problem = from_functions(
        lambda x: x @ x, lambda x: 1 - x, gradient=lambda x: 2 * x, jacobian=lambda x: -np.eye(200)
    )
    oracle = CountingOracle(problem)
    state = AdaptiveGDPA().init(oracle.problem, np.zeros(200))
    assert isinstance(state.phase, SQP)
    assert oracle.method.backwards == 2


@pytest.mark.parametrize(("m", "tight"), [(50, 5), (300, 5), (300, 150)])
def test_rows_near_active_are_taken_up_where_their_passes_pay(m, tight):
    problem, x0 = crowded(m, tight)
    runs = {
        step: solve(row_by_row(problem), x0, AdaptiveGDPA(step=step), tolerance=1e-6)
        for step in ("auto", "pullback", "jacobian")
    }
    passes = {step: run.forwards + run.backwards for step, run in runs.items()}
    assert all(run.success for run in runs.values())
    assert passes["auto"] <= 1.5 * min(passes["pullback"], passes["jacobian"])
    assert isinstance(runs["auto"].state.phase, SQP) == (tight < 30)
    near = scipy_minimize(
        lambda x: float(problem.evaluate(x).objective),
        runs["auto"].x + 1e-2,
        jac=lambda x: problem.evaluate(x).pullback(np.zeros(m)),
        constraints={
            "type": "ineq",
            "fun": lambda x: -problem.evaluate(x).constraints,
            "jac": lambda x: -problem.evaluate(x).jacobian(),
        },
        method="SLSQP",
    )
    assert runs["auto"].objective == pytest.approx(near.fun, rel=1e-6)


def test_all_rows_of_many_equalities_are_taken_up_where_the_other_step_has_not_ended():
    # min (x - t)'H(x - t)/2 with Ax = b: the KKT conditions are a linear system.
    d, m, rng = 60, 40, np.random.default_rng(3)
    H, t, A, b = np.logspace(0, 5, d), rng.standard_normal(d), rng.standard_normal((m, d)), rng.standard_normal(m)
    problem = from_functions(
        lambda x: H @ (x - t) ** 2 / 2,
        lambda x: A @ x - b,
        gradient=lambda x: H * (x - t),
        jacobian=lambda x: A,
        num_equalities=m,
    )
    result = solve(row_by_row(problem), np.zeros(d), tolerance=1e-8)
    answer = np.linalg.solve(np.block([[np.diag(H), A.T], [A, np.zeros((m, m))]]), np.concatenate([H * t, b]))
    assert result.success
    assert isinstance(result.state.phase, SQP)
    assert result.x == pytest.approx(answer[:d], abs=1e-5)


def test_a_run_saved_before_its_step_changes_goes_on_bit_for_bit(tmp_path):
    problem, x0 = crowded(50, 5)
    problem, method = row_by_row(problem), AdaptiveGDPA()
    straight = walk(method, problem, x0, 120)
    change = next(i for i, s in enumerate(straight) if isinstance(s.phase, SQP))
    for cut in (change - 1, change, change + 1):
        state = through_a_file(straight[cut], tmp_path / "state")
        for expected in straight[cut + 1 : change + 10]:
            state = method.update(problem, state)
            assert (state.x == expected.x).all()
            assert state.phase_since == expected.phase_since
