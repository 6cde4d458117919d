"""The only loop of the library. It owns the clock, the counters, the stop rules and the observers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np

from gdpa.algorithms.adaptive_gdpa import AdaptiveGDPA
from gdpa.algorithms.base import Algorithm, Probe, State
from gdpa.arrays import is_floating, max_norm, namespace
from gdpa.kkt import Certificate, better, certify, scale_at
from gdpa.observers import Recorder
from gdpa.oracle import CountingOracle
from gdpa.problem import Evaluation, Problem
from gdpa.progress import Progress
from gdpa.result import History, Result, Status
from gdpa.stopping import KKTBelow, MaxSteps, StopRule
from gdpa.typing import Array


def solve(
    problem: Problem,
    x0: Array | None = None,
    algorithm: Algorithm[Any] | None = None,
    *,
    stop: StopRule | Iterable[StopRule] | None = None,
    tolerance: float = 1e-4,
    observers: Iterable[Callable[[Progress], None]] = (),
    record: int = 1,
    check_every: int = 1,
    state: State | None = None,
) -> Result:
    """Minimise f(x) subject to g(x) <= 0 and x in X.

    Args:
        problem: the oracle and the set X.
        x0: the start, a floating-point array of NumPy, torch or JAX; projected on X.
        algorithm: the method; default `AdaptiveGDPA`, which has no step size to tune.
        stop: one stop rule or several. Default: a certificate at ``tolerance``, or 10,000 steps.
        tolerance: the relative KKT tolerance that ``success`` is judged by.
        observers: called with the `Progress` after every step; one may raise StopIteration to end the run.
        record: keep every ``record``-th step in ``result.history``; 0 keeps nothing.
        check_every: measure residuals and ask the stop rules every so many steps only (worth raising on a GPU,
            where each look waits for the device).
        state: continue from this state (``result.state`` or `load_state`) instead of ``x0``.

    Returns:
        A `Result`; ``success`` is True only for a certificate recomputed at ``result.x``.

    Ctrl-C ends the run and returns what there is. An exception of the problem's own code propagates with the partial
    result as its attribute ``partial_result``.

    Example:
        >>> from gdpa import solve
        >>> from gdpa.problems import get
        >>> hs = get("HS12")
        >>> result = solve(hs.problem, hs.x0)
        >>> result.success, result.x.round(3).tolist()
        (True, [2.0, 3.0])
    """
    algorithm = cast("Algorithm[Any]", AdaptiveGDPA()) if algorithm is None else algorithm
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, got {type(problem).__name__}; make one by gdpa.from_functions")
    if isinstance(algorithm, type) or not isinstance(algorithm, Algorithm):
        raise TypeError(f"algorithm must have init and update, such as GDPA(), got {algorithm!r}")
    rules = _rules(stop, tolerance)
    if not isinstance(record, int) or record < 0 or not isinstance(check_every, int) or check_every < 1:
        raise ValueError(f"record must be >= 0 and check_every >= 1, got {record!r} and {check_every!r}")
    oracle = CountingOracle(problem)
    clock = time.perf_counter()
    if state is None:
        x = _check_start(problem, x0)
        state = algorithm.init(oracle.problem, x)
    elif x0 is not None:
        raise ValueError("give x0 or state, not both: a state brings its own point")
    seconds = time.perf_counter() - clock
    used = oracle.forwards, oracle.backwards
    start = state.evaluation or problem.evaluate(state.x)
    _check_finite(problem, start)

    progress = Progress(problem, state, start, scale_at(start), tolerance)
    progress.seconds, (progress.forwards, progress.backwards) = seconds, used
    oracle.forwards, oracle.backwards = used  # measuring is not on the method's account
    recorder = Recorder(record)
    watchers = (*((recorder,) if record else ()), *observers)
    detail, status = "", _first(rules, progress)
    error: Exception | None = None
    try:
        while status is None:
            clock = time.perf_counter()
            state = algorithm.update(oracle.problem, state)
            progress.seconds += time.perf_counter() - clock
            progress.step, progress.forwards, progress.backwards = state.step, oracle.forwards, oracle.backwards
            if state.step % check_every and state.verdict is None:
                progress.state = state
                continue
            progress.look(state)
            for watch in watchers:
                watch(progress)
            status = _first(rules, progress) or state.verdict
            oracle.forwards, oracle.backwards = progress.forwards, progress.backwards
            if not progress.finite:
                status, detail = Status.INVALID_NUMBER, _culprit(problem, state)
            elif status is None and progress.diverged:
                status = Status.DIVERGING
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    except StopIteration:
        status = Status.STOPPED
    except Exception as raised:
        status, error = Status.FAILED, raised
    result = _conclude(problem, algorithm, progress, state, status, detail, recorder.history())
    if error is not None:
        error.partial_result = result  # type: ignore[attr-defined]
        error.add_note(f"after {result.steps} steps; the exception's attribute partial_result holds the best point")
        raise error
    return result


def _rules(stop: StopRule | Iterable[StopRule] | None, tolerance: float) -> tuple[StopRule, ...]:
    if not isinstance(tolerance, (int, float)) or not tolerance > 0:
        raise ValueError(f"tolerance must be a positive number, got {tolerance!r}")
    if stop is None:
        return (KKTBelow(tolerance), MaxSteps(10_000))
    rules = tuple(stop) if isinstance(stop, Iterable) else (stop,)
    if not rules or not all(callable(rule) for rule in rules):
        raise TypeError(f"stop must be a stop rule or several, got {stop!r}; see gdpa.stopping")
    return rules


def _first(rules: tuple[StopRule, ...], progress: Progress) -> Status | None:
    for rule in rules:
        status = rule(progress)
        if status is not None:
            return status
    return None


def _check_start(problem: Problem, x0: Array | None) -> Array:
    if x0 is None:
        raise TypeError("x0 is missing: give a start point or a state")
    if isinstance(x0, (list, tuple, float)):
        x0 = np.asarray(x0)
    if not is_floating(x0):
        kind = getattr(x0, "dtype", type(x0).__name__)
        raise TypeError(f"x0 must be an array of floating-point numbers, got {kind}; convert it, e.g. x0.astype(float)")
    if x0.ndim == 0 or x0.shape[-1] == 0:
        raise ValueError(f"x0 must have at least one coordinate, got shape {tuple(x0.shape)}")
    if not bool(namespace(x0).all(namespace(x0).isfinite(x0))):
        raise ValueError("x0 must be finite, got NaN or infinity in it; choose a finite start")
    problem.domain.check_dimension(x0.shape[-1])
    return problem.domain.project(x0)


def _check_finite(problem: Problem, evaluation: Evaluation) -> None:
    g = evaluation.constraints
    xp = namespace(g)
    culprit = _not_finite(problem, evaluation.objective, g)
    # One backward pass through everything finds a derivative of the wrong shape before the first step.
    if not culprit and not bool(xp.all(xp.isfinite(evaluation.pullback(xp.ones_like(g))))):
        finite = bool(xp.all(xp.isfinite(evaluation.pullback(xp.zeros_like(g)))))
        culprit = f"the {'Jacobian of the constraints' if finite else 'gradient of the objective'} is not finite"
    if culprit:
        raise ValueError(f"{culprit} at the start x0; choose a start where f, g and their derivatives are finite")


def _not_finite(problem: Problem, objective: Array, constraints: Array) -> str:
    xp = namespace(constraints)
    if not bool(xp.all(xp.isfinite(objective))):
        return f"the objective is {objective}"
    for i in range(constraints.shape[-1]):
        if not bool(xp.all(xp.isfinite(constraints[..., i]))):
            return f"the constraint {problem.constraint_name(i)} is {constraints[..., i]}"
    return ""


def _culprit(problem: Problem, state: State) -> str:
    probe = state.probe
    assert probe is not None
    return _not_finite(problem, probe.objective, probe.constraints) or "the gradient is not finite"


def _conclude(
    problem: Problem,
    algorithm: Algorithm[Any],
    progress: Progress,
    state: State,
    status: Status,
    detail: str,
    history: History,
) -> Result:
    """Build the result from the problem at the points worth returning, never from the loop's own numbers."""
    last = progress.last
    finite = bool(namespace(state.x).all(namespace(state.x).isfinite(max_norm(state.x))))
    x_last, multipliers_last = (state.x, state.multipliers) if finite or last is None else (last.x, last.multipliers)
    certificate = _best_certificate(progress, x_last, multipliers_last, status)
    success = certificate.holds(progress.tolerance)
    if success and status in (Status.MAX_STEPS, Status.MAX_ORACLE_CALLS, Status.MAX_TIME, Status.STALLED):
        status = Status.CONVERGED
    if status is Status.CONVERGED and not success:  # a custom rule may be looser than the tolerance
        status = Status.STOPPED
    return Result(
        x=certificate.x,
        multipliers=certificate.multipliers,
        success=success,
        status=status,
        message=f"{status.value}{' ' + detail + '.' if detail else ''} {_summary(certificate)}",
        certificate=certificate,
        tolerance=progress.tolerance,
        x_last=x_last,
        multipliers_last=multipliers_last,
        x_best_feasible=None if progress.best_feasible is None else progress.best_feasible.x,
        x_average=x_last if progress.average is None else progress.average,
        steps=state.step,
        forwards=progress.forwards,
        backwards=progress.backwards,
        seconds=progress.seconds,
        history=history,
        state=state,
        algorithm=algorithm,
    )


