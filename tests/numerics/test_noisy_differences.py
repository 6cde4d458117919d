"""Finite differences of functions with few digits: the right derivative, or NaN with a warning, never a zero."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import gdpa
from gdpa import FiniteDifferenceWarning
from gdpa.numerics.differences import derivative, precision

START = np.array([0.5, 0.5])


def smooth(x):
    return (x[0] - 2) ** 2 + x[1] ** 2


def disc(x):
    return 1 - x @ x


def jitted():
    jax = pytest.importorskip("jax")
    return jax.jit(smooth)  # without x64 it computes in single precision, whatever it is given


def in_torch():
    torch = pytest.importorskip("torch")
    return lambda x: smooth(torch.tensor(x, dtype=torch.float32))


#: Functions with fewer digits than their argument, and how near (2, 0)'s projection (1, 0) they lead.
FEW_DIGITS = {
    "float32": (lambda: lambda x: np.float32(smooth(x)), 1e-4),
    "float32 as a float": (lambda: lambda x: float(np.float32(smooth(x))), 1e-4),
    "float16": (lambda: lambda x: np.float16(smooth(x)), 1e-2),
    "jax.jit": (jitted, 1e-4),
    "torch float32": (in_torch, 1e-4),
    "a large constant": (lambda: lambda x: 1e10 + smooth(x), 1e-3),
}
#: Functions whose differences are all noise.
ROUNDED = {
    "three decimals": lambda x: round(smooth(x), 3),
    "six digits": lambda x: float(f"{smooth(x):.6g}"),
    "whole numbers": lambda x: int(100 * smooth(x)),
    "float32 with three decimals": lambda x: np.round(np.float32(smooth(x)), 3),
}


def from_functions(f):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FiniteDifferenceWarning)
        return gdpa.from_functions(f, lambda x: np.array([-disc(x)]))


def both_ways(f):
    constraint = {"type": "ineq", "fun": disc}
    return [
        lambda: gdpa.minimize(f, START, constraints=constraint),
        lambda: gdpa.solve(from_functions(f), START),
    ]


@pytest.mark.parametrize("name", FEW_DIGITS)
@pytest.mark.parametrize("way", [0, 1], ids=["minimize", "from_functions"])
def test_functions_of_few_digits_are_solved(name, way):
    make, error = FEW_DIGITS[name]
    found = both_ways(make())[way]()
    assert found.x == pytest.approx([1.0, 0.0], abs=error)


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_functions_are_refused(name):
    by_scipys_signature, by_solve = both_ways(ROUNDED[name])
    with pytest.warns(FiniteDifferenceWarning, match="no derivative of fun can be seen: it is rounded to a few digits"):
        found = by_scipys_signature()
    assert not found.success
    assert "the derivative of fun is not finite" in found.message
    with (
        pytest.warns(FiniteDifferenceWarning, match="no derivative of objective can be seen"),
        pytest.raises(ValueError, match="the gradient of the objective is not finite at the start"),
    ):
        by_solve()


def test_a_rounded_constraint_is_named():
    constraint = {"type": "ineq", "fun": lambda x: round(disc(x), 3)}
    with pytest.warns(FiniteDifferenceWarning, match=r"no derivative of constraints\['fun'\] can be seen"):
        found = gdpa.minimize(smooth, START, jac=lambda x: 2 * (x - [2, 0]), constraints=constraint)
    assert not found.success


@pytest.mark.parametrize("x", [[0.5, 0.3], [0.0, 0.0], [1e-3, -1e-4], [2.0, 1e-12]])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_step_suits_the_precision_of_the_values(x, dtype):
    x, eps = np.array(x), float(np.finfo(dtype).eps)

    def f(y):
        return np.array([smooth(y)]).astype(dtype)

    slope = derivative(f, x, f(x), precision=precision(f(x)))
    np.testing.assert_allclose(slope[0], 2 * (x - [2, 0]), atol=5 * eps ** (2 / 3))


def test_precision_is_that_of_the_returned_dtype():
    assert precision(np.float16(1)) == 2.0**-10
    assert precision(np.zeros(2, dtype=np.float32)) == 2.0**-23
    for value in (1.0, 1, np.longdouble(1), [1, 2]):
        assert precision(value) == 2.0**-52


@pytest.mark.parametrize(
    ("f", "x"),
    [
        (lambda x: 3.0 + 0 * x[0], [0.3, 0.4]),
        (lambda x: 0.0, [0.3, 0.4]),
        (lambda x: max(0.0, x[0] - 1), [0.95, 0.2]),  # a plateau: flat here, though not a little farther away
        (lambda x: 1 + x[0] ** 8 + x[1] ** 2, [0.0, 0.0]),
        (lambda x: 5 + smooth(x), [2.0, 0.0]),
        (lambda x: np.exp(x).sum() / np.exp(x).sum(), [0.3, 0.4]),
    ],
    ids=["constant", "zero", "plateau", "flat", "minimum", "rounding of a constant"],
)
def test_a_true_zero_stays_zero_without_a_warning(f, x):
    x = np.array(x)
    slope = derivative(lambda y: np.array([f(y)]), x, np.array([f(x)]))
    assert np.abs(slope).max() <= 1e-6


def test_a_second_look_is_cheap():
    calls = []

    def f(x):
        calls.append(x)
        return np.array([5 + smooth(x)])

    x = np.array([2.0, 0.0])
    derivative(f, x, f(x))
    assert len(calls) == 1 + 2 + 1  # the minimum itself: the value, the differences, one probe
    calls.clear()
    derivative(f, START, f(START))
    assert len(calls) == 1 + 2


def test_only_the_doubtful_rows_are_replaced():
    def f(x):
        return np.array([x[0] * x[1], round(x[0] ** 2, 2), 1e10 + x[0] ** 2, 7.0])

    x = np.array([1.3, 0.4])
    with pytest.warns(FiniteDifferenceWarning, match="no derivative of value 1 of fun can be seen"):
        J = derivative(f, x, f(x), name="fun")
    np.testing.assert_allclose(J[0], [0.4, 1.3], rtol=1e-7)
    assert np.isnan(J[1]).all()
    np.testing.assert_allclose(J[2], [2.6, 0.0], atol=1e-2)
    assert J[3].tolist() == [0.0, 0.0]


def test_noise_below_the_rounding_is_no_derivative():
    # Four neighboring doubles: the change shows at a step of 1, and nothing nearer.
    x = np.array([0.5])
    with pytest.warns(FiniteDifferenceWarning, match="it changes by less than its rounding around 1e[+]14"):
        assert np.isnan(derivative(lambda y: 1e14 + y**2, x, 1e14 + x**2)).all()


def test_the_second_look_stays_in_the_box_and_survives_the_edge_of_the_domain():
    visited = []

    def f(x):
        visited.append(x[0])
        return np.array([1e9 + np.sqrt(x[0])])

    derivative(f, np.array([0.5]), np.array([1e9 + 0.5**0.5]), domain=gdpa.Box(0.4, 0.6))
    assert 0.4 <= min(visited) <= max(visited) <= 0.6

    def undefined(x):
        if x[0] > 0.5001:
            raise ValueError("math domain error")
        return np.array([2.0])

    assert derivative(undefined, np.array([0.5]), np.array([2.0])).tolist() == [[0.0]]


def test_a_complex_step_that_the_function_drops_is_noticed():
    x = np.array([0.7])
    slope = derivative(lambda y: np.abs(y) ** 2, x, x**2, "cs")
    assert slope.item() == pytest.approx(1.4)


def test_the_imaginary_part_alone_is_not_zero():
    assert derivative(np.sin, np.zeros(1), np.zeros(1), "cs").item() == pytest.approx(1.0)
