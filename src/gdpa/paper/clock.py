"""The clock of an experiment: processor time of a method's own computing.

Wall-clock time depends on the other work of the machine, so a budget in wall-clock seconds would decide differently on
a busy machine. Processor time is charged to `init` and `update` of a method and to nothing else.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

from gdpa.base.status import Status
from gdpa.core.problem import Problem
from gdpa.methods.base import State
from gdpa.run.solve import solve
from gdpa.run.stopping import MaxSteps, StopRule

#: Steps of the warm-up, enough to import and allocate everything that a method uses.
WARM_UP = 3


class Clock:
    """Counts the processor time of one method, over all threads of the process, in ``seconds``."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, method: Any) -> Any:
        """Return a copy of the method whose ``init`` and ``update`` are on the clock."""

        def counting(compute: Callable[..., State]) -> Callable[..., State]:
            def counted(*arguments: Any) -> State:
                start = time.process_time()
                try:
                    return compute(*arguments)
                finally:
                    self.seconds += time.process_time() - start

            return counted

        watched = copy.copy(method)
        for name in ("init", "update"):
            object.__setattr__(watched, name, counting(getattr(method, name)))  # a frozen dataclass
        return watched

    def stop_at(self, budget: float | None) -> StopRule:
        """Return a stop rule for ``budget`` seconds on this clock (None: no end)."""
        return lambda progress: Status.MAX_TIME if budget is not None and self.seconds >= budget else None


def warm_up(method: Any, problem: Problem, x0: Any) -> None:
    """Run a few steps on a small problem, so that imports and first allocations are on nobody's clock."""
    solve(problem, x0, method, stop=MaxSteps(WARM_UP), record=0)
