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
#: Spectral steps are at most 1 / this long, in units of the scaled gradient.
SMALLEST_SIGMA = 1e-6
#: The penalty is not raised above this on the scaled problem.
LARGEST_BETA = 1e8


def arrive(problem: Problem, old: AdaptiveState, state: AdaptiveState, memory: int) -> AdaptiveState:
    """Return the state at the accepted point ``state.x``: gradient, pair, multipliers where due, next trial."""
    now, g = state.evaluation, state.window.constraints[-1]
    assert now is not None
    scaling, merit = state.scaling, state.merit
    w = merit.weights(g)
    gradient = scaling.pullback(now, w)  # grad_x F_beta, eq. (as)
    s, y = state.x - old.x, gradient - old.gradient
    if isinstance(problem.domain, (Reals, Box)):
        pairs = remember(state.memory, s, y, memory)
    else:
        pairs = spectral(state.memory, s, y)
    state = replace(state, gradient=gradient, memory=pairs, since=state.since + 1)
    if state.restoration is None:
        multipliers = scaling.unscale(w)
        lagrangian = gradient / scaling.objective
        probe = Probe(state.x, multipliers, now.objective, now.constraints, lagrangian, evaluation=now)
        state = ascend(problem, replace(state, probe=probe), now, w, multipliers)
    return aim(problem.domain, state)


def spectral(memory: Memory, s: Array, y: Array) -> Memory:
    """Return the memory with sigma = s'y / s's, Barzilai and Borwein's first; halved where the pair has no curvature.

    No damping here: one number has no positive definiteness to lose, and where F curves down long steps are wanted.
    """
    xp = namespace(s)
    size, curvature = float(xp.sum(s * s)), float(xp.sum(s * y))
    if not size > 0:
        return memory
    sigma = curvature / size if curvature > 0 else memory.sigma / 2
    return Memory((s,), (y,), min(max(sigma, SMALLEST_SIGMA), 1 / SMALLEST_SIGMA), size**0.5)


def ascend(problem: Problem, state: AdaptiveState, now: Evaluation, w: Array, multipliers: Array) -> AdaptiveState:
    """Update the multipliers where x is nearly stationary for F_beta(., lambda), and beta where that helped little.

    lambda <- w = [(1 - tau) lambda + beta g]_+ when ||x - P_X(x - grad F)|| <= ||max(g, -lambda/beta)||, largest
    components on both sides; beta doubles unless the right-hand side has halved since the last update; tau falls to
    a quarter. F_beta has then another gradient, one more backward pass.

    Where x is not so stationary after `LONGEST_WAIT` points the multipliers are updated all the same. The violation
    then says little about the penalty, which stays: a larger one would make F_beta harder still to minimise.
    """
    merit = state.merit
    if isinstance(problem.domain, (Reals, Box)):
        stationarity = float(max_norm(state.x - problem.domain.project(state.x - state.gradient)))
    else:  # a projected step is no longer than the set is wide, however far from stationary x is
        stationarity = float(max_norm(problem.domain.tangent(state.x, -state.gradient)))
    measure = merit.residual(state.window.constraints[-1])
    if not (measure > 0 and (stationarity <= measure or state.since >= LONGEST_WAIT)):
        return state
    due = stationarity <= measure
    stagnates = due and measure > 0.5 * state.measure
    beta = 2 * merit.beta if stagnates and merit.beta < LARGEST_BETA else merit.beta
    merit = merit._replace(multipliers=w, beta=beta, tau=merit.tau / 4)
    gradient = state.scaling.pullback(now, merit.weights(state.window.constraints[-1]))
    watch = state.watch._replace(waited=state.watch.waited + (4 if due else 1))
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
    return domain.project(x - gradient / memory.sigma) - x
