"""Constrained optimization for machine learning.

    min f(x)   subject to   g(x) <= 0,   x in X            f, g smooth, possibly nonconvex

Sign convention everywhere: ``g(x) <= 0`` is feasible, multipliers are ``>= 0``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gdpa._derivative_check import check_derivatives
from gdpa._differences import FiniteDifferenceWarning
from gdpa._extras import needed_by
from gdpa._minimize import minimize
from gdpa._observers import ProgressDisplay
from gdpa._problem import Evaluation, Problem
from gdpa._progress import Progress
from gdpa._receipt import Receipt, load_receipt
from gdpa._result import History, Result, Status
from gdpa._run import Run
from gdpa._saving import load_run, save_run
from gdpa._solve import solve
from gdpa._state import Probe, State
from gdpa._verify import Verification, verify
from gdpa.algorithms.base import Algorithm
from gdpa.algorithms.method import Method, MethodCard, UnsupportedProblemError
from gdpa.comparison import compare
from gdpa.kkt import Certificate, Residuals, certify
from gdpa.methods import class_names, get_method, method_names, register
from gdpa.schedules import Constant, Power, StepSize
from gdpa.sets import REALS, Ball, Box, ConvexSet, NonNegative, Product, Simplex
from gdpa.stopping import FeasibleBelow, KKTBelow, MaxOracleCalls, MaxSteps, MaxTime, StopRule
from gdpa.version import __version__

if TYPE_CHECKING:  # for type checkers and editors; `__getattr__` loads them
    from gdpa import applications as applications
    from gdpa import problems as problems
    from gdpa import sklearn as sklearn
    from gdpa import storage as storage
    from gdpa import theory as theory
    from gdpa import torch as torch
    from gdpa.backends.functions import from_functions
    from gdpa.backends.jax import from_jax
    from gdpa.backends.torch import from_module, from_torch
    from gdpa.methods import *  # noqa: F403 - the classes of the methods

__all__ = [
    "solve",
    "minimize",
    "compare",
    "Problem",
    "Evaluation",
    "from_functions",
    "from_torch",
    "from_module",
    "from_jax",
    "Result",
    "Status",
    "History",
    "certify",
    "check_derivatives",
    "Certificate",
    "Residuals",
    "verify",
    "Verification",
    "Receipt",
    "load_receipt",
    "StopRule",
    "KKTBelow",
    "MaxSteps",
    "MaxOracleCalls",
    "MaxTime",
    "FeasibleBelow",
    "Progress",
    "ProgressDisplay",
    "Run",
    "save_run",
    "load_run",
    "Algorithm",
    "Method",
    "MethodCard",
    "State",
    "Probe",
    "StepSize",
    "Constant",
    "Power",
    "get_method",
    "method_names",
    "register",
    "UnsupportedProblemError",
    "FiniteDifferenceWarning",
    "ConvexSet",
    "REALS",
    "Box",
    "NonNegative",
    "Ball",
    "Simplex",
    "Product",
    "__version__",
]
__all__ += class_names()  # AdaptiveGDPA, GDPA, DampedGDPA and the others of `gdpa.methods`

#: Parts of the library that are loaded on first use.
_PARTS = ("applications", "experiments", "problems", "sklearn", "storage", "theory", "torch")


def __getattr__(name: str) -> Any:
    """Load parts that need another library, and further parts of this one, on first use."""
    if name in ("from_functions", "from_torch", "from_module", "from_jax"):
        from gdpa import backends

        return getattr(backends, name)
    if name in class_names():
        return get_method(class_names()[name])
    if name in _PARTS and find_spec(f"gdpa.{name}") is not None:
        with needed_by(f"gdpa.{name}"):
            return import_module(f"gdpa.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Name what is public, whether it is loaded or not."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, *class_names(), *_PARTS})
