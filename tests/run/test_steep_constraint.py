"""A constraint that is steep everywhere and active nowhere does not make a point a solution."""

import numpy as np
import pytest

import gdpa


def parabola(steepness, factor=1.0):
    """min (x - 1)^2 subject to factor (sin(steepness x) - 2) <= 0, which always holds: x = 1."""
    return gdpa.from_functions(
        lambda x: (x[0] - 1) ** 2,
        lambda x: factor * np.array([np.sin(steepness * x[0]) - 2]),
        gradient=lambda x: 2 * (x - 1),
        jacobian=lambda x: factor * steepness * np.cos(steepness * x)[None],
    )


@pytest.mark.parametrize("factor", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("steepness", [1e2, 1e4, 1e6, 1e8])
def test_a_point_is_not_certified_by_the_slope_of_a_constraint_that_is_never_active(steepness, factor, rng):
    problem = parabola(steepness, factor)
    for x in rng.uniform(-3.0, 5.0, (20, 1)):
        assert not gdpa.certify(problem, x).holds(1e-6)
    assert gdpa.certify(problem, np.array([1.0])).holds(1e-9)


def test_a_run_past_a_steep_constraint_is_successful_only_at_the_solution(rng):
    problem = parabola(1e6)
    for x0 in rng.uniform(-3.0, 5.0, (6, 1)):
        result = gdpa.solve(problem, x0)
        assert not result.success or abs(result.x[0] - 1) < 1e-4
