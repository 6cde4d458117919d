"""Constrained optimization for machine learning.

    min f(x)   subject to   g(x) <= 0,   x in X            f, g smooth, possibly nonconvex

Sign convention everywhere: ``g(x) <= 0`` is feasible, multipliers are ``>= 0``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gdpa.base.arrays import namespace
from gdpa.base.checks import check_at_least, check_inside, check_positive, check_share
from gdpa.base.extras import needed_by
from gdpa.base.schedules import Constant, Power, StepSize, Theoretical
from gdpa.base.sets import REALS, Ball, Box, ConvexSet, NonNegative, Product, Simplex
from gdpa.base.signals import StopRequest
from gdpa.base.status import Status
from gdpa.base.typing import Array
from gdpa.core.certificate import Certificate, Residuals, certify
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.core.problem import Evaluation, Problem, unit_vector
from gdpa.core.slack import add_slacks
from gdpa.files.checkpoints import Checkpoints
from gdpa.files.receipt import Receipt, load_receipt
from gdpa.methods import class_names, get_method, method_names, register
from gdpa.methods.base import Algorithm, Probe, State
from gdpa.methods.method import Method, MethodCard, UnsupportedProblemError
from gdpa.numerics.differences import FiniteDifferenceWarning
from gdpa.oracles.derivative_check import check_derivatives
from gdpa.run.compare import compare
from gdpa.run.observers import ProgressDisplay
from gdpa.run.progress import History, Progress, Run
from gdpa.run.result import Result
from gdpa.run.saving import load_run, save_run
from gdpa.run.solve import solve
from gdpa.run.stopping import FeasibleBelow, KKTBelow, MaxOracleCalls, MaxSteps, MaxTime, StopRule
from gdpa.run.verify import Verification, verify
from gdpa.scipy.minimize import minimize
from gdpa.version import __version__

if TYPE_CHECKING:  # for type checkers and editors; `__getattr__` loads them
    from gdpa import files as storage  # noqa: F401
    from gdpa import paper as experiments  # noqa: F401
    from gdpa import sharded as sharded
    from gdpa import sklearn as sklearn
    from gdpa import torch as torch
    from gdpa.methods.registry import *  # noqa: F403 - the classes of the methods
    from gdpa.oracles import library as problems  # noqa: F401
    from gdpa.oracles.functions import from_functions
    from gdpa.oracles.jax import from_jax
    from gdpa.oracles.torch import from_module, from_torch
    from gdpa.paper import applications as applications
    from gdpa.paper import theory as theory

__all__ = ["solve", "minimize", "compare", "Problem", "Evaluation", "from_functions", "from_torch", "from_module"]
__all__ += ["from_jax", "add_slacks", "Result", "Status", "History", "certify", "check_derivatives", "Certificate"]
__all__ += ["Residuals", "verify", "Verification", "Receipt", "load_receipt", "StopRule", "KKTBelow", "MaxSteps"]
__all__ += ["MaxOracleCalls", "MaxTime", "FeasibleBelow", "Progress", "ProgressDisplay", "Run", "save_run", "load_run"]
__all__ += ["Checkpoints", "StopRequest", "Algorithm", "Method", "MethodCard", "State", "Probe", "StepSize", "Constant"]
__all__ += ["Power", "Theoretical", "AugmentedLagrangian", "Array", "namespace", "unit_vector", "check_positive"]
__all__ += ["check_at_least", "check_inside", "check_share", "get_method", "method_names", "register"]
__all__ += ["UnsupportedProblemError", "FiniteDifferenceWarning", "ConvexSet", "REALS", "Box", "NonNegative", "Ball"]
__all__ += ["Simplex", "Product", "__version__"]
__all__ += class_names()  # AdaptiveGDPA, GDPA, DampedGDPA and the others of `gdpa.methods`

#: Parts of the library that are loaded on first use, with their modules.
_PARTS = {
    "applications": "gdpa.paper.applications",
    "experiments": "gdpa.paper",
    "problems": "gdpa.oracles.library",
    "sharded": "gdpa.sharded",
    "sklearn": "gdpa.sklearn",
    "storage": "gdpa.files",
    "theory": "gdpa.paper.theory",
    "torch": "gdpa.torch",
}


def __getattr__(name: str) -> Any:
    """Load parts that need another library, and further parts of this one, on first use."""
    if name in ("from_functions", "from_torch", "from_module", "from_jax"):
        from gdpa import oracles

        return getattr(oracles, name)
    if name in class_names():
        return get_method(class_names()[name])
    if name in _PARTS:
        with needed_by(f"gdpa.{name}"):
            return import_module(_PARTS[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, whether loaded or not."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, *class_names(), *_PARTS})
