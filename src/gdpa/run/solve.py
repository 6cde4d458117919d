"""`gdpa.solve`: read its arguments, begin or continue a run, and return the result."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from gdpa.base.arrays import (
    all_finite,
    from_numpy,
    is_floating,
    machine_eps,
    namespace,
    own_copy,
    positive_part,
    row_sizes,
    to_numpy,
)
from gdpa.base.checks import check_count, check_limit, is_count
from gdpa.base.signals import finishing_the_step
from gdpa.base.status import Status
from gdpa.base.typing import Array
from gdpa.core.problem import Evaluation, Problem, WithStart, as_problem, detach
from gdpa.core.units import reference_at
from gdpa.methods import as_algorithm, default_method
from gdpa.methods.base import Algorithm, State
from gdpa.run.feasible import SHARE, restored
from gdpa.run.loop import conclude, find_not_finite, finish, run_loop, trust
from gdpa.run.multistart import solve_from_several
from gdpa.run.observers import read_disp
from gdpa.run.oracle import CountingOracle
from gdpa.run.placement import choose_device, move_to_device
from gdpa.run.progress import NO_TROUBLE, Progress, Run
from gdpa.run.result import Result
from gdpa.run.saving import Saver, newest_run
from gdpa.run.stopping import KKTBelow, MaxSteps, StopRule

#: The most rounding of a dtype to optimize in: float32 has 1e-7, float16 and bfloat16 have 1e-3 and more.
MOST_ROUNDING = 1e-4
#: Seconds after the last step that are worth a sentence if a limit on time ended the run.
WORTH_A_SENTENCE = 1.0
#: The default limit of updates of a run.
MAX_STEPS = 10_000


def default_tolerance(x: Array) -> float:
    """Return the relative KKT tolerance that suits the precision of ``x``: 1e-6 in float64, 1e-3 in float32.

    >>> default_tolerance(np.zeros(1)), default_tolerance(np.zeros(1, dtype=np.float32))
    (1e-06, 0.001)
    """
    eps = machine_eps(x)
    return 1e-6 if eps < 1e-12 else 1e-3 if eps < 1e-6 else 1e-1


@finishing_the_step
def solve(
    problem: Problem | WithStart,
    x0: Array | None = None,
    algorithm: str | Algorithm[Any] | None = None,
    *,
    stop: StopRule | Iterable[StopRule] | None = None,
    tolerance: float | None = None,
    observers: Callable[[Progress], None] | Iterable[Callable[[Progress], None]] = (),
    record: int = 1,
    check_every: int = 1,
    multipliers0: Array | None = None,
    after: Result | None = None,
    x_scale: Array | None = None,
    run: Run | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int = 100,
    keep: int = 3,
    resume: bool = False,
    feasible: bool = False,
    best_of: int = 1,
    seed: Any = 0,
    disp: bool | str = False,
) -> Result:
    """Minimize f(x) subject to g(x) <= 0 and x in X.

    Args:
        problem: the oracle and the set X; or a problem that brings its start, such as `gdpa.from_module` returns. If
            it has a method ``load``, as that one has, the answer is written back by ``problem.load(result.x)``.
        x0: the start, a floating-point array of NumPy, torch or JAX; projected on X.
        algorithm: the method, such as ``GDPA(tau=0.05)``, or its name; default `AdaptiveGDPA`, which has no step size
            to tune.
        stop: one stop rule or several. Default: a certificate at ``tolerance``, or 10,000 steps.
        tolerance: the relative KKT tolerance that ``success`` is judged by; default 1e-6 in double precision and 1e-3
            in single precision, or the tolerance of the run that is continued.
        observers: one function or several, called with the `Progress` after every step; any may raise StopIteration to
            end the run.
        record: keep every ``record``-th step in ``result.history``; 0 keeps nothing.
        check_every: measure residuals and ask the stop rules every ``check_every`` steps only (worth raising on a GPU,
            where each look waits for the device).
        multipliers0: the multipliers to begin with, e.g. from a similar problem; default zero.
        after: the result of a problem of the same shape with other limits or other data. The run begins at its ``x``
            (or at ``x0``) with its method, units, curvature, penalty and multipliers; the point alone is worth little.
        x_scale: the length of every coordinate of x, or one for all; default from the points, see `gdpa.core.units`.
        run: continue this run (``result.run`` or `load_run`) instead of starting at ``x0``.
        checkpoint: save the run on the way, to files with this stem or in this folder: at the start, every ``every``
            steps, at the end, and before SIGTERM ends the process; the last ``keep`` files stay.
        resume: continue from the newest good file of ``checkpoint``; start at ``x0`` if there is none yet. A run that
            began at another ``x0`` is refused.
        feasible: end with a restoration (`run.feasible`), so that no violation is left at ``result.x`` but rounding.
            The default stop rules then ask for a tenth of the tolerance, because the restoration moves x a little.
        best_of: from how many starts to solve: ``x0`` and random ones, see `gdpa.run.multistart`. The best certified
            answer is returned, the others are listed in ``result.others``. Limits hold for every start.
        seed: of the random starts, as `numpy.random.default_rng` takes it.
        disp: show the run as it goes: "lines" prints one for every accepted point (`run.observers.IterationLines`),
            "bar" rewrites one line (`gdpa.ProgressDisplay`); True is a bar in notebooks and lines elsewhere.

    Returns:
        A `Result`; ``success`` is True only for a certificate recomputed at ``result.x``.

    Ctrl-C ends the run after its step and returns its result so far, also before the first step; a second one ends it
    at once. SIGTERM ends the process; with ``checkpoint``, after its step and a save. An exception of the problem's own
    code, of a save (the disk is full) or of a signal handler of yours propagates with the partial result as its
    attribute ``partial_result``.

    Example:
        >>> from gdpa import problems, solve
        >>> hs = problems.get("HS12")
        >>> result = solve(hs.problem, hs.x0)
        >>> result.success, result.x.round(3).tolist()
        (True, [2.0, 3.0])
        >>> solve(hs.problem, after=result).steps
        0
    """
    if after is not None:
        others = {"run": run, "multipliers0": multipliers0, "resume": resume or None}
        others["best_of"] = None if best_of == 1 else best_of
        x0, algorithm = _read_after(after, x0, algorithm, [name for name, v in others.items() if v is not None])
    if not isinstance(problem, Problem):
        x0 = getattr(problem, "x0", None) if x0 is None and run is None else x0
        problem = as_problem(problem)
    method = as_algorithm("algorithm", default_method() if algorithm is None else algorithm)
    observers = (observers,) if callable(observers) else tuple(observers)
    if not all(map(callable, observers)):
        raise TypeError(f"observers must be functions of the Progress of a run, got {observers!r}")
    displays = read_disp(disp) if disp and getattr(getattr(problem, "job", None), "rank", 0) == 0 else ()
    rules = _read_rules(stop)
    if tolerance is not None:
        check_limit(tolerance=tolerance)
    check_count(0, record=record)
    check_count(1, check_every=check_every)
    if best_of != 1:
        if run is not None or checkpoint is not None:
            raise ValueError("best_of starts several runs: give it without run and checkpoint")
        options: dict[str, Any] = {"algorithm": method, "tolerance": tolerance, "record": record, "stop": rules}
        options |= {"check_every": check_every, "multipliers0": multipliers0, "x_scale": x_scale, "feasible": feasible}
        shown = (*observers, *displays)
        return solve_from_several(solve, problem, check_start(problem, x0), best_of, seed, shown, **options)
    saver = None if checkpoint is None else Saver(checkpoint, every, keep, getattr(problem, "job", None))
    if resume:
        if checkpoint is None or run is not None:
            raise ValueError("resume=True continues from the files of checkpoint=...; give that, and no run")
        run = newest_run(checkpoint)
        if run is not None and x0 is not None:
            _check_same_start(run, check_start(problem, x0))
            x0 = None
    problem = problem if x_scale is None else replace(problem, x_scale=x_scale)
    given: Any = problem
    device = choose_device(problem, x0, run, method, observers, rules) if hasattr(problem, "on_host") else None
    oracle = CountingOracle(problem if device is None else given.on_host(device))
    if run is None:
        if device is not None:
            x0, multipliers0 = (None if array is None else to_numpy(array) for array in (x0, multipliers0))
        run = _begin(oracle, x0, method, multipliers0, after)
        run.device = device
    else:
        if x0 is not None or (multipliers0 is not None and not resume):
            raise ValueError("give x0 or run, not both: a run brings its own point and multipliers")
        run = _continue(oracle, run, None if algorithm is None else method)
    if feasible and run.state.x.ndim > 1:
        raise ValueError(f"feasible must be False for a batch of shape {tuple(run.state.x.shape)}; solve one by one")
    if tolerance is None:
        tolerance = run.tolerance or default_tolerance(run.state.x)
    tolerance = float(tolerance)
    if rules is None:
        rules = (KKTBelow(SHARE * tolerance if feasible else tolerance), MaxSteps(MAX_STEPS))
    progress = Progress(oracle, run, tolerance, record)
    del run  # its first state would stay alive
    watchers = (*observers, *displays)
    with nullcontext() if saver is None else saver:
        ending = run_loop(progress, rules, watchers, check_every, saver)
        error, clock = ending.error, oracle.job.clock()
        with oracle, np.errstate(over="ignore", invalid="ignore"):  # the last point may not be finite
            result = conclude(progress, ending)
            if feasible and error is None:
                result = detach(restored(oracle.problem, result))
        if result.status is Status.MAX_TIME and (waited := oracle.job.clock() - clock) > WORTH_A_SENTENCE:
            result = replace(result, message=f"{result.message} The final certificate took {waited:.0f} s more.")
        if saver is not None:
            try:
                saver.offer(result.steps, lambda: result.run, final=True)
            except OSError as failed:  # a full disk does not cost the result
                error = error or failed
            if ending.status is Status.INTERRUPTED and saver.path is not None:
                result = replace(result, message=f"{result.message} The run is saved in {saver.path}.")
    result = result if device is None else move_to_device(result, given, device)
    finish(watchers)
    if error is not None:
        error.partial_result = result  # type: ignore[attr-defined]
        error.add_note(f"after {result.steps} steps; the exception's attribute partial_result holds the best point")
        raise error
    return result


def _begin(oracle: CountingOracle, x0: Any, algorithm: Algorithm[Any], multipliers0: Any, after: Any) -> Run:
    """Return the run before its first update."""
    x = check_start(oracle.problem, x0)
    clock = oracle.job.clock()
    state = algorithm.init(oracle.problem, x) if after is None else _carried(oracle.problem, x, algorithm, after)
    seconds = oracle.job.clock() - clock
    with oracle:
        now = state.evaluation or oracle.problem.evaluate(state.x)
        _check_finite(oracle.problem, now)
        start = reference_at(now, state.x)
        if multipliers0 is not None:
            state = _with_multipliers(algorithm, oracle.problem, state, multipliers0)
    return Run(
        algorithm=algorithm,
        state=state,
        start=start,
        shape=(state.x.shape[-1], now.constraints.shape[-1], oracle.problem.num_equalities),
        forwards=oracle.method.forwards,
        backwards=oracle.method.backwards,
        seconds=seconds,
        measuring=(oracle.measuring.forwards, oracle.measuring.backwards),
        caution=trust(NO_TROUBLE, algorithm, state),
    )


def _read_after(after: Any, x0: Any, algorithm: Any, others: list[str]) -> tuple[Any, Any]:
    """Return the start and the method of a run that goes on after another problem."""
    if not isinstance(after, Result):
        raise TypeError(
            f"after must be the Result of gdpa.solve, got {type(after).__name__}; give one, or leave it out"
        )
    if others:
        raise ValueError(f"after starts one new run with its own multipliers: give it without {' and '.join(others)}")
    if algorithm is not None and as_algorithm("algorithm", algorithm) != after.algorithm:
        raise ValueError(
            f"after is a result of {after.algorithm!r}, which {algorithm!r} cannot take over; leave algorithm out"
        )
    return (after.x if x0 is None else x0), after.algorithm


def _carried(problem: Problem, x: Array, algorithm: Any, after: Result) -> State:
    """Return the first state at x with the knowledge of another run, or raise if its problem has another shape."""
    like = after.state.x
    _check_shape("after", after.run, problem, x.shape[-1])
    if type(x) is not type(like) or x.shape != like.shape or x.dtype != like.dtype:
        raise TypeError(
            f"after has points of {type(like).__name__} {like.dtype} and shape {tuple(like.shape)}, x0 is "
            f"{type(x).__name__} {x.dtype} of shape {tuple(x.shape)}; convert x0, or solve without after"
        )
    if not hasattr(algorithm, "carry"):
        return _with_multipliers(algorithm, problem, algorithm.init(problem, x), after.multipliers)
    found: State = algorithm.carry(problem, x, after.state)
    return found


def _continue(oracle: CountingOracle, run: Run, algorithm: Any) -> Run:
    """Return ``run`` with its oracle call, or raise if it belongs to another method or problem."""
    if not isinstance(run, Run):
        raise TypeError(f"run must be a Run, such as result.run or load_run(path), got {type(run).__name__}")
    if algorithm is not None and algorithm != run.algorithm:
        raise ValueError(
            f"run belongs to {run.algorithm!r} and cannot be continued by {algorithm!r}; leave algorithm out"
        )
    state, problem = run.state, oracle.problem
    problem.domain.check_dimension(state.x.shape[-1])
    _check_shape("run", run, problem, run.shape[0])
    if run.values is None:
        return run
    oracle.measuring.forwards, oracle.measuring.backwards = run.measuring
    try:
        with oracle:
            now = problem.evaluate(state.x)
    except Exception as error:
        error.add_note(f"raised at the point of the run, which has {run.shape[0]} coordinates: is it the same problem?")
        raise
    _check_same_problem(run.values, now)
    measuring = oracle.measuring.forwards, oracle.measuring.backwards
    return replace(run, state=replace(state, evaluation=now), measuring=measuring)


def _check_shape(name: str, run: Run, problem: Problem, dimension: int) -> None:
    """Raise unless a problem in ``dimension`` variables has the numbers of variables and constraints of a run."""
    d, m, p = run.shape
    known = problem.num_constraints
    if (dimension, m if known is None else known, problem.num_equalities) != (d, m, p):
        raise ValueError(
            f"{name} belongs to a problem with {d} variables and {m} constraints, {p} of them equalities; this one has "
            f"{dimension}, {known} and {problem.num_equalities}: solve it without {name}"
        )


def _check_same_problem(values: tuple[Array, Array], now: Evaluation) -> None:
    """Raise unless f and g at the saved point are the saved ones, up to half the digits."""
    found_values = map(to_numpy, (now.objective, now.constraints))
    for name, saved, found in zip("fg", map(to_numpy, values), found_values, strict=True):
        allowed = float(np.finfo(found.dtype).eps) ** 0.5
        if saved.shape != found.shape or not np.allclose(saved, found, rtol=allowed, atol=allowed, equal_nan=True):
            raise ValueError(
                f"run belongs to another problem: at its point {name} was {saved} and is {found} here; "
                "continue it with the problem it was started with"
            )


def _read_rules(stop: StopRule | Iterable[StopRule] | None) -> tuple[StopRule, ...] | None:
    if stop is None:
        return None
    rules = tuple(stop) if isinstance(stop, Iterable) else (stop,)
    if not rules or not all(map(callable, rules)):
        remedy = f"gdpa.MaxSteps({stop})" if is_count(stop, 1) else "gdpa.MaxSteps(100)"
        raise TypeError(f"stop must be a stop rule or several, got {stop!r}; write stop={remedy}")
    return rules


def _check_same_start(run: Run, x0: Array) -> None:
    """Raise if a saved run began elsewhere than at ``x0``."""
    saved, given = to_numpy(run.start.x), to_numpy(x0)
    if saved.shape != given.shape or not np.allclose(saved, given, rtol=machine_eps(x0) ** 0.5, atol=0.0):
        remedy = "leave x0 out to continue that run, or give another checkpoint to start a new one"
        raise ValueError(f"x0 is {given}, and the saved run started at {saved}; {remedy}")


def check_start(problem: Problem, x0: Array | None) -> Array:
    """Return a copy of ``x0`` projected on X, or raise if it is not a point."""
    if x0 is None:
        raise TypeError("x0 is missing: give a start point or a run")
    if isinstance(x0, (list, tuple, float)):
        x0 = np.asarray(x0)
    if not is_floating(x0):
        kind = getattr(x0, "dtype", type(x0).__name__)
        raise TypeError(f"x0 must be an array of floating-point numbers, got {kind}; convert it to float64")
    if machine_eps(x0) > MOST_ROUNDING:
        raise TypeError(f"x0 has dtype {x0.dtype}, too few digits to optimize with; convert it to float32 or float64")
    if x0.ndim == 0 or x0.shape[-1] == 0:
        raise ValueError(f"x0 must have at least one coordinate, got shape {tuple(x0.shape)}")
    if not all_finite(x0):
        raise ValueError("x0 must be finite, got NaN or infinity in it; choose a finite start")
    problem.domain.check_dimension(x0.shape[-1])
    return problem.domain.project(own_copy(x0))


def _with_multipliers(algorithm: Any, problem: Problem, state: State, multipliers0: Any) -> State:
    """Return the first state with the user's multipliers."""
    like, p = state.multipliers, problem.num_equalities
    given = multipliers0 if is_floating(multipliers0) else from_numpy(np.asarray(multipliers0, dtype=float), like)
    if given.shape != like.shape or not all_finite(given):
        raise ValueError(
            f"multipliers0 must be {like.shape[-1]} finite numbers, one per constraint, got {multipliers0!r}"
        )
    multipliers = positive_part(given, p)
    warm = getattr(algorithm, "with_multipliers", None)
    return replace(state, multipliers=multipliers) if warm is None else warm(problem, state, multipliers)


def _check_finite(problem: Problem, evaluation: Evaluation) -> None:
    g = evaluation.constraints
    culprit = find_not_finite(problem, evaluation.objective, g)
    if not culprit:
        # One backward pass through everything finds a derivative of the wrong shape before the first step.
        known = evaluation.knows_derivatives
        passed = row_sizes(evaluation.jacobian()) if known else evaluation.pullback(namespace(g).ones_like(g))
        if not all_finite(passed, evaluation.gradient() if known else passed):
            finite = all_finite(evaluation.gradient())
            culprit = f"the {'Jacobian of the constraints' if finite else 'gradient of the objective'} is not finite"
    if culprit:
        raise ValueError(f"{culprit} at the start x0; choose a start where f, g and their derivatives are finite")
