"""Phase 2, stabilized SQP: one small quadratic program gives direction and multipliers.

References:
    S. J. Wright, "Superlinear convergence of a stabilized SQP method to a degenerate solution", Computational
    Optimization and Applications 11 (1998). P. E. Gill and D. P. Robinson, "A globally convergent stabilized SQP
    method", SIAM J. Optimization 23 (2013).
"""

from __future__ import annotations

import math

import array_api_compat
import numpy as np

from gdpa.base.arrays import dot, matmul, max_norm, namespace, to_numpy, total
from gdpa.base.typing import Array
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.core.multipliers import best_multipliers
from gdpa.core.problem import Evaluation, Problem, unit_vectors
from gdpa.methods.adaptive.al_step import projected_gradient
from gdpa.methods.adaptive.merit import Trial
from gdpa.methods.adaptive.rules import Rules
from gdpa.methods.adaptive.sqp_model import Model
from gdpa.methods.adaptive.state import SQP, AdaptiveState, largest_violation, sqrt_eps
from gdpa.methods.adaptive.units import drifted
from gdpa.methods.base import Probe
from gdpa.numerics.lbfgs import LBFGS
from gdpa.numerics.model import ModelStep
from gdpa.numerics.qp import WORKING_SET
from gdpa.numerics.sparse.matrix import SparseMatrix, row_sizes
from gdpa.numerics.sparse.program import predicts


def arrive(
    problem: Problem,
    old: AdaptiveState,
    state: AdaptiveState,
    now: Evaluation,
    phase: SQP,
    rules: Rules,
    least_beta: float,
) -> AdaptiveState:
    """Return the state at the accepted point: multipliers, pair of the Lagrangian, next trial.

    lambda <- lambda + t (l - lambda), with l the model's multipliers; s = x+ - x and y = grad L(x+, lambda+) -
    grad L(x, lambda+).
    """
    t, F = old.trial.length, state.lagrangian
    # Second derivatives are those of the Lagrangian with these multipliers: short steps would keep them wrong.
    share = 1.0 if isinstance(state.curvature.matrix, SparseMatrix) else t
    dual = phase.multipliers if share == 1.0 else (1 - share) * F.multipliers + share * phase.multipliers
    # Too stiff a penalty shortens steps; `plan` undoes a mistake.
    beta = F.beta / rules.beta_factor if t < 1 and F.beta > least_beta else F.beta
    F = AugmentedLagrangian(dual, beta, F.tau / rules.tau_factor, F.num_equalities)
    c, J = state.scaling.gradient(now), scaled_rows(state, now, F)
    change = c + matmul(dual, J) - (phase.gradient + matmul(dual, phase.jacobian))
    curvature = _learned(state.curvature, state.x - old.x, change)
    state = state.replaced(
        lagrangian=F,
        multipliers=state.scaling.unscale(dual),
        curvature=curvature,
        monitor=state.monitor._replace(points=state.monitor.points + 1),
    )
    return plan(problem, state, now, c, J, rules)


def _learned(curvature: LBFGS, s: Array, y: Array) -> LBFGS:
    """Return the matrix with the pair; a Hessian that predicts y = grad L(x + s) - grad L(x) is kept."""
    H = curvature.matrix
    if not isinstance(H, SparseMatrix):
        return curvature.updated(s, y)
    return curvature.spectral(s, y)._replace(matrix=H if predicts(H, s, y) else None)


def nearly_active(state: AdaptiveState, F: AugmentedLagrangian) -> Array:
    """Return which constraints may matter in the next step; the rows of the others are not pulled back.

    One is left out if it is no equality, its multiplier is zero, and it is farther from active than the largest change
    of a constraint in the last step.
    """
    g, xp = state.reference.constraints, namespace(state.x)
    m = g.shape[1]
    if g.shape[0] < 2:
        return g[-1] >= -math.inf
    moved = float(max_norm(g[-1] - g[-2]))
    index = xp.arange(m, device=array_api_compat.device(g))
    return (F.multipliers != 0) | (g[-1] >= -moved) | (index >= m - F.num_equalities)


