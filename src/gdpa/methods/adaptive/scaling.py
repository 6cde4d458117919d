"""The scaled problem: units of f, g and x in which gradients have largest components near 1, and x a length near 1.

Units of f and g follow IPOPT (section 3.8). Lengths of x are powers of two, so the change of variables x = D z is
exact: bounds stay bounds to the last bit, and a problem in other units of x takes the same steps. Both follow the
iterates.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gdpa.base.arrays import (
    LONG_ROW,
    every,
    from_numpy,
    machine_eps,
    max_norm,
    namespace,
    on_host,
    row_sizes,
    to_float64,
)
from gdpa.base.sets import Box, Reals
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.problem import Evaluation, Problem
from gdpa.core.units import length_at_zero
from gdpa.methods.adaptive.rules import Rules
from gdpa.methods.base import Probe
from gdpa.numerics.dense import Matrix
from gdpa.numerics.qp import WORKING_SET


@stored
class Scaling(NamedTuple):
    """Positive factors of f and g and lengths of x: f' = s_f f, g' = s g, x = D z, lambda' = lambda s_f / s.

    ``lengths`` is the diagonal of D, or None for the identity.

    >>> import numpy as np
    >>> Scaling(0.5, np.array([2.0])).unscale(np.array([4.0])).tolist()
    [16.0]
    """

    objective: float
    constraints: Array
    lengths: Array | None = None

    @property
    def length(self) -> float:
        """The common length of all coordinates, the first one if they differ."""
        return 1.0 if self.lengths is None else float(self.lengths[0])

    @property
    def has_common_length(self) -> bool:
        """Whether all coordinates have one length."""
        return self.lengths is None or every(self.lengths == self.lengths[0])

    def scale(self, multipliers: Array) -> Array:
        """Return the multipliers of the scaled problem."""
        return multipliers * self.objective / self.constraints

    def unscale(self, multipliers: Array) -> Array:
        """Return the multipliers of the problem as the user wrote it."""
        return self.constraints * multipliers / self.objective


class ScaledEvaluation:
    """An oracle call at x = D z: f', g' and their derivatives in z. It shares derivatives with the original call."""

    __slots__ = ("constraints", "objective", "original", "scaling", "x")

    def __init__(self, original: Evaluation, scaling: Scaling, x: Array) -> None:
        self.original, self.scaling, self.x = original, scaling, x
        self.objective = scaling.objective * original.objective
        self.constraints = scaling.constraints * original.constraints

    def pullback(self, w: Array, objective: float = 1.0) -> Array:
        """Return objective * grad f' + J'^T w, one backward pass."""
        s_f, s, D = self.scaling
        v = self.original.pullback(s * w, objective * s_f)
        return v if D is None else D * v

    def gradient(self) -> Array:
        """Return grad f'."""
        s_f, _, D = self.scaling
        return s_f * self.original.gradient() if D is None else D * (s_f * self.original.gradient())

    def jacobian(self) -> Array:
        """Return J'."""
        _, s, D = self.scaling
        J = self.original.jacobian() * s[:, None]
        return J if D is None else D * J

    def hessian(self, w: Array) -> Array | None:
        """Return the Hessian of f' + w'g', or None if it is not known."""
        s_f, s, D = self.scaling
        H = self.original.hessian(s * w, s_f)
        return H if D is None or H is None else D * (D[:, None] * H)

    def probe(self, multipliers: Array, gradient: Array) -> Probe:
        """Return the probe of x in the units of the user, from scaled multipliers and the gradient with them."""
        s_f, _, D = self.scaling
        gradient = gradient / s_f if D is None else gradient / s_f / D
        call = self.original
        return Probe(self.x, self.scaling.unscale(multipliers), call.objective, call.constraints, gradient, 1.0, call)


