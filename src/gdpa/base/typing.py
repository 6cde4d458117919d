"""Names for the types that modules share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""A NumPy, torch or JAX array. The array-API namespace is found at run time, see `gdpa.base.arrays`.

It is not a protocol: ``np.sin(result.x)``, and ``Problem(evaluate)`` with ``evaluate(x: np.ndarray)``, would be errors
in the typed programs of users. A protocol is not accepted as an ndarray, and a callback may not require more than it.
"""

Vector: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""A NumPy array, for code that is NumPy only."""

Schedule: TypeAlias = Callable[[int], float]
"""A step size as a function of the iteration r = 1, 2, ..."""

Pullback: TypeAlias = Callable[..., Array]
"""``pullback(w, objective=1.0)`` returns ``objective * grad f(x) + J(x)^T w`` in one backward pass."""
