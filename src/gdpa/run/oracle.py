"""The oracle as the loop sees it: counted, and checked against what it promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gdpa.base.arrays import is_floating, namespace
from gdpa.base.stored import stored
from gdpa.base.typing import Array, Pullback
from gdpa.core.problem import Evaluation, Problem
from gdpa.numerics.sparse.matrix import FEW_COLUMNS, FEW_ROWS, FULL, Pattern, SparseMatrix, empty, union


@stored
@dataclass
class Counts:
    """Oracle calls made: forward and backward passes (a whole Jacobian at the price of one counts as one)."""

    forwards: int = 0
    backwards: int = 0


class CountingOracle:
    """Counts forwards and backwards of a problem and checks the shape of everything that comes back.

    Calls are charged to the method, or, inside ``with oracle.off_account():``, to measuring. A derivative that both ask
    for is charged to the method, so that its account does not depend on what was measured.

    >>> import numpy as np
    >>> problem = Problem(lambda x: Evaluation(x @ x, x[:1], lambda w, objective=1.0: 2 * objective * x))
    >>> oracle = CountingOracle(problem)
    >>> now = oracle.problem.evaluate(np.ones(2))
    >>> _ = now.pullback(np.zeros(1))
    >>> with oracle.off_account():
    ...     _ = now.gradient()
    >>> oracle.method, oracle.measuring
    (Counts(forwards=1, backwards=1), Counts(forwards=0, backwards=1))
    """

    def __init__(self, problem: Problem) -> None:
        self.method, self.measuring = Counts(), Counts()
        self._account = self.method
        self._inner = problem
        self._length = problem.num_constraints
        self._decided: bool | None = None  # whether a sparse Jacobian stays sparse
        self._pattern: Pattern | None = None
        self._hessian_pattern: Pattern | None = None
        self.problem = replace(problem, evaluate=self._evaluate)

    def off_account(self) -> _OffAccount:
        """Charge the calls made inside ``with`` to measuring."""
        return _OffAccount(self)

    @property
    def is_measuring(self) -> bool:
        """Whether calls are charged to measuring now."""
        return self._account is self.measuring

    def _evaluate(self, x: Array) -> Evaluation:
        self._account.forwards += 1
        now = _call(self._inner.evaluate, x)
        if not isinstance(now, Evaluation):
            raise TypeError(f"evaluate must return an Evaluation, got {type(now).__name__} {now!r}")
        f, g, pullback = now
        if getattr(g, "shape", None) != (*x.shape[:-1], self._length) or getattr(f, "shape", None) != x.shape[:-1]:
            self._check_values(x, f, g)

        def counted(w: Array, objective: float | Array = 1.0) -> Array:
            self._account.backwards += 1
            gradient = _call(pullback, w, objective)
            if gradient.shape != x.shape:
                raise ValueError(
                    f"the pullback returned shape {tuple(gradient.shape)} for x of shape {tuple(x.shape)}; "
                    "objective * grad f + J^T w must have the shape of x"
                )
            return gradient

        def whole() -> Array:
            self._account.backwards += now.passes
            J = _call(now.jacobian)
            if J.shape != (*g.shape, x.shape[-1]):
                raise ValueError(
                    f"the jacobian has shape {tuple(J.shape)}, expected {(*g.shape, x.shape[-1])}: "
                    "one row for each constraint, one column for each component of x"
                )
            return self._aligned_jacobian(J, now.has_hessian) if isinstance(J, SparseMatrix) else J

        def hessian(w: Array, objective: float = 1.0) -> Any:
            H = _call(now.hessian, w, objective)
            self._account.forwards += now.hessian_passes - 1  # known after the call: the first one finds the pattern
            self._account.backwards += now.hessian_passes
            return None if H is None else self._aligned_hessian(H)

        large = now.has_hessian and x.shape[-1] > FEW_COLUMNS
        none = (lambda: empty(x.shape[-1])) if large and g.shape[-1] == 0 else None
        return _Charged(
            self,
            f,
            g,
            counted,
            whole if now.has_jacobian and none is None else none,
            now.passes,
            hessian if large else None,
            now.is_sparse and x.shape[-1] > FEW_COLUMNS,
        )

    def _aligned_jacobian(self, J: SparseMatrix, has_hessian: bool) -> Any:
        """Return J in the pattern of the first one, or dense if that one was small or full."""
        rows, columns = J.shape
        if self._decided is None:
            full = len(J.data) > FULL * rows * columns
            few = columns <= FEW_COLUMNS or (rows <= FEW_ROWS and not has_hessian)
            self._decided = not (few or full)
            self._pattern = J.pattern
        if not self._decided or self._pattern is None:
            return J.toarray()
        return J.within(self._pattern, "the jacobian")

    def _aligned_hessian(self, H: SparseMatrix) -> SparseMatrix:
        """Return H in a pattern that grows if it must: sums of sparse arrays have no entries that cancel."""
        seen = self._hessian_pattern
        if seen is None or (not seen.is_same(H.pattern) and (seen.places(H.pattern) < 0).any()):
            seen = self._hessian_pattern = union(H.pattern) if seen is None else union(seen, H.pattern)
        return H.within(seen, "the hessian")

    def _check_values(self, x: Array, f: Array, g: Array) -> None:
        for name, value in (("objective", f), ("constraints", g)):
            if not is_floating(value):
                raise TypeError(
                    f"the {name} must be a floating-point array of the library of x ({namespace(x).__name__}), "
                    f"got {type(value).__name__} {value!r}"
                )
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


class _OffAccount:
    """A context in which the calls of an oracle are charged to measuring."""

    __slots__ = ("_before", "_oracle")

    def __init__(self, oracle: CountingOracle) -> None:
        self._oracle, self._before = oracle, oracle._account

    def __enter__(self) -> None:
        self._oracle._account = self._oracle.measuring

    def __exit__(self, *raised: object) -> None:
        self._oracle._account = self._before


class _Charged(Evaluation):
    """An evaluation whose gradient and Jacobian are the method's to pay if it asks for them, also after measuring."""

    __slots__ = ("_oracle", "_paid_by_measuring")

    def __init__(
        self,
        oracle: CountingOracle,
        objective: Array,
        constraints: Array,
        pullback: Pullback,
        jacobian: Callable[[], Array] | None,
        passes: int,
        hessian: Callable[..., Any] | None,
        sparse: bool,
    ) -> None:
        super().__init__(objective, constraints, pullback, jacobian, passes, hessian, 1, sparse)
        self._oracle = oracle
        self._paid_by_measuring: dict[str, int] = {}

    def gradient(self) -> Array:
        if self._gradient is not None and not self._paid_by_measuring:
            return self._gradient
        return self._charge("gradient", super().gradient)

    def jacobian(self) -> Array:
        if self._jacobian is not None and not self._paid_by_measuring:
            return self._jacobian
        return self._charge("jacobian", super().jacobian)

    def _charge(self, name: str, derivative: Callable[[], Array]) -> Array:
        method, measuring = self._oracle.method, self._oracle.measuring
        before = measuring.backwards
        value = derivative()
        if measuring.backwards > before:
            self._paid_by_measuring[name] = measuring.backwards - before
        elif not self._oracle.is_measuring:
            owed = self._paid_by_measuring.pop(name, 0)
            method.backwards, measuring.backwards = method.backwards + owed, measuring.backwards - owed
        return value


def _call(function: Callable[..., Any], *args: Any) -> Any:
    """Call the problem's own code. A StopIteration in it is an error, not an observer's wish to end the run."""
    try:
        return function(*args)
    except StopIteration as error:
        raise RuntimeError(
            "the problem's own code raised StopIteration; only an observer, a stop rule or a callback ends a run by it"
        ) from error
