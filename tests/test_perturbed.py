"""The formulas against the paper's definitions, written out here a second time from the paper alone."""

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar

from gdpa.algorithms import GDPA
from gdpa.perturbed import (
    augmented_lagrangian,
    dual_update,
    in_gate,
    pressure,
    residual_violation,
    weights,
)
from gdpa.problem import Evaluation, Problem
from gdpa.schedules import Constant
from gdpa.sets import REALS, Ball, Box, Simplex

A = np.array([[1.0, -2.0, 0.5], [0.3, 0.7, -1.1]])


def f(x):
    return np.sin(x[0]) + x[1] ** 2 * x[2] + 0.5 * x @ x


def g(x):
    return A @ x + np.array([x @ x - 1, x[0] * x[2] + 0.2])


def F(x, lam, beta, tau):
    """Eq. (defF), as printed."""
    inner = np.maximum(g(x) + (1 - tau) * lam / beta, 0)
    return f(x) + beta / 2 * inner @ inner - ((1 - tau) * lam) @ ((1 - tau) * lam) / (2 * beta)


def differences(function, at, h=1e-6):
    return np.array([(function(at + h * e) - function(at - h * e)) / (2 * h) for e in np.eye(len(at))])


def problem(domain=REALS):
    def evaluate(x):
        grad = np.array([np.cos(x[0]), 2 * x[1] * x[2], x[1] ** 2]) + x
        J = A + np.array([2 * x, [x[2], 0.0, x[0]]])
        return Evaluation(np.asarray(f(x)), g(x), lambda w, objective=1.0: objective * grad + w @ J)

    return Problem(evaluate, domain=domain)


numbers = st.floats(-1.5, 1.5, allow_nan=False)
points = st.tuples(numbers, numbers, numbers).map(np.array)
multipliers = st.tuples(st.floats(0, 2), st.floats(0, 2)).map(np.array)
betas = st.floats(0.2, 3)
taus = st.floats(0.05, 0.95)


@given(points, multipliers, betas, taus)
def test_the_augmented_lagrangian_is_the_printed_one(x, lam, beta, tau):
    ours = augmented_lagrangian(np.asarray(f(x)), g(x), lam, beta, tau)
    assert float(ours) == pytest.approx(F(x, lam, beta, tau), abs=1e-12)


@given(points, multipliers, betas, taus)
def test_weights_give_the_gradient_of_the_function_in_x(x, lam, beta, tau):
    gradient = problem().evaluate(x).pullback(weights(lam, g(x), beta, tau))
    assert gradient == pytest.approx(differences(lambda y: F(y, lam, beta, tau), x), abs=2e-5)


@given(points, multipliers, betas, taus)
def test_the_gradient_of_the_function_in_lambda_has_the_two_printed_cases(x, lam, beta, tau):
    q = pressure(lam, g(x), beta, tau)
    assume(np.abs(q).min() > 1e-4)  # not at the kink
    expected = np.where(in_gate(q), g(x), -(1 - tau) * lam / beta)
    by_differences = differences(lambda y: F(x, y, beta, tau), lam) / (1 - tau)
    assert expected == pytest.approx(by_differences, abs=1e-6)


DOMAINS = {
    "reals": REALS,
    "box": Box([-0.3, -1.0, 0.0], [0.4, 0.2, 1.0]),
    "ball": Ball(0.8, [0.1, 0.0, -0.1]),
    "simplex": Simplex(),
}
SIDES = {
    "reals": {},
    "box": {"bounds": [(-0.3, 0.4), (-1.0, 0.2), (0.0, 1.0)]},
    "ball": {"constraints": {"type": "ineq", "fun": lambda x: 0.64 - ((x - [0.1, 0.0, -0.1]) ** 2).sum()}},
    "simplex": {"bounds": [(0, None)] * 3, "constraints": {"type": "eq", "fun": lambda x: x.sum() - 1}},
}


