"""Stop rules: functions of the progress of a run that return a status to stop with, or None."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gdpa.base.arrays import namespace, norm
from gdpa.base.checks import check_limit
from gdpa.base.status import Status
from gdpa.core.certificate import violation
from gdpa.run.progress import Progress


class StopRule(Protocol):
    """A function of the `Progress` of a run; it returns the status to stop with, or None to go on."""

    def __call__(self, progress: Progress) -> Status | None: ...


class _Limited:
    """A rule whose only field is a positive number."""

    def __post_init__(self) -> None:
        check_limit(isinstance(self, MaxSteps), **vars(self))


@dataclass(frozen=True)
class MaxSteps(_Limited):
    """Stop after ``limit`` updates; 0 stops at the start."""

    limit: int

    def __call__(self, progress: Progress) -> Status | None:
        return Status.MAX_STEPS if progress.step >= self.limit else None


@dataclass(frozen=True)
class MaxOracleCalls(_Limited):
    """Stop after ``limit`` forward passes of the method (each with at most one backward for single-loop methods)."""

    limit: int

    def __call__(self, progress: Progress) -> Status | None:
        return Status.MAX_ORACLE_CALLS if progress.forwards >= self.limit else None


@dataclass(frozen=True)
class MaxTime(_Limited):
    """Stop after ``seconds`` on the method's clock.

    Residuals, certificates and a final restoration are not on it: the call returns later by their time, and the
    message names it if it is more than a second.
    """

    seconds: float

    def __call__(self, progress: Progress) -> Status | None:
        return Status.MAX_TIME if progress.seconds >= self.seconds else None


@dataclass(frozen=True)
class KKTBelow(_Limited):
    """Stop when a recomputed certificate shows relative KKT residuals of at most ``tolerance``.

    `Progress.certified` decides when a certificate is worth its backward passes.
    """

    tolerance: float

    def __call__(self, progress: Progress) -> Status | None:
        return Status.CONVERGED if progress.certified(self.tolerance) else None


@dataclass(frozen=True)
class FeasibleBelow(_Limited):
    """The paper's T(epsilon), eq. (gapc): stop at the first r > 1 with ``||g_+(x_{r+1})||^2 <= epsilon``.

    A test of feasibility alone: it does not test stationarity, and its status is never a success by itself.
    """

    epsilon: float

    def __call__(self, progress: Progress) -> Status | None:
        if progress.step <= 1:
            return None
        now = progress.state.evaluation or progress.problem.evaluate(progress.state.x)
        size = norm(violation(now.constraints, progress.problem.num_equalities))
        met = namespace(size).all(size**2 <= self.epsilon)
        return Status.FEASIBLE if bool(met) else None


#: Rules that do not look at arrays of the run.
LIMITS = (MaxSteps, MaxOracleCalls, MaxTime, KKTBelow, FeasibleBelow)
