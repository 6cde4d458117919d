"""How good is a point? The paper's measures, their relative forms, and the certificate every method shares.

All are functions of (problem, x, multipliers) alone, so any point of any method is judged alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gdpa.arrays import max_norm, namespace, norm, positive_part
from gdpa.multipliers import fit
from gdpa.problem import Evaluation, Problem, jacobian
from gdpa.sets import ConvexSet
from gdpa.typing import Array

#: Above this many entries of J, `certify` keeps the multipliers it is given and forms no Jacobian.
JACOBIAN_LIMIT = 50_000_000


class Residuals(NamedTuple):
    """The three residuals of the paper's Definition 2 (epsilon-KKT)."""

    stationarity: Any
    feasibility: Any
    slackness: Any

    @property
    def worst(self) -> Any:
        """The largest of the three (NaN if any is NaN).

        >>> Residuals(1e-3, 2e-3, 0.0).worst
        0.002
        """
        if isinstance(self.stationarity, float):
            total = self.stationarity + self.feasibility + self.slackness
            return max(self) if total == total else float("nan")
        xp = namespace(self.stationarity)
        return xp.maximum(xp.maximum(self.stationarity, self.feasibility), self.slackness)


class Scale(NamedTuple):
    """What the relative residuals are relative to, read off the start x0 once.

    gradient: min(1, ||grad f(x0)||_inf). A problem whose gradient is 1e-3 everywhere is measured in units of 1e-3
        and not called solved at the start; one whose gradient vanishes at its solution keeps a scale above zero.
        The cap at 1 keeps a wild start from loosening the test.
    constraints: ||g(x0)||_inf clipped to [1e-3, 1], for the same reasons; 1 where g(x0) = 0.
    """

    gradient: Any = 1.0
    constraints: Any = 1.0


def scale_at(evaluation: Evaluation) -> Scale:
    """Return the `Scale` of a problem from its oracle call at the start (one backward pass).

    >>> e = Evaluation(np.array(0.0), np.array([-5.0]), lambda w, objective=1.0: np.array([1e-3, 0.0]))
    >>> scale_at(e)
    Scale(gradient=0.001, constraints=1.0)
    """
    xp = namespace(evaluation.constraints)
    gradient = max_norm(evaluation.pullback(xp.zeros_like(evaluation.constraints)))
    one = xp.ones_like(gradient)
    # f flat at x0 says nothing about its size: fall back on absolute measures.
    gradient = xp.where(gradient > 0, xp.minimum(gradient, one), one)
    values = max_norm(evaluation.constraints)
    one = xp.ones_like(values)
    values = xp.where(values > 0, xp.minimum(xp.maximum(values, 1e-3 * one), one), one)
    return Scale(_plain(gradient), _plain(values))


def _plain(value: Array) -> Any:
    """Return a Python float for a scalar array (they are compared in the loop), the array itself for a batch."""
    return float(value) if value.ndim == 0 else value


def _sum(values: Array) -> Array:
    """Return the sum over the last axis; for NumPy the ufunc's own reduction, a third of np.sum's time when short."""
    return np.add.reduce(values, axis=-1) if type(values) is np.ndarray else namespace(values).sum(values, axis=-1)


def absolute_residuals(
    domain: ConvexSet, x: Array, gradient: Array, constraints: Array, multipliers: Array, num_equalities: int = 0
) -> Residuals:
    """Return the residuals of Definition 2 as printed: Euclidean norms, no scale.

    stationarity = dist(grad f + J^T lambda, -N_X(x)), feasibility = ||g_+||, slackness = sum |lambda_i g_i|.

    Args:
        domain: the set X.
        x: the point.
        gradient: grad f(x) + J(x)^T lambda.
        constraints: g(x).
        multipliers: lambda.
        num_equalities: how many of the last constraints are equalities (they have no slackness).

    >>> from gdpa.sets import REALS
    >>> one = np.ones(1)
    >>> [float(v) for v in absolute_residuals(REALS, one, 2 * one, -3 * one, one)]
    [2.0, 0.0, 3.0]
    """
    xp = namespace(constraints)
    split = constraints.shape[-1] - num_equalities
    return Residuals(
        _plain(norm(domain.tangent(x, -gradient))),
        _plain(norm(positive_part(constraints, num_equalities))),
        _plain(_sum(xp.abs(multipliers * constraints)[..., :split])),
    )


