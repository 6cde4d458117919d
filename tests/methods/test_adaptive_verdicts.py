"""What AdaptiveGDPA says of problems without a solution, and that it never says it of problems with one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gdpa import AdaptiveGDPA, Evaluation, KKTBelow, MaxOracleCalls, MaxSteps, Problem, Status, from_functions, solve
from gdpa.base.arrays import max_norm, positive_part
from gdpa.methods.adaptive import Rules
from gdpa.methods.adaptive.restoration import Restoration
from gdpa.methods.adaptive.scaling import ScaledProblem
from gdpa.methods.adaptive.state import Reference, Trial
from tests.methods.adaptive_cases import AWKWARD, HOLES, INFEASIBLE, UNBOUNDED, WALLS

STEPS = ("auto", "pullback")


def run(case, step, tolerance=1e-6, calls=1000):
    return solve(
        case.problem(),
        case.start(),
        AdaptiveGDPA(step=step),
        tolerance=tolerance,
        stop=[KKTBelow(tolerance), MaxOracleCalls(calls), MaxSteps(2 * calls)],
        record=0,
    )


def violation(case, x):
    """Recomputed from the formula alone."""
    g = case.problem().evaluate(x).constraints.numpy()
    split = len(g) - case.equalities
    return max(np.maximum(g[:split], 0).max(initial=0.0), np.abs(g[split:]).max(initial=0.0))


def each(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


@pytest.mark.parametrize("step", STEPS)
@each(INFEASIBLE)
def test_infeasible_problems_are_called_locally_infeasible(case, step):
    result = run(case, step)
    assert result.status is Status.LOCALLY_INFEASIBLE
    assert not result.success
    # The verdict's claim at its own point, from the problem: the violation, in the units the method chose at the
    # start, is positive and falls in no direction of X to first order.
    now = case.problem().evaluate(result.x)
    units = result.state.scaling.constraints
    inside = positive_part(units * now.constraints, case.equalities)
    size = float(max_norm(inside))
    assert size > 1e-3
    slope = now.pullback(units * inside, objective=0.0)
    assert float(max_norm(result.x - case.domain.project(result.x - slope))) <= 1e-5 * size


@pytest.mark.parametrize("step", STEPS)
@each(UNBOUNDED)
def test_unbounded_problems_are_called_diverging(case, step):
    result = run(case, step)
    assert result.status is Status.DIVERGING
    assert not result.success
    assert torch.isfinite(result.x_last).all()


#: The gradient of the constraint vanishes at the solution, so no multiplier satisfies the KKT conditions there.
NO_MULTIPLIERS = ("a double root", "a triple root", "a fourfold root")


@pytest.mark.parametrize("step", STEPS)
@each(AWKWARD)
def test_awkward_problems_raise_no_false_alarm(case, step):
    result = run(case, step, tolerance=1e-4, calls=400)
    assert result.status not in (Status.LOCALLY_INFEASIBLE, Status.DIVERGING, Status.INVALID_NUMBER)
    if result.success:
        assert violation(case, result.x) <= 1e-4
    if step == "auto" and case.name not in NO_MULTIPLIERS:
        assert result.success


@pytest.mark.parametrize("step", STEPS)
def test_an_infinite_merit_is_no_step_towards_minus_infinity(step):
    # In lengths of 1 the second-order correction of POLAK6 leaps to 1e8, where g is 1e281 and F_beta is infinite.
    [case] = [case for case in AWKWARD if case.name == "POLAK6"]
    problem = replace(case.problem(), x_scale=np.ones(5))
    stop = [KKTBelow(1e-6), MaxSteps(500)]
    result = solve(problem, case.start(), AdaptiveGDPA(step=step), stop=stop, record=0)
    assert result.success
    assert float(result.objective) == pytest.approx(-44.0, rel=1e-6)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_merit_that_is_not_finite_is_never_sufficient(value):
    trial = Trial(np.ones(1), slope=-1.0)
    assert not trial.suffices(value, current=1.0, reference=2.0, rounding=1e-15, rules=Rules())
    assert trial.suffices(1.0, current=1.0, reference=2.0, rounding=1e-15, rules=Rules())


@pytest.mark.parametrize("step", STEPS)
@each(HOLES)
def test_holes_are_stepped_around(case, step):
    result = run(case, step)
    assert result.success
    assert violation(case, result.x) <= 1e-6


@pytest.mark.parametrize("step", STEPS)
@each(WALLS)
def test_a_hole_that_cannot_be_avoided_is_named(case, step):
    result = run(case, step)
    assert result.status is Status.INVALID_NUMBER
    assert case.culprit in result.message
    assert not result.success
    assert torch.isfinite(result.x).all()


def sigmoid_problem():
    """Return min x^2/2 subject to 1/(1 + e^x) <= 0.1, feasible from x = log 9 on and flat far to the left."""

    def evaluate(x):
        e = np.exp(-np.abs(x))
        value, slope = np.where(x > 0, e, 1) / (1 + e), e / (1 + e) ** 2
        return Evaluation(x @ x / 2, value - 0.1, lambda w, objective=1.0: objective * x - w * slope)

    return Problem(evaluate, num_constraints=1)


def in_phase(problem, algorithm, start, x):
    """Return the state at the beginning of the feasibility phase at x, of a run that began at ``start``."""
    state = algorithm.init(problem, start)
    point = np.full_like(start, x)
    now = problem.evaluate(point)
    reference = Reference(now.objective[None], state.scaling.constraints * now.constraints[None, :])
    state = replace(state, x=point, evaluation=now, reference=reference)
    inner = ScaledProblem(problem, state.scaling)
    state = Restoration.enter(inner, state)
    return state.phase.plan(algorithm, inner, state)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("x", [-16.0, -20.0])
def test_a_plateau_with_a_slope_is_no_verdict(x, dtype):
    # The violation's gradient, 1e-6 and less of what it is at the start, still leads down; the phase must follow it.
    problem, algorithm = sigmoid_problem(), AdaptiveGDPA()
    state = in_phase(problem, algorithm, np.zeros(1, dtype), x)
    for _ in range(100):
        state = algorithm.update(problem, state)
        assert state.verdict is None
        if not isinstance(state.phase, Restoration):
            break
    assert problem.evaluate(state.x).constraints[0] <= 0.25 * problem.evaluate(np.full(1, x)).constraints[0]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_plateau_without_a_slope_is_left_to_the_objective(dtype):
    # exp(-800) = 0: the violation has no slope there, but f leads back to where it does.
    problem, algorithm = sigmoid_problem(), AdaptiveGDPA()
    state = in_phase(problem, algorithm, np.zeros(1, dtype), -800.0)
    for _ in range(200):
        state = algorithm.update(problem, state)
        assert state.verdict in (None, Status.STALLED)
        if state.verdict is Status.STALLED:
            break
    assert state.x[0] == pytest.approx(np.log(9), abs=1e-3)


def test_equations_without_a_solution_end_at_their_least_squares():
    # DanWood of NIST's Statistical Reference Datasets, with its certified parameters.
    t = np.array([1.309, 1.471, 1.490, 1.565, 1.611, 1.680])
    y = np.array([2.138, 3.421, 3.597, 4.340, 4.882, 5.660])
    problem = from_functions(
        lambda b: 0.0,
        lambda b: b[0] * t ** b[1] - y,
        gradient=np.zeros_like,
        jacobian=lambda b: np.stack([t ** b[1], b[0] * t ** b[1] * np.log(t)], axis=1),
        num_equalities=6,
    )
    result = solve(problem, np.array([1.0, 5.0]), record=0)
    assert result.status == Status.LOCALLY_INFEASIBLE
    np.testing.assert_allclose(result.x, [0.76886226176, 3.8604055871], rtol=1e-4)
