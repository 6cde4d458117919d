"""SciPy's door: the signature, the objects and the result of `scipy.optimize.minimize`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from gdpa.canonical import Block, Canonical, Vector, read_bounds, read_constraints
from gdpa.differences import SCHEMES
from gdpa.feasible import SHARE
from gdpa.methods import default_method, get_method
from gdpa.observers import ProgressDisplay
from gdpa.progress import Progress
from gdpa.result import Result, Status
from gdpa.sets import Box
from gdpa.solve import solve
from gdpa.stopping import KKTBelow, MaxSteps, StopRule

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

#: ``status`` of the result, SciPy's way: 0 for success, 99 for a callback's StopIteration as in SLSQP.
STATUS_CODES = {
    Status.CONVERGED: 0,
    Status.MAX_STEPS: 1,
    Status.MAX_ORACLE_CALLS: 2,
    Status.MAX_TIME: 3,
    Status.LOCALLY_INFEASIBLE: 4,
    Status.DIVERGING: 5,
    Status.INVALID_NUMBER: 6,
    Status.STALLED: 7,
    Status.FEASIBLE: 8,
    Status.FAILED: 9,
    Status.INTERRUPTED: 98,
    Status.STOPPED: 99,
}

_COMMON_OPTIONS = ("maxiter", "maxfev", "disp", "feasible")


def minimize(
    fun: Callable[..., Any],
    x0: Any,
    args: Any = (),
    method: str | None = None,
    jac: Any = None,
    hess: Any = None,
    hessp: Any = None,
    bounds: Any = None,
    constraints: Any = (),
    tol: float | None = None,
    callback: Callable[..., Any] | None = None,
    options: dict[str, Any] | None = None,
    **more_options: Any,
) -> OptimizeResult:
    """Minimise ``fun(x, *args)`` under bounds and constraints, called as `scipy.optimize.minimize` is.

    Also a method for SciPy itself: ``scipy.optimize.minimize(..., method=gdpa.minimize, options={...})``.

    Args:
        fun: the objective, ``fun(x, *args)`` -> number; with ``jac=True`` -> (number, gradient).
        x0: the start; lists and integers become floats, a point outside the bounds is projected on them.
        args: further arguments of ``fun`` and ``jac``.
        method: the name of a method, see `gdpa.methods.method_names`.
        jac: the gradient ``jac(x, *args)``, True, or "2-point", "3-point" or "cs" for finite differences, which
            never leave the bounds. None is "2-point".
        hess, hessp: not used; a warning says so.
        bounds: `scipy.optimize.Bounds`, or (low, high) pairs. They are kept at every evaluation.
        constraints: `NonlinearConstraint`, `LinearConstraint`, a dict (``fun >= 0`` for "ineq"), or a list of any.
        tol: the relative KKT tolerance that ``success`` is judged by; default 1e-4.
        callback: called after every step, as ``callback(intermediate_result=...)`` if that is its only parameter,
            else as ``callback(x)``. Raising StopIteration ends the run.
        options: ``maxiter`` (steps, default 10,000), ``maxfev`` (calls of ``fun``, looked at after each step),
            ``disp``, ``feasible`` (end at a point without violation but rounding), and the parameters of the method
            (``alpha``, ``beta``, ``tau``, ... for "gdpa").
            An unknown one raises.
        **more_options: options given by name, which is how SciPy hands them to a custom method.

    Returns:
        An `OptimizeResult`. ``x fun success status message nit nfev njev`` as everywhere in SciPy; ``jac`` (also
        ``grad``) the gradient of the objective; as in trust-constr ``constr``, ``constr_nfev``, ``constr_njev`` and
        ``v`` hold one entry per constraint and a last one for bounds, ``v`` positive at an upper side and negative at a
        lower one, so that ``grad + sum_i J_i^T v_i = 0``; ``optimality`` is the largest entry of that sum,
        ``constr_violation`` (also ``maxcv``) the largest violation. ``multipliers`` are those of the rows g <= 0
        as gdpa solved them (equalities last), ``result`` is the `gdpa.Result` with residuals, history and state.
        ``success`` is True only for a certificate recomputed at ``x``.

    User functions are never called twice at one point.

    Example:
        The projection of (2, 0) on the unit disc.

        >>> from scipy.optimize import NonlinearConstraint
        >>> disc = NonlinearConstraint(lambda x: x @ x, -np.inf, 1)
        >>> found = minimize(lambda x: (x[0] - 2) ** 2 + x[1] ** 2, [0, 1], constraints=disc, method="gdpa",
        ...                  options={"alpha": 0.1, "beta": 5.0, "tau": 0.05}, tol=1e-2)
        >>> found.success, found.x[0].round(2), found.v[0].round(1)
        (True, np.float64(1.0), array([1.]))
    """
    if options is not None and not isinstance(options, dict):
        raise TypeError(f"options must be a dict, got {options!r}")
    options = {**(options or {}), **more_options}
    algorithm_class = get_method(default_method() if method is None else method)
    parameters = _method_options(algorithm_class, options)
    maxiter = _limit("maxiter", options.get("maxiter", 10_000))
    maxfev = None if options.get("maxfev") is None else _limit("maxfev", options["maxfev"])
    if tol is not None and not (isinstance(tol, (int, float)) and tol > 0):
        raise ValueError(f"tol must be a positive number, got {tol!r}")
    tolerance = 1e-4 if tol is None else float(tol)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, got {callback!r}")
    for name, given in (("hess", hess), ("hessp", hessp)):
        if given is not None:
            warnings.warn(f"gdpa.minimize does not use {name}", RuntimeWarning, stacklevel=2)

    start = _start(x0)
    domain = read_bounds(bounds, start.shape[0])
    blocks = read_constraints(constraints, start.shape[0])
    objective = Block("fun", fun, _derivative(jac), args if isinstance(args, tuple) else (args,), size=1)
    algorithm = algorithm_class(**parameters)
    canonical = Canonical(objective, blocks, domain, domain.project(start))

    feasible = bool(options.get("feasible", False))
    rules: list[StopRule] = [KKTBelow(SHARE * tolerance if feasible else tolerance), MaxSteps(maxiter)]
    if maxfev is not None:
        limit = maxfev
        rules.append(lambda progress: Status.MAX_ORACLE_CALLS if objective.nfev >= limit else None)
    precision = float(np.finfo(float).eps) ** 0.5

    def remember(progress: Progress) -> None:
        if progress.best is not None:  # a certificate will ask for this point again, snapped to the boundary
            best = progress.best.x
            canonical.keep(best, domain.snap(best, precision))

    observers: list[Callable[[Progress], None]] = [remember]
    if options.get("disp"):
        observers.append(ProgressDisplay())
    if callback is not None:
        observers.append(_observer(callback, canonical, objective))

    result = solve(
        canonical.problem,
        start,
        algorithm,
        stop=rules,
        tolerance=tolerance,
        observers=observers,
        feasible=feasible,
    )
    found: Any = _report(result, canonical, bounds is not None)
    if options.get("disp"):
        print(found.message)
        print(f"fun {found.fun:.8g}  nit {found.nit}  nfev {found.nfev}  njev {found.njev}")
        print(f"optimality {found.optimality:.2e}  constr_violation {found.constr_violation:.2e}")
    final: OptimizeResult = found
    return final


def _method_options(algorithm_class: type[Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that are the method's own; raise for those nobody knows."""
    own = tuple(field.name for field in fields(algorithm_class) if field.init)
    unknown = [name for name in options if name not in (*_COMMON_OPTIONS, *own)]
    if unknown:
        raise ValueError(
            f"unknown options {unknown}; {algorithm_class.__name__} knows {', '.join((*_COMMON_OPTIONS, *own))}"
        )
    return {name: value for name, value in options.items() if name in own}


