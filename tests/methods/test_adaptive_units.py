"""Units renewed on the way: what stays, what changes, and what it is good for."""

from dataclasses import replace

import numpy as np
import pytest

import gdpa
from gdpa import AdaptiveGDPA, Box, from_functions, problems, solve
from gdpa.methods.adaptive import Rules
from gdpa.methods.adaptive.scaling import ScaledEvaluation, ScaledProblem, Scaling, drift, start_lengths
from tests.libraries import scipy_minimize

RULES = Rules()


def renew(state, c, J):
    """Return the state in units that suit it."""
    factors = drift(state.scaling, state.reference.objectives[-1], state.constraints, c, J, RULES)
    assert factors is not None
    a, b = factors
    return state.rescaled(a, b), a * c, b[:, None] * J


def after_a_drift(factor_f, factor_g):
    """Return HS43's state after some steps as if its units had been chosen where the gradients were other."""
    case = problems.get("HS43")
    algorithm = AdaptiveGDPA()
    state = algorithm.init(case.problem, case.x0)
    for _ in range(6):
        state = algorithm.update(case.problem, state)
    return case.problem, state, factor_f * state.phase.gradient, factor_g[:, None] * state.phase.jacobian


def as_if(state, a, b):
    """Return the state in units of f and g that are a and b times as large."""
    memory, window, merit = state.curvature, state.reference, state.lagrangian
    return replace(
        state,
        scaling=state.scaling._replace(
            objective=a * state.scaling.objective, constraints=b * state.scaling.constraints
        ),
        lagrangian=merit._replace(multipliers=a * merit.multipliers / b),
        curvature=memory.rescaled(a),
        reference=window._replace(objectives=a * window.objectives, constraints=b * window.constraints),
    )


def test_units_that_suit_are_left_alone():
    _, state, c, J = after_a_drift(1.0, np.ones(3))
    f, g = state.reference.objectives[-1], state.constraints
    assert drift(state.scaling, f, g, c, J, RULES) is None
    assert drift(state.scaling, f, g, c, J, replace(RULES, drift=1.0)) is not None


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_a_unit_drifts_exactly_if_its_factor_leaves_the_limits(unit):
    # g' = 1/2 in the unit u: |grad g| counts as max(|J'|, min(u, 1/2)), and a unit grows to 1 at most.
    f, g, c = np.asarray(0.0), np.array([0.5]), np.array([1.0, 0.0])
    scaling = Scaling(1.0, np.array([unit]))
    for slope in (1e-4, 0.05, 0.2, 1.0, 5.0, 50.0):
        J = np.array([[0.0, slope]])
        factor = min(1 / max(slope, min(unit, 0.5)), max(unit, 1.0) / unit)
        found = drift(scaling, f, g, c, J, RULES)
        if 0.1 <= factor <= 10:
            assert found is None
        else:
            assert found == (1.0, pytest.approx(np.array([factor])))


def test_new_units_change_neither_the_point_nor_the_multipliers_nor_the_lagrangian():
    a, b = 1e-5, np.array([1e-6, 1.0, 1e4])
    problem, state, c, J = after_a_drift(a, b)
    strange = as_if(state, a, b)
    new, c_new, J_new = renew(strange, c, J)
    assert (new.x == state.x).all()
    s, t = strange.scaling, new.scaling
    assert t.unscale(new.lagrangian.multipliers) == pytest.approx(s.unscale(strange.lagrangian.multipliers), rel=1e-12)
    # gradients in the new units: of size one, up to the drift that is allowed
    now = ScaledEvaluation(problem.evaluate(state.x), t, state.x)
    w = new.lagrangian.multipliers
    assert c_new + w @ J_new == pytest.approx(now.pullback(w), rel=1e-9)
    sizes = np.abs(J_new).max(axis=1)
    assert ((sizes >= 1 / RULES.drift) & (sizes <= RULES.drift)).all()
    assert new.reference.objectives[-1] == pytest.approx(now.objective)
    assert new.reference.constraints[-1] == pytest.approx(now.constraints)
    # the Lagrangian's matrix is that of the same function in other units
    ratio = t.objective / s.objective
    assert new.curvature.sigma == pytest.approx(ratio * strange.curvature.sigma)
    assert new.curvature.changes[-1] == pytest.approx(ratio * strange.curvature.changes[-1])


def test_rows_that_were_not_evaluated_keep_their_units():
    small = np.array([1e-6, 1e-6, 1.0])
    _, state, c, J = after_a_drift(1.0, small)
    J[1] = 0
    new, _, J_new = renew(as_if(state, 1.0, small), c, J)
    assert new.scaling.constraints[1] == 1e-6 * state.scaling.constraints[1]
    assert new.scaling.constraints[0] > 0.1 * state.scaling.constraints[0]
    assert (J_new[1] == 0).all()


