"""Constrained optimization for machine learning.

    min f(x)   subject to   g(x) <= 0,   x in X            f, g smooth, possibly nonconvex

Sign convention everywhere: ``g(x) <= 0`` is feasible, multipliers are ``>= 0``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gdpa.algorithms import GDPA, AdaptiveGDPA, DampedGDPA
from gdpa.derivative_check import check_derivatives
from gdpa.extras import needed_by
from gdpa.kkt import Certificate, Residuals, certify
from gdpa.minimize import minimize
from gdpa.observers import ProgressDisplay
from gdpa.problem import Evaluation, Problem
from gdpa.receipt import Receipt, load_receipt
from gdpa.result import Result, Status
from gdpa.run import Run
from gdpa.saving import load_run, save_run
from gdpa.sets import REALS, Ball, Box, ConvexSet, NonNegative, Product, Simplex
from gdpa.solve import solve
from gdpa.stopping import FeasibleBelow, KKTBelow, MaxOracleCalls, MaxSteps, MaxTime
from gdpa.verify import Verification, verify
from gdpa.version import __version__

if TYPE_CHECKING:  # for type checkers and editors; `__getattr__` loads them
    from gdpa.backends.functions import from_functions
    from gdpa.backends.jax import from_jax
    from gdpa.backends.torch import from_module, from_torch

__all__ = [
    "solve",
    "minimize",
    "Problem",
    "Evaluation",
    "from_functions",
    "from_torch",
    "from_module",
    "from_jax",
    "AdaptiveGDPA",
    "DampedGDPA",
    "GDPA",
    "Result",
    "Status",
    "certify",
    "check_derivatives",
    "Certificate",
    "Residuals",
    "verify",
    "Verification",
    "Receipt",
    "load_receipt",
    "KKTBelow",
    "MaxSteps",
    "MaxOracleCalls",
    "MaxTime",
    "FeasibleBelow",
    "ProgressDisplay",
    "Run",
    "save_run",
    "load_run",
    "ConvexSet",
    "REALS",
    "Box",
    "NonNegative",
    "Ball",
    "Simplex",
    "Product",
    "__version__",
]


#: Parts of the library that are loaded when they are asked for.
_PARTS = ("applications", "compare", "problems", "sklearn", "storage", "theory", "torch")


def __getattr__(name: str) -> Any:
    """Load what needs another library, and further parts of this one, only when they are asked for."""
    if name in ("from_functions", "from_torch", "from_module", "from_jax"):
        from gdpa import backends

        return getattr(backends, name)
    if name in _PARTS and find_spec(f"gdpa.{name}") is not None:
        with needed_by(f"gdpa.{name}"):
            return import_module(f"gdpa.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Name what is public, whether it is loaded or not."""
    special = [name for name in globals() if name.startswith("__")]
    return sorted({*special, *__all__, *(name for name in _PARTS if find_spec(f"gdpa.{name}") is not None)})
