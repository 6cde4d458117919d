"""Limited-memory BFGS: what the last few steps say about curvature.

B is the matrix built from ``sigma I`` by the BFGS formula with the pairs (s_i, y_i), and H its inverse.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from array_api_compat import is_jax_array

from gdpa.arrays import from_numpy, max_norm, namespace, to_numpy
from gdpa.typing import Array

#: Curvature below this share of what B says is none.
FLAT = 1e-6

Matrix = np.ndarray[Any, np.dtype[np.float64]]


class Memory(NamedTuple):
    """Pairs of a step s and the change y of the gradient along it, oldest first, each divided by ||s||.

    (BFGS does not see the length of a pair; unit steps keep the small matrices below well scaled.)
    ``sigma`` is the curvature assumed where the pairs say nothing: B_0 = sigma I. ``length`` is the last ||s||.
    """

    steps: tuple[Array, ...] = ()
    changes: tuple[Array, ...] = ()
    sigma: float = 1.0
    length: float = 0.0


def forgotten(gradient: Array) -> Memory:
    """Return a memory without pairs, whose first step down the gradient is of length 1 at most.

    >>> forgotten(np.array([3.0, -4.0])).sigma
    4.0
    """
    return Memory(sigma=max(1.0, float(max_norm(gradient))))


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # what is not finite is refused later
def remember(memory: Memory, s: Array, y: Array, limit: int) -> Memory:
    """Return the memory with one more pair, at most ``limit`` of them; sigma becomes y'y / s'y.

    Where the function curves less than B says, Powell's damping takes y between the true change and B s, such that
    s'y = 0.2 s'Bs: B stays positive definite. Along a direction without any curvature B would so fall to zero: it
    may while the steps do not shrink (the function has no lower bound there, or is nearly flat), else s is no news.

    References:
        M. J. D. Powell, "A fast algorithm for nonlinearly constrained optimization calculations" (1978);
        J. Nocedal and S. J. Wright, "Numerical Optimization", Procedure 18.2.

    >>> remember(Memory(), np.array([2.0, 0.0]), np.array([8.0, 0.0]), limit=5)
    Memory(steps=(array([1., 0.]),), changes=(array([4., 0.]),), sigma=4.0, length=2.0)
    """
    xp = namespace(s)
    size = float(xp.sum(s * s)) ** 0.5
    if not size > 0:
        return memory
    s, y = s / size, y / size
    curvature = float(xp.sum(s * y))
    Bs = matrix_product(memory, s)
    model = float(xp.sum(s * Bs))
    if curvature <= FLAT * model and size < 0.5 * memory.length:
        return memory._replace(length=size)
    if curvature < 0.2 * model:
        theta = 0.8 * model / (model - curvature)
        y = theta * y + (1 - theta) * Bs
        curvature = float(xp.sum(s * y))
    sigma = float(xp.sum(y * y)) / curvature if curvature > 0 else float("inf")
    if not 0 < sigma < float("inf"):
        return memory
    return Memory((*memory.steps, s)[-limit:], (*memory.changes, y)[-limit:], sigma, size)


def inverse_product(memory: Memory, v: Array) -> Array:
    """Return H v by the two-loop recursion (Nocedal and Wright, Algorithm 7.4).

    >>> memory = remember(Memory(), np.array([1.0, 0.0]), np.array([4.0, 0.0]), limit=5)
    >>> inverse_product(memory, np.array([4.0, 4.0])).tolist()
    [1.0, 1.0]
    """
    xp = namespace(v)
    pairs = [(s, y, 1 / xp.sum(s * y)) for s, y in zip(memory.steps, memory.changes, strict=True)]
    coefficients = []
    for s, y, rho in reversed(pairs):
        coefficients.append(rho * xp.sum(s * v))
        v = v - coefficients[-1] * y
    v = v / memory.sigma
    for (s, y, rho), a in zip(pairs, reversed(coefficients), strict=True):
        v = v + (a - rho * xp.sum(y * v)) * s
    return v


def middle_matrix(ss: Matrix, sy: Matrix, sigma: float) -> Matrix:
    """Return K of the compact form ``B = sigma I - W K^-1 W^T`` with ``W = [sigma S, Y]`` (columns s_i, y_i).

    Args:
        ss: S^T S.
        sy: S^T Y.
        sigma: the curvature of B_0.

    References:
        R. H. Byrd, J. Nocedal and R. B. Schnabel, "Representations of quasi-Newton matrices and their use in limited
        memory methods", Mathematical Programming 63 (1994), eq. (2.17).

    >>> middle_matrix(np.eye(1), 4 * np.eye(1), 2.0).tolist()
    [[2.0, 0.0], [0.0, -4.0]]
    """
    L = np.tril(sy, -1)
    return np.block([[sigma * ss, L], [L.T, -np.diag(np.diag(sy))]])


def matrix_product(memory: Memory, v: Array) -> Array:
    """Return B v by the compact form.

    >>> memory = remember(Memory(), np.array([1.0, 0.0]), np.array([4.0, 0.0]), limit=5)
    >>> matrix_product(memory, np.array([1.0, 1.0])).tolist()
    [4.0, 4.0]
    """
    if not memory.steps:
        return memory.sigma * v
    k, sigma = len(memory.steps), memory.sigma
    Z = stack_rows([*memory.steps, *memory.changes])
    gram, u = host(Z @ Z.T), host(Z @ v)
    units = np.repeat([sigma, 1.0], k)
    K = middle_matrix(gram[:k, :k], gram[:k, k : 2 * k], sigma)
    return sigma * v - combine(units * solve_symmetric(K, units * u[: 2 * k]), Z)


def stack_rows(rows: list[Array]) -> Array:
    """Return the rows as a matrix. For JAX, which compiles anew for every shape, rows of zeros fill it up to eights.

    >>> stack_rows([np.ones(2), np.zeros(2)]).tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """
    if is_jax_array(rows[0]):
        rows = rows + [0 * rows[0]] * (-len(rows) % 8)
    return namespace(rows[0]).stack(rows)


def combine(coefficients: Matrix, rows: Array) -> Array:
    """Return the combination of the rows of `stack_rows` by coefficients from the host.

    >>> combine(np.array([2.0]), np.array([[1.0, 3.0], [0.0, 0.0]])).tolist()
    [2.0, 6.0]
    """
    padded = np.zeros(rows.shape[0])
    padded[: len(coefficients)] = coefficients
    return from_numpy(padded, rows) @ rows


def host(a: Array) -> Matrix:
    """Return ``a`` on the host in double precision: small matrices are solved there."""
    return np.asarray(to_numpy(a), dtype=np.float64)


def solve_symmetric(A: Matrix, b: Matrix) -> Matrix:
    """Return the solution of A y = b, A with its diagonal scaled to one; a singular A gives the least squares one.

    >>> solve_symmetric(np.diag([4.0, 0.0]), np.array([4.0, 0.0])).tolist()
    [1.0, 0.0]
    """
    size = np.sqrt(np.abs(np.diag(A)))
    size[size == 0] = 1.0
    scaled, right = A / np.outer(size, size), (b.T / size).T
    try:
        y = np.linalg.solve(scaled, right)
    except np.linalg.LinAlgError:
        y = np.linalg.lstsq(scaled, right, rcond=None)[0]
    return np.asarray((y.T / size).T)