class ScaledProblem:
    """A problem in the units of a scaling: the phases see f', g' and z alone.

    >>> import numpy as np
    >>> inner = ScaledProblem(Problem(print, domain=Box(0.0, 8.0)), Scaling(1.0, np.ones(1), np.full(2, 4.0)))
    >>> [bound.tolist() for bound in inner.domain.bounds(np.ones(2))]
    [[0.0, 0.0], [2.0, 2.0]]
    """

    __slots__ = ("domain", "is_box", "is_whole_space", "num_equalities", "original", "scaling")

    def __init__(self, original: Problem, scaling: Scaling) -> None:
        self.original, self.scaling, self.num_equalities = original, scaling, original.num_equalities
        self.domain, D = original.domain, scaling.lengths
        self.is_whole_space = isinstance(self.domain, Reals)
        self.is_box = self.is_whole_space or isinstance(self.domain, Box)
        if D is not None and isinstance(self.domain, Box):
            lower, upper = self.domain.bounds(D)
            self.domain = Box(lower / D, upper / D)

    def evaluate(self, z: Array) -> ScaledEvaluation:
        """Return the oracle call at z, one forward pass."""
        D = self.scaling.lengths
        x = z if D is None else D * z
        now = self.original.evaluate(x)
        return ScaledEvaluation(now.own() if x.shape[0] > LONG_ROW else now, self.scaling, x)

    def step_bounds(self, z: Array) -> tuple[Array, Array] | None:
        """Return how far each coordinate may move down and up inside a box; None for the whole space."""
        if self.is_whole_space:
            return None
        lower, upper = self.domain.bounds(z)  # type: ignore[attr-defined]
        return lower - z, upper - z


def measures_rows(now: Evaluation, rules: Rules) -> bool:
    """Return whether the gradient of every constraint at the start is worth its passes."""
    m = now.constraints.shape[-1]
    return m > 0 and (now.has_cheap_jacobian or m <= rules.few_rows)


def scaling_from(values: tuple[Array, Array], slope: float, slopes: Array | None) -> Scaling:
    """Return ``s_f = 1 / |grad f|`` and ``s_i = 1 / |grad g_i|`` from these sizes, the largest components.

    A function whose gradient vanishes keeps its units, and such a constraint is divided by |g_i|. A small gradient
    with a small value is a matter of units. With a larger value it belongs to a function that is flat here and may be
    steep elsewhere. So |grad g_i| counts as at least min(1, |g_i|), and |grad f| as at least min(1, |f|).
    Without ``slopes`` the constraints keep their own units.

    >>> import numpy as np
    >>> values = np.asarray(7.0), np.array([0.0, 0.0, 0.0, 9.0, -1e-8])
    >>> scaling = scaling_from(values, 2.0, np.array([4.0, 0.5, 0.0, 1e-9, 1e-9]))
    >>> scaling.objective, scaling.constraints.round(3).tolist()
    (0.5, [0.25, 2.0, 1.0, 1.0, 100000000.0])
    """
    f, g = values
    xp = namespace(g)
    objective = 1 / max(slope, min(1.0, abs(float(f)))) if slope > 0 else 1.0
    ones = xp.ones_like(g)
    if slopes is None:
        return Scaling(objective, ones)
    sizes = xp.maximum(slopes, xp.minimum(ones, xp.abs(g)))
    vanishing = xp.where(xp.abs(g) > 0, xp.abs(g), ones)
    return Scaling(objective, ones / xp.where(slopes > 0, sizes, vanishing))


def drift(scaling: Scaling, f: Array, g: Array, c: Array, J: Array, rules: Rules) -> tuple[float, Array] | None:
    """Return the factors of the units of f and g that suit the point; None if all are 1.

    Factors within `Rules.drift` of 1 are 1. f, g, c = grad f' and J are scaled, and rows of zeros were not evaluated.
    """
    units, values, sizes, size = scaling.constraints, g, row_sizes(J), max_norm(c)
    if type(g) is not np.ndarray:
        f, values, units, sizes, size = on_host(f, g, units, sizes, size)
    least, most, slope = 1 / rules.drift, rules.drift, float(size)
    counted = np.maximum(sizes, np.minimum(units, np.abs(values)))
    usual = least <= slope <= most and scaling.objective <= most
    if usual and (counted.shape[0] == 0 or (counted[counted.argmin()] >= least and counted[counted.argmax()] <= most)):
        return None
    here = scaling_from((f / scaling.objective, values / units), slope / scaling.objective, sizes / units)
    # A gradient that vanishes on the way, at a double root or on a plateau, enlarges its function up to its own units.
    a = min(here.objective, max(scaling.objective, 1.0)) / scaling.objective if slope > 0 else 1.0
    a = a if not least <= a <= most else 1.0
    b = np.minimum(here.constraints, np.maximum(units, 1.0)) / units
    b = np.where(((b < least) | (b > most)) & (sizes > 0), b, 1.0)
    return None if a == 1.0 and every(b == 1) else (a, from_numpy(b, g))


