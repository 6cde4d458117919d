"""Units in which a problem is well scaled: its gradients at the start have largest components near 1."""

from __future__ import annotations

from typing import NamedTuple

from gdpa.arrays import max_norm, namespace
from gdpa.problem import Evaluation
from gdpa.typing import Array

#: A function flat at the start is enlarged by no more than this: it may be steep elsewhere.
LARGEST = 100.0


class Scaling(NamedTuple):
    """Positive factors s_f of f and s_i of g_i: the scaled problem has f' = s_f f, g' = s g, lambda' = lambda s_f / s.

    >>> import numpy as np
    >>> Scaling(0.5, np.array([2.0])).unscale(np.array([4.0])).tolist()
    [16.0]
    """

    objective: float
    constraints: Array

    def values(self, evaluation: Evaluation) -> tuple[Array, Array]:
        """Return the scaled values (f', g')."""
        return self.objective * evaluation.objective, self.constraints * evaluation.constraints

    def pullback(self, evaluation: Evaluation, multipliers: Array) -> Array:
        """Return grad f' + J'^T multipliers, one backward pass."""
        return evaluation.pullback(self.constraints * multipliers, self.objective)

    def scale(self, multipliers: Array) -> Array:
        """Return the multipliers of the scaled problem."""
        return multipliers * self.objective / self.constraints

    def unscale(self, multipliers: Array) -> Array:
        """Return the multipliers of the problem as the user wrote it."""
        return self.constraints * multipliers / self.objective


def scaling_from(gradient: Array, constraints: Array, J: Array | None, enlarge: bool = True) -> Scaling:
    """Return ``s_f = 1 / |grad f|`` and ``s_i = 1 / |grad g_i|`` by largest components, none above 100.

    A gradient that vanishes at the start says nothing about the size of its function, which then keeps its units.

    Args:
        gradient: grad f at the start.
        constraints: g at the start.
        J: the Jacobian at the start; None leaves the constraints in their own units.
        enlarge: enlarge an f flat at the start, too. The one-pullback step needs f and g of one size, for its one
            matrix sees both; the step that knows the Jacobian does not.

    >>> import numpy as np
    >>> J = np.array([[4.0, 0.0], [0.5, 0.0], [0.0, 0.0], [1e-9, 0.0]])
    >>> scaling = scaling_from(np.array([0.0, 2.0]), np.zeros(4), J)
    >>> scaling.objective, scaling.constraints.tolist()
    (0.5, [0.25, 2.0, 1.0, 100.0])
    """
    xp = namespace(constraints)
    ones = xp.ones_like(constraints)
    size = float(max_norm(gradient))
    objective = 1 / max(size, 1 / LARGEST if enlarge else 1.0) if size > 0 else 1.0
    if J is None:
        return Scaling(objective, ones)
    sizes = max_norm(J)
    # A small value beside a small gradient is a matter of units, a large one means a function flat at the start.
    flat = xp.minimum(ones, xp.abs(constraints)) / LARGEST
    return Scaling(objective, xp.where(sizes > 0, ones / xp.maximum(sizes, flat), ones))
