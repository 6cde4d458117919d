"""Gradient descent and perturbed ascent without a step size to tune. Ours; see docs/adaptive.md."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gdpa.algorithms._acceptance import SUFFICIENT, Merit, Window, shorten
from gdpa.algorithms._lbfgs import Memory, inverse_product, remember
from gdpa.algorithms._scaling import Scaling, scaling_at
from gdpa.algorithms.base import Probe, State
from gdpa.arrays import max_norm, namespace
from gdpa.perturbed import weights
from gdpa.problem import Evaluation, Problem
from gdpa.result import Status
from gdpa.sets import Box, ConvexSet, Reals
from gdpa.typing import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveState(State):
    """The state of `AdaptiveGDPA`. All values but ``x`` and ``multipliers`` are those of the scaled problem."""

    scaling: Scaling
    dual: Array
    beta: float
    ascents: int
    measure: float
    since: int
    memory: Memory
    window: Window
    gradient: Array
    direction: Array
    slope: float
    length: float


@dataclass(frozen=True)
class AdaptiveGDPA:
    """A one-loop augmented Lagrangian without a step size to tune.

    Args:
        beta: the first penalty, on the scaled problem.
        tau: tau_k = tau / 4^k after k multiplier updates.
        memory: pairs of the limited-memory BFGS matrix.

    Example:
        >>> from gdpa import solve
        >>> from gdpa.problems import get
        >>> hs = get("HS12")
        >>> solve(hs.problem, hs.x0, AdaptiveGDPA()).x.round(3).tolist()
        [2.0, 3.0]
    """

    beta: float = 10.0
    tau: float = 0.1
    memory: int = 20

    def __post_init__(self) -> None:
        if not isinstance(self.beta, (int, float)) or not (math.isfinite(self.beta) and self.beta > 0):
            raise ValueError(f"beta must be a positive finite number, got {self.beta!r}")
        if not isinstance(self.tau, (int, float)) or not 0 <= self.tau < 1:
            raise ValueError(f"tau must lie in [0, 1), got {self.tau!r}")
        if not isinstance(self.memory, int) or self.memory < 1:
            raise ValueError(f"memory must be a positive integer, got {self.memory!r}")

    def init(self, problem: Problem, x0: Array) -> AdaptiveState:
        if x0.ndim != 1:
            raise ValueError(
                f"AdaptiveGDPA solves one problem at a time, got x0 of shape {tuple(x0.shape)}; "
                "pass one start of shape (d,), or use GDPA for a batch"
            )
        now = problem.evaluate(x0)
        scaling = scaling_at(now)
        f, g = scaling.values(now)
        state = AdaptiveState(
            step=0,
            x=x0,
            multipliers=namespace(g).zeros_like(g),
            evaluation=now,
            probe=None,
            scaling=scaling,
            dual=namespace(g).zeros_like(g),
            beta=self.beta,
            ascents=0,
            measure=math.inf,
            since=0,
            memory=Memory(),
            window=Window(f[None], g[None]),
            gradient=x0,
            direction=x0,
            slope=0.0,
            length=1.0,
        )
        merit = self._merit(problem, state)
        gradient = scaling.pullback(now, weights(merit.multipliers, g, merit.beta, merit.tau, merit.num_equalities))
        state = replace(state, gradient=gradient, memory=Memory(scale=1 / max(1.0, float(max_norm(gradient)))))
        return self._aim(problem, state)

    def _merit(self, problem: Problem, state: AdaptiveState) -> Merit:
        return Merit(state.dual, state.beta, self.tau * 0.25**state.ascents, problem.num_equalities)

    def _aim(self, problem: Problem, state: AdaptiveState) -> AdaptiveState:
        p = direction(problem.domain, state.x, state.gradient, state.memory)
        slope = float(namespace(p).sum(p * state.gradient))
        return replace(state, direction=p, slope=slope, length=1.0)

    def update(self, problem: Problem, state: AdaptiveState) -> AdaptiveState:
        t, merit = state.length, self._merit(problem, state)
        x = state.x + t * state.direction
        now = problem.evaluate(x)
        f, g = state.scaling.values(now)
        values = merit(state.window.objectives, state.window.constraints)
        value, current = float(merit(f, g)), float(values[-1])
        noise = 10 * float(namespace(x).finfo(x.dtype).eps) * max(abs(current), abs(float(f)))
        bound = float(namespace(x).max(values)) + SUFFICIENT * t * state.slope + noise
        if not value <= bound or not math.isfinite(value):
            return self._reject(state, value - current)
        return self._accept(problem, state, x, now, f, g)

    def _reject(self, state: AdaptiveState, rise: float) -> AdaptiveState:
        if state.length < 1e-12:
            return replace(state, step=state.step + 1, probe=None, verdict=Status.STALLED)
        return replace(state, step=state.step + 1, probe=None, length=shorten(state.length, state.slope, rise))

    def _accept(
        self, problem: Problem, state: AdaptiveState, x: Array, now: Evaluation, f: Array, g: Array
    ) -> AdaptiveState:
        merit = self._merit(problem, state)
        w = weights(merit.multipliers, g, merit.beta, merit.tau, merit.num_equalities)
        gradient = state.scaling.pullback(now, w)
        memory = remember(state.memory, x - state.x, gradient - state.gradient, self.memory)
        unscaled = state.scaling.unscale(w)
        probe = Probe(x, unscaled, now.objective, now.constraints, gradient / state.scaling.objective)
        state = replace(
            state,
            step=state.step + 1,
            x=x,
            evaluation=now,
            probe=probe,
            memory=memory,
            window=state.window.push(f, g),
            gradient=gradient,
            since=state.since + 1,
        )
        stationarity = float(max_norm(x - problem.domain.project(x - gradient)))
        measure = float(max_norm((w - merit.multipliers) / merit.beta))
        if measure > 0 and (stationarity <= measure or state.since >= 200):
            beta = state.beta
            if measure > 0.5 * state.measure and beta < 1e6:
                beta = 2 * beta
            state = replace(
                state, dual=w, multipliers=unscaled, beta=beta, ascents=state.ascents + 1, since=0, measure=measure
            )
            merit = self._merit(problem, state)
            w = weights(merit.multipliers, g, merit.beta, merit.tau, merit.num_equalities)
            state = replace(state, gradient=state.scaling.pullback(now, w))
        return self._aim(problem, state)


def direction(domain: ConvexSet, x: Array, gradient: Array, memory: Memory) -> Array:
    xp = namespace(x)
    if isinstance(domain, Reals):
        p = -inverse_product(memory, gradient)
    elif isinstance(domain, Box):
        lower, upper = domain.bounds(x)
        edge = 1e-8 * (1 + xp.abs(x))
        fixed = ((x - lower <= edge) & (gradient > 0)) | ((upper - x <= edge) & (gradient < 0))
        free = xp.astype(~fixed, x.dtype)
        step = inverse_product(memory, gradient, free)
        p = domain.project(x - xp.where(fixed, memory.scale * gradient, step)) - x
    else:
        return domain.project(x - memory.scale * gradient) - x
    slope = float(xp.sum(p * gradient))
    if not -slope > 1e-10 * float(xp.sum(p * p)) ** 0.5 * float(xp.sum(gradient * gradient)) ** 0.5:
        p = domain.project(x - memory.scale * gradient) - x
    return p
