"""What an algorithm is: ``init`` and ``update``, nothing else.

No loop, clock, print or plot lives in this folder: `gdpa.solve` owns them.
"""

from __future__ import annotations

from typing import Protocol, TypeVar, runtime_checkable

from gdpa._problem import Problem
from gdpa._state import Probe, State
from gdpa._typing import Array

__all__ = ["Algorithm", "Probe", "State"]

S = TypeVar("S", bound=State)


@runtime_checkable
class Algorithm(Protocol[S]):
    """A frozen dataclass of hyper-parameters with ``init`` and ``update``. One gradient step per update."""

    def init(self, problem: Problem, x0: Array) -> S:
        """Return the state before the first update."""
        ...

    def update(self, problem: Problem, state: S) -> S:
        """Return the state after one gradient step; never changes ``state``."""
        ...
