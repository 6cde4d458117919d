"""`success` means solved, whatever f, g and x are measured in: cases in which it once did not."""

import math

import numpy as np
import pytest
from scipy.optimize import Bounds, NonlinearConstraint

from gdpa import (
    GDPA,
    REALS,
    Box,
    Constant,
    Evaluation,
    FiniteDifferenceWarning,
    KKTBelow,
    MaxSteps,
    Problem,
    certify,
    from_functions,
    method_names,
    minimize,
    problems,
    solve,
)


def assert_honest(result, solution, lengths=1.0):
    """Success only within one per cent of the solution, in each coordinate by its own length."""
    error = np.abs(result.x - solution) / (np.maximum(np.abs(solution), lengths))
    assert not result.success or error.max() <= 0.01, (result.x, solution)
    return result.success


def disc(s=(1.0, 1.0), f=1.0, g=1.0, rooted=False):
    """The projection of (2, 0) on the unit disc, with x in units of ``s``, f and g multiplied: the solution is (s, 0).

    ``rooted`` writes the constraint as |x|^2 - s^2 <= 0, in the units of x.
    """
    s = np.broadcast_to(np.asarray(s, dtype=float), 2)
    g = g * s[0] ** 2 if rooted else g

    def objective(x):
        return f * ((x[0] / s[0] - 2) ** 2 + (x[1] / s[1]) ** 2)

    def gradient(x):
        return f * 2 * np.array([x[0] / s[0] - 2, x[1] / s[1]]) / s

    def constraints(x):
        return g * np.array([(x / s) @ (x / s) - 1])

    def jacobian(x):
        return g * 2 * (x / s**2)[None]

    return from_functions(objective, constraints, gradient=gradient, jacobian=jacobian)


STARTS = [(0.5, 0.5), (0.0, 1.0), (-0.7, 0.2), (0.1, -0.1), (3.0, 2.0), (0.015, 1.0)]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("rooted", [False, True])
@pytest.mark.parametrize("s", [1e-9, 1e-5, 1e-3, 1e3, 1e5, 1e9])
def test_x_in_small_or_large_units(s, rooted, start):
    result = solve(disc(s, rooted=rooted), s * np.array(start))
    assert assert_honest(result, np.array([s, 0.0]), s), result.message


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("k", [1e-12, 1e-8, 1e-6, 1e-3, 1e3, 1e6, 1e8])
def test_g_multiplied(k, start):
    result = solve(disc(g=k), np.array(start))
    assert assert_honest(result, np.array([1.0, 0.0])), result.message


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("k", [1e-12, 1e-8, 1e-6, 1e6, 1e8])
def test_f_multiplied(k, start):
    result = solve(disc(f=k), np.array(start))
    assert assert_honest(result, np.array([1.0, 0.0])), result.message


@pytest.mark.parametrize("s", [1e-5, 1e5])
@pytest.mark.parametrize("k", [1e-8, 1e8])
def test_minimize_in_other_units(s, k):
    problem = disc(s, g=k)
    constraint = NonlinearConstraint(
        lambda x: problem.evaluate(x).constraints, -np.inf, 0.0, jac=lambda x: problem.evaluate(x).jacobian()
    )
    result = minimize(
        lambda x: float(problem.evaluate(x).objective),
        s * np.array([0.5, 0.5]),
        jac=lambda x: problem.evaluate(x).gradient(),
        constraints=constraint,
    )
    assert assert_honest(result, np.array([s, 0.0]), s), result.message


