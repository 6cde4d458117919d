"""The pair that a user's function ``fn(x) -> (f, g)`` returned, or an error that shows the value instead."""

from __future__ import annotations

from typing import Any


def pair(returned: Any) -> tuple[Any, Any]:
    """Return (f, g); raise unless the function returned two values.

    >>> pair((1.0, [2.0]))
    (1.0, [2.0])
    >>> pair(None)
    Traceback (most recent call last):
        ...
    TypeError: the function must return the pair (f, g), got None; is its return statement missing?
    """
    if isinstance(returned, (tuple, list)) and len(returned) == 2:
        return returned[0], returned[1]
    if returned is None:
        raise TypeError("the function must return the pair (f, g), got None; is its return statement missing?")
    raise TypeError(
        f"the function must return the pair (f, g), got {type(returned).__name__} {returned!r}; "
        "g is a vector, x[..., :0] if there are no constraints"
    )


def check_dtype(name: str, value: Any, boolean: bool, floating: bool) -> None:
    """Raise unless f or g holds floating-point numbers."""
    if boolean:
        raise TypeError(
            f"{name} must hold real numbers, got the booleans {value!r}; "
            "return the quantity itself instead of a comparison, such as x @ x - 1 instead of x @ x <= 1"
        )
    if not floating:
        raise TypeError(
            f"{name} must hold floating-point numbers, got dtype {value.dtype}; convert it to the dtype of x"
        )
