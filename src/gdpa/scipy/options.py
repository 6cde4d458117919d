"""The options of `gdpa.minimize`: its own, the method's, and those of SciPy's methods by SciPy's names."""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from gdpa.base.checks import check_limit, is_number

#: The default limit of steps.
MAXITER = 10_000
#: The default relative KKT tolerance.
TOLERANCE = 1e-6
#: What `gdpa.solve` takes as it is: where and when to save.
SAVING = ("checkpoint", "every", "keep", "resume")
COMMON = (
    *("maxiter", "maxfev", "disp", "check", "x_scale", "feasible", "eps", "finite_diff_rel_step"),
    *("best_of", "seed", "multipliers0", "hess_sparsity", *SAVING),
)
#: Other names for a common option, and accuracies: the smallest one given is the tolerance if ``tol`` is not given.
OTHER_NAMES = {"maxfun": "maxfev", "verbose": "disp"}
ACCURACIES = ("ftol", "gtol", "xtol")
#: Limits on the violation: a smaller one than the tolerance lowers it.
VIOLATIONS = ("catol", "feasibility_tol")
#: What concerns the inside of one of SciPy's methods: taken, so that a method can be swapped, with a warning.
FOREIGN = frozenset(
    (
        "accuracy",
        "adaptive",
        "barrier_tol",
        "c1",
        "c2",
        "debug",
        "direc",
        "eta",
        "f_target",
        "factorization_method",
        "fatol",
        "final_tr_radius",
        "hess_inv0",
        "history_size",
        "inexact",
        "initial_barrier_parameter",
        "initial_barrier_tolerance",
        "initial_constr_penalty",
        "initial_simplex",
        "initial_tr_radius",
        "initial_trust_radius",
        "iprint",
        "max_trust_radius",
        "maxCGit",
        "maxcor",
        "maxls",
        "mesg_num",
        "minfev",
        "nb_points",
        "norm",
        "offset",
        "rescale",
        "return_all",
        "rhobeg",
        "scale",
        "sparse_jacobian",
        "stepmx",
        "store_history",
        "subproblem_maxiter",
        "workers",
        "xatol",
        "xrtol",
    )
)
#: Foreign options that change neither the answer nor the cost when they are left out: no warning.
SILENT = frozenset({"iprint", "return_all", "workers"})


@dataclass(frozen=True)
class Options:
    """What the options say.

    Attributes:
        tolerance: the relative KKT tolerance.
        polish: whether a run may go on for more digits than the tolerance asks for: no accuracy and no limit was given,
            and the run is not saved (how far it has been polished is not).
        feasible: whether the answer is moved to the nearest point that is feasible to rounding.
        maxiter: the most steps.
        maxfev: the most calls of the objective; None for no limit.
        disp: how to show progress, as `gdpa.solve` takes it; a summary follows.
        check: whether to compare the derivatives with differences first.
        x_scale: the lengths of the variables; None to read them off the points.
        absolute_step, relative_step: of finite differences; None for the default.
        best_of, seed: how many starts, and the seed of the random ones.
        hess_sparsity: which second derivatives may be nonzero; None if it is not known.
        multipliers0: the multipliers to begin with, as ``result.multipliers`` has them; None for zero.
        saving: where and when to save the run, as `gdpa.solve` takes it.
        parameters: of the method.
    """

    tolerance: float
    polish: bool
    feasible: bool
    maxiter: int
    maxfev: int | None
    disp: bool | str
    check: bool
    x_scale: Any
    absolute_step: float | None
    relative_step: Any
    best_of: int
    seed: Any
    multipliers0: Any
    hess_sparsity: Any
    saving: dict[str, Any]
    parameters: dict[str, Any]


def read_options(algorithm_class: type[Any], given: dict[str, Any], tol: Any) -> Options:
    """Return the options of a run from those given and ``tol``; raise for unknown names.

    >>> from gdpa import GDPA
    >>> options = read_options(GDPA, {"ftol": 1e-9, "maxfun": 50, "tau": 0.1}, None)
    >>> options.tolerance, options.maxfev, options.parameters
    (1e-09, 50, {'tau': 0.1})
    """
    options = {OTHER_NAMES.get(name, name): value for name, value in given.items()}
    own = tuple(field.name for field in fields(algorithm_class) if field.init) if is_dataclass(algorithm_class) else ()
    known = (*COMMON, *OTHER_NAMES, *ACCURACIES, *VIOLATIONS, *own)
    unknown = [name for name in options if name not in known and name not in FOREIGN]
    if unknown:
        names = ", ".join((*COMMON, *own))
        raise ValueError(f"unknown options {unknown}; {algorithm_class.__name__} knows {names}")
    unused = sorted(name for name in options if name in FOREIGN - SILENT and name not in known)
    if unused:
        from scipy.optimize import OptimizeWarning

        warnings.warn(f"gdpa.minimize does not use the options {unused}", OptimizeWarning, stacklevel=3)
    maxfev = options.get("maxfev")
    step = options.get("eps")
    limited = maxfev is not None or any(name in options for name in (*ACCURACIES, "checkpoint"))
    return Options(
        tolerance=_tolerance(options, tol),
        polish=tol is None and not limited,
        feasible=bool(options.get("feasible", True)),
        maxiter=_limit("maxiter", MAXITER if options.get("maxiter") is None else options["maxiter"]),
        maxfev=None if maxfev is None else _limit("maxfev", maxfev),
        disp=disp if isinstance(disp := options.get("disp"), str) else bool(disp),
        check=bool(options.get("check")),
        x_scale=options.get("x_scale"),
        absolute_step=None if step is None else float(_positive("eps", step)),
        relative_step=options.get("finite_diff_rel_step"),
        best_of=options.get("best_of", 1),
        seed=options.get("seed", 0),
        multipliers0=options.get("multipliers0"),
        hess_sparsity=options.get("hess_sparsity"),
        saving={name: options[name] for name in SAVING if name in options},
        parameters={name: value for name, value in options.items() if name in own},
    )


def _tolerance(options: dict[str, Any], tol: Any) -> float:
    if tol is not None:
        tolerance = float(_positive("tol", tol))
    else:
        asked = [options[name] for name in ACCURACIES if options.get(name) is not None]
        goals = [float(goal) for goal in asked if is_number(goal) and goal > 0]
        tolerance = max(min(goals), float(np.finfo(float).eps)) if goals else TOLERANCE
    allowed = [float(options[name]) for name in VIOLATIONS if options.get(name) is not None]
    return min([tolerance, *(violation for violation in allowed if violation > 0)])


def _positive(name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    check_limit(**{name: value})
    return value


def _limit(name: str, value: Any) -> int:
    """Return a limit as a whole number: a fraction is rounded down, infinity is no limit."""
    check_limit(True, **{name: value})
    return sys.maxsize if math.isinf(value) else int(value)