# HS95 and HS96 (Hock and Schittkowski, 1981): linear f, products of variables in g, six bounds. At the solution x6
# alone is positive and the first constraint alone is active: x6 = 4.97 / 1495.5.
LINEAR = np.array([4.3, 31.8, 63.3, 15.8, 68.5, 4.7])
UPPER = np.array([0.31, 0.046, 0.068, 0.042, 0.028, 0.0134])
A = np.array(
    [
        [17.1, 38.2, 204.2, 212.3, 623.4, 1495.5],
        [17.9, 36.8, 113.9, 169.7, 337.8, 1385.2],
        [0.0, -273.0, 0.0, -70.0, -819.0, 0.0],
        [159.9, -311.0, 0.0, 587.0, 391.0, 2198.0],
    ]
)
PRODUCTS = np.zeros((4, 6, 6))
for row, i, j, value in [
    (0, 0, 2, -169.0), (0, 2, 4, -3580.0), (0, 3, 4, -3810.0), (0, 3, 5, -18500.0), (0, 4, 5, -24300.0),
    (1, 0, 2, -139.0), (1, 3, 4, -2450.0), (1, 3, 5, -16600.0), (1, 4, 5, -17200.0),
    (2, 3, 4, 26000.0),
    (3, 0, 5, -14000.0),
]:  # fmt: skip
    PRODUCTS[row, i, j] = PRODUCTS[row, j, i] = value / 2
LEAST = {"HS95": [4.97, -1.88, -29.08, -78.02], "HS96": [4.97, -1.88, -69.08, -118.02]}


def with_products(name):
    least = np.array(LEAST[name])
    return from_functions(
        lambda x: LINEAR @ x,
        lambda x: least - A @ x - np.einsum("mij,i,j->m", PRODUCTS, x, x),
        gradient=lambda x: LINEAR,
        jacobian=lambda x: -A - 2 * PRODUCTS @ x,
        domain=Box(np.zeros(6), UPPER),
    )


@pytest.mark.parametrize("name", LEAST)
def test_the_solution_of_a_linear_objective_by_hand(name):
    solution = np.array([0, 0, 0, 0, 0, 4.97 / 1495.5])
    now = with_products(name).evaluate(solution)
    assert now.constraints[0] == pytest.approx(0.0, abs=1e-12)
    assert (now.constraints[1:] < 0).all()
    reduced = now.pullback(np.array([4.7 / 1495.5, 0, 0, 0]))
    assert (reduced[:5] > 0).all()
    assert reduced[5] == pytest.approx(0.0, abs=1e-12)
    assert certify(with_products(name), solution).holds(1e-9)
    assert float(now.objective) == pytest.approx(0.015619514, rel=1e-6)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-6, 1e-9])
@pytest.mark.parametrize("name", LEAST)
def test_a_small_solution_under_a_steep_objective(name, tolerance):
    result = solve(with_products(name), np.zeros(6), tolerance=tolerance)
    solution = np.array([0, 0, 0, 0, 0, 4.97 / 1495.5])
    assert assert_honest(result, solution, solution[5]), result.message
    assert result.objective == pytest.approx(0.015619514, rel=0.01)


# Derivatives that are not numbers


@pytest.mark.parametrize("cheap", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "method", [None, GDPA(alpha=Constant(0.1), beta=Constant(5.0), tau=0.01)], ids=["auto", "gdpa"]
)
def test_a_row_that_is_not_a_number_is_never_certified(bad, cheap, method):
    # A second constraint, far from active, whose slope is not a number within 0.1 of the solution (1, 0).
    inner = disc()

    def evaluate(x):
        now = inner.evaluate(x)
        row = np.array([bad, 0.0]) if np.abs(x - np.array([1.0, 0.0])).max() < 0.1 else np.zeros(2)

        def pullback(w, objective=1.0):
            return now.pullback(w[:1], objective) + w[1] * row

        J = np.vstack([now.jacobian(), row])
        return Evaluation(now.objective, np.append(now.constraints, -5.0), pullback, (lambda: J) if cheap else None)

    problem = Problem(evaluate)
    with np.errstate(invalid="ignore"):
        result = solve(problem, np.array([0.2, 0.3]), method, stop=[KKTBelow(1e-6), MaxSteps(500)])
        assert not result.success
        assert not certify(problem, np.array([1.0, 0.0])).holds(1e300)
        assert not certify(problem, np.array([1.0, 0.0]), np.array([1.0, 0.0])).holds(1e300)


# The start


@pytest.mark.parametrize("cut", [1, 5, 12])
def test_a_resumed_run_stops_where_the_straight_one_does(cut):
    own = problems.get("HS12")
    straight = solve(own.problem, own.x0)
    first = solve(own.problem, own.x0, stop=[KKTBelow(1e-6), MaxSteps(cut)])
    rest = solve(own.problem, run=first.run)
    assert straight.success
    assert (rest.success, rest.steps) == (straight.success, straight.steps)
    assert rest.x.tobytes() == straight.x.tobytes()


