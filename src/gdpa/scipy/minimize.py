"""SciPy's interface: the signature, the objects and the result of `scipy.optimize.minimize`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gdpa.base.signals import finishing_the_step
from gdpa.base.status import Status
from gdpa.base.typing import Vector
from gdpa.core.problem import Evaluation
from gdpa.methods import as_algorithm, default_method
from gdpa.methods.base import Algorithm
from gdpa.numerics.differences import SCHEMES
from gdpa.numerics.sparse.matrix import FEW_COLUMNS, FEW_ROWS, SparseMatrix, is_sparse, read
from gdpa.oracles.derivative_check import check_derivatives
from gdpa.oracles.hessian import HessianDifferences
from gdpa.run.feasible import restore
from gdpa.run.progress import Progress
from gdpa.run.result import Result
from gdpa.run.solve import solve
from gdpa.run.stopping import KKTBelow, MaxSteps, StopRule
from gdpa.scipy.blocks import Block, LinearBlock, OutOfCallsError
from gdpa.scipy.canonical import Canonical, read_bounds, read_constraints
from gdpa.scipy.options import read_options

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

#: ``status`` of the result. As in SLSQP, 0 is success, 9 the limit on steps and 99 a callback's StopIteration.
STATUS_CODES = {
    Status.CONVERGED: 0,
    Status.FAILED: 1,
    Status.MAX_ORACLE_CALLS: 2,
    Status.MAX_TIME: 3,
    Status.LOCALLY_INFEASIBLE: 4,
    Status.DIVERGING: 5,
    Status.INVALID_NUMBER: 6,
    Status.STALLED: 7,
    Status.FEASIBLE: 8,
    Status.MAX_STEPS: 9,
    Status.INTERRUPTED: 98,
    Status.STOPPED: 99,
}

#: Without ``tol``, a run whose certificate holds makes up to this many further steps ...
POLISHING = 3
#: ... until its residuals are this much smaller than the tolerance: a few evaluations for three more digits.
POLISHED = 1e-3
#: The words SciPy's methods have for a callback that ends the run.
_STOPPED = "`callback` raised `StopIteration`."
_FIXED = "All independent variables were fixed by bounds"


@finishing_the_step
def minimize(
    fun: Callable[..., Any],
    x0: Any = None,
    args: Any = (),
    method: str | Algorithm[Any] | None = None,
    jac: Any = None,
    hess: Any = None,
    hessp: Any = None,
    bounds: Any = None,
    constraints: Any = (),
    tol: float | None = None,
    callback: Callable[..., Any] | None = None,
    options: dict[str, Any] | None = None,
    after: Any = None,
    **more_options: Any,
) -> OptimizeResult:
    """Minimize ``fun(x, *args)`` under bounds and constraints, called as `scipy.optimize.minimize` is.

    Also a method for SciPy itself: ``scipy.optimize.minimize(..., method=gdpa.minimize, options={...})``.

    Args:
        fun: the objective, ``fun(x, *args)`` -> number; with ``jac=True`` -> (number, gradient).
        x0: the start; lists and integers become floats, a point outside the bounds is projected on them. None is
            ``after.x``.
        args: further arguments of ``fun`` and ``jac``.
        method: the name of a method, see `gdpa.methods.method_names`, or a method such as ``gdpa.GDPA(tau=0.05)``.
            None is "adaptive-gdpa".
        jac: the gradient ``jac(x, *args)``, True, or "2-point", "3-point" or "cs" for finite differences, which
            never leave the bounds. None is "2-point".
        hess: the Hessian of ``fun``, ``hess(x, *args)``. It is used if it is a sparse array and every nonlinear
            constraint has its ``hess``, too; otherwise a warning says so.
        hessp: not used; a warning says so.
        bounds: `scipy.optimize.Bounds`, or (low, high) pairs. They are kept at every evaluation, to the last bit.
            A variable with equal bounds is fixed: it is taken out of the problem and put back into the result.
        constraints: `NonlinearConstraint`, `LinearConstraint`, a dict (``fun >= 0`` for "ineq"), or a list of any.
        tol: the relative KKT tolerance that ``success`` is judged by. Default 1e-6, and then up to `POLISHING` steps
            more for further digits (none with ``maxfev``).
        callback: called after every step, as ``callback(intermediate_result=...)`` if that is its only parameter, as
            ``callback(x, intermediate_result)`` if it needs two arguments, else as ``callback(x)``. Raising
            StopIteration (or, of two arguments, returning True) ends the run.
        options: ``maxiter`` (steps, default 10,000), ``maxfev`` (the most calls of ``fun``), ``disp`` (as `gdpa.solve`
            takes it; a summary follows), ``check`` (raise if `check_derivatives` finds derivatives at ``x0`` that
            differences contradict), ``x_scale`` (the lengths of the variables, see `gdpa.core.units`), ``multipliers0``
            (those to begin with, ordered as ``multipliers`` of the result), ``feasible`` (whether an answer is moved to
            the nearest point that is feasible to rounding, see `gdpa.run.feasible`; default True, but a start that is
            certified stays), ``eps`` and
            ``finite_diff_rel_step`` (absolute and relative step of differences), ``best_of`` and ``seed`` (several
            starts, see `gdpa.solve`; ``maxfev`` limits them together),
            ``checkpoint``, ``every``, ``keep`` and ``resume`` (saves on the way and before SIGTERM, see `gdpa.solve`),
            ``hess_sparsity`` (a sparse array: which second derivatives of the Lagrangian may be nonzero, to find them
            by differences), and the parameters of the method (``alpha``, ``beta``, ``tau``, ... for "gdpa"). Without
            ``tol``, the smallest of SciPy's ``ftol``, ``gtol`` and ``xtol`` is the tolerance. Further options of
            SciPy's methods have no effect; an unknown name raises.
        after: the result of `minimize` for a problem of the same shape with other limits or other data. The run begins
            with its units, curvature, penalty and multipliers; see `gdpa.solve`.
        **more_options: options given by name, which is how SciPy hands them to a custom method.

    Returns:
        An `OptimizeResult` with these entries.

        - ``x fun success status message nit nfev njev``: as in all of SciPy. ``success`` is True only for a certificate
          recomputed at ``x``. If a function is not finite at ``x0``, there is no success.
        - ``jac``, also ``grad``: the gradient of the objective.
        - ``constr``, ``constr_nfev``, ``constr_njev``, ``v``: as in trust-constr, one entry per constraint, with one
          for bounds. ``v`` is positive at an upper side and negative at a lower one: ``grad + sum_i J_i^T v_i = 0``.
        - ``optimality``: the largest entry of that sum. ``constr_violation``, also ``maxcv``: the largest violation.
        - ``multipliers``: in the order and with the signs of SLSQP. Equalities come first, then inequalities
          ``c(x) >= 0``, with ``grad - sum_i multipliers_i grad c_i = 0``.
        - ``result``: the `gdpa.Result` in the free variables, with residuals, history and run; None if no step was
          possible.

    User functions are never called twice at one point. Ctrl-C ends the run after its step and returns what there is.

    Example:
        The projection of (2, 0) on the unit disc.

        >>> from scipy.optimize import NonlinearConstraint
        >>> disc = NonlinearConstraint(lambda x: x @ x, -np.inf, 1)
        >>> found = minimize(lambda x: (x[0] - 2) ** 2 + x[1] ** 2, [0, 1], constraints=disc, method="gdpa",
        ...                  options={"alpha": 0.1, "beta": 5.0, "tau": 0.05}, tol=1e-2)
        >>> found.success, found.x[0].round(2), found.v[0].round(1)
        (True, np.float64(1.0), array([1.]))

        Limits one after the other.

        >>> def within(radius):
        ...     return NonlinearConstraint(lambda x: x @ x, -np.inf, radius**2, jac=lambda x: 2 * x)
        >>> first = minimize(lambda x: (x[0] - 2) ** 2 + x[1] ** 2, [0.5, 0.5], constraints=within(1.0))
        >>> minimize(lambda x: (x[0] - 2) ** 2 + x[1] ** 2, constraints=within(1.1), after=first).x[0].round(3)
        np.float64(1.1)
    """
    if options is not None and not isinstance(options, dict):
        raise TypeError(f"options must be a dict, got {options!r}")
    method = default_method() if method is None else method
    algorithm = as_algorithm("method", method)
    settings = read_options(type(algorithm), {**(options or {}), **more_options}, tol)
    algorithm = as_algorithm("method", method, settings.parameters)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, got {callback!r}")
    if hessp is not None:
        warnings.warn("gdpa.minimize does not use Hessian information (hessp)", RuntimeWarning, stacklevel=2)

    before = after if after is None else _native(after)
    start = _start(after.x if x0 is None and after is not None else x0)
    domain = read_bounds(bounds, start.shape[0])
    blocks = read_constraints(constraints, start.shape[0])
    objective = Block("fun", fun, _derivative(jac), args if isinstance(args, tuple) else (args,), size=1)
    objective.limit = None if settings.maxfev is None else max(1, settings.maxfev)
    for block in (objective, *blocks):
        if block.relative_step is None and not isinstance(block, LinearBlock):
            block.relative_step, block.absolute_step = settings.relative_step, settings.absolute_step
    canonical = Canonical(objective, blocks, domain, start)
    add_second_derivatives(canonical, hess, settings.hess_sparsity)
    if settings.check and not (report := check_derivatives(canonical.problem, canonical.x0)).ok:
        raise ValueError(f"at x0 the derivatives are wrong; correct them, or leave the option check out. {report}")
    bounded = bounds is not None
    found = _without_steps(canonical, bounded) or _run(canonical, algorithm, settings, callback, bounded, before)
    if settings.disp:
        if found.status == STATUS_CODES[Status.MAX_STEPS]:
            from scipy.optimize import OptimizeWarning

            warnings.warn("Maximum number of iterations has been exceeded.", OptimizeWarning, stacklevel=2)
        print(found.message)
        print(f"fun {found.fun:.8g}  nit {found.nit}  nfev {found.nfev}  njev {found.njev}")
        print(f"optimality {found.optimality:.2e}  constr_violation {found.constr_violation:.2e}")
    final: OptimizeResult = found
    return final


def _without_steps(canonical: Canonical, bounded: bool) -> Any:
    """Return the result if there is nothing to solve: every variable fixed, or no finite number at the start."""
    point = canonical.point(canonical.x0)
    if not canonical.frame.free.any():
        violation = canonical.violation(point)
        message = f"{_FIXED}{' at values that satisfy the constraints' if len(canonical.blocks) > 1 else ''}."
        if violation > 0:
            message = f"{_FIXED}, but they do not satisfy the constraints (maximum violation: {violation})."
        status = Status.CONVERGED if violation == 0 else Status.LOCALLY_INFEASIBLE
        return _known(canonical, bounded, canonical.x0, status, message, 0)
    try:
        for i, block in enumerate(canonical.blocks):
            if not np.isfinite(point.values[i]).all():
                culprit = f"{block.name} is {point.values[i] if i else point.values[0][0]}"
            elif not point.is_finite(i):
                culprit = f"the derivative of {block.name} is not finite"
            else:
                continue
            message = f"{Status.INVALID_NUMBER.value} At the start x0, {culprit}."
            return _known(canonical, bounded, canonical.x0, Status.INVALID_NUMBER, message, 0)
    except OutOfCallsError:
        status = Status.MAX_ORACLE_CALLS
        return _known(canonical, bounded, canonical.x0, status, status.value, 0)
    return None


def _run(
    canonical: Canonical, algorithm: Any, settings: Any, callback: Any, bounded: bool, after: Result | None
) -> Any:
    """Solve, and say the result in SciPy's words."""
    objective = canonical.blocks[0]
    rules: list[StopRule] = [_Polished(settings.tolerance, settings.polish), MaxSteps(settings.maxiter)]
    if settings.maxfev is not None:
        rules.append(lambda _: Status.MAX_ORACLE_CALLS if objective.nfev >= settings.maxfev else None)
    best, steps = canonical.x0, 0

    def remember(progress: Progress) -> None:
        nonlocal best, steps
        steps = progress.step
        if progress.best is not None and progress.best.x is not best:
            best = progress.best.x  # a certificate will ask for this point again
            canonical.keep(best)

    observers: list[Callable[[Progress], None]] = [remember]
    if callback is not None:
        observers.append(_observer(callback, canonical, objective))
    x_scale = settings.x_scale
    if np.ndim(x_scale):
        x_scale = np.broadcast_to(np.asarray(x_scale, dtype=float), canonical.frame.x.shape)[canonical.frame.free]
    multipliers0 = settings.multipliers0
    if multipliers0 is not None:
        multipliers0 = canonical.from_slsqp_order(np.asarray(multipliers0, dtype=float))
    try:
        result = solve(
            canonical.problem,
            canonical.x0,
            algorithm,
            stop=rules,
            tolerance=settings.tolerance,
            observers=observers,
            multipliers0=multipliers0,
            after=after,
            x_scale=x_scale,
            best_of=settings.best_of,
            seed=settings.seed,
            disp=settings.disp,
            **settings.saving,
        )
    except OutOfCallsError:
        status = Status.MAX_ORACLE_CALLS
        return _known(canonical, bounded, best, status, status.value, steps)
    if settings.feasible and result.success and result.steps:  # a start that is certified stays as it is
        try:
            certificate, done = restore(canonical.problem, result.certificate)
        except OutOfCallsError:
            return _report(result, canonical, bounded)
        if done.after < done.before and certificate.holds(settings.tolerance):
            moved = {"x": certificate.x, "multipliers": certificate.multipliers, "certificate": certificate}
            result = replace(result, **moved, message=f"{result.message} {done}", restored=done)
    return _report(result, canonical, bounded)


