"""The step that costs one backward pass: quasi-Newton on F_beta, multipliers updated when it is nearly stationary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gdpa.algorithms._adaptive_state import AdaptiveState, Trial, room
from gdpa.algorithms._lbfgs import Memory, inverse_product, remember
from gdpa.algorithms._model import model_step
from gdpa.algorithms.base import Probe
from gdpa.arrays import max_norm, namespace
from gdpa.problem import Evaluation, Problem
from gdpa.sets import Box, ConvexSet, Reals
from gdpa.typing import Array

#: Multipliers are updated after so many accepted points at the latest.
LONGEST_WAIT = 200
#: The penalty is not raised above this on the scaled problem.
LARGEST_BETA = 1e8


def arrive(problem: Problem, old: AdaptiveState, state: AdaptiveState, memory: int) -> AdaptiveState:
    """Return the state at the accepted point ``state.x``: gradient, pair, multipliers where due, next trial."""
    now, g = state.evaluation, state.window.constraints[-1]
    assert now is not None
    scaling, merit = state.scaling, state.merit
    w = merit.weights(g)
    gradient = scaling.pullback(now, w)  # grad_x F_beta, eq. (as)
    limit = memory if isinstance(problem.domain, (Reals, Box)) else 1
    pairs = remember(state.memory, state.x - old.x, gradient - old.gradient, limit)
    state = replace(state, gradient=gradient, memory=pairs, since=state.since + 1)
    if state.restoration is None:
        multipliers = scaling.unscale(w)
        probe = Probe(state.x, multipliers, now.objective, now.constraints, gradient / scaling.objective)
        state = ascend(problem, replace(state, probe=probe), now, w, multipliers)
    return aim(problem.domain, state)


def ascend(problem: Problem, state: AdaptiveState, now: Evaluation, w: Array, multipliers: Array) -> AdaptiveState:
    """Update the multipliers where x is nearly stationary for F_beta(., lambda), and beta where that helped little.

    lambda <- w = [(1 - tau) lambda + beta g]_+ when ||x - P_X(x - grad F)|| <= ||max(g, -lambda/beta)||, largest
    components on both sides; beta doubles unless the right-hand side has halved since the last update; tau falls to
    a quarter. F_beta has then another gradient, one more backward pass.
    """
    merit = state.merit
    stationarity = float(max_norm(state.x - problem.domain.project(state.x - state.gradient)))
    measure = merit.residual(state.window.constraints[-1])
    if not (measure > 0 and (stationarity <= measure or state.since >= LONGEST_WAIT)):
        return state
    beta = 2 * merit.beta if measure > 0.5 * state.measure and merit.beta < LARGEST_BETA else merit.beta
    merit = merit._replace(multipliers=w, beta=beta, tau=merit.tau / 4)
    gradient = state.scaling.pullback(now, merit.weights(state.window.constraints[-1]))
    watch = state.watch._replace(waited=state.watch.waited + 4)
    return replace(
        state, merit=merit, multipliers=multipliers, gradient=gradient, measure=measure, since=0, watch=watch
    )


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # what is not finite is refused later
def aim(domain: ConvexSet, state: AdaptiveState) -> AdaptiveState:
    """Return the state with its next trial: a descent direction p of F_beta with x + p in X."""
    p = _direction(domain, state.x, state.gradient, state.memory)
    slope = float(namespace(p).sum(p * state.gradient))
    if not slope < 0:  # rounding, or a set of active bounds that was not found: the projected gradient descends
        p = domain.project(state.x - state.gradient / state.memory.sigma) - state.x
        slope = float(namespace(p).sum(p * state.gradient))
    return replace(state, trial=Trial(p, slope))


def _direction(domain: ConvexSet, x: Array, gradient: Array, memory: Memory) -> Array:
    """Return -H grad F in the whole space, the quasi-Newton model's minimiser in a box, a spectral step elsewhere."""
    if isinstance(domain, Reals):
        return -inverse_product(memory, gradient)
    bounds = room(domain, x)
    if bounds is not None:
        none = gradient[None, :][:0]
        return model_step(memory, gradient, none, none[:, 0], 1.0, 0, bounds).direction
    # Barzilai and Borwein's first length s's / s'y; the pair is stored with ||s|| = 1.
    xp = namespace(x)
    curvature = float(xp.sum(memory.steps[-1] * memory.changes[-1])) if memory.steps else memory.sigma
    return domain.project(x - gradient / curvature) - x
