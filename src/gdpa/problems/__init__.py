"""Small instances with recorded answers, to test methods on.

>>> get("HS12").solution.tolist()
[2.0, 3.0]
"""

from __future__ import annotations

from gdpa.problems import disc, hock_schittkowski
from gdpa.problems.base import TestProblem

__all__ = ["TestProblem", "get", "names"]

_PROBLEMS = {
    problem.name: make
    for make in (disc.disc_product, disc.disc_square, hock_schittkowski.hs12)
    for problem in (make(),)
}


def names(kind: str | None = None) -> tuple[str, ...]:
    """Return the names of all problems, or of those of one kind ("solvable", "infeasible", "unbounded").

    >>> "HS12" in names("solvable")
    True
    """
    return tuple(name for name, make in _PROBLEMS.items() if kind is None or make().kind == kind)


def get(name: str) -> TestProblem:
    """Return the problem called ``name``."""
    if name not in _PROBLEMS:
        raise ValueError(f"no problem is called {name!r}; there are {', '.join(_PROBLEMS)}")
    return _PROBLEMS[name]()
