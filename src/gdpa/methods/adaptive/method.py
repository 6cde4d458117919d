"""Gradient descent and perturbed ascent without a step size to tune. Ours; see docs/adaptive.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from gdpa.base.arrays import LONG_ROW, machine_eps, max_norm, namespace, row_sizes, some, top, zeros_like
from gdpa.base.status import Status
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.certificate import JACOBIAN_LIMIT
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.core.problem import Evaluation, Problem
from gdpa.core.units import ROUNDINGS
from gdpa.methods.adaptive.quasi_newton import QuasiNewton, descend
from gdpa.methods.adaptive.restoration import Restoration
from gdpa.methods.adaptive.rules import Rules, Settings
from gdpa.methods.adaptive.scaling import (
    ScaledEvaluation,
    ScaledProblem,
    column_lengths,
    common_lengths,
    measures_rows,
    own_lengths,
    scaling_from,
    start_lengths,
)
from gdpa.methods.adaptive.sqp import SQP, begins_with_sqp, nearly_active
from gdpa.methods.adaptive.state import AdaptiveState, Monitor, Phase, Reference, Trial, largest_violation
from gdpa.methods.base import Probe
from gdpa.methods.method import Method, MethodCard
from gdpa.numerics.lbfgs import LBFGS
from gdpa.numerics.qp import WORKING_SET


@stored
@dataclass(frozen=True)
class AdaptiveGDPA(Settings, Method):
    r"""A one-loop augmented Lagrangian method with nothing to tune. It is ours, not the paper's recursion.

    It keeps the paper's function F_beta (`core.lagrangian`), its single loop and its oracle, and replaces the rest.
    Every update evaluates one trial point, which is accepted by a nonmonotone line search on F_beta:

    .. math::
        x_{r+1} = x_r + t_r p_r, \quad F_\beta(x_{r+1}, \lambda) \le \max_{j < 8} F_\beta(x_{r-j}, \lambda)
            + 10^{-4} t_r p_r^T \nabla F_\beta(x_r, \lambda)

    If the Jacobian is cheap or m is small, p is a *stabilized SQP* step and its multipliers l give the next lambda:

    .. math::
        p = \arg\min_{x + p \in X} \nabla f^T p + \tfrac12 p^T B p
            + \tfrac\beta2 \|[g + J p + \lambda / \beta]_+\|^2,
        \quad \lambda \leftarrow \lambda + t (l - \lambda)

    Otherwise p is a quasi-Newton direction of F_beta, an *inexact augmented Lagrangian* method:

    .. math::
        \lambda \leftarrow [\lambda + \beta g]_+ \text{ when }
            \|x - P_X(x - \nabla F_\beta)\|_\infty \le \|\max(g, -\lambda/\beta)\|_\infty

    If the violation does not fall, *feasibility restoration* minimizes it alone. One forward pass per update; one
    backward pass per accepted point (and one more at a multiplier update), or a Jacobian.

    Args:
        beta: the first penalty beta_0, on the scaled problem. Raised if the violation does not fall.
        memory: the number of pairs that the BFGS matrix keeps; at least d with d <= 100 variables.
        step: "pullback" (quasi-Newton), "jacobian" (SQP, in boxes and the whole space), or "auto": SQP if
            `Evaluation.jacobian` is cheap or there are at most 30 inequalities and 30 equalities; with more of them if
            the quasi-Newton steps have not ended in the passes that 20 SQP points take.
        rules: the other constants, see `gdpa.methods.adaptive.Rules`.

    Example:
        >>> from gdpa import problems, solve
        >>> result = solve(problems.get("HS12"), algorithm=AdaptiveGDPA(), tolerance=1e-8)
        >>> result.status.name, result.x.round(6).tolist(), result.multipliers.round(6).tolist()
        ('CONVERGED', [2.0, 3.0], [0.5])

    References:
        Songtao Lu, ICML 2022, for F_beta; the modules of this package cite the rest.

    Deviations from the paper:
        Everything but F_beta and the oracle, see docs/adaptive.md. There is no O(1/eps^3) theorem for it.
    """

    card: ClassVar[MethodCard] = MethodCard(
        "AdaptiveGDPA (ours)", "primal-dual", "ncvx", "inequality, equality", "single-loop", "none"
    )
    batches: ClassVar[bool] = False
    retried: ClassVar[bool] = False
    works_on_host: ClassVar[bool] = True

    def init(self, problem: Problem, x0: Array) -> AdaptiveState:
        now = self.begin(problem, x0)
        return self._start(problem, x0, now, start_lengths(problem, x0, now, self.rules))

    def _start(self, problem: Problem, x: Array, now: Evaluation, D: Array | None) -> AdaptiveState:
        """Return the state before the first update from x, in the lengths D."""
        rules, g, d = self.rules, now.constraints, x.shape[-1]
        sqp = begins_with_sqp(problem, now, d, self.step, rules)
        J = now.jacobian() if sqp or measures_rows(now, rules) else None
        c = now.gradient()
        if D is not None:
            c, J = D * c, None if J is None else D * J
        sizes = None if J is None else row_sizes(J)
        scaling = scaling_from((now.objective, g), float(max_norm(c)), sizes)._replace(lengths=D)
        scaled, call = ScaledProblem(problem, scaling), ScaledEvaluation(now, scaling, x)
        F = AugmentedLagrangian(zeros_like(g), float(self.beta), 0.0, problem.num_equalities)
        state = self.first_state(
            AdaptiveState,
            x,
            now,
            scaling=scaling,
            lagrangian=F,
            curvature=LBFGS(limit=max(self.memory, d) if d <= WORKING_SET else self.memory),
            reference=Reference.at(call),
            gradient=c,
            trial=Trial(0 * c, 0.0),
            monitor=Monitor(),
            phase=QuasiNewton(),
        )
        if sqp:
            state = SQP.enter(scaled, state)
        else:
            w = F.weights(call.constraints)
            gradient = call.pullback(w) if J is None else call.gradient() + w @ call.jacobian()
            state = state.replaced(gradient=gradient, curvature=LBFGS.fresh(gradient, state.curvature.limit))
        return state.phase.plan(self, scaled, state)

    def with_multipliers(self, problem: Problem, state: AdaptiveState, multipliers: Array) -> AdaptiveState:
        """Return the first state with other multipliers than zero."""
        F, scaled = state.lagrangian.with_multipliers(state.scaling.scale(multipliers)), state.scaled(problem)
        state = state.replaced(lagrangian=F, multipliers=multipliers, hessian=None)
        return self._enter(type(state.phase), scaled, state)

    def carry(self, problem: Problem, x0: Array, before: AdaptiveState) -> AdaptiveState:
        """Return the first state at x0 with units, curvature, penalty and multipliers of a run on a similar problem.

        A raised penalty begins as usual. If the other run ended in another phase, its curvature belongs to
        another function: then its multipliers alone are taken.
        """
        state = self.init(problem, x0)
        if state.multipliers.shape != before.multipliers.shape:
            raise ValueError(
                f"the problem has {state.multipliers.shape[-1]} constraints and the earlier one had "
                f"{before.multipliers.shape[-1]}: solve it without its result"
            )
        if before.phase.restores or type(before.phase) is not type(state.phase):
            return self.with_multipliers(problem, state, before.multipliers)
        scaled, F = ScaledProblem(problem, before.scaling), before.lagrangian
        F = F._replace(beta=min(F.beta, float(self.beta)))
        state = state.replaced(scaling=before.scaling, lagrangian=F, multipliers=before.multipliers, hessian=None)
        state = state.replaced(reference=Reference.at(state.call(scaled)))
        state = state.phase.enter(scaled, state).replaced(curvature=before.curvature)
        return state.phase.plan(self, scaled, state)

    def update(self, problem: Problem, state: AdaptiveState) -> AdaptiveState:
        """Evaluate the trial point. Move there and plan the next one, or shorten the step."""
        scaled = state.scaled(problem)
        if state.evaluation is not None and state.x.shape[0] > LONG_ROW:  # the phase has what the step needs of it
            state.evaluation.release(partial(problem.evaluate, state.x))
        z = state.phase.place(scaled, state.trial.point(state.z))
        now = scaled.evaluate(z)  # 1. one forward pass
        reference, rise, accepted = assess(state, now, self.rules)
        step = state.step + 1
        if accepted:  # 2. nonmonotone Armijo test on F_beta
            there = state.replaced(
                step=step,
                x=now.x,
                z=z,
                probe=None,
                evaluation=now.original,
                reference=reference,
                size=float(max_norm(now.x)),
                violation=largest_violation(now.constraints, problem.num_equalities),
                _call=now,
            )
            # 3. multipliers, penalty and curvature; the next phase; its trial, or a verdict
            new = self._arrive(scaled, state, there)
            if math.isfinite(new.trial.slope):
                return self._in_suitable_lengths(scaled, new)
            rise = math.nan  # the gradient there is not finite
        # 4. second-order correction, shorter step, projected gradient, or a verdict
        return self._refuse(scaled, state.replaced(step=step, probe=None), now, rise)

    def _arrive(self, problem: ScaledProblem, old: AdaptiveState, state: AdaptiveState) -> AdaptiveState:
        """Return the state at the accepted point: multipliers, penalty, phase, next trial, or a verdict."""
        rules, phase = self.rules, state.phase
        unmoved = 0 if _moved(old.x, state.x) else old.unmoved_points + 1
        if unmoved != state.unmoved_points:
            state = state.replaced(unmoved_points=unmoved)
        if phase.restores:
            state = phase.arrive(self, problem, old, state)
            return state.phase.plan(self, problem, state)
        if float(state.reference.objectives[-1]) < -rules.unbounded:  # no lower bound, or too weak a penalty
            far = state.violation > state.negligible * max(1.0, state.size)
            return self._enter(Restoration, problem, state) if far else state.replaced(verdict=Status.DIVERGING)
        violated, still = state.is_violated, unmoved >= rules.patience
        state = phase.arrive(self, problem, old, state)
        state = state.phase.plan(self, problem, state)
        if self.step == "auto" and state.multipliers.shape[0] > rules.few_rows:
            state = self._choose(problem, state)
        state = _watch(state, rules)
        if violated and (still or state.monitor.is_out_of_patience(rules.patience)):
            return self._enter(Restoration, problem, state)
        return self._stall(problem, state) if still else state

    def _enter(self, phase: type[Phase], problem: ScaledProblem, state: AdaptiveState) -> AdaptiveState:
        """Return the state at the same x at the start of a phase, with its first trial."""
        state = phase.enter(problem, state)
        return state.phase.plan(self, problem, state)

    def _refuse(
        self, problem: ScaledProblem, state: AdaptiveState, now: ScaledEvaluation, rise: float
    ) -> AdaptiveState:
        """Return the state with another trial from x, or a verdict; ``rise`` is how much the merit rises to ``now``."""
        trial, finite, rules = state.trial, math.isfinite(rise), self.rules
        if trial.correction is not None:
            return state.replaced(trial=trial._replace(length=rules.longest_cut, correction=None))
        if trial.length == 1.0 and finite:
            correction = state.phase.correct(problem, state, now.constraints, rules)
            if correction is not None:
                return state.replaced(trial=trial._replace(correction=correction))
        length = trial.shorter(rise, rules)
        if length >= state.negligible ** (2 * rules.shortest_step):
            return state.replaced(trial=trial._replace(length=length))
        if not state.curvature.is_fresh:  # once more along the projected gradient
            curvature = LBFGS.fresh(state.gradient, state.curvature.limit)
            trial = descend(problem, state.z, state.gradient, curvature)
            return state.replaced(curvature=curvature, hessian=None, trial=trial)
        if not finite:  # the loop names the culprit from these values
            call = now.original
            probe = Probe(state.x, state.multipliers, call.objective, call.constraints, state.x + math.nan)
            return state.replaced(probe=probe, verdict=Status.INVALID_NUMBER)
        if not state.phase.restores and state.is_violated:
            return self._enter(Restoration, problem, state)
        probing = state.phase.exhaust(self, problem, state)
        return self._stall(problem, state) if probing is None else probing

    def _stall(self, problem: ScaledProblem, state: AdaptiveState) -> AdaptiveState:
        """Return the state that begins again at x in a length for each variable, once, or with the verdict."""
        first = state.scaling.has_common_length and not state.phase.restores
        D = own_lengths(problem.original, state.x, self.rules) if first else None
        if D is None:
            return state.replaced(verdict=Status.STALLED)
        return self._restart(problem.original, state, state.call(problem).original, D)

    def _choose(self, problem: ScaledProblem, state: AdaptiveState) -> AdaptiveState:
        """Return the state in the SQP phase if the quasi-Newton phase has not ended soon and each row of J is a pass.

        The quasi-Newton phase goes first, until it has made the passes that `Rules.patience` points of SQP would
        take with the rows near active. An easy problem is solved by then.
        """
        m, d = state.multipliers.shape[0], state.x.shape[0]
        if state.phase.linearizes or m * d > JACOBIAN_LIMIT or not problem.is_box:
            return state
        rows = int(namespace(state.x).sum(nearly_active(state, state.lagrangian)))
        made = 2 * (state.step - state.phase_since)  # one forward and one backward pass at each point
        if made < self.rules.patience * (rows + 2) or state.call(problem).original.has_cheap_jacobian:
            return state
        return self._enter(SQP, problem, state.replaced(curvature=state.curvature.cleared()))

    def _in_suitable_lengths(self, problem: ScaledProblem, state: AdaptiveState) -> AdaptiveState:
        """Return the state in new lengths if x has outgrown the old ones or they have not led to an end.

        The lengths of the columns of J cost the curvature. A run takes them once, if the violation holds it up at the
        first point from three times `Rules.patience` on, from nine times as many on, and so on.
        """
        rules, phase, original = self.rules, state.phase, problem.original
        reviewed = phase.linearizes and state.step >= rules.patience * 3 ** (state.reviews + 1)
        if reviewed:
            once = state.reviews == 0 or state.scaling.has_common_length
            state = state.replaced(reviews=state.reviews + 1)
            if once and _is_held_up(problem, state):
                now = state.call(problem).original
                D = column_lengths(original, state.x, now, rules)
                return state if D is None else self._restart(original, state, now, D)
        if phase.restores or not _are_outgrown(problem, state, rules):
            return state
        now = state.call(problem).original
        D, before = common_lengths(original, state.x, now, rules), state.scaling.lengths
        if phase.linearizes or (D is not None and (before is None or D[0] > before[0])):
            return state.rescaled(lengths=D)
        # f and g have shrunk, and the quasi-Newton phase does not renew their units
        return self._restart(original, state, now, D)

    def _restart(self, problem: Problem, state: AdaptiveState, now: Evaluation, D: Array | None) -> AdaptiveState:
        """Return the state of a run that begins again at x in the lengths D, with its multipliers and its penalty."""
        again = self._start(problem, state.x, now, D)
        F = again.lagrangian._replace(beta=state.lagrangian.beta)
        again = again.replaced(
            lagrangian=F, step=state.step, phase_since=state.step, monitor=state.monitor, reviews=state.reviews
        )
        return self.with_multipliers(problem, again, state.multipliers).replaced(probe=state.probe)


@np.errstate(over="ignore", invalid="ignore")
def assess(state: AdaptiveState, now: ScaledEvaluation, rules: Rules) -> tuple[Reference, float, bool]:
    """Return the values with the trial point, the increase of the merit to it, and whether it is accepted."""
    trial, phase = state.trial, state.phase
    points = state.reference.push(now.objective, now.constraints, rules.reference_points)
    value, current, reference = points.values(0.0 if phase.restores else 1.0, phase.penalty(state))
    rise = value - current
    if trial.forced and math.isfinite(value):
        return points.newest(), rise, True
    return points, rise, trial.suffices(value, current, reference, ROUNDINGS * state.eps, rules)


def _moved(old: Array, new: Array) -> bool:
    """Return whether a coordinate has changed by more than rounding."""
    change, share = abs(new - old), ROUNDINGS * machine_eps(new)
    return bool(top(change) > share * max_norm(new)) or some(change > share * abs(new))


def _watch(state: AdaptiveState, rules: Rules) -> AdaptiveState:
    """Return the state with its monitor reset if the violation has decreased or vanished."""
    monitor = state.monitor
    if not state.is_violated:
        return state.replaced(monitor=monitor.reset())
    if monitor.is_out_of_patience(rules.patience) and state.violation < rules.fallen * monitor.violation:
        return state.replaced(monitor=monitor.reset(state.violation))
    return state


def _is_held_up(problem: ScaledProblem, state: AdaptiveState) -> bool:
    """Return whether the violation, not stationarity, is the larger residual of the scaled problem."""
    if state.probe is None:
        return False
    residual = problem.original.domain.tangent(state.x, -state.probe.gradient)
    return state.violation >= float(state.scaling.objective) * state.scaling.length * float(max_norm(residual))


def _are_outgrown(problem: ScaledProblem, state: AdaptiveState, rules: Rules) -> bool:
    """Return whether the largest |x_j| has left the length that D gives it.

    A first small step from 0 does not measure x: a length of 1 is shortened at `Rules.patience` points or not at all,
    and a shorter one is not shortened.
    """
    lengths = state.scaling.lengths
    common = lengths is None or state.scaling.has_common_length
    if problem.original.x_scale is not None or not problem.is_box or not common:
        return False  # lengths of single variables stay
    D, size = state.scaling.length, state.size
    shortened = D > 1 or (D == 1 and size > 0 and state.step == rules.patience)
    return size > rules.ordinary * D or (shortened and size < D / rules.ordinary)
