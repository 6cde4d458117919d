"""Checks of the numbers that users pass. An error names the argument, its value and the allowed range.

A bool is not a number here. Python's and NumPy's numbers are treated alike.
"""

from __future__ import annotations

import math
import numbers
from typing import Any, NoReturn


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
    for name, value in values.items():
        if not (is_number(value) and 0 < value < math.inf):
            _refuse(name, value, "be a positive finite number")


def check_positive_if_given(**values: Any) -> None:
    """Raise ValueError unless every value that is not None is a positive finite number.

    >>> check_positive_if_given(eta=None)
    """
    check_positive(**{name: value for name, value in values.items() if value is not None})


def check_at_least(least: float, /, **values: Any) -> None:
    """Raise ValueError unless every value is a finite number of at least ``least``.

    >>> check_at_least(0, prox=-1.0)
    Traceback (most recent call last):
    ValueError: prox must be a finite number of at least 0, got -1.0
    """
    for name, value in values.items():
        if not (is_number(value) and least <= value < math.inf):
            _refuse(name, value, f"be a finite number of at least {least}")


def check_inside(low: float, high: float, /, **values: Any) -> None:
    """Raise ValueError unless every value lies strictly between ``low`` and ``high``.

    >>> check_inside(0, 1, tau=1.0)
    Traceback (most recent call last):
    ValueError: tau must lie strictly between 0 and 1, got 1.0
    """
    for name, value in values.items():
        if not (is_number(value) and low < value < high):
            _refuse(name, value, f"lie strictly between {low} and {high}")


def check_share(**values: Any) -> None:
    """Raise ValueError unless every value lies in [0, 1).

    >>> check_share(discount=1)
    Traceback (most recent call last):
    ValueError: discount must lie in [0, 1), got 1
    """
    for name, value in values.items():
        if not (is_number(value) and 0 <= value < 1):
            _refuse(name, value, "lie in [0, 1)")


def check_limit(zero: bool = False, /, **values: Any) -> None:
    """Raise ValueError unless every value is a positive number (or ``zero``, if allowed); infinity is no limit."""
    for name, value in values.items():
        if not (is_number(value) and (value > 0 or (zero and value == 0))):
            _refuse(name, value, f"be a {'nonnegative' if zero else 'positive'} number")


def check_count(least: int, /, **values: Any) -> None:
    """Raise ValueError unless every value is an integer of at least ``least``."""
    for name, value in values.items():
        if not is_count(value, least):
            _refuse(name, value, f"be an integer of at least {least}")


def _refuse(name: str, value: Any, rule: str) -> NoReturn:
    raise ValueError(f"{name} must {rule}, got {value!r}")