def scaled_rows(state: AdaptiveState, now: Evaluation, F: AugmentedLagrangian) -> Array:
    """Return J' at x: whole if it is cheap or all rows are needed, else one backward pass for each row needed."""
    units = state.scaling.constraints
    if now.has_cheap_jacobian or (wanted := to_numpy(nearly_active(state, F))).all():
        return now.jacobian() * units[:, None]
    zero = namespace(units).zeros_like(state.x)
    rows = zip(unit_vectors(units), wanted, strict=True)
    return namespace(units).stack([now.pullback(units * unit, 0.0) if near else zero for unit, near in rows])


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # the line search refuses what is not finite
def plan(problem: Problem, state: AdaptiveState, now: Evaluation, c: Array, J: Array, rules: Rules) -> AdaptiveState:
    """Return the state with its next trial: units, penalty and multipliers that suit x, and the model's step."""
    sizes = row_sizes(J)
    change = drifted(state.scaling, state.reference.objectives[-1], state.constraints, c, J, sizes, rules)
    if change is not None:
        a, b = change
        state, c, J = state.in_units(a, b), a * c, b[:, None] * J
    if isinstance(J, SparseMatrix) and now.has_hessian and state.curvature.matrix is None:
        units = state.scaling
        H = now.hessian(units.constraints * state.lagrangian.multipliers, units.objective)
        state = state.replaced(curvature=state.curvature._replace(matrix=H))
    g, violation = state.constraints, state.violation
    model = Model.at(problem, state, c, J, g, sizes)
    F, step = _penalized(model, state.lagrangian, violation, rules)
    estimate, lagrangian_gradient, share = _best_multipliers(problem, state.x, model, violation, step.multipliers)
    if share < rules.adopted and float(max_norm(estimate)) < rules.adopted * float(max_norm(step.multipliers)):
        # lambda of a constraint that is no longer active falls slowly by lambda + beta g
        F = F._replace(multipliers=estimate)
        step = model.step(F, rules)
    gradient = model.gradient(F)
    slope = dot(gradient, step.direction)
    trial = Trial(step.direction, slope)
    if not slope < 0:
        trial = projected_gradient(problem.domain, state.x, gradient, state.curvature)
    scaling = state.scaling
    unscaled, unscaled_gradient = scaling.unscale(estimate), lagrangian_gradient / scaling.objective
    probe = Probe(state.x, unscaled, now.objective, now.constraints, unscaled_gradient, evaluation=now)
    phase = SQP(c, J, step.multipliers)
    return state.replaced(lagrangian=F, gradient=gradient, probe=probe, phase=phase, trial=trial)


def _penalized(
    model: Model, F: AugmentedLagrangian, violation: float, rules: Rules
) -> tuple[AugmentedLagrangian, ModelStep]:
    """Return F_beta and the model's step, with beta raised until the step removes enough of the violation."""
    stiff = model.stiff(F, rules)
    step = model.chosen(F, stiff, rules)
    for _ in range(rules.raises):
        if violation <= sqrt_eps(model.c) or F.beta >= rules.largest_beta:
            break
        left = largest_violation(model.g + matmul(model.J, step.direction), F.num_equalities)
        if left <= rules.violation_left * violation:
            break
        F = F._replace(beta=rules.beta_factor * F.beta)
        step = model.chosen(F, stiff, rules, step)
    return F, step


def _best_multipliers(
    problem: Problem, x: Array, model: Model, violation: float, multipliers: Array
) -> tuple[Array, Array, float]:
    """Return multipliers, the gradient of the Lagrangian with them, and their share of the residual of the model's.

    They are the model's own, or the best ones for x if these have a smaller residual: without a constraint
    qualification the model's lag behind. More multipliers than a working set holds take too long to fit, and no
    multipliers have a smaller residual than the violation.
    """
    c, J, g, domain = model.c, model.J, model.g, problem.domain
    gradient, split = c + matmul(multipliers, J), g.shape[-1] - problem.num_equalities
    if g.shape[-1] > WORKING_SET or isinstance(J, SparseMatrix):
        return multipliers, gradient, 1.0
    sizes = namespace(g).abs(g[:split])

    def residual(lam: Array, gradient: Array) -> float:
        """The largest KKT residual on the scaled problem; slackness is the mean of |g_i| weighted by lambda."""
        slackness = float(matmul(lam[:split], sizes)) / max(1.0, float(total(namespace(lam).abs(lam))))
        return max(float(max_norm(domain.tangent(x, -gradient))), violation, slackness)

    old = residual(multipliers, gradient)
    if old <= violation:
        return multipliers, gradient, 1.0
    other = best_multipliers(domain, x, c, J, g, problem.num_equalities)
    other_gradient = c + matmul(other, J)
    new = residual(other, other_gradient)
    return (other, other_gradient, new / old) if new < old else (multipliers, gradient, 1.0)


def correct(
    problem: Problem, state: AdaptiveState, phase: SQP, trial: Trial, constraints: Array, rules: Rules
) -> Array:
    """Return the second-order correction: the model's step with g(x + p) - J p instead of g(x)."""
    J, values = phase.jacobian, constraints - phase.jacobian @ trial.direction
    return Model.at(problem, state, phase.gradient, J, values, row_sizes(J)).step(state.lagrangian, rules).direction
