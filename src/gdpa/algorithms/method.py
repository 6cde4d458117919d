"""What every method of the comparison says about itself: its row of the paper's Table 1, its presets, its limits."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

from gdpa.problem import Evaluation, Problem
from gdpa.typing import Array


class UnsupportedProblemError(ValueError):
    """A method was given a problem outside its class; the message says what is in the way."""


class Table1Row(NamedTuple):
    """One row of the paper's Table 1.

    Attributes:
        name: the method as the paper calls it.
        framework: the kind of method.
        constraint: what the constraint functions may be.
        constraint_type: equality or inequality.
        loops: single-loop, double-loop or triple-loop.
        complexity: the rate as Table 1 prints it; "none" where no rate is known.
        own_claim: the rate the method's own paper claims, where that is another one.
        in_table1: whether the row stands in Table 1, or is ours for a method of the related work.
    """

    name: str
    framework: str
    constraint: str
    constraint_type: str
    loops: str
    complexity: str
    own_claim: str = ""
    in_table1: bool = False


class Method:
    """The part of a method that is not mathematics: a mixin of the algorithm classes."""

    #: The method's row of Table 1.
    table1: ClassVar[Table1Row]
    #: Whether leading axes of x0, a batch of problems, are solved side by side; not where loops branch on the data.
    batches: ClassVar[bool] = True
    #: Whether the method cuts steps itself if they lead to a value that is not finite; if not, the loop does.
    cuts_steps: ClassVar[bool] = False
    #: The constants of the paper's appendix, by experiment ("mnpc", "network").
    printed_constants: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})

    @classmethod
    def printed(cls, experiment: str) -> Self:
        """Return the method with the constants the paper's appendix prints for "mnpc" or "network".

        >>> from gdpa.algorithms.ippp import IPPP
        >>> IPPP.printed("mnpc").beta
        0.001
        """
        if not cls.printed_constants:
            raise ValueError(f"the paper's appendix prints no constants for {cls.__name__}; use {cls.__name__}.tuned()")
        if experiment not in cls.printed_constants:
            raise ValueError(
                f"experiment must be one of {', '.join(map(repr, cls.printed_constants))}, got {experiment!r}"
            )
        return cls(**cls.printed_constants[experiment])

    @classmethod
    def tuned(cls) -> Self:
        """Return the method with the constants tuned on the certified problems: its defaults.

        >>> from gdpa.algorithms.pdd import PDD
        >>> PDD.tuned() == PDD()
        True
        """
        return cls()

    def objection(self, problem: Problem, x0: Array, start: Evaluation) -> str:
        """Return why this method cannot solve ``problem``, or "" where it can.

        Args:
            problem: the problem.
            x0: the start.
            start: the oracle call at ``x0``.
        """
        return ""

    def begin(self, problem: Problem, x0: Array) -> Evaluation:
        """Return the oracle call at the start, or raise `UnsupportedProblemError` with the method's objection."""
        name = type(self).__name__
        if x0.ndim > 1 and not self.batches:
            raise UnsupportedProblemError(
                f"{name} cannot solve this problem: x0 has shape {tuple(x0.shape)}, a batch of problems, "
                "but its loops branch on the data; solve them one by one"
            )
        start = problem.evaluate(x0)
        objection = self.objection(problem, x0, start)
        if objection:
            raise UnsupportedProblemError(f"{name} cannot solve this problem: {objection}")
        return start
