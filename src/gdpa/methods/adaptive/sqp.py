"""Phase 2, stabilized SQP: one small quadratic program gives direction and multipliers.

SQP needs several times fewer points than the quasi-Newton phase but a backward pass for every row near active, unless
the Jacobian is cheap. Passes are counted, not timed, so a run can be repeated.

References:
    S. J. Wright, "Superlinear convergence of a stabilized SQP method to a degenerate solution", Computational
    Optimization and Applications 11 (1998). P. E. Gill and D. P. Robinson, "A globally convergent stabilized SQP
    method", SIAM J. Optimization 23 (2013).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import array_api_compat
import numpy as np

from gdpa.base.arrays import dot, machine_eps, matmul, max_norm, namespace, on_host, stacked, to_numpy, total
from gdpa.base.sets import Box, Reals
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.certificate import JACOBIAN_LIMIT
from gdpa.core.lagrangian import AugmentedLagrangian, shifted
from gdpa.core.multipliers import best_multipliers
from gdpa.core.problem import Evaluation, Problem, unit_vectors
from gdpa.core.units import ROUNDINGS
from gdpa.methods.adaptive.quasi_newton import projected_gradient
from gdpa.methods.adaptive.rules import Rules, Settings
from gdpa.methods.adaptive.scaling import ScaledEvaluation, ScaledProblem, drift
from gdpa.methods.adaptive.state import AdaptiveState, Phase, Trial, largest_violation
from gdpa.numerics.model import ModelStep, model_step
from gdpa.numerics.qp import WORKING_SET
from gdpa.numerics.sparse.matrix import SparseMatrix, filled
from gdpa.numerics.sparse.model import sparse_model_step
from gdpa.numerics.sparse.program import STIFFER, Quadratic, predicts


@stored
@dataclass(frozen=True)
class SQP(Phase):
    """Stabilized SQP: the linearization at x, grad f' and J', and the multipliers l of the model's step."""

    gradient: Array
    jacobian: Array
    multipliers: Array

    linearizes: ClassVar[bool] = True

    def place(self, problem: ScaledProblem, z: Array) -> Array:
        """Return the trial point of a sparse problem with coordinates that rounding has kept off a bound put on it.

        Next to the bound a coordinate counts as free, and its multiplier as a residual.
        """
        sparse = isinstance(self.jacobian, SparseMatrix)
        return problem.domain.snap(z, ROUNDINGS * machine_eps(z)) if sparse else z

    def arrive(
        self, method: Settings, problem: ScaledProblem, old: AdaptiveState, state: AdaptiveState
    ) -> AdaptiveState:
        """Return the state at the accepted point: multipliers, pair of the Lagrangian, linearization.

        lambda <- lambda + t (l - lambda), with l the model's multipliers; s = x+ - x and y = grad L(x+, lambda+) -
        grad L(x, lambda+). A Hessian that predicts y is kept.
        """
        rules, t, F, now, H = method.rules, old.trial.length, state.lagrangian, state.call(problem), state.hessian
        # Second derivatives of the Lagrangian depend on the multipliers: short steps would keep them wrong.
        whole = t == 1.0 or H is not None
        dual = self.multipliers if whole else (1 - t) * F.multipliers + t * self.multipliers
        F = F.with_multipliers(dual)
        if t < 1:  # too stiff a penalty shortens steps; `plan` undoes a mistake
            F = F.relaxed(rules.beta_factor, method.beta)
        c, J = now.gradient(), needed_rows(state, now, F)
        s, y = state.z - old.z, c + matmul(dual, J) - (self.gradient + matmul(dual, self.jacobian))
        # A multiplier of an equality has either sign. Without an objective B only damps the steps, and may do so much.
        moderate = problem.num_equalities > 0 and float(max_norm(c)) > 0
        return state.replaced(
            lagrangian=F,
            multipliers=state.scaling.unscale(dual),
            curvature=state.curvature.updated(s, y, moderate=moderate) if H is None else state.curvature.spectral(s, y),
            hessian=H if H is not None and predicts(H, s, y) else None,
            monitor=state.monitor._replace(points=state.monitor.points + 1),
            phase=SQP(c, J, self.multipliers),
        )

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # the line search refuses non-finite numbers
    def plan(self, method: Settings, problem: ScaledProblem, state: AdaptiveState) -> AdaptiveState:
        """Return the state with its next trial: units, penalty and multipliers that suit x, and the model's step."""
        rules, c, J = method.rules, self.gradient, self.jacobian
        f, g = state.reference.objectives[-1], state.reference.constraints[-1]
        change = drift(state.scaling, f, g, c, J, rules)
        if change is not None:
            phase = self.rescaled(*change, 1.0)
            state = state.rescaled(*change, state.scaling.lengths).replaced(monitor=state.monitor.reset())
            c, J, g = phase.gradient, phase.jacobian, state.constraints
        now, z = state.call(problem), state.z
        if state.hessian is None and now.original.second is not None and isinstance(c, np.ndarray):
            state = state.replaced(hessian=now.hessian(state.lagrangian.multipliers))
        model = model_at(problem, z, state, c, J, g, state.violation)
        F, step = model.penalize(state.lagrangian, rules)
        estimate, lagrangian_gradient, share = _fit_multipliers(problem, z, model, step, rules)
        if share < rules.adopted and float(max_norm(estimate)) < rules.adopted * float(max_norm(step.multipliers)):
            # lambda of a constraint that is no longer active falls slowly by lambda + beta g
            F = F.with_multipliers(estimate)
            step = model.step(F, rules)
        gradient = model.gradient(F)
        slope = dot(gradient, step.direction)
        trial = Trial(step.direction, slope)
        if not slope < 0:
            trial = projected_gradient(problem, z, gradient, state.curvature)
        return state.replaced(
            lagrangian=F,
            gradient=gradient,
            probe=now.probe(estimate, lagrangian_gradient),
            phase=SQP(c, J, step.multipliers),
            trial=trial,
        )

    def correct(self, problem: ScaledProblem, state: AdaptiveState, constraints: Array, rules: Rules) -> Array | None:
        """Return the model's step with g(x + p) - J p instead of g(x), if x + p violates more than x."""
        p = problem.num_equalities
        if not largest_violation(constraints, p) > state.violation:
            return None
        g = constraints - self.jacobian @ state.trial.direction
        model = model_at(problem, state.z, state, self.gradient, self.jacobian, g, largest_violation(g, p))
        return model.step(state.lagrangian, rules).direction

    @classmethod
    def enter(cls, problem: ScaledProblem, state: AdaptiveState) -> AdaptiveState:
        now, F = state.call(problem), state.lagrangian
        phase = cls(now.gradient(), needed_rows(state, now, F), F.multipliers)
        return state.replaced(phase=phase, phase_since=state.step)

    def rescaled(self, a: float, b: Array | float, c: float) -> Self:
        J = self.jacobian if isinstance(b, float) else b[:, None] * self.jacobian
        return replace(self, gradient=a * c * self.gradient, jacobian=c * J)


