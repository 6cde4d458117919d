"""The multipliers fitted to a point, against a general-purpose minimizer of the same sum of squares."""

import numpy as np
import pytest
from scipy.optimize import nnls

from gdpa import REALS, Box
from gdpa.core.multipliers import best_multipliers, fit
from gdpa.core.units import Units
from tests.libraries import scipy_minimize


def problem(seed, d, m, p, held):
    """Return a box, a point with ``held`` coordinates on its bounds, and random derivatives and values there."""
    rng = np.random.default_rng(seed)
    x, lower, upper = rng.normal(size=d), np.full(d, -9.0), np.full(d, 9.0)
    lower[: held // 2] = x[: held // 2]
    upper[held // 2 : held] = x[held // 2 : held]
    g = -rng.exponential(size=m)
    g[::2] = 0.0
    g[m - p :] = 1e-3
    return Box(lower, upper), x, rng.normal(size=d), rng.normal(size=(m, d)), g


def sum_of_squares(domain, x, gradient, J, g, p, multipliers):
    """||P_T(-grad f - J^T lambda)||^2 + sum ([-g_i]_+ lambda_i)^2, with the tangent cone written out."""
    v = -(gradient + J.T @ multipliers)
    if domain is not REALS:
        v = np.where(x == domain.lower, np.maximum(v, 0.0), v)
        v = np.where(x == domain.upper, np.minimum(v, 0.0), v)
    slack = np.maximum(-g, 0.0)
    slack[len(g) - p :] = 0.0
    return v @ v + (slack * multipliers) @ (slack * multipliers)


def least(domain, x, gradient, J, g, p):
    """The least sum of squares that L-BFGS-B finds, by differences."""
    m = len(g)
    bounds = [(0, None)] * (m - p) + [(None, None)] * p
    found = scipy_minimize(
        lambda y: sum_of_squares(domain, x, gradient, J, g, p, y),
        np.ones(m),
        bounds=bounds,
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 5000, "maxfun": 10**6},
    )
    return found.fun


@pytest.mark.parametrize("held", [0, 3, 6])
@pytest.mark.parametrize("p", [0, 2])
@pytest.mark.parametrize("seed", range(4))
def test_no_multipliers_fit_better_in_a_box(seed, p, held, monkeypatch):
    domain, x, gradient, J, g = problem(seed, 8, 5, p, held)
    best = least(domain, x, gradient, J, g, p)
    for few in (20, 0):  # bounds among the unknowns, and Newton's iteration
        monkeypatch.setattr("gdpa.core.multipliers.FEW_BOUNDS", few)
        fitted = best_multipliers(domain, x, gradient, J, g, p)
        assert (fitted[: 5 - p] >= 0).all()
        assert sum_of_squares(domain, x, gradient, J, g, p, fitted) == pytest.approx(best, rel=1e-5, abs=1e-7)


def test_a_fixed_coordinate_asks_for_nothing():
    domain, x, gradient, J, g = problem(0, 4, 2, 0, 2)
    fixed = Box(np.where(np.arange(4) == 3, x, domain.lower), np.where(np.arange(4) == 3, x, domain.upper))
    without = Box(domain.lower[:3], domain.upper[:3])
    expected = best_multipliers(without, x[:3], gradient[:3], J[:, :3], g, 0)
    assert best_multipliers(fixed, x, gradient, J, g, 0) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(4))
def test_no_multipliers_fit_better_in_the_whole_space(seed):
    _, x, gradient, J, g = problem(seed, 6, 4, 1, 0)
    fitted = best_multipliers(REALS, x, gradient, J, g, 1)
    expected = least(REALS, x, gradient, J, g, 1)
    assert sum_of_squares(REALS, x, gradient, J, g, 1, fitted) == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_numbers_that_are_not_finite_have_no_multipliers():
    _, x, gradient, J, g = problem(0, 4, 2, 0, 0)
    assert best_multipliers(REALS, x, gradient * np.nan, J, g, 0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("correlation", [0.0, 0.999, 1 - 1e-9])
@pytest.mark.parametrize("p", [0, 1])
def test_many_coordinates_lose_no_digit(correlation, p, library):
    """Of the products of long rows the multipliers come out as from the rows themselves, also if rows nearly depend."""
    rng, d = np.random.default_rng(0), 20_000
    J = rng.normal(size=(4, d))
    J[1] = correlation * J[0] + (1 - correlation**2) ** 0.5 * J[1]
    J *= np.array([1.0, 1e3, 1e-3, 1.0])[:, None]
    gradient = -np.array([1.0, 1e-3, 2e3, -0.5]) @ J + 1e-6 * rng.normal(size=d)
    slack = np.array([0.0, 0.0, 0.3, 0.0])
    w = 2.0 ** rng.integers(-3, 3, size=d)  # the weights of the coordinates
    units = [w, np.ones(4), np.ones(4), np.zeros(4), np.ones(4)]
    given = [library.array(a) for a in (np.zeros(d), gradient / w, J / w, -slack)]
    found = fit(REALS, *given, p, Units(*(library.array(weight) for weight in units)))  # type: ignore[call-arg]
    A = np.vstack([J.T, np.diag(slack)])
    scale = np.linalg.norm(A, axis=0)
    split = np.hstack([A, -A[:, 4 - p :]]) / np.append(scale, scale[4 - p :])
    y = nnls(split, np.append(-gradient, np.zeros(4)))[0]
    y[4 - p : 4] -= y[4:]
    np.testing.assert_allclose(np.asarray(found.tolist()), y[:4] / scale, rtol=1e-7, atol=1e-9)
