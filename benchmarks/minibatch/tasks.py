"""All tasks by name."""

from __future__ import annotations

from benchmarks.minibatch import classic, shapes
from benchmarks.minibatch.task import Batch, Task, Values

NAMES = (*classic.NAMES, *shapes.NAMES)


def make(name: str) -> Task:
    """Return the task called ``name``; see `NAMES`."""
    if name in classic.NAMES:
        return classic.make(name)
    if name in shapes.NAMES:
        return shapes.make(name)
    raise ValueError(f"no task is called {name!r}; there are {NAMES}")


__all__ = ["NAMES", "Batch", "Task", "Values", "make"]