def _summary(certificate: Certificate) -> str:
    return f"Relative residuals: {', '.join(f'{_number(r):.1e}' for r in certificate.relative)}."


def _number(value: Any) -> float:
    return value if isinstance(value, float) else float(namespace(value).max(value))


def _best_certificate(progress: Progress, x_last: Array, multipliers_last: Array, status: Status) -> Certificate:
    """Certify the best point seen and the last one, and keep the better (member by member in a batch)."""
    problem, scale = progress.problem, progress.scale
    best: Probe | None = progress.best
    if status is Status.FAILED:  # the problem's code is broken: do not run it again, report what was measured
        probe = best or Probe(x_last, multipliers_last, *_unknown(progress, x_last))
        return _from_probe(problem, progress, probe)
    if status is Status.INVALID_NUMBER and best is not None:  # the last point is the one that went wrong
        return certify(problem, best.x, best.multipliers, scale=scale)
    certificates = [certify(problem, x_last, multipliers_last, scale=scale)]
    if status is Status.LOCALLY_INFEASIBLE:  # the verdict speaks of the last point
        return certificates[0]
    if progress.certificate is not None and progress.certificate.holds(progress.tolerance):
        certificates.append(progress.certificate)
    elif best is not None:
        certificates.append(certify(problem, best.x, best.multipliers, scale=scale))
    chosen = certificates[0]
    for other in certificates[1:]:
        chosen = better(chosen, other)
    return chosen


def _unknown(progress: Progress, x: Array) -> tuple[Array, Array, Array]:
    now = progress.state.evaluation or progress.start
    return now.objective, now.constraints, x + float("nan")


def _from_probe(problem: Problem, progress: Progress, probe: Probe) -> Certificate:
    from gdpa.kkt import absolute_residuals, relative_residuals

    parts = (problem.domain, probe.x, probe.gradient, probe.constraints, probe.multipliers, problem.num_equalities)
    return Certificate(
        x=probe.x,
        multipliers=probe.multipliers,
        objective=probe.objective if probe.objective.ndim else float(probe.objective),
        constraints=probe.constraints,
        gradient=probe.gradient,
        domain_multipliers=-probe.gradient - problem.domain.tangent(probe.x, -probe.gradient),
        residuals=absolute_residuals(*parts),
        relative=relative_residuals(*parts, progress.scale),
        scale=progress.scale,
    )
