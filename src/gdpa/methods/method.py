"""The parts of a method besides its mathematics: a card for tables, presets, refusals and the first state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from gdpa.base.arrays import namespace
from gdpa.base.typing import Operand
from gdpa.core.problem import Evaluation, Problem
from gdpa.methods.base import State


class UnsupportedProblemError(ValueError):
    """A method was given a problem outside its class; the message gives the reason."""


class MethodCard(NamedTuple):
    """The row of a method in a table. Every field has a default: a new method needs no card.

    Attributes:
        name: the method with its source; the name of the class if empty.
        framework: the kind of method.
        constraint: the class of the constraint functions ("ncvx": nonconvex).
        constraint_type: equality or inequality.
        loops: single-loop, double-loop or triple-loop.
        complexity: the rate as the paper's Table 1 prints it; "none" if no rate is known.
        own_claim: the rate the method's own paper claims, if that is another one.
        in_table1: whether the row stands in the paper's Table 1.
    """

    name: str = ""
    framework: str = "-"
    constraint: str = "ncvx"
    constraint_type: str = "inequality, equality"
    loops: str = "single-loop"
    complexity: str = "none"
    own_claim: str = ""
    in_table1: bool = False


S = TypeVar("S", bound=State)


class Method:
    """The part of a method that is not mathematics: a mixin of the algorithm classes."""

    #: The method's row in tables.
    card: ClassVar[MethodCard] = MethodCard()
    #: Whether leading axes of x0, a batch of problems, are solved side by side; False if loops branch on the data.
    batches: ClassVar[bool] = True
    #: Whether `gdpa.solve` repeats a step that led to a value that is not finite, shortened by the projection on X;
    #: False if the method does so itself, or does not project.
    retried: ClassVar[bool] = True
    #: Whether the method's own algebra consists of many small operations, which a host does faster than a device.
    works_on_host: ClassVar[bool] = False
    #: The constants of the paper's appendix, by experiment ("mnpc", "network").
    printed_constants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @classmethod
    def printed(cls, experiment: str) -> Self:
        """Return the method with the constants the paper's appendix prints for "mnpc" or "network".

        >>> from gdpa import IPPP
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

        >>> from gdpa import PDD
        >>> PDD.tuned() == PDD()
        True
        """
        return cls()

    def objection(self, problem: Problem, x0: Operand, start: Evaluation) -> str:
        """Return why this method cannot solve ``problem``, or "" if it can.

        Args:
            problem: the problem.
            x0: the start.
            start: the oracle call at ``x0``.
        """
        return ""

    def begin(self, problem: Problem, x0: Operand) -> Evaluation:
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

    def first_state(self, kind: type[S], x0: Operand, start: Evaluation, **more: Any) -> S:
        """Return the state before the first update: multipliers zero, the oracle call ``start``, no probe.

        Args:
            kind: the class of the state.
            x0: the start.
            start: the oracle call there, which `begin` returned.
            more: further fields of ``kind``, or others than these.
        """
        zeros = namespace(start.constraints).zeros_like(start.constraints)
        fields = {"step": 0, "x": x0, "multipliers": zeros, "evaluation": start, "probe": None}
        return kind(**(fields | more))

    def init(self, problem: Problem, x0: Operand) -> Any:
        """Return the state before the first update; a method with a state of its own has its own ``init``."""
        return self.first_state(State, x0, self.begin(problem, x0))
