"""Phase 2, stabilized SQP: one small quadratic program gives direction and multipliers.

References:
    S. J. Wright, "Superlinear convergence of a stabilized SQP method to a degenerate solution", Computational
    Optimization and Applications 11 (1998). P. E. Gill and D. P. Robinson, "A globally convergent stabilized SQP
    method", SIAM J. Optimization 23 (2013).
"""

from __future__ import annotations

import math
from dataclasses import replace

import array_api_compat
import numpy as np

from gdpa._arrays import from_numpy, max_norm, namespace, to_numpy
from gdpa._multipliers import fit
from gdpa._problem import Evaluation, Problem, unit_vectors
from gdpa._typing import Array
from gdpa.algorithms.adaptive.al_step import projected_gradient
from gdpa.algorithms.adaptive.merit import Trial
from gdpa.algorithms.adaptive.rules import Rules
from gdpa.algorithms.adaptive.state import SQP, AdaptiveState, largest_violation, sqrt_eps, step_bounds
from gdpa.algorithms.adaptive.units import drifted
from gdpa.algorithms.base import Probe
from gdpa.lagrangian import AugmentedLagrangian
from gdpa.numerics.dense import to_float64
from gdpa.numerics.model import ModelStep, model_step
from gdpa.numerics.qp import WORKING_SET
from gdpa.numerics.sparse import SparseMatrix
from gdpa.numerics.sparse_model import stiffened_step
from gdpa.numerics.sparse_program import Quadratic
from gdpa.units import Units


def arrive(
    problem: Problem,
    old: AdaptiveState,
    state: AdaptiveState,
    now: Evaluation,
    phase: SQP,
    rules: Rules,
    least_beta: float,
) -> AdaptiveState:
    """Return the state at the accepted point: multipliers, pair of the Lagrangian, next trial.

    lambda <- lambda + t (l - lambda), with l the model's multipliers; s = x+ - x and y = grad L(x+, lambda+) -
    grad L(x, lambda+).
    """
    t, F = old.trial.length, state.lagrangian
    # Second derivatives are those of the Lagrangian with these multipliers: short steps would keep them wrong.
    share = 1.0 if isinstance(state.curvature.matrix, SparseMatrix) else t
    dual = (1 - share) * F.multipliers + share * phase.multipliers
    F = F._replace(multipliers=dual, tau=F.tau / rules.tau_factor)
    if t < 1 and F.beta > least_beta:
        F = F._replace(beta=F.beta / rules.beta_factor)  # too stiff a penalty shortens steps; `plan` undoes a mistake
    state = replace(state, lagrangian=F)
    c, J = state.scaling.gradient(now), scaled_rows(state, now)
    change = c + dual @ J - (phase.gradient + dual @ phase.jacobian)
    known = isinstance(state.curvature.matrix, SparseMatrix)  # second derivatives need no pairs
    curvature = (state.curvature.spectral if known else state.curvature.updated)(state.x - old.x, change)
    state = replace(
        state,
        multipliers=state.scaling.unscale(dual),
        curvature=curvature,
        monitor=state.monitor._replace(points=state.monitor.points + 1),
    )
    return plan(problem, state, now, c, J, rules)


def nearly_active(state: AdaptiveState) -> Array:
    """Return which constraints may matter in the next step; the rows of the others are not pulled back.

    One is left out if it is no equality, its multiplier is zero, and it is farther from active than the largest change
    of a constraint in the last step.
    """
    g, xp = state.reference.constraints, namespace(state.x)
    m = g.shape[1]
    if g.shape[0] < 2:
        return g[-1] >= -math.inf
    moved = float(max_norm(g[-1] - g[-2]))
    index = xp.arange(m, device=array_api_compat.device(g))
    F = state.lagrangian
    return (F.multipliers != 0) | (g[-1] >= -moved) | (index >= m - F.num_equalities)


def scaled_rows(state: AdaptiveState, now: Evaluation) -> Array:
    """Return J' at x: whole if it is cheap or all rows are needed, else one backward pass for each row needed."""
    units = state.scaling.constraints
    wanted = to_numpy(nearly_active(state))
    if now.has_cheap_jacobian or wanted.all():
        return now.jacobian() * units[:, None]
    zero = namespace(units).zeros_like(state.x)
    rows = zip(unit_vectors(units), wanted, strict=True)
    return namespace(units).stack([now.pullback(units * unit, 0.0) if near else zero for unit, near in rows])


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # the line search refuses what is not finite
def plan(problem: Problem, state: AdaptiveState, now: Evaluation, c: Array, J: Array, rules: Rules) -> AdaptiveState:
    """Return the state with its next trial: units, penalty and multipliers that suit x, and the model's step."""
    a, b = drifted(state.scaling, state.reference.objectives[-1], state.constraints, c, J, rules)
    if a != 1.0 or bool(namespace(b).any(b != 1)):
        state, c, J = state.in_units(a, b), a * c, b[:, None] * J
    if isinstance(J, SparseMatrix) and now.has_hessian:
        units = state.scaling
        H = now.hessian(units.constraints * state.lagrangian.multipliers, units.objective)
        state = replace(state, curvature=state.curvature._replace(matrix=H))
    F, step = _penalized(problem, state, c, J, rules)
    estimate, share = _best_multipliers(problem, state.x, c, J, state.constraints, step.multipliers)
    if share < rules.adopted and float(max_norm(estimate)) < rules.adopted * float(max_norm(step.multipliers)):
        # lambda of a constraint that is no longer active falls slowly by lambda + beta g
        F = F._replace(multipliers=estimate)
        step = _solve(problem, state, F, c, J, state.constraints)
    gradient = c + F.weights(state.constraints) @ J
    slope = float(namespace(c).sum(gradient * step.direction))
    trial = Trial(step.direction, slope)
    if not slope < 0:
        trial = projected_gradient(problem.domain, state.x, gradient, state.curvature)
    scaling = state.scaling
    lagrangian_gradient = (c + estimate @ J) / scaling.objective
    unscaled = scaling.unscale(estimate)
    probe = Probe(state.x, unscaled, now.objective, now.constraints, lagrangian_gradient, evaluation=now)
    phase = SQP(c, J, step.multipliers)
    return replace(state, lagrangian=F, gradient=gradient, probe=probe, phase=phase, trial=trial)


