"""Small instances with recorded answers, to test methods on. Each is built when it is asked for.

HS is Hock and Schittkowski, "Test Examples for Nonlinear Programming Codes", 1981. Inequalities are written
``g(x) <= 0`` (the book has ``>= 0``), bounds are the set X, equalities come last. The book prints six to ten digits of
x*; if no closed form is given, the digits below are a Newton solution of the KKT system on the active set.

>>> get("HS12").solution.tolist()
[2.0, 3.0]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from gdpa.base.sets import Ball, Box, NonNegative, Simplex
from gdpa.base.typing import Array, Vector
from gdpa.core.problem import Evaluation, Problem

__all__ = ["TestProblem", "get", "names"]

#: Kinds of problems; only the first has an answer.
KINDS = ("solvable", "infeasible", "unbounded")
REFINED = "digits refined by Newton on the active set"
#: The imaginary step of the derivatives: its square is lost in rounding, and dividing by it is exact.
STEP = 2.0**-100


@dataclass(frozen=True)
class TestProblem:
    """A small problem with a recorded answer and where it comes from.

    Attributes:
        name: how to ask for it, see `gdpa.problems.get`.
        problem: the oracle and the set X, in NumPy double precision.
        x0: the source's start.
        solution: a KKT point x*; None if there is none.
        multipliers: its multipliers; None if there is no solution.
        source: where the problem and its answer come from.
        kind: "solvable", "infeasible" or "unbounded".
    """

    __test__ = False  # not a class of tests, whatever its name

    name: str
    problem: Problem
    x0: Array
    solution: Array | None
    multipliers: Array | None
    source: str
    kind: str = "solvable"


_PROBLEMS: dict[str, Callable[[], TestProblem]] = {}


def names(kind: str | None = None) -> tuple[str, ...]:
    """Return the names of all problems, or of one kind ("solvable", "infeasible", "unbounded").

    >>> "HS12" in names("solvable"), names("unbounded")
    (True, ('open-strip',))
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    return tuple(name for name, make in _PROBLEMS.items() if kind is None or make().kind == kind)


def get(name: str) -> TestProblem:
    """Return the problem called ``name``.

    >>> get("HS43").problem.evaluate(get("HS43").solution).constraints.tolist()
    [0.0, -1.0, 0.0]
    """
    if name not in _PROBLEMS:
        raise ValueError(f"no problem is called {name!r}; there are {', '.join(_PROBLEMS)}")
    return _PROBLEMS[name]()


def _define(
    name: str,
    function: Callable[..., tuple[Any, list[Any]]],
    points: tuple[Any, Any, Any],
    source: str,
    kind: str = "solvable",
    **more: Any,
) -> None:
    """Add a problem: polynomials (f, g) of the coordinates of x; ``points`` are x0, x* and its multipliers."""
    variables = len(points[0])

    def evaluate(x: Vector) -> Evaluation:
        if x.shape != (variables,):
            raise ValueError(f"{name} has {variables} variables, got x of shape {x.shape}; give one number for each")
        f, g = function(*x)

        @cache
        def derivatives() -> Vector:
            """Return grad f and J by complex steps along all coordinates at once, exact to rounding."""
            f, g = function(*(x[:, None] + 1j * STEP * np.eye(len(x))))
            return np.asarray(np.imag([f, *g]) / STEP, dtype=x.dtype)

        def pullback(w: Vector, objective: float = 1.0) -> Vector:
            gradient, J = derivatives()[0], derivatives()[1:]
            return np.asarray(objective * gradient + w @ J)

        return Evaluation(np.asarray(f, x.dtype), np.asarray(g, x.dtype), pullback, lambda: derivatives()[1:])

    def make() -> TestProblem:
        x0, solution, multipliers = (None if part is None else np.array(part, dtype=float) for part in points)
        return TestProblem(name, Problem(evaluate, **more), x0, solution, multipliers, source, kind)

    _PROBLEMS[name] = make


