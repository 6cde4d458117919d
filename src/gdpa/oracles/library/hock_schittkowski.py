"""Problems of Hock and Schittkowski, "Test Examples for Nonlinear Programming Codes", 1981.

Inequalities are written ``g(x) <= 0`` (the book has ``>= 0``), bounds are the set X, equalities come last. The book
prints six to ten digits of x*; if no closed form is given, the digits below are a Newton solution of the KKT
system on the active set.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gdpa.base.sets import Box, NonNegative
from gdpa.base.typing import Vector
from gdpa.oracles.functions import from_functions
from gdpa.oracles.library.base import TestProblem

REFINED = "digits refined by Newton on the active set"


def hs10() -> TestProblem:
    """``min x0 - x1`` subject to ``3 x0^2 - 2 x0 x1 + x1^2 <= 1``."""
    problem = from_functions(
        lambda x: x[0] - x[1],
        lambda x: np.array([3 * x[0] ** 2 - 2 * x[0] * x[1] + x[1] ** 2 - 1]),
        gradient=lambda x: np.array([1.0, -1.0]),
        jacobian=lambda x: np.array([[6 * x[0] - 2 * x[1], 2 * x[1] - 2 * x[0]]]),
    )
    source = "Hock-Schittkowski 10; at (0, 1) the normal is (-2, 2), so lambda = 1/2"
    return TestProblem("HS10", problem, np.array([-10.0, 10.0]), np.array([0.0, 1.0]), np.array([0.5]), source)


def hs11() -> TestProblem:
    """``min (x0 - 5)^2 + x1^2 - 25`` subject to ``x0^2 <= x1``."""
    problem = from_functions(
        lambda x: (x[0] - 5) ** 2 + x[1] ** 2 - 25,
        lambda x: np.array([x[0] ** 2 - x[1]]),
        gradient=lambda x: np.array([2 * (x[0] - 5), 2 * x[1]]),
        jacobian=lambda x: np.array([[2 * x[0], -1.0]]),
    )
    solution = np.array([1.234772825053297, 1.5246639294900999])
    return TestProblem(
        "HS11",
        problem,
        np.array([4.9, 0.1]),
        solution,
        np.array([3.0493278589801998]),
        f"Hock-Schittkowski 11; {REFINED}",
    )


def hs12() -> TestProblem:
    """``min x0^2/2 + x1^2 - x0 x1 - 7 x0 - 7 x1`` subject to ``4 x0^2 + x1^2 <= 25``."""
    problem = from_functions(
        lambda x: 0.5 * x[0] ** 2 + x[1] ** 2 - x[0] * x[1] - 7 * x[0] - 7 * x[1],
        lambda x: np.array([4 * x[0] ** 2 + x[1] ** 2 - 25]),
        gradient=lambda x: np.array([x[0] - x[1] - 7, 2 * x[1] - x[0] - 7]),
        jacobian=lambda x: np.array([[8 * x[0], 2 * x[1]]]),
    )
    source = "Hock-Schittkowski 12; grad f = (-8, -3) and the normal (16, 6) at (2, 3) give lambda = 1/2"
    return TestProblem("HS12", problem, np.zeros(2), np.array([2.0, 3.0]), np.array([0.5]), source)


def hs14() -> TestProblem:
    """``min (x0 - 2)^2 + (x1 - 1)^2`` subject to ``x0^2/4 + x1^2 <= 1`` and ``2 x1 - x0 - 1 = 0``.

    The equality carries the sign that makes its multiplier negative.
    """
    problem = from_functions(
        lambda x: (x[0] - 2) ** 2 + (x[1] - 1) ** 2,
        lambda x: np.array([x[0] ** 2 / 4 + x[1] ** 2 - 1, 2 * x[1] - x[0] - 1]),
        gradient=lambda x: np.array([2 * (x[0] - 2), 2 * (x[1] - 1)]),
        jacobian=lambda x: np.array([[x[0] / 2, 2 * x[1]], [-1.0, 2.0]]),
        num_equalities=1,
    )
    root = np.sqrt(7.0)
    source = "Hock-Schittkowski 14; x* in closed form, the multipliers by elimination in the two stationarity equations"
    return TestProblem(
        "HS14",
        problem,
        np.array([2.0, 2.0]),
        np.array([(root - 1) / 2, (root + 1) / 4]),
        np.array([23 / (2 * root) - 5 / 2, 3 * root / 8 - 3 / 2 - 23 / (8 * root)]),
        source,
    )


def hs22() -> TestProblem:
    """``min (x0 - 2)^2 + (x1 - 1)^2`` subject to ``x0 + x1 <= 2`` and ``x0^2 <= x1``."""
    problem = from_functions(
        lambda x: (x[0] - 2) ** 2 + (x[1] - 1) ** 2,
        lambda x: np.array([x[0] + x[1] - 2, x[0] ** 2 - x[1]]),
        gradient=lambda x: np.array([2 * (x[0] - 2), 2 * (x[1] - 1)]),
        jacobian=lambda x: np.array([[1.0, 1.0], [2 * x[0], -1.0]]),
    )
    source = "Hock-Schittkowski 22; at (1, 1): a + 2 b = 2 and a = b give both multipliers 2/3"
    return TestProblem("HS22", problem, np.array([2.0, 2.0]), np.ones(2), np.array([2.0, 2.0]) / 3, source)


def hs29() -> TestProblem:
    """``min -x0 x1 x2`` subject to ``x0^2 + 2 x1^2 + 4 x2^2 <= 48``."""
    problem = from_functions(
        lambda x: -x[0] * x[1] * x[2],
        lambda x: np.array([x[0] ** 2 + 2 * x[1] ** 2 + 4 * x[2] ** 2 - 48]),
        gradient=lambda x: -np.array([x[1] * x[2], x[0] * x[2], x[0] * x[1]]),
        jacobian=lambda x: np.array([[2 * x[0], 4 * x[1], 8 * x[2]]]),
    )
    root = np.sqrt(2.0)
    source = "Hock-Schittkowski 29; closed form, 8 lambda = 4 sqrt(2) in the first coordinate"
    return TestProblem("HS29", problem, np.ones(3), np.array([4.0, 2 * root, 2.0]), np.array([root / 2]), source)


def hs43() -> TestProblem:
    """Rosen and Suzuki: a convex quadratic in four variables under three quadratic constraints."""

    def constraints(x: Vector) -> Vector:
        a, b, c, d = x
        return np.array(
            [
                a * a + b * b + c * c + d * d + a - b + c - d - 8,
                a * a + 2 * b * b + c * c + 2 * d * d - a - d - 10,
                2 * a * a + b * b + c * c + 2 * a - b - d - 5,
            ]
        )

    problem = from_functions(
        lambda x: x @ (np.array([1, 1, 2, 1]) * x) + np.array([-5, -5, -21, 7]) @ x,
        constraints,
        gradient=lambda x: np.array([2, 2, 4, 2]) * x + np.array([-5, -5, -21, 7]),
        jacobian=lambda x: np.array(
            [
                [2 * x[0] + 1, 2 * x[1] - 1, 2 * x[2] + 1, 2 * x[3] - 1],
                [2 * x[0] - 1, 4 * x[1], 2 * x[2], 4 * x[3] - 1],
                [4 * x[0] + 2, 2 * x[1] - 1, 2 * x[2], -1.0],
            ]
        ),
    )
    source = "Hock-Schittkowski 43 (Rosen-Suzuki); integers, the multipliers by elimination"
    return TestProblem("HS43", problem, np.zeros(4), np.array([0.0, 1.0, 2.0, -1.0]), np.array([1.0, 0.0, 2.0]), source)


def hs65() -> TestProblem:
    """``min (x0 - x1)^2 + (x0 + x1 - 10)^2 / 9 + (x2 - 5)^2`` on a ball of radius sqrt(48), in a box."""
    problem = from_functions(
        lambda x: (x[0] - x[1]) ** 2 + (x[0] + x[1] - 10) ** 2 / 9 + (x[2] - 5) ** 2,
        lambda x: np.array([x @ x - 48]),
        gradient=lambda x: np.array(
            [
                2 * (x[0] - x[1]) + 2 * (x[0] + x[1] - 10) / 9,
                -2 * (x[0] - x[1]) + 2 * (x[0] + x[1] - 10) / 9,
                2 * (x[2] - 5),
            ]
        ),
        jacobian=lambda x: 2 * x[None],
        domain=Box([-4.5, -4.5, -5.0], [4.5, 4.5, 5.0]),
    )
    solution = np.array([3.6504617252130362, 3.6504617252130362, 4.620417555320008])
    return TestProblem(
        "HS65",
        problem,
        np.array([-5.0, 5.0, 0.0]),
        solution,
        np.array([0.0821532773034626]),
        f"Hock-Schittkowski 65; {REFINED}",
    )


def hs71() -> TestProblem:
    """``min x0 x3 (x0 + x1 + x2) + x2``, product at least 25, squared norm equal to 40, all in [1, 5]."""
    problem = from_functions(
        lambda x: x[0] * x[3] * (x[0] + x[1] + x[2]) + x[2],
        lambda x: np.array([25 - x[0] * x[1] * x[2] * x[3], x @ x - 40]),
        gradient=lambda x: np.array(
            [
                x[3] * (2 * x[0] + x[1] + x[2]),
                x[0] * x[3],
                x[0] * x[3] + 1,
                x[0] * (x[0] + x[1] + x[2]),
            ]
        ),
        jacobian=lambda x: np.array(
            [
                [-x[1] * x[2] * x[3], -x[0] * x[2] * x[3], -x[0] * x[1] * x[3], -x[0] * x[1] * x[2]],
                2 * x,
            ]
        ),
        num_equalities=1,
        domain=Box(1.0, 5.0),
    )
    solution = np.array([1.0, 4.742999637264417, 3.821149984184874, 1.3794082931726723])
    multipliers = np.array([0.5522936601207269, 0.16146856677050586])
    return TestProblem(
        "HS71", problem, np.array([1.0, 5.0, 5.0, 1.0]), solution, multipliers, f"Hock-Schittkowski 71; {REFINED}"
    )


def hs76() -> TestProblem:
    """A convex quadratic in four nonnegative variables under three linear constraints; one bound is active."""
    Q = np.array([[2.0, 0, -1, 0], [0, 1, 0, 0], [-1, 0, 2, 1], [0, 0, 1, 1]])
    c = np.array([-1.0, -3, 1, -1])
    A = np.array([[1.0, 2, 1, 1], [3, 1, 2, -1], [0, -1, -4, 0]])
    b = np.array([5.0, 4, -1.5])
    problem = from_functions(
        lambda x: x @ Q @ x / 2 + c @ x,
        lambda x: A @ x - b,
        gradient=lambda x: Q @ x + c,
        jacobian=lambda x: A,
        domain=NonNegative(),
    )
    source = "Hock-Schittkowski 76; fractions by elimination in the active linear system"
    return TestProblem(
        "HS76", problem, np.full(4, 0.5), np.array([3.0, 23.0, 0.0, 6.0]) / 11, np.array([5 / 11, 0.0, 0.0]), source
    )


def hs100() -> TestProblem:
    """A polynomial in seven variables under four constraints, two of them active."""

    def objective(x: Vector) -> Any:
        a, b, c, d, e, p, q = x
        quartic = c**4 + 10 * e**6 + 7 * p * p + q**4 - 4 * p * q - 10 * p - 8 * q
        return (a - 10) ** 2 + 5 * (b - 12) ** 2 + 3 * (d - 11) ** 2 + quartic

    def gradient(x: Vector) -> Vector:
        a, b, c, d, e, p, q = x
        return np.array(
            [
                2 * (a - 10),
                10 * (b - 12),
                4 * c**3,
                6 * (d - 11),
                60 * e**5,
                14 * p - 4 * q - 10,
                4 * q**3 - 4 * p - 8,
            ]
        )

    def constraints(x: Vector) -> Vector:
        a, b, c, d, e, p, q = x
        return np.array(
            [
                2 * a * a + 3 * b**4 + c + 4 * d * d + 5 * e - 127,
                7 * a + 3 * b + 10 * c * c + d - e - 282,
                23 * a + b * b + 6 * p * p - 8 * q - 196,
                4 * a * a + b * b - 3 * a * b + 2 * c * c + 5 * p - 11 * q,
            ]
        )

    def jacobian(x: Vector) -> Vector:
        a, b, c, d, _, p, _ = x
        return np.array(
            [
                [4 * a, 12 * b**3, 1, 8 * d, 5, 0, 0],
                [7, 3, 20 * c, 1, -1, 0, 0],
                [23, 2 * b, 0, 0, 0, 12 * p, -8],
                [8 * a - 3 * b, 2 * b - 3 * a, 4 * c, 0, 0, 5, -11],
            ]
        )

    problem = from_functions(objective, constraints, gradient=gradient, jacobian=jacobian)
    solution = np.array(
        [
            2.33049937287957,
            1.951372372896889,
            -0.4775413923888716,
            4.36572623365581,
            -0.6244869705268175,
            1.0381310186079584,
            1.5942267116118685,
        ]
    )
    multipliers = np.array([1.139719959167376, 0.0, 0.0, 0.3686145171872114])
    x0 = np.array([1.0, 2.0, 0.0, 4.0, 0.0, 1.0, 1.0])
    return TestProblem("HS100", problem, x0, solution, multipliers, f"Hock-Schittkowski 100; {REFINED}")


def hs113() -> TestProblem:
    """Wong's second problem: a convex quadratic in ten variables under eight constraints, six of them active."""
    weights = np.array([1.0, 1, 1, 4, 1, 2, 5, 7, 2, 1])
    center = np.array([0.0, 0, 10, 5, 3, 1, 0, 11, 10, 7])

    def objective(x: Vector) -> Any:
        return weights @ (x - center) ** 2 + x[0] * x[1] - 14 * x[0] - 16 * x[1] + 45

    def gradient(x: Vector) -> Vector:
        out: Vector = 2 * weights * (x - center)
        out[0] += x[1] - 14
        out[1] += x[0] - 16
        return out

    def constraints(x: Vector) -> Vector:
        a, b, c, d, e, p, q, r, s, t = x
        return np.array(
            [
                4 * a + 5 * b - 3 * q + 9 * r - 105,
                10 * a - 8 * b - 17 * q + 2 * r,
                -8 * a + 2 * b + 5 * s - 2 * t - 12,
                3 * (a - 2) ** 2 + 4 * (b - 3) ** 2 + 2 * c * c - 7 * d - 120,
                5 * a * a + 8 * b + (c - 6) ** 2 - 2 * d - 40,
                0.5 * (a - 8) ** 2 + 2 * (b - 4) ** 2 + 3 * e * e - p - 30,
                a * a + 2 * (b - 2) ** 2 - 2 * a * b + 14 * e - 6 * p,
                -3 * a + 6 * b + 12 * (s - 8) ** 2 - 7 * t,
            ]
        )

    def jacobian(x: Vector) -> Vector:
        a, b, c, _, e, _, _, _, s, _ = x
        return np.array(
            [
                [4, 5, 0, 0, 0, 0, -3, 9, 0, 0],
                [10, -8, 0, 0, 0, 0, -17, 2, 0, 0],
                [-8, 2, 0, 0, 0, 0, 0, 0, 5, -2],
                [6 * (a - 2), 8 * (b - 3), 4 * c, -7, 0, 0, 0, 0, 0, 0],
                [10 * a, 8, 2 * (c - 6), -2, 0, 0, 0, 0, 0, 0],
                [a - 8, 4 * (b - 4), 0, 0, 6 * e, -1, 0, 0, 0, 0],
                [2 * a - 2 * b, 4 * (b - 2) - 2 * a, 0, 0, 14, -6, 0, 0, 0, 0],
                [-3, 6, 0, 0, 0, 0, 0, 0, 24 * (s - 8), -7],
            ]
        )

    problem = from_functions(objective, constraints, gradient=gradient, jacobian=jacobian)
    solution = np.array(
        [
            2.1719963712554553,
            2.3636829736972804,
            8.77392573847685,
            5.095984487948453,
            0.9906547649638593,
            1.4305739789363159,
            1.321644208161703,
            9.828725807886322,
            8.280091670098347,
            8.375926663921323,
        ]
    )
    multipliers = np.array(
        [
            1.716533153468173,
            0.4745201541889712,
            1.375926663921323,
            0.02054555510242241,
            0.3120285089353327,
            0.0,
            0.28704931929087724,
            0.0,
        ]
    )
    x0 = np.array([2.0, 3.0, 5.0, 5.0, 1.0, 2.0, 7.0, 3.0, 6.0, 10.0])
    return TestProblem("HS113", problem, x0, solution, multipliers, f"Hock-Schittkowski 113; {REFINED}")
