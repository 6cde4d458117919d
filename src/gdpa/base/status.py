"""Why a run ended."""

from __future__ import annotations

from enum import Enum

from gdpa.base.stored import stored


@stored
class Status(Enum):
    """Why a run ended. The value is the sentence the user reads."""

    CONVERGED = "Converged: the recomputed KKT residuals are within the tolerance."
    MAX_STEPS = (
        "Stopped at the step limit before the KKT residuals met the tolerance. "
        "Allow more steps or loosen the tolerance."
    )
    MAX_ORACLE_CALLS = (
        "Stopped at the limit on oracle calls before the KKT residuals met the tolerance. "
        "Allow more calls or loosen the tolerance."
    )
    MAX_TIME = (
        "Stopped at the time limit before the KKT residuals met the tolerance. Allow more time or loosen the tolerance."
    )
    FEASIBLE = "Stopped at the first feasible point T(epsilon); stationarity was not asked for."
    LOCALLY_INFEASIBLE = (
        "Locally infeasible: the violation of the constraints is stationary and positive here. "
        "Check the constraints against each other, or start elsewhere."
    )
    DIVERGING = "Diverging: the iterates left every reasonable range. The problem may be unbounded below: add bounds."
    INVALID_NUMBER = (
        "Stopped at a value that is not a finite number; the best finite point is returned. "
        "Add bounds that keep x where all values are finite, or start elsewhere."
    )
    STALLED = "Stalled: no step makes progress any more, and the KKT residuals are above the tolerance."
    INTERRUPTED = "Interrupted from the keyboard; the best point so far is returned."
    STOPPED = "Stopped by a callback; the best point so far is returned."
    FAILED = "The problem's own code raised an exception; the best point so far is attached to it."
