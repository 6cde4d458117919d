"""The units of a problem by hand arithmetic, and what does not change if f, g and x are measured in others."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gdpa import REALS, Ball, Box, Evaluation, NonNegative, Problem, certify, from_functions, problems, solve
from gdpa.base.arrays import LONG_ROW
from gdpa.core.certificate import certificate_at, relative_residuals
from gdpa.core.units import (
    MIXED,
    MIXED_ROUNDINGS,
    NEARBY,
    ROUNDINGS,
    ReferencePoint,
    asymmetric_direction,
    lengths_of,
    nearby,
    reference_at,
    roundings,
    units_at,
)
from tests.libraries import to_numpy

EPS = 2.0**-52

# Lengths


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([1.0, -2.0], [1.0, 2.0]),
        ([0.0, 7.0], [7.0, 7.0]),  # a coordinate that is 0 has the largest length
        ([1e-8, 7.0], [7.0, 7.0]),  # as has one that is below sqrt(eps) of the largest ...
        ([2e-7, 7.0], [2e-7, 7.0]),  # ... and none that is above
        ([0.0, 0.0], [1.0, 1.0]),  # nothing is known
        ([1e-10, 0.0], [1.0, 1.0]),  # nor if no coordinate is above ZERO
        ([1e-9, 0.0], [1e-9, 1e-9]),
        ([[0.0, 3.0], [0.0, 0.0]], [[3.0, 3.0], [1.0, 1.0]]),  # each member of a batch
    ],
)
def test_the_length_of_a_coordinate_is_its_size(library, x, expected):
    assert to_numpy(lengths_of(None, library.array(x))).tolist() == expected


@pytest.mark.parametrize(("x_scale", "expected"), [(3.0, [3.0, 3.0]), ([1e-3, 50.0], [1e-3, 50.0])])
def test_stated_lengths_are_taken(library, x_scale, expected):
    assert to_numpy(lengths_of(np.asarray(x_scale), library.array([7.0, 0.0]))) == pytest.approx(expected)


# Units at a point


def units_from(library, x0, there, x, now, values=(9.0, 9.0, 9.0), whole=True):
    """The units at x with a reference point at x0 where grad f is ``there`` and g is ``values``."""
    x0, there, x, values = (library.array(np.asarray(a, dtype=float)) for a in (x0, there, x, values))
    return units_at(lengths_of(None, x), ReferencePoint(x0, there, values), x, now, whole=whole)


def flat(library, gradient, rows, values=None):
    """The oracle call at a point where grad f and J are these."""
    c, J = library.array(gradient), library.array(rows)
    g = library.array(np.zeros(len(rows)) if values is None else values)
    return Evaluation(library.array(0.0), g, lambda w, objective=1.0: objective * c + w @ J)


X0, X = [1.0, 0.0], [1.0, -2.0]  # the lengths are (1, 2)
ROWS = [[0.1, 0.05], [3.0, -1.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("there", "here", "coordinates"),
    [
        # s = max(4, min(1, 8)) = 4, S = max(max(4 * 1, 0.5 * 2), min(2, max(3 * 1, 8 * 2))) = 4: max(1/4, (1, 2) / 4)
        ([3.0, 8.0], [4.0, 0.5], [0.25, 0.5]),
        # s = max(0.5, min(1, 8)) = 1, S = max(0.5, min(2, 16)) = 2: max(1, (1, 2) / 2)
        ([3.0, 8.0], [0.5, 0.0], [1.0, 1.0]),
        # s = S = 0.001, for 0.001 * 1 is less than the cap of 2: max(1000, (1, 2) / 0.001)
        ([1e-3, 0.0], [0.0, 0.0], [1e3, 2e3]),
        # no gradient is known anywhere: s = 1, S = L = 2
        ([0.0, 0.0], [0.0, 0.0], [1.0, 1.0]),
    ],
)
def test_the_weights_of_the_coordinates_by_hand(library, there, here, coordinates):
    units = units_from(library, X0, there, X, flat(library, here, ROWS))
    assert to_numpy(units.coordinates) == pytest.approx(coordinates, rel=1e-15)


@pytest.mark.parametrize("whole", [True, False])
def test_the_units_of_the_constraints_by_hand(library, whole):
    units = units_from(library, X0, [3.0, 8.0], X, flat(library, [4.0, 0.5], ROWS), values=[9.0, 9.0, 9.0], whole=whole)
    # n = (0.1 + 0.05 * 2, 3 + 1 * 2, 0) = (0.2, 5, 0)
    assert to_numpy(units.violations) == pytest.approx([5.0, 1.0, 1.0])
    assert to_numpy(units.slacks) == pytest.approx([5.0, 1.0, 1.0])  # g follows its slopes
    assert to_numpy(units.rounding) == pytest.approx([ROUNDINGS * EPS * 0.2, ROUNDINGS * EPS * 5, 0.0])
    # with w = (0.25, 0.5): max(0.025, 0.025), max(0.75, 0.5), 0
    assert to_numpy(units.pushes) == pytest.approx([0.025, 0.75, 0.0])


@pytest.mark.parametrize("whole", [True, False])
def test_the_units_of_long_rows_are_those_of_extended_precision(library, whole, rng):
    d, m = LONG_ROW + 100, 3
    x, there, gradient = (rng.normal(size=d) for _ in range(3))
    J = rng.normal(size=(m, d)) * np.array([1e-6, 1.0, 1e3])[:, None]
    x[5] = 1e-12  # a coordinate at zero borrows the largest length
    units = units_from(library, there, gradient, x, flat(library, gradient, J), values=[1e-3] * m, whole=whole)
    sizes, slopes = abs(x), abs(J).astype(np.longdouble)
    lengths = np.where(sizes > EPS**0.5 * sizes.max(), sizes, sizes.max())
    n = slopes @ lengths
    rounding = ROUNDINGS * EPS * (slopes @ np.maximum(sizes, EPS**0.5 * sizes.max()))
    np.testing.assert_allclose(to_numpy(units.violations), 1 / np.minimum(n, 1.0).astype(float), rtol=1e-12)
    np.testing.assert_allclose(to_numpy(units.rounding), rounding.astype(float), rtol=1e-12)
    pushes = (slopes * to_numpy(units.coordinates)).max(axis=1)
    np.testing.assert_allclose(to_numpy(units.pushes), pushes.astype(float), rtol=1e-12)


@pytest.mark.parametrize(
    ("values", "slacks"),
    [
        # n = (0.2, 5, 0), and J (x' - x) = (0.1, -2, 0) by first order
        ([0.1, -2.0, 9.0], [5.0, 1.0, 1.0]),  # g is linear: 1 / min(n, 1)
        ([0.05, -0.1, 9.0], [10.0, 4.0, 1.0]),  # a half and a twentieth of the first-order change
        ([7.0, 70.0, 9.0], [5.0, 1.0, 1.0]),  # more than the first-order change
    ],
)
def test_a_slack_is_measured_by_the_slope_as_far_as_g_follows_it(library, values, slacks):
    units = units_from(library, X0, [3.0, 8.0], X, flat(library, [4.0, 0.5], ROWS), values=values)
    assert to_numpy(units.slacks) == pytest.approx(slacks)
    assert to_numpy(units.violations) == pytest.approx([5.0, 1.0, 1.0])


@pytest.mark.parametrize(("dtype", "eps"), [("float64", EPS), ("float32", 2.0**-23)])
def test_a_long_coordinate_is_weighed_up_to_a_bound(library, dtype, eps):
    # grad f = (1, 0) and lengths (1, 1000) give s = S = 1: the second coordinate is weighed by its length ...
    x = library.array([1.0, 1e3], dtype)
    rows = Evaluation(
        library.array(0.0, dtype), library.array([], dtype), lambda w, objective=1.0: library.array([1.0, 0.0], dtype)
    )
    bound = min(MIXED, MIXED_ROUNDINGS / eps)
    units = units_at(lengths_of(None, x), ReferencePoint(0 * x, 0 * x, rows.constraints), x, rows)
    assert to_numpy(units.coordinates) == pytest.approx([1.0, min(1e3, bound)], rel=1e-6)
    # ... and by no more than the bound
    x = library.array([1.0, 1e3 * bound], dtype)
    lengths = lengths_of(np.array([1.0, 1e3 * bound]), x)
    units = units_at(lengths, ReferencePoint(0 * x, 0 * x, rows.constraints), x, rows)
    assert to_numpy(units.coordinates) == pytest.approx([1.0, bound], rel=1e-6)


def test_a_coordinate_at_zero_does_not_hide_the_others(library):
    # Lengths (50, 50, 2): the first is borrowed. Of |grad f| L = (5000, 5, 4) only 5 and 4 are changes of f by the size
    # of a coordinate, so S = 5, and the first coordinate reaches 5 / 100.
    x = library.array([0.0, -50.0, 2.0])
    now = Evaluation(library.array(0.0), library.array([]), lambda w, objective=1.0: library.array([100.0, 0.1, 2.0]))
    units = units_at(lengths_of(None, x), ReferencePoint(x, 0 * x, now.constraints), x, now)
    assert to_numpy(units.coordinates) == pytest.approx([0.01, 10.0, 0.4])
    # Without a share of the others all lengths count: S = 5000.
    alone = Evaluation(library.array(0.0), library.array([]), lambda w, objective=1.0: library.array([100.0, 0.0, 0.0]))
    units = units_at(lengths_of(None, x), ReferencePoint(x, 0 * x, now.constraints), x, alone)
    assert to_numpy(units.coordinates) == pytest.approx([0.01, 0.01, 0.01])


def test_hs32_in_mixed_units_is_not_certified_away_from_its_solution():
    # x = (0.1, 0, 0.9) is feasible with f = 1.04; the solution is (0, 0, 1) with f = 1.
    c = np.array([577.0, 1.34e-3, 1.36e-2])
    a, d = np.array([1.0, 3.0, 1.0]), np.array([1.0, -1.0, 0.0])  # f = (a'x)^2 + 4 (d'x)^2
    problem = from_functions(
        lambda y: (a @ (y / c)) ** 2 + 4 * (d @ (y / c)) ** 2,
        lambda y: [(y[0] / c[0]) ** 3 - 6 * y[1] / c[1] - 4 * y[2] / c[2] + 3, (y / c).sum() - 1],
        gradient=lambda y: (2 * (a @ (y / c)) * a + 8 * (d @ (y / c)) * d) / c,
        jacobian=lambda y: np.array([[3 * (y[0] / c[0]) ** 2, -6.0, -4.0], [1.0, 1.0, 1.0]]) / c,
        domain=Box(np.zeros(3), np.full(3, np.inf)),
        num_equalities=1,
    )
    assert certify(problem, c * np.array([0.0, 0.0, 1.0])).holds(1e-5)
    assert not certify(problem, c * np.array([0.1, 0.0, 0.9])).holds(1e-2)


def test_the_rounding_is_that_of_the_precision(library):
    x = library.array([2.0], "float32")
    now = Evaluation(
        library.array(0.0, "float32"), library.array([1.0], "float32"), lambda w, objective=1.0: objective + 3 * w
    )
    units = units_at(lengths_of(None, x), ReferencePoint(x, x, now.constraints), x, now)
    assert float(units.rounding[0]) == pytest.approx(ROUNDINGS * 2.0**-23 * 6)
    assert to_numpy(roundings(x, now)).tolist() == to_numpy(units.rounding).tolist()
    assert {u.dtype for u in units} == {x.dtype}


def test_a_small_coordinate_has_small_roundings(library):
    # x_1 x_2 - 2 at (1e6, 2e-6): the terms are 2 and 1e6 sqrt(eps) 1e6, not 1e6 1e6
    now = flat(library, [0.0, 0.0], [[2e-6, 1e6]])
    units = units_from(library, [1e6, 0.0], [0.0, 0.0], [1e6, 2e-6], now, values=[0.0])
    assert to_numpy(units.rounding) == pytest.approx([ROUNDINGS * EPS * (2 + 1e12 * EPS**0.5)])


def test_without_constraints_there_are_units_of_the_coordinates_alone(library):
    now = Evaluation(library.array(0.0), library.array([]), lambda w, objective=1.0: library.array([4.0, 0.5]))
    units = units_from(library, X0, [3.0, 8.0], X, now, values=[])
    assert to_numpy(units.coordinates).tolist() == [0.25, 0.5]
    assert [tuple(u.shape) for u in units[1:]] == [(0,)] * 4


def test_the_units_of_a_batch_are_those_of_its_members(library, rng):
    x, x0, c0, c = rng.normal(size=(4, 3, 2))
    J, g0 = rng.normal(size=(3, 4, 2)), 3 * rng.normal(size=(3, 4))
    weights = library.array(J)

    def pullback(w, objective=1.0):
        return objective * library.array(c) + (w[..., None] * weights).sum(-2)

    now = Evaluation(library.array(np.zeros(3)), library.array(np.zeros((3, 4))), pullback)
    for whole in (True, False):
        units = units_from(library, x0, c0, x, now, values=g0, whole=whole)
        for i in range(3):
            one = units_from(library, x0[i], c0[i], x[i], flat(library, c[i], J[i]), values=g0[i])
            for member, alone in zip(units, one, strict=True):
                assert to_numpy(member)[i] == pytest.approx(to_numpy(alone), rel=1e-14)


# Reference points


def test_a_reference_point_records_the_point_the_values_and_the_gradient(library):
    x = library.array(X0)
    found = reference_at(flat(library, [4.0, 0.5], ROWS, [1.0, 2.0, 3.0]), x)
    assert found.x is x
    assert to_numpy(found.constraints).tolist() == [1.0, 2.0, 3.0]
    assert to_numpy(found.gradient).tolist() == [4.0, 0.5]


def reference_near(problem, x):
    now = problem.evaluate(x)
    return nearby(problem, x, now, lengths_of(problem.x_scale, x, now))


@pytest.mark.parametrize("domain", [REALS, NonNegative(), Box([0.0, -3.0], [1.0, 5.0]), Ball(3.0)])
def test_the_reference_point_of_a_certificate_is_nearby_in_the_set(domain):
    problem = Problem(lambda x: Evaluation(x @ x, x, lambda w, objective=1.0: 2 * objective * x + w), domain=domain)
    x = domain.project(np.array([0.5, -2.0]))
    found = reference_near(problem, x)
    assert np.abs(domain.project(found.x) - found.x).max() <= 1e-15
    lengths = np.where(x != 0, np.abs(x), np.abs(x).max())
    assert (np.abs(found.x - x) <= NEARBY * lengths * (1 + 1e-12)).all()
    assert (found.x != x).any()
    assert found.gradient.tolist() == (2 * found.x).tolist()


def test_the_reference_point_is_nearer_if_the_gradient_is_not_finite_there():
    # sqrt(x - 0.999) has no derivative below 0.999; sin(1) > 0 goes up, so the first coordinate is mirrored.
    def evaluate(x):
        slope = 0.5 / np.sqrt(1.001 - x) if x[0] < 1.001 else np.array([np.nan])
        return Evaluation(x[0], x, lambda w, objective=1.0: objective * slope + w)

    found = reference_near(Problem(evaluate), np.array([1.0]))
    # a tenth and a hundredth are too far, a thousandth of sin(1) is not
    assert found.x == pytest.approx([1 + 1e-3 * math.sin(1)])
    assert np.isfinite(found.gradient).all()


def test_without_a_finite_gradient_nearby_the_reference_point_is_x_itself_without_slope():
    nowhere = Problem(lambda x: Evaluation(x[0], x, lambda w, objective=1.0: x * np.nan))
    found = reference_near(nowhere, np.ones(1))
    assert (found.x.tolist(), found.gradient.tolist(), found.constraints.tolist()) == ([1.0], [0.0], [1.0])


def test_the_direction_without_symmetry_is_the_sines_of_squares(library):
    found = asymmetric_direction(library.array([0.0, 0.0, 0.0]))
    assert to_numpy(found) == pytest.approx([math.sin(1), math.sin(4), math.sin(9)])


# What other units leave as it is. Powers of two are exact, so only the caps at 1 and the fit can tell the difference.


def measured(problem, f=1.0, g=1.0, x=1.0):
    """The problem with f multiplied by ``f``, g by ``g`` (each) and x by ``x`` (each)."""

    def evaluate(z):
        now = problem.evaluate(z / x)

        def pullback(w, objective=1.0):
            return now.pullback(g * w, f * objective) / x

        return Evaluation(f * now.objective, g * now.constraints, pullback)

    domain = problem.domain
    if isinstance(domain, Box):
        domain = Box(domain.lower * x, domain.upper * x)
    return replace(problem, evaluate=evaluate, domain=domain)


def quadratic(seed, domain=REALS, m=3, d=4, far=1.0):
    """A problem with a KKT point: x*, its multipliers, and gradients of at most 2^-10 at points of size 1 nearby.

    f = c'(x - x*) + |x - x*|^2_D / 2 and g_i = r_i'(x - x*) + q_i |x - x*|^2 - s_i with c = -R'lambda (and the bound's
    multiplier), s_i lambda_i = 0.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=d)
    R, D, q = rng.normal(size=(m, d)), rng.uniform(0.1, 1.0, size=d), rng.uniform(0.0, 1.0, size=m)
    active = rng.random(m) < 0.6
    multipliers = np.where(active, rng.uniform(0.1, 2.0, size=m), 0.0)
    slack = np.where(active, 0.0, far)
    c = -R.T @ multipliers
    if isinstance(domain, Box):
        x[0] = 0.25
        c[0] += 1.0  # at the lower bound of 0.25 f may grow inwards
        domain = Box(np.r_[0.25, np.full(d - 1, -np.inf)], np.full(d, np.inf))
    small = 2.0**-14

    def evaluate(y):
        z = y - x
        J = R + 2 * q[:, None] * z

        def pullback(w, objective=1.0):
            return small * (objective * (c + D * z) + w @ J)

        return Evaluation(small * (c @ z + D @ z**2 / 2), small * (R @ z + q * (z @ z) - slack), pullback)

    return Problem(evaluate, domain=domain), x, multipliers


