"""Finite differences that never leave a box."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Vector = np.ndarray[Any, np.dtype[Any]]

#: The schemes by the names SciPy gives them.
SCHEMES = ("2-point", "3-point", "cs")


def derivative(
    function: Callable[[Vector], Vector],
    x: Vector,
    at: Vector,
    scheme: str = "2-point",
    lower: Any = -np.inf,
    upper: Any = np.inf,
    relative_step: Any = None,
) -> Vector:
    """Return the Jacobian of ``function`` at ``x`` by finite differences, of shape (len(at), d).

    Args:
        function: x -> vector.
        x: the point, inside the bounds.
        at: ``function(x)``, already known.
        scheme: "2-point" costs d evaluations and keeps about half the digits; "3-point" costs 2d and keeps two thirds;
            "cs" (complex step) costs d and keeps all of them, for functions that accept complex x.
        lower, upper: no evaluation has a real part outside them: steps turn round at a bound. A coordinate
            whose bounds leave no room gets a zero derivative.
        relative_step: the step over |x|; default: sqrt(eps) max(1, |x|), for "3-point" the cube root of eps.

    >>> square = lambda x: np.array([x @ x])
    >>> derivative(square, np.array([3.0]), np.array([9.0]), "cs").tolist()
    [[6.0]]
    >>> derivative(lambda x: np.sqrt(1 - x), np.ones(1), np.zeros(1), upper=1.0).shape  # steps backward
    (1, 1)
    """
    lower, upper = np.broadcast_to(lower, x.shape), np.broadcast_to(upper, x.shape)
    exponent = 1 / 3 if scheme == "3-point" else 1 / 2
    default = np.finfo(x.dtype).eps ** exponent * np.maximum(1.0, np.abs(x))
    step = default if relative_step is None else np.abs(relative_step) * np.abs(x)
    step = np.where(step > 0, step, default)
    least = 8 * np.finfo(x.dtype).eps * np.maximum(1.0, np.abs(x))  # less room than this is rounding
    out = np.zeros((at.shape[0], x.shape[0]), dtype=x.dtype)

    def moved(i: int, distance: float) -> tuple[Vector, float]:
        y = x.copy()
        y[i] = min(max(x[i] + distance, lower[i]), upper[i])
        return y, y[i] - x[i]  # the step as it was rounded

    for i in range(x.shape[0]):
        h, above, below = step[i], upper[i] - x[i], x[i] - lower[i]
        if max(above, below) <= least[i]:
            continue
        if scheme == "cs":
            y = x.astype(complex)
            y[i] += 1j * h
            out[:, i] = np.imag(function(y)) / h
        elif scheme == "2-point":
            y, h = moved(i, h if h <= above else -h if h <= below else above if above >= below else -below)
            out[:, i] = (function(y) - at) / h
        elif h <= above and h <= below:
            (y, right), (z, left) = moved(i, h), moved(i, -h)
            out[:, i] = (function(y) - function(z)) / (right - left)
        else:  # second order from one side
            room = above if above >= below else -below
            h = min(h, abs(room) / 2) * np.sign(room)
            (y, near), (z, far) = moved(i, h), moved(i, 2 * h)
            slope_near, slope_far = (function(y) - at) / near, (function(z) - at) / far
            out[:, i] = (slope_near * far - slope_far * near) / (far - near)
    return out