def start_lengths(problem: Problem, x: Array, now: Evaluation, rules: Rules) -> Array | None:
    """Return D for a run that begins at ``x``: |x_j| for each variable if derivatives agree, else `common_lengths`.

    A coordinate of x may be small by chance or far away. But units show twice, in x and, inversely, in derivatives: in
    the lengths |x_j| the columns of grad f and J, rows divided by their largest components, then lie closer together
    than in a common length, here by a factor of 2. HS105 takes 131 evaluations in a common length and 66 in these,
    DEMBO7 124 and 34. A coordinate up to ``ordinary ** -2`` of the largest one has no unit of its own: many starts have
    zeros or small numbers for values that are not known (chemical equilibria, LIN).
    """
    if x.shape[-1] <= WORKING_SET and not now.is_sparse and measures_rows(now, rules):
        D = own_lengths(problem, x, rules, rules.ordinary**-2)
        if D is not None:
            slopes = np.abs(np.vstack([to_float64(now.gradient())[None, :], to_float64(now.jacobian())]))
            common, own = _columns(slopes), _columns(slopes * to_float64(D))
            seen = common > math.sqrt(machine_eps(x))
            if seen.any() and np.ptp(np.log2(own[seen])) < np.ptp(np.log2(common[seen])) - 1:
                return D
    return common_lengths(problem, x, now, rules)


def common_lengths(problem: Problem, x: Array, now: Evaluation, rules: Rules) -> Array | None:
    """Return D for a run at ``x``, or None if the coordinates stay as they are.

    The length of x_j is ``problem.x_scale``, or max_k |x_k| for all, or `length_at_zero`. Lengths within
    `Rules.ordinary` of 1 are left as they are.
    """
    if not isinstance(problem.domain, (Reals, Box)):
        return None
    sizes = problem.x_scale
    if sizes is None:
        sizes = np.asarray(float(max_norm(x)) or length_at_zero(now, x))
    powers = np.rint(np.log2(sizes))
    powers = np.where(np.abs(powers) <= math.log2(rules.ordinary), 0.0, powers)
    return _powers_of_two(powers * np.ones(x.shape[-1]), x) if powers.any() else None


def column_lengths(problem: Problem, x: Array, now: Evaluation, rules: Rules) -> Array | None:
    """Return the D that equilibrates the columns of J, or None if they are equal up to `Rules.drift`.

    The length of x_j is 1 / max_i |J_ij| / max_k |J_ik|: rows are divided by their largest components first. Variables
    have units of their own, and derivatives show them where a single point does not.

    References:
        D. Ruiz, "A scaling algorithm to equilibrate both rows and columns norms in matrices" (2001), one sweep.
    """
    if now.is_sparse or not now.has_cheap_jacobian or now.constraints.shape[-1] == 0:
        return None
    columns = _columns(np.abs(to_float64(now.jacobian())))
    seen = columns > math.sqrt(machine_eps(x))
    return _unequal_lengths(problem, x, -np.log2(np.where(seen, columns, 1.0)), rules.drift)


def own_lengths(problem: Problem, x: Array, rules: Rules, least: float = 0.0) -> Array | None:
    """Return the D of |x_j| for each variable, or None if x shows one length for all.

    A variable of at most ``least`` of the largest one gets the largest length. x is one point and a poor guess of
    lengths, so a run begins in them only if derivatives agree, and begins again in them only after a stall. Of 120
    problems of `benchmarks.units` in float32, with a unit for each variable, 118 are solved to 1e-3; 111 without these
    lengths and 113 with those of the columns of J.
    """
    sizes = np.abs(to_float64(x))
    if not sizes.any():
        return None
    sizes = np.where(sizes > least * sizes.max(), sizes, sizes.max())
    return _unequal_lengths(problem, x, np.log2(sizes), rules.ordinary)


def _columns(slopes: Matrix) -> Matrix:
    """Return the largest entry of each column, after rows were divided by their largest components."""
    rows = slopes.max(axis=1, keepdims=True)
    columns: Matrix = (slopes / np.where(rows > 0, rows, 1.0)).max(axis=0)
    return columns


def _unequal_lengths(problem: Problem, x: Array, logarithms: Matrix, factor: float) -> Array | None:
    """Return the lengths with these logarithms; None if they are equal up to a factor, stated, or X is not a box."""
    powers = np.rint(logarithms)
    free = problem.x_scale is None and isinstance(problem.domain, (Reals, Box))
    return _powers_of_two(powers, x) if free and np.ptp(powers) > math.log2(factor) else None


def _powers_of_two(powers: Matrix, x: Array) -> Array:
    most = -math.log2(float(namespace(x).finfo(x.dtype).smallest_normal)) // 4  # products stay finite
    return from_numpy(2.0 ** np.clip(powers, -most, most), x)
