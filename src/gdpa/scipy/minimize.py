"""SciPy's interface: the signature, the objects and the result of `scipy.optimize.minimize`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gdpa.base.checks import check_limit, is_number
from gdpa.base.signals import finishing_the_step
from gdpa.base.status import Status
from gdpa.base.text import suggest, warn_user
from gdpa.base.typing import Vector
from gdpa.core.problem import Evaluation
from gdpa.methods import as_algorithm, default_method, get_method
from gdpa.methods.base import Algorithm
from gdpa.numerics.sparse.matrix import FEW_COLUMNS, FEW_ROWS, SparseMatrix, is_sparse, read
from gdpa.oracles.derivative_check import check_derivatives
from gdpa.oracles.hessian import HessianDifferences
from gdpa.run.feasible import restore
from gdpa.run.progress import Progress, Run
from gdpa.run.result import Result
from gdpa.run.solve import solve
from gdpa.scipy.constraints import (
    Canonical,
    Function,
    OutOfCallsError,
    read_bounds,
    read_constraints,
    warn_optimize,
)

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

#: Without ``tol``, a run whose certificate holds makes up to this many further steps for more digits ...
POLISHING = 3
#: ... unless the residuals are this share of the tolerance before: three more digits, for a few evaluations.
GAIN = 1e-3
#: The default relative KKT tolerance.
TOLERANCE = 1e-6
#: Options that `gdpa.solve` takes as they are.
PASSED_ON = ("best_of", "seed", "checkpoint", "every", "keep", "resume")
#: Other names for an option, and accuracies: the smallest one given is the tolerance if ``tol`` is not given.
OTHER_NAMES = {"maxfun": "maxfev", "verbose": "disp"}
ACCURACIES = ("ftol", "gtol", "xtol")
#: Limits on the violation: a smaller one than the tolerance lowers it.
VIOLATIONS = ("catol", "feasibility_tol")
#: Options of SciPy's methods that change neither the answer nor the cost when they are left out: no warning.
SILENT = ("iprint", "return_all", "workers")
#: Arguments of `minimize`. A name like one of them is an argument misspelled: ignoring it would change the problem.
ARGUMENTS = ("fun", "args", "method", "jac", "hess", "hessp", "bounds", "constraints", "tol", "callback", "options")


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
        hess: the Hessian of ``fun``, ``hess(x, *args)``, a dense or sparse array. It is used if every nonlinear
            constraint has its ``hess``, too; otherwise there is a warning.
        hessp: not used, with a warning.
        bounds: `scipy.optimize.Bounds`, or (low, high) pairs. They are kept at every evaluation, to the last bit.
            A variable with equal bounds is fixed: it is taken out of the problem and put back into the result.
        constraints: `NonlinearConstraint`, `LinearConstraint`, a dict (``fun >= 0`` for "ineq"), or a list of any.
        tol: the relative KKT tolerance that ``success`` is judged by. Default 1e-6, and then up to three steps more
            for further digits (none with ``maxfev``).
        callback: called after every step, as ``callback(intermediate_result=...)`` if that is its only parameter, as
            ``callback(x, intermediate_result)`` if it needs two arguments, else as ``callback(x)``. Raising
            StopIteration (or, of two arguments, returning True) ends the run.
        options: a dict of options, listed below. Another name is ignored with a warning, as in SciPy.
        after: the result of `minimize` for a problem of the same shape with other limits or other data. The run begins
            with its units, curvature, penalty and multipliers; see `gdpa.solve`.
        **more_options: options given by name, which is how SciPy hands them to a custom method.

    Options:
        - ``maxiter``: steps, default 10,000. ``maxfev``: the most calls of ``fun``.
        - ``disp``: as `gdpa.solve` takes it; a summary follows.
        - ``check``: raise if `check_derivatives` finds derivatives at ``x0`` that differences contradict.
        - ``x_scale``: the lengths of the variables, see `gdpa.core.units`.
        - ``multipliers0``: the multipliers to begin with, ordered as ``multipliers`` of the result.
        - ``feasible``: whether an answer is moved to the nearest point that is feasible to rounding, see
          `gdpa.run.feasible`; default True, but a start that is certified stays.
        - ``eps``, ``finite_diff_rel_step``: the absolute and the relative step of differences.
        - ``hess_sparsity``: a sparse array: which second derivatives of the Lagrangian may be nonzero, to find them by
          differences.
        - ``best_of``, ``seed``: how many starts, see `gdpa.solve`; ``maxfev`` limits them together.
        - ``checkpoint``, ``every``, ``keep``, ``resume``: saves on the way and before SIGTERM, see `gdpa.solve`.
        - ``ftol``, ``gtol``, ``xtol``: SciPy's; the smallest is the tolerance if ``tol`` is not given.
        - the parameters of the method: ``alpha``, ``beta``, ``tau``, ... for "gdpa".

    Returns:
        An `OptimizeResult` with these entries.

        - ``x fun success status message nit nfev njev``: as in all of SciPy. ``success`` is True only for a certificate
          recomputed at ``x``. If a function is not finite at ``x0``, there is no success.
        - ``jac``, also ``grad``: the gradient of the objective.
        - ``constr``, ``constr_nfev``, ``constr_njev``, ``v``: as in trust-constr, one entry per constraint, with one
          for bounds. ``v`` is positive at an upper side and negative at a lower one: ``grad + sum_i J_i^T v_i = 0``.
        - ``optimality``: the largest entry of that sum. ``constr_violation``, also ``maxcv``: the largest violation.
        - ``multipliers``: in the order and with the signs of SLSQP. Equalities come first, then inequalities
          ``c(x) >= 0``, with ``grad - sum_i multipliers_i grad c_i = 0``. Those of inequalities are nonnegative; an
          equality's is minus its entry of ``v`` and minus its row of ``result``, which have trust-constr's sign.
        - ``result``: the `gdpa.Result` in the free variables, with residuals, history and run; None if no step was
          possible.

    User functions are never called twice at one point. Ctrl-C ends the run after its step and returns its result.

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
    from gdpa.scipy.report import describe_fixed, describe_point, make_observer, show

    if options is not None and not isinstance(options, dict):
        raise TypeError(f"options must be a dict, got {options!r}")
    method = default_method() if method is None else method
    kind: Any = get_method(method) if isinstance(method, str) else type(method)
    settings = read_options(kind, {**(options or {}), **more_options}, tol)
    parameters, named = settings.parameters, isinstance(method, str)
    algorithm = kind(**parameters) if named else as_algorithm("method", method, parameters)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, got {callback!r}")
    if hessp is not None:
        warn_user("gdpa.minimize does not use Hessian information (hessp)", RuntimeWarning)
    before = getattr(after, "result", after)
    if after is not None and not isinstance(before, Result):
        kind_of_after = type(after).__name__
        raise TypeError(f"after must be a result of gdpa.minimize that made a step, got {kind_of_after}; leave it out")
    start = _read_start(after.x if x0 is None and after is not None else x0)
    domain = read_bounds(bounds, start.shape[0])
    constraint_functions = read_constraints(constraints, start.shape[0])
    limit = None if settings.maxfev is None else max(1, settings.maxfev)
    objective = Function("fun", fun, jac or "2-point", args, size=1, limit=limit)
    for function in (objective, *constraint_functions):
        if function.relative_step is None and function.matrix is None:
            function.relative_step, function.absolute_step = settings.finite_diff_rel_step, settings.eps
    canonical = Canonical(objective, constraint_functions, domain, start, bounds is not None)
    add_second_derivatives(canonical, hess, settings.hess_sparsity)
    if settings.check and not (checked := check_derivatives(canonical.problem, canonical.x0)).ok:
        raise ValueError(f"at x0 the derivatives are wrong; correct them, or leave the option check out. {checked}")
    observer = None if callback is None else make_observer(callback, canonical)
    found: Any
    try:
        if not canonical.free.any():
            found = describe_fixed(canonical)
        elif culprit := canonical.start.find_not_finite():
            message = f"{Status.INVALID_NUMBER.value} At the start x0, {culprit}."
            found = describe_point(canonical, canonical.x0, Status.INVALID_NUMBER, message)
        else:
            found = _run(canonical, algorithm, settings, observer, before)
    except OutOfCallsError:  # of the derivative at x0
        found = describe_point(canonical, canonical.x0, Status.MAX_ORACLE_CALLS)
    if settings.disp:
        show(found)
    final: OptimizeResult = found
    return final


def _run(canonical: Canonical, algorithm: Any, settings: Options, observer: Any, after: Result | None) -> Any:
    """Solve, and return the result in SciPy's words."""
    from gdpa.scipy.report import describe, describe_point

    free = canonical.free
    ending = Ending(settings.tolerance, POLISHING if settings.polish else 0, settings.maxiter, canonical.functions[0])
    x_scale, multipliers0 = settings.x_scale, settings.multipliers0
    if np.ndim(x_scale):
        x_scale = np.broadcast_to(np.asarray(x_scale, dtype=float), free.shape)[free]
    if multipliers0 is not None:
        multipliers0 = canonical.from_slsqp(np.asarray(multipliers0, dtype=float))
    try:
        result = solve(
            canonical.problem,
            canonical.x0,
            algorithm,
            stop=ending,
            tolerance=settings.tolerance,
            observers=() if observer is None else observer,
            multipliers0=multipliers0,
            x_scale=x_scale,
            disp=settings.disp,
            after=after,
            **settings.passed_on,
        )
    except OutOfCallsError:
        run = ending.run
        best = None if run is None else run.best
        x, steps = canonical.x0 if best is None else best.x, 0 if run is None else run.step
        return describe_point(canonical, x, Status.MAX_ORACLE_CALLS, steps=steps)
    if settings.feasible and result.success and result.steps:  # a start that is certified stays as it is
        result = _restore(canonical, result, settings.tolerance)
    return describe(canonical, result)


