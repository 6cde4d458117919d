"""The one abstraction of the library: an oracle call.

Every method here needs only the values of f and g at a point and *weighted* gradients there::

    min f(x)   subject to   g_i(x) <= 0  (i < m - p),   g_i(x) = 0  (the last p),   x in X

One call of `Problem.evaluate` is one forward pass; one call of `Evaluation.pullback` is one backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import array_api_compat

from gdpa.arrays import namespace
from gdpa.sets import REALS, ConvexSet
from gdpa.typing import Array, Pullback


class Evaluation(NamedTuple):
    """What one oracle call returns at a point x.

    Attributes:
        objective: f(x), a scalar array (or one value per leading axis).
        constraints: g(x), its last axis of length m.
        pullback: ``pullback(w, objective=1.0)`` is ``objective * grad f(x) + J(x)^T w``, one backward pass.
    """

    objective: Array
    constraints: Array
    pullback: Pullback


@dataclass(frozen=True)
class Problem:
    """``min f(x)`` subject to ``g(x) <= 0`` and ``x in X``, given by its oracle.

    Args:
        evaluate: maps x to an `Evaluation`.
        num_constraints: m, the length of g. ``None`` takes it from the first evaluation.
        num_equalities: p, how many of the *last* constraints must equal zero instead.
        domain: the convex set X, see `gdpa.sets`.
        names: one name per constraint, used by messages and reports.
        jacobian: optional; maps x to J(x) of shape (..., m, d) where that costs about one backward pass.
            Without it, rows are pulled back one at a time, see `jacobian`. It belongs to ``evaluate``: replace both.

    Example:
        The projection of (2, 0) on the unit disc.

        >>> import numpy as np
        >>> def evaluate(x):
        ...     c = x - np.array([2.0, 0.0])
        ...     pullback = lambda w, objective=1.0: objective * c + 2 * w[0] * x
        ...     return Evaluation(c @ c / 2, np.array([x @ x - 1]), pullback)
        >>> problem = Problem(evaluate, num_constraints=1)
        >>> problem.evaluate(np.array([1.0, 0.0])).pullback(np.array([0.5])).tolist()
        [0.0, 0.0]
    """

    evaluate: Callable[[Array], Evaluation]
    num_constraints: int | None = None
    num_equalities: int = 0
    domain: ConvexSet = REALS
    names: tuple[str, ...] | None = None
    jacobian: Callable[[Array], Array] | None = None

    def __post_init__(self) -> None:
        if not callable(self.evaluate):
            raise TypeError(f"evaluate must be callable, got {self.evaluate!r}; pass a function x -> Evaluation")
        m = self.num_constraints
        if m is not None and (not isinstance(m, int) or m < 0):
            raise ValueError(f"num_constraints must be a nonnegative integer or None, got {m!r}")
        p = self.num_equalities
        if not isinstance(p, int) or p < 0 or (m is not None and p > m):
            raise ValueError(f"num_equalities must be an integer between 0 and num_constraints={m!r}, got {p!r}")
        if not isinstance(self.domain, ConvexSet):
            raise TypeError(f"domain must be a ConvexSet of gdpa.sets, got {self.domain!r}")
        if self.names is not None:
            if m is not None and len(self.names) != m:
                raise ValueError(f"names has {len(self.names)} entries for {m} constraints; give one name each")
            if len(set(self.names)) != len(self.names):
                raise ValueError(f"names must differ from each other, got {self.names!r}")

    def constraint_name(self, index: int) -> str:
        """Return the name of constraint ``index`` for messages.

        >>> Problem(evaluate=print).constraint_name(2)
        'g[2]'
        """
        return self.names[index] if self.names is not None else f"g[{index}]"


def jacobian(evaluation: Evaluation) -> Array:
    """Return J(x) of shape (..., m, d) by m backward passes, one per constraint.

    >>> import numpy as np
    >>> J = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> e = Evaluation(np.array(0.0), np.zeros(2), lambda w, objective=1.0: w @ J)
    >>> jacobian(e).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    g = evaluation.constraints
    xp = namespace(g)
    if g.shape[-1] == 0:
        row = evaluation.pullback(g, objective=0.0)
        return xp.zeros((*row.shape[:-1], 0, row.shape[-1]), dtype=row.dtype)
    index = xp.arange(g.shape[-1], device=array_api_compat.device(g))
    zero = xp.zeros_like(g)
    units = (zero + xp.astype(index == i, g.dtype) for i in range(g.shape[-1]))
    return xp.stack([evaluation.pullback(unit, objective=0.0) for unit in units], axis=-2)
