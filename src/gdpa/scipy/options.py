"""The options of `gdpa.minimize`: its own, the method's, and options of SciPy's methods by SciPy's names."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from gdpa.base.checks import check_limit, is_number
from gdpa.base.text import suggest, warn_user

#: The default relative KKT tolerance.
TOLERANCE = 1e-6
#: Arguments of `gdpa.solve` that say where and when to save.
SAVING = ("checkpoint", "every", "keep", "resume")
#: Other names for an option, and accuracies: the smallest one given is the tolerance if ``tol`` is not given.
OTHER_NAMES = {"maxfun": "maxfev", "verbose": "disp"}
ACCURACIES = ("ftol", "gtol", "xtol")
#: Limits on the violation: a smaller one than the tolerance lowers it.
VIOLATIONS = ("catol", "feasibility_tol")
#: Options of SciPy's methods that change neither the answer nor the cost when they are left out: no warning.
SILENT = ("iprint", "return_all", "workers")
#: Arguments of `minimize`. A name like one of them is an argument misspelled: ignoring it would change the problem.
ARGUMENTS = ("fun", "args", "method", "jac", "hess", "hessp", "bounds", "constraints", "tol", "callback", "options")


@dataclass(frozen=True)
class Options:
    """The options of a run.

    Attributes:
        tolerance: the relative KKT tolerance.
        polish: whether a run may go on for more digits than the tolerance asks for: no accuracy and no limit was given,
            and the run is not saved (how far it has been polished is not).
        parameters: of the method.
        saving: where and when to save the run, as `gdpa.solve` takes it.
        maxiter: the most steps.
        maxfev: the most calls of the objective; None for no limit.
        disp: how to show progress, as `gdpa.solve` takes it; a summary follows.
        check: whether to compare the derivatives with differences first.
        x_scale: the lengths of the variables; None to read them off the points.
        feasible: whether the answer is moved to the nearest point that is feasible to rounding.
        eps, finite_diff_rel_step: absolute and relative step of finite differences; None for the default.
        best_of, seed: how many starts, and the seed of the random ones.
        multipliers0: the multipliers to begin with, as ``result.multipliers`` has them; None for zero.
        hess_sparsity: which second derivatives may be nonzero; None if it is not known.
    """

    tolerance: float
    polish: bool
    parameters: dict[str, Any]
    saving: dict[str, Any]
    maxiter: int = field(default=10_000, kw_only=True)
    maxfev: int | None = field(default=None, kw_only=True)
    disp: bool | str = field(default=False, kw_only=True)
    check: bool = field(default=False, kw_only=True)
    x_scale: Any = field(default=None, kw_only=True)
    feasible: bool = field(default=True, kw_only=True)
    eps: float | None = field(default=None, kw_only=True)
    finite_diff_rel_step: Any = field(default=None, kw_only=True)
    best_of: int = field(default=1, kw_only=True)
    seed: Any = field(default=0, kw_only=True)
    multipliers0: Any = field(default=None, kw_only=True)
    hess_sparsity: Any = field(default=None, kw_only=True)


COMMON = tuple(entry.name for entry in fields(Options) if entry.kw_only)


def read_options(algorithm_class: type[Any], given: dict[str, Any], tol: Any) -> Options:
    """Return the options of a run from ``given`` and ``tol``; warn about unknown ones, as SciPy does.

    >>> from gdpa import GDPA
    >>> options = read_options(GDPA, {"ftol": 1e-9, "maxfun": 50, "tau": 0.1}, None)
    >>> options.tolerance, options.maxfev, options.parameters
    (1e-09, 50, {'tau': 0.1})
    """
    options = {OTHER_NAMES.get(name, name): value for name, value in given.items()}
    own = [entry.name for entry in fields(algorithm_class) if entry.init] if is_dataclass(algorithm_class) else []
    known = {*COMMON, *SAVING, *ACCURACIES, *VIOLATIONS, *own}
    unknown = sorted(options.keys() - known - {*SILENT})
    for name in unknown:
        if misspelled := suggest(name, ARGUMENTS, likeness=0.8):
            raise TypeError(f"minimize has no argument {name!r}{misspelled}")
    if unknown:
        from scipy.optimize import OptimizeWarning

        names = ", ".join(f"{name!r}{suggest(name, known)}" for name in unknown)
        warn_user(f"gdpa.minimize ignores the unknown options {names}", OptimizeWarning)
    common: dict[str, Any] = {name: options[name] for name in COMMON if options.get(name) is not None}
    for name in ("maxiter", "maxfev"):
        if name in common:
            common[name] = _read_limit(name, common[name])
    if "eps" in common:
        common["eps"] = float(_check_positive("eps", common["eps"]))
    if not isinstance(common.get("disp", ""), str):
        common["disp"] = bool(common["disp"])
    limited = "maxfev" in common or any(name in options for name in (*ACCURACIES, "checkpoint"))
    return Options(
        _read_tolerance(options, tol),
        tol is None and not limited,
        {name: options[name] for name in own if name in options},
        {name: options[name] for name in SAVING if name in options},
        **common,
    )


def _read_tolerance(options: dict[str, Any], tol: Any) -> float:
    if tol is not None:
        tolerance = float(_check_positive("tol", tol))
    else:
        asked: list[Any] = [options.get(name) for name in ACCURACIES]
        goals = [float(goal) for goal in asked if is_number(goal) and goal > 0]
        tolerance = max(min(goals), float(np.finfo(float).eps)) if goals else TOLERANCE
    allowed = [float(options[name]) for name in VIOLATIONS if options.get(name) is not None]
    return min([tolerance, *(violation for violation in allowed if violation > 0)])


def _check_positive(name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    check_limit(**{name: value})
    return value


def _read_limit(name: str, value: Any) -> int:
    """Return a limit as a whole number: a fraction is rounded down, infinity is no limit."""
    check_limit(True, **{name: value})
    return sys.maxsize if math.isinf(value) else int(value)
