"""Gradient descent and perturbed ascent without a step size to tune. Ours; see docs/adaptive.md."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from gdpa.algorithms import _choice, _infeasibility, _jacobian_step, _lengths, _one_pullback
from gdpa.algorithms._acceptance import Window, shorten, sufficient
from gdpa.algorithms._adaptive_state import AdaptiveState, begin, largest_violation, negligible
from gdpa.algorithms._lbfgs import Memory, forgotten
from gdpa.algorithms._scaling import worth_rows
from gdpa.algorithms.base import Probe
from gdpa.arrays import max_norm, namespace
from gdpa.problem import Evaluation, Problem
from gdpa.result import Status
from gdpa.typing import Array

#: A scaled objective below minus this has no lower bound, as far as we can see.
DEEP = 1e15
#: Accepted points in a row that did not move: after the first number a violation is looked into, after the second
#: the run has stalled.
STILL, STALLED = 3, 20


@dataclass(frozen=True)
class AdaptiveGDPA:
    r"""A one-loop augmented Lagrangian with nothing to tune. It is ours, not the paper's recursion.

    It keeps the paper's function F_beta (see `gdpa.perturbed`), its single loop and its oracle, and replaces the rest:

    .. math::
        x_{r+1} &= x_r + t_r p_r, \quad F_\beta(x_{r+1}, \lambda) \le \max_{j < 8} F_\beta(x_{r-j}, \lambda)
            + 10^{-4} t_r p_r^T \nabla F_\beta(x_r, \lambda) \\
        \lambda &\leftarrow [(1 - \tau_k) \lambda + \beta g(x_{r+1})]_+ \text{ when }
            \|x - P_X(x - \nabla F_\beta)\|_\infty \le \|\max(g, -\lambda/\beta)\|_\infty, \quad \tau_k = \tau / 4^k

    where p is a quasi-Newton direction of F_beta: the *one-pullback step*. Where the Jacobian is cheap or m is small,
    the *step that knows the Jacobian* minimises a model of F_beta instead, whose multipliers l give
    lambda <- lambda + t (l - lambda). One forward pass per update; one backward pass per accepted point (and one more
    at a multiplier update), or a Jacobian.

    Args:
        beta: the first penalty beta_0, on the scaled problem. Raised where the violation does not fall.
        memory: how many pairs the limited-memory BFGS matrix keeps.
        step: "pullback", "jacobian" (in boxes and the whole space), or "auto": the Jacobian if `Evaluation.jacobian`
            is cheap or m <= 30; of more constraints the rows near active, once their passes pay.
        tau: the perturbation tau_0; it falls to a quarter with every multiplier update, so that no bias is left.

    Example:
        >>> from gdpa import solve
        >>> from gdpa.problems import get
        >>> hs = get("HS12")
        >>> result = solve(hs.problem, hs.x0, AdaptiveGDPA(), tolerance=1e-8)
        >>> result.status.name, result.x.round(6).tolist(), result.multipliers.round(6).tolist()
        ('CONVERGED', [2.0, 3.0], [0.5])

    References:
        Songtao Lu, ICML 2022, for F_beta and the perturbation. A. R. Conn, N. I. M. Gould and Ph. L. Toint, "LANCELOT"
        (1992), and R. Andreani, E. G. Birgin, J. M. Martinez and M. L. Schuverdt, "On augmented Lagrangian methods with
        general lower-level constraints", SIAM J. Optimization 18 (2007), for the family it belongs to.

    Deviations from the paper:
        Everything but F_beta and the oracle, see docs/adaptive.md. There is no O(1/eps^3) theorem for it.
    """

    beta: float = 10.0
    memory: int = 20
    step: str = "auto"
    tau: float = 0.1

    def __post_init__(self) -> None:
        if not isinstance(self.beta, (int, float)) or not (math.isfinite(self.beta) and self.beta > 0):
            raise ValueError(f"beta must be a positive finite number, got {self.beta!r}")
        if not isinstance(self.tau, (int, float)) or not 0 <= self.tau < 1:
            raise ValueError(f"tau must lie in [0, 1), got {self.tau!r}")
        if not isinstance(self.memory, int) or self.memory < 1:
            raise ValueError(f"memory must be a positive integer, got {self.memory!r}")
        if self.step not in ("auto", "pullback", "jacobian"):
            raise ValueError(f"step must be 'auto', 'pullback' or 'jacobian', got {self.step!r}")

    def init(self, problem: Problem, x0: Array) -> AdaptiveState:
        if x0.ndim != 1:
            raise ValueError(
                f"AdaptiveGDPA solves one problem at a time, got x0 of shape {tuple(x0.shape)}; "
                "pass one start of shape (d,), or use GDPA for a batch"
            )
        now = problem.evaluate(x0)
        D = _lengths.lengths(problem, x0, now)
        if D is None:
            return self._begin(problem, x0, now)
        scaled = _lengths.in_lengths(problem, D)
        return _lengths.to_x(self._begin(scaled, x0 / D, _lengths.evaluation_in_lengths(now, D)), D)

    def _begin(self, problem: Problem, x0: Array, now: Evaluation) -> AdaptiveState:
        """Return the state before the first update, with its trial planned."""
        knows = _choice.begins_with_jacobian(problem, now, x0.shape[-1], self.step)
        J = now.jacobian() if knows or worth_rows(now) else None
        state, c, J = begin(problem, x0, now, J, self.beta, self.tau, knows)
        if knows:
            assert J is not None
            return _jacobian_step.plan(problem, replace(state, memory=Memory()), now, c, J)
        return _one_pullback.aim(problem.domain, state)

    def with_multipliers(self, problem: Problem, state: AdaptiveState, multipliers: Array) -> AdaptiveState:
        """Return the first state with other multipliers than zero, and without perturbation of them."""
        D = state.lengths
        if D is not None:
            problem, state = _lengths.in_lengths(problem, D), _lengths.to_z(state, D)
        merit = state.merit._replace(multipliers=state.scaling.scale(multipliers), tau=0.0)
        state = replace(state, merit=merit, multipliers=multipliers)
        now, known = state.evaluation, state.knowledge
        assert now is not None
        if known is not None:
            state = _jacobian_step.plan(problem, state, now, known.gradient, known.rows)
        else:
            gradient = state.scaling.pullback(now, merit.weights(state.window.constraints[-1]))
            state = _one_pullback.aim(problem.domain, replace(state, gradient=gradient, memory=forgotten(gradient)))
        return state if D is None else _lengths.to_x(state, D)

    def update(self, problem: Problem, state: AdaptiveState) -> AdaptiveState:
        """Evaluate the trial point; move there and plan the next one, or shorten the step."""
        D = state.lengths
        if D is None:
            return self._update(problem, state)
        return _lengths.to_x(self._update(_lengths.in_lengths(problem, D), _lengths.to_z(state, D)), D)

    def _update(self, problem: Problem, state: AdaptiveState) -> AdaptiveState:
        """Make one update in coordinates whose lengths are near 1."""
        trial = state.trial
        x = trial.point(state.x)
        now = problem.evaluate(x)
        with np.errstate(over="ignore", invalid="ignore"):
            f, g = state.scaling.values(now)
            value = float(state.merit(f, g))
        current, reference = state.window.values(state.merit)
        state = replace(state, step=state.step + 1, probe=None)
        noise = 10 * float(namespace(x).finfo(x.dtype).eps)
        forced = trial.forced and math.isfinite(value)
        if forced or sufficient(value, current, reference, trial.length * trial.slope, noise):
            window = Window(f[None], g[None, :]) if forced else state.window.push(f, g)
            moved = self._arrive(problem, state, replace(state, x=x, evaluation=now, window=window))
            if math.isfinite(moved.trial.slope):
                return moved
            value = math.nan  # the gradient there is not finite
        return self._refuse(problem, state, now, g, value - current)

    def _arrive(self, problem: Problem, old: AdaptiveState, state: AdaptiveState) -> AdaptiveState:
        """Return the state at the accepted point: multipliers, penalty, next trial, or a verdict."""
        if state.restoration is not None:
            state = _infeasibility.judge(problem, _one_pullback.arrive(problem, old, state, self.memory))
            back, now = state.restoration is None, state.evaluation
            if back and now is not None and _choice.begins_with_jacobian(problem, now, state.x.shape[-1], self.step):
                return _choice.take_jacobian(problem, state)
            return state
        size = 1 + float(max_norm(state.x))
        violated = state.violation > negligible(state.x) * size
        if float(state.window.objectives[-1]) < -DEEP:  # without bound, or the penalty was too weak to hold it
            return _infeasibility.enter(problem, state) if violated else replace(state, verdict=Status.DIVERGING)
        xp = namespace(state.x)
        moved = bool(xp.any(xp.abs(state.x - old.x) > 4 * float(xp.finfo(state.x.dtype).eps) * xp.abs(state.x)))
        state = replace(state, still=0 if moved else old.still + 1)
        if state.knowledge is None:
            state = _one_pullback.arrive(problem, old, state, self.memory)
        else:
            state = _jacobian_step.arrive(problem, old, state, self.memory, self.beta)
        if self.step == "auto":
            state = _choice.choose(problem, state)
        state = _infeasibility.observe(state)
        if violated and (state.still >= STILL or state.watch.waited >= state.watch.patience):
            return _infeasibility.enter(problem, state)
        return replace(state, verdict=Status.STALLED) if state.still >= STALLED else state

    def _refuse(
        self, problem: Problem, state: AdaptiveState, now: Evaluation, constraints: Array, rise: float
    ) -> AdaptiveState:
        """Return the state with another trial from the same x, or with the verdict that there is none."""
        trial, finite = state.trial, math.isfinite(rise)
        if trial.correction is not None:
            return replace(state, trial=trial._replace(correction=None, length=0.5))
        worse = finite and largest_violation(constraints, problem.num_equalities) > state.violation
        if state.knowledge is not None and trial.length == 1.0 and worse:
            correction = _jacobian_step.correct(problem, state, constraints)
            return replace(state, trial=trial._replace(correction=correction))
        length = shorten(trial.length, trial.slope, rise)
        if length >= negligible(state.x) ** (4 / 3):
            return replace(state, trial=trial._replace(length=length))
        if state.memory.steps:  # once more along the projected gradient
            state = replace(state, memory=forgotten(state.gradient))
            return _one_pullback.aim(problem.domain, state)
        if not finite:  # the loop names the culprit from these values
            probe = Probe(state.x, state.multipliers, now.objective, now.constraints, state.x + math.nan)
            return replace(state, probe=probe, verdict=Status.INVALID_NUMBER)
        if state.restoration is None and state.violation > negligible(state.x):
            return _infeasibility.enter(problem, state)
        return replace(state, verdict=Status.STALLED)
