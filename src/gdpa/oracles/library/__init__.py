"""Small instances with recorded answers, to test methods on. Each is built on first use.

>>> get("HS12").solution.tolist()
[2.0, 3.0]
"""

from __future__ import annotations

from collections.abc import Callable

from gdpa.oracles.library import disc, hock_schittkowski, sets, unsolvable
from gdpa.oracles.library.base import KINDS, TestProblem

__all__ = ["TestProblem", "get", "names"]

_PROBLEMS: dict[str, Callable[[], TestProblem]] = {
    "disc-product": disc.disc_product,
    "disc-square": disc.disc_square,
    "HS10": hock_schittkowski.hs10,
    "HS11": hock_schittkowski.hs11,
    "HS12": hock_schittkowski.hs12,
    "HS14": hock_schittkowski.hs14,
    "HS22": hock_schittkowski.hs22,
    "HS29": hock_schittkowski.hs29,
    "HS43": hock_schittkowski.hs43,
    "HS65": hock_schittkowski.hs65,
    "HS71": hock_schittkowski.hs71,
    "HS76": hock_schittkowski.hs76,
    "HS100": hock_schittkowski.hs100,
    "HS113": hock_schittkowski.hs113,
    "portfolio": sets.portfolio,
    "box-corner": sets.box_corner,
    "ball-product": sets.ball_product,
    "disjoint-discs": unsolvable.disjoint_discs,
    "open-strip": unsolvable.open_strip,
}


def names(kind: str | None = None) -> tuple[str, ...]:
    """Return the names of all problems, or of one kind ("solvable", "infeasible", "unbounded").

    >>> "HS12" in names("solvable"), names("unbounded")
    (True, ('open-strip',))
    """
    if kind is None:
        return tuple(_PROBLEMS)
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    return tuple(name for name, make in _PROBLEMS.items() if make().kind == kind)


def get(name: str) -> TestProblem:
    """Return the problem called ``name``.

    >>> get("HS43").problem.evaluate(get("HS43").solution).constraints.tolist()
    [0.0, -1.0, 0.0]
    """
    if name not in _PROBLEMS:
        raise ValueError(f"no problem is called {name!r}; there are {', '.join(_PROBLEMS)}")
    return _PROBLEMS[name]()