class _Polished:
    """Stop at a certificate, or ``steps`` later unless the residuals are `POLISHED` before."""

    def __init__(self, tolerance: float, polish: bool) -> None:
        self._certified, self._goal = KKTBelow(tolerance), POLISHED * tolerance
        self._steps, self._end = POLISHING if polish else 0, -1

    def __call__(self, progress: Progress) -> Status | None:
        if progress.step == 0:  # another of several starts
            self._end = -1
        if self._end < 0:
            if self._certified(progress) is None:
                return None
            self._end = progress.step + (self._steps if progress.step else 0)
            if progress.certificate is not None and progress.certificate.holds(self._goal):
                return Status.CONVERGED
        return Status.CONVERGED if progress.step >= self._end or progress.kkt <= self._goal else None


def _native(after: Any) -> Result:
    """Return the native result of a result of `minimize`."""
    native = getattr(after, "result", after)
    if not isinstance(native, Result):
        raise TypeError(
            f"after must be a result of gdpa.minimize that made a step, got {type(after).__name__}; leave it out"
        )
    return native


def _start(x0: Any) -> Vector:
    if x0 is None:
        raise TypeError("x0 is missing: give a start, or after=result")
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
    """Wrap a callback as SciPy does: by the name of its only parameter, or by how many arguments it needs."""
    from scipy.optimize import OptimizeResult

    make: Callable[..., Any] = OptimizeResult  # a dict with attributes; its stubs know no field
    try:
        parameters = inspect.signature(callback).parameters
    except ValueError:  # some built-ins have no signature
        parameters = {}  # type: ignore[assignment]
    by_name = set(parameters) == {"intermediate_result"}
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters.values() if p.kind in positional and p.default is inspect.Parameter.empty]

    def observe(progress: Progress) -> None:
        x = canonical.domain.project(progress.state.x)
        full = canonical.frame.full(x)
        if not by_name and len(needed) < 2:
            callback(full)
            return
        point = canonical.point(x)
        state = make(
            x=full,
            fun=float(point.values[0][0]),
            nit=progress.step,
            niter=progress.step,
            nfev=objective.nfev,
            njev=objective.njev,
            constr_violation=canonical.violation(point),
            v=canonical.split(progress.state.multipliers),
        )
        if by_name:
            callback(intermediate_result=state)
        elif callback(full.copy(), state) is True:
            raise StopIteration

    return observe