@pytest.mark.parametrize("name", DOMAINS)
@given(x=points, lam=multipliers, alpha=st.floats(0.05, 0.5), beta=betas, tau=taus)
def test_the_primal_step_solves_eq_updatex0(name, x, lam, alpha, beta, tau):
    x = DOMAINS[name].project(x)
    own = problem(DOMAINS[name])
    method = GDPA(alpha=Constant(alpha), beta=Constant(beta), tau=tau)
    start = method.init(own, x)
    step = method.update(own, type(start)(step=0, x=x, multipliers=lam, evaluation=None, probe=None))

    slope = differences(lambda y: F(y, lam, beta, tau), x)

    def subproblem(y):
        return slope @ (y - x) + (y - x) @ (y - x) / (2 * alpha)

    found = minimize(subproblem, x, jac=lambda y: slope + (y - x) / alpha, method="SLSQP", tol=1e-12, **SIDES[name])
    assert step.x == pytest.approx(found.x, abs=2e-4)
    assert subproblem(step.x) <= found.fun + 1e-6
    assert DOMAINS[name].project(step.x) == pytest.approx(step.x, abs=1e-12)


@given(st.floats(0, 2), st.floats(-2, 2), betas, taus, st.booleans())
@example(lam=1.0, g_next=0.5, beta=1.0, tau=0.5, inside=False)
@example(lam=1.0, g_next=0.5, beta=1.0, tau=0.5, inside=True)
def test_the_dual_step_solves_eq_gpda2_in_both_cases(lam, g_next, beta, tau, inside):
    gamma = tau / beta  # eq. (deftau)
    slope = g_next if inside else -(1 - tau) / beta * lam

    def negated(y):
        return -slope * (y - lam) + gamma / 2 * y**2 + (1 - tau) / (2 * beta) * (y - lam) ** 2

    found = minimize_scalar(negated, bounds=(0, 50), method="bounded", options={"xatol": 1e-9})
    ours = dual_update(np.array([lam]), np.array([g_next]), beta, tau, gate=np.array([inside]))
    assert float(ours[0]) == pytest.approx(found.x, abs=1e-5)
    assert inside or float(ours[0]) == 0.0


@given(points, multipliers, betas, taus)
def test_without_the_gate_the_dual_step_solves_eq_updatel0(x_next, lam, beta, tau):
    assume(np.abs(pressure(lam, g(x_next), beta, tau)).min() > 1e-4)
    gamma = tau / beta
    slope = differences(lambda y: F(x_next, y, beta, tau), lam) / (1 - tau)

    def negated(y):
        return -slope @ (y - lam) + (1 - tau) / (2 * beta) * (y - lam) @ (y - lam) + gamma / 2 * y @ y

    found = minimize(negated, lam, bounds=[(0, None)] * 2, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-10})
    assert dual_update(lam, g(x_next), beta, tau) == pytest.approx(found.x, abs=1e-5)


def test_equalities_keep_their_sign_and_always_pass_the_gate():
    lam, values = np.array([1.0, -1.0]), np.array([-3.0, -3.0])
    assert weights(lam, values, 2.0, 0.5, num_equalities=1).tolist() == [0.0, -6.5]
    assert in_gate(np.array([-1.0, -1.0]), num_equalities=1).tolist() == [False, True]
    assert dual_update(lam, values, 2.0, 0.5, np.array([False, True]), 1).tolist() == [0.0, -6.5]
    # f + lambda' h + (beta/2) h^2 for an equality, with lambda' = (1 - tau) lambda: 0 + 1.5 + 9
    only = augmented_lagrangian(np.array(0.0), values[1:], lam[1:], 2.0, 0.5, num_equalities=1)
    assert float(only) == pytest.approx(-0.5 * -3.0 + 2.0 / 2 * 9.0)


def test_the_residual_violation_is_where_the_dual_step_stands_still():
    lam, beta, tau = np.array([2.0, 0.5]), 4.0, 0.3
    assert dual_update(lam, residual_violation(lam, beta, tau), beta, tau) == pytest.approx(lam)


def test_torch_and_jax_compute_the_same(library):
    lam, values = [[1.0, 0.0], [0.5, 2.0]], [[-0.5, 0.5], [1.0, -9.0]]
    expected = np.maximum(0.9 * np.array(lam) + 2 * np.array(values), 0)
    ours = weights(library.array(lam), library.array(values), 2.0, 0.1)
    assert np.asarray(ours) == pytest.approx(expected)
    gate = in_gate(pressure(library.array(lam), library.array(values), 2.0, 0.1))
    assert np.asarray(dual_update(library.array(lam), library.array(values), 2.0, 0.1, gate)) == pytest.approx(expected)
    assert np.asarray(in_gate(library.array([[-1.0, -1.0]]), 1)).tolist() == [[False, True]]
