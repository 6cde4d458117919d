"""One projected gradient step, of a given length or of a length found by backtracking."""

from __future__ import annotations

from typing import NamedTuple

from gdpa.base.arrays import namespace
from gdpa.base.typing import Array
from gdpa.core.problem import Evaluation
from gdpa.methods.nested.subproblem import Slope, Subproblem

#: A rejected trial multiplies the curvature estimate M by this.
GROW = 2.0
#: An accepted one multiplies it by this, so that the step lengthens where the function is flatter.
SHRINK = 0.9
#: Above this curvature a step no longer moves: take it rather than look for ever.
LIMIT = 1e30


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
