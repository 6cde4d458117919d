"""The only loop of the library: updates, looks, recovery from values that are not finite, and the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gdpa.base.arrays import all_finite, largest, namespace, positive_part
from gdpa.base.sets import ConvexSet
from gdpa.base.signals import StopRequest
from gdpa.base.status import Status
from gdpa.base.typing import Array
from gdpa.core.certificate import Certificate, better, certificate_from
from gdpa.core.problem import Evaluation, Problem, detach
from gdpa.core.units import Units
from gdpa.methods.base import Probe, State
from gdpa.methods.method import Method
from gdpa.oracles.derivative_check import contradiction, find_contradiction
from gdpa.run.progress import Caution, Progress
from gdpa.run.result import Result, most_violated
from gdpa.run.saving import Saver
from gdpa.run.stopping import StopRule

#: A repeated step is this much shorter than the one before ...
CUT = 0.1
#: ... and one step is cut at most this many times. The last one is 1e-10 of its length: no wall is that near.
CUTS = 10
#: A larger relative residual of a stalled run is not explained by the precision of the numbers.
ROUNDED = 1e-3
#: A run of an adaptive method that reaches its limit after this many steps may have wrong derivatives.
MANY_STEPS = 100


class Ending(NamedTuple):
    """How the loop ended: a status, a detail of the message, the exception if there was one."""

    status: Status
    detail: str = ""
    error: BaseException | None = None


def run_loop(
    progress: Progress,
    rules: tuple[StopRule, ...],
    watchers: tuple[Callable[[Progress], None], ...],
    check_every: int,
    saver: Saver | None,
) -> Ending:
    """Update until a rule, the method, an observer, a signal or an error ends the run."""
    stop = StopRequest.active() if saver is None else saver.stop
    run, oracle, problem = progress.run, progress.oracle, progress.problem
    status = run.state.verdict
    updating = False
    unmeasured: dict[str, Any] = {}
    try:
        if saver is not None:
            saver.offer(run.state.step, progress.record, final=True)
        if run.state.step % check_every == 0:
            with oracle:
                status = _ask(rules, progress) or status
        while status is None and not stop:
            clock, updating, before = oracle.job.clock(), True, run.state
            shorter = problem  # for this update, if it is repeated
            if run.caution.share != 1.0:
                shorter = replace(problem, domain=Shortened(problem.domain, before.x, run.caution.share))
            state = run.algorithm.update(shorter, before)
            updating, unmeasured = False, vars(run).copy()
            progress.count(state, oracle.job.clock() - clock)
            due = state.step % check_every == 0 or state.verdict is not None
            if due or state.step <= run.caution.until:
                due = due and state.step > run.caution.looked  # a repeated step is not measured twice
                with oracle:
                    if due:
                        progress.look()
                    else:
                        progress.check()
                    if not progress.finite:
                        if state.verdict is None and go_back(progress, state):
                            continue
                        return Ending(Status.INVALID_NUMBER, _name_culprit(problem, state))
                    run.caution = trust(run.caution, run.algorithm, before, state.step if due else 0)
                    unmeasured, before = {}, state  # long vectors of the old state are free
                    if due:
                        progress.keep_row()
                        for watch in watchers:
                            watch(progress)
                        status = _ask(rules, progress)
                    status = status or state.verdict
                if status is None and progress.diverged:
                    status = Status.DIVERGING
            if saver is not None:
                saver.offer(run.state.step, progress.record)
    except KeyboardInterrupt:
        vars(run).update(unmeasured)  # if interrupted while measuring, undo the step; a resumed run repeats it
        return Ending(Status.INTERRUPTED)
    except StopIteration as raised:
        # Only an observer or a stop rule may end the run in this way: in the problem's code it is an error.
        return Ending(Status.FAILED, "", raised) if updating else Ending(Status.STOPPED)
    except Exception as raised:
        return Ending(Status.FAILED, "", raised)
    return Ending(status or Status.INTERRUPTED)


def _ask(rules: tuple[StopRule, ...], progress: Progress) -> Status | None:
    for rule in rules:
        status = rule(progress)
        if status is not None:
            return status
    return None


def find_not_finite(problem: Problem, objective: Array, constraints: Array) -> str:
    """Return which of f and g is not finite, as half a sentence; "" if both are."""
    if all_finite(objective, constraints):
        return ""
    if not all_finite(objective):
        return f"the objective is {objective}"
    i = next(i for i in range(constraints.shape[-1]) if not all_finite(constraints[..., i]))
    return f"the constraint {problem.constraint_name(i)} is {constraints[..., i]}"


def _name_culprit(problem: Problem, state: State) -> str:
    probe = state.probe
    culprit = "" if probe is None else find_not_finite(problem, probe.objective, probe.constraints)
    if culprit:
        return f"{culprit[0].upper()}{culprit[1:]}"
    now = state.evaluation if probe is None else probe.evaluation
    if now is not None and all_finite(now.gradient()):
        return "The Jacobian of the constraints is not finite"
    return "The gradient of the objective is not finite" if now is not None else "A derivative is not finite"


# Recovery: a step that leads to a value that is not finite is taken back and repeated shorter.


@dataclass(frozen=True)
class Shortened(ConvexSet):
    """The set X for one update whose primal step is cut: the projection goes ``share`` of the way from ``anchor``.

    Every method moves by projecting on X, so this cuts the step of each of them, and the new point is in X because X
    is convex.
    """

    whole: ConvexSet
    anchor: Array
    share: float

    @property
    def shortens(self) -> bool:
        return True

    def project(self, x: Array) -> Array:
        return self.anchor + self.share * (self.whole.project(x) - self.anchor)

    def tangent(self, x: Array, v: Array) -> Array:
        return self.whole.tangent(x, v)


def trust(caution: Caution, algorithm: object, before: State, looked: int = 0) -> Caution:
    """Return the record after an update from ``before`` whose outcome is finite.

    A state is trusted once such an update has been made: the values and gradients it needs are finite.
    """
    if not (isinstance(algorithm, Method) and algorithm.retried):
        return caution
    old = caution.trusted
    stuck = caution.in_a_row and old is not None and not bool(namespace(old.x).any(before.x != old.x))
    return Caution(
        trusted=replace(before, evaluation=None, probe=None),
        in_a_row=caution.in_a_row if stuck else 0,
        cuts=caution.cuts,
        until=caution.until,
        looked=max(caution.looked, looked),
    )


def go_back(progress: Progress, bad: State) -> bool:
    """Put the run back to its last trusted state; return False if that does not help any more.

    If several updates were made since, they are repeated as they were, each one checked, to find the one that went
    wrong. Else the update from the trusted state is repeated, with a primal step cut by `CUT` once more.
    """
    run = progress.run
    caution, state = run.caution, run.caution.trusted
    if state is None:
        return False
    run.state, progress.finite = state, True
    if bad.step > state.step + 2:
        run.caution = caution._replace(until=bad.step)
        return True
    if caution.in_a_row >= CUTS:
        run.caution = caution._replace(in_a_row=0)  # whoever continues the run may cut again
        return False
    in_a_row = caution.in_a_row + 1
    run.caution = caution._replace(
        share=CUT**in_a_row, in_a_row=in_a_row, cuts=caution.cuts + 1, until=max(caution.until, state.step + 2)
    )
    return True


# The end: candidate points are certified from the problem, and the better one becomes the result.


def conclude(progress: Progress, ending: Ending) -> Result:
    """Build the result from the problem at the candidate points, never from the loop's own numbers."""
    run, tolerance, (status, detail, _) = progress.run, progress.tolerance, ending
    if status is Status.LOCALLY_INFEASIBLE and run.best_feasible is not None:  # a feasible point refutes the verdict
        status = Status.STALLED
    state, now = run.state, run.state.evaluation
    finite = all_finite(*((state.x,) if now is None else (state.x, now.objective, now.constraints)))
    last: Probe | State = state if finite or run.last is None else run.last
    certificate = _best_certificate(progress, last, status)
    success = certificate.holds(tolerance)
    if success and status in (Status.MAX_STEPS, Status.MAX_ORACLE_CALLS, Status.MAX_TIME, Status.STALLED):
        status = Status.CONVERGED
    if status is Status.CONVERGED and not success:  # a custom rule may be looser than the tolerance
        status = Status.STOPPED
    ends_violated = status in (Status.LOCALLY_INFEASIBLE, Status.STALLED)
    if ends_violated and (violated := most_violated(certificate, tolerance)):
        detail = f"Most violated: {violated}"
    now, worst = state.evaluation if last is state else None, largest(certificate.relative.worst)
    more = advise(status, run.algorithm, progress.problem, last.x, last.multipliers, now, state.step, worst)
    record = progress.record()
    result = Result(
        x=certificate.x,
        multipliers=certificate.multipliers,
        success=success,
        status=status,
        message=" ".join((status.value, *(f"{text}." for text in (detail, more) if text), certificate.summary)),
        certificate=certificate,
        tolerance=tolerance,
        x_last=last.x,
        multipliers_last=last.multipliers,
        x_best_feasible=None if run.best_feasible is None else run.best_feasible.x,
        x_average=last.x if run.average is None else run.average,
        steps=state.step,
        forwards=run.forwards,
        backwards=run.backwards,
        measuring=progress.oracle.measuring,
        seconds=run.seconds,
        history=record.history,
        names=progress.problem.names,
        run=record,
    )
    return detach(result)