# Two nonconvex objectives on the disc of radius sqrt(2). The first Lagrangian is flat along the active normal; the
# second solution is not a saddle point of its Lagrangian.
_define(
    "disc-product",
    lambda a, b: (-a * b, [a**2 + b**2 - 2]),
    ([0.5, 1.5], [1, 1], [0.5]),
    "closed form: grad f + 2 lambda x = 0 at x = (1, 1) gives lambda = 1/2",
)
_define(
    "disc-square",
    lambda a, b: (-((a * b) ** 2), [a**2 + b**2 - 2]),
    ([0.5, 1.5], [1, 1], [1]),
    "closed form: grad f + 2 lambda x = 0 at x = (1, 1) gives lambda = 1",
)
_define(
    "HS10",
    lambda a, b: (a - b, [3 * a**2 - 2 * a * b + b**2 - 1]),
    ([-10, 10], [0, 1], [0.5]),
    "Hock-Schittkowski 10; at (0, 1) the normal is (-2, 2), so lambda = 1/2",
)
_define(
    "HS11",
    lambda a, b: ((a - 5) ** 2 + b**2 - 25, [a**2 - b]),
    ([4.9, 0.1], [1.234772825053297, 1.5246639294900999], [3.0493278589801998]),
    f"Hock-Schittkowski 11; {REFINED}",
)
_define(
    "HS12",
    lambda a, b: (0.5 * a**2 + b**2 - a * b - 7 * a - 7 * b, [4 * a**2 + b**2 - 25]),
    ([0, 0], [2, 3], [0.5]),
    "Hock-Schittkowski 12; grad f = (-8, -3) and the normal (16, 6) at (2, 3) give lambda = 1/2",
)
_ROOT_7 = np.sqrt(7.0)
_define(  # the equality carries the sign that makes its multiplier negative
    "HS14",
    lambda a, b: ((a - 2) ** 2 + (b - 1) ** 2, [a**2 / 4 + b**2 - 1, 2 * b - a - 1]),
    (
        [2, 2],
        [(_ROOT_7 - 1) / 2, (_ROOT_7 + 1) / 4],
        [23 / (2 * _ROOT_7) - 5 / 2, 3 * _ROOT_7 / 8 - 3 / 2 - 23 / (8 * _ROOT_7)],
    ),
    "Hock-Schittkowski 14; x* in closed form, the multipliers by elimination in the two stationarity equations",
    num_equalities=1,
)
_define(
    "HS22",
    lambda a, b: ((a - 2) ** 2 + (b - 1) ** 2, [a + b - 2, a**2 - b]),
    ([2, 2], [1, 1], [2 / 3, 2 / 3]),
    "Hock-Schittkowski 22; at (1, 1): a + 2 b = 2 and a = b give both multipliers 2/3",
)
_define(
    "HS29",
    lambda a, b, c: (-a * b * c, [a**2 + 2 * b**2 + 4 * c**2 - 48]),
    ([1, 1, 1], [4, 2 * np.sqrt(2.0), 2], [np.sqrt(2.0) / 2]),
    "Hock-Schittkowski 29; closed form, 8 lambda = 4 sqrt(2) in the first coordinate",
)
_define(  # Rosen and Suzuki
    "HS43",
    lambda a, b, c, d: (
        a**2 + b**2 + 2 * c**2 + d**2 - 5 * a - 5 * b - 21 * c + 7 * d,
        [
            a**2 + b**2 + c**2 + d**2 + a - b + c - d - 8,
            a**2 + 2 * b**2 + c**2 + 2 * d**2 - a - d - 10,
            2 * a**2 + b**2 + c**2 + 2 * a - b - d - 5,
        ],
    ),
    ([0, 0, 0, 0], [0, 1, 2, -1], [1, 0, 2]),
    "Hock-Schittkowski 43 (Rosen-Suzuki); integers, the multipliers by elimination",
)
_define(
    "HS65",
    lambda a, b, c: ((a - b) ** 2 + (a + b - 10) ** 2 / 9 + (c - 5) ** 2, [a**2 + b**2 + c**2 - 48]),
    ([-5, 5, 0], [3.6504617252130362, 3.6504617252130362, 4.620417555320008], [0.0821532773034626]),
    f"Hock-Schittkowski 65; {REFINED}",
    domain=Box([-4.5, -4.5, -5.0], [4.5, 4.5, 5.0]),
)
_define(
    "HS71",
    lambda a, b, c, d: (a * d * (a + b + c) + c, [25 - a * b * c * d, a**2 + b**2 + c**2 + d**2 - 40]),
    (
        [1, 5, 5, 1],
        [1, 4.742999637264417, 3.821149984184874, 1.3794082931726723],
        [0.5522936601207269, 0.16146856677050586],
    ),
    f"Hock-Schittkowski 71; {REFINED}",
    num_equalities=1,
    domain=Box(1.0, 5.0),
)
_define(
    "HS76",
    lambda a, b, c, d: (
        a**2 + b**2 / 2 + c**2 + d**2 / 2 - a * c + c * d - a - 3 * b + c - d,
        [a + 2 * b + c + d - 5, 3 * a + b + 2 * c - d - 4, 1.5 - b - 4 * c],
    ),
    ([0.5, 0.5, 0.5, 0.5], [3 / 11, 23 / 11, 0, 6 / 11], [5 / 11, 0, 0]),
    "Hock-Schittkowski 76; fractions by elimination in the active linear system",
    domain=NonNegative(),
)
_define(
    "HS100",
    lambda a, b, c, d, e, p, q: (
        (a - 10) ** 2 + 5 * (b - 12) ** 2 + 3 * (d - 11) ** 2
        + c**4 + 10 * e**6 + 7 * p**2 + q**4 - 4 * p * q - 10 * p - 8 * q,
        [
            2 * a**2 + 3 * b**4 + c + 4 * d**2 + 5 * e - 127,
            7 * a + 3 * b + 10 * c**2 + d - e - 282,
            23 * a + b**2 + 6 * p**2 - 8 * q - 196,
            4 * a**2 + b**2 - 3 * a * b + 2 * c**2 + 5 * p - 11 * q,
        ],
    ),
    (
        [1, 2, 0, 4, 0, 1, 1],
        [2.33049937287957, 1.951372372896889, -0.4775413923888716, 4.36572623365581, -0.6244869705268175,
         1.0381310186079584, 1.5942267116118685],
        [1.139719959167376, 0.0, 0.0, 0.3686145171872114],
    ),
    f"Hock-Schittkowski 100; {REFINED}",
)  # fmt: skip
_define(  # Wong's second problem
    "HS113",
    lambda a, b, c, d, e, p, q, r, s, t: (
        a**2 + b**2 + a * b - 14 * a - 16 * b + (c - 10) ** 2 + 4 * (d - 5) ** 2 + (e - 3) ** 2
        + 2 * (p - 1) ** 2 + 5 * q**2 + 7 * (r - 11) ** 2 + 2 * (s - 10) ** 2 + (t - 7) ** 2 + 45,
        [
            4 * a + 5 * b - 3 * q + 9 * r - 105,
            10 * a - 8 * b - 17 * q + 2 * r,
            -8 * a + 2 * b + 5 * s - 2 * t - 12,
            3 * (a - 2) ** 2 + 4 * (b - 3) ** 2 + 2 * c**2 - 7 * d - 120,
            5 * a**2 + 8 * b + (c - 6) ** 2 - 2 * d - 40,
            0.5 * (a - 8) ** 2 + 2 * (b - 4) ** 2 + 3 * e**2 - p - 30,
            a**2 + 2 * (b - 2) ** 2 - 2 * a * b + 14 * e - 6 * p,
            -3 * a + 6 * b + 12 * (s - 8) ** 2 - 7 * t,
        ],
    ),
    (
        [2, 3, 5, 5, 1, 2, 7, 3, 6, 10],
        [2.1719963712554553, 2.3636829736972804, 8.77392573847685, 5.095984487948453, 0.9906547649638593,
         1.4305739789363159, 1.321644208161703, 9.828725807886322, 8.280091670098347, 8.375926663921323],
        [1.716533153468173, 0.4745201541889712, 1.375926663921323, 0.02054555510242241, 0.3120285089353327, 0.0,
         0.28704931929087724, 0.0],
    ),
    f"Hock-Schittkowski 113; {REFINED}",
)  # fmt: skip
# Problems whose set X carries part of the answer: a simplex, a box with active bounds, a ball.
_define(  # a mean return of at least 7/2; the last asset stays out
    "portfolio",
    lambda a, b, c, d: (2 * a**2 + 4 * b**2 + c**2 + d**2 / 2, [3.5 - 3 * a - 5 * b - 3 * c]),
    ([0.25, 0.25, 0.25, 0.25], [0.25, 0.25, 0.5, 0], [0.5]),
    "closed form: (1, 2, 1, 0) - lambda (3, 5, 3, 0) + 1/2 = (0, 0, 0, 1/2) at lambda = 1/2",
    domain=Simplex(),
    names=("return",),
)
_define(  # not convex; the gradient of the Lagrangian, (-10/3, 0, 2), pushes against two bounds
    "box-corner",
    lambda a, b, c: ((a - 3) ** 2 + (b - 2) ** 2 + (c + 2) ** 2, [b**2 + a * b - 2]),
    ([0.5, 2, 0.5], [1, 1, -1], [2 / 3]),
    "closed form: -2 + 3 lambda = 0 in the free coordinate gives lambda = 2/3",
    domain=Box([0.0, 0.0, -1.0], [1.0, 3.0, 1.0]),
)
_define(  # the edge of the ball is active
    "ball-product",
    lambda a, b: (-a * b, [b - 4]),
    ([1, 2], [5, 4], [2]),
    "closed form at (5, 4): (-4, -5) + lambda (0, 1) + nu (4, 3) = 0 gives nu = 1, lambda = 2",
    domain=Ball(5.0, [1.0, 1.0]),
)
# Two problems without an answer, to provoke the statuses of such problems.
_define(
    "disjoint-discs",
    lambda a, b: (b, [(a + 2) ** 2 + b**2 - 1, (a - 2) ** 2 + b**2 - 1]),
    ([1, 1], None, None),
    "the centers are 4 apart, the radii sum to 2; the violation is least at the origin",
    "infeasible",
    names=("left", "right"),
)
_define(
    "open-strip",
    lambda a, b: (-a * b, [(a - b) ** 2 - 1]),
    ([1, 0.5], None, None),
    "x = (t, t) is feasible for every t and f = -t^2",
    "unbounded",
)
