"""Names for the types that cross the rooms of the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Array: TypeAlias = Any
"""A NumPy, torch or JAX array. The array-API namespace is found at run time, see `gdpa.arrays`."""

Schedule: TypeAlias = Callable[[int], float]
"""A step size as a function of the iteration r = 1, 2, ..."""

Pullback: TypeAlias = Callable[..., Array]
"""``pullback(w, objective=1.0)`` returns ``objective * grad f(x) + J(x)^T w`` in one backward pass."""
