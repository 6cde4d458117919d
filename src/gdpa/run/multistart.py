"""Several starts instead of one: the best certified answer, and the outcomes of the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from gdpa.base.arrays import from_numpy, to_numpy
from gdpa.base.checks import is_count
from gdpa.base.sets import Box
from gdpa.base.status import Status
from gdpa.base.typing import Array
from gdpa.core.problem import Problem
from gdpa.core.units import lengths_of
from gdpa.run.loop import finish
from gdpa.run.oracle import CountingOracle, Counts
from gdpa.run.progress import Progress
from gdpa.run.result import Attempt, Result


def starts(problem: Problem, x0: Array, count: int, seed: Any = 0, x_scale: Any = None) -> Iterator[Array]:
    """Yield ``x0`` and ``count - 1`` random points of X.

    A coordinate with two finite bounds is drawn uniformly between them. The others are drawn around x0 from a normal
    distribution whose deviation is their length (``x_scale``, or by `gdpa.core.units.lengths_of`), and the
    point is projected on X.
    """
    rng = np.random.default_rng(seed)
    here = np.asarray(to_numpy(x0), dtype=np.float64)
    lengths = lengths_of(x_scale, here)
    box = problem.domain if isinstance(problem.domain, Box) else Box(-np.inf, np.inf)
    lower, upper = (side + np.zeros(here.shape) for side in (box.lower, box.upper))
    bounded = np.isfinite(lower) & np.isfinite(upper)
    low, width = np.where(bounded, lower, 0.0), np.where(bounded, upper, 0.0) - np.where(bounded, lower, 0.0)
    yield x0
    for _ in range(count - 1):
        shares, shifts = rng.random(here.shape), rng.standard_normal(here.shape)
        drawn = np.where(bounded, low + shares * width, here + lengths * shifts)
        yield problem.domain.project(from_numpy(drawn, x0))


def solve_from_several(
    solve: Callable[..., Result],
    problem: Problem,
    x0: Array,
    count: int,
    seed: Any,
    observers: tuple[Callable[[Progress], None], ...] = (),
    **options: Any,
) -> Result:
    """Run ``solve`` from `starts` and return the best result, with the others in ``result.others``.

    The best is the certified one with the lowest objective; without any, the one with the smallest relative residuals.
    Ctrl-C and an observer's StopIteration end the search. An exception at x0 propagates; at a random start it ends
    that attempt alone. Steps, oracle calls and seconds are summed over all attempts.
    """
    if not is_count(count, 1):
        raise ValueError(f"best_of must be a positive number of starts, got {count!r}")
    if x0.ndim != 1:
        raise ValueError(f"best_of needs one problem, got x0 of shape {tuple(x0.shape)}; pass one start of shape (d,)")
    oracle = CountingOracle(problem)
    found: list[Result] = []
    failed: list[Attempt] = []
    stopped = False

    def watch(progress: Progress) -> None:
        nonlocal stopped
        try:
            for observer in observers:
                observer(progress)
        except StopIteration:
            stopped = True
            raise

    scale = problem.x_scale if options.get("x_scale") is None else options["x_scale"]
    for start in starts(problem, x0, count, seed, scale):
        try:
            found.append(solve(oracle.problem, start, observers=watch, **options))
        except (Exception, KeyboardInterrupt) as error:
            if not found:
                raise
            if isinstance(error, KeyboardInterrupt):  # between the loops of two runs
                break
            if isinstance(partial := getattr(error, "partial_result", None), Result):
                found.append(partial)
            else:
                failed.append(Attempt(Status.FAILED, False, math.nan, start))
        finally:
            finish(observers)
        if stopped or found[-1].status is Status.INTERRUPTED:
            break
    best = min(found, key=_rank)
    forwards, backwards = (sum(getattr(one, name) for one in found) for name in ("forwards", "backwards"))
    tried = len(found) + len(failed)
    others = [Attempt(one.status, one.success, one.objective, one.x) for one in found if one is not best]
    reached = f" The best of {count} starts, {sum(one.success for one in found)} of them certified."
    return replace(
        best,
        message=best.message + (f" Ended after {tried} of {count} starts." if tried < count else reached),
        steps=sum(one.steps for one in found),
        forwards=forwards,
        backwards=backwards,
        measuring=Counts(oracle.method.forwards - forwards, oracle.method.backwards - backwards),
        seconds=sum(one.seconds for one in found),
        others=(*others, *failed),
    )


def _rank(result: Result) -> tuple[bool, float]:
    """Certified results come first and by objective, the others by their residuals."""
    value = result.objective if result.success else result.certificate.relative.worst
    return not result.success, math.inf if math.isnan(value) else value
