"""Where the algebra of a run happens: on the device of x0, or on the host with only the problem on the device.

A method that works on many small vectors launches a hundred kernels in a step, and each waits for the one before. Up to
`MOST_VARIABLES` variables the host is faster, the transfer of values and derivatives included.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import array_api_compat

from gdpa.base.sets import Box, Reals
from gdpa.core.problem import map_arrays
from gdpa.methods.method import Method
from gdpa.run.progress import History, Run
from gdpa.run.result import Result
from gdpa.run.stopping import LIMITS

#: With more variables the device is faster. On an H200 a step of 1,000, 10,000 and 100,000 variables takes 2, 4 and
#: 35 ms with vectors on the host, and 8, 8 and 17 ms with vectors on the device (results/cuda).
MOST_VARIABLES = 20_000


def choose_device(
    problem: Any, x0: Any, run: Run | None, algorithm: Any, observers: tuple[Any, ...], rules: Any
) -> str | None:
    """Return the device of the problem if the run is on the host; None if it computes where x0 is.

    A run is on the host if x0 is on CUDA and has few variables, and the method's algebra is small. Observers and rules
    of the user expect arrays of the kind of x0. A run is continued where it was.
    """
    if run is not None:
        return run.device
    own_rules = observers or not all(isinstance(rule, LIMITS) for rule in rules or ())
    return None if own_rules or not _is_faster_on_host(problem, x0, algorithm) else str(x0.device)


def move_to_device(result: Result, problem: Any, device: str) -> Result:
    """Return the result with its arrays where x0 was; ``result.run`` stays on the host."""
    points = map_arrays(replace(result, run=None, history=History()), lambda array: problem.to_device(array, device))
    return replace(points, run=result.run, history=result.history)


def _is_faster_on_host(problem: Any, x0: Any, algorithm: Any) -> bool:
    if not isinstance(algorithm, Method) or not algorithm.works_on_host or not isinstance(problem.domain, (Reals, Box)):
        return False
    return bool(array_api_compat.is_torch_array(x0) and x0.is_cuda and x0.ndim == 1 and len(x0) <= MOST_VARIABLES)