@dataclass
class Ending:
    """The stop rule of `minimize`: the limits on steps and calls, a certificate, and digits beyond it.

    After the first certificate the run goes on for up to ``polishing`` steps, unless the residuals are `GAIN` of the
    tolerance before.

    Attributes:
        objective: its limit of calls and the calls made.
        run: the run; it holds the oracle call of its best point, so that the point is remembered.
        end: the step to end at, -1 before the first certificate.
    """

    tolerance: float
    polishing: int
    maxiter: int
    objective: Function
    run: Run | None = None
    end: int = -1

    def __call__(self, progress: Progress) -> Status | None:
        self.run = run = progress.run
        step, goal, limit = run.state.step, GAIN * self.tolerance, self.objective.limit
        certificate = None
        if step == 0:  # another of several starts
            self.end = -1
        if self.end < 0 and progress.certified(self.tolerance):
            self.end, certificate = step + (self.polishing if step else 0), progress.certificate
        is_polished = run.kkt <= goal or (certificate is not None and certificate.holds(goal))
        if self.end >= 0 and (step >= self.end or is_polished):
            return Status.CONVERGED
        if step >= self.maxiter:
            return Status.MAX_STEPS
        return Status.MAX_ORACLE_CALLS if limit is not None and self.objective.nfev >= limit else None