def test_a_vanishing_gradient_enlarges_its_constraint_to_its_own_units_at_most():
    small = np.array([1e-2, 1.0, 1.0])
    _, state, c, J = after_a_drift(1.0, small)
    J[0] *= 1e-12
    new, _, _ = renew(as_if(state, 1.0, small), c, J)
    assert new.scaling.constraints[0] == 1.0


@pytest.mark.parametrize("start", [(10.6, 19.9, 10.0), (3.0, 12.0, 8.0)])
def test_a_start_where_the_constraints_are_steep_does_not_hide_them_later(start):
    # Hock and Schittkowski 66. At the first start grad g has components of 1e8; at the solution, 1.
    bounds = [(0, 100), (0, 100), (0, 10)]

    def g(x):
        return np.array([np.exp(x[0]) - x[1], np.exp(x[1]) - x[2]])

    def J(x):
        return np.array([[np.exp(x[0]), -1.0, 0.0], [0.0, np.exp(x[1]), -1.0]])

    gradient = np.array([-0.8, 0.0, 0.2])
    domain = Box(*np.transpose(bounds).astype(float))
    problem = from_functions(lambda x: gradient @ x, g, gradient=lambda x: gradient, jacobian=J, domain=domain)
    result = solve(problem, np.array(start), tolerance=1e-6)
    constraint = {"type": "ineq", "fun": lambda x: -g(x), "jac": lambda x: -J(x)}
    truth = scipy_minimize(
        lambda x: gradient @ x,
        [0, 1.05, 2.9],
        jac=lambda x: gradient,
        bounds=bounds,
        constraints=constraint,
        options={"ftol": 1e-14},
    )
    assert truth.success
    assert result.success
    assert result.x == pytest.approx(truth.x, abs=1e-4)
    assert result.forwards <= 100


def test_a_multiplier_far_too_large_is_let_go():
    # min (x - 3)^2/2 subject to x <= 1e3: inactive at the solution, multiplier zero. By lambda + beta g alone 1e9 would
    # fall by 1e4 a step.
    problem = from_functions(
        lambda x: (x[0] - 3) ** 2 / 2, lambda x: x - 1e3, gradient=lambda x: x - 3, jacobian=lambda x: np.eye(1)
    )
    algorithm = AdaptiveGDPA()
    state = algorithm.init(problem, np.array([2.0]))
    state = replace(state, lagrangian=state.lagrangian._replace(multipliers=np.array([1e9])))
    state = state.phase.plan(algorithm, ScaledProblem(problem, state.scaling), state)
    assert state.lagrangian.multipliers[0] == pytest.approx(0.0, abs=1e-5)
    for _ in range(10):
        state = algorithm.update(problem, state)
    assert state.x[0] == pytest.approx(3.0, abs=1e-6)


@pytest.mark.parametrize("units", [(1.0, 1e4), (1e3, 1e-3), (1.0, 1e-5)])
def test_the_curvature_of_a_variable_in_a_far_larger_unit_is_learned(units):
    # Steps along the flat variable are all as long, which is not a sign of a solution.
    u = np.array(units)
    found = gdpa.minimize(
        lambda x: (x[0] / u[0] - 2) ** 2 + (x[1] / u[1] - 0.5) ** 2,
        np.zeros(2),
        jac=lambda x: 2 * (x / u - [2, 0.5]) / u,
        bounds=np.column_stack([-u, u]),
        constraints={"type": "ineq", "fun": lambda x: 3 - np.sum(x / u), "jac": lambda x: -1 / u},
        options={"maxiter": 100},
    )
    assert found.success
    np.testing.assert_allclose(found.x / u, [1, 0.5], atol=1e-3)


@pytest.mark.parametrize(("units", "start", "mixed"), [([1.0, 1e3], [2.0, 1e3], True), ([1.0, 1.0], [2.0, 1e3], False)])
def test_a_start_shows_lengths_only_if_the_derivatives_agree(units, start, mixed):
    # The second start is 1,000 away in a variable whose unit is the unit of the other one.
    u = np.array(units)
    problem = from_functions(
        lambda x: np.sum((x / u) ** 2),
        lambda x: np.array([1 - np.sum(x / u)]),
        gradient=lambda x: 2 * x / u**2,
        jacobian=lambda x: -1 / u[None, :],
    )
    x = np.array(start)
    D = start_lengths(problem, x, problem.evaluate(x), RULES)
    assert (D is not None and D[0] != D[1]) == mixed
    result = solve(problem, x, record=0)
    assert result.success
    np.testing.assert_allclose(result.x / u, [0.5, 0.5], rtol=1e-4)
