"""Limited-memory BFGS: what the last few steps say about curvature."""

from __future__ import annotations

from typing import NamedTuple

from gdpa.arrays import namespace
from gdpa.typing import Array


class Memory(NamedTuple):
    """Pairs s_i = x_{i+1} - x_i, y_i = change of the gradient, oldest first; ``scale`` is gamma of H_0 = gamma I."""

    steps: tuple[Array, ...] = ()
    changes: tuple[Array, ...] = ()
    scale: float = 1.0


def remember(memory: Memory, s: Array, y: Array, limit: int) -> Memory:
    """Return the memory with one more pair, at most ``limit`` of them.

    A pair without positive curvature, ``s'y <= eps ||s|| ||y||``, is left out (H must stay positive definite).

    >>> import numpy as np
    >>> remember(Memory(), np.array([1.0, 0.0]), np.array([4.0, 0.0]), limit=5).scale
    0.25
    """
    xp = namespace(s)
    sy, ss, yy = float(xp.sum(s * y)), float(xp.sum(s * s)), float(xp.sum(y * y))
    if not sy > float(xp.finfo(s.dtype).eps) ** 0.5 * (ss * yy) ** 0.5:
        return memory
    return Memory((*memory.steps, s)[-limit:], (*memory.changes, y)[-limit:], sy / yy)


def inverse_product(memory: Memory, v: Array, free: Array | None = None) -> Array:
    """Return H v by the two-loop recursion (Nocedal and Wright, Algorithm 7.4).

    With ``free`` (1 for a free coordinate, 0 for a fixed one) H is that of the pairs restricted to the free
    coordinates, and so are v and the result.

    >>> import numpy as np
    >>> memory = remember(Memory(), np.array([1.0, 0.0]), np.array([4.0, 0.0]), limit=5)
    >>> inverse_product(memory, np.array([4.0, 4.0])).tolist()
    [1.0, 1.0]
    """
    xp = namespace(v)
    tiny = float(xp.finfo(v.dtype).eps)
    gamma = memory.scale + xp.zeros_like(v[0])
    kept = []
    if free is not None:
        v = free * v
    for s, y in zip(memory.steps, memory.changes, strict=True):
        if free is not None:
            s, y = free * s, free * y
        sy, yy = xp.sum(s * y), xp.sum(y * y)
        good = sy * sy > tiny * tiny * xp.sum(s * s) * yy
        good = good & (sy > 0)  # a pair may lose its curvature by the restriction: it then counts for nothing
        one = xp.ones_like(sy)
        kept.append((s, y, xp.where(good, one / xp.where(good, sy, one), 0 * one)))
        gamma = xp.where(good, sy / xp.where(good, yy, one), gamma)
    coefficients = []
    for s, y, rho in reversed(kept):
        a = rho * xp.sum(s * v)
        coefficients.append(a)
        v = v - a * y
    v = gamma * v
    for (s, y, rho), a in zip(kept, reversed(coefficients), strict=True):
        v = v + (a - rho * xp.sum(y * v)) * s
    return v
