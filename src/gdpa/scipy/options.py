"""The options of `gdpa.minimize`: its own, the method's, and options of SciPy's methods by SciPy's names."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from gdpa.base.checks import check_limit, is_number
from gdpa.base.text import suggest
from gdpa.scipy.constraints import warn_optimize

#: The default relative KKT tolerance.
TOLERANCE = 1e-6
#: Arguments of `gdpa.solve` on where and when to save.
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
    """The options of a run, with defaults; `gdpa.minimize` describes those from ``maxiter`` on.

    Attributes:
        tolerance: the relative KKT tolerance.
        polish: whether a run may go on for more digits than the tolerance asks for: no accuracy and no limit was given,
            and the run is not saved (how far it has been polished is not).
        parameters: of the method.
        saving: where and when to save the run, as `gdpa.solve` takes it.
    """

    tolerance: float = TOLERANCE
    polish: bool = True
    parameters: dict[str, Any] = field(default_factory=dict)
    saving: dict[str, Any] = field(default_factory=dict)
    maxiter: int = 10_000
    maxfev: int | None = None
    disp: bool | str = False
    check: bool = False
    x_scale: Any = None
    feasible: bool = True
    eps: float | None = None
    finite_diff_rel_step: Any = None
    best_of: int = 1
    seed: Any = 0
    multipliers0: Any = None
    hess_sparsity: Any = None


COMMON = tuple(entry.name for entry in fields(Options))[4:]


def read_options(algorithm_class: type[Any], given: dict[str, Any], tol: Any) -> Options:
    """Return the options of a run from ``given`` and ``tol``; warn about unknown ones, as SciPy does."""
    options = {OTHER_NAMES.get(name, name): value for name, value in given.items()}
    own = [entry.name for entry in fields(algorithm_class) if entry.init] if is_dataclass(algorithm_class) else []
    known = {*COMMON, *SAVING, *ACCURACIES, *VIOLATIONS, *own}
    unknown = sorted(options.keys() - known - {*SILENT})
    for name in unknown:
        if misspelled := suggest(name, ARGUMENTS, likeness=0.8):
            raise TypeError(f"minimize has no argument {name!r}{misspelled}")
    if unknown:
        names = ", ".join(f"{name!r}{suggest(name, known)}" for name in unknown)
        warn_optimize(f"gdpa.minimize ignores the unknown options {names}")
    common: dict[str, Any] = {name: options[name] for name in COMMON if options.get(name) is not None}
    for name in common.keys() & {"maxiter", "maxfev"}:  # a fraction is rounded down, infinity is no limit
        check_limit(True, **{name: common[name]})
        common[name] = sys.maxsize if math.isinf(common[name]) else int(common[name])
    if "eps" in common:
        common["eps"] = _read_positive("eps", common["eps"])
    if not isinstance(common.get("disp", ""), str):
        common["disp"] = bool(common["disp"])
    return Options(
        tolerance=_read_tolerance(options, tol),
        polish=tol is None and "maxfev" not in common and options.keys().isdisjoint((*ACCURACIES, "checkpoint")),
        parameters={name: options[name] for name in own if name in options},
        saving={name: options[name] for name in SAVING if name in options},
        **common,
    )


def _read_tolerance(options: dict[str, Any], tol: Any) -> float:
    if tol is not None:
        tolerance = _read_positive("tol", tol)
    else:
        asked: Any = map(options.get, ACCURACIES)
        goals = [float(goal) for goal in asked if goal is not None and is_number(goal) and goal > 0]
        tolerance = max(min(goals), float(np.finfo(float).eps)) if goals else TOLERANCE
    allowed = [float(limit) for limit in map(options.get, VIOLATIONS) if limit is not None and limit > 0]
    return min([tolerance, *allowed])


def _read_positive(name: str, value: Any) -> float:
    """Return a positive number; SciPy takes an array of one, too."""
    value = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
    check_limit(**{name: value})
    return float(value)
