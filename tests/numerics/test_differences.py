"""Finite differences against exact derivatives, and inside their box."""

from __future__ import annotations

import numpy as np
import pytest

from gdpa import Box
from gdpa.numerics.differences import derivative


def curve(x):
    return np.array([np.sin(x[0]) * x[1], np.exp(x[1])])


@pytest.mark.parametrize(("scheme", "error"), [("2-point", 1e-7), ("3-point", 1e-9), ("cs", 1e-14)])
def test_against_the_exact_jacobian(scheme, error):
    x = np.array([0.3, -0.7])
    exact = [[np.cos(0.3) * -0.7, np.sin(0.3)], [0.0, np.exp(-0.7)]]
    np.testing.assert_allclose(derivative(curve, x, curve(x), scheme), exact, atol=error)


@pytest.mark.parametrize("scheme", ["2-point", "3-point"])
@pytest.mark.parametrize(
    ("lower", "upper"), [(0.3, 1.0), (-1.0, 0.3), (0.3 - 1e-7, 0.3 + 1e-6), (0.3, np.nextafter(0.3, 1))]
)
def test_stays_in_the_box(scheme, lower, upper):
    visited = []

    def function(x):
        visited.append(x[0])
        return np.sin(x)

    x = np.array([0.3])
    slope = derivative(function, x, np.sin(x), scheme, Box(lower, upper))
    assert all(lower <= v <= upper for v in visited)
    if upper - lower < 1e-15:
        assert slope.item() == 0.0
        assert visited == []
    else:
        assert slope.item() == pytest.approx(np.cos(0.3), rel=1e-6 if scheme == "2-point" else 1e-7)


def test_relative_step_is_the_step_over_x():
    visited = []

    def function(x):
        visited.append(x.copy())
        return x**2

    x = np.array([4.0, 0.0])
    derivative(function, x, x**2, relative_step=0.25)
    assert visited[0].tolist() == [5.0, 0.0]
    assert 0 < visited[1][1] < 1e-7  # no |x| to be relative to: the default step
