"""A user's vector function: called, counted and checked in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from gdpa.base.arrays import real_numbers
from gdpa.base.sets import Box, ConvexSet
from gdpa.base.typing import Vector
from gdpa.numerics.differences import SCHEMES, derivative, precision
from gdpa.numerics.grouped_differences import GroupedDifferences
from gdpa.numerics.sparse.matrix import FEW_COLUMNS, Pattern, SparseMatrix, is_sparse, read


class OutOfCallsError(Exception):
    """Raised instead of a call beyond the limit on calls."""


@dataclass(frozen=True)
class Frame:
    """The variables that the bounds leave free; the others stay at their value and are no variables of the problem.

    >>> frame = Frame(np.array([1.0, 2.0, 3.0]), np.array([True, False, True]))
    >>> frame.full(np.array([7.0, 8.0])).tolist()
    [7.0, 2.0, 8.0]
    """

    x: Vector
    free: Vector

    @cached_property
    def is_whole(self) -> bool:
        """Whether all variables are free."""
        return bool(self.free.all())

    def full(self, y: Vector) -> Vector:
        """Return the point of all variables, a fresh array."""
        x = self.x.astype(y.dtype)
        x[self.free] = y
        return x

    def spread(self, columns: Vector, fill: float = np.nan) -> Vector:
        """Return columns for all variables from those of the free ones."""
        if self.is_whole:
            return columns
        matrix = np.full((*columns.shape[:-1], self.x.shape[0]), fill)
        matrix[..., self.free] = columns
        return matrix


@dataclass
class Block:
    """A user's vector function with its sides ``lower <= c(x) <= upper``; counted and checked at every call.

    Attributes:
        name: how messages call it: the argument it came from.
        fun: ``fun(x, *args)``.
        jac: ``jac(x, *args)``, a scheme of finite differences, or True if ``fun`` returns (value, derivative).
        args: further arguments of both.
        lower, upper: the sides; None for the objective, which must be one number.
        relative_step, absolute_step: of finite differences; None for the default.
        sparsity: which entries of the Jacobian may be nonzero; then finite differences find several columns with one
            call, and the Jacobian is sparse.
        hess: ``hess(x, v, *args)``, the Hessian of v'c, or ``hess(x, *args)`` for the objective; None if not given.
        limit: the most calls of ``fun``; None for no limit.
        frame: which variables are free. Derivatives have a column for every variable, NaN for those that are fixed
            and unknown to finite differences.
        size: how many values ``fun`` returns; learned at the first call.
        nfev, njev: calls of ``fun`` (those of finite differences included) and derivatives computed.
        precision: the eps of the numbers that ``fun`` returns.
    """

    name: str
    fun: Callable[..., Any]
    jac: Any = "2-point"
    args: tuple[Any, ...] = ()
    lower: Any = None
    upper: Any = None
    relative_step: Any = None
    size: int | None = None
    absolute_step: float | None = None
    limit: int | None = None
    frame: Frame | None = None
    sparsity: Pattern | None = None
    hess: Any = None
    nfev: int = field(default=0, init=False)
    njev: int = field(default=0, init=False)
    precision: float = field(default=0.0, init=False)
    _differences: GroupedDifferences | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not callable(self.fun):
            raise TypeError(f"{self.name} must be callable, got {self.fun!r}")
        if self.jac is not True and not callable(self.jac) and self.jac not in SCHEMES:
            raise ValueError(f"the jac of {self.name} must be callable or one of {SCHEMES}, got {self.jac!r}")

    def value(self, x: Vector) -> tuple[Vector, Any]:
        """Return c(x), and its derivative if the same call gives it."""
        if self.limit is not None and self.nfev >= self.limit:
            raise OutOfCallsError
        self.nfev += 1
        raw = self.fun(self._full(x), *self.args)
        slope = None
        if self.jac is True:
            try:
                raw, slope = raw
            except (TypeError, ValueError):
                raise ValueError(f"{self.name} must return (value, gradient) when jac=True, got {raw!r}") from None
            self.njev += 1
        is_complex = x.dtype.kind == "c"  # a step of the scheme "cs"
        value = real_numbers(self.name, raw, complex_too=is_complex)
        if value.dtype != np.float64 or not self.precision:
            self.precision = max(self.precision, precision(value))
        if value.ndim != 1 and value.size == 1:  # SciPy takes an array of one value for a number
            value = value.reshape(1)
        if value.ndim != 1 or value.shape[0] != (self.size if self.size is not None else value.shape[0]):
            expected = (
                "a vector" if self.size is None else "one number" if self.lower is None else f"{self.size} values"
            )
            hint = " (The user-provided objective function must return a scalar value.)" if self.lower is None else ""
            raise ValueError(f"{self.name} must return {expected}, got shape {value.shape}{hint}")
        self.size = value.shape[0]
        if not is_complex:
            value = value.astype(float)
        return value, None if slope is None else self._shaped(slope, x)

    def _full(self, x: Vector) -> Vector:
        return x.copy() if self.frame is None else self.frame.full(x)

    def slope(self, x: Vector, value: Vector, domain: ConvexSet) -> Any:
        """Return J(x) with a column for every variable; finite differences stay inside a box."""
        self.njev += 1
        if callable(self.jac):
            return self._shaped(self.jac(self._full(x), *self.args), x)
        sides = (domain.lower, domain.upper) if isinstance(domain, Box) else (-np.inf, np.inf)
        step = self.relative_step
        if step is not None and np.ndim(step) and self.frame is not None:
            step = np.broadcast_to(step, self.frame.x.shape)[self.frame.free]
        if step is None and self.absolute_step is not None:
            with np.errstate(divide="ignore"):
                step = self.absolute_step / np.abs(x)  # at x_j = 0 the default
        if self.sparsity is not None:
            return self._grouped(x, value, sides, step)
        J = derivative(
            lambda y: self.value(y)[0], x, value, self.jac, sides[0], sides[1], step, self.precision, self.name
        )
        return J if self.frame is None else self.frame.spread(J)

    def _grouped(self, x: Vector, value: Vector, sides: tuple[Any, Any], step: Any) -> SparseMatrix | Vector:
        """Return J(x) by differences along groups of columns; fixed variables have no entries."""
        assert self.sparsity is not None
        d = x.shape[0] if self.frame is None else self.frame.x.shape[0]
        if self.sparsity.shape != (len(value), d):
            raise ValueError(
                f"finite_diff_jac_sparsity of {self.name} must have shape {(len(value), d)}, got "
                f"{self.sparsity.shape}: one row per value, one column per variable"
            )
        if self._differences is None:
            ones = SparseMatrix(self.sparsity, np.ones(len(self.sparsity.indices)))
            pattern = self.sparsity if self.frame is None else ones.restricted(self.frame.free).pattern
            self._differences = GroupedDifferences(pattern)
        J = self._differences(lambda y: self.value(y)[0], x, value, self.jac, *sides, step, self.precision)
        if self.frame is not None:
            J = J.spread(np.flatnonzero(self.frame.free), d)
        return J if d > FEW_COLUMNS else J.toarray()

    def _shaped(self, raw: Any, x: Vector) -> Any:
        x = x if self.frame is None else self.frame.x
        if type(raw) is not np.ndarray:
            if is_sparse(raw) and self.lower is not None and x.shape[0] > FEW_COLUMNS:
                return read(raw, f"the jac of {self.name}", (self.size or 0, x.shape[0]))
            raw = raw.toarray() if hasattr(raw, "toarray") else raw
        dense = np.asarray(raw, dtype=float)
        matrix = dense if dense.ndim == 2 else np.atleast_2d(dense)
        if matrix.shape != (self.size, x.shape[0]):
            raise ValueError(
                f"the jac of {self.name} must have shape {(self.size, x.shape[0])}, got {dense.shape}: "
                "one row per value, one column per variable"
            )
        return matrix


class LinearBlock(Block):
    """``lower <= A x <= upper``: nothing to call, nothing to count."""

    def __init__(self, name: str, matrix: Any, lower: Any, upper: Any) -> None:
        super().__init__(name, matrix.__matmul__, lambda x: matrix, (), lower, upper, size=matrix.shape[0])
        self.matrix = matrix

    def value(self, x: Vector) -> tuple[Vector, Any]:
        return self.matrix @ self._full(x), self.matrix
