"""Phase 3, feasibility restoration: quasi-Newton steps on ||[g]_+||^2 / 2, and the verdict of local infeasibility.

The phase hands its point back when the violation has fallen to a tenth. The verdict needs a violation that is
positive and stationary: to first order, moving x by its own size changes it by a millionth. Then two probes must
agree, each followed by twenty points that lead to no lower violation. The first is a step as long as x down the slope
that is left, because a plateau is flat without being a minimum. The second is a shove, because a point of symmetry is
flat, too. If the shoved point is as flat, the phase ends without a verdict, the first time: the objective may
lead off that plateau.
"""

from __future__ import annotations

from gdpa.base.arrays import max_norm, namespace, norm
from gdpa.base.status import Status
from gdpa.core.certificate import gradient_mapping, violation
from gdpa.core.problem import Evaluation, Problem
from gdpa.core.units import asymmetric_direction
from gdpa.methods.adaptive import al_step
from gdpa.methods.adaptive.merit import Trial
from gdpa.methods.adaptive.rules import Rules
from gdpa.methods.adaptive.state import (
    AdaptiveState,
    AfterShove,
    AfterSlope,
    Descending,
    Monitor,
    QuasiNewton,
    Restoration,
    sqrt_eps,
)
from gdpa.numerics.lbfgs import LBFGS


def begin(problem: Problem, state: AdaptiveState, now: Evaluation) -> AdaptiveState:
    """Return the state at the start of the phase, at the same x."""
    state = state.replaced(
        phase=Restoration(state.violation),
        curvature=state.curvature.cleared(),
        reference=state.reference.newest(),
        probe=None,
    )
    return al_step.planned(problem.domain, state.replaced(gradient=al_step.merit_gradient(state, now)))


def arrive(
    problem: Problem, old: AdaptiveState, state: AdaptiveState, now: Evaluation, phase: Restoration, rules: Rules
) -> AdaptiveState:
    """Return the state after an accepted point of the phase: going on, probing, back in the problem, or decided."""
    state = al_step.measured(problem, old, state, now)
    trial = al_step.plan(problem.domain, state.x, state.gradient, state.curvature)
    reach = 1 + float(max_norm(state.x))
    stage = phase.stage
    if not isinstance(stage, Descending):
        stage = stage._replace(points=stage.points + 1)
    phase = phase._replace(stage=stage)
    state = state.replaced(phase=phase, trial=trial)
    if state.violation <= max(rules.restored * phase.violation, sqrt_eps(state.x)):
        return end(problem, state, now, phase, rules)
    if not _is_flat(problem, state, reach, rules):
        return state
    if isinstance(stage, Descending):
        return _step_down_the_slope(problem, state, phase, reach)
    if isinstance(stage, AfterShove) and stage.points == 1 and state.monitor.restorations == 0:
        return end(problem, state, now, phase, rules)  # as flat as before the shove: a plateau, no minimum
    if stage.points < rules.patience:
        return state
    if state.violation <= rules.fallen * stage.violation:  # there was a way down
        return state.replaced(phase=phase._replace(stage=Descending()))
    if isinstance(stage, AfterShove):
        return state.replaced(verdict=Status.LOCALLY_INFEASIBLE)
    return _shoved(problem, state, phase, reach, rules)


def _step_down_the_slope(problem: Problem, state: AdaptiveState, phase: Restoration, reach: float) -> AdaptiveState:
    """Return the state with the first probe: a step as long as x down the slope that is left."""
    tiny = float(namespace(state.x).finfo(state.x.dtype).smallest_normal)
    curvature = state.curvature.cleared(max(float(max_norm(state.gradient)) / reach, tiny))
    phase = phase._replace(stage=AfterSlope(state.violation))
    return al_step.planned(problem.domain, state.replaced(phase=phase, curvature=curvature))


def _shoved(problem: Problem, state: AdaptiveState, phase: Restoration, reach: float, rules: Rules) -> AdaptiveState:
    """Return the state with the second probe: a step in a fixed direction without symmetry, accepted in any case."""
    p = problem.domain.project(state.x + rules.shove * reach * asymmetric_direction(state.x)) - state.x
    phase = phase._replace(stage=AfterShove(state.violation))
    return state.replaced(phase=phase, curvature=state.curvature.cleared(), trial=Trial(p, 0.0, forced=True))


def _is_flat(problem: Problem, state: AdaptiveState, reach: float, rules: Rules) -> bool:
    """Tell whether the violation is stationary: moving x by its size changes it by a millionth to first order."""
    size = float(norm(violation(state.constraints, state.lagrangian.num_equalities)))
    stationarity = float(max_norm(gradient_mapping(problem.domain, state.x, state.gradient)))
    share = max(rules.stationary, rules.roundings * sqrt_eps(state.x) ** 1.5)
    return bool(stationarity * reach <= share * size * min(size, 1.0))


def end(problem: Problem, state: AdaptiveState, now: Evaluation, phase: Restoration, rules: Rules) -> AdaptiveState:
    """Return the state back in the problem at the phase's point, with multipliers zero and a larger penalty."""
    monitor = state.monitor
    beta = min(rules.beta_factor * state.lagrangian.beta, rules.largest_beta)
    state = state.replaced(
        phase=QuasiNewton(),
        lagrangian=state.lagrangian._replace(multipliers=0 * state.constraints, beta=beta),
        reference=state.reference.newest(),
        monitor=Monitor(restorations=monitor.restorations + 1),
    )
    gradient = al_step.merit_gradient(state, now)
    curvature = LBFGS.fresh(gradient, state.curvature.limit)
    return al_step.planned(problem.domain, state.replaced(gradient=gradient, curvature=curvature))
