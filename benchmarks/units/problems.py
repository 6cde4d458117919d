"""Thirty small problems in order-one units, each with its solution and multipliers by hand.

``min f(x)`` subject to ``g(x) <= 0``, ``h(x) = 0`` and ``lower <= x <= upper``. The functions are analytic, so
gradients come from the complex step, exact to rounding. tests/benchmarks/test_units.py proves every solution: the KKT
conditions with the multipliers given here, no better feasible point nearby, and SLSQP's answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Vector = np.ndarray[Any, np.dtype[Any]]
Function = Callable[[Vector], Any]

E, R3, R15 = np.e, 3**0.5, 1.5**0.5


@dataclass(frozen=True)
class Case:
    """One problem.

    Attributes:
        name: its name in records and tables.
        f: the objective.
        x0: the start.
        x: the solution.
        objective: f at the solution.
        g, h: the inequalities ``g <= 0`` and equalities ``h = 0``; each returns a sequence of values.
        lam, mu: their multipliers, ``grad f + J_g' lam + J_h' mu`` balanced by the bounds.
        lower, upper: the bounds of x.
        others: further KKT points, which a solver may find from this start without being wrong.
        length: what an error of a variable is compared with if the variable is smaller than this at the solution.
    """

    name: str
    f: Function
    x0: Sequence[float]
    x: Sequence[float]
    objective: float
    g: Function | None = None
    lam: Sequence[float] = ()
    h: Function | None = None
    mu: Sequence[float] = ()
    lower: float | Sequence[float] = -np.inf
    upper: float | Sequence[float] = np.inf
    others: Sequence[Sequence[float]] = field(default=())
    length: float = 1.0


def complex_step(function: Function, x: Vector) -> Vector:
    """Return the Jacobian of an analytic vector function, exact to rounding, of shape (values, variables).

    >>> complex_step(lambda x: [x[0] ** 2, x[0] * x[1]], np.array([3.0, 2.0])).tolist()
    [[6.0, 0.0], [2.0, 3.0]]
    """
    tiny = 1e-30
    return np.stack([np.imag(function(x + tiny * 1j * unit)) / tiny for unit in np.eye(len(x))], axis=-1)


def _square(x: Vector) -> Any:
    return x @ x


CASES = (
    # Two variables, one or two inequalities.
    Case("disc", lambda x: (x[0] - 2) ** 2 + x[1] ** 2, (0, 1), (1, 0), 1, g=lambda x: [x @ x - 1], lam=[1]),
    Case(
        "ellipse and quadratic",
        lambda x: 0.5 * x[0] ** 2 + x[1] ** 2 - x[0] * x[1] - 7 * x[0] - 7 * x[1],
        (0, 0),
        (2, 3),
        -30,
        g=lambda x: [4 * x[0] ** 2 + x[1] ** 2 - 25],
        lam=[0.5],
    ),
    Case(
        "valley and half-plane",
        lambda x: (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2,
        (0, 0),
        (0.5, 0.25),
        0.25,
        g=lambda x: [x[0] - 0.5],
        lam=[1],
        length=0.25,
    ),
    Case("exponential", lambda x: x[0] + x[1], (2, 2), (0, 1), 1, g=lambda x: [np.exp(-x[0]) - x[1]], lam=[1]),
    Case("sum of exponentials", lambda x: np.sum(np.exp(x)), (0, 3), (1, 1), 2 * E, g=lambda x: [2 - sum(x)], lam=[E]),
    Case(
        "lens",
        lambda x: x[1],
        (0.5, 0.5),
        (0, -R3),
        -R3,
        g=lambda x: [(x[0] - 1) ** 2 + x[1] ** 2 - 4, (x[0] + 1) ** 2 + x[1] ** 2 - 4],
        lam=[R3 / 12, R3 / 12],
    ),
    # Linear objectives and constraints.
    Case(
        "linear program, 2 variables",
        lambda x: -3 * x[0] - 5 * x[1],
        (1, 1),
        (2, 6),
        -36,
        g=lambda x: [x[0] - 4, 2 * x[1] - 12, 3 * x[0] + 2 * x[1] - 18],
        lam=[0, 1.5, 1],
        lower=0,
    ),
    Case(
        "linear program, 3 variables",
        lambda x: -x[0] - 2 * x[1] - 3 * x[2],
        (0.2, 0.2, 0.2),
        (0.5, 1.5, 1),
        -6.5,
        g=lambda x: [x[0] + x[1] + x[2] - 3, x[2] - 1, x[1] - 1.5],
        lam=[1, 2, 1],
        lower=0,
        length=0.5,
    ),
    Case(
        "linear program in line with its start",  # two variables start at the zero where they end
        lambda x: -np.sum(x),
        (0, 0, 0),
        (2.5, 0, 0),
        -2.5,
        g=lambda x: [0.4 * x[0] + 0.8 * x[1] + 0.66 * x[2] - 1, -x[1], -x[2]],
        lam=[2.5, 1, 0.65],
    ),
    # Quadratic objectives, linear constraints.
    Case(
        "quadratic program, 5 sides",
        lambda x: (x[0] - 1) ** 2 + (x[1] - 2.5) ** 2,
        (2, 0),
        (1.4, 1.7),
        0.8,
        g=lambda x: [2 * x[1] - x[0] - 2, x[0] + 2 * x[1] - 6, x[0] - 2 * x[1] - 2],
        lam=[0.8, 0, 0],
        lower=0,
    ),
    Case(
        "budget, 6 variables",  # x_i = i - t clipped to [0, 4] with t = 3/4
        lambda x: np.sum((x - np.arange(1, 7)) ** 2),
        (1,) * 6,
        (0.25, 1.25, 2.25, 3.25, 4, 4),
        7.25,
        g=lambda x: [np.sum(x) - 15],
        lam=[1.5],
        lower=0,
        upper=4,
    ),
    Case("plane", _square, (1, 1, 1), (1, 2, 2), 9, h=lambda x: [x[0] + 2 * x[1] + 2 * x[2] - 9], mu=[-2]),
    Case(
        "plane and a condition without force",
        _square,
        (3, 0, 1, 0, 2),
        (1,) * 5,
        5,
        h=lambda x: [np.sum(x) - 5, x[0] - x[1]],
        mu=[-2, 0],
    ),
    # Bounds.
    Case(
        "bound and a half-plane far away",
        lambda x: (x[0] - 2) ** 2 + (x[1] - 0.5) ** 2,
        (0, 0),
        (1, 0.5),
        1,
        g=lambda x: [x[0] + x[1] - 3],
        lam=[0],
        lower=-1,
        upper=1,
    ),
    Case(
        "bound and disc",
        lambda x: (x[0] + 1) ** 2 + (x[1] - 2) ** 2,
        (0.5, 0.5),
        (0, 1),
        2,
        g=lambda x: [x @ x - 1],
        lam=[1],
        lower=(0, -np.inf),
    ),
    Case(
        "logarithm",
        lambda x: x[0] ** 2 - np.log(x[1]),
        (1, 1),
        (0, 2),
        -np.log(2),
        g=lambda x: [x[1] - 2],
        lam=[0.5],
        lower=(-np.inf, 0.1),
    ),
    Case(
        "entropy",
        lambda x: np.sum(x * np.log(x)),
        (0.5, 0.3, 0.2),
        (1 / 3,) * 3,
        -np.log(3),
        h=lambda x: [np.sum(x) - 1],
        mu=[np.log(3) - 1],
        lower=1e-3,
        upper=1,
        length=1 / 3,
    ),
    # Products: nonconvex, with one solution in the bounds.
    Case(
        "means",
        lambda x: np.sum(x),
        (2, 1, 3),
        (1, 1, 1),
        3,
        g=lambda x: [1 - x[0] * x[1] * x[2]],
        lam=[1],
        lower=0.1,
        upper=10,
    ),
    Case(
        "parcel",
        lambda x: -x[0] * x[1] * x[2],
        (1, 1, 0.5),
        (2, 1, 1),
        -2,
        g=lambda x: [x[0] + 2 * x[1] + 2 * x[2] - 6],
        lam=[1],
        lower=0,
        upper=5,
    ),
    Case(
        "surface of a box",
        lambda x: x[0] * x[1] + x[1] * x[2] + x[0] * x[2],
        (2, 1, 0.8),
        (1, 1, 1),
        3,
        h=lambda x: [x[0] * x[1] * x[2] - 1],
        mu=[-2],
        lower=0.1,
        upper=10,
    ),
    Case(
        "two pairs",
        _square,
        (2, 1, 0.5, 3),
        (1, 1, 1, 1),
        4,
        g=lambda x: [2 - x[0] - x[1], 1 - x[2] * x[3]],
        lam=[2, 2],
        lower=0,
    ),
    Case(
        "product on a disc",
        lambda x: -x[0] * x[1],
        (0.5, 1.5),
        (1, 1),
        -1,
        g=lambda x: [x @ x - 2],
        lam=[0.5],
        others=[(-1, -1), (0, 0)],
    ),
    # Nonconvex constraints.
    Case(
        "outside of a disc",
        lambda x: (x[0] - 0.5) ** 2 + x[1] ** 2,
        (2, 0.5),
        (1, 0),
        0.25,
        g=lambda x: [1 - x @ x],
        lam=[0.5],
        others=[(-1, 0)],
    ),
    Case(
        "under a parabola",
        lambda x: x[0] ** 2 + (x[1] - 2) ** 2,
        (2, 1),
        (R15, 1.5),
        1.75,
        g=lambda x: [x[1] - x[0] ** 2],
        lam=[1],
        others=[(-R15, 1.5), (0, 0)],
    ),
    Case(
        "above a sine",
        lambda x: x[1],
        (0.5, 1),
        (-np.pi / 2, -1),
        -1,
        g=lambda x: [np.sin(x[0]) - x[1]],
        lam=[1],
        lower=(-3, -5),
        upper=(1, 5),
    ),
    # Nonlinear equalities.
    Case("cube", lambda x: x[0] ** 2, (1,), (2,), 4, h=lambda x: [x[0] ** 3 - 8], mu=[-1 / 3]),
    Case(
        "sphere",
        lambda x: np.sum(x),
        (-2, 0, -0.5),
        (-1, -1, -1),
        -3,
        h=lambda x: [x @ x - 3],
        mu=[0.5],
        others=[(1, 1, 1)],
    ),
    Case(
        "paraboloid and plane",
        lambda x: x[2],
        (3, 0, 1),
        (1, 1, 2),
        2,
        h=lambda x: [x[0] ** 2 + x[1] ** 2 - x[2], x[0] + x[1] - 2],
        mu=[1, -2],
    ),
    # No constraint with force, or one with zero force.
    Case(
        "valley on a circle",  # the constraint is active with multiplier zero
        lambda x: (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2,
        (0, 0),
        (1, 1),
        0,
        g=lambda x: [x @ x - 2],
        lam=[0],
    ),
    Case(
        "six constraints",  # one active; four inactive, one of them steep; one inactive at the bounds
        lambda x: (x[0] - 2) ** 2 + x[1] ** 2,
        (0, 1),
        (1, 0),
        1,
        g=lambda x: [
            x @ x - 1,
            np.sin(50 * x[0]) - 2,
            x[0] + x[1] - 5,
            x[0] ** 2 - 10,
            np.exp(x[1]) - 20,
            -3 - x[0] * x[1],
        ],
        lam=[1, 0, 0, 0, 0, 0],
        lower=-2,
        upper=2,
    ),
)
