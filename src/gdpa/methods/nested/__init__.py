"""Shared parts of the methods: the function to descend on, the descent step, and the inner solvers."""

from gdpa.methods.nested.inner import (
    ACCELERATED,
    Accelerated,
    FixedMomentum,
    Form,
    InnerSolver,
    NestedMethod,
    NestedState,
    inner_step,
    solved,
)
from gdpa.methods.nested.subproblem import GROW, SHRINK, Slope, Subproblem, descend

__all__ = [
    "ACCELERATED",
    "GROW",
    "SHRINK",
    "Accelerated",
    "FixedMomentum",
    "Form",
    "InnerSolver",
    "NestedMethod",
    "NestedState",
    "Slope",
    "Subproblem",
    "descend",
    "inner_step",
    "solved",
]
