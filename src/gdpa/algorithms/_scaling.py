"""Units in which a problem is well scaled: its gradients at the start have largest components near 1."""

from __future__ import annotations

from typing import NamedTuple

from gdpa.arrays import max_norm, namespace
from gdpa.problem import Evaluation
from gdpa.typing import Array

#: A function of ordinary values that is flat at the start is enlarged by no more than this.
LARGEST = 100.0
#: Up to this many constraints, measuring each one's gradient at the start is worth m backward passes.
SCALING_LIMIT = 100


def worth_rows(now: Evaluation) -> bool:
    """Tell whether the gradient of every constraint at the start is worth its passes."""
    m = now.constraints.shape[-1]
    return m > 0 and (now.has_cheap_jacobian or m <= SCALING_LIMIT)


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


def scaling_from(values: tuple[Array, Array], gradient: Array, J: Array | None, enlarge: bool = True) -> Scaling:
    """Return ``s_f = 1 / |grad f|`` and ``s_i = 1 / |grad g_i|`` by largest components.

    A gradient that vanishes at the start says nothing about the size of its function, which then keeps its units. A
    small gradient beside a small value is a matter of units; beside a larger value it means a function flat at the
    start that may be steep elsewhere. So |grad g_i| counts as at least min(1/100, |g_i|), and
    |grad f| as at least min(1, 100 |f|).

    Args:
        values: f and g at the start.
        gradient: grad f there.
        J: the Jacobian there; None leaves the constraints in their own units.
        enlarge: enlarge an f flat at the start by up to 100, too. The one-pullback step needs f and g of one size, for
            its one matrix sees both; the step that knows the Jacobian does not.

    >>> import numpy as np
    >>> J = np.array([[4.0, 0.0], [0.5, 0.0], [0.0, 0.0], [1e-9, 0.0], [1e-9, 0.0]])
    >>> scaling = scaling_from((np.asarray(7.0), np.array([0.0, 0.0, 0.0, 9.0, -1e-8])), np.array([0.0, 2.0]), J)
    >>> scaling.objective, scaling.constraints.round(3).tolist()
    (0.5, [0.25, 2.0, 1.0, 100.0, 100000000.0])
    """
    f, g = values
    xp = namespace(g)
    size = float(max_norm(gradient))
    flat = min(1.0, LARGEST * abs(float(f))) / (LARGEST if enlarge else 1.0)
    objective = 1 / max(size, flat) if size > 0 else 1.0
    ones = xp.ones_like(g)
    if J is None:
        return Scaling(objective, ones)
    sizes = xp.maximum(max_norm(J), xp.minimum(ones / LARGEST, xp.abs(g)))
    return Scaling(objective, ones / xp.where(max_norm(J) > 0, sizes, ones))
