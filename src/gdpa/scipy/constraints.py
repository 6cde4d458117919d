"""SciPy's constraint objects as one `Problem`: g(x) <= 0 first, equalities last, bounds as the set X.

The rows of g are selected from the values of all constraints::

    g = sign * (c[index] - side)       c = the values of all constraints, one after another

A component with two finite sides gives two rows (sign +1 at its upper side, -1 at its lower), one with equal sides
gives an equality row, one with none gives no row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from gdpa.base.checks import real_numbers
from gdpa.base.sets import REALS, Box, ConvexSet
from gdpa.base.text import warn_user
from gdpa.base.typing import Vector
from gdpa.core.problem import Evaluation, Problem
from gdpa.numerics.differences import EPS_DOUBLE, SCHEMES, GroupedDifferences, derivative, precision
from gdpa.numerics.sparse.matrix import FEW_COLUMNS, Pattern, SparseMatrix, is_sparse, read

#: The most numbers that remembered points may hold.
_MEMORY = 2**23


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
    args: Any = ()
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
        self.args = self.args if isinstance(self.args, tuple) else (self.args,)  # SciPy takes a single one, too
        if not callable(self.fun):
            raise TypeError(f"{self.name} must be callable, got {self.fun!r}")
        if self.jac is not True and not callable(self.jac) and self.jac not in SCHEMES:
            options = f"callable, True, None or one of {SCHEMES}"
            raise ValueError(f"the jac of {self.name} must be {options}, got {self.jac!r}")
        if self.lower is None:
            return
        try:
            lower, upper = np.broadcast_arrays(np.asarray(self.lower, dtype=float), np.asarray(self.upper, dtype=float))
        except ValueError as error:
            raise ValueError(f"lb and ub of {self.name} do not fit each other: {error}") from None
        bad = np.isnan(lower) | np.isnan(upper) | (lower > upper) | np.isposinf(lower) | np.isneginf(upper)
        if bad.any():
            i = np.unravel_index(int(np.argmax(bad)), bad.shape)
            raise ValueError(f"lb <= c(x) <= ub of {self.name} leaves no value: lb={lower[i]}, ub={upper[i]}")
        if lower.ndim > 1:
            raise ValueError(f"lb and ub of {self.name} have shape {lower.shape}, expected a number or one per value")
        self.lower, self.upper = (lower, upper) if lower.ndim else (float(lower), float(upper))

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
            if self.lower is None:
                raise ValueError(
                    f"{self.name} must return one number, got shape {value.shape} "
                    "(The user-provided objective function must return a scalar value.)"
                )
            expected = "a vector" if self.size is None else f"{self.size} values"
            remedy = "; flatten it with .ravel()" if value.ndim > 1 else ""
            raise ValueError(f"{self.name} must return {expected}, got shape {value.shape}{remedy}")
        self.size = value.shape[0]
        if not is_complex:
            value = value.astype(float)
        return value, None if slope is None else self._shape(slope, x.shape[0])

    def slope(self, x: Vector, value: Vector, free: Vector, domain: ConvexSet) -> Any:
        """Return J(x) with a column for every variable.

        Finite differences move the ``free`` variables inside their box ``domain`` and leave the columns of the others
        NaN.
        """
        self.njev += 1
        d = x.shape[0]
        if callable(self.jac):
            return self._shape(self.jac(x.copy(), *self.args), d)
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
            J[:, free] = derivative(values, y, value, self.jac, domain, step, self.precision, self.name)
            return J
        if self._differences is None:
            if self.sparsity.shape != (len(value), d):
                raise ValueError(
                    f"finite_diff_jac_sparsity of {self.name} must have shape {(len(value), d)}, got "
                    f"{self.sparsity.shape}: one row per value, one column per variable"
                )
            ones = np.ones(len(self.sparsity.indices))
            self._differences = GroupedDifferences(SparseMatrix(self.sparsity, ones).restricted(free).pattern)
        grouped = self._differences(values, y, value, self.jac, domain, step, self.precision)
        grouped = grouped if free.all() else grouped.spread(np.flatnonzero(free), d)
        return grouped if d > FEW_COLUMNS else grouped.toarray()

    def second(self, x: Vector, *v: Vector) -> Any:
        """Return the Hessian at x that the user gave, of v'c or of the objective, as a sparse array of SciPy."""
        assert self.hess is not None
        name = "hess" if self.lower is None else f"the hess of {self.name}"
        return read(self.hess(x.copy(), *v, *self.args), name, x.shape * 2).csr

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


