"""Curvature that is measured along a step: the secant equation of the Lagrangian's Hessian, and fewer passes."""

import numpy as np
import pytest

from gdpa import AdaptiveGDPA, Evaluation, Problem, solve
from gdpa.methods.adaptive import Rules
from gdpa.methods.adaptive.scaling import ScaledProblem
from gdpa.methods.adaptive.sqp import SQP, refine
from gdpa.run.oracle import CountingOracle

D, M = 200, 6
RANDOM = np.random.default_rng(5)
HESSIANS = [np.diag(10 ** RANDOM.uniform(-2, 3, D)) for _ in range(M + 1)]
CENTERS = 3 * RANDOM.normal(size=(M + 1, D))
FEASIBLE = CENTERS.mean(axis=0)
LIMITS = np.array([(FEASIBLE - c) @ H @ (FEASIBLE - c) / 2 for H, c in zip(HESSIANS, CENTERS, strict=True)])[1:]


def quadratics(cheap=False):
    """An ill-conditioned ellipsoid's distance under ellipsoids; every row of J is a backward pass unless ``cheap``."""

    def evaluate(x):
        away = x - CENTERS
        bent = np.array([H @ a for H, a in zip(HESSIANS, away, strict=True)])
        values = np.sum(away * bent, axis=1) / 2
        pullback = lambda w, objective=1.0: objective * bent[0] + w @ bent[1:]  # noqa: E731
        g = values[1:] - LIMITS
        return Evaluation(values[0], g, pullback, (lambda: bent[1:]) if cheap else None)

    return Problem(evaluate, num_constraints=M, x_scale=1.0)


def refined(problem, state, rules):
    return refine(AdaptiveGDPA(rules=rules), ScaledProblem(problem, state.scaling), state)


def after(steps, rules):
    method, problem = AdaptiveGDPA(rules=rules), quadratics()
    state = method.init(problem, np.zeros(D))
    for _ in range(steps):
        state = method.update(problem, state)
    return problem, state


def test_the_matrix_satisfies_the_secant_equation_of_the_hessian_of_the_lagrangian():
    problem, state = after(8, Rules(trial_points=10**6))
    assert isinstance(state.phase, SQP)
    assert state.scaling.lengths is None
    p, weights = state.trial.direction, state.scaling.constraints * state.phase.multipliers
    hessian = state.scaling.objective * HESSIANS[0] + sum(w * H for w, H in zip(weights, HESSIANS[1:], strict=True))
    new = refined(problem, state, Rules(trial_points=0, settled=1e9))  # one product
    assert not np.allclose(state.curvature.product(p), hessian @ p, rtol=0.01)
    np.testing.assert_allclose(new.curvature.product(p), hessian @ p, rtol=1e-4, atol=1e-6 * np.abs(hessian @ p).max())


@pytest.mark.parametrize(("rules", "cheap"), [(Rules(trial_points=10**6), False), (Rules(trial_points=0), True)])
def test_nothing_is_measured_on_an_easy_problem_or_if_the_jacobian_is_cheap(rules, cheap):
    problem = quadratics(cheap)
    method = AdaptiveGDPA(rules=rules)
    state = method.init(problem, np.zeros(D))
    for _ in range(8):
        state = method.update(problem, state)
    assert refined(problem, state, rules) is state


def test_a_step_that_stays_is_measured_once_and_at_a_short_distance():
    # f = ||x - c||^2 / 2 with |grad f| = 1, so that B = I is exact and the step does not change
    x0, points = np.full(8, 2.0), []

    def evaluate(x):
        points.append(x)
        slope = x - (x0 - 1)
        pullback = lambda w, objective=1.0: objective * slope + np.append(w, [0.0, 0.0])  # noqa: E731
        return Evaluation(slope @ slope / 2, x[:6] - 50, pullback)

    problem = Problem(evaluate, num_constraints=6)
    state = AdaptiveGDPA(step="jacobian").init(problem, x0)
    points.clear()
    after = refined(problem, state, Rules(trial_points=0, settled=0.01))
    assert len(points) == 1
    assert np.linalg.norm(points[0] - x0) == pytest.approx(2.0**-26 * (1 + np.linalg.norm(x0)), rel=1e-6)
    assert after.trial.direction == pytest.approx(state.trial.direction, rel=1e-5)


def test_nothing_is_measured_at_the_first_points_of_a_phase():
    problem, state = after(8, Rules(trial_points=10**6))
    early, late = (state.replaced(step=25, phase_since=since) for since in (6, 5))
    assert refined(problem, early, Rules()) is early
    assert refined(problem, late, Rules()) is not late


def test_products_cost_no_more_than_the_rows():
    problem, state = after(8, Rules(trial_points=10**6))
    oracle = CountingOracle(problem)
    state = state.replaced(evaluation=oracle.problem.evaluate(state.x))
    refined(oracle.problem, state, Rules(trial_points=0, settled=0.0))
    made = oracle.method
    assert (made.forwards - 1, made.backwards) == (3, 3)  # (M + 1) // 2 products for M rows
    before = made.forwards
    refined(oracle.problem, state, Rules(trial_points=0, settled=1e9))
    assert made.forwards - before == 1  # a step that has settled is not measured again


def test_measured_curvature_saves_passes():
    passes = {}
    for points in (0, 10**6):
        result = solve(quadratics(), np.zeros(D), AdaptiveGDPA(rules=Rules(trial_points=points)), tolerance=1e-6)
        assert result.success
        passes[points] = result.forwards + result.backwards
    assert passes[0] < passes[10**6]