def relative_residuals(
    domain: ConvexSet,
    x: Array,
    gradient: Array,
    constraints: Array,
    multipliers: Array,
    num_equalities: int = 0,
    scale: Scale = Scale(),  # noqa: B008 - an immutable tuple
    objective_gradient: Any = 0.0,
) -> Residuals:
    """Return the residuals in the units of the problem, by largest components (independent of the dimension).

    With s_f = max(scale.gradient, ||grad f(x)||_inf) and s_g = scale.constraints::

        stationarity = ||P_T(-grad f - J^T lambda)||_inf / s_f
        feasibility  = ||g_+||_inf / s_g
        slackness    = sum |lambda_i g_i| / (s_g max(s_f, sum |lambda_i|))

    The last is a mean of |g_i| weighted by the multipliers; the s_f in it keeps multipliers too small to matter
    from mattering.

    Args:
        domain: the set X.
        x: the point.
        gradient: grad f(x) + J(x)^T lambda.
        constraints: g(x).
        multipliers: lambda.
        num_equalities: how many of the last constraints are equalities.
        scale: the units, from `scale_at`.
        objective_gradient: ||grad f(x)||_inf where known; 0 gives an upper bound of the residuals.

    >>> from gdpa.sets import REALS
    >>> one = np.ones(1)
    >>> relative_residuals(REALS, one, 2e-3 * one, -3 * one, 0 * one, scale=Scale(1e-3, 1.0))
    Residuals(stationarity=2.0, feasibility=0.0, slackness=0.0)
    """
    xp = namespace(constraints)
    if isinstance(scale.gradient, float):
        s_f: Any = max(scale.gradient, float(objective_gradient))
    else:
        s_f = xp.maximum(scale.gradient, objective_gradient + xp.zeros_like(scale.gradient))
    stationarity = _plain(max_norm(domain.tangent(x, -gradient))) / s_f
    if constraints.shape[-1] == 0:
        return Residuals(stationarity, 0.0 * stationarity, 0.0 * stationarity)
    feasibility = _plain(max_norm(positive_part(constraints, num_equalities))) / scale.constraints
    sizes = xp.abs(multipliers)
    split = constraints.shape[-1] - num_equalities
    slack = _plain(_sum((sizes * xp.abs(constraints))[..., :split]))
    total = _plain(_sum(sizes))
    weight = max(s_f, total) if isinstance(total, float) else xp.maximum(s_f + xp.zeros_like(total), total)
    return Residuals(stationarity, feasibility, slack / (scale.constraints * weight))


def gradient_map(problem: Problem, x: Array, multipliers: Array, alpha: float = 1.0, beta: float = 1.0) -> Array:
    """Return the paper's G(x, lambda) of eq. (defopt), primal part then dual part.

    [ (x - P_X(x - alpha grad_x L)) / alpha ;  (lambda - [lambda + beta g(x)]_+) / beta ],   L = f + <lambda, g>.

    Example:
        >>> from gdpa.problems import get
        >>> disc = get("disc-product")
        >>> bool(norm(gradient_map(disc.problem, disc.solution, disc.multipliers)) < 1e-12)
        True
    """
    if not (alpha > 0 and beta > 0):
        raise ValueError(f"alpha and beta must be positive, got alpha={alpha!r}, beta={beta!r}")
    now = problem.evaluate(x)
    primal = (x - problem.domain.project(x - alpha * now.pullback(multipliers))) / alpha
    stepped = positive_part(multipliers + beta * now.constraints, problem.num_equalities)
    return namespace(x).concat([primal, (multipliers - stepped) / beta], axis=-1)


@dataclass(frozen=True)
class Certificate:
    """The KKT conditions at one point, computed from the problem alone.

    Attributes:
        x: the certified point: the given one, with coordinates nearly on the boundary of X moved onto it where that
            certifies better.
        multipliers: the best multipliers found for it.
        objective: f(x).
        constraints: g(x).
        gradient: grad f(x) + J(x)^T multipliers.
        domain_multipliers: -gradient's part in the normal cone of X, e.g. the multipliers of bounds
            (positive at an upper bound, negative at a lower one).
        residuals: as the paper prints them (absolute).
        relative: in the units of ``scale``; what tolerances are compared with.
        scale: the units.
    """

    x: Array
    multipliers: Array
    objective: Any
    constraints: Array
    gradient: Array
    domain_multipliers: Array
    residuals: Residuals
    relative: Residuals
    scale: Scale

    def holds(self, tolerance: float = 1e-4) -> bool:
        """Tell whether every relative residual is at most ``tolerance`` and f a finite number (False for NaN)."""
        worst, f = self.relative.worst, self.objective
        if isinstance(worst, float):
            return worst <= tolerance and math.isfinite(f)
        return bool(((worst <= tolerance) & namespace(worst).isfinite(f)).all())

    def __str__(self) -> str:
        a, r = self.residuals, self.relative
        names = ("stationarity", "feasibility", "slackness")
        return "; ".join(f"{n} {_show(x)} (relative {_show(y)})" for n, x, y in zip(names, a, r, strict=True))