def _restore(canonical: Canonical, result: Result, tolerance: float) -> Result:
    """Return the result at a point that is feasible to rounding, if there is one and calls are left."""
    try:
        certificate, done = restore(canonical.problem, result.certificate)
    except OutOfCallsError:
        return result
    if done.after >= done.before or not certificate.holds(tolerance):
        return result
    moved = {"x": certificate.x, "multipliers": certificate.multipliers, "certificate": certificate}
    return replace(result, **moved, message=f"{result.message} {done}", restored=done)


def _read_start(x0: Any) -> Vector:
    if x0 is None:
        raise TypeError("x0 is missing: give a start, or after=result")
    start = np.atleast_1d(np.asarray(x0))
    if start.dtype.kind not in "biuf":
        raise TypeError(f"x0 must be real numbers, got {x0!r} of dtype {start.dtype}")
    if start.ndim != 1:
        raise ValueError(f"x0 must have one dimension, got shape {start.shape}; flatten it")
    if start.size == 0 or not np.isfinite(start).all():
        raise ValueError(f"x0 must be finite and not empty, got {x0!r}")
    return start.astype(float)


def add_second_derivatives(canonical: Canonical, hess: Any, sparsity: Any) -> None:
    """Attach the Hessian of the Lagrangian; warn if ``hess`` is ignored.

    The Hessian is exact if the objective and all nonlinear constraints have their ``hess``. For large problems it is
    found by differences of gradients if ``sparsity`` is given or the Jacobian of the constraints is sparse.
    """
    objective = canonical.functions[0]
    objective.hess = hess if callable(hess) else None
    given = [function.hess is not None for function in canonical.functions if function.matrix is None]
    if all(given):
        H = hess(canonical.fill(canonical.x0), *objective.args)
        if is_sparse(H) or not hasattr(H, "matvec"):  # an array, not a linear operator
            canonical.attach_hessian = partial(_attach_exact, canonical)
            return
    large = canonical.x0.shape[0] > FEW_COLUMNS
    if hess is not None or (not large and any(given)):
        text = "gdpa.minimize uses Hessian information (hess) only if the objective and every nonlinear constraint"
        warn_user(f"{text} have a function hess that returns an array", RuntimeWarning)
    if large and (sparsity is not None or len(canonical.index) > FEW_ROWS):
        if sparsity is not None and not canonical.all_free:
            free = np.flatnonzero(canonical.free)
            sparsity = read(sparsity, "hess_sparsity").csr[free][:, free]
        canonical.attach_hessian = HessianDifferences(canonical.problem.evaluate, canonical.domain, sparsity).attach