DOMAINS = pytest.mark.parametrize("domain", [REALS, Box(0.0, 1.0)], ids=["reals", "box"])
SEEDS = st.integers(0, 10_000)
POWERS = st.integers(-30, 8)


def compare(one, other, rel=1e-6):
    """The residuals of two certificates are the same, up to what the fit leaves."""
    for mine, theirs in zip(one.relative, other.relative, strict=True):
        assert mine == pytest.approx(theirs, rel=rel, abs=1e-10)


@DOMAINS
@given(seed=SEEDS, f=POWERS, shift=st.sampled_from([0.0, 1e-7, 1e-3, 0.3]))
def test_the_unit_of_f_changes_no_relative_residual(domain, seed, f, shift):
    problem, solution, _ = quadratic(seed, domain)
    x = problem.domain.project(solution + shift)
    one, other = certify(problem, x), certify(measured(problem, f=2.0**f), x)
    compare(one, other)
    assert other.multipliers == pytest.approx(2.0**f * one.multipliers, rel=1e-6, abs=1e-9 * 2.0**f)
    assert one.holds(1e-6) == other.holds(1e-6)
    assert one.holds(1e-6) or shift > 0


@DOMAINS
@given(seed=SEEDS, powers=st.lists(POWERS, min_size=3, max_size=3), shift=st.sampled_from([0.0, 1e-7, 1e-3, 0.3]))
def test_the_units_of_g_change_no_relative_residual(domain, seed, powers, shift):
    problem, solution, _ = quadratic(seed, domain)
    x, g = problem.domain.project(solution + shift), 2.0 ** np.array(powers)
    one, other = certify(problem, x), certify(measured(problem, g=g), x)
    compare(one, other)
    assert g * other.multipliers == pytest.approx(one.multipliers, rel=1e-6, abs=1e-9)
    assert one.holds(1e-6) == other.holds(1e-6)