def _show(value: Any) -> str:
    return f"{float(value) if isinstance(value, float) else float(value.max()):.2e}"


def certify(
    problem: Problem,
    x: Array,
    multipliers: Array | None = None,
    *,
    scale: Scale | None = None,
    snap: float | None = None,
) -> Certificate:
    """Return the KKT certificate of ``x`` with the best multipliers for it.

    The multipliers solve ``min ||P_T(-grad f - J^T lambda)||^2 / s_f^2 + sum (lambda_i g_i)^2 / (s_f s_g)^2`` over
    lambda >= 0 (free for equalities) by nonnegative least squares; ``multipliers``, where given, compete
    with them and the better ones are kept. A point nearly on the boundary of X is certified there and where it is, and
    the better certificate returned. Each costs one forward and m + 1 backward passes (one more with ``multipliers``).

    Args:
        problem: the problem.
        x: any point, of any method.
        multipliers: a method's own estimate. Above `JACOBIAN_LIMIT` entries of J it is taken as it is.
        scale: the units of the relative residuals; default: gradients and constraints of size 1.
        snap: how near the boundary of X counts as on it; default: the square root of the machine precision.

    Example:
        >>> from gdpa.problems import get
        >>> disc = get("disc-product")
        >>> certificate = certify(disc.problem, disc.solution)
        >>> certificate.multipliers.round(6).tolist(), certificate.holds(1e-8)
        ([0.5], True)
    """
    xp = namespace(x)
    snapped = problem.domain.snap(x, float(xp.finfo(x.dtype).eps) ** 0.5 if snap is None else snap)
    certificate = _certify_at(problem, snapped, multipliers, scale)
    inside = problem.domain.project(x)
    if not bool(xp.any(inside != snapped)):
        return certificate
    # Where g is steep the way to the boundary, however short, may cost more than it gains.
    return better(_certify_at(problem, inside, multipliers, scale), certificate)


def better(a: Certificate, b: Certificate) -> Certificate:
    """Return the certificate with the smaller relative residual, ``b`` in a tie (member by member in a batch)."""
    old, new = a.relative.worst, b.relative.worst
    if isinstance(old, float):
        return b if new <= old or old != old else a
    xp = namespace(old)
    mask = (new <= old) | (old != old)

    def pick(u: Any, v: Any) -> Any:
        if isinstance(u, tuple):
            return type(u)(*(pick(s, t) for s, t in zip(u, v, strict=True)))
        return xp.where(mask if v.ndim == mask.ndim else mask[..., None], v, u)

    return Certificate(**{name: pick(getattr(a, name), getattr(b, name)) for name in a.__dataclass_fields__})


def _certify_at(problem: Problem, x: Array, multipliers: Array | None, scale: Scale | None) -> Certificate:
    """Return the certificate of exactly this point."""
    xp = namespace(x)
    now = problem.evaluate(x)
    g, p, domain = now.constraints, problem.num_equalities, problem.domain
    zero = xp.zeros_like(g)
    grad_f = now.pullback(zero)
    size = max_norm(grad_f)
    if scale is None:
        ones = size * 0 + 1
        scale = Scale(_plain(ones), _plain(ones))

    def measure(lam: Array, gradient: Array) -> Residuals:
        return relative_residuals(domain, x, gradient, g, lam, p, scale, size)

    candidates = []
    if multipliers is not None:
        own = positive_part(multipliers, p)
        candidates.append((own, now.pullback(own)))
    m = g.shape[-1]
    if multipliers is None or m * x.shape[-1] <= JACOBIAN_LIMIT:
        if m:
            J = problem.jacobian(x) if problem.jacobian is not None else jacobian(now)
            fitted = fit(domain, x, grad_f, J, g, p, xp.maximum(size, 0 * size + scale.gradient), scale.constraints)
            candidates.append((fitted, grad_f + xp.sum(fitted[..., None] * J, axis=-2)))
        else:
            candidates.append((zero, grad_f))
    lam, gradient = candidates[0]
    for other, other_gradient in candidates[1:]:
        old, new = measure(lam, gradient).worst, measure(other, other_gradient).worst
        if isinstance(old, float):
            if new <= old or old != old:
                lam, gradient = other, other_gradient
        else:
            better = ((new <= old) | (old != old))[..., None]
            lam, gradient = xp.where(better, other, lam), xp.where(better, other_gradient, gradient)
    return Certificate(
        x=x,
        multipliers=lam,
        objective=_plain(now.objective),
        constraints=g,
        gradient=gradient,
        domain_multipliers=-gradient - domain.tangent(x, -gradient),
        residuals=absolute_residuals(domain, x, gradient, g, lam, p),
        relative=measure(lam, gradient),
        scale=scale,
    )
