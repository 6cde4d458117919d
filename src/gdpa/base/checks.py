"""Checks of the numbers that users pass or their functions return. An error names the argument, value and range.

A bool is not a number here. Python's and NumPy's numbers are treated alike.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from gdpa.base.typing import Vector

_MISSING = "; is its return statement missing?"
_BOOLEANS = (
    "the booleans {!r}; return the quantity itself instead of a comparison, such as x @ x - 1 instead of x @ x <= 1"
)


def is_number(value: Any) -> bool:
    """Return whether ``value`` is a real number; NaN and infinity are."""
    kind = type(value)
    return kind is float or kind is int or (isinstance(value, numbers.Real) and not isinstance(value, bool))


def is_count(value: Any, least: int = 0) -> bool:
    """Return whether ``value`` is an integer of at least ``least``."""
    whole = type(value) is int or (is_number(value) and isinstance(value, numbers.Integral))
    return whole and int(value) >= least


def check_positive(**values: Any) -> None:
    """Raise ValueError unless every value is a positive finite number.

    >>> check_positive(beta=-1.0)
    Traceback (most recent call last):
    ValueError: beta must be a positive finite number, got -1.0
    """
    _check(values, 0, math.inf, "be a positive finite number")


def check_positive_if_given(**values: Any) -> None:
    """Raise ValueError unless every value that is not None is a positive finite number."""
    check_positive(**{name: value for name, value in values.items() if value is not None})


def check_at_least(least: float, /, **values: Any) -> None:
    """Raise ValueError unless every value is a finite number of at least ``least``.

    >>> check_at_least(0, prox=-1.0)
    Traceback (most recent call last):
    ValueError: prox must be a finite number of at least 0, got -1.0
    """
    _check(values, least, math.inf, f"be a finite number of at least {least}", least)


def check_inside(low: float, high: float, /, **values: Any) -> None:
    """Raise ValueError unless every value lies strictly between ``low`` and ``high``.

    >>> check_inside(0, 1, tau=1.0)
    Traceback (most recent call last):
    ValueError: tau must lie strictly between 0 and 1, got 1.0
    """
    _check(values, low, high, f"lie strictly between {low} and {high}")


def check_share(**values: Any) -> None:
    """Raise ValueError unless every value lies in [0, 1).

    >>> check_share(discount=1)
    Traceback (most recent call last):
    ValueError: discount must lie in [0, 1), got 1
    """
    _check(values, 0, 1, "lie in [0, 1)", 0)


def check_limit(zero: bool = False, /, **values: Any) -> None:
    """Raise ValueError unless every value is a positive number (or ``zero``, if allowed); infinity is no limit."""
    kind = "nonnegative" if zero else "positive"
    _check(values, 0, math.inf, f"be a {kind} number", *((0, math.inf) if zero else (math.inf,)))


def check_count(least: int, /, **values: Any) -> None:
    """Raise ValueError unless every value is an integer of at least ``least``."""
    for name, value in values.items():
        if not is_count(value, least):
            raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def _check(values: dict[str, Any], low: float, high: float, rule: str, *ends: float) -> None:
    """Raise unless every value is a number between ``low`` and ``high``, or one of the ``ends``."""
    for name, value in values.items():
        if not (is_number(value) and (low < value < high or value in ends)):
            raise ValueError(f"{name} must {rule}, got {value!r}")


def real_numbers(name: str, value: Any, complex_too: bool = False) -> Vector:
    """Return the answer of a user's function as a NumPy array of its own dtype; raise unless it holds real numbers."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise TypeError(f"{name} must return real numbers, got {value!r}: {error}") from None
    if array.dtype.kind not in ("iufc" if complex_too else "iuf"):
        shown = _BOOLEANS.format(value) if array.dtype.kind == "b" else repr(value) + _MISSING * (value is None)
        raise TypeError(f"{name} must return real numbers, got {shown}")
    return array


def read_pair(returned: Any, kind: str, types: Any, remedies: tuple[str, str]) -> tuple[Any, Any]:
    """Return (f, g) of ``fn(x) -> (f, g)``; raise unless they are arrays of the given types with floating numbers."""
    if returned is None:
        raise TypeError(f"the function must return the pair (f, g), got None{_MISSING}")
    if not isinstance(returned, (tuple, list)) or len(returned) != 2:
        raise TypeError(
            f"the function must return the pair (f, g), got {type(returned).__name__} {returned!r}; "
            "g is a vector, x[..., :0] if there are no constraints"
        )
    for name, value, remedy in zip("fg", returned, remedies, strict=True):
        if not isinstance(value, types):
            raise TypeError(f"{name} must be a {kind} computed from x, got {value!r}; return {remedy}")
        dtype = str(value.dtype)
        if "bool" in dtype:
            raise TypeError(f"{name} must hold real numbers, got {_BOOLEANS.format(value)}")
        if "float" not in dtype:
            raise TypeError(f"{name} must hold floating-point numbers, got dtype {dtype}; convert it to the dtype of x")
    return returned[0], returned[1]