def advise(
    status: Status,
    algorithm: Any,
    problem: Problem,
    x: Array,
    multipliers: Array,
    now: Evaluation | None,
    steps: int,
    worst: float = 0.0,
) -> str:
    """Return advice after this ending at ``x``, in terms of the method; "" if the status suffices.

    The problem is evaluated at a few points if its derivatives are in doubt; ``now`` is the oracle call at ``x``, if it
    is known. ``worst`` is the largest relative residual of the result: rounding explains a small one alone.
    """
    adapts = type(algorithm).__name__ == "AdaptiveGDPA"
    if status is Status.DIVERGING:
        lengths = [name for name in ("alpha", "beta") if hasattr(algorithm, "alpha") and hasattr(algorithm, name)]
        return f"Or the step is too long: reduce {' or '.join(lengths)}" if lengths else ""
    if status is Status.MAX_STEPS and not adapts:
        return "Or try AdaptiveGDPA, which tunes itself"
    if status is Status.MAX_STEPS and steps >= MANY_STEPS:
        return find_contradiction(problem, x, multipliers, now)
    if status is Status.STALLED:
        cause = "The tolerance may be below what the precision of the problem's numbers allows"
        if not worst <= ROUNDED:
            cause = "The residuals are too large for rounding: start elsewhere, or look for a kink of a function near x"
        return find_contradiction(problem, x, multipliers, now) or cause
    if status is Status.LOCALLY_INFEASIBLE:
        now = problem.evaluate(x) if now is None else now
        violation = positive_part(now.constraints, problem.num_equalities)
        return contradiction(problem, x, violation, now, objective=0.0)
    return ""


