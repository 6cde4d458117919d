"""Problems from JAX functions: one compiled forward, one compiled weighted backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gdpa.base.checks import read_pair
from gdpa.base.sets import REALS, ConvexSet
from gdpa.base.typing import Array
from gdpa.core.problem import Evaluation, Problem

KINDS = (jax.Array, np.ndarray, np.generic)
#: The arrays to return for f and g if there is none, or none yet.
REMEDIES = ("an array: jnp.zeros(()) for none", "an array: jnp.stack of its parts")


def from_jax(
    function: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    *,
    num_constraints: int | None = None,
    num_equalities: int = 0,
    domain: ConvexSet = REALS,
    names: tuple[str, ...] | None = None,
    jit: bool = True,
) -> Problem:
    """Return a problem from one JAX function ``fn(x) -> (f, g)``.

    f has the leading axes of x and g one more axis of length m. ``jit=False`` leaves the function uncompiled.

    Example:
        >>> problem = from_jax(lambda x: ((x**2).sum(-1), 1 - x[..., :1]))
        >>> problem.evaluate(jnp.array([1.0, 0.0])).pullback(jnp.array([2.0])).tolist()
        [0.0, 0.0]
    """

    def forward(x: jax.Array) -> Any:
        return jax.vjp(lambda y: read_pair(function(y), "JAX array", KINDS, REMEDIES), x)

    def backward(vjp: Any, f: jax.Array, g: jax.Array, objective: Any, w: jax.Array) -> jax.Array:
        cotangent = jnp.broadcast_to(jnp.asarray(objective, dtype=f.dtype), f.shape)
        return vjp((cotangent, jnp.asarray(w, dtype=g.dtype)))[0]  # type: ignore[no-any-return]

    if jit:
        forward, backward = jax.jit(forward), jax.jit(backward)

    def evaluate(x: Array) -> Evaluation:
        (f, g), vjp = forward(x)
        return Evaluation(f, g, lambda w, objective=1.0: backward(vjp, f, g, objective, w))

    return Problem(evaluate, num_constraints=num_constraints, num_equalities=num_equalities, domain=domain, names=names)
