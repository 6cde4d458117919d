"""Restoration against projections in closed form."""

import numpy as np
import pytest

from gdpa import from_functions
from gdpa.kkt import certify
from gdpa.restoration import restored
from gdpa.sets import Box
from gdpa.units import start_at


def problem(domain=None):
    """The projection of (2, 0) on the unit circle, x_0 + x_1 <= 5 besides."""
    more = {} if domain is None else {"domain": domain}
    return from_functions(
        lambda x: (x[0] - 2) ** 2 + x[1] ** 2,
        lambda x: np.array([x[0] + x[1] - 5, x @ x - 1]),
        gradient=lambda x: np.array([2 * (x[0] - 2), 2 * x[1]]),
        jacobian=lambda x: np.array([[1.0, 1.0], 2 * x]),
        num_equalities=1,
        **more,
    )


def certificate(circle, x):
    x0 = np.array([0.5, 0.5])
    return certify(circle, np.array(x), start=start_at(circle.evaluate(x0), x0))


@pytest.mark.parametrize("x", [(1 + 3e-5, 1e-5), (1 - 3e-5, -1e-5)])
def test_the_answer_lies_on_the_circle_near_the_first_point(x):
    circle = problem()
    before = certificate(circle, x)
    after = restored(circle, before, 1e-3)
    assert abs(before.constraints[1]) > 1e-5
    assert abs(after.constraints[1]) <= 1e-15
    np.testing.assert_allclose(after.x, np.array(x) / np.linalg.norm(x), atol=1e-9)  # to first order its projection
    assert after.holds(1e-3)


def test_a_point_that_is_not_certified_is_not_taken():
    circle = problem()
    before = certificate(circle, (0.8, 0.7))
    assert restored(circle, before, 1e-6) is before


def test_a_feasible_point_stays_as_it_is():
    circle = problem()
    before = certificate(circle, (1.0, 0.0))
    assert restored(circle, before, 1e-6) is before


def test_the_set_is_kept():
    box = Box([0.0, 0.0], [1.0, 1.0])
    after = restored(problem(box), certificate(problem(box), (1.0, 1e-6)), 1e-3)
    assert np.all((after.x >= 0) & (after.x <= 1))
    assert abs(after.constraints[1]) <= 1e-12