def finish(observers: Iterable[Any]) -> None:
    """Call the method ``finish`` of each observer that has one: the run is over."""
    for observer in observers:
        if callable(end := getattr(observer, "finish", None)):
            end()


def _best_certificate(progress: Progress, last: Probe | State, status: Status) -> Certificate:
    """Certify the best point seen and the last one, and keep the better (member by member in a batch)."""
    best = progress.run.best
    if status is Status.FAILED:  # the problem's code is broken: do not run it again, report the measurements
        return _certify_measured(progress, last)
    if status is Status.INVALID_NUMBER and best is not None:  # the last point is the one that went wrong
        return progress.certify(best)
    held = progress.certificate
    chosen = progress.certify(last)
    if status is Status.LOCALLY_INFEASIBLE:  # the verdict is about the last point
        return chosen
    if held is not None and held.holds(progress.tolerance):
        return better(chosen, held)
    return chosen if best is None else better(chosen, progress.certify(best))


def _certify_measured(progress: Progress, last: Probe | State) -> Certificate:
    """Return the certificate of the values that the run has measured; unknown residuals are NaN."""
    run = progress.run
    probe, units = run.best, run.units
    if probe is None or units is None:
        x, nan, xp = last.x, last.x + float("nan"), namespace(last.x)
        now = run.state.evaluation
        f, g = (nan[..., 0], last.multipliers + float("nan")) if now is None else (now.objective, now.constraints)
        probe = Probe(x, last.multipliers, f, g, nan)
        units = Units(xp.ones_like(x), *(xp.ones_like(g) for _ in range(4)))
    _, multipliers, objective, constraints, gradient, *_ = probe
    lengths = abs(probe.x)
    return certificate_from(progress.problem, lengths, units, objective, constraints, probe.x, multipliers, gradient)
