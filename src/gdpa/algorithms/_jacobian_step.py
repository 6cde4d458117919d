"""The step that knows the Jacobian: the model's small dual programme gives direction and multipliers at once."""

from __future__ import annotations

import math
from dataclasses import replace

import array_api_compat
import numpy as np

from gdpa.algorithms._acceptance import Merit
from gdpa.algorithms._adaptive_state import AdaptiveState, Knowledge, Trial, largest_violation, negligible, room
from gdpa.algorithms._dualqp import dual_qp
from gdpa.algorithms._lbfgs import host, remember
from gdpa.algorithms._model import Step, model_step
from gdpa.algorithms._one_pullback import LARGEST_BETA
from gdpa.algorithms._rescaling import renew
from gdpa.algorithms.base import Probe
from gdpa.arrays import from_numpy, max_norm, namespace, to_numpy
from gdpa.problem import Evaluation, Problem, unit_vectors
from gdpa.typing import Array

#: The model's step must remove this share of the violation, or beta is raised ...
SHARE = 0.25
#: ... at most so many times at one point.
RAISES = 4
#: A violation below this share of the Lagrangian's gradient is not what keeps x from a solution.
MINOR = 1e-3
#: Multipliers of least squares replace lambda where they and their KKT residual are below this share of the model's.
ADOPTED = 0.1
#: Up to so many constraints every row is worth its backward pass.
ALL_ROWS = 10
#: Up to so many constraints the probe's multipliers are fitted; above, the model's own do (certificates always fit).
FITTED = 200


def arrive(problem: Problem, old: AdaptiveState, state: AdaptiveState, memory: int, least_beta: float) -> AdaptiveState:
    """Return the state at the accepted point ``state.x``: multipliers, pair of the Lagrangian, next trial.

    lambda <- lambda + t (l - lambda), with l the model's multipliers; s = x+ - x and y = grad L(x+, lambda+) -
    grad L(x, lambda+).
    """
    now, known, trial = state.evaluation, old.knowledge, old.trial
    assert now is not None
    assert known is not None
    t = trial.length
    dual = (1 - t) * state.merit.multipliers + t * known.multipliers
    merit = state.merit._replace(multipliers=dual, tau=state.merit.tau / 4)
    if t < 1 and merit.beta > least_beta:
        merit = merit._replace(beta=merit.beta / 2)  # too stiff a penalty shortens steps; `plan` undoes a wrong guess
    scaling = state.scaling
    c = scaling.objective * now.gradient()
    J = scaled_rows(replace(state, merit=merit), now)
    change = c + dual @ J - (known.gradient + dual @ known.rows)
    watch = state.watch._replace(waited=state.watch.waited + 1)
    pairs = remember(state.memory, state.x - old.x, change, memory)
    state = replace(state, merit=merit, multipliers=scaling.unscale(dual), memory=pairs, watch=watch)
    return plan(problem, state, now, c, J)


def near(state: AdaptiveState) -> Array:
    """Return which constraints may matter in the next step: the others are left out of J where a row is a pass.

    Of more than `ALL_ROWS` one may be left out where it is no equality, its multiplier is zero and it is further from
    active than twice what any constraint moved in the last step.
    """
    g, xp = state.window.constraints, namespace(state.x)
    m = g.shape[1]
    if m <= ALL_ROWS or g.shape[0] < 2:
        return g[-1] >= -math.inf
    moved = float(max_norm(g[-1] - g[-2]))
    index = xp.arange(m, device=array_api_compat.device(g))
    return (state.merit.multipliers != 0) | (g[-1] >= -2 * moved) | (index >= m - state.merit.num_equalities)


