"""The formulas against the paper's definitions, written out here a second time from the paper alone."""

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from gdpa import GDPA, REALS, Ball, Box, Constant, Evaluation, Problem, Simplex
from gdpa.core.lagrangian import AugmentedLagrangian, ascended, in_gate
from tests.libraries import scipy_minimize

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
    ours = AugmentedLagrangian(lam, beta, tau).value(np.asarray(f(x)), g(x))
    assert float(ours) == pytest.approx(F(x, lam, beta, tau), abs=1e-12)


@given(points, multipliers, betas, taus)
def test_weights_give_the_gradient_of_the_function_in_x(x, lam, beta, tau):
    gradient = problem().evaluate(x).pullback(AugmentedLagrangian(lam, beta, tau).weights(g(x)))
    assert gradient == pytest.approx(differences(lambda y: F(y, lam, beta, tau), x), abs=2e-5)


@given(points, multipliers, betas, taus)
def test_the_gradient_of_the_function_in_lambda_has_the_two_printed_cases(x, lam, beta, tau):
    q = AugmentedLagrangian(lam, beta, tau).shifted(g(x))
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


@pytest.mark.filterwarnings("ignore:Values in x were outside bounds:RuntimeWarning")  # of SLSQP before SciPy 1.16
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

    found = scipy_minimize(
        subproblem, x, jac=lambda y: slope + (y - x) / alpha, method="SLSQP", tol=1e-12, **SIDES[name]
    )
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
    ours = AugmentedLagrangian(np.array([lam]), beta, tau).ascend(np.array([g_next]), gate=np.array([inside]))
    assert float(ours[0]) == pytest.approx(found.x, abs=1e-5)
    assert inside or float(ours[0]) == 0.0


@given(points, multipliers, betas, taus)
def test_without_the_gate_the_dual_step_solves_eq_updatel0(x_next, lam, beta, tau):
    assume(np.abs(AugmentedLagrangian(lam, beta, tau).shifted(g(x_next))).min() > 1e-4)
    gamma = tau / beta
    slope = differences(lambda y: F(x_next, y, beta, tau), lam) / (1 - tau)

    def negated(y):
        return -slope @ (y - lam) + (1 - tau) / (2 * beta) * (y - lam) @ (y - lam) + gamma / 2 * y @ y

    found = scipy_minimize(
        negated, lam, bounds=[(0, None)] * 2, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-10}
    )
    assert AugmentedLagrangian(lam, beta, tau).ascend(g(x_next)) == pytest.approx(found.x, abs=1e-5)


def test_equalities_keep_their_sign_and_always_pass_the_gate():
    lam, values = np.array([1.0, -1.0]), np.array([-3.0, -3.0])
    F = AugmentedLagrangian(lam, 2.0, 0.5, num_equalities=1)
    assert F.weights(values).tolist() == [0.0, -6.5]
    assert in_gate(np.array([-1.0, -1.0]), num_equalities=1).tolist() == [False, True]
    assert F.ascend(values, np.array([False, True])).tolist() == [0.0, -6.5]
    # f + lambda' h + (beta/2) h^2 for an equality, with lambda' = (1 - tau) lambda: 0 + 1.5 + 9
    only = AugmentedLagrangian(lam[1:], 2.0, 0.5, num_equalities=1).value(np.array(0.0), values[1:])
    assert float(only) == pytest.approx(-0.5 * -3.0 + 2.0 / 2 * 9.0)


def test_the_gate_is_open_above_zero_and_for_every_equality():
    """S_r = {i : q_i > 0}, eq. (defs), for arrays and for single numbers."""
    assert in_gate(np.array([1e-9, 0.0, -1e-9])).tolist() == [True, False, False]
    assert [in_gate(q) for q in (1e-9, 0.0, -1e-9)] == [True, False, False]
    assert in_gate(np.array([0.0, -1.0]), num_equalities=2).tolist() == [True, True]
    assert ascended(0.0, 1.0, 0.0, -1.0) == 0.0  # an inequality, unless it is said to be none
    assert ascended(0.0, 1.0, 0.0, -1.0, num_equalities=1) == -1.0
    assert [in_gate(q, num_equalities=1) for q in (0.0, -1.0)] == [True, True]


def test_the_residual_violation_is_where_the_dual_step_stands_still():
    F = AugmentedLagrangian(np.array([2.0, 0.5]), beta=4.0, tau=0.3)
    assert F.ascend(F.residual_violation()) == pytest.approx(F.multipliers)


def test_torch_and_jax_compute_the_same(library):
    lam, values = [[1.0, 0.0], [0.5, 2.0]], [[-0.5, 0.5], [1.0, -9.0]]
    expected = np.maximum(0.9 * np.array(lam) + 2 * np.array(values), 0)
    F, g = AugmentedLagrangian(library.array(lam), 2.0, 0.1), library.array(values)
    assert np.asarray(F.weights(g)) == pytest.approx(expected)
    assert np.asarray(F.ascend(g, F.gate(g))) == pytest.approx(expected)
    assert np.asarray(F.damped(g, 0.25)) == pytest.approx(0.75 * np.array(lam) + 0.25 * expected)
    assert np.asarray(F.complementarity(g)) == pytest.approx(np.maximum(values, -np.array(lam) / 2))
    assert np.asarray(in_gate(library.array([[-1.0, -1.0]]), 1)).tolist() == [[False, True]]


@given(multipliers, st.tuples(numbers, numbers).map(np.array), betas)
def test_complementarity_is_the_gradient_in_the_multipliers(lam, values, beta):
    assume(np.abs(lam + beta * values).min() > 1e-4)
    value = lambda y: float(AugmentedLagrangian(y, beta).value(np.array(0.0), values))  # noqa: E731
    ours = AugmentedLagrangian(lam, beta).complementarity(values)
    assert ours == pytest.approx(differences(value, lam), abs=1e-6)
    assert ours == pytest.approx(np.maximum(values, -lam / beta), abs=1e-12)


def test_beta_zero_is_the_plain_lagrangian():
    L = AugmentedLagrangian(np.array([2.0, 1.0]), 0, num_equalities=1)
    assert float(L.value(np.array(1.0), np.array([0.5, -3.0]))) == 1.0 + 1.0 - 3.0
    assert L.complementarity(np.array([-0.5, -3.0])).tolist() == [-0.5, -3.0]
    assert L.weights(np.array([-0.5, -3.0])).tolist() == [2.0, 1.0]


@given(st.floats(0, 2), st.floats(-2, 2), betas, taus, st.booleans(), st.booleans())
def test_one_constraint_as_numbers_is_the_array_of_one(lam, value, beta, tau, inside, equality):
    p = int(equality)
    number = AugmentedLagrangian(lam, beta, tau, p)
    array = AugmentedLagrangian(np.array([lam]), beta, tau, p)
    g = np.array([value])
    assert number.weights(value) == array.weights(g)[0]
    assert number.gate(value) == array.gate(g)[0]
    assert number.ascend(value, inside) == array.ascend(g, np.array([inside]))[0]
    assert number.damped(value, 0.3) == array.damped(g, 0.3)[0]
    assert number.complementarity(value) == array.complementarity(g)[0]