def _report(result: Result, canonical: Canonical, bounded: bool) -> Any:
    """Say the native result in SciPy's words."""
    message = f"{_STOPPED} {result.message}" if result.status is Status.STOPPED else result.message
    v, certificate = canonical.split(result.multipliers), result.certificate
    found = _known(
        canonical, bounded, result.x, result.status, message, result.steps, v, certificate.domain_multipliers
    )
    found.update(
        success=result.success and result.status is not Status.STOPPED,
        optimality=float(np.abs(canonical.domain.tangent(result.x, -certificate.gradient)).max()),
        multipliers=canonical.slsqp_order(result.multipliers),
        result=result,
    )
    return found


def _known(
    canonical: Canonical,
    bounded: bool,
    x: Vector,
    status: Status,
    message: str,
    steps: int,
    v: list[Vector] | None = None,
    free_bound_v: Vector | None = None,
) -> Any:
    """Return the `OptimizeResult` of the free variables ``x``; what no call can tell any more is NaN.

    As in SciPy, finite differences leave the derivatives with respect to fixed variables unknown.
    """
    from scipy.optimize import OptimizeResult

    make: Callable[..., Any] = OptimizeResult
    frame, (objective, *constraints) = canonical.frame, canonical.blocks
    x = canonical.domain.project(x)
    point, full = canonical.point(x), frame.full(x)
    v = [np.full(value.shape, np.nan) for value in point.values[1:]] if v is None else v
    gradient, bound_v = np.full(full.shape, np.nan), np.full(full.shape, np.nan)
    if free_bound_v is not None:
        gradient = point.full_slope(0)[0].copy()
        bound_v = frame.spread(free_bound_v.copy())
        if any(isinstance(block.jac, str) for block in canonical.blocks):
            gradient[~frame.free] = np.nan
        elif not frame.is_whole:
            total = gradient + sum((w @ point.full_slope(i) for i, w in enumerate(v, start=1)), np.zeros_like(gradient))
            bound_v[~frame.free] = -total[~frame.free]
    violation = canonical.violation(point)
    return make(
        x=full,
        fun=float(point.values[0][0]),
        jac=gradient,
        grad=gradient,
        success=status is Status.CONVERGED,
        status=STATUS_CODES[status],
        message=message,
        nit=steps,
        niter=steps,
        nfev=objective.nfev,
        njev=objective.njev,
        nhev=0,
        constr=[value.copy() for value in point.values[1:]] + ([full.copy()] if bounded else []),
        constr_nfev=[block.nfev for block in constraints] + ([0] if bounded else []),
        constr_njev=[block.njev for block in constraints] + ([0] if bounded else []),
        constr_violation=violation,
        maxcv=violation,
        optimality=np.nan,
        v=v + ([bound_v] if bounded else []),
        multipliers=np.full(len(canonical.index), np.nan),
        result=None,
    )