def _attach_exact(canonical: Canonical, x: Vector, now: Evaluation) -> None:
    """Give the oracle call the sum of the users' Hessians."""
    full, (first, *constraints) = canonical.fill(x), canonical.functions

    def hessian(w: Vector, objective: float = 1.0) -> SparseMatrix:
        total = objective * first.second(full)
        for function, v in zip(constraints, canonical.split(w), strict=True):
            if function.matrix is None:
                total = total + function.second(full, v)
        free = np.flatnonzero(canonical.free)
        return read(total if canonical.all_free else total[free][:, free], "hess")

    now.second = hessian


@dataclass
class Options:
    """The options of a run, with defaults; `gdpa.minimize` describes those from ``maxiter`` on.

    Attributes:
        tolerance: the relative KKT tolerance.
        polish: whether a run may go on for more digits than the tolerance asks for: no accuracy and no limit was given,
            and the run is not saved (how far it has been polished is not).
        parameters: of the method.
        passed_on: options that `gdpa.solve` takes as they are.
    """

    tolerance: float = TOLERANCE
    polish: bool = True
    parameters: dict[str, Any] = field(default_factory=dict)
    passed_on: dict[str, Any] = field(default_factory=dict)
    maxiter: int = 10_000
    maxfev: int | None = None
    disp: bool | str = False
    check: bool = False
    x_scale: Any = None
    feasible: bool = True
    eps: float | None = None
    finite_diff_rel_step: Any = None
    multipliers0: Any = None
    hess_sparsity: Any = None


COMMON = tuple(entry.name for entry in fields(Options))[4:]
KNOWN = (*COMMON, *PASSED_ON, *ACCURACIES, *VIOLATIONS)


def read_options(algorithm_class: type[Any], given: dict[str, Any], tol: Any) -> Options:
    """Return the options of a run from ``given`` and ``tol``; warn about unknown ones, as SciPy does."""
    own = [entry.name for entry in fields(algorithm_class) if entry.init] if is_dataclass(algorithm_class) else []
    read, names, unknown, goals, allowed = Options(), set(), [], [], []
    for given_name, value in given.items():
        name = OTHER_NAMES.get(given_name, given_name)
        names.add(name)
        if name in own:
            read.parameters[name] = value
        elif name not in KNOWN and name not in SILENT:
            unknown.append(name)
            if misspelled := suggest(name, ARGUMENTS, likeness=0.8):
                raise TypeError(f"minimize has no argument {name!r}{misspelled}")
        if value is None:
            continue
        if name in PASSED_ON:
            read.passed_on[name] = value
        elif name in COMMON:
            setattr(read, name, _read_option(name, value))
        elif name in ACCURACIES and is_number(value) and value > 0:
            goals.append(float(value))
        elif name in VIOLATIONS and value > 0:
            allowed.append(float(value))
    if unknown:
        shown = ", ".join(f"{name!r}{suggest(name, (*KNOWN, *own))}" for name in sorted(unknown))
        warn_optimize(f"gdpa.minimize ignores the unknown options {shown}")
    if tol is not None:
        read.tolerance = _read_positive("tol", tol)
    elif goals:
        read.tolerance = max(min(goals), float(np.finfo(float).eps))
    read.tolerance = min(read.tolerance, *allowed, math.inf)
    read.polish = tol is None and read.maxfev is None and names.isdisjoint((*ACCURACIES, "checkpoint"))
    return read


def _read_option(name: str, value: Any) -> Any:
    if name in ("maxiter", "maxfev"):  # a fraction is rounded down, infinity is no limit
        check_limit(True, **{name: value})
        return sys.maxsize if math.isinf(value) else int(value)
    if name == "disp":
        return value if isinstance(value, str) else bool(value)
    return _read_positive("eps", value) if name == "eps" else value


def _read_positive(name: str, value: Any) -> float:
    """Return a positive number; SciPy takes an array of one, too."""
    value = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
    check_limit(**{name: value})
    return float(value)
