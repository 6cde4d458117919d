"""Curvature along the planned step, from one more gradient of the Lagrangian, if a row of J costs a backward pass.

A step of SQP with k rows of J takes k + 2 passes. The Hessian of the Lagrangian times a vector takes 2, whatever k is.
So before a step is taken, the matrix B is corrected along it and the step is planned again, until it settles: quasi-
Newton iterations on the model of the step, at the same point and with the same rows.

References:
    R. S. Dembo, S. C. Eisenstat and T. Steihaug, "Inexact Newton methods", SIAM J. Numerical Analysis 19 (1982).
    R. H. Byrd, J. Nocedal and C. Zhu, "Towards a discrete Newton method with memory for large-scale optimization"
    (1996), for pairs of a limited-memory matrix from products with the Hessian.
"""

from __future__ import annotations

import math

from gdpa.base.arrays import namespace, norm
from gdpa.core.problem import Evaluation, Problem
from gdpa.methods.adaptive import sqp_step
from gdpa.methods.adaptive.merit import Trial
from gdpa.methods.adaptive.rules import Rules
from gdpa.methods.adaptive.state import SQP, AdaptiveState, sqrt_eps


def refined(problem: Problem, state: AdaptiveState, now: Evaluation, rules: Rules) -> AdaptiveState:
    """Return the state with its SQP step planned again on curvature that was measured along it.

    y = (grad L(x + h p) - grad L(x)) / h with h ||p|| = sqrt(eps) (1 + ||x||), at most half as often as there are rows
    of J to pull back, so that the products cost no more than the rows. An easy problem is solved within
    `Rules.trial_points` points, before any product is made.
    """
    early = state.step - state.phase_since < rules.trial_points
    if now.has_cheap_jacobian or early or math.isinf(rules.settled):
        return state
    rows = int(namespace(state.x).sum(sqp_step.nearly_active(state, state.lagrangian)))
    for _ in range((rows + 1) // 2):
        phase, trial = state.phase, state.trial
        if not (isinstance(phase, SQP) and isinstance(trial, Trial)):
            break
        p, size = trial.direction, float(norm(trial.direction))
        if not 0 < size < float("inf"):
            break
        h = min(1.0, sqrt_eps(p) * (1 + float(norm(state.x))) / size)
        there = state.scaling.pullback(problem.evaluate(state.x + h * p), phase.multipliers)
        change = there - (phase.gradient + phase.multipliers @ phase.jacobian)
        corrected = state.replaced(curvature=state.curvature.updated(h * p, change))
        state = sqp_step.plan(problem, corrected, now, phase.gradient, phase.jacobian, rules)
        if float(norm(state.trial.point(state.x) - state.x - p)) < rules.settled * size:
            break
    return state
