"""The paper's residuals, their unit-free form, and the certificate: functions of the problem and the point alone."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gdpa.base.arrays import (
    all_finite,
    combined,
    every,
    largest,
    machine_eps,
    max_norm,
    namespace,
    norm,
    on_host,
    positive_part,
    some,
    top,
    total,
)
from gdpa.base.checks import check_positive
from gdpa.base.sets import ConvexSet
from gdpa.base.stored import stored
from gdpa.base.text import number
from gdpa.base.typing import Array, Operand
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.core.multipliers import fit
from gdpa.core.problem import Evaluation, Problem, constraint_name
from gdpa.core.units import ReferencePoint, Units, lengths_of, nearby, roundings, units_at
from gdpa.files.receipt import write_receipt

#: Above this many entries of J, `certify` keeps the multipliers it is given and forms no Jacobian.
JACOBIAN_LIMIT = 50_000_000
#: Multipliers are fitted a second time as if constraints this near to active were active: the sum of squares weighs
#: small slacks against stationarity, while a certificate asks for the largest residual alone.
NEARLY_ACTIVE = 1e-2


@stored
class Residuals(NamedTuple):
    """The three residuals of the paper's Definition 2 (epsilon-KKT)."""

    stationarity: Any
    feasibility: Any
    slackness: Any

    @classmethod
    def of(cls, *sizes: Operand) -> Residuals:
        """Return the residuals as Python floats (they are compared in the loop), or as arrays for a batch."""
        if sizes[0].ndim:
            return cls(*sizes)
        return cls(*map(float, sizes if isinstance(sizes[0], np.generic) else on_host(*sizes)))

    @property
    def worst(self) -> Any:
        """The largest of the three (NaN if any is NaN)."""
        if isinstance(self.stationarity, float):
            total = self.stationarity + self.feasibility + self.slackness
            return max(self) if total == total else float("nan")
        xp = namespace(self.stationarity)
        return xp.maximum(xp.maximum(self.stationarity, self.feasibility), self.slackness)


def absolute_residuals(
    domain: ConvexSet,
    x: Operand,
    gradient: Operand,
    constraints: Operand,
    multipliers: Operand,
    num_equalities: int = 0,
) -> Residuals:
    """Return the residuals of Definition 2 as printed: Euclidean norms, no units.

    stationarity = dist(grad f + J^T lambda, -N_X(x)), feasibility = ||g_+||, slackness = sum |lambda_i g_i|.

    >>> from gdpa import REALS
    >>> one = np.ones(1)
    >>> [float(v) for v in absolute_residuals(REALS, one, 2 * one, -3 * one, one)]
    [2.0, 0.0, 3.0]
    """
    slack = abs(multipliers * constraints)[..., : constraints.shape[-1] - num_equalities]
    return Residuals.of(norm(domain.tangent(x, -gradient)), norm(violation(constraints, num_equalities)), total(slack))


def relative_residuals(
    domain: ConvexSet,
    x: Operand,
    gradient: Operand,
    constraints: Operand,
    multipliers: Operand,
    units: Units,
    num_equalities: int = 0,
) -> Residuals:
    r"""Return the residuals without units, by largest components (independent of the dimension).

    With the weights of `gdpa.core.units.Units` (w for coordinates, c, a, e and r for constraints)

    .. math::
        \text{stationarity} &= \max_j\; w_j \lvert P_T(-\nabla f - J^T \lambda)_j \rvert \\
        \text{feasibility} &= \max_i\; c_i [g_i]_+ \\
        \text{slackness} &= \max_i\; \min(a_i \lvert g_i \rvert,\ r_i \lambda_i)

    A value :math:`\lvert g_i \rvert \le e_i` is rounding and counts as 0. Zero slackness means that every inequality is
    active, or its share of the stationarity condition is negligible.

    >>> from gdpa import REALS
    >>> one = np.ones(1)
    >>> units = Units(one / 1e-3, one, one, 0 * one, one)
    >>> relative_residuals(REALS, one, 2e-3 * one, -3 * one, 0 * one, units)
    Residuals(stationarity=2.0, feasibility=0.0, slackness=0.0)
    """
    xp = namespace(constraints)
    stationarity = max_norm(units.coordinates * domain.tangent(x, -gradient))
    sizes = abs(constraints)
    rounded = sizes <= units.rounding
    if xp is not np or some(rounded):  # a device would wait for the answer
        constraints = xp.where(rounded, 0.0, constraints)
        sizes = abs(constraints)
    violated = violation(constraints, num_equalities)
    slack = xp.minimum(units.slacks * sizes, units.pushes * abs(multipliers))
    if num_equalities:
        slack = slack[..., : constraints.shape[-1] - num_equalities]
    return Residuals.of(stationarity, top(units.violations * violated), top(slack))