def test_a_long_run_resumed_early_has_the_same_success():
    own, method = problems.get("HS12"), GDPA(alpha=0.02, beta=0.05)
    for tolerance in (1e-1, 1e-2, 1e-3):
        straight = solve(own.problem, own.x0, method, stop=MaxSteps(900), tolerance=tolerance, record=0)
        first = solve(own.problem, own.x0, method, stop=MaxSteps(60), tolerance=tolerance, record=0)
        rest = solve(own.problem, run=first.run, stop=MaxSteps(900), tolerance=tolerance, record=0)
        assert rest.x_last.tobytes() == straight.x_last.tobytes()
        assert (rest.success, rest.status) == (straight.success, straight.status)
        assert rest.certificate.relative == straight.certificate.relative


@pytest.mark.parametrize("name", problems.names("solvable"))
def test_an_answer_has_the_certificate_of_its_point(name):
    own = problems.get(name)
    result = solve(own.problem, own.x0)
    assert assert_honest(result, own.solution), result.message
    again = certify(own.problem, result.x)
    assert again.relative == result.certificate.relative
    assert again.multipliers.tolist() == result.multipliers.tolist()
    assert certify(own.problem, own.solution).holds(1e-6)


@pytest.mark.parametrize("method", sorted({*method_names()} - {"proximal-admm"}))  # that one takes equalities alone
def test_every_method_returns_the_certificate_of_its_point(method):
    own = problems.get("HS22")
    result = solve(own.problem, own.x0, method, stop=MaxSteps(50))
    again = certify(own.problem, result.x)
    assert again.x.tolist() == result.x.tolist()
    assert again.relative == result.certificate.relative
    assert again.multipliers.tolist() == result.multipliers.tolist()


@pytest.mark.parametrize("name", problems.names("solvable"))
def test_a_warm_start_at_the_answer_is_over_at_once(name):
    own = problems.get(name)
    result = solve(own.problem, own.solution, multipliers0=own.multipliers)
    assert result.success
    assert result.steps == 0
    np.testing.assert_allclose(result.x, own.solution, atol=1e-7)


@pytest.mark.parametrize("name", problems.names("solvable"))
def test_a_start_at_the_answer_without_multipliers_stays_there(name):
    own = problems.get(name)
    result = solve(own.problem, own.solution)
    assert result.success
    np.testing.assert_allclose(result.x, own.solution, atol=1e-4)


@pytest.mark.parametrize(
    ("target", "g", "domain"),
    [
        ((1.0, 1.0), lambda x: x[:1] * 0 - 1e-3, REALS),  # far constraint, no force
        ((9.0, 1.0), lambda x: x[:1] - 1.0 - 1e-9, REALS),  # the constraint pushes
        ((9.0, 1.0), lambda x: 1e15 * (x[:1] - 1.0) - 1.0, REALS),  # it does; its value is rounding
        ((9.0, 1.0), lambda x: x[:1] * 0 - 1e-3, Box(0.0, 1.0)),  # the bound pushes
        ((9.0, 1.0), lambda x: x[:0], Box(0.0, 1.0)),
        ((1.0 + 1e-9, 1.0), lambda x: x[:0], REALS),
    ],
)
def test_a_start_at_the_answer_is_certified_by_two_evaluations(target, g, domain):
    aim, x0 = np.array(target), np.ones(2)
    slope = g(np.array([2.0, 1.0])) - g(x0)
    problem = from_functions(
        lambda x: (x - aim) @ (x - aim),
        g,
        gradient=lambda x: 2 * (x - aim),
        jacobian=lambda x: slope[:, None] * np.array([[1.0, 0.0]]),
        domain=domain,
    )
    result = solve(problem, x0)
    assert (result.success, result.steps, result.calls.forwards) == (True, 0, 2)
    elsewhere = solve(problem, 0.5 * x0, stop=MaxSteps(0))
    assert not elsewhere.success


