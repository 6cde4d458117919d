"""Units in which a problem is well scaled: gradients have largest components near 1 (as in IPOPT, section 3.8)."""

from __future__ import annotations

from typing import NamedTuple

from gdpa.base.arrays import every, max_norm, namespace
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.problem import Evaluation
from gdpa.methods.adaptive.rules import Rules
from gdpa.numerics.sparse.matrix import row_sizes


@stored
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

    def pullback(self, evaluation: Evaluation, multipliers: Array, weight: float = 1.0) -> Array:
        """Return weight * grad f' + J'^T multipliers, one backward pass."""
        return evaluation.pullback(self.constraints * multipliers, weight * self.objective)

    def gradient(self, evaluation: Evaluation) -> Array:
        """Return grad f'."""
        return self.objective * evaluation.gradient()

    def scale(self, multipliers: Array) -> Array:
        """Return the multipliers of the scaled problem."""
        return multipliers * self.objective / self.constraints

    def unscale(self, multipliers: Array) -> Array:
        """Return the multipliers of the problem as the user wrote it."""
        return self.constraints * multipliers / self.objective


def measures_rows(now: Evaluation, rules: Rules) -> bool:
    """Tell whether the gradient of every constraint at the start is worth its passes."""
    m = now.constraints.shape[-1]
    return m > 0 and (now.has_cheap_jacobian or m <= rules.few_rows)


def scaling_from(
    values: tuple[Array, Array], gradient: Array, J: Array | None, rules: Rules, enlarge: bool = True
) -> Scaling:
    """Return ``s_f = 1 / |grad f|`` and ``s_i = 1 / |grad g_i|`` by largest components.

    A function whose gradient vanishes keeps its units, and such a constraint is divided by |g_i|. A small gradient
    with a small value is a matter of units. With a larger value it belongs to a function that is flat here and may be
    steep elsewhere. So |grad g_i| counts as at least min(1/100, |g_i|), and |grad f| as at least min(1, 100 |f|).

    Args:
        values: f and g.
        gradient: grad f.
        J: the Jacobian; None leaves the constraints in their own units.
        rules: for the largest enlargement, 100.
        enlarge: enlarge a flat f by up to 100, too. The quasi-Newton step needs f and g of one size, because one matrix
            describes both; the SQP step does not.

    >>> import numpy as np
    >>> J = np.array([[4.0, 0.0], [0.5, 0.0], [0.0, 0.0], [1e-9, 0.0], [1e-9, 0.0]])
    >>> values = np.asarray(7.0), np.array([0.0, 0.0, 0.0, 9.0, -1e-8])
    >>> scaling = scaling_from(values, np.array([0.0, 2.0]), J, Rules())
    >>> scaling.objective, scaling.constraints.round(3).tolist()
    (0.5, [0.25, 2.0, 1.0, 100.0, 100000000.0])
    """
    f, g = values
    xp = namespace(g)
    size = float(max_norm(gradient))
    flat = min(1.0, rules.enlargement * abs(float(f))) / (rules.enlargement if enlarge else 1.0)
    objective = 1 / max(size, flat) if size > 0 else 1.0
    ones = xp.ones_like(g)
    if J is None:
        return Scaling(objective, ones)
    slopes = row_sizes(J)
    sizes = xp.maximum(slopes, xp.minimum(ones / rules.enlargement, xp.abs(g)))
    vanishing = xp.where(xp.abs(g) > 0, xp.abs(g), ones)
    return Scaling(objective, ones / xp.where(slopes > 0, sizes, vanishing))


def drifted(
    scaling: Scaling, f: Array, g: Array, c: Array, J: Array, sizes: Array, rules: Rules
) -> tuple[float, Array] | None:
    """Return the factors a of f's unit and b_i of those of g that suit the point at hand; None if all are 1.

    Those within `Rules.drift` of 1 are 1.

    Args:
        scaling: the units at hand.
        f, g: the scaled values.
        c: grad f'.
        J: the scaled Jacobian; rows of zeros were not evaluated.
        sizes: the largest component of each of its rows.
        rules: for the drift that is allowed.
    """
    xp, units = namespace(c), scaling.constraints
    least, most = 1 / rules.drift, rules.drift
    counted = xp.maximum(sizes, xp.minimum(units / rules.enlargement, xp.abs(g)))
    usual = every((least <= counted) & (counted <= most))
    if usual and least <= float(max_norm(c)) <= most and scaling.objective <= most:
        return None
    here = scaling_from((f / scaling.objective, g / units), c / scaling.objective, J / units[:, None], rules, False)
    # A gradient that vanishes on the way, at a double root or on a plateau, enlarges its function up to its own units.
    a = min(here.objective, max(scaling.objective, 1.0)) / scaling.objective if float(max_norm(c)) > 0 else 1.0
    a = a if not least <= a <= most else 1.0
    b = xp.minimum(here.constraints, xp.maximum(units, xp.ones_like(units))) / units
    b = xp.where(((b < least) | (b > most)) & (sizes > 0), b, xp.ones_like(b))
    return None if a == 1.0 and every(b == 1) else (a, b)