def gradient_map(problem: Problem, x: Operand, multipliers: Operand, alpha: float = 1.0, beta: float = 1.0) -> Array:
    """Return the paper's G(x, lambda) of eq. (defopt), primal part then dual part.

    [ (x - P_X(x - alpha grad_x L)) / alpha ;  (lambda - [lambda + beta g(x)]_+) / beta ],   L = f + <lambda, g>.

    Example:
        >>> from gdpa import problems
        >>> disc = problems.get("disc-product")
        >>> bool(norm(gradient_map(disc.problem, disc.solution, disc.multipliers)) < 1e-12)
        True
    """
    check_positive(alpha=alpha, beta=beta)
    now = problem.evaluate(x)
    primal = gradient_mapping(problem.domain, x, now.pullback(multipliers), alpha)
    dual = AugmentedLagrangian(multipliers, beta, num_equalities=problem.num_equalities)
    return namespace(x).concat([primal, -dual.complementarity(now.constraints)], axis=-1)


def gradient_mapping(domain: ConvexSet, x: Operand, gradient: Operand, alpha: float = 1.0) -> Array:
    """Return ``(x - P_X(x - alpha grad)) / alpha``, which is zero exactly at the stationary points on X."""
    return (x - domain.project(x - alpha * gradient)) / alpha


def violation(constraints: Operand, num_equalities: int = 0) -> Array:
    """Return ``[g]_+`` for inequalities and ``|h|`` for equalities."""
    positive = positive_part(constraints, num_equalities)
    return positive if num_equalities == 0 else abs(positive)


@stored
@dataclass(frozen=True)
class Certificate:
    """The KKT conditions at one point, computed from the problem alone.

    Attributes:
        x: the certified point: the given one, with coordinates nearly on the boundary of X moved onto it if that
            certifies better.
        multipliers: the best multipliers found for it.
        objective: f(x).
        constraints: g(x).
        gradient: grad f(x) + J(x)^T multipliers.
        domain_multipliers: -gradient's part in the normal cone of X, e.g. the multipliers of bounds
            (positive at an upper bound, negative at a lower one).
        residuals: as the paper prints them (absolute).
        relative: without units, compared with tolerances. NaN if a value or a derivative is not finite.
        lengths: the lengths of the coordinates that the units were made of, see `gdpa.core.units.lengths_of`.
        units: the weights that the relative residuals were measured with.
        num_equalities: how many of the last constraints are equalities.
        names: the names of the constraints, if the problem has any.
    """

    x: Array
    multipliers: Array
    objective: Any
    constraints: Array
    gradient: Array
    domain_multipliers: Array
    residuals: Residuals
    relative: Residuals
    lengths: Array
    units: Units
    num_equalities: int = 0
    names: tuple[str, ...] | None = None

    def constraint_name(self, index: int) -> str:
        """Return the name of constraint ``index``."""
        return constraint_name(self.names, index)

    def holds(self, tolerance: float) -> bool:
        """Return whether every relative residual is at most ``tolerance`` (False for NaN)."""
        worst = self.relative.worst
        if isinstance(worst, float):
            return worst <= tolerance
        return bool((worst <= tolerance).all())

    def save(self, path: str | os.PathLike[str], tolerance: float | None = None) -> None:
        """Write a receipt to ``path``, whole or not at all: JSON from which `gdpa.verify` recomputes the certificate.

        It holds the point, the multipliers, f and g there, the residuals, SHA-256 checksums, and the ``tolerance`` that
        it claims.
        """
        write_receipt(path, self, tolerance)

    @property
    def summary(self) -> str:
        """The relative residuals in one sentence."""
        return f"Relative residuals: {', '.join(map('{:.1e}'.format, map(largest, self.relative)))}."

    def __str__(self) -> str:
        rows = zip(Residuals._fields, map(largest, self.residuals), map(largest, self.relative), strict=True)
        return "; ".join(f"{name} {number(x, 3)} (relative {number(y, 3)})" for name, x, y in rows)


