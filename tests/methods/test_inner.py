"""The shared parts: the subproblem's formulas, the descent step, the two inner solvers, the slack form's view."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gdpa import Box, IALMLi, IALMSahin, KKTBelow, MaxSteps, from_functions, problems, solve
from gdpa.methods.baselines.minmax import project_multipliers
from gdpa.methods.nested import Accelerated, FixedMomentum, Subproblem, descend, solved
from gdpa.run.oracle import CountingOracle


def differences(function: Any, x: Any, h: float = 1e-6) -> Any:
    return np.array([(function(x + h * e) - function(x - h * e)) / (2 * h) for e in np.eye(len(x))])


@pytest.mark.parametrize("beta", [0.0, 3.0])
@pytest.mark.parametrize("prox", [0.0, 2.0])
def test_the_subproblem_gradient_is_that_of_its_value(beta: float, prox: float, rng: Any) -> None:
    problem = problems.get("HS71").problem  # one inequality, one equality
    lam = np.array([0.7, -0.4])
    center = rng.normal(size=4) if prox else None
    phi = Subproblem(problem, lam, beta, prox=prox, center=center)
    x = 2 + rng.normal(size=4)
    gradient = phi.gradient(phi.probe(x, problem.evaluate(x)))
    expected = differences(lambda z: float(phi.value(z, problem.evaluate(z))), x)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("beta", [0.0, 3.0])
def test_the_shortfall_is_the_gradient_in_the_multipliers(beta: float) -> None:
    known = problems.get("HS71")
    at = known.problem.evaluate(known.x0)
    lam = np.array([2.0, -0.4])

    def value(y: Any) -> float:
        return float(Subproblem(known.problem, y, beta).value(known.x0, at))

    np.testing.assert_allclose(
        Subproblem(known.problem, lam, beta).lagrangian.complementarity(at.constraints),
        differences(value, lam),
        rtol=1e-6,
        atol=1e-6,
    )


def test_eliminated_slacks_are_the_minimum_over_slacks() -> None:
    # min over s >= 0 of y (g + s) + beta/2 (g + s)^2, on a fine grid, for g on both sides of -y/beta
    s = np.linspace(0, 5, 200_001)
    problem = from_functions(
        lambda x: 0.0 * x[0], lambda x: x, gradient=lambda x: 0 * x, jacobian=lambda x: np.ones((1, 1))
    )
    for g in (-2.0, -0.3, 0.8):
        y, beta = 1.5, 2.0
        phi = Subproblem(problem, np.array([y]), beta)
        explicit = (y * (g + s) + beta / 2 * (g + s) ** 2).min()
        assert float(phi.value(np.array([g]), problem.evaluate(np.array([g])))) == pytest.approx(explicit, abs=1e-8)


def quadratic(diagonal: Any, center: Any, domain: Any = None) -> Any:
    d, c = np.array(diagonal), np.array(center)
    options = {} if domain is None else {"domain": domain}
    return from_functions(lambda x: (d * (x - c)) @ (x - c) / 2, gradient=lambda x: d * (x - c), **options)


def run(solver: Any, phi: Subproblem, x0: Any, tolerance: float, most: int = 2000) -> Any:
    at, evaluation = solver.start(x0), phi.problem.evaluate(x0)
    values = [float(phi.value(x0, evaluation))]
    for _ in range(most):
        at, evaluation, _ = solver.step(phi, at, evaluation)
        values.append(float(phi.value(at.x, phi.problem.evaluate(at.x))))
        if solved(solver, at, tolerance):
            return at, values
    return at, values


def test_accelerated_solves_an_ill_conditioned_quadratic_in_about_the_square_root_of_its_condition() -> None:
    problem = quadratic([1.0, 30.0, 1000.0], [1.0, -2.0, 3.0], Box([0.0, 0.0, 0.0], [9.0, 9.0, 9.0]))
    phi = Subproblem(problem, np.zeros(0), 1.0)
    at, values = run(Accelerated(), phi, np.array([5.0, 5.0, 5.0]), 1e-8)
    np.testing.assert_allclose(at.x, [1.0, 0.0, 3.0], atol=1e-8)
    assert at.count < 600  # sqrt(1000) log(1e8) = 580; plain gradient descent needs about 1000 log(1e8) = 18,000
    assert np.diff(values).max() <= 1e-12  # monotone


def test_the_residual_bounds_the_distance_from_stationarity_where_m_bounds_the_curvature() -> None:
    problem = quadratic([1.0, 4.0, 10.0], [1.0, -1.0, 2.0])
    phi = Subproblem(problem, np.zeros(0), 1.0)
    solver = FixedMomentum(alpha=0.1, momentum=0.5)
    at, evaluation = solver.start(np.array([3.0, 3.0, -3.0])), None
    for _ in range(50):
        at, evaluation, _ = solver.step(phi, at, evaluation)
        gradient = phi.gradient(phi.probe(at.x, problem.evaluate(at.x)))
        assert np.linalg.norm(gradient) <= at.residual * (1 + 1e-9)


def test_accelerated_descends_on_a_nonconvex_function() -> None:
    problem = from_functions(  # Rosenbrock's valley
        lambda x: 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2,
        gradient=lambda x: np.array([-400 * x[0] * (x[1] - x[0] ** 2) - 2 * (1 - x[0]), 200 * (x[1] - x[0] ** 2)]),
    )
    at, values = run(
        Accelerated(max_steps=5000), Subproblem(problem, np.zeros(0), 1.0), np.array([-1.2, 1.0]), 1e-6, 5000
    )
    np.testing.assert_allclose(at.x, [1.0, 1.0], atol=1e-4)
    assert np.diff(values).max() <= 1e-12


def test_fixed_momentum_follows_its_formula() -> None:
    problem = quadratic([1.0, 4.0], [1.0, -1.0])
    solver = FixedMomentum(alpha=0.1, momentum=0.3)
    phi = Subproblem(problem, np.zeros(0), 1.0)
    x = previous = np.zeros(2)
    at, evaluation = solver.start(x), None
    for _ in range(20):
        at, evaluation, _ = solver.step(phi, at, evaluation)
        v = x + 0.3 * (x - previous)
        previous, x = x, v - 0.1 * np.array([1.0, 4.0]) * (v - np.array([1.0, -1.0]))
        np.testing.assert_allclose(at.x, x, atol=1e-15)


def test_descend_backs_off_where_the_value_is_not_a_number() -> None:
    def objective(x: Any) -> Any:
        return -np.log(x[0]) + x[0] if x[0] > 0 else np.nan

    problem = from_functions(objective, gradient=lambda x: 1 - 1 / x)
    phi = Subproblem(problem, np.zeros(0), 1.0)
    x = np.array([3.0])
    step = descend(phi, phi.probe(x, problem.evaluate(x)), np.asarray(0.1))  # the first trial is 3 - 6.7 < 0
    assert step.x[0] > 0
    assert step.value < objective(x)


def test_the_dual_set() -> None:
    projected = project_multipliers(np.array([-1.0, 3.0, -5.0]), 2.0, num_equalities=1)
    np.testing.assert_array_equal(projected, [0.0, 2.0, -2.0])


@pytest.mark.parametrize("method", [IALMSahin(slack=True), IALMLi(slack=True)])
def test_explicit_slacks_reach_the_same_answer(method: Any) -> None:
    for name in ("disc-square", "HS11", "box-corner"):
        known = problems.get(name)
        result = solve(known.problem, known.x0, method, stop=(KKTBelow(1e-3), MaxSteps(3000)), tolerance=1e-3)
        assert result.success
        np.testing.assert_allclose(result.x, known.solution, atol=0.01)
        np.testing.assert_allclose(result.multipliers, known.multipliers, rtol=0.05)
        assert result.x.shape == known.x0.shape  # slacks stay inside


def test_probes_of_the_slack_form_are_of_the_problem_and_have_no_negative_multiplier() -> None:
    known = problems.get("HS12")
    method = IALMSahin(slack=True, inner=FixedMomentum(0.002, 0.1))
    state = method.init(known.problem, np.array([3.0, 3.0]))  # infeasible: no slack, and the first steps overshoot
    kept = dropped = 0
    for _ in range(300):
        state = method.update(known.problem, state)
        if state.probe is None:
            dropped += 1
            continue
        kept += 1
        there = known.problem.evaluate(state.probe.x)
        assert state.probe.multipliers.min() >= 0
        np.testing.assert_allclose(state.probe.constraints, there.constraints, atol=1e-12)
        np.testing.assert_allclose(state.probe.gradient, there.pullback(state.probe.multipliers), atol=1e-10)
    assert kept
    assert dropped


def test_the_oracle_call_that_ends_a_subproblem_starts_the_next() -> None:
    known = problems.get("disc-product")
    oracle = CountingOracle(known.problem)
    method = IALMSahin(inner=FixedMomentum(0.01, 0.1, max_steps=10))
    state = method.init(oracle.problem, known.x0)
    for _ in range(30):
        state = method.update(oracle.problem, state)
    assert state.outer == 3
    assert oracle.method.forwards == 30 + 1  # one at x0, and the one at the end that the next update will use
