"""How a run ends: the points worth returning are certified anew and become the result."""

from __future__ import annotations

from typing import Any

from gdpa.base.arrays import all_finite, namespace
from gdpa.base.status import Status
from gdpa.base.typing import Array
from gdpa.core.certificate import Certificate, better, certificate_from
from gdpa.core.detach import detached
from gdpa.core.problem import Evaluation
from gdpa.core.units import Units
from gdpa.methods.base import Probe
from gdpa.run.observers import Recorder
from gdpa.run.oracle import CountingOracle
from gdpa.run.progress import Progress
from gdpa.run.result import Result, advice, message, most_violated


def conclude(oracle: CountingOracle, progress: Progress, status: Status, detail: str, recorder: Recorder) -> Result:
    """Build the result from the problem at the points worth returning, never from the loop's own numbers."""
    state, last = progress.state, progress.last
    now = state.evaluation
    finite = all_finite(*((state.x,) if now is None else (state.x, now.objective, now.constraints)))
    x_last, multipliers_last = (state.x, state.multipliers) if finite or last is None else (last.x, last.multipliers)
    certificate = _best_certificate(progress, x_last, multipliers_last, status)
    success = certificate.holds(progress.tolerance)
    if success and status in (Status.MAX_STEPS, Status.MAX_ORACLE_CALLS, Status.MAX_TIME, Status.STALLED):
        status = Status.CONVERGED
    if status is Status.CONVERGED and not success:  # a custom rule may be looser than the tolerance
        status = Status.STOPPED
    if status is Status.LOCALLY_INFEASIBLE and (worst := most_violated(certificate, progress.tolerance)):
        detail = f"Most violated: {worst}"
    evaluation = state.evaluation if x_last is state.x else None
    more = advice(status, progress.algorithm, progress.problem, x_last, multipliers_last, evaluation)
    detail = ". ".join(sentence for sentence in (detail, more) if sentence)
    history = recorder.history()
    result = Result(
        x=certificate.x,
        multipliers=certificate.multipliers,
        success=success,
        status=status,
        message=message(status, detail, certificate),
        certificate=certificate,
        tolerance=progress.tolerance,
        x_last=x_last,
        multipliers_last=multipliers_last,
        x_best_feasible=None if progress.best_feasible is None else progress.best_feasible.x,
        x_average=x_last if progress.average is None else progress.average,
        steps=state.step,
        forwards=progress.forwards,
        backwards=progress.backwards,
        measuring=oracle.measuring,
        seconds=progress.seconds,
        history=history,
        names=progress.problem.names,
        run=progress.run(history),
    )
    return detached(result)


def _best_certificate(progress: Progress, x_last: Array, multipliers_last: Array, status: Status) -> Certificate:
    """Certify the best point seen and the last one, and keep the better (member by member in a batch)."""
    state, best = progress.state, progress.best
    if status is Status.FAILED:  # the problem's code is broken: do not run it again, report what was measured
        return _measured(progress, x_last, multipliers_last)
    if status is Status.INVALID_NUMBER and best is not None:  # the last point is the one that went wrong
        return progress.certify(best.x, best.multipliers, best.evaluation)
    held = progress.certificate
    evaluation = state.evaluation if x_last is state.x else None
    chosen = progress.certify(x_last, multipliers_last, evaluation)
    if status is Status.LOCALLY_INFEASIBLE:  # the verdict is about the last point
        return chosen
    if held is not None and held.holds(progress.tolerance):
        return better(chosen, held)
    if best is not None:
        return better(chosen, progress.certify(best.x, best.multipliers, best.evaluation))
    return chosen


def _measured(progress: Progress, x: Array, multipliers: Array) -> Certificate:
    """Return the certificate of what the run has measured, without an oracle call; unknown residuals are NaN."""
    probe, units = progress.best, progress.units
    if probe is None or units is None:
        nan, xp = x + float("nan"), namespace(x)
        now = progress.state.evaluation
        f, g = (nan[..., 0], multipliers + float("nan")) if now is None else (now.objective, now.constraints)
        probe = Probe(x, multipliers, f, g, nan)
        units = Units(xp.ones_like(x), *(xp.ones_like(g) for _ in range(4)))
    now = Evaluation(probe.objective, probe.constraints, _no_pullback)
    return certificate_from(progress.problem, progress.start, units, now, probe.x, probe.multipliers, probe.gradient)


def _no_pullback(w: Array, objective: Any = 1.0) -> Array:
    raise NotImplementedError("measured values have no pullback")