@DOMAINS
@given(seed=SEEDS, unit=st.integers(-8, 30), shift=st.sampled_from([0.0, 1e-7, 1e-3, 0.3]))
def test_the_unit_of_x_changes_no_relative_residual(domain, seed, unit, shift):
    problem, solution, _ = quadratic(seed, domain)
    x, c = problem.domain.project(solution + shift), 2.0**unit
    one, other = certify(problem, x, snap=0.0), certify(measured(problem, x=c), c * x, snap=0.0)
    compare(one, other)
    assert other.x.tolist() == (c * one.x).tolist()
    assert one.holds(1e-6) == other.holds(1e-6)


@given(seed=SEEDS, units=st.lists(st.integers(-4, 4), min_size=4, max_size=4), shift=st.sampled_from([1e-7, 0.3]))
def test_the_unit_of_a_single_coordinate_leaves_the_stationarity_in_lengths_and_the_units_of_g(seed, units, shift):
    # w_j = max(1 / s, L_j / S): the second form does not know the units of single coordinates, and both are asked for
    # (unless the lengths differ by so much that the bound on the second cuts in).
    problem, solution, _ = quadratic(seed)
    x, c = solution + shift, 2.0 ** np.array(units)
    other = measured(problem, x=c)
    here, there = reference_near(problem, x), reference_near(other, c * x)
    lengths, longer = lengths_of(None, x), lengths_of(None, c * x)
    assert longer.tolist() == (c * lengths).tolist()
    changes = longer * other.evaluate(c * x).gradient()
    assert changes.tolist() == (lengths * problem.evaluate(x).gradient()).tolist()
    one = units_at(lengths, here, x, problem.evaluate(x))
    two = units_at(longer, there, c * x, other.evaluate(c * x))
    assert two.violations.tolist() == one.violations.tolist()
    assert two.slacks.tolist() == one.slacks.tolist()
    assert two.rounding.tolist() == one.rounding.tolist()
    largest = max(np.abs(changes).max(), np.abs(longer * there.gradient).max())
    assert (two.coordinates * largest >= longer * (1 - 1e-12)).all()