def begins_with_sqp(problem: Problem | ScaledProblem, now: Evaluation, d: int, step: str, rules: Rules) -> bool:
    """Return whether a run begins with SQP: J is cheap or has few rows, and X is a box or the whole space.

    Equalities are counted apart from inequalities: 18 of each (AC power flow of 9 buses) take 398 passes in SQP, 720 if
    the quasi-Newton phase goes first.
    """
    m, p = now.constraints.shape[-1], problem.num_equalities
    if (m == 0 and not now.has_hessian) or not isinstance(problem.domain, (Reals, Box)):
        return False
    cheap = (now.has_cheap_jacobian or max(m - p, p) <= rules.few_rows) and (m * d <= JACOBIAN_LIMIT or now.is_sparse)
    return step == "jacobian" or (step == "auto" and cheap)


def nearly_active(state: AdaptiveState, F: AugmentedLagrangian) -> Array:
    """Return which constraints may matter in the next step; the rows of the others are not pulled back.

    A constraint is left out if it is not an equality, its multiplier is zero, and it is farther from active than the
    largest change of a constraint in the last step.
    """
    g, xp = state.reference.constraints, namespace(state.x)
    m = g.shape[1]
    if g.shape[0] < 2:
        return g[-1] >= -math.inf
    moved = float(max_norm(g[-1] - g[-2]))
    index = xp.arange(m, device=array_api_compat.device(g))
    return (F.multipliers != 0) | (g[-1] >= -moved) | (index >= m - F.num_equalities)


