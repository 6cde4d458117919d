"""Which phase comes next, and what happens to a refused trial.

SQP needs several times fewer points than the quasi-Newton phase but a backward pass for every row near active, unless
the Jacobian is cheap. Passes are counted, not timed, so a run can be repeated.
"""

from __future__ import annotations

import math

from gdpa.base.arrays import machine_eps, namespace, some
from gdpa.base.sets import Box, ConvexSet, Reals
from gdpa.base.status import Status
from gdpa.base.typing import Array
from gdpa.core.certificate import JACOBIAN_LIMIT
from gdpa.core.problem import Evaluation, Problem
from gdpa.methods.adaptive import al_step, restoration, sqp_step
from gdpa.methods.adaptive.curvature import refined
from gdpa.methods.adaptive.merit import Correction, shorten
from gdpa.methods.adaptive.rules import Rules
from gdpa.methods.adaptive.state import (
    SQP,
    AdaptiveState,
    QuasiNewton,
    Restoration,
    largest_violation,
    sqrt_eps,
)
from gdpa.methods.base import Probe
from gdpa.numerics.lbfgs import LBFGS
from gdpa.numerics.sparse.matrix import SparseMatrix


def begins_with_sqp(problem: Problem, now: Evaluation, d: int, step: str, rules: Rules) -> bool:
    """Tell whether a run begins with SQP: the Jacobian is cheap or has few rows, and X is a box or the whole space."""
    m = now.constraints.shape[-1]
    if (m == 0 and not now.has_hessian) or not isinstance(problem.domain, (Reals, Box)):
        return False
    cheap = (now.has_cheap_jacobian or m <= rules.few_rows) and (m * d <= JACOBIAN_LIMIT or now.is_sparse)
    return step == "jacobian" or (step == "auto" and cheap)


def on_bounds(domain: ConvexSet, state: AdaptiveState, x: Array, rules: Rules) -> Array:
    """Return the trial point of a sparse problem with coordinates that rounding has kept off a bound put on it.

    Beside the bound a coordinate counts as free, and its multiplier as a residual.
    """
    if not (isinstance(state.phase, SQP) and isinstance(state.phase.jacobian, SparseMatrix)):
        return x
    return domain.snap(x, rules.roundings * machine_eps(x))


def arrive(
    problem: Problem, old: AdaptiveState, state: AdaptiveState, now: Evaluation, step: str, rules: Rules, beta: float
) -> AdaptiveState:
    """Return the state at the accepted point: multipliers, penalty, phase, next trial, or a verdict."""
    phase, x = state.phase, state.x
    if isinstance(phase, Restoration):
        state = restoration.arrive(problem, old, state, now, phase, rules)
        over = isinstance(state.phase, QuasiNewton)
        sqp = over and begins_with_sqp(problem, now, x.shape[-1], step, rules)
        return to_sqp(problem, state, now, rules) if sqp else state
    violated = state.violation > sqrt_eps(x)
    if float(state.reference.objectives[-1]) < -rules.unbounded:  # no lower bound, or too weak a penalty
        return restoration.begin(problem, state, now) if violated else state.replaced(verdict=Status.DIVERGING)
    unmoved = 0 if _moved(old.x, x, rules) else old.unmoved_points + 1
    if unmoved != state.unmoved_points:
        state = state.replaced(unmoved_points=unmoved)
    if isinstance(phase, SQP):
        state = refined(problem, sqp_step.arrive(problem, old, state, now, phase, rules, beta), now, rules)
    else:
        state = al_step.arrive(problem, old, state, now, phase, rules)
    if step == "auto":
        state = choose(problem, state, now, rules)
    state = _monitored(state, rules)
    still, monitor = state.unmoved_points >= rules.patience, state.monitor
    if violated and (still or monitor.points >= monitor.patience(rules.patience)):
        return restoration.begin(problem, state, now)
    return state.replaced(verdict=Status.STALLED) if still else state