@given(seed=SEEDS, power=st.integers(-30, 30), shift=st.floats(1e-6, 1.0))
def test_a_violation_is_never_judged_more_loosely_than_by_its_absolute_value(seed, power, shift):
    problem, solution, _ = quadratic(seed)
    own = measured(problem, g=2.0**power)
    certificate = certify(own, solution + shift)
    violated = np.maximum(certificate.constraints, 0.0)
    violated[violated <= certificate.units.rounding] = 0.0
    assert certificate.relative.feasibility >= violated.max() * (1 - 1e-12)
    sizes = np.abs(own.evaluate(certificate.x).jacobian()) @ certificate.lengths
    if (sizes >= 1).all():  # and it is the absolute value if x changes g by 1 or more
        assert certificate.relative.feasibility == violated.max()


@given(seed=SEEDS, power=st.integers(14, 40))
def test_a_wild_reference_point_does_not_loosen_the_test(seed, power):
    # Whatever the gradient is there, it counts as at most 1.
    problem, solution, _ = quadratic(seed)
    x = solution + 1e-3
    now = problem.evaluate(x)
    assume(np.abs(now.gradient()).max() < 1)
    sticks = (ReferencePoint(x, size * np.ones(4), now.constraints) for size in (1.0, 2.0**power))
    calm, wild = (certificate_at(problem, x, stick, now) for stick in sticks)
    assert calm.relative == wild.relative