def needed_rows(state: AdaptiveState, now: ScaledEvaluation, F: AugmentedLagrangian) -> Array:
    """Return J' at x: whole if it is cheap or all rows are needed, else one backward pass for each row needed."""
    if now.original.has_cheap_jacobian or (wanted := to_numpy(nearly_active(state, F))).all():
        return now.jacobian()
    rows = zip(unit_vectors(F.multipliers), wanted, strict=True)
    return stacked((now.pullback(unit, 0.0) if near else None for unit, near in rows), len(wanted), state.x)


def _fit_multipliers(
    problem: ScaledProblem, z: Array, model: Model, step: Step, rules: Rules
) -> tuple[Array, Array, float]:
    """Return the multipliers, the gradient of the Lagrangian and the ratio of the new to the old KKT residual.

    They are the step's own, or the best ones for x if these have a smaller residual: without a constraint
    qualification the step's lag behind. None have a smaller residual than the violation, and a residual that cannot
    fall to the share `Rules.adopted` is not worth the search.
    """
    own, g, violation, domain = (step.multipliers, step.gradient, 1.0), model.g, model.violation, problem.domain
    split = g.shape[-1] - problem.num_equalities
    if split > model.most_fitted:  # equalities are eliminated, however many there are
        return own
    sizes = abs(g[:split])

    def residual(lam: Array, gradient: Array) -> float:
        """The largest KKT residual on the scaled problem; slackness is the mean of |g_i| weighted by lambda."""
        left = gradient if model.bounds is None else domain.tangent(z, -gradient)
        found = matmul(lam[:split], sizes), total(abs(lam)), max_norm(left)
        slack, size, largest = map(float, found if type(lam) is np.ndarray else on_host(*found))
        return max(largest, violation, slack / max(1.0, size))

    old = residual(step.multipliers, step.gradient)
    if rules.adopted * old <= violation:
        return own
    other = best_multipliers(domain, z, model.c, model.J, g, problem.num_equalities)
    other_gradient = model.c + matmul(other, model.J)
    new = residual(other, other_gradient)
    return (other, other_gradient, new / old) if new < old else own


class Step(NamedTuple):
    """A step p of the model with its multipliers l, and the linearization along it.

    Attributes:
        direction, multipliers: p and l.
        constraints: g' + J'p.
        gradient: grad f' + J'^T l.
    """

    direction: Array
    multipliers: Array
    constraints: Array
    gradient: Array


