"""Numbers as people read them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdpa.base.arrays import to_numpy
from gdpa.base.typing import Array

#: Smaller numbers are what is left of an underflow; they print as 0.
SMALLEST = 1e-99
#: Longer vectors are cut short, with this many numbers at either end.
LONGEST, ENDS = 8, 3


def number(value: Any, digits: int = 6) -> str:
    """Return a number with ``digits`` digits.

    >>> number(2 / 3), number(1.6e-288), number(-1e-9, digits=3), number(float("nan"))
    ('0.666667', '0', '-1e-09', 'nan')
    """
    value = float(value)
    return "0" if abs(value) < SMALLEST else f"{value:.{digits}g}"


def vector(values: Array, digits: int = 6) -> str:
    """Return a vector on one line, cut short if it is long; a number that is rounding beside the largest is 0.

    >>> vector(np.array([1e-20, 1.0, -2 / 3])), vector(np.arange(1000.0))
    ('[0, 1, -0.666667]', '[0, 1, 2, ..., 997, 998, 999]')
    """
    host = to_numpy(values)
    if host.ndim == 0:
        return number(host, digits)
    if host.ndim > 1:
        with np.printoptions(threshold=LONGEST, edgeitems=ENDS, precision=digits, suppress=False):
            return str(host).replace("\n", " ")
    finite = np.abs(host[np.isfinite(host)])
    rounding = float(np.finfo(host.dtype).eps) * float(finite.max(initial=0.0))
    shown = [number(0.0 if abs(v) < rounding else v, digits) for v in host[_ends(len(host))].tolist()]
    if len(host) > LONGEST:
        shown.insert(ENDS, "...")
    return f"[{', '.join(shown)}]"


def _ends(length: int) -> Any:
    return np.arange(length) if length <= LONGEST else np.r_[:ENDS, length - ENDS : length]