def scaled_rows(state: AdaptiveState, now: Evaluation) -> Array:
    """Return J' at x: whole if it is cheap or all rows are near, else one backward pass for each row that is near."""
    units = state.scaling.constraints
    wanted = to_numpy(near(state))
    if now.has_cheap_jacobian or wanted.all():
        return now.jacobian() * units[:, None]
    zero = namespace(units).zeros_like(state.x)
    rows = zip(unit_vectors(units), wanted, strict=True)
    return namespace(units).stack([now.pullback(units * unit, 0.0) if near else zero for unit, near in rows])


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # what is not finite is refused later
def plan(problem: Problem, state: AdaptiveState, now: Evaluation, c: Array, J: Array) -> AdaptiveState:
    """Return the state with its next trial, beta raised until the model's step removes enough of the violation.

    Where lambda is far too large, for a constraint that is not active any more, lambda + beta g falls slowly: the
    multipliers of least squares then take its place.
    """
    state, c, J = renew(state, c, J)
    merit, g = state.merit, state.window.constraints[-1]
    p = merit.num_equalities
    violation, goal = state.violation, SHARE * state.violation
    step = _solve(problem, state, merit, c, J, g)
    for _ in range(RAISES):
        left = largest_violation(g + J @ step.direction, p)
        stationarity = float(max_norm(state.x - problem.domain.project(state.x - c - step.multipliers @ J)))
        small = violation <= max(negligible(c), MINOR * stationarity)
        if left <= goal or small or merit.beta >= LARGEST_BETA:
            break
        merit = merit._replace(beta=2 * merit.beta)
        step = _solve(problem, state, merit, c, J, g)
    estimate, share = _best_multipliers(problem, state.x, c, J, g, step.multipliers)
    if share < ADOPTED and float(max_norm(estimate)) < ADOPTED * float(max_norm(step.multipliers)):
        merit = merit._replace(multipliers=estimate)
        step = _solve(problem, state, merit, c, J, g)
    direction, multipliers = step
    gradient = c + merit.weights(g) @ J
    slope = float(namespace(c).sum(gradient * direction))
    if not slope < 0:
        direction = problem.domain.project(state.x - gradient / state.memory.sigma) - state.x
        slope = float(namespace(c).sum(gradient * direction))
    scaling = state.scaling
    lagrangian = (c + estimate @ J) / scaling.objective
    probe = Probe(state.x, scaling.unscale(estimate), now.objective, now.constraints, lagrangian, evaluation=now)
    return replace(
        state,
        merit=merit,
        gradient=gradient,
        probe=probe,
        knowledge=Knowledge(c, J, multipliers),
        trial=Trial(direction, slope),
    )


def _best_multipliers(
    problem: Problem, x: Array, c: Array, J: Array, g: Array, multipliers: Array
) -> tuple[Array, float]:
    """Return the model's multipliers, or those of least squares where they certify x better, and by which factor.

    They minimise ||c + J'l||^2 + sum (l_i [-g_i]_+)^2 over the coordinates that the first do not hold at a bound.
    Where no constraint qualification holds the model's multipliers lag behind; these do not.
    """
    if g.shape[-1] > FITTED:
        return multipliers, 1.0
    p = problem.num_equalities
    gradient = c + multipliers @ J
    held = problem.domain.tangent(x, -gradient) == 0
    part = namespace(c).where(held[None, :], 0 * J, J)
    slack = np.diag(np.minimum(host(g), 0.0) ** 2)
    slack[len(slack) - p :] = 0.0
    A = host(part @ part.T)
    ridge = 1e-14 * (1 + np.trace(A)) * np.eye(len(A))
    other = from_numpy(dual_qp(A + slack + ridge, -host(part @ c), p), c)

    violation = largest_violation(g, p)
    sizes = namespace(g).abs(g[: len(g) - p])

    def residual(lam: Array, gradient: Array) -> float:
        """The largest KKT residual on the scaled problem; slackness is the mean of |g_i| weighted by lambda."""
        slackness = float(lam[: len(g) - p] @ sizes) / max(1.0, float(namespace(lam).sum(namespace(lam).abs(lam))))
        return max(float(max_norm(problem.domain.tangent(x, -gradient))), violation, slackness)

    new, old = residual(other, c + other @ J), residual(multipliers, gradient)
    return (other, new / old) if new < old else (multipliers, 1.0)


def correct(problem: Problem, state: AdaptiveState, constraints: Array) -> Array:
    """Return the step with the constraints' curvature along p taken from their values at the rejected x + p.

    The model is solved again with g(x + p) - J p in the place of g(x) (second-order correction).
    """
    known = state.knowledge
    assert known is not None
    values = constraints - known.rows @ state.trial.direction
    return _solve(problem, state, state.merit, known.gradient, known.rows, values).direction


def _solve(problem: Problem, state: AdaptiveState, merit: Merit, c: Array, J: Array, g: Array) -> Step:
    """Return the model's step. Rows of zeros are no part of it: their constraints' multipliers are beta [r]_+."""
    r, p, bounds = merit.shifted(g), merit.num_equalities, room(problem.domain, state.x)
    live = to_numpy(max_norm(J) != 0) | (np.arange(len(r)) >= len(r) - p)
    if live.all():
        return model_step(state.memory, c, J, r, merit.beta, p, bounds)
    xp = namespace(J)
    index = xp.asarray(np.flatnonzero(live), device=array_api_compat.device(J))
    step = model_step(state.memory, c, xp.take(J, index, axis=0), xp.take(r, index, axis=0), merit.beta, p, bounds)
    multipliers = merit.beta * np.maximum(host(r), 0.0)
    multipliers[live] = host(step.multipliers)
    return Step(step.direction, from_numpy(multipliers, c))