def _penalized(
    problem: Problem, state: AdaptiveState, c: Array, J: Array, rules: Rules
) -> tuple[AugmentedLagrangian, ModelStep]:
    """Return F_beta and the model's step, with beta raised until the step removes enough of the violation."""
    F, g = state.lagrangian, state.constraints
    violation, goal = state.violation, rules.violation_left * state.violation
    step = _solve(problem, state, F, c, J, g)
    for _ in range(rules.raises):
        left = largest_violation(g + J @ step.direction, F.num_equalities)
        if left <= goal or violation <= sqrt_eps(c) or F.beta >= rules.largest_beta:
            break
        F = F._replace(beta=rules.beta_factor * F.beta)
        step = _solve(problem, state, F, c, J, g)
    return F, step


def _best_multipliers(
    problem: Problem, x: Array, c: Array, J: Array, g: Array, multipliers: Array
) -> tuple[Array, float]:
    """Return the model's multipliers and 1, or those of `gdpa._multipliers.fit` and their share of the residual.

    Without a constraint qualification the model's multipliers lag behind. More multipliers than a working set holds
    take longer to fit than a step takes; certificates fit them anyway.
    """
    if g.shape[-1] > WORKING_SET or isinstance(J, SparseMatrix):
        return multipliers, 1.0
    p = problem.num_equalities
    gradient = c + multipliers @ J
    one, ones = namespace(c).ones_like(c), namespace(g).ones_like(g)
    slacks = namespace(g).where(g > 0, 0 * ones, ones)  # a violated constraint has no slack
    other = fit(problem.domain, x, c, J, g, p, Units(one, ones, slacks, 0 * ones, ones))
    violation = largest_violation(g, p)
    sizes = namespace(g).abs(g[: len(g) - p])

    def residual(lam: Array, gradient: Array) -> float:
        """The largest KKT residual on the scaled problem; slackness is the mean of |g_i| weighted by lambda."""
        slackness = float(lam[: len(g) - p] @ sizes) / max(1.0, float(namespace(lam).sum(namespace(lam).abs(lam))))
        return max(float(max_norm(problem.domain.tangent(x, -gradient))), violation, slackness)

    new, old = residual(other, c + other @ J), residual(multipliers, gradient)
    return (other, new / old) if new < old else (multipliers, 1.0)


def correct(problem: Problem, state: AdaptiveState, phase: SQP, trial: Trial, constraints: Array) -> Array:
    """Return the second-order correction: the model's step with g(x + p) - J p instead of g(x)."""
    values = constraints - phase.jacobian @ trial.direction
    return _solve(problem, state, state.lagrangian, phase.gradient, phase.jacobian, values).direction


def _solve(problem: Problem, state: AdaptiveState, F: AugmentedLagrangian, c: Array, J: Array, g: Array) -> ModelStep:
    """Return the model's step. Rows of zeros are no part of it: their constraints' multipliers are beta [r]_+."""
    r = F.shifted(g) / F.beta
    p, bounds = F.num_equalities, step_bounds(problem.domain, state.x)
    if isinstance(J, SparseMatrix):
        gradient = c + F.weights(g) @ J
        return stiffened_step(Quadratic.of(state.curvature, len(c)), c, J, g, r, F.beta, gradient, p, bounds)
    evaluated = to_numpy(max_norm(J) != 0) | (np.arange(len(r)) >= len(r) - p)
    if evaluated.all():
        return model_step(state.curvature, c, J, r, F.beta, p, bounds)
    xp = namespace(J)
    index = xp.asarray(np.flatnonzero(evaluated), device=array_api_compat.device(J))
    rows, offsets = xp.take(J, index, axis=0), xp.take(r, index, axis=0)
    step = model_step(state.curvature, c, rows, offsets, F.beta, p, bounds)
    multipliers = F.beta * np.maximum(to_float64(r), 0.0)
    multipliers[evaluated] = to_float64(step.multipliers)
    return ModelStep(step.direction, from_numpy(multipliers, c))
