"""A run: its complete state, and the counts, residuals and best points of a run on its way."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from gdpa.base.arrays import all_finite, largest, max_norm, to_numpy, top
from gdpa.base.stored import stored
from gdpa.base.typing import Array, Vector
from gdpa.core.certificate import (
    Certificate,
    Residuals,
    absolute_residuals,
    cannot_hold,
    certify,
    is_whole,
    judge,
    pick,
    relative_residuals,
    violation,
)
from gdpa.core.units import ReferencePoint, Units, lengths_of, loosest, units_at
from gdpa.methods.base import Probe, State
from gdpa.run.oracle import CountingOracle

#: The columns of the history.
COLUMNS = ("step", "forwards", "backwards", "seconds", "objective", *Residuals._fields, "kkt")
#: An iterate this much larger than the start (or than 1) has left every reasonable range.
DIVERGED = 1e15
#: A certificate is attempted, whatever the method's own multipliers are, at steps that grow by this factor ...
ATTEMPT_GROWTH = 1.5
#: ... from the start and from this step on ...
FIRST_ATTEMPT = 20
#: ... unless each of its rows is a backward pass and there are more than this many.
ATTEMPT_ROWS = 100
#: A point whose residuals in the loosest units are this far above the tolerance is not certified: the best multipliers
#: depend a little on the units.
MARGIN = 10.0
#: Residuals in units of an earlier point that are within this factor of the tolerance are measured in their own again.
#: On 244 problems one run ends 3 points later than with units of every point, which take a sixth of a small step.
NEAR = 100.0


@stored
@dataclass(frozen=True, repr=False, eq=False)
class History(dict[str, Vector]):
    """Columns of numbers recorded along a run, one row per recorded step; ``pandas.DataFrame(history)`` takes it.

    The residuals use the step's own multiplier estimate: stationarity, feasibility and slackness as the paper
    prints them, ``kkt`` the largest relative one.

    Attributes:
        columns: the columns by name, also the items of the history itself.
    """

    columns: dict[str, Vector] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.update(self.columns)

    def __repr__(self) -> str:
        rows = len(next(iter(self.values()))) if self else 0
        return f"History({rows} rows of {', '.join(self)})"


@stored
class Caution(NamedTuple):
    """How a run goes back from a value that is not finite; see `gdpa.run.loop.go_back`."""

    trusted: State | None = None  # the last state from which an update led to finite numbers
    share: float = 1.0  # of its primal step that the next update takes; below 1 only if it repeats one
    in_a_row: int = 0  # how often the step from ``trusted`` has been cut
    cuts: int = 0  # how many cuts there were in all
    until: int = 0  # up to this step the outcome of every update is checked
    looked: int = 0  # the last step that was measured: a repeated one is not measured twice


#: The record of a run that has not begun.
NO_TROUBLE = Caution()


@stored
@dataclass
class Run:
    """The complete state of a run between two steps. ``solve(problem, run=run)`` continues it to the same end.

    Straight and continued runs have the same iterates, stop at the same step and return the same point with the same
    verdict, whatever the cut. Save it by `gdpa.save_run`.

    Attributes:
        algorithm: the method with its parameters.
        state: the method's state. Its oracle call is not saved: a resumed run makes it again.
        start: x0 with grad f and g there, the reference for the residuals of the loop.
        shape: (d, m, p): how many coordinates, constraints and equalities the problem has.
        tolerance: the relative KKT tolerance that ``success`` is judged by; None in files of gdpa 0.1.
        forwards, backwards, seconds: oracle calls and time of the method.
        measuring: (forwards, backwards) made for residuals and certificates.
        residuals, kkt: the relative residuals of the last probe and the largest of them (over the batch, too).
        best, best_kkt: the probe with the smallest relative residuals, and these.
        best_feasible, best_objective: the probe with the lowest objective among those feasible to the tolerance, and
            this; None if there is none.
        average, total_weight: the weighted average of the probes' points (the paper's Theorem 1).
        history: the recorded columns.
    """

    algorithm: Any
    state: State
    start: ReferencePoint
    shape: tuple[int, int, int]
    tolerance: float | None = None
    values: tuple[Array, Array] | None = None  # f and g at the point, by which another problem is recognized
    forwards: int = 0
    backwards: int = 0
    seconds: float = 0.0
    measuring: tuple[int, int] = (0, 0)
    residuals: Residuals | None = None
    kkt: float = float("inf")
    units: Units | None = None  # that the residuals were measured with
    best: Probe | None = None
    best_kkt: Any = None
    best_feasible: Probe | None = None
    best_objective: Any = None
    last: Probe | None = None  # the last finite one
    average: Array | None = None
    total_weight: float = 0.0
    next_units: int = 1  # the steps at which units and certificates are due
    next_certificate: int = 0
    next_attempt: int = FIRST_ATTEMPT
    attempts: bool = True  # whether a certificate is due at this step, whatever the residuals are
    caution: Caution = NO_TROUBLE
    history: History = field(default_factory=History, repr=False)
    device: str | None = None  # that the problem runs on, if the arrays of the run are on the host instead

    @property
    def step(self) -> int:
        """How many updates the method has made."""
        return self.state.step


class Progress:
    """A run on its way, as stop rules and observers see it. The loop alone writes to it.

    The attributes of its `Run` are its own, too: ``progress.step``, ``progress.state``, ``progress.residuals``, ...

    Attributes:
        run: the run.
        problem: the problem; evaluations by observers and stop rules are charged to measuring.
        tolerance: the relative KKT tolerance that ``success`` is judged by.
        finite: whether the last residuals, f and g are finite numbers.
        certificate: the last certificate computed; None if there was none.
        oracle: the oracle that counts the calls of the problem.
    """

    def __init__(self, oracle: CountingOracle, run: Run, tolerance: float, every: int = 1) -> None:
        self.run, self.problem, self.tolerance = replace(run, tolerance=tolerance), oracle.problem, tolerance
        self.finite = True
        self.certificate: Certificate | None = None
        self._judged: Array | None = None
        self.oracle, self._every = oracle, every
        self._rows: list[tuple[Any, ...]] = list(zip(*run.history.values(), strict=True))
        self._limit = DIVERGED * max(1.0, largest(max_norm(run.start.x)))
        self._size = 0.0
        oracle.method.forwards, oracle.method.backwards = run.forwards, run.backwards
        oracle.measuring.forwards, oracle.measuring.backwards = run.measuring

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "run":
            raise AttributeError(name)
        return getattr(self.run, name)

    @property
    def step(self) -> int:
        """How many updates the method has made."""
        return self.run.state.step

    def record(self) -> Run:
        """Return the run as it is now, from which it can be continued."""
        measuring, now = self.oracle.measuring, self.run.state.evaluation
        columns = zip(COLUMNS, zip(*self._rows, strict=True), strict=True) if self._rows else ()
        return replace(
            self.run,
            values=None if now is None else (now.objective, now.constraints),
            measuring=(measuring.forwards, measuring.backwards),
            history=History({name: np.array(column) for name, column in columns}),
        )

    def keep_row(self) -> None:
        """Keep the last look as a row of the history, unless its step is left out or has no probe."""
        run, probe, problem = self.run, self.run.state.probe, self.problem
        if probe is None or run.residuals is None or not self._every or run.state.step % self._every:
            return
        x, multipliers, objective, constraints, gradient, *_ = probe
        absolute = absolute_residuals(problem.domain, x, gradient, constraints, multipliers, problem.num_equalities)
        values = map(_as_number, (objective, *absolute, run.residuals.worst))
        self._rows.append((run.state.step, run.forwards, run.backwards, run.seconds, *values))

    def count(self, state: State, seconds: float) -> None:
        """Take in one update and its cost."""
        run, used = self.run, self.oracle.method
        run.state, run.seconds = state, run.seconds + seconds
        run.forwards, run.backwards = used.forwards, used.backwards

    @np.errstate(over="ignore", invalid="ignore")  # numbers that are not finite are found below
    def look(self) -> None:
        """Measure the probe of the state and keep the best points; nothing if a number is not finite."""
        run = self.run
        state, probe = run.state, run.state.probe
        self._size = largest(max_norm(state.x))
        self.finite = math.isfinite(self._size)
        run.attempts = run.state.step >= run.next_attempt  # by the step alone, whatever the stop rules ask for
        if run.attempts:
            run.next_attempt = math.ceil(ATTEMPT_GROWTH * run.state.step)
        if probe is None:
            return
        known = run.units, run.next_units, run.best_kkt
        run.residuals = self._residuals(probe)
        worst = run.residuals.worst
        run.kkt = largest(worst)
        # A residual does not show g_i = -inf: the constraint is met and far away.
        self.finite = self.finite and math.isfinite(run.kkt) and all_finite(probe.objective, probe.constraints)
        if not self.finite:
            run.units, run.next_units, run.best_kkt = known
            return
        run.last = probe
        self._keep_best(probe, worst)
        self._keep_feasible(probe, run.residuals.feasibility)
        run.total_weight += probe.weight
        if run.average is None:
            run.average = probe.x
        else:  # xbar += (w_r / W_r) (x_r - xbar): the sum of Theorem 1 in constant memory
            run.average = run.average + (probe.weight / run.total_weight) * (probe.x - run.average)

    def check(self) -> None:
        """See whether the numbers of the state are finite, without measuring them."""
        state, probe = self.run.state, self.run.state.probe
        self.finite = all_finite(state.x, state.multipliers, *(() if probe is None else probe[2:5]))

    def _residuals(self, probe: Probe) -> Residuals:
        """Return the residuals of a probe, in units measured there at spaced steps, and near the tolerance if free."""
        run, now = self.run, probe.evaluation
        free = now is not None and now.knows_derivatives
        if run.units is not None and run.state.step < run.next_units:
            residuals = self._measure(probe)
            if not (free and largest(residuals.worst) <= NEAR * self.tolerance):
                return residuals
        if now is None:
            now = self.problem.evaluate(probe.x)
        # More than a hundred rows that are a backward pass each are measured once.
        if free or run.units is None or run.shape[1] <= ATTEMPT_ROWS or now.has_cheap_jacobian:
            run.next_units = 2 * run.state.step
            lengths = lengths_of(self.problem.x_scale, probe.x, now)
            run.units = units_at(lengths, run.start, probe.x, now, is_whole(probe.x, now))
            if run.best is not None:
                run.best_kkt = self._measure(run.best).worst
        return self._measure(probe)

    def _measure(self, probe: Probe) -> Residuals:
        assert self.run.units is not None
        domain, p = self.problem.domain, self.problem.num_equalities
        return relative_residuals(
            domain, probe.x, probe.gradient, probe.constraints, probe.multipliers, self.run.units, p
        )

    def _keep_best(self, probe: Probe, worst: Any) -> None:
        run = self.run
        if run.best is None:
            run.best, run.best_kkt = probe, worst
        else:
            better = worst < run.best_kkt
            run.best, run.best_kkt = _merge(better, probe, run.best), pick(better, worst, run.best_kkt)

    def _keep_feasible(self, probe: Probe, feasibility: Any) -> None:
        run, feasible, objective = self.run, feasibility <= self.tolerance, probe.objective
        if feasible is False:  # a single problem
            return
        best, lowest = run.best_feasible, run.best_objective
        objective = objective if objective.ndim else float(objective)
        if best is None:  # NaN for members of a batch without a feasible point
            best, lowest = probe._replace(x=probe.x * 0 + math.nan), objective * math.nan
        better = feasible & ((lowest != lowest) | (objective < lowest))
        run.best_feasible, run.best_objective = _merge(better, probe, best), pick(better, objective, lowest)

    @property
    def diverged(self) -> bool:
        """Whether the iterate had left every reasonable range at the last look, while still finite."""
        return self._size > self._limit

    def certified(self, tolerance: float) -> bool:
        """Return whether a certificate recomputed now holds, if one is due; False if none is.

        One is due if the residuals that a step yields for free are within ``tolerance``, and at steps spaced by
        `ATTEMPT_GROWTH`, because the best multipliers may certify a point that the method's own do not.
        """
        run = self.run
        state, probe = run.state, run.state.probe
        met = run.kkt <= tolerance
        # The start, the reference of the slackness here, may be far too strict: 49 of HS116's 137 evaluations suffice.
        free = () if probe is None or run.residuals is None else run.residuals[:2]
        close = len(free) > 0 and all(largest(residual) <= tolerance for residual in free)
        if (met or close) and state.step >= run.next_certificate:
            if self.certify((run.best if met else probe) or state).holds(tolerance):
                return True  # it stays due, so that a finished run that is continued is still finished
            run.next_certificate = math.ceil(1.1 * state.step) + 1
            return False
        now, point = state.evaluation, probe or state
        if now is None or not run.attempts:
            return False
        if now.constraints.shape[-1] > ATTEMPT_ROWS and not now.has_cheap_jacobian:
            return False
        return self._may_hold(point, tolerance) and self.certify(point).holds(tolerance)

    def _may_hold(self, point: Probe | State, tolerance: float) -> bool:
        """Return whether a certificate of the point could hold, from its oracle call alone."""
        now = point.evaluation
        if now is None:
            return True
        if not largest(top(violation(now.constraints, self.problem.num_equalities))) <= tolerance:
            return False
        x, problem = point.x, self.problem
        if cannot_hold(problem, x, now, MARGIN * tolerance):
            return False
        units = units_at(lengths_of(problem.x_scale, x, now), loosest(x, now), x, now, is_whole(x, now))
        worst = judge(problem, x, units, now, point.multipliers)[2].worst
        return largest(worst) <= MARGIN * tolerance

    def certify(self, point: Probe | State) -> Certificate:
        """Return the certificate of a point; the last one is kept and not computed twice."""
        if self.certificate is None or self._judged is not point.x:
            x, self.certificate = point.x, None
            self._judged = x
            self.certificate = certify(self.problem, x, point.multipliers, evaluation=point.evaluation)
        return self.certificate


def _merge(mask: Any, new: Probe, old: Probe) -> Probe:
    """Take each batch member from ``new`` if ``mask`` holds, else from ``old``."""
    if isinstance(mask, bool):
        return new if mask else old
    x, multipliers, objective, constraints, gradient = pick(mask, new[:5], old[:5])
    return Probe(x, multipliers, objective, constraints, gradient, new.weight)


def _as_number(value: Any) -> Any:
    """Return a float for a single problem, the host copy of one value each for a batch."""
    if isinstance(value, float):
        return value
    values = to_numpy(value)
    return float(values) if values.ndim == 0 else np.array(values)
