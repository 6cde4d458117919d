"""What the methods share: the subproblem, the descent step, and the inner solvers. Each exists once."""

from gdpa.algorithms.inner.descent import Descent, descend
from gdpa.algorithms.inner.forms import Plain, Slacked, view
from gdpa.algorithms.inner.solvers import ACCELERATED, Accelerated, FixedMomentum, InnerSolver, Iterate, solved
from gdpa.algorithms.inner.state import NestedState, inner_step
from gdpa.algorithms.inner.subproblem import Slope, Subproblem

__all__ = [
    "ACCELERATED",
    "Accelerated",
    "Descent",
    "FixedMomentum",
    "InnerSolver",
    "Iterate",
    "NestedState",
    "Plain",
    "Slacked",
    "Slope",
    "Subproblem",
    "descend",
    "inner_step",
    "solved",
    "view",
]
