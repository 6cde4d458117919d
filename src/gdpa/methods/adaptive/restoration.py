"""Phase 3, feasibility restoration: quasi-Newton steps on ||[g]_+||^2 / 2, and the verdict of local infeasibility.

The phase hands its point back when the violation has fallen to a quarter. The verdict needs a violation that is
positive and stationary: to first order, moving x by its own size changes it by a millionth. Then two probes must
agree, each followed by twenty points that lead to no lower violation. The first is a step as long as x down the slope
that is left, because a plateau is flat without being a minimum. The second is a shove, because a point of symmetry is
flat, too. If the shoved point is as flat, the phase ends without a verdict, the first time: the objective may
lead off that plateau. Last, the same has to hold with one unit for all constraints, in which the user sees them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar

from gdpa.base.arrays import max_norm, namespace, norm
from gdpa.base.status import Status
from gdpa.base.stored import stored
from gdpa.core.certificate import gradient_mapping, violation
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.core.units import ROUNDINGS, asymmetric_direction
from gdpa.methods.adaptive.quasi_newton import QuasiNewton, descend, measure, merit_gradient
from gdpa.methods.adaptive.rules import Rules, Settings
from gdpa.methods.adaptive.scaling import ScaledProblem
from gdpa.methods.adaptive.sqp import SQP, begins_with_sqp
from gdpa.methods.adaptive.state import AdaptiveState, Monitor, Phase, Trial


@stored
class Stage(Enum):
    """The stages of restoration: going down, after a step down the slope that is left, after a shove."""

    DESCENDING = "descending"
    AFTER_SLOPE = "after slope"
    AFTER_SHOVE = "after shove"


@stored
@dataclass(frozen=True)
class Restoration(Phase):
    """Quasi-Newton steps on the violation alone.

    Attributes:
        violation: the violation at the entry.
        stage: the stage.
        before: the violation before the last probe.
        points: accepted points since that probe.
    """

    violation: float
    stage: Stage = Stage.DESCENDING
    before: float = 0.0
    points: int = 0

    restores: ClassVar[bool] = True

    def penalty(self, state: AdaptiveState) -> AugmentedLagrangian:
        """Return ||[g]_+||^2 / 2: lambda = 0 and beta = 1."""
        return AugmentedLagrangian(0 * state.constraints, 1.0, 0.0, state.lagrangian.num_equalities)

    def arrive(
        self, method: Settings, problem: ScaledProblem, old: AdaptiveState, state: AdaptiveState
    ) -> AdaptiveState:
        """Return the state after an accepted point: going on, probing, back in the problem, or decided."""
        rules, phase = method.rules, self
        state = measure(problem, old, state)
        if self.stage != Stage.DESCENDING:
            phase = replace(self, points=self.points + 1)
            state = state.replaced(phase=phase)
        if state.violation <= max(rules.violation_left * self.violation, state.negligible):
            return self.end(method, problem, state)
        reach = 1 + float(max_norm(state.z))
        if not _is_flat(problem, state, reach, rules):
            stuck = self.stage == Stage.DESCENDING and state.unmoved_points >= rules.patience
            return state.replaced(verdict=Status.STALLED) if stuck else state
        if self.stage == Stage.DESCENDING:  # the first probe: a step as long as x down the slope that is left
            tiny = float(namespace(state.x).finfo(state.x.dtype).smallest_normal)
            curvature = state.curvature.cleared(max(float(max_norm(state.gradient)) / reach, tiny))
            return state.replaced(
                phase=replace(self, stage=Stage.AFTER_SLOPE, before=state.violation), curvature=curvature
            )
        if self.stage == Stage.AFTER_SHOVE and phase.points == 1 and state.monitor.restorations == 0:
            return self.end(method, problem, state)  # as flat as before the shove: a plateau, not a minimum
        if phase.points < rules.patience:
            return state
        if state.violation <= rules.fallen * self.before:  # there was a way down
            return state.replaced(phase=Restoration(self.violation))
        if self.stage == Stage.AFTER_SHOVE:
            return self._decide(problem, state)
        return self._shoved(state)

    def _shoved(self, state: AdaptiveState) -> AdaptiveState:
        """Return the state before the second probe, which `plan` makes."""
        phase = replace(self, stage=Stage.AFTER_SHOVE, before=state.violation, points=0)
        return state.replaced(phase=phase, curvature=state.curvature.cleared())

    def exhaust(self, method: Settings, problem: ScaledProblem, state: AdaptiveState) -> AdaptiveState | None:
        """Return the state with the second probe if no step of the first one was accepted."""
        if self.stage != Stage.AFTER_SLOPE:
            return None
        state = self._shoved(state)
        return state.phase.plan(method, problem, state)

    def _decide(self, problem: ScaledProblem, state: AdaptiveState) -> AdaptiveState:
        """Return the state with its verdict, or in the phase again with one unit for all constraints.

        A least violation in units of the method is not one in units of the user, so the verdict has to hold in both.
        """
        units = state.scaling.constraints
        common = 1 / float(max_norm(1 / units))
        if float(max_norm(units)) <= common * (1 + state.negligible):
            return state.replaced(verdict=Status.LOCALLY_INFEASIBLE)
        state = state.rescaled(1.0, common / units, state.scaling.lengths)
        return self.enter(state.scaled(problem.original), state)

    def plan(self, method: Settings, problem: ScaledProblem, state: AdaptiveState) -> AdaptiveState:
        z = state.z
        if self.stage == Stage.AFTER_SHOVE and self.points == 0:  # the second probe, in a direction without symmetry
            shove = method.rules.shove * (1 + float(max_norm(z))) * asymmetric_direction(z)
            return state.replaced(trial=Trial(problem.domain.project(z + shove) - z, 0.0, forced=True))
        return state.replaced(trial=descend(problem, z, state.gradient, state.curvature))

    @classmethod
    def enter(cls, problem: ScaledProblem, state: AdaptiveState) -> AdaptiveState:
        state = state.replaced(
            phase=cls(state.violation),
            curvature=state.curvature.cleared(),
            hessian=None,
            reference=state.reference.newest(),
            probe=None,
            unmoved_points=0,
        )
        return state.replaced(gradient=merit_gradient(problem, state))

    def end(self, method: Settings, problem: ScaledProblem, state: AdaptiveState) -> AdaptiveState:
        """Return the state back in the problem at the phase's point, with multipliers zero and a larger penalty."""
        rules, F, since = method.rules, state.lagrangian, state.phase_since
        state = state.replaced(
            lagrangian=F.with_multipliers(0 * state.constraints).stiffened(rules.beta_factor, rules.largest_beta),
            reference=state.reference.newest(),
            monitor=Monitor(restorations=state.monitor.restorations + 1),
        )
        state = QuasiNewton.enter(problem, state).replaced(phase_since=since)
        sqp = begins_with_sqp(problem, state.call(problem).original, state.x.shape[-1], method.step, rules)
        return SQP.enter(problem, state) if sqp else state


def _is_flat(problem: ScaledProblem, state: AdaptiveState, reach: float, rules: Rules) -> bool:
    """Return whether the violation is stationary: moving x by its size changes it by a millionth to first order."""
    size = float(norm(violation(state.constraints, state.lagrangian.num_equalities)))
    stationarity = float(max_norm(gradient_mapping(problem.domain, state.z, state.gradient)))
    share = max(rules.stationary, ROUNDINGS * state.negligible**1.5)
    return bool(stationarity * reach <= share * size * min(size, 1.0))
