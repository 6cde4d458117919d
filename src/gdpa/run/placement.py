"""Where the algebra of a run happens: on the device of x0, or on the host with only the problem on the device.

A method that works on many small vectors launches a hundred kernels in a step, and each waits for the one before. Up to
`MOST_VARIABLES` variables the host is faster, the transfer of values and derivatives included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import array_api_compat

from gdpa.base.arrays import to_numpy
from gdpa.base.sets import Box, Reals
from gdpa.base.typing import Array
from gdpa.core.detach import with_arrays
from gdpa.core.problem import Problem
from gdpa.methods.method import Method
from gdpa.run.result import History, Result
from gdpa.run.run import Run
from gdpa.run.stopping import KKTBelow

#: With more variables the device is faster. On an H200 a step of 1,000, 10,000 and 100,000 variables takes 2, 4 and
#: 35 ms with vectors on the host, and 8, 8 and 17 ms with vectors on the device (results/cuda).
MOST_VARIABLES = 20_000


@runtime_checkable
class DeviceProblem(Protocol):
    """A problem that runs on a device and can take its points from the host."""

    def on_host(self, device: str) -> Problem:
        """Return the problem for NumPy points; its functions run on ``device``."""
        ...

    def to_device(self, array: Array, device: str) -> Array:
        """Return a NumPy array as an array of the problem's own kind on ``device``."""
        ...


class Placement(NamedTuple):
    """What a run computes with.

    Attributes:
        problem: the problem that the method sees.
        given: the problem of the user.
        device: the device that the problem runs on if the arrays of the run are on the host; else None.
    """

    problem: Problem
    given: Any
    device: str | None

    def inward(self, array: Any) -> Any:
        """Return what the user gave as the method takes it."""
        return array if self.device is None or array is None else to_numpy(array)

    def outward(self, result: Result) -> Result:
        """Return the result with its arrays where x0 was; the run, from which another continues, stays as it is."""
        if self.device is None:
            return result
        points = with_arrays(replace(result, run=None, history=History()), self._to_device)
        return replace(points, run=result.run, history=result.history)

    def _to_device(self, array: Array) -> Array:
        return self.given.to_device(array, self.device)


def placed(problem: Problem, x0: Any, run: Run | None, algorithm: Any, watched: bool) -> Placement:
    """Return where a run computes: on the host if x0 is on CUDA, has few variables, and the method's algebra is small.

    Args:
        problem: the problem.
        x0, run: the start, or the run that is continued; it continues where it was.
        algorithm: the method.
        watched: whether functions of the user look on, which expect arrays of the kind of x0.
    """
    device: str | None = None
    if isinstance(problem, DeviceProblem):
        if run is not None:
            device = run.device
        elif not watched and _is_faster_on_host(problem, x0, algorithm):
            device = str(x0.device)
        if device is not None:
            return Placement(problem.on_host(device), problem, device)
    return Placement(problem, problem, None)


def _is_faster_on_host(problem: Problem, x0: Any, algorithm: Any) -> bool:
    if not isinstance(algorithm, Method) or not algorithm.works_on_host or not isinstance(problem.domain, (Reals, Box)):
        return False
    return bool(array_api_compat.is_torch_array(x0) and x0.is_cuda and x0.ndim == 1 and len(x0) <= MOST_VARIABLES)


def is_watched(observers: tuple[Any, ...], stop: Any) -> bool:
    """Tell whether observers, or stop rules other than the library's own, look on.

    >>> is_watched((), KKTBelow(1e-3)), is_watched((print,), None), is_watched((), [lambda progress: None])
    (False, True, True)
    """
    rules = () if stop is None else stop if isinstance(stop, Iterable) else (stop,)
    return bool(observers) or any(type(rule).__module__ != KKTBelow.__module__ for rule in rules)
