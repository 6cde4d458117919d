"""A user's vector function: called, counted and checked in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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


class Frame:
    """The variables that the bounds leave free; the others keep their value and are not variables of the problem.

    >>> frame = Frame(np.array([1.0, 2.0, 3.0]), np.array([True, False, True]))
    >>> frame.fill(np.array([7.0, 8.0])).tolist()
    [7.0, 2.0, 8.0]
    """

    def __init__(self, x: Vector, free: Vector) -> None:
        self.x, self.free, self.is_whole = x, free, bool(free.all())

    def fill(self, y: Vector) -> Vector:
        """Return the point of all variables, a fresh array."""
        if self.is_whole:
            return y.copy()
        x = self.x.astype(y.dtype)
        x[self.free] = y
        return x

    def spread(self, columns: Vector) -> Vector:
        """Return columns for all variables from the columns of the free ones, NaN for the others."""
        if self.is_whole:
            return columns
        matrix = np.full((*columns.shape[:-1], self.x.shape[0]), np.nan)
        matrix[..., self.free] = columns
        return matrix

    def restrict(self, columns: Any) -> Any:
        """Return the columns of the free variables."""
        if self.is_whole:
            return columns
        return columns.restricted(self.free) if isinstance(columns, SparseMatrix) else columns[:, self.free]


@dataclass
class Function:
    """A user's vector function with its sides ``lower <= c(x) <= upper``; counted and checked at every call.

    Attributes:
        name: how messages call it: the argument it came from.
        fun: ``fun(x, *args)``.
        jac: ``jac(x, *args)``, a scheme of finite differences, or True if ``fun`` returns (value, derivative).
        args: further arguments of both.
        lower, upper: the sides; None for the objective, which must be one number.
        matrix: A of ``fun(x) = A x``, which is neither called nor counted; None for other functions.
        relative_step, absolute_step: of finite differences; None for the default.
        sparsity: which entries of the Jacobian may be nonzero; then finite differences find several columns with one
            call, and the Jacobian is sparse.
        hess: ``hess(x, v, *args)``, the Hessian of v'c, or ``hess(x, *args)`` for the objective; None if not given.
        limit: the most calls of ``fun``; None for no limit.
        frame: which variables are free; set by the problem. Derivatives have a column for every variable, NaN for those
            that are fixed and unknown to finite differences.
        size: how many values ``fun`` returns, known after the first call.
        nfev, njev: calls of ``fun`` (including finite differences) and derivatives computed.
        precision: the eps of the numbers that ``fun`` returns.
    """

    name: str
    fun: Callable[..., Any]
    jac: Any = "2-point"
    args: tuple[Any, ...] = ()
    lower: Any = None
    upper: Any = None
    matrix: Any = None
    relative_step: Any = None
    absolute_step: float | None = None
    sparsity: Pattern | None = None
    hess: Any = None
    limit: int | None = None
    size: int | None = None
    frame: Frame = field(init=False)
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
        if self.matrix is not None:
            return self.matrix @ self.frame.fill(x), self.matrix
        if self.limit is not None and self.nfev >= self.limit:
            raise OutOfCallsError
        self.nfev += 1
        raw = self.fun(self.frame.fill(x), *self.args)
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
        if value.ndim != 1 or self.size not in (None, value.shape[0]):
            self._refuse(value.shape)
        self.size = value.shape[0]
        if not is_complex:
            value = value.astype(float)
        return value, None if slope is None else self._shape(slope)

    def _refuse(self, shape: tuple[int, ...]) -> None:
        if self.lower is None:
            raise ValueError(
                f"{self.name} must return one number, got shape {shape} "
                "(The user-provided objective function must return a scalar value.)"
            )
        expected = "a vector" if self.size is None else f"{self.size} values"
        remedy = "; flatten it with .ravel()" if len(shape) > 1 else ""
        raise ValueError(f"{self.name} must return {expected}, got shape {shape}{remedy}")

    def slope(self, x: Vector, value: Vector, domain: ConvexSet) -> Any:
        """Return J(x) with a column for every variable; finite differences stay inside a box."""
        self.njev += 1
        frame = self.frame
        if callable(self.jac):
            return self._shape(self.jac(frame.fill(x), *self.args))
        lower, upper = (domain.lower, domain.upper) if isinstance(domain, Box) else (-np.inf, np.inf)
        step = self.relative_step
        if step is not None and np.ndim(step) and not frame.is_whole:
            step = np.broadcast_to(step, frame.x.shape)[frame.free]
        if step is None and self.absolute_step is not None:
            with np.errstate(divide="ignore"):
                step = self.absolute_step / np.abs(x)  # at x_j = 0 the default

        def values(y: Vector) -> Vector:
            return self.value(y)[0]

        if self.sparsity is None:
            J = derivative(values, x, value, self.jac, lower, upper, step, self.precision, self.name)
            return frame.spread(J)
        if self._differences is None:
            self._differences = GroupedDifferences(self._free_pattern(len(value)))
        grouped = self._differences(values, x, value, self.jac, lower, upper, step, self.precision)
        d = frame.x.shape[0]
        grouped = grouped if frame.is_whole else grouped.spread(np.flatnonzero(frame.free), d)
        return grouped if d > FEW_COLUMNS else grouped.toarray()

    def _free_pattern(self, rows: int) -> Pattern:
        """Return the pattern of the columns of the free variables."""
        assert self.sparsity is not None
        shape = (rows, self.frame.x.shape[0])
        if self.sparsity.shape != shape:
            raise ValueError(
                f"finite_diff_jac_sparsity of {self.name} must have shape {shape}, got {self.sparsity.shape}: "
                "one row per value, one column per variable"
            )
        if self.frame.is_whole:
            return self.sparsity
        return SparseMatrix(self.sparsity, np.ones(len(self.sparsity.indices))).restricted(self.frame.free).pattern

    def _shape(self, raw: Any) -> Any:
        """Return a derivative of the user as a matrix, dense or sparse."""
        shape = (self.size or 0, self.frame.x.shape[0])
        if type(raw) is not np.ndarray:
            if is_sparse(raw) and self.lower is not None and shape[1] > FEW_COLUMNS:
                return read(raw, f"the jac of {self.name}", shape)
            raw = raw.toarray() if hasattr(raw, "toarray") else raw
        dense = np.asarray(raw, dtype=float)
        matrix = dense if dense.ndim == 2 else np.atleast_2d(dense)
        if matrix.shape != shape:
            raise ValueError(
                f"the jac of {self.name} must have shape {shape}, got {dense.shape}: "
                "one row per value, one column per variable"
            )
        return matrix
