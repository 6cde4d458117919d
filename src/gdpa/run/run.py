"""Everything a run knows: what `gdpa.solve` needs to go on as if it had never stopped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.certificate import Residuals
from gdpa.core.detach import detached
from gdpa.core.units import Start, Units
from gdpa.methods.base import Probe, State
from gdpa.run.result import History


@stored
class Caution(NamedTuple):
    """What a run needs to go back from a value that is not finite; see `gdpa.run.caution`.

    Attributes:
        trusted: the last state from which an update led to finite numbers.
        share: how much of its primal step the next update takes; below 1 only if it repeats one.
        in_a_row: how often the step from ``trusted`` has been cut.
        cuts: how many cuts there were in all.
        until: up to this step the outcome of every update is checked.
        looked: the last step that was measured, so that a repeated one is not measured twice.
    """

    trusted: State | None = None
    share: float = 1.0
    in_a_row: int = 0
    cuts: int = 0
    until: int = 0
    looked: int = 0


#: The record of a run that has not begun.
NO_TROUBLE = Caution()


@stored
@dataclass(frozen=True)
class Run:
    """The record of a run between two steps. ``solve(problem, run=run)`` continues it to the same end.

    Straight and continued runs have the same iterates, stop at the same step and return the same point with the same
    verdict, whatever the cut. Save it by `gdpa.save_run`.

    Attributes:
        algorithm: the method with its parameters.
        state: the method's state. Its oracle call is not kept: it is made anew if ``evaluated``.
        start: x0 with grad f and g there, the reference for the residuals of the loop.
        shape: (d, m, p): how many coordinates, constraints and equalities the problem has.
        values: f and g at the state's point, by which another problem is recognized; None if they were not evaluated.
        forwards, backwards, seconds: what the method has used.
        measuring: (forwards, backwards) made for residuals and certificates.
        residuals, kkt: the relative residuals of the last probe and the largest of them.
        units: the weights they were measured with.
        best, best_kkt: the probe with the smallest relative residuals, and these.
        best_feasible, best_objective: the feasible probe with the lowest objective, and this.
        last: the last finite probe.
        average, total_weight: the weighted average of the probes' points (the paper's Theorem 1).
        next_units, next_certificate, next_attempt: the steps at which units and certificates are due.
        caution: how the run goes back from a value that is not finite.
        history: the recorded columns.
        device: the device that the problem runs on, if the arrays of the run are on the host instead.
    """

    algorithm: Any
    state: State
    start: Start
    shape: tuple[int, int, int]
    values: tuple[Array, Array] | None = None
    forwards: int = 0
    backwards: int = 0
    seconds: float = 0.0
    measuring: tuple[int, int] = (0, 0)
    residuals: Residuals | None = None
    kkt: float = float("inf")
    units: Units | None = None
    best: Probe | None = None
    best_kkt: Any = None
    best_feasible: Probe | None = None
    best_objective: Any = None
    last: Probe | None = None
    average: Array | None = None
    total_weight: float = 0.0
    next_units: int = 1
    next_certificate: int = 0
    next_attempt: int = 0
    caution: Caution = NO_TROUBLE
    history: History = field(default_factory=History, repr=False)
    device: str | None = None

    @property
    def step(self) -> int:
        """How many updates the method has done."""
        return self.state.step

    def without_evaluations(self) -> Run:
        """Return the run without oracle calls: data alone, no function and no autograd graph."""
        return detached(self)