def _limit(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer)) or value < 0 or value != int(value):
        raise ValueError(f"{name} must be a nonnegative whole number, got {value!r}")
    return int(value)


def _start(x0: Any) -> Vector:
    start = np.atleast_1d(np.asarray(x0))
    if start.dtype.kind not in "biuf":
        raise TypeError(f"x0 must be real numbers, got dtype {start.dtype}")
    if start.ndim != 1:
        raise ValueError(f"x0 must have one dimension, got shape {start.shape}; flatten it")
    if start.size == 0 or not np.isfinite(start).all():
        raise ValueError(f"x0 must be finite and not empty, got {x0!r}")
    return start.astype(float)


def _derivative(jac: Any) -> Any:
    if jac is None or jac is False:
        return "2-point"
    if jac is True or callable(jac) or jac in SCHEMES:
        return jac
    raise ValueError(f"jac must be callable, True, None or one of {SCHEMES}, got {jac!r}")


def _observer(callback: Callable[..., Any], canonical: Canonical, objective: Block) -> Callable[[Progress], None]:
    """Wrap a callback as SciPy does: by the name of its only parameter."""
    from scipy.optimize import OptimizeResult

    make: Callable[..., Any] = OptimizeResult  # a dict with attributes; its stubs know no field
    try:
        by_name = set(inspect.signature(callback).parameters) == {"intermediate_result"}
    except ValueError:  # some built-ins have no signature
        by_name = False

    def observe(progress: Progress) -> None:
        x = progress.state.x
        if not by_name:
            callback(x.copy())
            return
        point = canonical.point(x)
        callback(
            intermediate_result=make(
                x=x.copy(),
                fun=float(point.values[0][0]),
                nit=progress.step,
                nfev=objective.nfev,
                njev=objective.njev,
                constr_violation=canonical.violation(point),
                v=canonical.split(progress.state.multipliers),
            )
        )

    return observe


def _report(result: Result, canonical: Canonical, bounded: bool) -> Any:
    """Say the native result in SciPy's words."""
    from scipy.optimize import OptimizeResult

    make: Callable[..., Any] = OptimizeResult
    x, certificate = result.x.copy(), result.certificate
    point = canonical.point(x)
    gradient = point.slope(0)[0].copy()
    v, bound_v = canonical.split(result.multipliers), certificate.domain_multipliers.copy()
    objective, *constraints = canonical.blocks
    domain = canonical.domain
    if isinstance(domain, Box) and any(isinstance(block.jac, str) for block in canonical.blocks):
        # Finite differences have no room along a fixed coordinate: what they would say there is not known.
        fixed = domain.lower == domain.upper
        bound_v[fixed] = np.nan
        if isinstance(objective.jac, str):
            gradient[fixed] = np.nan
    violation = canonical.violation(point)
    stopped = result.status is Status.STOPPED
    return make(
        x=x,
        fun=float(point.values[0][0]),
        jac=gradient,
        grad=gradient,
        success=result.success and not stopped,
        status=STATUS_CODES[result.status],
        message=result.message,
        nit=result.steps,
        nfev=objective.nfev,
        njev=objective.njev,
        constr=[value.copy() for value in point.values[1:]] + ([x.copy()] if bounded else []),
        constr_nfev=[block.nfev for block in constraints] + ([0] if bounded else []),
        constr_njev=[block.njev for block in constraints] + ([0] if bounded else []),
        constr_violation=violation,
        maxcv=violation,
        optimality=float(np.abs(domain.tangent(x, -certificate.gradient)).max()),
        v=v + ([bound_v] if bounded else []),
        multipliers=result.multipliers.copy(),
        result=result,
    )
