import math

import pytest

from gdpa import GDPA, Constant, Power, Theoretical


def test_values_at_cubes():
    assert Constant(0.25)(1) == Constant(0.25)(1000) == 0.25
    assert Power(6.0, -1 / 3)(27) == pytest.approx(2.0)
    assert Power(6.0, 1 / 3)(27) == pytest.approx(18.0)
    assert Power(6.0, 1 / 3)(1) == 6.0  # "initial step size" is the one at r = 1
    assert Theoretical(0.5, 1.0, 3.0)(27) == pytest.approx(0.05)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "1"])
@pytest.mark.parametrize(
    "make",
    [
        Constant,
        lambda v: Power(v, 0.5),
        lambda v: Theoretical(v, 1.0, 1.0),
        lambda v: Theoretical(0.5, v, 1.0),
        lambda v: Theoretical(0.5, 1.0, v),
    ],
)
def test_only_positive_finite_numbers_pass(make, value):
    with pytest.raises(ValueError, match=r"must be a positive finite number, got"):
        make(value)


def test_the_exponent_is_finite_and_the_proof_needs_a1_below_one():
    with pytest.raises(ValueError, match="exponent must be finite, got nan"):
        Power(1.0, math.nan)
    with pytest.raises(ValueError, match=r"a1 must be below 1, got 1\.0"):
        Theoretical(1.0, 1.0, 1.0)


def test_numbers_become_power_schedules_and_schedules_pass_unchanged():
    assert GDPA(alpha=2).alpha == Power(2.0, -1 / 3)
    own = Constant(1.0)
    assert GDPA(alpha=own).alpha is own


@pytest.mark.parametrize("value", [True, "0.1", None, [1.0]])
def test_what_is_neither_is_named(value):
    with pytest.raises(TypeError, match=r"beta must be a number or a schedule r -> number, got"):
        GDPA(beta=value)
