"""Problems that are not finite beyond a wall, with starts and steps that lead the methods across it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gdpa import REALS, Box, Constant, ConvexSet, Problem, from_functions, get_method
from gdpa.methods.nested import FixedMomentum


class Wall(NamedTuple):
    """f and g with their derivatives, two variables; ``equality``: the same problem with one linear equality."""

    f: Callable[[Any], Any]
    gradient: Callable[[Any], Any]
    g: Callable[[Any], Any]
    jacobian: Callable[[Any], Any]
    x0: tuple[float, float]
    domain: ConvexSet = REALS

    def problem(self, linear: bool = False) -> Problem:
        g, jacobian = (lambda x: np.array([x[0] + x[1] - 1]), lambda x: np.ones((1, 2))) if linear else self[2:4]
        return from_functions(
            quiet(self.f),
            quiet(g),
            gradient=quiet(self.gradient),
            jacobian=quiet(jacobian),
            num_equalities=int(linear),
            domain=self.domain,
        )


def quiet(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function without NumPy's warnings about what is not finite."""

    def silent(x: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(x)

    return silent


def _row(a: Any, b: Any) -> Any:
    return np.array([[a, b]])


WALLS = {
    # A logarithm whose gradient, 100 at the start, throws a fixed step far beyond x = 0 on the way back.
    "log": Wall(
        lambda x: 10 * x.sum() - 0.1 * np.log(x).sum(),
        lambda x: 10 - 0.1 / x,
        lambda x: np.array([x[0] + x[1] - 1]),
        lambda x: np.ones((1, 2)),
        (0.5, 0.5),
    ),
    # The objective pulls x0 down to where the root ends.
    "sqrt": Wall(
        lambda x: 3 * x[0] + x[1] ** 2,
        lambda x: np.array([3.0, 2 * x[1]]),
        lambda x: np.array([1 - np.sqrt(x[0]) - x[1]]),
        lambda x: _row(-0.5 / np.sqrt(x[0]), -1.0),
        (0.3, 0.6),
    ),
    "power": Wall(
        lambda x: 20 * x[0] + 0.01 * x[0] ** -1.5 + x[1] ** 2,
        lambda x: np.array([20 - 0.015 * x[0] ** -2.5, 2 * x[1]]),
        lambda x: np.array([1 - x[0] - x[1]]),
        lambda x: -np.ones((1, 2)),
        (0.5, 0.5),
    ),
    # Finite at the boundary of the box, but not its gradient.
    "boundary": Wall(
        lambda x: 5 * x[0] - np.sqrt(x[0]) + x[1] ** 2,
        lambda x: np.array([5 - 0.5 / np.sqrt(x[0]), 2 * x[1]]),
        lambda x: np.array([x[0] + x[1] - 1]),
        lambda x: np.ones((1, 2)),
        (0.5, 0.5),
        Box(0.0, 1.0),
    ),
    # The constraint is not finite beyond its own boundary, where a step of the penalty may lead.
    "entropy": Wall(
        lambda x: -x.sum(),
        lambda x: -np.ones(2),
        lambda x: np.array([-0.5 - (x * np.log(x)).sum(), x[0] ** 2 - x[1]]),
        lambda x: np.array([-1 - np.log(x), [2 * x[0], -1.0]]),
        (0.05, 0.4),
    ),
}

STEP = 0.1
INNER = FixedMomentum(STEP, 0.5, max_steps=30)
#: Constants with which steps are too long: one entry for each way a method moves.
LONG: dict[str, dict[str, Any]] = {
    "gdpa": {"alpha": Constant(STEP)},
    "damped-gdpa": {"alpha": STEP, "momentum": 0.5, "scaled": False},
    "ialm-sahin": {"inner": INNER},
    "ialm-li": {"inner": INNER, "slack": True},
    "ippp": {"inner": INNER},
    "iqrc": {"gamma": STEP},
    "proximal-admm": {"step": STEP},
    "pdd": {"inner": INNER},
    "gda": {"alpha": STEP},
    "hibsa": {"b": Constant(1 / STEP)},
    "smoothed-gda": {"step": STEP},
    "penalty": {"alpha": Constant(STEP)},
    "linearized-alm": {"alpha": Constant(STEP)},
    "ppl": {"eta": STEP},
    "switching-subgradient": {"eta": Constant(STEP)},
}


def runs() -> list[tuple[str, str, bool]]:
    """Return (method, wall, whether its steps are too long) of every run."""
    given = [(name, wall, False) for name in LONG for wall in ("boundary", "sqrt")]
    return [(name, wall, True) for name in LONG for wall in WALLS] + given


def prepare(name: str, wall: str, long: bool) -> tuple[Problem, Any, Any]:
    """Return the problem, the start and the method of a run."""
    own = WALLS[wall]
    method = get_method(name)(**LONG[name]) if long else get_method(name)()
    return own.problem(linear=name == "proximal-admm"), np.array(own.x0), method
