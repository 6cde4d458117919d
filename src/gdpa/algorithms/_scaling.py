"""Units in which a problem is well scaled: its gradients at the start have largest components near 1."""

from __future__ import annotations

from typing import NamedTuple

from gdpa.arrays import max_norm, namespace
from gdpa.problem import Evaluation, jacobian
from gdpa.typing import Array

#: Above this many constraints each keeps its own units: measuring a gradient each would cost m backward passes.
SCALING_LIMIT = 100


class Scaling(NamedTuple):
    """Positive factors s_f of f and s_i of g_i. The scaled problem has f' = s_f f, g' = s g, lambda' = lambda s_f / s.

    >>> import numpy as np
    >>> scaling = Scaling(0.5, np.array([2.0]))
    >>> scaling.unscale(np.array([4.0])).tolist()
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

    def unscale(self, multipliers: Array) -> Array:
        """Return the multipliers of the problem as the user wrote it."""
        return self.constraints * multipliers / self.objective


def scaling_at(evaluation: Evaluation) -> Scaling:
    """Return ``s_f = 1 / max(1, |grad f|_inf)`` and ``s_i = 1 / max(1, |grad g_i|_inf)``, by m + 1 backward passes.

    Gradients below 1 are left alone: a function flat at the start may be steep elsewhere.

    >>> import numpy as np
    >>> J = np.array([[4.0, 0.0], [0.5, 0.0]])
    >>> pullback = lambda w, objective=1.0: objective * np.array([0.0, 2.0]) + w @ J
    >>> scaling = scaling_at(Evaluation(np.array(0.0), np.zeros(2), pullback))
    >>> scaling.objective, scaling.constraints.tolist()
    (0.5, [0.25, 1.0])
    """
    g = evaluation.constraints
    xp = namespace(g)
    size = float(max_norm(evaluation.pullback(xp.zeros_like(g))))
    ones = xp.ones_like(g)
    if g.shape[-1] == 0 or g.shape[-1] > SCALING_LIMIT:
        return Scaling(1 / max(1.0, size), ones)
    return Scaling(1 / max(1.0, size), ones / xp.maximum(max_norm(jacobian(evaluation)), ones))