def read_bounds(bounds: Any, dimension: int) -> ConvexSet:
    """Return the box of a SciPy ``Bounds`` or of a sequence of (low, high) pairs with None for no bound."""
    if bounds is None:
        return REALS
    if hasattr(bounds, "lb") and hasattr(bounds, "ub"):
        lower, upper = np.asarray(bounds.lb, dtype=float), np.asarray(bounds.ub, dtype=float)
    else:
        pairs: list[Any] = list(bounds) if hasattr(bounds, "__iter__") else [()]
        if not pairs:  # of SciPy's fmin functions: there are none
            return REALS
        if any(not hasattr(pair, "__len__") or len(pair) != 2 for pair in pairs):
            raise ValueError(
                f"bounds must be a Bounds object or {dimension} pairs (low, high), one per variable; got {bounds!r}"
            )
        lower = np.array([_side(low, -np.inf) for low, _ in pairs])
        upper = np.array([_side(high, np.inf) for _, high in pairs])
    problem = f"bounds do not fit the {dimension} variables of x0"
    try:
        lower, upper = np.broadcast_to(lower, (dimension,)), np.broadcast_to(upper, (dimension,))
    except ValueError:
        reason = "The number of bounds is not compatible with the length of `x0`."  # in SciPy's words, as below
        raise ValueError(f"{problem}: {reason} Got {lower.size} lower and {upper.size} upper bounds") from None
    if np.any(upper < lower):
        reason = "An upper bound is less than the corresponding lower bound."
        raise ValueError(f"{problem}: {reason} Swap or relax them at index {int(np.argmax(upper < lower))}")
    if np.isneginf(lower).all() and np.isposinf(upper).all():
        return REALS
    return Box(lower, upper)


def _side(value: Any, default: float) -> float:
    """Return one bound as a number: None is the default, an array of one number that number."""
    return default if value is None else float(np.asarray(value, dtype=float).item())


def read_constraints(constraints: Any, dimension: int) -> list[Function]:
    """Return one function for each SciPy constraint: ``NonlinearConstraint``, ``LinearConstraint`` or a dict."""
    if constraints is None:
        return []
    named: dict[str, Any] = {"constraints": constraints}
    if not (isinstance(constraints, Mapping) or hasattr(constraints, "keep_feasible") or callable(constraints)):
        try:
            named = {f"constraints[{i}]": constraint for i, constraint in enumerate(constraints)}
        except TypeError:
            raise TypeError(f"constraints must be a SciPy constraint or a list of them, got {constraints!r}") from None
    found = []
    for name, constraint in named.items():
        is_dict = isinstance(constraint, Mapping)
        found.append(_read_dict(name, constraint) if is_dict else _read_object(name, constraint, dimension))
    return found