def certify(
    problem: Problem,
    x: Operand,
    multipliers: Operand | None = None,
    *,
    snap: float | None = None,
    evaluation: Evaluation | None = None,
) -> Certificate:
    r"""Return the KKT certificate of ``x`` with the best multipliers for it: a function of the problem and x alone.

    The multipliers solve, by nonnegative least squares,

    .. math::
        \min_{\lambda \ge 0}\; \lVert w\, P_T(-\nabla f - J^T \lambda) \rVert^2 + \sum_i (a_i g_i r_i \lambda_i)^2

    with the weights w, a and r of `units.Units`; multipliers of equalities are free. A second candidate treats
    constraints within `NEARLY_ACTIVE` of active as active. A point nearly on the boundary of X is certified there and
    as it is, and the better certificate is returned. Each costs one forward pass, and as many backward passes as grad
    f and J take. One more oracle call near x (`gdpa.core.units.nearby`) yields the sizes of the functions.

    Args:
        problem: the problem.
        x: any point, of any method.
        multipliers: those to judge if J has more than `JACOBIAN_LIMIT` entries, which is too many to fit the best ones.
        snap: how near the boundary of X counts as on it; default: the square root of the machine precision.
        evaluation: the oracle call at ``x``, if it has been made.

    Example:
        >>> from gdpa import problems
        >>> disc = problems.get("disc-product")
        >>> certificate = certify(disc.problem, disc.solution)
        >>> certificate.multipliers.round(6).tolist(), certificate.holds(1e-8)
        ([0.5], True)
    """

    def called(point: Operand) -> Evaluation:
        if evaluation is not None and (point is x or not some(point != x)):
            return evaluation
        return problem.evaluate(point)

    snapped, inside = problem.domain.snap(x, machine_eps(x) ** 0.5 if snap is None else snap), problem.domain.project(x)
    now = called(snapped)
    lengths = lengths_of(problem.x_scale, snapped, now)
    reference = nearby(problem, snapped, now, lengths)
    certificate = certificate_at(problem, snapped, reference, now, multipliers, lengths)
    if inside is snapped or not some(inside != snapped):
        return certificate
    # If g is steep the way to the boundary, however short, may cost more than it gains.
    return better(certificate_at(problem, inside, reference, called(inside), multipliers), certificate)


def better(a: Certificate, b: Certificate) -> Certificate:
    """Return the certificate with the smaller relative residual, ``b`` in a tie (member by member in a batch)."""
    mask = _at_most(b.relative, a.relative)
    if isinstance(mask, bool):
        return b if mask else a
    names = [name for name in vars(b) if name not in ("num_equalities", "names")]
    return replace(b, **{name: pick(mask, getattr(b, name), getattr(a, name)) for name in names})


def _at_most(new: Residuals, old: Residuals) -> Any:
    """Return whether the largest of the new residuals is at most the old one, or that is NaN."""
    return (new.worst <= old.worst) | (old.worst != old.worst)


def pick(mask: Any, new: Any, old: Any) -> Any:
    """Return ``new`` if the mask holds, else ``old``, member by member in a batch; tuples by parts."""
    if isinstance(mask, bool):
        return new if mask else old
    if isinstance(new, tuple):
        parts = [pick(mask, a, b) for a, b in zip(new, old, strict=True)]
        return type(new)(*parts) if hasattr(new, "_fields") else tuple(parts)
    return namespace(mask).where(mask if new.ndim == mask.ndim else mask[..., None], new, old)


def certificate_from(
    problem: Problem,
    lengths: Operand,
    units: Units,
    f: Operand,
    g: Operand,
    x: Operand,
    multipliers: Operand,
    gradient: Operand,
    relative: Residuals | None = None,
) -> Certificate:
    """Return the certificate made of known quantities; ``gradient`` is grad f(x) + J(x)^T lambda."""
    p, domain = problem.num_equalities, problem.domain
    return Certificate(
        x=x,
        multipliers=multipliers,
        objective=f if f.ndim else float(f),
        constraints=g,
        gradient=gradient,
        domain_multipliers=-gradient - domain.tangent(x, -gradient),
        residuals=absolute_residuals(domain, x, gradient, g, multipliers, p),
        relative=relative or _judged(problem, units, f, g, x, multipliers, gradient),
        lengths=lengths,
        units=units,
        num_equalities=p,
        names=problem.names,
    )


