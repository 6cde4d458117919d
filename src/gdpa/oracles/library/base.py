"""Test problems that certify themselves."""

from __future__ import annotations

from dataclasses import dataclass

from gdpa.base.typing import Array
from gdpa.core.problem import Problem

#: Kinds of problems; only the first has an answer.
KINDS = ("solvable", "infeasible", "unbounded")


@dataclass(frozen=True)
class TestProblem:
    """A small problem with a recorded answer and where it comes from.

    Attributes:
        name: how to ask for it, see `gdpa.problems.get`.
        problem: the oracle and the set X, in NumPy double precision.
        x0: the source's start.
        solution: a KKT point x*; None if there is none.
        multipliers: its multipliers; None if there is no solution.
        source: where the problem and its answer come from.
        kind: "solvable", "infeasible" or "unbounded".
    """

    __test__ = False  # not a class of tests, whatever its name

    name: str
    problem: Problem
    x0: Array
    solution: Array | None
    multipliers: Array | None
    source: str
    kind: str = "solvable"
