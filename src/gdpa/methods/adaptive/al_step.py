"""Phase 1, an inexact augmented Lagrangian method: quasi-Newton steps on F_beta, one backward pass at each point.

Multipliers are updated when x is nearly stationary for F_beta. Restoration uses the same steps for its own merit.

References:
    A. R. Conn, N. I. M. Gould and Ph. L. Toint, "LANCELOT" (1992). R. Andreani, E. G. Birgin, J. M. Martinez and M. L.
    Schuverdt, "On augmented Lagrangian methods with general lower-level constraints", SIAM J. Optimization 18 (2007).
"""

from __future__ import annotations

import numpy as np

from gdpa.base.arrays import dot, max_norm
from gdpa.base.sets import Box, ConvexSet, Reals
from gdpa.base.typing import Array
from gdpa.core.certificate import gradient_mapping
from gdpa.core.problem import Evaluation, Problem
from gdpa.methods.adaptive.merit import Trial
from gdpa.methods.adaptive.rules import Rules
from gdpa.methods.adaptive.state import AdaptiveState, QuasiNewton, step_bounds
from gdpa.methods.base import Probe
from gdpa.numerics.lbfgs import LBFGS
from gdpa.numerics.model import model_step


def arrive(
    problem: Problem, old: AdaptiveState, state: AdaptiveState, now: Evaluation, phase: QuasiNewton, rules: Rules
) -> AdaptiveState:
    """Return the state at the accepted point: gradient, pair, multipliers if they are due, next trial."""
    state = measured(problem, old, state, now)
    scaling = state.scaling
    estimate = scaling.unscale(state.lagrangian.weights(state.constraints))
    lagrangian_gradient = state.gradient / scaling.objective
    probe = Probe(state.x, estimate, now.objective, now.constraints, lagrangian_gradient, evaluation=now)
    return planned(problem.domain, ascend(problem, state.replaced(probe=probe), now, phase, rules))


def measured(problem: Problem, old: AdaptiveState, state: AdaptiveState, now: Evaluation) -> AdaptiveState:
    """Return the state with the gradient of its merit at x, and with the pair of the last step in its matrix."""
    gradient = merit_gradient(state, now)
    s, y = state.x - old.x, gradient - old.gradient
    if isinstance(problem.domain, (Reals, Box)):
        curvature = state.curvature.updated(s, y)
    else:
        curvature = state.curvature.spectral(s, y)
    return state.replaced(gradient=gradient, curvature=curvature)


def merit_gradient(state: AdaptiveState, now: Evaluation) -> Array:
    """Return the gradient of the phase's merit at x, eq. (as) of the paper: one backward pass."""
    merit = state.merit
    return state.scaling.pullback(now, merit.lagrangian.weights(state.constraints), merit.weight)


def ascend(problem: Problem, state: AdaptiveState, now: Evaluation, phase: QuasiNewton, rules: Rules) -> AdaptiveState:
    r"""Update the multipliers if x is nearly stationary for F_beta, and raise beta if the last update helped little.

    .. math:: \lambda \leftarrow [(1 - \tau) \lambda + \beta g]_+ \quad\text{if}\quad
        \|x - P_X(x - \nabla F_\beta)\|_\infty \le \|\max(g, -\lambda/\beta)\|_\infty

    beta doubles unless the right-hand side has halved since the last update, and tau falls to a quarter. F_beta then
    has another gradient, one more backward pass.
    """
    F, g = state.lagrangian, state.constraints
    if isinstance(problem.domain, (Reals, Box)):
        stationarity = float(max_norm(gradient_mapping(problem.domain, state.x, state.gradient)))
    else:  # a projected step is no longer than the set is wide, however far from stationary x is
        stationarity = float(max_norm(problem.domain.tangent(state.x, -state.gradient)))
    complementarity = float(max_norm(F.complementarity(g)))
    if not (complementarity > 0 and stationarity <= complementarity):
        return state
    stagnates = complementarity > phase.complementarity / rules.beta_factor
    beta = rules.beta_factor * F.beta if stagnates and F.beta < rules.largest_beta else F.beta
    multipliers = F.ascend(g)
    monitor = state.monitor._replace(points=state.monitor.points + rules.update_weight)
    state = state.replaced(
        lagrangian=F._replace(multipliers=multipliers, beta=beta, tau=F.tau / rules.tau_factor),
        multipliers=state.scaling.unscale(multipliers),
        monitor=monitor,
        phase=QuasiNewton(complementarity),
    )
    return state.replaced(gradient=merit_gradient(state, now))


def planned(domain: ConvexSet, state: AdaptiveState) -> AdaptiveState:
    """Return the state with its next trial."""
    return state.replaced(trial=plan(domain, state.x, state.gradient, state.curvature))


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # the line search refuses what is not finite
def plan(domain: ConvexSet, x: Array, gradient: Array, curvature: LBFGS) -> Trial:
    """Return a descent direction p with x + p in X."""
    p = _direction(domain, x, gradient, curvature)
    slope = dot(p, gradient)
    return Trial(p, slope) if slope < 0 else projected_gradient(domain, x, gradient, curvature)


def projected_gradient(domain: ConvexSet, x: Array, gradient: Array, curvature: LBFGS) -> Trial:
    """Return the step that always descends, for rounding or a set of active bounds that was not found."""
    p = domain.project(x - gradient / curvature.sigma) - x
    return Trial(p, dot(p, gradient))


def _direction(domain: ConvexSet, x: Array, gradient: Array, curvature: LBFGS) -> Array:
    """Return -H grad in the whole space, the minimizer of the model in a box, a spectral step in other sets."""
    if isinstance(domain, Reals):
        return -curvature.inverse_product(gradient)
    bounds = step_bounds(domain, x)
    if bounds is not None:
        none = gradient[None, :][:0]
        return model_step(curvature, gradient, none, none[:, 0], 1.0, 0, bounds).direction
    return domain.project(x - gradient / curvature.sigma) - x
