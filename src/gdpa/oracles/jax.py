"""Problems from JAX functions: one compiled forward, one compiled weighted backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gdpa.base.sets import REALS, ConvexSet
from gdpa.base.typing import Array
from gdpa.core.problem import Evaluation, Problem
from gdpa.oracles.returned import check_dtype, pair


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
        return jax.vjp(lambda y: _checked(function(y)), x)

    def backward(vjp: Any, f: jax.Array, g: jax.Array, objective: Any, w: jax.Array) -> jax.Array:
        cotangent = jnp.broadcast_to(jnp.asarray(objective, dtype=f.dtype), f.shape)
        return vjp((cotangent, jnp.asarray(w, dtype=g.dtype)))[0]  # type: ignore[no-any-return]

    if jit:
        forward, backward = jax.jit(forward), jax.jit(backward)

    def evaluate(x: Array) -> Evaluation:
        (f, g), vjp = forward(x)
        return Evaluation(f, g, lambda w, objective=1.0: backward(vjp, f, g, objective, w))

    return Problem(evaluate, num_constraints=num_constraints, num_equalities=num_equalities, domain=domain, names=names)


def _checked(returned: Any) -> tuple[jax.Array, jax.Array]:
    """Return the pair (f, g), or raise an error that shows the value returned instead."""
    f, g = pair(returned)
    for name, value in (("f", f), ("g", g)):
        if not isinstance(value, (jax.Array, np.ndarray, np.generic)):
            remedy = "jnp.stack of its parts" if name == "g" else "jnp.zeros(()) for none"
            raise TypeError(f"{name} must be a JAX array computed from x, got {value!r}; return an array: {remedy}")
        dtype = value.dtype
        check_dtype(name, value, jnp.issubdtype(dtype, jnp.bool_), jnp.issubdtype(dtype, jnp.floating))
    return f, g
