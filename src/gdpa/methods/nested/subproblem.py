"""The one smooth function that every method descends on, in one of its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gdpa.base.arrays import namespace
from gdpa.base.typing import Array
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.core.problem import Evaluation, Problem
from gdpa.methods.base import Probe


class Slope(NamedTuple):
    """The value and gradient of a subproblem at a point, and what they tell about the whole problem for free."""

    value: Array
    gradient: Array
    probe: Probe


@dataclass(frozen=True)
class Subproblem:
    """``phi(x) = f(x) + (||[lambda + beta g(x)]_+||^2 - ||lambda||^2) / (2 beta) + (prox/2) ||x - center||^2`` on X.

    Its limits serve all methods: beta = 0 is the Lagrangian ``f + <lambda, g>``, lambda = 0 the quadratic penalty,
    prox = 0 the augmented Lagrangian. The slack of an inequality is eliminated: minimizing
    ``<lambda, g + s> + (beta/2)||g + s||^2`` over s >= 0 gives the positive part above.

    Args:
        problem: f, g and X.
        multipliers: lambda.
        beta: the penalty; 0 for the plain Lagrangian.
        prox: the weight of the proximal term.
        center: its center.
        tau: the perturbation of GDPA: phi contains lambda only as (1 - tau) lambda.

    >>> import numpy as np
    >>> from gdpa import problems
    >>> disc = problems.get("disc-product").problem
    >>> phi = Subproblem(disc, np.array([0.5]), beta=2.0, prox=1.0, center=np.zeros(2))
    >>> phi.slope(np.ones(2), disc.evaluate(np.ones(2))).gradient.tolist()   # J^T lambda = -grad f, prox term x
    [1.0, 1.0]
    """

    problem: Problem
    multipliers: Array
    beta: float | Array
    prox: float = 0.0
    center: Array | None = None
    tau: float = 0.0

    @property
    def lagrangian(self) -> AugmentedLagrangian:
        """The part of phi without the proximal term, as a function of f and g."""
        return AugmentedLagrangian(self.multipliers, self.beta, self.tau, self.problem.num_equalities)

    def value(self, x: Array, at: Evaluation) -> Array:
        """Return phi(x) from the oracle call at x."""
        smooth = self.lagrangian.value(at.objective, at.constraints)
        if self.center is None:
            return smooth
        return smooth + self.prox / 2 * namespace(x).sum((x - self.center) ** 2, axis=-1)

    def weights(self, at: Evaluation) -> Array:
        """Return ``[lambda + beta g(x)]_+``: the weights of J^T in the gradient, and the multiplier estimate."""
        return self.lagrangian.weights(at.constraints)

    def shortfall(self, at: Evaluation) -> Array:
        """Return ``max(g, -lambda/beta)`` (g for equalities), the residual g + s of the eliminated slack form."""
        return self.lagrangian.complementarity(at.constraints)

    def slope(self, x: Array, at: Evaluation) -> Slope:
        """Return value, gradient and probe at ``x`` (one backward pass)."""
        w = self.weights(at)
        lagrangian = at.pullback(w)
        gradient = lagrangian if self.center is None else lagrangian + self.prox * (x - self.center)
        return Slope(self.value(x, at), gradient, Probe(x, w, at.objective, at.constraints, lagrangian, evaluation=at))
