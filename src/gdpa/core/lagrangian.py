r"""The perturbed augmented Lagrangian: every formula of the library that contains multipliers and a penalty.

.. math::
    F_\beta(x, \lambda) = f(x) + \frac{\beta}{2} \Bigl\|\Bigl[g(x) + \frac{(1-\tau)\lambda}{\beta}\Bigr]_+\Bigr\|^2
        - \frac{\|(1-\tau)\lambda\|^2}{2\beta}

Lu, "A Single-Loop Gradient Descent and Perturbed Ascent Algorithm for Nonconvex Functional Constrained
Optimization", ICML 2022. Equation names below are the labels of that paper. The last ``num_equalities``
components are equality constraints, whose positive part is the identity (ours; the paper has inequalities only).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gdpa.base.arrays import namespace, positive_part, total
from gdpa.base.stored import stored
from gdpa.base.typing import Array, Operand


def shifted(multipliers: Array, beta: float | Array, tau: float | Array, constraints: Array) -> Array:
    """Return `AugmentedLagrangian.shifted`; for single numbers building the object takes longer than the sum."""
    known = multipliers if type(tau) is float and tau == 0.0 else (1 - tau) * multipliers
    return known + beta * constraints


def ascended(
    multipliers: Array, beta: Array, tau: Array, constraints_next: Array, num_equalities: int = 0, gate: Any = None
) -> Array:
    """Return `AugmentedLagrangian.ascend` of these numbers."""
    if gate is False:
        return 0.0
    updated = positive_part(shifted(multipliers, beta, tau, constraints_next), num_equalities)
    if gate is None or gate is True:
        return updated
    xp = namespace(updated)
    return xp.where(gate, updated, 0.0 if xp is np else xp.zeros_like(updated))


@stored
class AugmentedLagrangian(NamedTuple):
    """F_beta(., lambda) as a function of the values f(x) and g(x).

    Every method acts on arrays (constraints on the last axis, leading axes are independent problems). All but `value`
    also take one constraint as Python floats.

    Args:
        multipliers: lambda.
        beta: the penalty and dual step; 0 gives the plain Lagrangian ``f + <(1 - tau) lambda, g>``.
        tau: the perturbation; 0 gives the classical augmented Lagrangian.
        num_equalities: the number of equality constraints; they come last.

    Example:
        >>> F = AugmentedLagrangian(np.array([1.0, 0.0]), beta=2.0, tau=0.1)
        >>> g = np.array([0.5, -1.0])
        >>> F.weights(g).tolist(), F.gate(g).tolist()
        ([1.9, 0.0], [True, False])
        >>> AugmentedLagrangian(1.0, beta=2.0, tau=0.1).weights(0.5)
        1.9
    """

    multipliers: Array
    beta: float | Array
    tau: float | Array = 0.0
    num_equalities: int = 0

    def shifted(self, constraints: float | Operand) -> Array:
        """Return ``q = (1 - tau) lambda + beta g``, whose sign defines the set S_r of eq. (defs)."""
        return shifted(self.multipliers, self.beta, self.tau, constraints)

    def weights(self, constraints: float | Operand) -> Array:
        """Return ``w = [(1 - tau) lambda + beta g]_+``, the weights of J^T in grad_x F_beta, eq. (as)."""
        return positive_part(shifted(self.multipliers, self.beta, self.tau, constraints), self.num_equalities)

    def value(self, objective: float | Operand, constraints: float | Operand) -> Array:
        """Return F_beta(x, lambda) of eq. (defF)."""
        tau = self.tau
        lam = self.multipliers if type(tau) is float and tau == 0.0 else (1 - tau) * self.multipliers
        if isinstance(self.beta, (int, float)) and self.beta == 0:  # there is no penalty term
            return objective + total(lam * constraints)
        w = positive_part(lam + self.beta * constraints, self.num_equalities)
        return objective + total(w * w - lam * lam) / (2 * self.beta)

    def complementarity(self, constraints: float | Operand) -> Array:
        """Return ``max(g, -lambda/beta)`` (g for equalities, and if beta = 0).

        It is zero exactly if g is feasible and complementary to lambda >= 0, and at tau = 0 it is the gradient of
        F_beta in lambda. It does not contain tau: at a fixed point of the dual step g is off by tau lambda / beta.

        >>> AugmentedLagrangian(np.array([1.0, 1.0]), beta=2.0).complementarity(np.array([0.25, -3.0])).tolist()
        [0.25, -0.5]
        """
        if isinstance(self.beta, (int, float)) and self.beta == 0:
            return constraints
        shift = self.multipliers / self.beta
        return positive_part(constraints + shift, self.num_equalities) - shift

    def gate(self, constraints: float | Operand) -> Array:
        """Return membership in S_r = {i : q_i > 0}, eq. (defs); equality constraints always belong."""
        return in_gate(self.shifted(constraints), self.num_equalities)

    def ascend(self, constraints_next: float | Operand, gate: Operand | None = None) -> Array:
        """Return ``lambda_{r+1}`` of eq. (dualupated).

        ``[(1 - tau) lambda_r + beta_r g(x_{r+1})]_+`` if i is in S_r, else 0. ``gate`` is the membership in S_r,
        evaluated at x_r as eq. (alg) prints it; ``None`` is the ungated reading that eq. (updatel0) gives.

        >>> F = AugmentedLagrangian(np.array([1.0, 0.0]), beta=2.0, tau=0.1)
        >>> F.ascend(np.array([0.5, 0.5]), gate=np.array([True, False])).tolist()
        [1.9, 0.0]
        """
        return ascended(self.multipliers, self.beta, self.tau, constraints_next, self.num_equalities, gate)

    def with_multipliers(self, multipliers: float | Operand) -> AugmentedLagrangian:
        """Return the function with other multipliers."""
        return AugmentedLagrangian(multipliers, self.beta, self.tau, self.num_equalities)

    def stiffened(self, factor: float, largest: float) -> AugmentedLagrangian:
        """Return the function with beta times a factor, up to the largest."""
        return self._replace(beta=min(factor * self.beta, largest) if self.beta < largest else self.beta)

    def relaxed(self, factor: float, least: float) -> AugmentedLagrangian:
        """Return the function with beta divided by a factor, down to the least."""
        return self._replace(beta=max(self.beta / factor, least) if self.beta > least else self.beta)

    def damped(self, constraints: float | Operand, theta: float | Operand) -> Array:
        """Return ``lambda + theta ([(1 - tau) lambda + beta g]_+ - lambda)``, the dual step damped by theta (ours)."""
        return self.multipliers + theta * (self.weights(constraints) - self.multipliers)

    def residual_violation(self) -> Array:
        """Return ``tau lambda / beta``, the violation at which the dual step with fixed beta stands still.

        lambda = (1 - tau) lambda + beta g gives g = tau lambda / beta: at fixed tau the paper's method approaches
        feasibility only as fast as beta_r grows.

        >>> AugmentedLagrangian(np.array([2.0]), beta=10.0, tau=0.5).residual_violation().tolist()
        [0.1]
        """
        return self.tau * self.multipliers / self.beta


def in_gate(q: Array, num_equalities: int = 0) -> Array:
    """Return which components of ``q`` belong to S_r: the positive ones and every equality."""
    inside = q > 0
    if type(q) is float:
        return inside or num_equalities > 0
    if num_equalities:
        xp = namespace(q)
        split = q.shape[-1] - num_equalities
        inside = xp.concat([inside[..., :split], xp.ones_like(inside[..., split:])], axis=-1)
    return inside
