"""The formulas of the perturbed augmented Lagrangian, each in this one place.

    F_beta(x, lambda) = f(x) + beta/2 ||[g(x) + (1 - tau) lambda / beta]_+||^2 - ||(1 - tau) lambda||^2 / (2 beta)

Lu, "A Single-Loop Gradient Descent and Perturbed Ascent Algorithm for Nonconvex Functional Constrained
Optimization", ICML 2022. Equation names below are the labels of that paper. The last ``num_equalities``
components are equality constraints, whose positive part is the identity (ours; the paper has inequalities only).
"""

from __future__ import annotations

import numpy as np

from gdpa.arrays import namespace, positive_part
from gdpa.typing import Array


def pressure(multipliers: Array, constraints: Array, beta: float | Array, tau: float | Array) -> Array:
    """Return ``q = (1 - tau) lambda + beta g``, whose sign defines the set S_r of eq. (defs).

    >>> import numpy as np
    >>> pressure(np.array([1.0]), np.array([0.5]), beta=2.0, tau=0.1).tolist()
    [1.9]
    """
    return (1 - tau) * multipliers + beta * constraints


def weights(
    multipliers: Array, constraints: Array, beta: float | Array, tau: float | Array, num_equalities: int = 0
) -> Array:
    """Return ``w = [(1 - tau) lambda + beta g]_+``, the weights of J^T in grad_x F_beta, eq. (as).

    >>> import numpy as np
    >>> weights(np.array([1.0, 0.0]), np.array([0.5, -1.0]), beta=2.0, tau=0.1).tolist()
    [1.9, 0.0]
    """
    return positive_part(pressure(multipliers, constraints, beta, tau), num_equalities)


def dual_update(
    multipliers: Array,
    constraints_next: Array,
    beta: float | Array,
    tau: float | Array,
    gate: Array | None = None,
    num_equalities: int = 0,
) -> Array:
    """Return ``lambda_{r+1}`` of eq. (dualupated).

    ``[(1 - tau) lambda_r + beta_r g(x_{r+1})]_+`` where i is in S_r and 0 elsewhere. ``gate`` is the membership in
    S_r, evaluated at x_r as eq. (alg) prints it; ``None`` is the ungated reading that eq. (updatel0) gives.

    >>> import numpy as np
    >>> dual_update(np.array([1.0, 0.0]), np.array([0.5, 0.5]), 2.0, 0.1, gate=np.array([True, False])).tolist()
    [1.9, 0.0]
    """
    updated = weights(multipliers, constraints_next, beta, tau, num_equalities)
    if gate is None or gate is True:
        return updated
    if gate is False:
        return 0.0
    xp = namespace(updated)
    return xp.where(gate, updated, 0.0 if xp is np else xp.zeros_like(updated))


def in_gate(q: Array, num_equalities: int = 0) -> Array:
    """Return membership in S_r = {i : q_i > 0}, eq. (defs); equality constraints always belong.

    >>> import numpy as np
    >>> in_gate(np.array([1.0, -1.0, -1.0]), num_equalities=1).tolist()
    [True, False, True]
    """
    inside = q > 0
    if type(q) is float:
        return inside or num_equalities > 0
    if num_equalities:
        xp = namespace(q)
        split = q.shape[-1] - num_equalities
        inside = xp.concat([inside[..., :split], xp.ones_like(inside[..., split:])], axis=-1)
    return inside


def augmented_lagrangian(
    objective: Array,
    constraints: Array,
    multipliers: Array,
    beta: float | Array,
    tau: float | Array,
    num_equalities: int = 0,
) -> Array:
    """Return ``F_beta(x, lambda)`` of eq. (defF) from the values f(x) and g(x).

    >>> import numpy as np
    >>> float(augmented_lagrangian(np.array(1.0), np.array([0.5]), np.array([1.0]), beta=2.0, tau=0.5))
    1.5
    """
    w = weights(multipliers, constraints, beta, tau, num_equalities)
    xp = namespace(w)
    return objective + xp.sum(w * w - ((1 - tau) * multipliers) ** 2, axis=-1) / (2 * beta)


def residual_violation(multipliers: Array, beta: float | Array, tau: float | Array) -> Array:
    """Return ``tau lambda / beta``, the violation at which the dual update with fixed beta stands still.

    lambda = (1 - tau) lambda + beta g gives g = tau lambda / beta: at fixed tau the paper's method approaches
    feasibility only as fast as beta_r grows.

    >>> import numpy as np
    >>> residual_violation(np.array([2.0]), beta=10.0, tau=0.5).tolist()
    [0.1]
    """
    return tau * multipliers / beta