def _read_object(name: str, constraint: Any, dimension: int) -> Function:
    from scipy.optimize import BFGS, LinearConstraint, NonlinearConstraint

    if not isinstance(constraint, (NonlinearConstraint, LinearConstraint)):
        remedy = "bounds on x go to the argument bounds"
        if callable(constraint):
            remedy = "write {'type': 'ineq', 'fun': your function} for fun(x) >= 0, or 'eq' for fun(x) = 0"
        kinds = "a NonlinearConstraint, a LinearConstraint or a dict"
        raise TypeError(f"{name} must be {kinds}, got {constraint!r}; {remedy}")
    ignored = ["keep_feasible"] if np.any(constraint.keep_feasible) else []
    sides: dict[str, Any] = {"lower": constraint.lb, "upper": constraint.ub}
    if isinstance(constraint, LinearConstraint):
        A = _read_matrix(name, constraint.A, dimension)
        function = Function(f"{name}.A", A.__matmul__, lambda x: A, matrix=A, size=A.shape[0], **sides)
    else:
        sparsity: Any = constraint.finite_diff_jac_sparsity
        if sparsity is not None and isinstance(constraint.jac, str):
            sparsity = read(sparsity, f"{name}.finite_diff_jac_sparsity").pattern
        if not (constraint.hess is None or callable(constraint.hess) or isinstance(constraint.hess, BFGS)):
            ignored.append("hess")
        function = Function(
            f"{name}.fun",
            constraint.fun,
            constraint.jac,
            relative_step=constraint.finite_diff_rel_step,
            sparsity=sparsity if isinstance(sparsity, Pattern) else None,
            hess=constraint.hess if callable(constraint.hess) else None,
            **sides,
        )
    if ignored:
        warn_optimize(f"{name}: {', '.join(ignored)} has no effect in gdpa.minimize")
    return function


def warn_optimize(text: str) -> None:
    """Warn as SciPy's methods do about input that they ignore."""
    from scipy.optimize import OptimizeWarning

    warn_user(text, OptimizeWarning)


def _read_matrix(name: str, A: Any, dimension: int) -> Any:
    """Return the matrix of a linear constraint, sparse if it is given so and has many columns."""
    if is_sparse(A) and dimension > FEW_COLUMNS:
        sparse = read(A, f"{name}.A", (A.shape[0], dimension))
        if not np.isfinite(sparse.data).all():
            k = int(np.argmax(~np.isfinite(sparse.data)))
            place = (int(sparse.pattern.rows[k]), int(sparse.pattern.indices[k]))
            raise ValueError(f"{name}.A must be a finite matrix, got {sparse.data[k]} at {place}; correct that entry")
        return sparse
    matrix = np.atleast_2d(np.asarray(A.toarray() if hasattr(A, "toarray") else A, dtype=float))
    if matrix.ndim != 2 or matrix.shape[1] != dimension or not np.isfinite(matrix).all():
        raise ValueError(
            f"{name}.A must be a finite matrix with {dimension} columns, one per variable; got shape {matrix.shape}"
        )
    return matrix


def _read_dict(name: str, constraint: Mapping[str, Any]) -> Function:
    unknown = set(constraint) - {"type", "fun", "jac", "args"}
    if unknown:
        warn_optimize(f"{name}: the keys {sorted(unknown)} have no effect; a dict constraint has type, fun, jac, args")
    kind = str(constraint.get("type", "")).lower()
    if kind not in ("ineq", "eq"):
        raise ValueError(f"{name}['type'] must be 'ineq' (fun >= 0) or 'eq' (fun = 0), got {constraint.get('type')!r}")
    sign, upper = (">=", np.inf) if kind == "ineq" else ("=", 0.0)
    if "fun" not in constraint:
        raise ValueError(f"{name} has no 'fun'; give the function whose value must be {sign} 0")
    jac, args = constraint.get("jac") or "2-point", constraint.get("args", ())
    return Function(f"{name}['fun']", constraint["fun"], jac, args, lower=0.0, upper=upper)


class Point:
    """The value and the derivative of every function at one x, each computed once."""

    def __init__(self, canonical: Canonical, x: Vector) -> None:
        self.full, self._canonical = (x if canonical.all_free else canonical.fill(x)), canonical
        self.values: list[Vector] = []
        self._slopes: list[Any] = []
        for function in canonical.functions:
            value, slope = function.value(self.full)
            self.values.append(value)
            self._slopes.append(slope)
        self.constraints = np.concatenate([np.zeros(0), *self.values[1:]])

    def slope(self, i: int, full: bool = False) -> Any:
        """Return the derivative of function ``i`` with a column for every free variable, or for all if ``full``."""
        slope, canonical = self._slopes[i], self._canonical
        if slope is None:
            slope = canonical.functions[i].slope(self.full, self.values[i], canonical.free, canonical.domain)
            self._slopes[i] = slope
        if full or canonical.all_free:
            return slope
        return slope.restricted(canonical.free) if isinstance(slope, SparseMatrix) else slope[:, canonical.free]

    @property
    def is_sparse(self) -> bool:
        """Whether the derivative of a constraint is known to be sparse."""
        return SparseMatrix in map(type, self._slopes[1:])

    def find_not_finite(self) -> str:
        """Return which function or derivative is not finite, as half a sentence; "" if all are."""
        for i, function in enumerate(self._canonical.functions):
            if not np.isfinite(self.values[i]).all():
                return f"{function.name} is {self.values[i] if i else self.values[0][0]}"
            slope = self.slope(i)
            if not np.isfinite(slope.data if isinstance(slope, SparseMatrix) else slope).all():
                return f"the derivative of {function.name} is not finite"
        return ""