def _judged(
    problem: Problem, units: Units, f: Operand, g: Operand, x: Operand, multipliers: Operand, gradient: Operand
) -> Residuals:
    """Return the relative residuals, NaN if a value or a derivative is not finite."""
    relative = relative_residuals(problem.domain, x, gradient, g, multipliers, units, problem.num_equalities)
    if g.ndim == 1:
        return relative if all_finite(f, g, gradient) else Residuals(math.nan, math.nan, math.nan)
    with np.errstate(invalid="ignore"):  # 0 * inf is the NaN that is wanted, for each member of a batch
        finite = 0 * f + total(0 * g) + total(0 * gradient)
    return Residuals(*(r + finite for r in relative))


def certificate_at(
    problem: Problem,
    x: Operand,
    reference: ReferencePoint,
    now: Evaluation,
    multipliers: Operand | None = None,
    lengths: Operand | None = None,
) -> Certificate:
    """Return the certificate of exactly this point of X; ``lengths`` are those of the point, if they are known."""
    lengths = lengths_of(problem.x_scale, x, now) if lengths is None else lengths
    units = units_at(lengths, reference, x, now, is_whole(x, now))
    judged = judge(problem, x, units, now, multipliers)
    return certificate_from(problem, lengths, units, now.objective, now.constraints, x, *judged)


def is_whole(x: Operand, now: Evaluation) -> bool:
    """Return whether J is formed in one piece: it is sparse, or has at most `JACOBIAN_LIMIT` entries."""
    return bool(now.constraints.shape[-1] * x.shape[-1] <= JACOBIAN_LIMIT or now.is_sparse)


def cannot_hold(problem: Problem, x: Operand, now: Evaluation, bound: float) -> bool:
    r"""Return whether it is certain that no relative residuals at ``x`` are all at most ``bound``, in any units.

    It is if every constraint is far from active, :math:`\lvert g_i \rvert > \text{bound} + e_i`, and

    .. math::
        \lVert P_T(-\nabla f) \rVert_\infty > (1 + m \sqrt d)\, s\, \text{bound},
        \qquad s = \max(1, \lVert \nabla f \rVert_\infty)

    For a slackness within the bound then asks for :math:`r_i \lambda_i \le \text{bound}`, and
    :math:`w_j \ge 1/s` in `Units`, so that :math:`\lVert \lambda_i J_i \rVert \le \sqrt d\, s\, \text{bound}`; and a
    projection on a cone does not lengthen differences. A batch is in doubt, and so are numbers that are not finite.

    >>> from gdpa import problems
    >>> disc = problems.get("disc-product")
    >>> [cannot_hold(disc.problem, x, disc.problem.evaluate(x), 1e-5) for x in (disc.solution, 0.1 * disc.solution)]
    [False, True]
    """
    g, c, (m, d) = now.constraints, now.gradient(), (now.constraints.shape[-1], x.shape[-1])
    if g.ndim > 1 or not is_whole(x, now):
        return False
    size, slope = (float(max_norm(v)) for v in (c, problem.domain.tangent(x, -c)))
    if not slope > (1 + m * math.sqrt(d)) * bound * max(1.0, size):
        return False
    return m == 0 or every(abs(g) > bound + roundings(x, now))


def judge(
    problem: Problem, x: Operand, units: Units, now: Evaluation, multipliers: Operand | None = None
) -> tuple[Array, Array, Residuals]:
    """Return the best multipliers at ``x``, the gradient of the Lagrangian with them and the relative residuals."""
    f, g, p, domain = now.objective, now.constraints, problem.num_equalities, problem.domain
    if g.shape[-1] == 0:
        candidates = [(g, now.gradient())]
    elif multipliers is not None and not is_whole(x, now):
        own = positive_part(multipliers, p)
        candidates = [(own, now.pullback(own))]
    else:
        near, c, J = units.slacks * abs(g) <= NEARLY_ACTIVE, now.gradient(), now.jacobian()
        fitted = fit(domain, x, c, J, g, p, units)
        candidates = [(fitted, c + combined(fitted, J))]
        if some(near):
            free = units._replace(slacks=namespace(g).where(near, 0.0, units.slacks))
            fitted = fit(domain, x, c, J, g, p, free)
            candidates.append((fitted, c + combined(fitted, J)))
    best: Any = None
    for lam, gradient in candidates:
        found = lam, gradient, _judged(problem, units, f, g, x, lam, gradient)
        best = found if best is None else pick(_at_most(found[2], best[2]), found, best)
    return best  # type: ignore[no-any-return]
