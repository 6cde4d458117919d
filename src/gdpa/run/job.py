"""The processes that run one solve side by side, each with the same numbers; most often there is one."""

from __future__ import annotations

import time
from typing import Any, Protocol


class Job(Protocol):
    """The job of a problem that several processes solve together: the attribute ``job`` of a `Problem`.

    Attributes:
        rank: the place of this process; the first one, 0, writes files and displays.
    """

    rank: int

    def clock(self) -> float:
        """Return seconds, the same in all processes at the same place of the run."""
        ...

    def note(self) -> str:
        """Return a note for displays."""
        ...


class Alone:
    """The job of an ordinary problem: this process."""

    rank = 0

    def clock(self) -> float:
        return time.perf_counter()

    def note(self) -> str:
        return ""


def job_of(problem: Any) -> Job:
    """Return the job of a problem.

    >>> job_of(None).rank
    0
    """
    return getattr(problem, "job", None) or Alone()