class Canonical:
    """The problem of an objective and constraint functions on a set X, started at ``x0``.

    Variables that a box fixes (lower = upper) are not variables of the problem; `fill` puts them back.
    Functions are called at points of X only: a method may pass its boundary by a rounding.
    Calls every function once, at ``x0``: only its values show how many rows a constraint with scalar sides has.
    User functions are never called twice at one point: the last points are remembered, and the points of oracle calls
    that are still in use.

    Attributes:
        free, all_free: which variables the bounds leave free, and whether all are.
        bounded: whether the result has an entry for bounds.
        start: the point x0.
        lower, upper: the sides of all values.
        index, sign, side: the rows of g, see the module.
        attach_hessian: gives an oracle call at a point its second derivatives; None if there are none.
    """

    def __init__(
        self, objective: Function, constraints: list[Function], domain: ConvexSet, x0: Vector, bounded: bool
    ) -> None:
        self.bounded = bounded
        self.functions = [objective, *constraints]
        self._all = x0 = domain.project(x0)
        self.free = np.ones(x0.shape, dtype=bool)
        if isinstance(domain, Box):
            self.free = domain.lower != domain.upper
        self.all_free = bool(self.free.all())
        if isinstance(domain, Box) and not self.all_free:
            x0, domain = x0[self.free], Box(domain.lower[self.free], domain.upper[self.free])
        self.domain, self.x0 = domain, x0
        self.attach_hessian: Callable[[Vector, Evaluation], None] | None = None
        self._held: WeakValueDictionary[bytes, Point] = WeakValueDictionary()
        self._recent: deque[Point] = deque(maxlen=4)
        self.start = self.point(x0)
        sizes = list(map(len, self.start.values[1:]))
        self._recent = deque(maxlen=int(min(64, max(4, _MEMORY // ((1 + sum(sizes)) * (1 + x0.shape[0]))))))
        self._ends = list(accumulate(sizes, initial=0))
        self.lower, self.upper = np.zeros(sum(sizes)), np.zeros(sum(sizes))
        for function, (first, last) in zip(constraints, pairwise(self._ends), strict=True):
            try:
                self.lower[first:last], self.upper[first:last] = function.lower, function.upper
            except ValueError:
                raise ValueError(
                    f"lb and ub of {function.name} have shape {np.shape(function.lower)} for {last - first} values"
                ) from None
        equal = np.repeat(self.lower == self.upper, 2)
        sides, signs = np.stack([self.upper, self.lower], axis=1).ravel(), np.tile([1.0, -1.0], len(self.lower))
        rows = np.flatnonzero(np.isfinite(sides) & ~(equal & (signs < 0)))
        rows = rows[np.argsort(equal[rows], kind="stable")]  # inequalities in the order given, then equalities
        self.index, self.sign, self.side = rows // 2, signs[rows], sides[rows]
        self.problem = Problem(
            self._evaluate,
            num_constraints=len(rows),
            num_equalities=int(equal[rows].sum()),
            domain=domain,
            names=tuple(map(self._row_name, self.index.tolist(), equal[rows].tolist(), self.sign.tolist())),
        )

    def _row_name(self, i: int, equal: bool, sign: float) -> str:
        k = bisect_right(self._ends, i) - 1
        side = "=" if equal else "<= ub" if sign > 0 else ">= lb"
        return f"{self.functions[1 + k].name}[{i - self._ends[k]}] {side}"

    def fill(self, y: Vector) -> Vector:
        """Return the point of all variables from the free ones, a fresh array."""
        if self.all_free:
            return y.copy()
        x: Vector = self._all.copy()
        x[self.free] = y
        return x

    def point(self, x: Vector) -> Point:
        """Return the values at ``x``, calling the functions only if it is new."""
        if self.domain is not REALS:
            x = self.domain.project(x)
        key = (x + 0.0).tobytes()  # -0.0 and 0.0 are one point
        found = self._held.get(key)
        if found is None:
            found = self._held[key] = Point(self, x)
        if not self._recent or self._recent[-1] is not found:
            self._recent.append(found)
        return found

    def _evaluate(self, x: Vector) -> Evaluation:
        point = self.point(x)
        g = self.sign * (point.constraints[self.index] - self.side)

        def pullback(w: Vector, objective: Any = 1.0) -> Vector:
            out: Vector = objective * point.slope(0)[0] if objective != 0 else np.zeros_like(x)
            if (w != 0).any():
                for i, v in enumerate(self.split(w), start=1):
                    if v.any():  # a constraint without weight needs no Jacobian
                        out = out + v @ point.slope(i)
            return out

        sparse = self.free.shape[0] > FEW_COLUMNS and self.start.is_sparse
        now = Evaluation(point.values[0][0], g, pullback, partial(self._jacobian, point), sparse=sparse)
        if self.attach_hessian is not None:
            self.attach_hessian(x, now)
        return now

    def _jacobian(self, point: Point) -> Any:
        slopes = [point.slope(i) for i in range(1, len(self.functions))]  # map would swallow a StopIteration
        if SparseMatrix in map(type, slopes):
            from scipy.sparse import vstack

            stacked: Any = vstack([read(slope).csr for slope in slopes], format="csr")
            return self.sign[:, None] * read(stacked[self.index])
        J = np.concatenate([np.zeros((0, self.x0.shape[0])), *slopes])
        return self.sign[:, None] * J[self.index]

    def split(self, multipliers: Vector) -> list[Vector]:
        """Return the net multipliers, one array per constraint: positive at an upper side, negative at a lower."""
        net = np.bincount(self.index, self.sign * multipliers, minlength=self._ends[-1])
        return [net[first:last] for first, last in pairwise(self._ends)]

    def to_slsqp(self, multipliers: Vector) -> Vector:
        """Return the multipliers as SLSQP's result has them: grad f - sum m grad c = 0, equalities first."""
        order, sign = self._slsqp_rows()
        return np.asarray((sign * multipliers)[order])

    def from_slsqp(self, multipliers: Vector) -> Vector:
        """Return the multipliers of the rows, the inverse of `to_slsqp`."""
        order, sign = self._slsqp_rows()
        if multipliers.shape != order.shape:
            raise ValueError(
                f"multipliers0 must have {order.shape[0]} entries, as result.multipliers of this problem has; "
                f"got shape {multipliers.shape}"
            )
        return np.asarray(sign * multipliers[np.argsort(order)])

    def _slsqp_rows(self) -> tuple[Vector, Vector]:
        """Return the places of the rows in SLSQP's order, and the sign of each: -1 for equalities.

        Of the inequalities of a constraint the lower sides come first; constraints with equalities, too, come last.
        """
        inequality = np.arange(len(self.index)) < len(self.index) - self.problem.num_equalities
        block = np.searchsorted(self._ends, self.index, side="right")
        mixed = np.isin(block, block[~inequality]) if self.problem.num_equalities else ~inequality
        order = np.lexsort((self.index, self.sign > 0, block, mixed, inequality))
        return order, np.where(inequality, 1.0, -1.0)

    def violation(self, point: Point) -> float:
        """Return the largest amount by which a side is passed at a point."""
        c = point.constraints
        below, above = np.isfinite(self.lower), np.isfinite(self.upper)
        passed = np.concatenate([self.lower[below] - c[below], c[above] - self.upper[above]])
        return float(np.max(passed, initial=0.0))
