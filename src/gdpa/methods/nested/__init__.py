"""What the methods share: the subproblem, the descent step, and the inner solvers. Each exists once."""

from gdpa.methods.nested.descent import Descent, descend
from gdpa.methods.nested.forms import Plain, Slacked, view
from gdpa.methods.nested.solvers import ACCELERATED, Accelerated, FixedMomentum, InnerSolver, Iterate, solved
from gdpa.methods.nested.state import NestedState, inner_step
from gdpa.methods.nested.subproblem import Slope, Subproblem

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