@dataclass
class Model:
    """The model at x, for any lambda and beta.

    Attributes:
        c, J, g: grad f', J' and g'.
        violation: the largest one.
        bounds: how far each coordinate may move down and up; None for the whole space.
        B: the matrix of second derivatives.
        most_fitted: up to this many inequalities have their best multipliers for x quickly found.
        stiffer: the factor of beta in the stiff model once beta has reached its largest value.
        keeps_matrix: whether the minimizer p has Bp + grad f + J'l = 0 without bounds.
    """

    c: Array
    J: Array
    g: Array
    violation: float
    bounds: tuple[Array, Array] | None
    B: Any
    most_fitted: ClassVar[int] = -1
    stiffer: ClassVar[float] = 1.0
    keeps_matrix: ClassVar[bool] = True
    _weights: tuple[Any, Any] = (None, None)
    _stiff: tuple[Any, Step | None] = (None, None)

    def solve(self, r: Array, beta: float, num_equalities: int, near: Any, interior: bool) -> ModelStep:
        """Return p and l of `minimize` for the shifted constraints r = g + lambda / beta."""
        raise NotImplementedError

    def minimize(self, F: AugmentedLagrangian, near: Step | None = None, interior: bool = True) -> Step:
        """Return the minimizer of the model of F, from ``near``, the minimizer with a smaller beta, if that is known.

        Without ``interior`` the step is NaN if it takes an interior-point method.
        """
        r = shifted(F.multipliers, F.beta, F.tau, self.g) / F.beta
        p, multipliers = self.solve(r, F.beta, F.num_equalities, near, interior)
        return Step(p, multipliers, self.g + matmul(self.J, p), self.c + matmul(multipliers, self.J))

    def step(self, F: AugmentedLagrangian, rules: Rules, near: Step | None = None) -> Step:
        """Return the stiff step if x is near the constraints and F_beta is to fall along it, the model's own otherwise.

        The weight 1 / beta of the multipliers in the model's dual makes them converge linearly. The stiff step is the
        minimizer with beta_max in place of beta, one for each lambda: its multipliers converge as in SQP (Wright 1998:
        superlinear convergence asks for a weight that vanishes). But a step along which the model of F_beta rises would
        be cut short, and the multipliers would stay wrong. Where beta is beta_max, a slope down is enough: the
        multipliers of a sparse model are taken whole however short the step is.
        """
        largest = F.beta >= rules.largest_beta
        beta = self.stiffer * F.beta if largest else rules.largest_beta
        if self._stiff[0] is not F.multipliers:
            stiff = None
            if self.violation < rules.near and F.beta < beta:
                stiff = self.minimize(F._replace(beta=beta), interior=False)
            self._stiff = F.multipliers, stiff
        stiff = self._stiff[1]
        if stiff is not None and F.beta < beta:
            change = dot(self.gradient(F), stiff.direction) if largest else self.change(F, stiff)
            if change < 0:  # never along a step that is NaN
                return stiff
        return self.minimize(F, near)

    def penalize(self, F: AugmentedLagrangian, rules: Rules) -> tuple[AugmentedLagrangian, Step]:
        """Return F_beta and the step, with beta raised until the step removes enough of the violation."""
        step = self.step(F, rules)
        if self.violation <= math.sqrt(machine_eps(self.c)):
            return F, step
        enough = rules.violation_left * self.violation
        for _ in range(rules.raises):
            if F.beta >= rules.largest_beta or largest_violation(step.constraints, F.num_equalities) <= enough:
                break
            F = F.stiffened(rules.beta_factor, rules.largest_beta)
            step = self.step(F, rules, step)
        return F, step

    def weights(self, F: AugmentedLagrangian) -> Array:
        """Return the weights of the rows of J' in the gradient of F_beta at x, once for each F_beta."""
        if self._weights[0] is not F:
            self._weights = F, F.weights(self.g)
        return self._weights[1]

    def gradient(self, F: AugmentedLagrangian) -> Array:
        """Return the gradient of F_beta at x, which is also the gradient of its model at p = 0."""
        return self.c + matmul(self.weights(F), self.J)

    def change(self, F: AugmentedLagrangian, step: Step) -> float:
        """Return the change of the model of F_beta along a step p that minimizes the model of some penalty.

        grad f'p + p'Bp/2 is added to f, and Jp to g.
        """
        p, before, after = step.direction, self.weights(F), F.weights(step.constraints)
        known = self.keeps_matrix and not self.bounds
        bend = -dot(step.gradient, p) if known else dot(p, self.B.product(p))
        return dot(self.c, p) + bend / 2 + (dot(after, after) - dot(before, before)) / (2 * F.beta)


class DenseModel(Model):
    """The model with a dense Jacobian and a limited-memory BFGS matrix."""

    most_fitted: ClassVar[int] = WORKING_SET

    def solve(self, r: Array, beta: float, num_equalities: int, near: Any, interior: bool) -> ModelStep:
        return model_step(self.B, self.c, self.J, r, beta, num_equalities, self.bounds)


class SparseModel(Model):
    """The model with a sparse Jacobian and a sparse matrix with a low rank, which is shifted until it is convex.

    The multipliers of a long chain converge slowly with beta_max, too, so there is a stiff model beyond it.
    """

    stiffer: ClassVar[float] = STIFFER
    keeps_matrix: ClassVar[bool] = False

    def solve(self, r: Array, beta: float, num_equalities: int, near: Any, interior: bool) -> ModelStep:
        return sparse_model_step(self.B, self.c, self.J, r, beta, num_equalities, self.bounds, interior, near)


def model_at(
    problem: ScaledProblem, z: Array, state: AdaptiveState, c: Array, J: Array, g: Array, violation: float
) -> Model:
    """Return the model at z, where the state is; a row of zeros was not evaluated and takes no part in it."""
    bounds = problem.step_bounds(z)
    sparse = isinstance(J, SparseMatrix)
    if state.hessian is None and not sparse:
        return DenseModel(c, J, g, violation, bounds, state.curvature)
    J = J if sparse else filled(J)
    return SparseModel(c, J, g, violation, bounds, Quadratic.of(state.curvature, state.hessian, len(c)))