def add_second_derivatives(canonical: Canonical, hess: Any, sparsity: Any) -> None:
    """Let the problem know its Hessian if it is large and sparse; warn about a ``hess`` that is of no use.

    The Hessian is exact if ``hess`` and those of all nonlinear constraints are given, and by differences of gradients
    if ``sparsity`` is given or the Jacobian of the constraints is sparse.

    Args:
        canonical: the problem.
        hess: the Hessian of the objective, ``hess(x, *args)``; None if it is not given.
        sparsity: which second derivatives of the Lagrangian may be nonzero; None if it is not known.
    """
    free = canonical.frame.free
    large = canonical.x0.shape[0] > FEW_COLUMNS
    if hess is not None and not (large and callable(hess) and is_sparse(_objective(canonical, hess, canonical.x0))):
        text = "gdpa.minimize does not use Hessian information (hess) unless it is a sparse array of more than"
        warnings.warn(f"{text} {FEW_COLUMNS} free variables", RuntimeWarning, stacklevel=3)
        hess = None
    if not large:
        return
    nonlinear = [block for block in canonical.blocks[1:] if not isinstance(block, LinearBlock)]
    if hess is not None and all(callable(block.hess) for block in nonlinear):
        canonical.attach_hessian = lambda x, now: _attach_exact(canonical, hess, x, now)
    elif sparsity is not None or len(canonical.index) > FEW_ROWS:
        if sparsity is not None and not free.all():
            sparsity = read(sparsity, "hess_sparsity").csr[free][:, free]
        differences = HessianDifferences(canonical.problem.evaluate, canonical.domain, sparsity)
        canonical.attach_hessian = differences.attach


def _objective(canonical: Canonical, hess: Any, x: Vector) -> Any:
    return hess(canonical.frame.full(x), *canonical.blocks[0].args)


def _attach_exact(canonical: Canonical, hess: Any, x: Vector, now: Evaluation) -> None:
    """Give the oracle call the sum of the users' Hessians."""
    full, free = canonical.frame.full(x), canonical.frame.free

    def hessian(w: Vector, objective: float = 1.0) -> SparseMatrix:
        d = full.shape[0]
        total = objective * read(_objective(canonical, hess, x), "hess", (d, d)).csr
        for block, v in zip(canonical.blocks[1:], canonical.split(w), strict=True):
            if not isinstance(block, LinearBlock):
                raw = block.hess(full, v, *block.args)
                total = total + read(raw, f"the hess of {block.name}", (d, d)).csr
        return read(total if free.all() else total[np.flatnonzero(free)][:, np.flatnonzero(free)], "hess")

    now.second = hessian
