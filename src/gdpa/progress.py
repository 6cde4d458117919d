"""What is known while a run goes on: counts, residuals and the points worth keeping."""

from __future__ import annotations

import math
from typing import Any

from gdpa.algorithms.base import Probe, State
from gdpa.arrays import max_norm, namespace
from gdpa.kkt import Certificate, Residuals, Scale, absolute_residuals, certify, relative_residuals
from gdpa.problem import Evaluation, Problem
from gdpa.typing import Array

#: An iterate this much larger than the start (or than 1) has left every reasonable range.
DIVERGED = 1e15


class Progress:
    """The running account of a solve: what stop rules and observers look at. The loop alone writes to it.

    Attributes:
        problem: the problem, not counted: observers measure with it off the method's account.
        step, forwards, backwards, seconds: what the method has used so far.
        start: the oracle call at the start.
        state: the algorithm's state after this step.
        residuals: the relative residuals of the last probe.
        kkt: the largest of them (over the batch, too).
        finite: whether they and the objective are finite numbers.
        scale: the units of the relative residuals.
        best: the probe with the smallest relative residuals so far.
        best_feasible: the probe with the lowest objective among those feasible to ``tolerance``; None so far if none.
        average: the weighted average of the probes' points.
    """

    def __init__(self, problem: Problem, state: State, start: Evaluation, scale: Scale, tolerance: float) -> None:
        self.problem, self.state, self.scale, self.tolerance = problem, state, scale, tolerance
        self.start = start
        self.step, self.forwards, self.backwards, self.seconds = state.step, 0, 0, 0.0
        self.residuals: Residuals | None = None
        self.kkt = float("inf")
        self.finite = True
        self.best: Probe | None = None
        self.best_feasible: Probe | None = None
        self.last: Probe | None = None
        self.average: Array | None = None
        self.next_certificate = 0
        self.certificate: Certificate | None = None
        self._best_kkt: Any = None
        self._best_objective: Any = None
        self._total_weight = 0.0
        self._objective_gradient: Any = 0.0
        self._next_refresh = state.step + 1
        self._limit = DIVERGED * max(1.0, float(namespace(state.x).max(max_norm(state.x))))

    def look(self, state: State) -> None:
        """Take in the state after a step: measure its probe and keep the points worth keeping."""
        self.state = state
        probe = state.probe
        if probe is None:
            return
        if state.step >= self._next_refresh:
            self._refresh()
            self._next_refresh = 2 * state.step
        self.residuals = self._measure(probe)
        worst = self.residuals.worst
        self.kkt = worst if isinstance(worst, float) else float(namespace(worst).max(worst))
        self.finite = math.isfinite(self.kkt) and _all_finite(probe.objective)
        if self.finite:
            self.last = probe
            self._keep_best(probe, worst)
            self._keep_feasible(probe, self.residuals.feasibility)
            self._total_weight += probe.weight
            if self.average is None:
                self.average = probe.x
            else:  # xbar += (w_r / W_r) (x_r - xbar): the sum of Theorem 1 in constant memory
                self.average = self.average + (probe.weight / self._total_weight) * (probe.x - self.average)

    def _refresh(self) -> None:
        """Measure ||grad f|| at geometrically spaced steps: the relative residuals want it, a step lacks it."""
        now = self.state.evaluation or self.problem.evaluate(self.state.x)
        size = max_norm(now.pullback(namespace(now.constraints).zeros_like(now.constraints)))
        self._objective_gradient = size if size.ndim else float(size)
        if self.best is not None:  # the unit has changed: measure the best in it, too
            self._best_kkt = self._measure(self.best).worst

    def _measure(self, probe: Probe) -> Residuals:
        return relative_residuals(
            self.problem.domain,
            probe.x,
            probe.gradient,
            probe.constraints,
            probe.multipliers,
            self.problem.num_equalities,
            self.scale,
            self._objective_gradient,
        )

    def _keep_best(self, probe: Probe, worst: Any) -> None:
        if self.best is None:
            self.best, self._best_kkt = probe, worst
        elif isinstance(worst, float):
            if worst < self._best_kkt:
                self.best, self._best_kkt = probe, worst
        else:
            better = worst < self._best_kkt
            self.best = _merge(better, probe, self.best)
            self._best_kkt = namespace(worst).where(better, worst, self._best_kkt)

    def _keep_feasible(self, probe: Probe, feasibility: Any) -> None:
        if isinstance(feasibility, float):
            if feasibility <= self.tolerance:
                objective = float(probe.objective)
                if self.best_feasible is None or objective < self._best_objective:
                    self.best_feasible, self._best_objective = probe, objective
            return
        xp = namespace(feasibility)
        feasible = feasibility <= self.tolerance
        nan = xp.zeros_like(probe.objective) + float("nan")
        if self.best_feasible is None:
            self.best_feasible = _merge(feasible, probe, probe._replace(x=probe.x * 0 + float("nan")))
            self._best_objective = xp.where(feasible, probe.objective, nan)
            return
        known = self._best_objective == self._best_objective
        better = feasible & (~known | (probe.objective < self._best_objective))
        self.best_feasible = _merge(better, probe, self.best_feasible)
        self._best_objective = xp.where(better, probe.objective, self._best_objective)

    @property
    def diverged(self) -> bool:
        """Whether the iterate has left every reasonable range while still finite."""
        size = max_norm(self.state.x)
        return bool(size > self._limit if size.ndim == 0 else namespace(size).any(size > self._limit))

    def absolute(self) -> Residuals | None:
        """Return the residuals of the last probe as the paper prints them."""
        probe = self.state.probe
        if probe is None:
            return None
        return absolute_residuals(
            self.problem.domain,
            probe.x,
            probe.gradient,
            probe.constraints,
            probe.multipliers,
            self.problem.num_equalities,
        )

    def certify(self) -> Certificate:
        """Return the certificate of the best point so far, recomputed from the problem."""
        best = self.best
        x, lam = (self.state.x, self.state.multipliers) if best is None else (best.x, best.multipliers)
        self.certificate = certify(self.problem, x, lam, scale=self.scale)
        return self.certificate


def _all_finite(value: Array) -> bool:
    if value.ndim == 0:
        return math.isfinite(value)
    xp = namespace(value)
    return bool(xp.all(xp.isfinite(value)))


def _merge(mask: Array, new: Probe, old: Probe) -> Probe:
    """Take each batch member from ``new`` where ``mask`` holds, else from ``old``."""
    xp = namespace(mask)

    def pick(a: Array, b: Array) -> Array:
        return xp.where(mask if a.ndim == mask.ndim else mask[..., None], a, b)

    x, multipliers, objective, constraints, gradient = (pick(a, b) for a, b in zip(new[:5], old[:5], strict=True))
    return Probe(x, multipliers, objective, constraints, gradient, new.weight)
