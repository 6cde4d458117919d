"""Three families of banded problems, each with n variables for any n: functions, first and second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Vector = Any
#: The chain is this long between supports at distance 1.
LENGTH = 1.5
#: The time of the control problem, and the limit of the control.
TIME, LIMIT = 10.0, 0.75


@dataclass(frozen=True)
class Banded:
    """min f(x) subject to g(x) <= 0, of the last ``equalities`` g(x) = 0, and lower <= x <= upper.

    Attributes:
        name: the family.
        x0: the start.
        objective, gradient: f and its gradient.
        constraints: g; ``jacobian(x)`` are the entries of J at ``pattern``, rows and columns.
        hessian: ``hessian(x, w)`` are the entries of Hess f + sum w_i Hess g_i at ``hessian_pattern``, the lower
            triangle; an entry may occur twice, and its values are added.
    """

    name: str
    x0: Vector
    objective: Callable[[Vector], float]
    gradient: Callable[[Vector], Vector]
    constraints: Callable[[Vector], Vector]
    jacobian: Callable[[Vector], Vector]
    pattern: tuple[Vector, Vector]
    hessian: Callable[[Vector, Vector], Vector]
    hessian_pattern: tuple[Vector, Vector]
    equalities: int
    lower: Vector
    upper: Vector


def chain(n: int) -> Banded:
    """A chain of links that cannot stretch hangs between two supports: x holds the places of its joints.

    min sum y_k subject to |x_{k+1} - x_k|^2 / h^2 <= 1: convex, and its limit for small h is the catenary.
    """
    joints = n // 2
    links = joints + 1
    h = LENGTH / links
    ends = np.array([[0.0, 0.0]]), np.array([[1.0, 0.0]])
    s = np.arange(1, joints + 1) / links
    x0 = np.stack([s, -s * (1 - s)], axis=1).ravel()
    row, side, axis = np.meshgrid(np.arange(links), [0, 1], [0, 1], indexing="ij")
    columns = 2 * (row + side - 1) + axis
    inside = (columns >= 0) & (columns < n)
    signs = np.where(side == 1, 2.0, -2.0) / h**2

    def steps(x: Vector) -> Vector:
        return np.diff(np.concatenate([ends[0], x.reshape(-1, 2), ends[1]]), axis=0)

    k = np.arange(joints)
    own = np.concatenate([2 * k, 2 * k + 1])
    cross = np.concatenate([2 * k[1:], 2 * k[1:] + 1])

    def hessian(x: Vector, w: Vector) -> Vector:
        both, shared = 2 / h**2 * (w[:-1] + w[1:]), -2 / h**2 * w[1:-1]
        return np.concatenate([both, both, shared, shared])

    down = np.tile([0.0, 1.0], joints)
    return Banded(
        "chain",
        x0,
        lambda x: float(np.sum(x[1::2])),
        lambda x: down.copy(),
        lambda x: np.sum(steps(x) ** 2, axis=1) / h**2 - 1,
        lambda x: (signs * np.broadcast_to(steps(x)[:, None, :], row.shape))[inside],
        (row[inside], columns[inside]),
        hessian,
        (np.concatenate([own, cross]), np.concatenate([own, cross - 2])),
        0,
        np.full(n, -np.inf),
        np.full(n, np.inf),
    )


def obstacle(n: int) -> Banded:
    """A string is held at both ends and spans an obstacle: x holds its heights, and the obstacle is a lower bound.

    min sum h sqrt(1 + ((x_{i+1} - x_i) / h)^2) subject to x >= psi: convex, without constraints but the bounds.
    """
    h = 1.0 / (n + 1)
    t = np.arange(1, n + 1) * h
    psi = 0.2 - 2 * (t - 0.4) ** 2 + 0.03 * np.sin(9 * t)
    x0 = t * (1 - t)

    def slopes(x: Vector) -> Vector:
        return np.diff(x, prepend=0.0, append=0.0) / h

    def gradient(x: Vector) -> Vector:
        s = slopes(x)
        return -np.diff(s / np.sqrt(1 + s * s))

    def hessian(x: Vector, w: Vector) -> Vector:
        curved = (1 + slopes(x) ** 2) ** -1.5 / h
        return np.concatenate([curved[:-1] + curved[1:], -curved[1:-1]])

    i = np.arange(n)
    none = np.zeros(0, dtype=int)
    return Banded(
        "obstacle",
        x0,
        lambda x: float(h * np.sum(np.sqrt(1 + slopes(x) ** 2))),
        gradient,
        lambda x: np.zeros(0),
        lambda x: np.zeros(0),
        (none, none),
        hessian,
        (np.concatenate([i, i[1:]]), np.concatenate([i, i[:-1]])),
        0,
        psi,
        np.full(n, np.inf),
    )


def control(n: int) -> Banded:
    """The van der Pol oscillator is steered to rest: x holds two states and the control at each of n / 3 times.

    min h sum (a_k^2 + b_k^2 + u_k^2) / 2 subject to the Euler steps a_{k+1} = a_k + h b_k and
    b_{k+1} = b_k + h ((1 - a_k^2) b_k - a_k + u_k) as equalities, a_0 = b_0 = 1, and -0.75 <= u <= 0.75.
    """
    steps = n // 3
    n = 3 * steps
    h = TIME / steps
    x0 = np.tile([1.0, 0.0, 0.0], steps)
    k = np.arange(steps)
    first, second = 2 * k, 2 * k + 1
    a, b, u = 3 * k, 3 * k + 1, 3 * k + 2
    later = slice(1, None)

    def split(x: Vector) -> tuple[Vector, Vector, Vector]:
        return x[0::3], x[1::3], x[2::3]

    def before(x: Vector) -> tuple[Vector, Vector]:
        """Return the states one step earlier; the controls of a step are those at its end."""
        return np.concatenate([[1.0], x[0:-3:3]]), np.concatenate([[1.0], x[1:-3:3]])

    def constraints(x: Vector) -> Vector:
        (new_a, new_b, new_u), (old_a, old_b) = split(x), before(x)
        g = np.empty(2 * steps)
        g[0::2] = new_a - old_a - h * old_b
        g[1::2] = new_b - old_b - h * ((1 - old_a**2) * old_b - old_a + new_u)
        return g

    def jacobian(x: Vector) -> Vector:
        old_a, old_b = (v[later] for v in before(x))
        one, fewer = np.ones(steps), np.ones(steps - 1)
        return np.concatenate(
            [one, -fewer, -h * fewer, one, -h * one, h * (1 + 2 * old_a * old_b), -1 - h * (1 - old_a**2)]
        )

    def hessian(x: Vector, w: Vector) -> Vector:
        old_a, old_b = (v[later] for v in before(x))
        w = w[1::2][later]
        return np.concatenate([np.full(n, h), 2 * h * w * old_b, 2 * h * w * old_a])

    rows = (first, first[later], first[later], second, second, second[later], second[later])
    columns = (a, a[:-1], b[:-1], b, u, a[:-1], b[:-1])
    every = np.arange(n)
    lower, upper = np.full(n, -np.inf), np.full(n, np.inf)
    lower[2::3], upper[2::3] = -LIMIT, LIMIT
    return Banded(
        "control",
        x0,
        lambda x: float(h * np.sum(x * x) / 2),
        lambda x: h * x,
        constraints,
        jacobian,
        (np.concatenate(rows), np.concatenate(columns)),
        hessian,
        (np.concatenate([every, a[:-1], b[:-1]]), np.concatenate([every, a[:-1], a[:-1]])),
        2 * steps,
        lower,
        upper,
    )


FAMILIES = {"chain": chain, "obstacle": obstacle, "control": control}
