"""Is there a feasible point near? A phase that minimises the violation alone, and the verdict it allows.

In the phase f has weight 0, lambda = 0 and beta = 1, so F_beta is ||[g]_+||^2 / 2 and the one-pullback step minimises
it. It ends back in the problem where the violation has fallen to a tenth, and with the verdict where the violation is
positive and stationary: moving x by its own size would, to first order, change it by a millionth. Two probes must
agree, each followed by twenty steps that lead to no lower violation: a step as long as x down the slope that is left (a
plateau is flat without being a minimum) and a shove (so is a point of symmetry). Where the shove leads to a point that
is as flat the phase ends without a verdict, the first three times: the objective may lead off that plateau.
"""

from __future__ import annotations

from dataclasses import replace

from gdpa.algorithms import _one_pullback
from gdpa.algorithms._acceptance import Merit, Window
from gdpa.algorithms._adaptive_state import AdaptiveState, Restoration, Trial, Watch, negligible
from gdpa.algorithms._lbfgs import Memory, forgotten
from gdpa.arrays import max_norm, namespace, norm, positive_part
from gdpa.problem import Problem
from gdpa.result import Status
from gdpa.units import asymmetric_direction

#: The violation has fallen if it is below this share of what it was.
FALLEN = 0.9
#: The phase ends in the problem where the violation has fallen to this share of its value at the entry.
ENOUGH = 0.1
#: The phase is left after so many accepted points without a decision.
LONGEST = 300
#: So many accepted points after a probe it is judged.
PROBE = 20
#: Plateaus are left in this way until the patience has come to so many steps.
PATIENT = 160
#: Steps of the phase are at most so many times as long as x: on a plateau the matrix knows no limit.
FARTHEST = 10.0
#: The penalty with which the problem is taken up again is at most this times the patience.
MODERATE = 50.0


def observe(state: AdaptiveState) -> AdaptiveState:
    """Return the state with its watch on the violation wound up again where it has fallen, or there is none."""
    violation, watch = state.violation, state.watch
    if violation <= negligible(state.x):
        return replace(state, watch=Watch(patience=watch.patience))
    if watch.waited >= watch.patience and violation < FALLEN * watch.violation:
        return replace(state, watch=Watch(violation, patience=watch.patience))
    return state


def enter(problem: Problem, state: AdaptiveState) -> AdaptiveState:
    """Return the state at the start of the phase, at the same x."""
    now, g = state.evaluation, state.window.constraints[-1]
    if now is None:
        now = problem.evaluate(state.x)
    zero = namespace(g).zeros_like(g)
    scaling = state.scaling._replace(objective=0.0)
    merit = Merit(zero, 1.0, 0.0, state.merit.num_equalities)
    gradient = scaling.pullback(now, merit.weights(g))
    state = replace(
        state,
        restoration=Restoration(state.scaling, state.merit, state.violation),
        scaling=scaling,
        merit=merit,
        memory=Memory(),
        window=Window(0 * state.window.objectives[-1:], g[None, :]),
        gradient=gradient,
        knowledge=None,
        probe=None,
    )
    return _one_pullback.aim(problem.domain, state)


def judge(problem: Problem, state: AdaptiveState) -> AdaptiveState:
    """Return the state after an accepted point of the phase: going on, shoved, back in the problem, or decided."""
    entry = state.restoration
    assert entry is not None
    entry = entry._replace(steps=entry.steps + 1)
    reach = 1 + float(max_norm(state.x))
    size = float(max_norm(state.trial.direction))
    length = min(1.0, FARTHEST * reach / size) if size > 0 else 1.0
    state = replace(state, restoration=entry, trial=state.trial._replace(length=length))
    violation = state.violation
    floor = negligible(state.x)
    if violation <= max(ENOUGH * entry.violation, floor) or entry.steps > LONGEST:
        return leave(problem, state)
    g = state.window.constraints[-1]
    size = float(norm(positive_part(g, state.merit.num_equalities)))
    stationarity = float(max_norm(state.x - problem.domain.project(state.x - state.gradient)))
    flat = stationarity * reach <= max(1e-6, 10 * floor**1.5) * size * min(size, 1.0)
    shoved = entry.probes == 2 and entry.steps == entry.until - PROBE + 1
    if flat and shoved and state.watch.patience < PATIENT:
        return leave(problem, state)  # as flat as before the shove: a plateau, no minimum
    if not flat or (entry.probes and entry.steps < entry.until):
        return state
    if entry.probes and violation <= 0.99 * entry.probed:  # there was a way down: begin again
        return replace(state, restoration=entry._replace(probes=0))
    if entry.probes == 2:
        return replace(state, verdict=Status.LOCALLY_INFEASIBLE)
    after = entry._replace(probes=entry.probes + 1, probed=violation, until=entry.steps + PROBE)
    state = replace(state, restoration=after)
    if entry.probes == 0:  # a step as long as x, to begin with, down the slope that is left
        sigma = max(float(max_norm(state.gradient)) / reach, float(namespace(g).finfo(g.dtype).smallest_normal))
        return _one_pullback.aim(problem.domain, replace(state, memory=Memory(sigma=sigma)))
    p = problem.domain.project(state.x + 0.01 * reach * asymmetric_direction(state.x)) - state.x
    return replace(state, memory=Memory(), trial=Trial(p, 0.0, forced=True))


def leave(problem: Problem, state: AdaptiveState) -> AdaptiveState:
    """Return the state back in the problem at the phase's point, more patient than before."""
    entry, now = state.restoration, state.evaluation
    assert entry is not None
    assert now is not None
    f, g = entry.scaling.values(now)
    # The multipliers that led astray are forgotten; a penalty too weak is raised, one raised in vain comes down.
    merit = entry.merit._replace(multipliers=0 * g, beta=min(10 * entry.merit.beta, MODERATE * state.watch.patience))
    state = replace(
        state,
        restoration=None,
        scaling=entry.scaling,
        merit=merit,
        memory=Memory(),
        window=Window(f[None], g[None, :]),
        watch=Watch(patience=2 * state.watch.patience),
        since=0,
    )
    gradient = entry.scaling.pullback(now, merit.weights(g))
    return _one_pullback.aim(problem.domain, replace(state, gradient=gradient, memory=forgotten(gradient)))
