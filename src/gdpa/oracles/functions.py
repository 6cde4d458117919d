"""Problems from NumPy functions, with exact gradients or finite differences."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from gdpa.base.checks import real_numbers
from gdpa.base.sets import REALS, ConvexSet
from gdpa.base.typing import Array, Vector
from gdpa.core.problem import Evaluation, Problem
from gdpa.numerics.differences import FiniteDifferenceWarning, GroupedDifferences, derivative, precision
from gdpa.numerics.sparse.matrix import DENSE_LIMIT, FEW_ROWS, is_sparse, read
from gdpa.oracles.hessian import HessianDifferences


def from_functions(
    objective: Callable[[Vector], Any],
    constraints: Callable[[Vector], Any] | None = None,
    *,
    gradient: Callable[[Vector], Any] | None = None,
    jacobian: Callable[[Vector], Any] | None = None,
    num_equalities: int = 0,
    domain: ConvexSet = REALS,
    names: tuple[str, ...] | None = None,
    jacobian_sparsity: Any = None,
    hessian: Callable[[Vector, Vector], Any] | None = None,
    hessian_sparsity: Any = None,
) -> Problem:
    """Return a problem from NumPy functions of one point x of shape (d,).

    Args:
        objective: f, x -> number.
        constraints: g, x -> vector of length m, feasible if <= 0; None for no constraints.
        gradient: grad f, x -> (d,). Missing: forward differences inside the bounds of a box, d evaluations of f, with a
            warning.
        jacobian: J, x -> (m, d), dense or a sparse array of SciPy, which stays sparse in problems with more than 50
            variables and 30 constraints. Missing: forward differences, d evaluations of g, with a warning.
        num_equalities: how many of the last constraints must equal zero.
        domain: the set X.
        names: names of the constraints.
        jacobian_sparsity: a sparse array of shape (m, d), nonzero where J may be. Differences then find columns without
            a common row by one evaluation of g.
        hessian: ``hessian(x, w)`` is the Hessian of f + w'g, a sparse array of shape (d, d). It is used if J is
            sparse or there are no constraints.
        hessian_sparsity: a sparse array, nonzero where that Hessian may be. It is then found by differences of
            gradients. Without it this is tried with the pattern of J'J if J is sparse, see `gdpa.oracles.hessian`.

    Every function is called at most once at a point.

    Example:
        >>> problem = from_functions(
        ...     lambda x: x @ x, lambda x: np.array([1 - x[0]]),
        ...     gradient=lambda x: 2 * x, jacobian=lambda x: np.array([[-1.0, 0.0]]))
        >>> problem.evaluate(np.array([1.0, 0.0])).pullback(np.array([2.0])).tolist()
        [0.0, 0.0]
    """
    for name, function in (("gradient", gradient), ("jacobian", jacobian)):
        grouped_too = name == "jacobian" and (constraints is None or jacobian_sparsity is not None)
        if function is None and not grouped_too:
            warnings.warn(
                f"no {name} given: forward differences stand in for it, at d extra evaluations per step and "
                "about half the digits; pass it for speed and accuracy",
                FiniteDifferenceWarning,
                stacklevel=2,
            )

    def values(x: Vector) -> Vector:
        g = real_numbers("constraints", constraints(x)) if constraints is not None else np.zeros(0, dtype=x.dtype)
        if g.ndim != 1:
            raise ValueError(f"constraints must return a vector, got shape {g.shape}; wrap a single value in an array")
        return g

    def number(x: Vector) -> Vector:
        f = real_numbers("objective", objective(x))
        if f.size != 1:
            raise ValueError(f"objective must return one number, got shape {f.shape}")
        return f.reshape(1)

    def differences(name: str, function: Callable[[Vector], Vector], x: Vector, at: Vector) -> Vector:
        in_precision_of_x = lambda y: function(y).astype(x.dtype)  # noqa: E731
        return derivative(in_precision_of_x, x, at.astype(x.dtype), domain=domain, precision=precision(at), name=name)

    grouped = None
    if jacobian_sparsity is not None and jacobian is None:
        grouped = GroupedDifferences(read(jacobian_sparsity, "jacobian_sparsity").pattern)
    found: dict[str, bool] = {}  # whether the Jacobian is sparse, once it is known

    def evaluate(x: Vector) -> Evaluation:
        f, g = number(x), values(x)
        grad: Vector | None = None
        J: Any = None

        def grad_f() -> Vector:
            nonlocal grad
            if grad is None:
                raw = gradient(x) if gradient is not None else differences("objective", number, x, f)[0]
                grad = _shaped("gradient", raw, x.shape, x.dtype)
            return grad

        def jacobian_of_g() -> Any:
            nonlocal J
            if J is not None:
                return J
            shape = (g.shape[0], x.shape[0])
            if jacobian is not None:
                raw = jacobian(x)
            elif grouped is None:
                raw = differences("constraints", values, x, g)
            elif grouped.pattern.shape == shape:
                raw = grouped(values, x, g, "2-point", domain, precision=precision(g))
            else:
                raise ValueError(
                    f"jacobian_sparsity must have shape {shape}, got {grouped.pattern.shape}: "
                    "one row for each constraint, one column for each component of x"
                )
            found["sparse"] = sparse = type(raw) is not np.ndarray and is_sparse(raw) and x.dtype == np.float64
            dense = raw.toarray() if hasattr(raw, "toarray") and not sparse else raw
            J = read(raw, "jacobian", shape) if sparse else _shaped("jacobian", dense, shape, x.dtype)
            return J

        def pullback(w: Array, objective: Any = 1.0) -> Array:
            # np.any costs more than the product itself on short vectors; count_nonzero does not. The product also
            # copies: a gradient function may return one and the same buffer every time.
            out = objective * grad_f() if np.count_nonzero(objective) else np.zeros_like(x)
            return out + w @ jacobian_of_g() if np.count_nonzero(w) else out

        f_x, g_x = f.reshape(()).astype(x.dtype), g.astype(x.dtype)
        if "sparse" not in found and jacobian is not None and g.shape[0] * x.shape[0] > DENSE_LIMIT:
            jacobian_of_g()  # as a dense matrix it would be too large to ask for later
        whole = None if constraints is None else jacobian_of_g

        def second(w: Vector, objective: float = 1.0) -> Any:  # from the Hessian of f + w'g
            assert hessian is not None
            return objective * read(hessian(x, w / objective), "hessian", (x.shape[0], x.shape[0]))

        sparse = grouped is not None or found.get("sparse", False)
        now = Evaluation(f_x, g_x, pullback, whole, hessian=None if hessian is None else second, sparse=sparse)
        if by_differences is not None and (hessian_sparsity is not None or g.shape[0] > FEW_ROWS):
            by_differences.attach(x, now)
        return now

    by_differences = None
    if hessian is None and not (constraints is None and hessian_sparsity is None):
        by_differences = HessianDifferences(evaluate, domain, hessian_sparsity)
    return Problem(evaluate, num_equalities=num_equalities, domain=domain, names=names)


def _shaped(name: str, value: Any, shape: tuple[int, ...], dtype: Any) -> Vector:
    array = real_numbers(name, value).astype(dtype)
    if array.shape != shape:
        raise ValueError(
            f"{name} must return shape {shape}, got {array.shape}: x has {shape[-1]} components, "
            f"so either x or the {name} has the wrong length"
        )
    return array
