"""The smooth function that every method descends on, in one of its limits, and one descent step on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gdpa.base.arrays import namespace
from gdpa.base.typing import Array
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.core.problem import Evaluation, Problem
from gdpa.methods.base import Probe

#: A rejected trial multiplies the curvature estimate M by this.
GROW = 2.0
#: An accepted one multiplies it by this, so that the step lengthens where the function is flatter.
SHRINK = 0.9
#: Above this curvature a step no longer moves: take it rather than look for ever.
LIMIT = 1e30


class Slope(NamedTuple):
    """The value and gradient of a subproblem at a point, and the probe of the whole problem they give for free."""

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


class Descent(NamedTuple):
    """The point reached, the oracle call there, its value, the curvature M used and the one to begin with next."""

    x: Array
    evaluation: Evaluation
    value: Array
    curvature: Array
    lipschitz: Array


def descend(phi: Subproblem, v: Array, slope: Slope, lipschitz: Array, alpha: float | None = None) -> Descent:
    """Return the projected gradient step ``P_X(v - grad phi(v) / M)`` (one forward pass per trial).

    With ``alpha`` given, M = 1/alpha and the step is taken as it is. Otherwise M starts at ``lipschitz`` and doubles
    until the quadratic model bounds phi (Beck and Teboulle 2009)::

        phi(x) <= phi(v) + <grad phi(v), x - v> + (M/2) ||x - v||^2

    Every member of a batch has its own M. A value that is not finite counts as too large; if phi or its gradient is not
    finite at v itself, no M helps and the first trial is returned.

    >>> import numpy as np
    >>> from gdpa import problems
    >>> disc = problems.get("disc-product").problem
    >>> phi = Subproblem(disc, np.zeros(1), beta=1.0)
    >>> x = np.ones(2)
    >>> step = descend(phi, x, phi.slope(x, disc.evaluate(x)), lipschitz=np.asarray(1.0))
    >>> step.x.tolist(), float(step.lipschitz)      # M = 16 is the first power of 2 that bounds the penalty: 16 * 0.9
    ([1.0625, 1.0625], 14.4)
    """
    project, evaluate = phi.problem.domain.project, phi.problem.evaluate
    if alpha is not None:
        x = project(v - alpha * slope.gradient)
        then = evaluate(x)
        return Descent(x, then, phi.value(x, then), lipschitz, lipschitz)
    xp = namespace(v)
    rounding = 10 * float(xp.finfo(v.dtype).eps) * (1 + xp.abs(slope.value))
    lost = ~(xp.isfinite(slope.value) & xp.all(xp.isfinite(slope.gradient), axis=-1))
    while True:
        x = project(v - slope.gradient / lipschitz[..., None])
        then = evaluate(x)
        value = phi.value(x, then)
        move = x - v
        decrease = xp.sum(slope.gradient * move, axis=-1) + lipschitz / 2 * xp.sum(move * move, axis=-1)
        bounded = (value <= slope.value + decrease + rounding) | (lipschitz > LIMIT) | lost
        if bool(xp.all(bounded)):
            break
        lipschitz = xp.where(bounded, lipschitz, GROW * lipschitz)
    # If the decrease is below rounding, the test is meaningless and M stays.
    told = xp.abs(decrease) > 100 * rounding
    return Descent(x, then, value, lipschitz, xp.where(told, SHRINK * lipschitz, lipschitz))
