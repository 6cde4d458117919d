"""The one smooth function that every method descends on, in one of its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gdpa.algorithms.base import Probe
from gdpa.arrays import namespace
from gdpa.perturbed import augmented_lagrangian, weights
from gdpa.problem import Evaluation, Problem
from gdpa.typing import Array


class Slope(NamedTuple):
    """The value and gradient of a subproblem at a point, and what they tell about the whole problem for free."""

    value: Array
    gradient: Array
    probe: Probe


@dataclass(frozen=True)
class Subproblem:
    """``phi(x) = f(x) + (||[lambda + beta g(x)]_+||^2 - ||lambda||^2) / (2 beta) + (prox/2) ||x - center||^2`` on X.

    Its limits serve all methods: beta = 0 is the Lagrangian ``f + <lambda, g>``, lambda = 0 the quadratic penalty,
    prox = 0 the augmented Lagrangian. The slack of an inequality is eliminated: minimising
    ``<lambda, g + s> + (beta/2)||g + s||^2`` over s >= 0 gives the positive part above.

    Args:
        problem: f, g and X.
        multipliers: lambda.
        beta: the penalty; 0 for the plain Lagrangian.
        prox: the weight of the proximal term.
        center: its center.

    >>> import numpy as np
    >>> from gdpa.problems import get
    >>> disc = get("disc-product").problem
    >>> phi = Subproblem(disc, np.array([0.5]), beta=2.0, prox=1.0, center=np.zeros(2))
    >>> phi.slope(np.ones(2), disc.evaluate(np.ones(2))).gradient.tolist()   # J^T lambda = -grad f, prox term x
    [1.0, 1.0]
    """

    problem: Problem
    multipliers: Array
    beta: float | Array
    prox: float = 0.0
    center: Array | None = None

    def value(self, x: Array, at: Evaluation) -> Array:
        """Return phi(x) from the oracle call at x."""
        lam, p = self.multipliers, self.problem.num_equalities
        xp = namespace(lam)
        if isinstance(self.beta, (int, float)) and self.beta == 0:
            smooth = at.objective + xp.sum(lam * at.constraints, axis=-1)
        else:
            smooth = augmented_lagrangian(at.objective, at.constraints, lam, self.beta, 0.0, p)
        return smooth if self.center is None else smooth + self.prox / 2 * xp.sum((x - self.center) ** 2, axis=-1)

    def weights(self, at: Evaluation) -> Array:
        """Return ``[lambda + beta g(x)]_+``: the weights of J^T in the gradient, and the multiplier estimate."""
        return weights(self.multipliers, at.constraints, self.beta, 0.0, self.problem.num_equalities)

    def shortfall(self, at: Evaluation) -> Array:
        """Return ``max(g, -lambda/beta)`` (g for equalities), the residual g + s of the eliminated slack form.

        It is the gradient of phi in lambda, and zero exactly where g is feasible and complementary to lambda.
        """
        if isinstance(self.beta, (int, float)) and self.beta == 0:
            return at.constraints
        return (self.weights(at) - self.multipliers) / self.beta

    def slope(self, x: Array, at: Evaluation) -> Slope:
        """Return value, gradient and probe at ``x`` (one backward pass)."""
        w = self.weights(at)
        lagrangian = at.pullback(w)
        gradient = lagrangian if self.center is None else lagrangian + self.prox * (x - self.center)
        return Slope(self.value(x, at), gradient, Probe(x, w, at.objective, at.constraints, lagrangian, evaluation=at))
