"""Phase 1, an inexact augmented Lagrangian method: quasi-Newton steps on F_beta, one backward pass at each point.

Multipliers are updated when x is nearly stationary for F_beta. Restoration uses the same steps for its own merit.

References:
    A. R. Conn, N. I. M. Gould and Ph. L. Toint, "LANCELOT" (1992). R. Andreani, E. G. Birgin, J. M. Martinez and M. L.
    Schuverdt, "On augmented Lagrangian methods with general lower-level constraints", SIAM J. Optimization 18 (2007).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gdpa.base.arrays import dot, max_norm
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.certificate import gradient_mapping
from gdpa.methods.adaptive.rules import Rules, Settings
from gdpa.methods.adaptive.scaling import ScaledProblem
from gdpa.methods.adaptive.state import AdaptiveState, Phase, Trial
from gdpa.numerics.lbfgs import LBFGS
from gdpa.numerics.model import model_step


@stored
@dataclass(frozen=True)
class QuasiNewton(Phase):
    """Quasi-Newton steps on F_beta, with rare multiplier updates.

    Attributes:
        complementarity: max |max(g, -lambda/beta)| at the last multiplier update.
    """

    complementarity: float = math.inf

    def arrive(
        self, method: Settings, problem: ScaledProblem, old: AdaptiveState, state: AdaptiveState
    ) -> AdaptiveState:
        state = measure(problem, old, state)
        estimate = state.lagrangian.weights(state.constraints)
        probe = state.call(problem).probe(estimate, state.gradient)
        return self.ascend(problem, state.replaced(probe=probe), method.rules)

    def ascend(self, problem: ScaledProblem, state: AdaptiveState, rules: Rules) -> AdaptiveState:
        r"""Update the multipliers if x is nearly stationary for F_beta; raise beta if the last update helped little.

        .. math:: \lambda \leftarrow [\lambda + \beta g]_+ \quad\text{if}\quad
            \|x - P_X(x - \nabla F_\beta)\|_\infty \le \|\max(g, -\lambda/\beta)\|_\infty

        beta doubles unless the right-hand side has halved since the last update. F_beta then has another
        gradient, one more backward pass.
        """
        F, g, domain = state.lagrangian, state.constraints, problem.domain
        if problem.is_box:
            stationarity = float(max_norm(gradient_mapping(domain, state.z, state.gradient)))
        else:  # a projected step is no longer than the set is wide, however far from stationary x is
            stationarity = float(max_norm(domain.tangent(state.z, -state.gradient)))
        complementarity = float(max_norm(F.complementarity(g)))
        if not (complementarity > 0 and stationarity <= complementarity):
            return state
        stagnates = complementarity > self.complementarity / rules.beta_factor
        multipliers = F.ascend(g)
        F = F.with_multipliers(multipliers)
        state = state.replaced(
            lagrangian=F.stiffened(rules.beta_factor, rules.largest_beta) if stagnates else F,
            multipliers=state.scaling.unscale(multipliers),
            monitor=state.monitor._replace(points=state.monitor.points + rules.update_weight),
            phase=QuasiNewton(complementarity),
        )
        return state.replaced(gradient=merit_gradient(problem, state))

    def plan(self, method: Settings, problem: ScaledProblem, state: AdaptiveState) -> AdaptiveState:
        return state.replaced(trial=descend(problem, state.z, state.gradient, state.curvature))

    @classmethod
    def enter(cls, problem: ScaledProblem, state: AdaptiveState) -> AdaptiveState:
        state = state.replaced(phase=cls(), phase_since=state.step)
        gradient = merit_gradient(problem, state)
        curvature = LBFGS.fresh(gradient, state.curvature.limit)
        return state.replaced(gradient=gradient, curvature=curvature, hessian=None)


def measure(problem: ScaledProblem, old: AdaptiveState, state: AdaptiveState) -> AdaptiveState:
    """Return the state with the gradient of its merit at x, and with the pair of the last step in its matrix."""
    gradient = merit_gradient(problem, state)
    s, y = state.z - old.z, gradient - old.gradient
    curvature = state.curvature.updated(s, y) if problem.is_box else state.curvature.spectral(s, y)
    return state.replaced(gradient=gradient, curvature=curvature)


def merit_gradient(problem: ScaledProblem, state: AdaptiveState) -> Array:
    """Return the gradient of the phase's merit at x, eq. (as) of the paper: one backward pass."""
    phase = state.phase
    return state.call(problem).pullback(phase.penalty(state).weights(state.constraints), 0.0 if phase.restores else 1.0)


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # the line search refuses non-finite numbers
def descend(problem: ScaledProblem, z: Array, gradient: Array, curvature: LBFGS) -> Trial:
    """Return a descent direction: -H grad, the minimizer of the model in a box, a spectral step in other sets."""
    if not problem.is_box:
        return projected_gradient(problem, z, gradient, curvature)
    bounds = problem.step_bounds(z)
    if bounds is None:
        p = -curvature.inverse_product(gradient)
    else:
        none = gradient[None, :][:0]
        p = model_step(curvature, gradient, none, none[:, 0], 1.0, 0, bounds).direction
    slope = dot(p, gradient)
    return Trial(p, slope) if slope < 0 else projected_gradient(problem, z, gradient, curvature)


def projected_gradient(problem: ScaledProblem, z: Array, gradient: Array, curvature: LBFGS) -> Trial:
    """Return the step that always descends, for rounding or a set of active bounds that was not found."""
    p = problem.domain.project(z - gradient / curvature.sigma) - z
    return Trial(p, dot(p, gradient))
