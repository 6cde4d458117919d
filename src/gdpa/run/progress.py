"""What is known while a run goes on: counts, residuals and the points worth keeping."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gdpa.base.arrays import all_finite, largest, max_norm, namespace, top
from gdpa.base.typing import Array
from gdpa.core.certificate import (
    JACOBIAN_LIMIT,
    Certificate,
    Residuals,
    absolute_residuals,
    certify,
    relative_residuals,
    violation,
)
from gdpa.core.problem import Evaluation
from gdpa.core.units import loosest_start, units_at
from gdpa.methods.base import Probe, State
from gdpa.run.oracle import CountingOracle
from gdpa.run.result import History
from gdpa.run.run import Run

#: An iterate this much larger than the start (or than 1) has left every reasonable range.
DIVERGED = 1e15
#: A certificate is attempted, whatever the method's own multipliers say, at steps that grow by this factor ...
ATTEMPT_GROWTH = 1.5
#: ... from the start and from this step on ...
FIRST_ATTEMPT = 20
#: ... unless each of its rows is a backward pass and there are more than this many.
ATTEMPT_ROWS = 100
#: A point whose residuals in the loosest units are this far above the tolerance is not certified: the best multipliers
#: depend a little on the units.
MARGIN = 10.0


class Progress:
    """The running account of a solve: what stop rules and observers look at. The loop alone writes to it.

    Attributes:
        problem: the problem; what observers and stop rules ask of it is charged to measuring.
        step, forwards, backwards, seconds: what the method has used so far.
        state: the algorithm's state after this step.
        start: x0 with grad f and g there, the reference for ``residuals``.
        residuals: the relative residuals of the last probe.
        kkt: the largest of them (over the batch, too).
        units: the weights they were measured with; None before the first.
        finite: whether they, f and g are finite numbers.
        best: the probe with the smallest relative residuals so far.
        best_feasible: the probe with the lowest objective among those feasible to ``tolerance``; None so far if none.
        last: the last finite probe.
        average: the weighted average of the probes' points.
        certificate: the last certificate computed; None if there was none.
        caution: how the run goes back from a value that is not finite.
    """

    def __init__(self, oracle: CountingOracle, run: Run, tolerance: float) -> None:
        self.problem, self.tolerance = oracle.problem, tolerance
        self.algorithm, self.start = run.algorithm, run.start
        self.finite = True
        self.certificate: Certificate | None = None
        self._judged: Array | None = None
        self._oracle, self._shape, self._device = oracle, run.shape, run.device
        self._limit = DIVERGED * max(1.0, largest(max_norm(run.start.x)))
        self.state: State = run.state
        self.step, self.seconds = run.step, run.seconds
        self.forwards, self.backwards = run.forwards, run.backwards
        oracle.method.forwards, oracle.method.backwards = run.forwards, run.backwards
        oracle.measuring.forwards, oracle.measuring.backwards = run.measuring
        self.residuals, self.kkt, self.units = run.residuals, run.kkt, run.units
        self.best, self._best_kkt = run.best, run.best_kkt
        self.best_feasible, self._best_objective = run.best_feasible, run.best_objective
        self.last, self.average, self._total_weight = run.last, run.average, run.total_weight
        self._next_units, self._next_certificate = run.next_units, run.next_certificate
        self._next_attempt = run.next_attempt
        self.caution = run.caution
        self._size = 0.0

    def run(self, history: History) -> Run:
        """Return the record from which the run can be continued."""
        measuring, now = self._oracle.measuring, self.state.evaluation
        return Run(
            algorithm=self.algorithm,
            state=self.state,
            start=self.start,
            shape=self._shape,
            values=None if now is None else (now.objective, now.constraints),
            forwards=self.forwards,
            backwards=self.backwards,
            seconds=self.seconds,
            measuring=(measuring.forwards, measuring.backwards),
            residuals=self.residuals,
            kkt=self.kkt,
            units=self.units,
            best=self.best,
            best_kkt=self._best_kkt,
            best_feasible=self.best_feasible,
            best_objective=self._best_objective,
            last=self.last,
            average=self.average,
            total_weight=self._total_weight,
            next_units=self._next_units,
            next_certificate=self._next_certificate,
            next_attempt=self._next_attempt,
            caution=self.caution,
            history=history,
            device=self._device,
        )

    def count(self, state: State, seconds: float) -> None:
        """Take in one update and what it cost."""
        self.state, self.step = state, state.step
        self.seconds += seconds
        self.forwards, self.backwards = self._oracle.method.forwards, self._oracle.method.backwards

    @np.errstate(over="ignore", invalid="ignore")  # numbers that are not finite are found below
    def look(self) -> None:
        """Measure the probe of the state and keep the points worth keeping; nothing if a number is not finite."""
        state, probe = self.state, self.state.probe
        self._size = largest(max_norm(state.x))
        self.finite = math.isfinite(self._size)
        if probe is None:
            return
        known = self.units, self._next_units, self._best_kkt
        self._measure_units(state, probe)
        self.residuals = self._measure(probe)
        worst = self.residuals.worst
        self.kkt = largest(worst)
        # A residual does not show g_i = -inf: the constraint is met and far away.
        self.finite = self.finite and math.isfinite(self.kkt) and all_finite(probe.objective, probe.constraints)
        if not self.finite:
            self.units, self._next_units, self._best_kkt = known
        else:
            self.last = probe
            self._keep_best(probe, worst)
            self._keep_feasible(probe, self.residuals.feasibility)
            self._total_weight += probe.weight
            if self.average is None:
                self.average = probe.x
            else:  # xbar += (w_r / W_r) (x_r - xbar): the sum of Theorem 1 in constant memory
                self.average = self.average + (probe.weight / self._total_weight) * (probe.x - self.average)

    def check(self) -> None:
        """See whether the numbers of the state are finite, without measuring them."""
        state, probe = self.state, self.state.probe
        self.finite = all_finite(state.x, state.multipliers, *(() if probe is None else probe[2:5]))

    def _measure_units(self, state: State, probe: Probe) -> None:
        """Measure the units at the probe if that is free, else at geometrically spaced steps."""
        now = probe.evaluation
        if now is not None and now.knows_derivatives:
            self.units = units_at(self.start, probe.x, now)
            return
        if self.units is not None and state.step < self._next_units:
            return
        if now is None:
            now = self.problem.evaluate(probe.x)
        d, m, _ = self._shape
        if self.units is not None and m > ATTEMPT_ROWS and not now.has_cheap_jacobian:
            return  # m backward passes: once is enough
        self._next_units = 2 * state.step
        self.units = units_at(self.start, probe.x, now, whole=m * d <= JACOBIAN_LIMIT or now.is_sparse)
        if self.best is not None:
            self._best_kkt = self._measure(self.best).worst

    def _measure(self, probe: Probe) -> Residuals:
        assert self.units is not None
        return relative_residuals(
            self.problem.domain,
            probe.x,
            probe.gradient,
            probe.constraints,
            probe.multipliers,
            self.units,
            self.problem.num_equalities,
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
        """Whether the iterate had left every reasonable range at the last look, while still finite."""
        return self._size > self._limit

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

    def certified(self, tolerance: float) -> bool:
        """Tell whether a certificate recomputed now holds, if one is due; False if none is.

        One is due if the residuals that a step yields for free are within ``tolerance``, and at steps spaced by
        `ATTEMPT_GROWTH`, because the best multipliers may certify a point that the method's own do not.
        """
        promising = self.kkt <= tolerance and self.step >= self._next_certificate
        if promising:
            best = self.best
            point = (self.state.x, self.state.multipliers, self.state.evaluation)
            if self.certify(*(point if best is None else (best.x, best.multipliers, best.evaluation))).holds(tolerance):
                return True  # it stays due, so that a finished run that is continued is still finished
            self._next_certificate = math.ceil(1.1 * self.step) + 1
            return False
        now, probe = self.state.evaluation, self.state.probe
        if now is None or self.step < self._next_attempt:
            return False
        if now.constraints.shape[-1] > ATTEMPT_ROWS and not now.has_cheap_jacobian:
            return False
        x, multipliers = self.state.x, self.state.multipliers
        if probe is not None:
            x, multipliers, now = probe.x, probe.multipliers, probe.evaluation
        if self._may_hold(x, multipliers, now, tolerance) and self.certify(x, multipliers, now).holds(tolerance):
            return True
        self._next_attempt = max(FIRST_ATTEMPT, math.ceil(ATTEMPT_GROWTH * self.step))
        return False

    def _may_hold(self, x: Array, multipliers: Array, now: Evaluation | None, tolerance: float) -> bool:
        """Return whether a certificate of x could hold, from the oracle call at x alone."""
        if now is None:
            return True
        if not largest(top(violation(now.constraints, self.problem.num_equalities))) <= tolerance:
            return False
        start = loosest_start(x, now, self.problem.x_scale)
        loosest = certify(self.problem, x, multipliers, start=start, evaluation=now)
        return loosest.holds(MARGIN * tolerance)

    def certify(self, x: Array, multipliers: Array, evaluation: Evaluation | None = None) -> Certificate:
        """Return the certificate of a point; the last one is kept and not computed twice."""
        if self.certificate is None or self._judged is not x:
            self.certificate, self._judged = certify(self.problem, x, multipliers, evaluation=evaluation), x
        return self.certificate


def _merge(mask: Array, new: Probe, old: Probe) -> Probe:
    """Take each batch member from ``new`` if ``mask`` holds, else from ``old``."""
    xp = namespace(mask)

    def pick(a: Array, b: Array) -> Array:
        return xp.where(mask if a.ndim == mask.ndim else mask[..., None], a, b)

    x, multipliers, objective, constraints, gradient = (pick(a, b) for a, b in zip(new[:5], old[:5], strict=True))
    return Probe(x, multipliers, objective, constraints, gradient, new.weight)
