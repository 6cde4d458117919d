"""The oracle of a run: a problem whose calls are counted and checked, and the processes that run it side by side."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from gdpa.base.arrays import is_floating, namespace
from gdpa.base.stored import stored
from gdpa.base.typing import Array, Pullback
from gdpa.core.problem import Evaluation, Problem
from gdpa.numerics.sparse.matrix import (
    FEW_COLUMNS,
    FEW_ROWS,
    FULL,
    Pattern,
    SparseMatrix,
    filled,
    is_sparse,
    read,
    union,
)

STOPPED = "the problem's own code raised StopIteration; only observers, stop rules and callbacks may raise it"


class Job(Protocol):
    """The job of a problem that several processes solve together: the attribute ``job`` of a `Problem`.

    Attributes:
        rank: the place of this process; the first one, 0, writes files and displays.
        clock: returns seconds, the same in all processes at the same place of the run.
    """

    rank: int
    clock: Callable[[], float]

    def note(self) -> str:
        """Return a note for displays."""
        ...


class Alone:
    """The job of an ordinary problem: this process."""

    def __init__(self) -> None:
        self.rank, self.clock = 0, time.perf_counter

    def note(self) -> str:
        return ""


@stored
@dataclass
class Counts:
    """Oracle calls made: forward and backward passes (a whole Jacobian at the price of one counts as one)."""

    forwards: int = 0
    backwards: int = 0


class CountingOracle:
    """Counts forwards and backwards of a problem and checks the shape of everything that comes back.

    Calls are charged to the method, or, inside ``with oracle:``, to measuring. A derivative that both ask for is
    charged to the method, so that its account does not depend on the measurements.
    """

    def __init__(self, problem: Problem) -> None:
        self.method, self.measuring = Counts(), Counts()
        self._account, self.is_measuring, self._depth = self.method, False, 0
        self._inner = problem
        self.job: Job = getattr(problem, "job", None) or Alone()
        self._length = problem.num_constraints
        self._decided: bool | None = None  # whether a sparse Jacobian stays sparse
        self._pattern: Pattern | None = None
        self._hessian_pattern: Pattern | None = None
        self.problem = object.__new__(type(problem))  # it is checked already
        vars(self.problem).update(vars(problem), evaluate=self._evaluate)

    def __enter__(self) -> None:
        self._depth += 1
        self._account, self.is_measuring = self.measuring, True

    def __exit__(self, *raised: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._account, self.is_measuring = self.method, False

    def settle(self, passes: int) -> None:
        """Charge backward passes that measuring has paid for to the method instead."""
        self.method.backwards += passes
        self.measuring.backwards -= passes

    def charge_hessian(self, passes: int) -> None:
        """Charge a Hessian that took this many oracle calls."""
        self._account.forwards += passes - 1
        self._account.backwards += passes

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the problem's code; its StopIteration is an error, not an observer's wish to end the run."""
        try:
            return function(*args)
        except StopIteration as error:
            raise RuntimeError(STOPPED) from error

    def _evaluate(self, x: Array) -> Evaluation:
        self._account.forwards += 1
        now = self._call(self._inner.evaluate, x)
        if not isinstance(now, Evaluation):
            raise TypeError(f"evaluate must return an Evaluation, got {type(now).__name__} {now!r}")
        f, g, d = now.objective, now.constraints, x.shape[-1]
        if getattr(g, "shape", None) != (*x.shape[:-1], self._length) or getattr(f, "shape", None) != x.shape[:-1]:
            self._check_values(x, f, g)
        if now.account is self:  # the problem remembers its calls
            return now
        if now.account is not None:  # it belongs to another run, which counts it, too
            whole, second = now.jacobian if now.whole is not None else None, now.hessian if now.has_hessian else None
            now = Evaluation(f, g, now.pullback, whole, now.passes, second, 1, now.is_sparse)
        now.account, now.sparse = self, now.sparse and d > FEW_COLUMNS
        now.pullback = partial(self._pull, now.pullback, x.shape)
        if now.second is not None and g.shape[-1] == 0:
            now.whole = partial(filled, np.zeros((0, d)))
        elif now.whole is not None:
            now.whole = partial(self._whole, now.whole, now.passes, (*g.shape, d), now.second is not None)
        if now.second is not None:
            now.second = partial(self._hessian, now.second, d)
        return now

    def _pull(self, pullback: Pullback, shape: tuple[int, ...], w: Array, objective: float | Array = 1.0) -> Array:
        self._account.backwards += 1
        gradient = self._call(pullback, w, objective)
        if gradient.shape != shape:
            raise ValueError(
                f"the pullback returned shape {tuple(gradient.shape)} for x of shape {tuple(shape)}; "
                "objective * grad f + J^T w must have the shape of x"
            )
        return gradient

    def _whole(self, whole: Callable[[], Array], passes: int, shape: tuple[int, ...], has_hessian: bool) -> Array:
        self._account.backwards += passes
        J = self._call(whole)
        if type(J) is not np.ndarray and is_sparse(J):
            J = read(J, "the jacobian")
        if J.shape != shape:
            raise ValueError(
                f"the jacobian has shape {tuple(J.shape)}, expected {shape}: "
                "one row for each constraint, one column for each component of x"
            )
        if not isinstance(J, SparseMatrix):
            return J
        if self._decided is None:  # dense if the first one is small or full, else always in its pattern
            rows, columns = J.shape
            full = len(J.data) > FULL * rows * columns
            few = columns <= FEW_COLUMNS or (rows <= FEW_ROWS and not has_hessian)
            self._decided, self._pattern = not (few or full), J.pattern
        if not self._decided or self._pattern is None:
            return J.toarray()
        return J.within(self._pattern, "the jacobian")

    def _hessian(self, hessian: Callable[..., Any], d: int, w: Array, objective: float = 1.0) -> SparseMatrix | None:
        """Return H in a pattern that grows if it must: sums of sparse arrays have no entries that cancel."""
        found = self._call(hessian, w, objective)
        if found is None:
            return None
        H, seen = read(found, "the hessian", (d, d)), self._hessian_pattern
        if seen is None or (not seen.is_same(H.pattern) and (seen.places(H.pattern) < 0).any()):
            seen = self._hessian_pattern = union(H.pattern) if seen is None else union(seen, H.pattern)
        return H.within(seen, "the hessian")

    def _check_values(self, x: Array, f: Array, g: Array) -> None:
        for name, value in (("objective", f), ("constraints", g)):
            if not is_floating(value):
                kind = f"a floating-point array of the library of x ({namespace(x).__name__})"
                raise TypeError(f"the {name} must be {kind}, got {type(value).__name__} {value!r}")
        if f.shape != x.shape[:-1]:
            raise ValueError(
                f"the objective has shape {tuple(f.shape)}, expected {tuple(x.shape[:-1])}: one number per problem"
            )
        if g.ndim != x.ndim or g.shape[:-1] != x.shape[:-1]:
            raise ValueError(
                f"the constraints have shape {tuple(g.shape)}, expected {(*x.shape[:-1], 'm')}: "
                "return a vector even for a single constraint"
            )
        if self._length is None:
            self._length = g.shape[-1]
            replace(self._inner, num_constraints=self._length)  # names and equalities must fit this length
        elif g.shape[-1] != self._length:
            raise ValueError(f"the constraints have length {g.shape[-1]}, expected {self._length}")