def refuse(
    problem: Problem, state: AdaptiveState, now: Evaluation, constraints: Array, rise: float, rules: Rules
) -> AdaptiveState:
    """Return the state with another trial from the same x, or with the verdict that there is none.

    Args:
        problem: the problem.
        state: at x.
        now: the oracle call at the refused trial point.
        constraints: the scaled constraints there.
        rise: the merit there minus that at x.
        rules: the constants.
    """
    trial, finite = state.trial, math.isfinite(rise)
    if isinstance(trial, Correction):
        return state.replaced(trial=trial.refused._replace(length=rules.longest_cut))
    worse = finite and largest_violation(constraints, problem.num_equalities) > state.violation
    if isinstance(state.phase, SQP) and trial.length == 1.0 and worse:
        correction = sqp_step.correct(problem, state, state.phase, trial, constraints, rules)
        return state.replaced(trial=Correction(correction, trial))
    length = shorten(trial.length, trial.slope, rise, rules)
    if length >= sqrt_eps(state.x) ** (2 * rules.shortest_step):
        return state.replaced(trial=trial._replace(length=length))
    if state.curvature.pairs:  # once more along the projected gradient
        curvature = LBFGS.fresh(state.gradient, state.curvature.limit)
        return al_step.planned(problem.domain, state.replaced(curvature=curvature))
    if not finite:  # the loop names the culprit from these values
        probe = Probe(state.x, state.multipliers, now.objective, now.constraints, state.x + math.nan)
        return state.replaced(probe=probe, verdict=Status.INVALID_NUMBER)
    if not isinstance(state.phase, Restoration) and state.violation > sqrt_eps(state.x):
        return restoration.begin(problem, state, state.evaluation or problem.evaluate(state.x))
    return state.replaced(verdict=Status.STALLED)


def choose(problem: Problem, state: AdaptiveState, now: Evaluation, rules: Rules) -> AdaptiveState:
    """Return the state at x in the phase that the rows near active call for, if each of them is a pass.

    The quasi-Newton phase goes first, until it has made the passes that `Rules.trial_points` points of SQP would take.
    An easy problem is solved by then.
    """
    m, d = state.constraints.shape[0], state.x.shape[0]
    whole = m <= rules.few_rows or now.has_cheap_jacobian
    if whole or m * d > JACOBIAN_LIMIT or not isinstance(problem.domain, (Reals, Box)):
        return state
    rows = int(namespace(state.x).sum(sqp_step.nearly_active(state, state.lagrangian)))
    if isinstance(state.phase, SQP):
        return to_quasi_newton(problem, state, now) if rows > rules.few_rows else state
    made = 2 * (state.step - state.phase_since)  # one forward and one backward pass at each point
    if rows > rules.few_rows or made < rules.trial_points * (rows + 2):
        return state
    return to_sqp(problem, state.replaced(curvature=state.curvature.cleared()), now, rules)


def to_sqp(problem: Problem, state: AdaptiveState, now: Evaluation, rules: Rules) -> AdaptiveState:
    """Return the state at the same x in the SQP phase."""
    state = state.replaced(phase_since=state.step)
    c, J = state.scaling.gradient(now), sqp_step.scaled_rows(state, now, state.lagrangian)
    return sqp_step.plan(problem, state, now, c, J, rules)


def to_quasi_newton(problem: Problem, state: AdaptiveState, now: Evaluation) -> AdaptiveState:
    """Return the state at the same x in the quasi-Newton phase."""
    gradient = al_step.merit_gradient(state, now)
    curvature = LBFGS.fresh(gradient, state.curvature.limit)
    state = state.replaced(phase=QuasiNewton(), gradient=gradient, curvature=curvature, phase_since=state.step)
    return al_step.planned(problem.domain, state)


def _moved(old: Array, new: Array, rules: Rules) -> bool:
    """Tell whether a coordinate has changed by more than rounding."""
    xp = namespace(new)
    return some(xp.abs(new - old) > rules.roundings * machine_eps(new) * xp.abs(new))


def _monitored(state: AdaptiveState, rules: Rules) -> AdaptiveState:
    """Return the state with its monitor reset if the violation has decreased or vanished."""
    violation, monitor = state.violation, state.monitor
    if violation <= sqrt_eps(state.x):
        return state.replaced(monitor=monitor.reset())
    if monitor.points >= monitor.patience(rules.patience) and violation < rules.fallen * monitor.violation:
        return state.replaced(monitor=monitor.reset(violation))
    return state
