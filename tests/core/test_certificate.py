"""The measures and the certificate against hand arithmetic and recorded answers."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear, minimize

import gdpa.core.certificate
from gdpa import (
    GDPA,
    REALS,
    Ball,
    Box,
    Constant,
    Evaluation,
    KKTBelow,
    MaxSteps,
    NonNegative,
    Problem,
    Product,
    Residuals,
    Simplex,
    Status,
    certify,
    from_functions,
    problems,
    solve,
)
from gdpa.base.sets import Reals
from gdpa.core.certificate import (
    absolute_residuals,
    cannot_hold,
    gradient_map,
    gradient_mapping,
    relative_residuals,
    violation,
)
from gdpa.core.multipliers import fit
from gdpa.core.problem import row_by_row
from gdpa.core.units import ReferencePoint, Units, lengths_of, units_at
from gdpa.run.oracle import CountingOracle, Counts
from tests.libraries import to_numpy

NAN = float("nan")


def line(slope, offset=-1.0, domain=REALS):
    """``min slope * x`` with one constraint that never matters."""
    return from_functions(
        lambda x: slope * x[0],
        lambda x: np.array([offset]),
        gradient=lambda x: np.array([slope]),
        jacobian=lambda x: np.zeros((1, 1)),
        domain=domain,
    )


# Residuals


def test_absolute_residuals_are_the_printed_ones():
    x, gradient = np.array([0.0, 0.5]), np.array([3.0, -4.0])
    g, lam = np.array([0.3, 0.4, -2.0]), np.array([1.0, 2.0, 3.0])
    # stationarity |(3, -4)| = 5, feasibility |(0.3, 0.4)| = 0.5, slackness 0.3 + 0.8 + 6
    assert absolute_residuals(REALS, x, gradient, g, lam) == pytest.approx((5.0, 0.5, 7.1))
    # at x0 = 0 the bound takes the positive part of the gradient: -grad = (-3, 4) may not go below it
    assert absolute_residuals(NonNegative(), x, gradient, g, lam).stationarity == pytest.approx(4.0)
    # the last is an equality: violated by 2, and without slackness
    equality = absolute_residuals(REALS, x, gradient, g, lam, num_equalities=1)
    assert equality == pytest.approx((5.0, math.sqrt(0.25 + 4), 1.1))


def test_relative_residuals_are_in_the_units_of_the_problem():
    x, gradient = np.zeros(2), np.array([3e-3, -4e-3])
    g, lam = np.array([0.2, -0.1]), np.array([0.0, 3.0])
    units = Units(
        coordinates=np.array([1e3, 500.0]),
        violations=np.array([2.0, 5.0]),
        slacks=np.array([1.0, 4.0]),
        rounding=np.zeros(2),
        pushes=np.array([1.0, 0.01]),
    )
    # max(1000 * 3e-3, 500 * 4e-3), 2 * 0.2, and the larger of min(1 * 0.2, 1 * 0) and min(4 * 0.1, 0.01 * 3)
    assert relative_residuals(REALS, x, gradient, g, lam, units) == pytest.approx((3.0, 0.4, 0.03))
    # a multiplier that pushes hard: how near the constraint is decides
    assert relative_residuals(REALS, x, gradient, g, 1e9 * lam, units).slackness == pytest.approx(0.4)
    # the second one an equality: 5 * 0.1 is a violation, and no slackness
    equality = relative_residuals(REALS, x, gradient, g, 1e9 * lam, units, num_equalities=1)
    assert equality == pytest.approx((3.0, 0.5, 0.0))
    # at the bound 0 only the second component may be followed: -gradient = (-3e-3, 4e-3)
    assert relative_residuals(NonNegative(), x, gradient, g, lam, units).stationarity == pytest.approx(2.0)


def test_a_value_below_the_rounding_is_zero():
    one = np.ones(1)
    units = Units(one, 1e6 * one, 1e6 * one, 1e-9 * one, one)
    for value, expected in ((1e-9, 0.0), (-1e-9, 0.0), (2e-9, 2e-3)):
        below = relative_residuals(REALS, one, 0 * one, value * one, 5 * one, units)
        assert (below.feasibility, below.slackness) == (pytest.approx(max(expected, 0.0)), pytest.approx(expected))
        equality = relative_residuals(REALS, one, 0 * one, value * one, 5 * one, units, num_equalities=1)
        assert (equality.feasibility, equality.slackness) == (pytest.approx(expected), 0.0)


def test_without_constraints_only_stationarity_is_left(library):
    x = library.array([1.0, 2.0])
    empty = library.array([])
    units = Units(library.array([1.0, 3.0]), empty, empty, empty, empty)
    assert relative_residuals(REALS, x, x, empty, empty, units) == (6.0, 0.0, 0.0)
    assert absolute_residuals(REALS, x, x, empty, empty) == pytest.approx((math.sqrt(5), 0.0, 0.0))


def test_measures_of_a_batch_are_those_of_its_members(library, rng):
    x, gradient = rng.normal(size=(2, 3, 4))
    g, lam = rng.normal(size=(2, 3, 2))
    lam = np.abs(lam)
    w = rng.uniform(0.5, 3.0, size=(3, 4))
    c, a, r = rng.uniform(0.5, 3.0, size=(3, 3, 2))
    e = np.full((3, 2), 0.1)
    X, F, G, L = (library.array(a) for a in (x, gradient, g, lam))
    units = Units(*(library.array(part) for part in (w, c, a, e, r)))
    whole = relative_residuals(NonNegative(), X, F, G, L, units, num_equalities=1)
    absolute = absolute_residuals(NonNegative(), X, F, G, L, num_equalities=1)
    for i in range(3):
        member = (x[i], gradient[i], g[i], lam[i])
        one = relative_residuals(NonNegative(), *member, Units(w[i], c[i], a[i], e[i], r[i]), num_equalities=1)
        assert [float(r[i]) for r in whole] == pytest.approx(list(one))
        assert float(whole.worst[i]) == pytest.approx(one.worst)
        printed = absolute_residuals(NonNegative(), *member, num_equalities=1)
        assert [float(r[i]) for r in absolute] == pytest.approx(list(printed))


@pytest.mark.parametrize("bad", [(NAN, 0.0, 0.0), (0.0, NAN, 0.0), (0.0, 0.0, NAN)])
def test_the_worst_of_anything_with_nan_is_nan(bad, library):
    assert math.isnan(Residuals(*bad).worst)
    batch = Residuals(*(library.array([v, 1.0]) for v in bad)).worst
    assert np.isnan(to_numpy(batch)).tolist() == [True, False]


@pytest.mark.parametrize("infinite", [(math.inf, math.inf, 0.0), (math.inf, 0.0, math.inf), (0.0, math.inf, math.inf)])
def test_the_worst_of_what_is_infinite_is_infinite(infinite):
    assert Residuals(*infinite).worst == math.inf


def test_an_equality_must_be_declared():
    assert violation(np.array([2.0, -1.0])).tolist() == [2.0, 0.0]
    assert violation(np.array([-1.0, 2.0]), num_equalities=2).tolist() == [1.0, 2.0]


def test_a_gradient_of_a_thousandth_everywhere_is_not_solved_at_the_start():
    result = solve(line(1e-3), np.zeros(1), stop=(KKTBelow(1e-2), MaxSteps(20)), tolerance=1e-2)
    assert result.status is Status.MAX_STEPS
    assert not result.success
    assert result.certificate.relative.stationarity == pytest.approx(1.0)
    assert result.certificate.residuals.stationarity == pytest.approx(1e-3)  # the paper's absolute measure is fooled


def test_a_gradient_that_vanishes_at_the_solution_can_be_solved():
    bowl = from_functions(lambda x: x @ x / 2, lambda x: x - 9, gradient=lambda x: x, jacobian=lambda x: np.eye(2))
    result = solve(bowl, np.array([1.0, -2.0]), GDPA(alpha=Constant(0.5)))
    assert result.success
    assert result.status is Status.CONVERGED
    assert np.abs(result.x).max() < 1e-4


# The paper's gradient mapping, and Proposition 1


def test_the_gradient_map_is_zero_at_recorded_answers_and_by_hand_elsewhere():
    for name in problems.names("solvable"):
        own = problems.get(name)
        assert np.abs(gradient_map(own.problem, own.solution, own.multipliers, 0.1, 0.5)).max() < 1e-9
    # x = 1/2 in [0, 1], grad = 3, alpha = 1: P(1/2 - 3) = 0, so 1/2
    # lambda = 1, g = -1, beta = 4: [1 - 4]_+ = 0, so 1/4
    own = line(3.0, domain=Box(0.0, 1.0))
    assert gradient_map(own, np.array([0.5]), np.array([1.0]), 1.0, 4.0).tolist() == [0.5, 0.25]
    # alpha = beta = 1 by default: 1/2 as before, and lambda - [1 - 1]_+ = 1
    assert gradient_map(own, np.array([0.5]), np.array([1.0])).tolist() == [0.5, 1.0]
    assert gradient_mapping(Box(0.0, 1.0), np.array([0.5]), np.array([3.0])).tolist() == [0.5]
    # far from the bounds of X the mapping is the gradient, whatever alpha is
    assert gradient_mapping(Box(0.0, 1.0), np.array([0.5]), np.array([0.25]), 0.5).tolist() == [0.25]
    for steps in ({"alpha": 0.0}, {"beta": 0.0}, {"alpha": -1.0}, {"beta": -1.0}):
        with pytest.raises(ValueError, match="must be a positive finite number, got"):
            gradient_map(own, np.array([0.5]), np.array([1.0]), **steps)


def test_one_step_of_the_gradient_map_does_not_certify_near_the_boundary():
    # X = [0, 1], x = eps/2, grad L = 1: the mapping with alpha = 1 is eps/2 while N_X(x) = {0} and the distance is 1.
    own = line(1.0, domain=Box(0.0, 1.0))
    eps = 1e-5
    x = np.array([eps / 2])
    assert gradient_map(own, x, np.zeros(1))[0] == pytest.approx(eps / 2)
    exact = certify(own, x, snap=0.0)
    assert exact.residuals.stationarity == 1.0
    assert not exact.holds(1e-4)
    snapped = certify(own, x, snap=1e-4)
    assert snapped.x.tolist() == [0.0]
    assert snapped.residuals.stationarity == 0.0
    assert snapped.holds(1e-12)
    assert snapped.domain_multipliers.tolist() == [-1.0]  # a lower bound's multiplier is negative here
    assert exact.domain_multipliers.tolist() == [0.0]  # inside, the bound does not push
    assert not certify(own, x).holds(1e-4)  # by default only rounding is snapped away
    assert certify(own, np.array([1e-9])).x.tolist() == [0.0]


@pytest.mark.parametrize("batch", [False, True])
def test_a_point_the_boundary_does_not_suit_is_certified_where_it_is(batch):
    # min (x - a)^2 / 2 in X = [0, 1] under g = 1e6 (a - x) <= 0: at x = a all holds, at the boundary, a step of
    # a = 1e-8 away, g is violated by 0.01.
    a = 1e-8
    own = Problem(
        lambda x: Evaluation(
            ((x - a) ** 2 / 2).sum(-1), 1e6 * (a - x), lambda w, objective=1.0: objective * (x - a) - 1e6 * w
        ),
        domain=Box(0.0, 1.0),
    )
    x = np.array([[a], [0.5]]) if batch else np.array([a])
    certificate = certify(own, x)
    assert certificate.x.tolist() == x.tolist()
    first = np.ravel(certificate.relative.worst)[0]
    assert first == 0.0
    assert np.ravel(certify(own, 0 * x).relative.worst)[0] >= 0.01


# Certificates


@pytest.mark.parametrize("name", problems.names("solvable"))
def test_certify_finds_the_recorded_multipliers_from_the_point_alone(name):
    own = problems.get(name)
    certificate = certify(own.problem, own.solution)
    assert certificate.multipliers == pytest.approx(own.multipliers, abs=1e-9)
    assert certificate.holds(1e-9)
    assert certificate.objective == pytest.approx(float(own.problem.evaluate(own.solution).objective))


@pytest.mark.parametrize("name", problems.names("solvable"))
def test_certify_rejects_points_nearby_and_multipliers_do_not_help(name):
    own = problems.get(name)
    assert own.solution is not None
    moved = own.problem.domain.project(own.solution - np.linspace(0.02, 0.08, len(own.solution)))
    assert np.abs(moved - own.solution).max() > 5e-3  # not projected back on the solution
    assert not certify(own.problem, moved).holds(1e-4)
    assert not certify(own.problem, moved, own.multipliers).holds(1e-4)


def test_the_multipliers_of_the_set_come_with_the_certificate():
    corner = problems.get("box-corner")
    # -(grad f + J^T lambda) = (10/3, 0, -2): positive at the upper bound of x0, negative at the lower of x2
    assert certify(corner.problem, corner.solution).domain_multipliers == pytest.approx([10 / 3, 0, -2])
    ball = problems.get("ball-product")
    assert certify(ball.problem, ball.solution).domain_multipliers == pytest.approx([4, 3])
    portfolio = problems.get("portfolio")
    # nu on the support, nu - s off it: (1/2, 1/2, 1/2, 0)
    assert certify(portfolio.problem, portfolio.solution).domain_multipliers == pytest.approx([0.5] * 3 + [0], abs=1e-9)


def fitted_worst(domain, x, c, A, b):
    """The least ||w P_T(-c - A^T lambda)||^2 + sum (a_i g_i r_i lambda_i)^2 over lambda >= 0, by a general optimizer.

    The weights are documented in `gdpa.core.units.Units`, with one w for sets that are not a box; g is linear.
    """
    g = A @ x - b
    lengths = np.abs(x) if x.any() else np.ones_like(x)  # the length at x = 0 is 1
    borrowed = lengths <= 2.0**-26 * lengths.max()
    lengths[borrowed] = lengths.max()
    s = max(np.abs(c).max(), min(1.0, np.abs(c).max()))  # grad f = c everywhere
    S = np.abs(c * lengths)[~borrowed].max()
    w = np.maximum(1 / s, np.where(borrowed, np.minimum(lengths, S / np.abs(c)), lengths) / S)
    r = (w * np.abs(A)).max(axis=1)
    w = w if isinstance(domain, (Reals, Box)) else w.min()
    slack = r * g / np.minimum(np.abs(A) @ lengths, 1.0)

    def loss(lam):
        t = w * domain.tangent(x, -(c + A.T @ lam))
        return t @ t + (lam * slack) @ (lam * slack)

    runs = [
        minimize(loss, start, bounds=[(0, None)] * len(b), method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-10})
        for start in (np.zeros(len(b)), np.ones(len(b)))
    ]
    return min(run.fun for run in runs), loss


@pytest.mark.parametrize(
    "domain",
    [REALS, Box(0.0, 1.0), Ball(1.0), Simplex(), Product([(2, Box(0.0, 1.0)), (2, Simplex())])],
    ids=["reals", "box", "ball", "simplex", "product"],
)
@settings(max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_the_fit_is_the_least_squares_it_says(domain, seed):
    rng = np.random.default_rng(seed)
    x = domain.project(rng.normal(size=4).round(1))
    x = domain.snap(x, 1e-6)
    assume(x.any())  # 0 has the length of the nearest constraint
    c, A = rng.normal(size=4), rng.normal(size=(2, 4))
    b = A @ x + rng.choice([0.0, 0.1], size=2)
    own = from_functions(
        lambda x: c @ x, lambda x: A @ x - b, gradient=lambda x: c, jacobian=lambda x: A, domain=domain
    )
    least, loss = fitted_worst(domain, x, c, A, b)
    assert loss(certify(own, x).multipliers) <= least + 1e-6


@pytest.mark.parametrize(("m", "d", "p"), [(101, 5, 0), (400, 30, 0), (400, 30, 3), (250, 300, 2)])
def test_many_multipliers_fitted_on_a_working_set_are_those_of_the_whole(m, d, p):
    rng = np.random.default_rng(m + p)
    J, grad_f, g = rng.normal(size=(m, d)), 5 * rng.normal(size=d), -rng.exponential(size=m)
    g[m - p :] = 0.0
    found = fit(REALS, np.zeros(d), grad_f, J, g, p, Units(np.ones(d), np.ones(m), np.ones(m), np.zeros(m), np.ones(m)))
    slack = np.where(np.arange(m) < m - p, np.abs(g), 0.0)
    lower = np.where(np.arange(m) < m - p, 0.0, -np.inf)
    whole = np.vstack([J.T, np.diag(slack)])
    reference = lsq_linear(whole, np.concatenate([-grad_f, np.zeros(m)]), bounds=(lower, np.inf), method="bvls")
    np.testing.assert_allclose(found, reference.x, atol=1e-8 * (1 + np.abs(reference.x).max()))


def test_given_multipliers_do_not_change_the_verdict_of_a_point():
    own = problems.get("HS43")
    plain = certify(own.problem, own.solution)
    assert own.multipliers is not None
    for lam in (own.multipliers, own.multipliers + 5, -own.multipliers):
        assert repr(certify(own.problem, own.solution, lam)) == repr(plain)


@pytest.mark.parametrize("x", [np.array([0.9]), np.array([[0.9], [1.0]])])
def test_a_certificate_holds_to_its_own_residual(x):
    # min (x - 2)^2 / 2 subject to x <= 1
    own = Problem(
        lambda x: Evaluation(((x - 2) ** 2 / 2).sum(-1), x - 1, lambda w, objective=1.0: objective * (x - 2) + w)
    )
    certificate = certify(own, x)
    worst = float(np.max(certificate.relative.worst))
    assert worst > 0
    assert certificate.holds(worst)
    assert not certificate.holds(np.nextafter(worst, 0.0))


@pytest.mark.parametrize(("limit", "formed"), [(12, True), (11, False)])
def test_a_jacobian_is_formed_up_to_its_limit(monkeypatch, limit, formed):
    monkeypatch.setattr(gdpa.core.certificate, "JACOBIAN_LIMIT", limit)
    own = problems.get("HS43")  # 3 constraints of 4 variables
    assert own.multipliers is not None
    now = own.problem.evaluate(own.solution)
    certify(own.problem, own.solution, own.multipliers + 1, evaluation=now)
    assert now.knows_derivatives == formed


def test_a_jacobian_too_large_is_not_formed(monkeypatch):
    monkeypatch.setattr(gdpa.core.certificate, "JACOBIAN_LIMIT", 0)
    own = problems.get("HS43")
    assert own.multipliers is not None
    oracle = CountingOracle(own.problem)
    now = oracle.problem.evaluate(own.solution)
    certificate = certify(oracle.problem, own.solution, own.multipliers + 1, evaluation=now)
    assert certificate.multipliers == pytest.approx(own.multipliers + 1)
    assert not now.knows_derivatives
    # grad f, the given multipliers, and each of three rows alone for the units; a point nearby and its gradient
    assert oracle.method == Counts(forwards=2, backwards=6)


@pytest.mark.parametrize(("whole", "backwards"), [(False, 4), (True, 2)])
def test_a_certificate_costs_two_forwards_and_m_plus_two_backwards_or_three(whole, backwards):
    own = problems.get("HS43")
    oracle = CountingOracle(own.problem if whole else row_by_row(own.problem))
    certify(oracle.problem, own.solution)
    assert oracle.method == Counts(2, backwards + 1)  # a point nearby is evaluated with its gradient
    certify(oracle.problem, own.solution, own.multipliers)
    assert oracle.method == Counts(4, 2 * backwards + 2)


def test_a_certificate_that_reuses_an_evaluation_calls_the_point_nearby_alone():
    own = problems.get("HS43")
    assert own.multipliers is not None
    oracle = CountingOracle(own.problem)
    now = oracle.problem.evaluate(own.solution)
    first = certify(oracle.problem, own.solution, evaluation=now)
    assert oracle.method == Counts(2, 3)
    second = certify(oracle.problem, own.solution, evaluation=now)
    assert oracle.method == Counts(3, 4)
    assert first.relative == second.relative
    assert first.multipliers == pytest.approx(own.multipliers)


def test_an_evaluation_of_the_given_point_is_not_taken_for_the_point_on_the_boundary():
    # f = x in [0, 1] at x = 1e-9, certified at 0 by default
    own = CountingOracle(line(1.0, domain=Box(0.0, 1.0)))
    x = np.array([1e-9])
    certificate = certify(own.problem, x, evaluation=own.problem.evaluate(x))
    assert certificate.x.tolist() == [0.0]
    assert certificate.objective == 0.0
    assert own.method.forwards == 3  # at x, nearby and at 0


def test_a_problem_that_has_its_jacobian_is_asked_for_it():
    own = problems.get("HS43")
    asked = []

    def evaluate(x):
        now = row_by_row(own.problem).evaluate(x)

        def rows():
            asked.append(x)
            return now.jacobian()

        return Evaluation(*now, rows)  # type: ignore[call-arg]

    oracle = CountingOracle(Problem(evaluate))
    certificate = certify(oracle.problem, own.solution)
    assert certificate.multipliers == pytest.approx(own.multipliers)
    assert len(asked) == 1
    assert oracle.method.backwards == 3


def test_without_constraints_the_certificate_is_the_gradient():
    own = from_functions(lambda x: x @ x, gradient=lambda x: 2 * x)
    assert certify(own, np.zeros(2)).holds(1e-12)
    moved = certify(own, np.ones(2))
    assert moved.residuals == (pytest.approx(2 * math.sqrt(2)), 0.0, 0.0)
    assert moved.multipliers.shape == (0,)


def quadratic(stack, x):
    a, b = x[..., 0], x[..., 1]
    return (a - 2) ** 2 + (b - 1) ** 2, stack([a + b - 2, a**2 - b])


def quadratic_gradient(x):
    return 2 * (x - np.array([2.0, 1.0], dtype=x.dtype))


def quadratic_jacobian(x):
    one = np.ones_like(x[..., 0])
    return np.stack([np.stack([one, one], -1), np.stack([2 * x[..., 0], -one], -1)], -2)


def test_a_batch_is_certified_member_by_member(library):
    own = library.problem(quadratic, quadratic_gradient, quadratic_jacobian)  # HS22, three points at once
    points = [[1.0, 1.0], [0.5, 0.5], [0.0, 2.0]]
    whole = certify(own, library.array(points), library.array([[0.1, 0.1]] * 3))
    assert not whole.holds(1e-4)
    assert to_numpy(whole.multipliers)[0] == pytest.approx([2 / 3, 2 / 3])
    for i, point in enumerate(points):
        one = certify(own, library.array(point), library.array([0.1, 0.1]))
        assert one.holds(1e-8) == (i == 0)
        assert to_numpy(whole.multipliers)[i] == pytest.approx(to_numpy(one.multipliers), abs=1e-12)
        assert [float(r[i]) for r in whole.relative] == pytest.approx(list(one.relative), abs=1e-12)
        assert [float(r[i]) for r in whole.residuals] == pytest.approx(list(one.residuals), abs=1e-12)
    assert "stationarity" in str(whole)


def test_single_precision_certifies_to_single_precision(library):
    own = library.problem(quadratic, quadratic_gradient, quadratic_jacobian)
    certificate = certify(own, library.array([1.0, 1.0], "float32"))
    assert certificate.multipliers.dtype == library.array(0.0, "float32").dtype
    assert certificate.holds(1e-5)


@pytest.mark.parametrize("where", ["objective", "constraints", "gradient", "jacobian"])
@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
@pytest.mark.parametrize("cheap", [False, True])
def test_what_is_not_finite_never_holds(where, bad, cheap):
    def evaluate(x):
        f, g = np.array(0.0), np.array([-1.0, -1.0])
        gradient, J = np.zeros(2), np.zeros((2, 2))
        if where == "objective":
            f = np.array(bad)
        elif where == "constraints":
            g[1] = bad
        elif where == "gradient":
            gradient[1] = bad
        else:
            J[1, 0] = bad  # of a constraint that is far from active: its multiplier is 0
        return Evaluation(f, g, lambda w, objective=1.0: objective * gradient + w @ J, (lambda: J) if cheap else None)

    for multipliers in (None, np.zeros(2), np.array([NAN, 0.0])):
        with np.errstate(invalid="ignore"):
            assert not certify(Problem(evaluate), np.zeros(2), multipliers).holds(1e300)


def test_multipliers_that_are_nan_are_not_asked_for():
    fine = Problem(lambda x: Evaluation(np.array(0.0), np.array([-1.0]), lambda w, objective=1.0: np.zeros(2)))
    assert certify(fine, np.zeros(2)).holds(1e-12)
    assert certify(fine, np.zeros(2), np.array([NAN])).holds(1e-12)


DOMAINS = [REALS, Box(-1.0, 1.0), Ball(1.0), Simplex(), Product([(2, Box(0.0, 1.0)), (2, Simplex())])]


def linear(c, A, g, x, domain=REALS):
    """``min c'x`` under ``A (x - x0) + g <= 0``."""
    values = from_functions(
        lambda y: c @ y, lambda y: A @ (y - x) + g, gradient=lambda y: c, jacobian=lambda y: A, domain=domain
    )
    return values, values.evaluate(x)