@pytest.mark.parametrize("b", [1.0, 2.0**-20, 2.0**-50])
def test_slackness_has_no_units_of_its_own(b):
    # min -x with g = b (x - 1 - e) <= 0 at x = 1: lambda = 1 / b balances f', and g = -b e is not zero. By hand:
    # n = b, so c |g| = e for b <= 1; w = max(1 / 1, 1 / 1) = 1, r = b and r lambda = 1. The smaller is e.
    e, x, lam = 2.0**-6, np.ones(1), np.array([1 / b])
    now = Evaluation(-x[0], np.array([-b * e]), lambda w, objective=1.0: -objective + b * w)
    units = units_at(x, ReferencePoint(np.zeros(1), -x, now.constraints - b), x, now)
    assert relative_residuals(REALS, x, now.pullback(lam), now.constraints, lam, units) == (0.0, 0.0, e)


@pytest.mark.parametrize("name", ["HS12", "HS43", "HS76", "disc-product"])
@pytest.mark.parametrize("power", [-20, 20])
def test_a_problem_is_solved_in_other_units_of_x(name, power):
    own = problems.get(name)
    c, x0 = 2.0**power, np.where(own.x0 == 0, 1.0, own.x0)
    result = solve(measured(own.problem, x=c), c * x0)
    assert result.success
    assert result.x / c == pytest.approx(own.solution, abs=1e-4)
