"""A user's vector function: called, counted and checked in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gdpa.base.sets import Box, ConvexSet
from gdpa.base.typing import Vector
from gdpa.numerics.differences import EPS_DOUBLE, SCHEMES, GroupedDifferences, derivative, precision
from gdpa.numerics.sparse.matrix import FEW_COLUMNS, Pattern, SparseMatrix, is_sparse, read
from gdpa.oracles.returned import real_numbers


class OutOfCallsError(Exception):
    """Raised instead of a call beyond the limit on calls."""


@dataclass
class Function:
    """A user's vector function with its sides ``lower <= c(x) <= upper``; counted and checked at every call.

    Attributes:
        name: the argument it came from, for messages.
        jac: ``jac(x, *args)``, a scheme of finite differences, or True if ``fun`` returns (value, derivative).
        lower, upper: the sides; None for the objective, which must be one number.
        matrix: A of ``fun(x) = A x``, which is neither called nor counted; None for other functions.
        sparsity: which entries of the Jacobian may be nonzero; then finite differences find several columns with one
            call, and the Jacobian is sparse.
        hess: ``hess(x, v, *args)``, the Hessian of v'c; None if not given.
        limit: the most calls of ``fun``, differences included (``nfev``); None for no limit.
        size: how many values ``fun`` returns, known after the first call.
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
    nfev: int = field(default=0, init=False)
    njev: int = field(default=0, init=False)
    precision: float = field(default=EPS_DOUBLE, init=False)
    _differences: GroupedDifferences | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not callable(self.fun):
            raise TypeError(f"{self.name} must be callable, got {self.fun!r}")
        if self.jac is not True and not callable(self.jac) and self.jac not in SCHEMES:
            options = f"callable, True, None or one of {SCHEMES}"
            raise ValueError(f"the jac of {self.name} must be {options}, got {self.jac!r}")

    def value(self, x: Vector) -> tuple[Vector, Any]:
        """Return c(x), and its derivative if the same call gives it."""
        if self.matrix is not None:
            return self.matrix @ x, self.matrix
        if self.limit is not None and self.nfev >= self.limit:
            raise OutOfCallsError
        self.nfev += 1
        raw = self.fun(x.copy(), *self.args)
        slope = None
        if self.jac is True:
            try:
                raw, slope = raw
            except (TypeError, ValueError):
                raise ValueError(f"{self.name} must return (value, gradient) when jac=True, got {raw!r}") from None
            self.njev += 1
        is_complex = x.dtype.kind == "c"  # a step of the scheme "cs"
        value = real_numbers(self.name, raw, complex_too=is_complex)
        if value.dtype != np.float64:
            self.precision = max(self.precision, precision(value))
        if value.ndim != 1 and value.size == 1:  # SciPy takes an array of one value for a number
            value = value.reshape(1)
        if value.ndim != 1 or self.size not in (None, value.shape[0]):
            self._refuse(value.shape)
        self.size = value.shape[0]
        if not is_complex:
            value = value.astype(float)
        return value, None if slope is None else self._shape(slope, x.shape[0])

    def _refuse(self, shape: tuple[int, ...]) -> None:
        if self.lower is None:
            raise ValueError(
                f"{self.name} must return one number, got shape {shape} "
                "(The user-provided objective function must return a scalar value.)"
            )
        expected = "a vector" if self.size is None else f"{self.size} values"
        remedy = "; flatten it with .ravel()" if len(shape) > 1 else ""
        raise ValueError(f"{self.name} must return {expected}, got shape {shape}{remedy}")

    def slope(self, x: Vector, value: Vector, free: Vector, domain: ConvexSet) -> Any:
        """Return J(x) with a column for every variable.

        Finite differences move the ``free`` variables inside their box ``domain`` and leave the columns of the others
        NaN.
        """
        self.njev += 1
        d = x.shape[0]
        if callable(self.jac):
            return self._shape(self.jac(x.copy(), *self.args), d)
        lower, upper = (domain.lower, domain.upper) if isinstance(domain, Box) else (-np.inf, np.inf)
        step, y = self.relative_step, x[free]
        if np.ndim(step):
            step = np.broadcast_to(step, x.shape)[free]
        elif step is None and self.absolute_step is not None:
            with np.errstate(divide="ignore"):
                step = self.absolute_step / np.abs(y)  # at y_j = 0 the default

        def values(y: Vector) -> Vector:
            moved = x.astype(y.dtype)
            moved[free] = y
            return self.value(moved)[0]

        if self.sparsity is None:
            J: Vector = np.full((len(value), d), np.nan)
            J[:, free] = derivative(values, y, value, self.jac, lower, upper, step, self.precision, self.name)
            return J
        if self._differences is None:
            self._differences = GroupedDifferences(self._free_pattern((len(value), d), free))
        grouped = self._differences(values, y, value, self.jac, lower, upper, step, self.precision)
        grouped = grouped if free.all() else grouped.spread(np.flatnonzero(free), d)
        return grouped if d > FEW_COLUMNS else grouped.toarray()

    def _free_pattern(self, shape: tuple[int, int], free: Vector) -> Pattern:
        """Return the pattern of the columns of the free variables."""
        assert self.sparsity is not None
        if self.sparsity.shape != shape:
            raise ValueError(
                f"finite_diff_jac_sparsity of {self.name} must have shape {shape}, got {self.sparsity.shape}: "
                "one row per value, one column per variable"
            )
        ones = np.ones(len(self.sparsity.indices))
        return self.sparsity if free.all() else SparseMatrix(self.sparsity, ones).restricted(free).pattern

    def _shape(self, raw: Any, d: int) -> Any:
        """Return a derivative of the user as a matrix, dense or sparse."""
        shape = (self.size or 0, d)
        if type(raw) is not np.ndarray:
            if is_sparse(raw) and self.lower is not None and d > FEW_COLUMNS:
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