@pytest.mark.parametrize("domain", DOMAINS, ids=["reals", "box", "ball", "simplex", "product"])
@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), bound=st.sampled_from([1e-5, 1e-3, 1e-2]), m=st.integers(0, 3))
def test_residuals_that_cannot_hold_hold_with_no_multipliers_in_no_units(domain, seed, bound, m):
    rng = np.random.default_rng(seed)
    x = domain.project(rng.normal(size=4) * 10.0 ** rng.integers(-3, 3))
    c, A = rng.normal(size=4) * 10.0 ** rng.integers(-3, 3), rng.normal(size=(m, 4)) * 10.0 ** rng.integers(-6, 6)
    g = -rng.uniform(size=m) * 10.0 ** rng.integers(-6, 2)
    problem, now = linear(c, A, g, x, domain)
    if not cannot_hold(problem, x, now, bound):
        return
    for size in (1e-9, 1.0, 1e9):
        reference = ReferencePoint(x + rng.normal(size=4), size * rng.normal(size=4), size * rng.normal(size=m))
        units = units_at(lengths_of(None, x, now), reference, x, now)
        best = fit(domain, x, c, A, g, 0, units) if m else np.zeros(0)
        for scale in (0.0, 0.5, 1.0, 2.0, 1 / bound):
            lam = scale * (best if scale == 2.0 else rng.uniform(size=m) * bound / units.pushes)
            worst = relative_residuals(domain, x, c + A.T @ lam, g, lam, units).worst
            assert worst > bound
        assert relative_residuals(domain, x, c + A.T @ best, g, best, units).worst > bound


def test_residuals_may_hold_where_a_constraint_is_near_or_no_force_is_left():
    x, A, bound = np.array([1.0, 2.0]), np.array([[1.0, 1.0]]), 1e-5

    def certain(c, g, A=A, domain=REALS):
        problem, now = linear(np.array(c), A, np.array(g), x, domain)
        return cannot_hold(problem, x, now, bound)

    assert certain([1.0, 0.0], [-1.0])
    assert certain([-1e9, 0.0], [-2e-5])
    assert not certain([1.0, 0.0], [-0.9e-5])  # the constraint may push
    assert not certain([1.0, 0.0], [-1.0], 1e16 * A)  # its value is rounding
    assert not certain([1e-5, 0.0], [-1.0])
    assert not certain([-1.0, 0.0], [-1.0], domain=Box(0.0, np.array([1.0, 3.0])))  # the bound holds x
    assert not certain([NAN, 0.0], [-1.0])
    assert not certain([1.0, 0.0], [NAN])
    assert not certain([1.0, 0.0], [-1.0], NAN * A)


def test_a_certificate_reads_as_one_line():
    text = str(certify(problems.get("HS12").problem, np.array([2.0, 3.0])))
    assert text.startswith("stationarity ")
    assert "\n" not in text
