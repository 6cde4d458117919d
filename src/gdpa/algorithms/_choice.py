"""Which of the two steps: from the passes that have been made and those a Jacobian would take.

Passes are counted, not timed, so a run can be repeated. If `Evaluation.jacobian` is cheap
the step that knows it is taken, also up to `FEW` constraints. Of more, that step pulls back the rows that are near
only, and whether that pays is seen on the way. It needs several times fewer points than the one-pullback step but
rows + 2 passes at each, so the latter goes first, until it has made the passes that `SKETCH` such points would
take; it has come to its end by then where it is the better one.
"""

from __future__ import annotations

import math
from dataclasses import replace

from gdpa.algorithms import _jacobian_step, _one_pullback
from gdpa.algorithms._adaptive_state import AdaptiveState
from gdpa.algorithms._lbfgs import Memory, forgotten
from gdpa.arrays import namespace
from gdpa.problem import Evaluation, Problem
from gdpa.sets import Box, Reals

#: Up to so many constraints the Jacobian is worth its m backward passes from the start.
FEW = 30
#: Entries of J above which it is not formed.
LARGEST_JACOBIAN = 50_000_000
#: The rows that are near are worth their passes up to this number; beyond twice as many they are given up again.
NEAR = 45
#: Points of the step with the Jacobian whose passes the other step may make before its turn is over.
SKETCH = 20


def begins_with_jacobian(problem: Problem, now: Evaluation, d: int, step: str) -> bool:
    """Tell whether a run begins with the step that knows the Jacobian; the one-pullback step otherwise."""
    m = now.constraints.shape[-1]
    if m == 0 or not isinstance(problem.domain, (Reals, Box)):
        return False
    cheap = (now.has_cheap_jacobian or m <= FEW) and m * d <= LARGEST_JACOBIAN
    return step == "jacobian" or (step == "auto" and cheap)


def choose(problem: Problem, state: AdaptiveState) -> AdaptiveState:
    """Return the state at x with the step that the rows near active call for, where each of them is a pass."""
    g = state.window.constraints[-1]
    m, d = g.shape[0], state.x.shape[0]
    now = state.evaluation
    assert now is not None
    whole = m <= FEW or now.has_cheap_jacobian
    if whole or m * d > LARGEST_JACOBIAN or not isinstance(problem.domain, (Reals, Box)):
        return state
    rows = int(namespace(g).sum(_jacobian_step.near(state)))
    if state.knowledge is not None:
        return take_pullback(problem, state) if rows > 2 * NEAR else state
    made = 2 * (state.step - state.changed)  # passes of this step: one forward and one backward at each point
    if rows > NEAR or made < SKETCH * (rows + 2):
        return state
    return take_jacobian(problem, replace(state, memory=Memory()))  # that of another matrix


def take_jacobian(problem: Problem, state: AdaptiveState) -> AdaptiveState:
    """Return the state at the same x with the step that knows the Jacobian."""
    now = state.evaluation
    assert now is not None
    c = state.scaling.objective * now.gradient()
    state = replace(state, changed=state.step)
    return _jacobian_step.plan(problem, state, now, c, _jacobian_step.scaled_rows(state, now))


def take_pullback(problem: Problem, state: AdaptiveState) -> AdaptiveState:
    """Return the state at the same x with the one-pullback step."""
    now, g = state.evaluation, state.window.constraints[-1]
    assert now is not None
    gradient = state.scaling.pullback(now, state.merit.weights(g))
    state = replace(
        state,
        knowledge=None,
        gradient=gradient,
        memory=forgotten(gradient),
        measure=math.inf,
        since=0,
        changed=state.step,
    )
    return _one_pullback.aim(problem.domain, state)
