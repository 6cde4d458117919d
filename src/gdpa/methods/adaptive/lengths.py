"""The change of variables x = D z that gives x a length near 1.

D is a power of two for all coordinates, or one for each if the user states their lengths, so the change is exact in
floating point: bounds stay bounds to the last bit, and a problem in other units of x takes the same steps. It follows
the iterates: a far start does not fix the units of the run.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from gdpa.base.arrays import every, from_numpy, max_norm, namespace, some
from gdpa.base.sets import Box, Reals
from gdpa.base.typing import Array
from gdpa.core.problem import Evaluation, Problem
from gdpa.core.units import length_at_zero
from gdpa.methods.adaptive.merit import Correction
from gdpa.methods.adaptive.rules import Rules
from gdpa.methods.adaptive.state import SQP, AdaptiveState, sqrt_eps
from gdpa.numerics.dense import Matrix, to_float64
from gdpa.numerics.sparse.matrix import SparseMatrix


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


def lengths(problem: Problem, x: Array, now: Evaluation, rules: Rules) -> Array | None:
    """Return D for a run at ``x``, or None if the coordinates stay as they are.

    The length of x_j is ``problem.x_scale``, or max_k |x_k| for all, or `length_at_zero`. Lengths within
    `Rules.ordinary` of 1 are left as they are.
    """
    if not isinstance(problem.domain, (Reals, Box)):
        return None
    if problem.x_scale is not None:
        known = np.asarray(problem.x_scale) * np.ones(x.shape[-1])
    else:
        known = np.full(x.shape[-1], float(max_norm(x)) or length_at_zero(now, x))
    powers = np.rint(np.log2(known))
    ordinary = np.abs(powers) <= np.log2(rules.ordinary)
    return None if every(ordinary) else _powers_of_two(np.where(ordinary, 0.0, powers), x)


def column_lengths(problem: Problem, x: Array, now: Evaluation, rules: Rules) -> Array | None:
    """Return the D that equilibrates the columns of J, or None if they are equal up to `Rules.drift`.

    The length of x_j is 1 / max_i |J_ij| / max_k |J_ik|: rows are divided by their largest components first. A run that
    one common length has not ended by `Rules.second_attempt` points goes on in these lengths: variables have units of
    their own, and derivatives show them where a single point does not.

    References:
        D. Ruiz, "A scaling algorithm to equilibrate both rows and columns norms in matrices" (2001), one sweep.
    """
    if problem.x_scale is not None or now.is_sparse or not now.has_cheap_jacobian or now.constraints.shape[-1] == 0:
        return None
    J = np.abs(to_float64(now.jacobian()))
    rows = J.max(axis=1, keepdims=True)
    columns = (J / np.where(rows > 0, rows, 1.0)).max(axis=0)
    powers = -np.rint(np.log2(np.where(columns > sqrt_eps(x), columns, 1.0)))
    return None if np.ptp(powers) <= math.log2(rules.drift) else _powers_of_two(powers, x)


def _powers_of_two(powers: Matrix, x: Array) -> Array:
    most = -math.log2(float(namespace(x).finfo(x.dtype).smallest_normal)) // 4  # products stay finite
    return from_numpy(2.0 ** np.clip(powers, -most, most), x)


def are_outgrown(problem: Problem, state: AdaptiveState, rules: Rules) -> bool:
    """Return whether the largest |x_j| has left the length that D gives it.

    A first small step from 0 does not measure x: a length of 1 is shortened at `Rules.patience` points or not at all,
    and a shorter one is not shortened.
    """
    if problem.x_scale is not None or not isinstance(problem.domain, (Reals, Box)):
        return False
    if state.lengths is not None and some(state.lengths != state.lengths[0]):
        return False  # lengths of the columns stay
    size, D = float(max_norm(state.x)), 1.0 if state.lengths is None else float(state.lengths[0])
    shortened = D > 1 or (D == 1 and size > 0 and state.step == rules.patience)
    return size > rules.ordinary * D or (shortened and size < D / rules.ordinary)


def relabeled(state: AdaptiveState, D: Array | None) -> AdaptiveState:
    """Return the state in other common lengths: the same point, merit and step."""
    new, old = (1.0 if lengths is None else float(lengths[0]) for lengths in (D, state.lengths))
    c, trial, phase = new / old, state.trial, state.phase
    if isinstance(phase, SQP):
        phase = phase._replace(gradient=c * phase.gradient, jacobian=c * phase.jacobian)
    if isinstance(trial, Correction):
        refused = trial.refused._replace(direction=trial.refused.direction / c)
        trial = Correction(trial.step / c, refused)
    else:
        trial = trial._replace(direction=trial.direction / c)
    curvature = state.curvature.rescaled(c * c)
    return state.replaced(
        lengths=D,
        gradient=c * state.gradient,
        trial=trial,
        phase=phase,
        curvature=curvature._replace(length=curvature.length / c),
    )


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
