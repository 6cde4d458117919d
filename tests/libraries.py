"""Arrays of NumPy, torch and JAX from the same numbers, and problems from the same formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse

from gdpa import REALS, ConvexSet, Evaluation, Problem

LIBRARIES = ("numpy", "torch", "jax")

# SciPy's stubs know fewer arguments than these take: keywords from a table, a method that is a function, the Hessian
# of constraints, offsets in a list.
scipy_minimize: Any = scipy.optimize.minimize
NonlinearConstraint: Any = scipy.optimize.NonlinearConstraint
diags_array: Any = scipy.sparse.diags_array


@dataclass(frozen=True)
class Library:
    """An array library by name."""

    name: str

    def array(self, values: Any, dtype: str = "float64") -> Any:
        if self.name == "numpy":
            return np.asarray(values, dtype=dtype)
        if self.name == "torch":
            import torch

            return torch.tensor(np.asarray(values).tolist(), dtype=getattr(torch, dtype))
        import jax.numpy as jnp

        return jnp.asarray(values, dtype=dtype)

    def problem(
        self,
        function: Callable[[Any, Any], tuple[Any, Any]],
        gradient: Callable[[Any], Any],
        jacobian: Callable[[Any], Any],
        num_equalities: int = 0,
        domain: ConvexSet = REALS,
    ) -> Problem:
        """Return a problem from ``function(stack, x) -> (f, g)``; NumPy needs the derivatives written out.

        ``stack`` joins scalars into a vector on the last axis. ``gradient`` and ``jacobian`` act on NumPy points
        with any leading axes.
        """
        kinds = {"num_equalities": num_equalities, "domain": domain}
        if self.name == "torch":
            import torch

            from gdpa import from_torch

            return from_torch(lambda x: function(lambda parts: torch.stack(parts, dim=-1), x), **kinds)
        if self.name == "jax":
            import jax.numpy as jnp

            from gdpa import from_jax

            return from_jax(lambda x: function(lambda parts: jnp.stack(parts, axis=-1), x), **kinds)

        def evaluate(x: Any) -> Evaluation:
            f, g = function(lambda parts: np.stack(parts, axis=-1), x)

            def pullback(w: Any, objective: Any = 1.0) -> Any:
                scale = np.asarray(objective, dtype=x.dtype)[..., None]
                return scale * gradient(x) + np.einsum("...m,...md->...d", w, jacobian(x))

            return Evaluation(np.asarray(f), g, pullback)

        return Problem(evaluate, **kinds)


def to_numpy(x: Any) -> Any:
    """Return an array of any of the libraries as one of NumPy."""
    return np.asarray(x.detach() if hasattr(x, "detach") else x)


def contains(domain: ConvexSet, x: Any, tolerance: float = 1e-9) -> bool:
    """Return whether ``x`` lies within ``tolerance`` of the set."""
    gap, size = (np.abs(to_numpy(v)).max(axis=-1, initial=0.0) for v in (x - domain.project(x), x))
    return bool(np.all(gap <= tolerance * (1 + size)))
