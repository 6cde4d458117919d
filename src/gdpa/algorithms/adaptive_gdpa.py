"""Gradient descent and perturbed ascent without a step size to tune. Ours; see docs/adaptive.md."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gdpa.algorithms import _infeasibility, _jacobian_step, _one_pullback
from gdpa.algorithms._acceptance import Merit, Window, shorten, sufficient
from gdpa.algorithms._adaptive_state import AdaptiveState, Trial, Watch, largest_violation, negligible
from gdpa.algorithms._lbfgs import Memory
from gdpa.algorithms._scaling import scaling_from
from gdpa.algorithms.base import Probe
from gdpa.arrays import max_norm, namespace
from gdpa.problem import Evaluation, Problem, jacobian
from gdpa.result import Status
from gdpa.sets import Box, Reals
from gdpa.typing import Array

#: Without `Problem.jacobian`, up to so many constraints the Jacobian is worth its m backward passes.
FEW = 30
#: Above this many constraints each keeps its own units: measuring a gradient each would cost m backward passes.
SCALING_LIMIT = 100
#: Entries of J above which it is not formed.
LARGEST_JACOBIAN = 50_000_000
#: A scaled objective below minus this has no lower bound, as far as we can see.
DEEP = 1e15


@dataclass(frozen=True)
class AdaptiveGDPA:
    r"""A one-loop augmented Lagrangian with nothing to tune. It is ours, not the paper's recursion.

    Args:
        beta: the first penalty beta_0, on the scaled problem.
        tau: tau_k = tau / 4^k after k multiplier updates: the perturbation of the paper, on its way to 0.
        memory: how many pairs the limited-memory BFGS matrix keeps.
        step: "pullback", "jacobian", or "auto".

    Example:
        >>> from gdpa import solve
        >>> from gdpa.problems import get
        >>> hs = get("HS12")
        >>> result = solve(hs.problem, hs.x0, AdaptiveGDPA())
        >>> result.status.name, result.x.round(3).tolist()
        ('CONVERGED', [2.0, 3.0])
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
        g = now.constraints
        zero = namespace(g).zeros_like(g)
        m = g.shape[-1]
        knows = self._knows_jacobian(problem, m, x0.shape[-1])
        grad_f = now.pullback(zero)
        J = None
        if m and (knows or m <= SCALING_LIMIT):
            J = jacobian(now) if problem.jacobian is None else problem.jacobian(x0)
        scaling = scaling_from(grad_f, g, J)
        f, g = scaling.values(now)
        merit = Merit(zero, float(self.beta), self.tau, problem.num_equalities)
        grad_f = scaling.objective * grad_f
        w = merit.weights(g)
        if J is not None:
            J = J * scaling.constraints[:, None]
        gradient = scaling.pullback(now, w) if J is None else grad_f + w @ J
        size = float(max_norm(gradient))
        state = AdaptiveState(
            step=0,
            x=x0,
            multipliers=zero,
            evaluation=now,
            probe=None,
            scaling=scaling,
            merit=merit,
            memory=Memory(sigma=1.0 if knows else max(1.0, size)),
            window=Window(f[None], g[None, :]),
            gradient=gradient,
            trial=Trial(gradient, 0.0),
            knowledge=None,
            measure=math.inf,
            since=0,
            still=0,
            watch=Watch(largest_violation(g, problem.num_equalities)),
            restoration=None,
        )
        if knows:
            assert J is not None
            return _jacobian_step.plan(problem, state, now, grad_f, J)
        return _one_pullback.aim(problem.domain, state)

    def _knows_jacobian(self, problem: Problem, m: int, d: int) -> bool:
        if m == 0 or not isinstance(problem.domain, (Reals, Box)):
            return False
        if self.step == "auto":
            return (problem.jacobian is not None or m <= FEW) and m * d <= LARGEST_JACOBIAN
        return self.step == "jacobian"

    def update(self, problem: Problem, state: AdaptiveState) -> AdaptiveState:
        """Evaluate the trial point; move there and plan the next one, or shorten the step."""
        trial = state.trial
        x = trial.point(state.x)
        now = problem.evaluate(x)
        f, g = state.scaling.values(now)
        value = float(state.merit(f, g))
        current, reference = state.window.values(state.merit)
        state = replace(state, step=state.step + 1, probe=None)
        noise = 10 * float(namespace(x).finfo(x.dtype).eps)
        shoved = trial.slope == -math.inf and math.isfinite(value)
        if shoved or sufficient(value, current, reference, trial.length * trial.slope, noise):
            moved = replace(state, x=x, evaluation=now, window=state.window.push(f, g))
            moved = self._arrive(problem, state, moved)
            if math.isfinite(moved.trial.slope) or moved.trial.slope == -math.inf:
                return moved
            value = math.nan  # the gradient is not finite
        return self._refuse(problem, state, now, g, value - current)

    def _arrive(self, problem: Problem, old: AdaptiveState, state: AdaptiveState) -> AdaptiveState:
        step = float(max_norm(state.x - old.x))
        eps = float(namespace(state.x).finfo(state.x.dtype).eps)
        still = old.still + 1 if step <= eps * (1 + float(max_norm(state.x))) else 0
        state = replace(state, still=still)
        if old.trial.slope == -math.inf:
            state = replace(state, window=Window(state.window.objectives[-1:], state.window.constraints[-1:]))
        if state.restoration is not None:
            state = _infeasibility.judge(problem, _one_pullback.arrive(problem, old, state, self.memory))
            if state.restoration is None:
                state = self._resume(problem, state)
            return state
        if state.knowledge is None:
            state = _one_pullback.arrive(problem, old, state, self.memory)
        else:
            state = _jacobian_step.arrive(problem, old, state, self.memory, self.beta)
        state = _infeasibility.due(state)
        violated = state.violation > negligible(state.x) * (1 + float(max_norm(state.x)))
        falling = float(state.window.objectives[-1]) < -DEEP
        if violated and (falling or still >= 3 or state.watch.waited >= state.watch.patience):
            return _infeasibility.enter(problem, state)
        if falling:
            return replace(state, verdict=Status.DIVERGING)
        if still >= 20:
            return replace(state, verdict=Status.STALLED)
        return state

    def _resume(self, problem: Problem, state: AdaptiveState) -> AdaptiveState:
        now = state.evaluation
        assert now is not None
        g = now.constraints
        if not self._knows_jacobian(problem, g.shape[-1], state.x.shape[-1]):
            return state
        c = state.scaling.pullback(now, namespace(g).zeros_like(g))
        return _jacobian_step.plan(problem, state, now, c, _jacobian_step.scaled_rows(problem, state.x, now, state))

    def _refuse(
        self, problem: Problem, state: AdaptiveState, now: Evaluation, constraints: Array, rise: float
    ) -> AdaptiveState:
        trial = state.trial
        length = shorten(trial.length, trial.slope, rise)
        if trial.correction is not None:
            return replace(state, trial=trial._replace(correction=None, length=0.5))
        worse = largest_violation(constraints, problem.num_equalities) > state.violation
        if state.knowledge is not None and trial.length == 1.0 and math.isfinite(rise) and worse:
            correction = _jacobian_step.correct(problem, state, constraints)
            return replace(state, trial=trial._replace(correction=correction))
        if length >= negligible(state.x) ** (4 / 3):
            return replace(state, trial=trial._replace(length=length))
        if state.memory.steps:
            state = replace(state, memory=Memory(sigma=max(1.0, float(max_norm(state.gradient)))))
            return _one_pullback.aim(problem.domain, state)
        if not math.isfinite(rise):
            nan = state.x + math.nan
            probe = Probe(state.x, state.multipliers, now.objective, now.constraints, nan)
            return replace(state, probe=probe, verdict=Status.INVALID_NUMBER)
        if state.restoration is None and state.violation > negligible(state.x):
            return _infeasibility.enter(problem, state)
        return replace(state, verdict=Status.STALLED)
