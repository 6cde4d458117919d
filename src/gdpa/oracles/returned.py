"""The numbers that a user's function returned, or an error that shows the value instead."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdpa.base.typing import Vector

_MISSING = "; is its return statement missing?"
_BOOLEANS = (
    "the booleans {!r}; return the quantity itself instead of a comparison, such as x @ x - 1 instead of x @ x <= 1"
)


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
