"""Numbers, names and warnings as people read them."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from gdpa.base.arrays import to_numpy
from gdpa.base.typing import Array

#: Smaller numbers are remainders of an underflow; they print as 0.
SMALLEST = 1e-99
#: Longer vectors are cut short, with this many numbers at either end.
LONGEST, ENDS = 8, 3


def number(value: Any, digits: int = 6) -> str:
    """Return a number with ``digits`` digits."""
    value = float(value)
    return "0" if abs(value) < SMALLEST else f"{value:.{digits}g}"


def vector(values: Array, digits: int = 6) -> str:
    """Return a vector on one line, cut short if it is long; a number that is rounding beside the largest is 0."""
    host = to_numpy(values)
    if host.ndim == 0:
        return number(host, digits)
    if host.ndim > 1:
        with np.printoptions(threshold=LONGEST, edgeitems=ENDS, precision=digits, suppress=False):
            return str(host).replace("\n", " ")
    finite = np.abs(host[np.isfinite(host)])
    rounding = float(np.finfo(host.dtype).eps) * float(finite.max(initial=0.0))
    is_long = len(host) > LONGEST
    kept = np.r_[host[:ENDS], host[-ENDS:]] if is_long else host
    shown = [number(0.0 if abs(v) < rounding else v, digits) for v in kept.tolist()]
    if is_long:
        shown.insert(ENDS, "...")
    return f"[{', '.join(shown)}]"


def suggest(name: str, names: Iterable[str], likeness: float = 0.6) -> str:
    """Return "; did you mean ..." if one of ``names`` is like ``name``, else ""."""
    near = difflib.get_close_matches(name.lower(), list(names), n=1, cutoff=likeness)
    return f"; did you mean {near[0]!r}" if near else ""


def make_printable(text: str) -> str:
    r"""Return a text in which control characters, such as newlines and escape codes, are spelled out."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def warn_user(text: str, category: type[Warning]) -> None:
    """Warn, and let the warning point to the first line outside the library and SciPy."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("gdpa", "scipy"):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)
