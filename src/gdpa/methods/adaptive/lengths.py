"""The change of variables x = D z that gives every coordinate a length near 1.

D is diagonal with powers of two, so the change is exact in floating point: bounds stay bounds to the last bit, and a
problem in other units of x takes the same steps.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from gdpa.base.arrays import every, from_numpy, namespace, to_numpy
from gdpa.base.sets import Box, Reals
from gdpa.base.typing import Array
from gdpa.core.problem import Evaluation, Problem
from gdpa.methods.adaptive.rules import Rules
from gdpa.methods.adaptive.state import AdaptiveState, sqrt_eps
from gdpa.methods.adaptive.units import measures_rows
from gdpa.numerics.sparse.matrix import SparseMatrix, row_sizes


class _InLengths(Evaluation):
    """The oracle call at x = D z, with derivatives in z. Both share what has been computed."""

    __slots__ = ("D", "original")

    def __init__(self, original: Evaluation, D: Array) -> None:
        def pullback(w: Array, objective: float | Array = 1.0) -> Array:
            return D * original.pullback(w, objective)

        super().__init__(original.objective, original.constraints, pullback, passes=original.passes)
        self.original, self.D = original, D

    @property
    def has_jacobian(self) -> bool:
        return self.original.has_jacobian

    @property
    def has_cheap_jacobian(self) -> bool:
        return self.original.has_cheap_jacobian

    def gradient(self) -> Array:
        return self.D * self.original.gradient()

    def jacobian(self) -> Array:
        return self.D * self.original.jacobian()

    @property
    def is_sparse(self) -> bool:
        return self.original.is_sparse

    @property
    def has_hessian(self) -> bool:
        return self.original.has_hessian

    def hessian(self, w: Array, objective: float = 1.0) -> SparseMatrix | None:
        H = self.original.hessian(w, objective)
        return None if H is None else self.D * (self.D[:, None] * H)


def lengths(problem: Problem, x0: Array, now: Evaluation, rules: Rules) -> Array | None:
    """Return D for a run from ``x0``, or None if the coordinates stay as they are.

    The length of x_j is ``problem.x_scale``, or |x0_j|, or the largest of these if that is 0. If x0 = 0 all have the
    distance to the nearest constraint, min_i |g_i| / max_j |dg_i/dx_j|, or 1 if there is none.
    With more than `Rules.few_variables` variables x0 is likely drawn at random, so all have the largest length. A
    length near 1 leaves its coordinate as it is.

    Args:
        problem: the problem.
        x0: the start.
        now: the oracle call there.
        rules: for what is near 1, and what tells no length.
    """
    if not isinstance(problem.domain, (Reals, Box)):
        return None
    if problem.x_scale is not None:
        known = np.asarray(problem.x_scale) * np.ones(x0.shape[-1])
    else:
        known = np.abs(np.asarray(to_numpy(x0), dtype=float))
        if not known.any() and measures_rows(now, rules):
            g = np.abs(np.asarray(to_numpy(now.constraints), dtype=float))
            slopes = np.asarray(to_numpy(row_sizes(now.jacobian())), dtype=float)
            telling = (slopes > sqrt_eps(x0) * g) & (g > 0)
            known[:] = np.min(g[telling] / slopes[telling], initial=np.inf) if telling.any() else 1.0
        known = np.where(known > 0, known, known.max() if known.any() else 1.0)
    many = problem.x_scale is None and len(known) > rules.few_variables
    known = np.full_like(known, known.max()) if many else known
    powers = np.rint(np.log2(known))
    ordinary = np.abs(powers) <= np.log2(rules.ordinary)
    if every(ordinary):
        return None
    most = -math.log2(float(namespace(x0).finfo(x0.dtype).smallest_normal)) // 4  # products stay finite
    return from_numpy(2.0 ** np.where(ordinary, 0.0, np.clip(powers, -most, most)), x0)


def inside(problem: Problem, state: AdaptiveState) -> tuple[Problem, AdaptiveState]:
    """Return problem and state in the variables z."""
    D = state.lengths
    if D is None:
        return problem, state
    now = state.evaluation
    return in_lengths(problem, D), state.replaced(x=state.x / D, evaluation=None if now is None else _InLengths(now, D))


def outside(state: AdaptiveState, D: Array | None) -> AdaptiveState:
    """Return a state in the variables z as the loop sees it, in x = D z."""
    if D is None:
        return state
    probe, x = state.probe, D * state.x
    if probe is not None:
        point = x if probe.x is state.x else D * probe.x  # one point is one array: it is certified once
        gradient, evaluation = probe.gradient / D, _original(probe.evaluation)
        probe = probe._replace(x=point, gradient=gradient, evaluation=evaluation)
    return state.replaced(x=x, evaluation=_original(state.evaluation), probe=probe, lengths=D)


def in_lengths(problem: Problem, D: Array) -> Problem:
    """Return the problem as a function of z; a run asks for it at every update and is given the same one."""
    known = vars(problem).get("_in_lengths")
    if known is None or known[0] is not D:
        domain = problem.domain
        if isinstance(domain, Box):
            lower, upper = domain.bounds(D)
            domain = Box(lower / D, upper / D)
        inner = replace(problem, evaluate=lambda z: _InLengths(problem.evaluate(D * z), D), domain=domain)
        known = vars(problem)["_in_lengths"] = (D, inner)
    changed: Problem = known[1]
    return changed


def evaluation_in_lengths(now: Evaluation, D: Array) -> Evaluation:
    """Return an oracle call at x = D z with derivatives in z."""
    return _InLengths(now, D)


def _original(evaluation: Evaluation | None) -> Evaluation | None:
    return evaluation.original if isinstance(evaluation, _InLengths) else evaluation
