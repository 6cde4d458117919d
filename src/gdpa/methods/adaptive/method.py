"""Gradient descent and perturbed ascent without a step size to tune. Ours; see docs/adaptive.md."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from gdpa.base.arrays import machine_eps, namespace
from gdpa.base.checks import check_count, check_positive, check_share
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.core.problem import Evaluation, Problem
from gdpa.methods.adaptive import al_step, phases, sqp_step
from gdpa.methods.adaptive.lengths import (
    are_outgrown,
    column_lengths,
    evaluation_in_lengths,
    in_lengths,
    inside,
    lengths,
    outside,
    relabeled,
)
from gdpa.methods.adaptive.merit import Reference, Trial, sufficient
from gdpa.methods.adaptive.rules import Rules
from gdpa.methods.adaptive.state import SQP, AdaptiveState, Monitor, QuasiNewton, Restoration
from gdpa.methods.adaptive.units import measures_rows, scaling_from
from gdpa.methods.method import Method, MethodCard
from gdpa.numerics.lbfgs import LBFGS


@stored
@dataclass(frozen=True)
class AdaptiveGDPA(Method):
    r"""A one-loop augmented Lagrangian method with nothing to tune. It is ours, not the paper's recursion.

    It keeps the paper's function F_beta (`core.lagrangian`), its single loop and its oracle, and replaces the rest.
    Every update evaluates one trial point, which is accepted by a nonmonotone line search on F_beta:

    .. math::
        x_{r+1} = x_r + t_r p_r, \quad F_\beta(x_{r+1}, \lambda) \le \max_{j < 8} F_\beta(x_{r-j}, \lambda)
            + 10^{-4} t_r p_r^T \nabla F_\beta(x_r, \lambda)

    If the Jacobian is cheap or m is small, p is a *stabilized SQP* step and its multipliers l give the next lambda:

    .. math::
        p = \arg\min_{x + p \in X} \nabla f^T p + \tfrac12 p^T B p
            + \tfrac\beta2 \|[g + J p + (1 - \tau) \lambda / \beta]_+\|^2,
        \quad \lambda \leftarrow \lambda + t (l - \lambda)

    Otherwise p is a quasi-Newton direction of F_beta, an *inexact augmented Lagrangian* method:

    .. math::
        \lambda \leftarrow [(1 - \tau_k) \lambda + \beta g]_+ \text{ when }
            \|x - P_X(x - \nabla F_\beta)\|_\infty \le \|\max(g, -\lambda/\beta)\|_\infty, \quad \tau_k = \tau / 4^k

    If the violation does not fall, *feasibility restoration* minimizes it alone. One forward pass per update; one
    backward pass per accepted point (and one more at a multiplier update), or a Jacobian. If every row of J is a pass,
    a long run also measures curvature along its steps, see `gdpa.methods.adaptive.curvature`.

    Args:
        beta: the first penalty beta_0, on the scaled problem. Raised if the violation does not fall.
        memory: the number of pairs that the limited-memory BFGS matrix keeps.
        step: "pullback" (quasi-Newton), "jacobian" (SQP, in boxes and the whole space), or "auto": SQP if
            `Evaluation.jacobian` is cheap or m <= 30; with more constraints once the rows near active pay.
        tau: the perturbation tau_0; it falls to a quarter with every multiplier update, so that no bias is left.
        rules: the other constants, see `gdpa.methods.adaptive.Rules`.

    Example:
        >>> from gdpa import problems, solve
        >>> hs = problems.get("HS12")
        >>> result = solve(hs.problem, hs.x0, AdaptiveGDPA(), tolerance=1e-8)
        >>> result.status.name, result.x.round(6).tolist(), result.multipliers.round(6).tolist()
        ('CONVERGED', [2.0, 3.0], [0.5])

    References:
        Songtao Lu, ICML 2022, for F_beta and the perturbation; the modules of this package cite the rest.

    Deviations from the paper:
        Everything but F_beta and the oracle, see docs/adaptive.md. There is no O(1/eps^3) theorem for it.
    """

    beta: float = 10.0
    memory: int = 20
    step: str = "auto"
    tau: float = 0.1
    rules: Rules = field(default=Rules(), repr=False)

    card: ClassVar[MethodCard] = MethodCard(
        "AdaptiveGDPA (ours)", "primal-dual", "ncvx", "inequality, equality", "single-loop", "none"
    )
    batches: ClassVar[bool] = False
    retried: ClassVar[bool] = False
    works_on_host: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(beta=self.beta)
        check_share(tau=self.tau)
        check_count(1, memory=self.memory)
        if self.step not in ("auto", "pullback", "jacobian"):
            raise ValueError(f"step must be 'auto', 'pullback' or 'jacobian', got {self.step!r}")
        if not isinstance(self.rules, Rules):
            raise TypeError(f"rules must be a Rules of gdpa.methods.adaptive, got {self.rules!r}")

    def init(self, problem: Problem, x0: Array) -> AdaptiveState:
        now = self.begin(problem, x0)
        return self._at(problem, x0, now, lengths(problem, x0, now, self.rules))

    def _at(self, problem: Problem, x: Array, now: Evaluation, D: Array | None) -> AdaptiveState:
        """Return the state before the first update from x, in the lengths D."""
        if D is None:
            return self._begin(problem, x, now)
        return outside(self._begin(in_lengths(problem, D), x / D, evaluation_in_lengths(now, D)), D)

    def _begin(self, problem: Problem, x0: Array, now: Evaluation) -> AdaptiveState:
        """Return the state before the first update."""
        rules = self.rules
        sqp = phases.begins_with_sqp(problem, now, x0.shape[-1], self.step, rules)
        J = now.jacobian() if sqp or measures_rows(now, rules) else None
        scaling = scaling_from((now.objective, now.constraints), now.gradient(), J, rules, enlarge=not sqp)
        zero = namespace(now.constraints).zeros_like(now.constraints)
        F = AugmentedLagrangian(zero, float(self.beta), float(self.tau), problem.num_equalities)
        f, g = scaling.values(now)
        if sqp:  # `to_sqp` plans the first trial
            gradient = scaling.gradient(now)
            curvature, trial = LBFGS(limit=self.memory), Trial(0 * gradient, 0.0)
        else:
            rows = None if J is None else J * scaling.constraints[:, None]
            w = F.weights(g)
            gradient = scaling.pullback(now, w) if rows is None else scaling.gradient(now) + w @ rows
            curvature = LBFGS.fresh(gradient, self.memory)
            trial = al_step.plan(problem.domain, x0, gradient, curvature)
        state = self.first_state(
            AdaptiveState,
            x0,
            now,
            scaling=scaling,
            lagrangian=F,
            curvature=curvature,
            reference=Reference(f[None], g[None, :]),
            gradient=gradient,
            trial=trial,
            monitor=Monitor(),
            phase=QuasiNewton(),
        )
        return phases.to_sqp(problem, state, now, rules) if sqp else state

    def with_multipliers(self, problem: Problem, state: AdaptiveState, multipliers: Array) -> AdaptiveState:
        """Return the first state with other multipliers than zero, and without perturbation of them."""
        D, (problem, state) = state.lengths, inside(problem, state)
        F = state.lagrangian._replace(multipliers=state.scaling.scale(multipliers), tau=0.0)
        state = state.replaced(lagrangian=F, multipliers=multipliers)
        now = state.evaluation or problem.evaluate(state.x)
        if isinstance(state.phase, SQP):
            c, J = state.phase.gradient, state.phase.jacobian
            state = state.replaced(curvature=state.curvature._replace(matrix=None))  # that of other multipliers
            return outside(sqp_step.plan(problem, state, now, c, J, self.rules), D)
        return outside(phases.to_quasi_newton(problem, state, now), D)

    def update(self, problem: Problem, state: AdaptiveState) -> AdaptiveState:
        """Evaluate the trial point. Move there and plan the next one, or shorten the step."""
        D, rules, original = state.lengths, self.rules, problem
        problem, old = inside(problem, state.replaced(step=state.step + 1, probe=None))  # x = D z with D fixed
        x = phases.on_bounds(problem.domain, old, old.trial.point(old.x), rules)
        now = problem.evaluate(x)  # 1. one forward pass at the trial point
        outcome = _assess(old, now, rules)
        rise = outcome.rise
        if outcome.accepted:  # 2. nonmonotone Armijo test on F_beta
            there = old.replaced(x=x, evaluation=now, reference=outcome.reference)
            # 3. multipliers, penalty and curvature; the next phase; its trial, or a verdict
            new = phases.arrive(problem, old, there, now, self.step, rules, self.beta)
            if math.isfinite(new.trial.slope):
                return self._in_suitable_lengths(original, outside(new, D))
            rise = math.nan  # the gradient there is not finite
        # 4. second-order correction, shorter step, projected gradient, or a verdict
        return outside(phases.refuse(problem, old, now, outcome.reference.constraints[-1], rise, rules), D)

    def _in_suitable_lengths(self, problem: Problem, state: AdaptiveState) -> AdaptiveState:
        """Return the state in new lengths if x has outgrown the old ones or they have not led to an end."""
        second = isinstance(state.phase, SQP) and state.step == self.rules.second_attempt
        outgrown = not isinstance(state.phase, Restoration) and are_outgrown(problem, state, self.rules)
        if not (second or outgrown):
            return state
        now = state.evaluation or problem.evaluate(state.x)
        if second:
            D = column_lengths(problem, state.x, now, self.rules)
            return state if D is None else self._again(problem, state, now, D)
        D = lengths(problem, state.x, now, self.rules)
        grown = D is not None and (state.lengths is None or D[0] > state.lengths[0])
        if isinstance(state.phase, SQP) or grown:
            return relabeled(state, D)
        # f and g have shrunk, and the quasi-Newton phase does not renew their units
        return self._again(problem, state, now, D)

    def _again(self, problem: Problem, state: AdaptiveState, now: Evaluation, D: Array | None) -> AdaptiveState:
        """Return the state of a run that begins again at x in the lengths D, with its multipliers and its penalty."""
        again = self._at(problem, state.x, now, D)
        again = again.replaced(
            lagrangian=again.lagrangian._replace(beta=state.lagrangian.beta),
            step=state.step,
            phase_since=state.step,
            monitor=state.monitor,
        )
        return self.with_multipliers(problem, again, state.multipliers).replaced(probe=state.probe)


class _Outcome(NamedTuple):
    """What a trial point brings: the values with it, the merit there minus that at x, and the verdict on it."""

    reference: Reference
    rise: float
    accepted: bool


@np.errstate(over="ignore", invalid="ignore")
def _assess(state: AdaptiveState, now: Evaluation, rules: Rules) -> _Outcome:
    """Return whether the trial point is accepted."""
    merit, trial, (f, g) = state.merit, state.trial, state.scaling.values(now)
    points = state.reference.push(f, g)
    value, current, reference = points.values(merit)
    if isinstance(trial, Trial) and trial.forced and math.isfinite(value):
        return _Outcome(points.newest(), value - current, True)
    rounding = rules.roundings * machine_eps(g)
    accepted = sufficient(value, current, reference, trial.length * trial.slope, rounding, rules)
    return _Outcome(points.newest(rules.reference_points), value - current, accepted)