# Noise


@pytest.mark.parametrize("start", [(0.5, 0.5), (-0.7, 0.2), (3.0, 2.0)])
def test_values_in_single_precision_differenced_in_double(start):
    # The differences are rounding alone: a gradient of 0 that certified every point.
    def objective(x):
        return float(np.float32((x[0] - 2) ** 2 + x[1] ** 2))

    def constraints(x):
        return np.array([np.float32(x @ x - 1)], dtype=float)

    with pytest.warns(FiniteDifferenceWarning):
        problem = from_functions(objective, constraints)
    assert_honest(solve(problem, np.array(start), tolerance=1e-3), np.array([1.0, 0.0]))
    assert_honest(solve(problem, np.array(start)), np.array([1.0, 0.0]))


def test_values_in_single_precision_differenced_by_minimize():
    def objective(x):
        return float(np.float32((x[0] - 2) ** 2 + x[1] ** 2))

    constraint = NonlinearConstraint(lambda x: float(np.float32(x @ x)), -np.inf, 1.0)  # type: ignore[return-value]
    for start in ([0.5, 0.5], [-0.7, 0.2], [3.0, 2.0]):
        assert_honest(minimize(objective, start, constraints=constraint), np.array([1.0, 0.0]))


# Mixed units


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("s", [(1e-3, 1e3), (1e3, 1e-3)], ids=["km and mm", "mm and km"])
def test_one_variable_in_kilometers_and_one_in_millimeters(s, start):
    s = np.array(s)
    result = solve(disc(s), s * np.array(start), stop=[KKTBelow(1e-6), MaxSteps(1000)])
    assert_honest(result, np.array([s[0], 0.0]), s)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("s", [(1e-3, 1e3), (1e3, 1e-3)], ids=["km and mm", "mm and km"])
def test_stated_lengths_solve_it(s, start):
    s = np.array(s)
    result = solve(disc(s), s * np.array(start), x_scale=s)
    assert assert_honest(result, np.array([s[0], 0.0]), s), result.message


def test_a_bound_in_other_units():
    # min (x - 2)^2 + y^2 in the box 0 <= x <= 1, x in units of 1e-3 and y in units of 1e3 (`MIXED` apart)
    s = np.array([1e-3, 1e3])
    result = minimize(
        lambda x: (x[0] / s[0] - 2) ** 2 + (x[1] / s[1]) ** 2,
        s * np.array([0.3, 0.4]),
        jac=lambda x: 2 * np.array([x[0] / s[0] - 2, x[1] / s[1]]) / s,
        bounds=Bounds([0.0, -np.inf], [s[0], np.inf]),
    )
    assert_honest(result, np.array([s[0], 0.0]), s)


# A steep constraint that is never active


@pytest.mark.parametrize("steep", [1e3, 1e6, 1e9])
@pytest.mark.parametrize("start", np.random.default_rng(0).uniform(-3.0, 3.0, size=8).round(6).tolist())
def test_a_steep_constraint_that_is_never_active(start, steep):
    problem = from_functions(
        lambda x: (x[0] - 1) ** 2,
        lambda x: np.sin(steep * x) - 2,
        gradient=lambda x: 2 * (x - 1),
        jacobian=lambda x: steep * np.cos(steep * x)[None],
    )
    assert_honest(solve(problem, np.array([start])), np.array([1.0]))


# The default tolerance


@pytest.mark.parametrize("name", problems.names("solvable"))
@pytest.mark.parametrize("tolerance", [None, 1e-9])
def test_the_objective_is_right_at_the_default_tolerance(name, tolerance):
    own = problems.get(name)
    result = solve(own.problem, own.x0, tolerance=tolerance)
    best = float(own.problem.evaluate(own.solution).objective)
    assert result.success
    assert result.objective == pytest.approx(best, rel=1e-4, abs=1e-4 * max(1.0, abs(best)))


def test_the_disc_at_large_is_the_disc_of_the_readme():
    result = solve(disc(), np.array([0.5, 0.5]))
    assert result.success
    np.testing.assert_allclose(result.x, [1.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(result.multipliers, [1.0], atol=1e-6)
