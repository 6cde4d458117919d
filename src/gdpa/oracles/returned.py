"""The pair that a user's function ``fn(x) -> (f, g)`` returned, or an error that shows the value instead."""

from __future__ import annotations

from typing import Any


def read_pair(returned: Any, kind: str, types: Any, remedies: tuple[str, str]) -> tuple[Any, Any]:
    """Return (f, g); raise unless the function returned two arrays of the given types with floating-point numbers."""
    if returned is None:
        raise TypeError("the function must return the pair (f, g), got None; is its return statement missing?")
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
            raise TypeError(
                f"{name} must hold real numbers, got the booleans {value!r}; "
                "return the quantity itself instead of a comparison, such as x @ x - 1 instead of x @ x <= 1"
            )
        if "float" not in dtype:
            raise TypeError(
                f"{name} must hold floating-point numbers, got dtype {value.dtype}; convert it to the dtype of x"
            )
    return returned[0], returned[1]
