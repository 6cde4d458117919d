"""All rows of a Jacobian by batched backward passes of torch, and a torch function on CUDA as captured graphs.

There is one graph for its values, one for a pullback, one for all derivatives. They share their memory: a pullback at a
point repeats its forward pass if another one was made since.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gdpa.base.arrays import stacked
from gdpa.core.problem import Evaluation

_logger = logging.getLogger("gdpa")

#: Eager passes before a capture: lazy initialization of libraries must not be captured.
WARM_UP = 3
#: All derivatives of a captured function are one batched launch. They count as one backward pass if the batch keeps at
#: most this many numbers: a kernel on fewer takes about as long as its launch (16 MB at 4 TB/s). That of mNPC keeps 0.4
#: million. A network that keeps 42 million takes 8 times as long for 4 rows as for one pullback (results/cuda).
ONE_LAUNCH = 4_000_000
#: Every CHECK_EVERY-th forward pass is repeated eagerly and compared, so that a function whose values depend on more
#: than x (random numbers, counters) is noticed.
CHECK_EVERY = 100
#: Allowed relative difference between the replayed and the eager values, in square roots of the dtype's epsilon.
#: Kernels may sum in another order; another minibatch differs by far more.
ALLOWED = 1.0
#: Below this many rows single backward passes are as fast. Measured on a CPU: 3 rows of a small function take 0.18 ms
#: one by one and 0.16 ms batched, 10 rows 0.68 ms and 0.18 ms, 30 rows of a network 39 ms and 28 ms.
FEW_ROWS = 4
#: Rows pulled back at once; a batch of rows needs as many times the memory of one backward pass.
BLOCK = 64

Function = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class NotCapturable(RuntimeError):  # noqa: N818  (an answer that `from_torch` acts on)
    """The function cannot be captured: it synchronizes, fails under capture, or is not a function of x alone."""


class Rows:
    """Pulls all rows of J back: in blocks if the function allows it, else one by one.

    A function that uses an operation without a batching rule is pulled back row by row from then on. A block that does
    not fit into the device's memory is halved.
    """

    def __init__(self) -> None:
        self._block = BLOCK

    def __call__(self, g: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        """Return J of shape (m, d) from g of shape (m,), computed from ``leaf`` of shape (d,)."""
        units = torch.eye(g.shape[-1], dtype=g.dtype, device=g.device)
        if len(units) == 0:
            return leaf.new_zeros((0, *leaf.shape))
        if len(units) < FEW_ROWS or self._block == 1:
            return stacked((_pull(g, leaf, unit) for unit in units), len(units), leaf)  # type: ignore[no-any-return]
        try:
            with warnings.catch_warnings():
                # A warning that an operation has no batching rule, and so is looped over slowly.
                warnings.filterwarnings("error", message=".*batching rule.*")
                blocks = torch.split(units, self._block)
                return torch.cat([_pull(g, leaf, block, batched=True) for block in blocks])
        except torch.OutOfMemoryError:
            self._block //= 2
        except (RuntimeError, UserWarning):  # no batching rule for an operation of the function
            self._block = 1
        return self(g, leaf)


def _pull(g: torch.Tensor, leaf: torch.Tensor, weights: torch.Tensor, batched: bool = False) -> torch.Tensor:
    (rows,) = torch.autograd.grad(
        g, leaf, weights, retain_graph=True, allow_unused=True, is_grads_batched=batched, materialize_grads=True
    )
    return rows


class CapturedEvaluation(Evaluation):
    """An oracle call of a captured function: ``values`` are (f, g), ``derivatives()`` grad f and the rows of J.

    If the derivatives are being computed already (``ahead``), a pullback of them costs nothing.
    """

    __slots__ = ("ahead", "derivatives", "values")

    def __init__(
        self, values: torch.Tensor, pullback: Any, derivatives: Callable[[], torch.Tensor], ahead: bool, passes: int
    ) -> None:
        super().__init__(values[0], values[1:], pullback, lambda: derivatives()[1:], passes)
        self.values, self.derivatives, self.ahead = values, derivatives, ahead


@contextmanager
def _no_collection() -> Iterator[None]:
    """Let Python collect no garbage: a graph of an earlier problem that is freed during a capture ends it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Graph:
    """A function without arguments whose tensor is computed by a captured graph, captured at the first call.

    ``rehearse`` calls the function once before the capture, so that it learns there which operations it cannot batch.
    """

    def __init__(self, function: Callable[[], torch.Tensor], pool: Any, stream: Any, rehearse: bool = False) -> None:
        self._function, self._pool, self._stream, self._rehearse = function, pool, stream, rehearse
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: torch.Tensor | None = None

    def __call__(self) -> torch.Tensor:
        """Return the tensor, which the next call overwrites; raise `NotCapturable` if the capture fails."""
        if self._graph is None or self._result is None:
            graph = torch.cuda.CUDAGraph()
            try:
                if self._rehearse:
                    self._function()
                    torch.cuda.synchronize(self._stream.device)
                with _no_collection(), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                    self._result = self._function()
            except Exception as error:
                raise NotCapturable(str(error).partition("\n")[0]) from error
            self._graph = graph
        self._graph.replay()
        return self._result


class CapturedOracle:
    """The oracle of ``function`` at points of one shape, dtype and device, by captured CUDA graphs.

    If the Jacobian was asked for at the last point, all derivatives at the next one are computed along with its values.
    ``eager`` is the oracle without capture, for derivatives that cannot be captured; ``failure`` is the reason.
    """

    def __init__(self, function: Function, x: torch.Tensor, eager: Callable[[torch.Tensor], Evaluation]) -> None:
        self._function, self._eager = function, eager
        self.failure: str | None = None
        self._x = x.detach().clone().requires_grad_(True)
        self._stream = torch.cuda.Stream(x.device)  # type: ignore[no-untyped-call]
        self._asked = False
        self.passes = 0
        kept, rows_of = self._warm_up(), Rows()
        shared = torch.cuda.graph_pool_handle(), self._stream
        self._forward = _Graph(lambda: self._joined(self._x), *shared)
        self._values = self._forward()
        self._weights = torch.zeros_like(self._values)
        self._pullback = _Graph(self._differentiate, *shared)
        self._rows = _Graph(lambda: rows_of(self._values, self._x), *shared, rehearse=True)
        m = len(self._values) - 1
        self._passes = 1 if (m + 1) * kept <= ONE_LAUNCH else m

    def fits(self, x: torch.Tensor) -> bool:
        """Return whether ``x`` has the shape, dtype and device of the capture."""
        return x.shape == self._x.shape and x.dtype == self._x.dtype and x.device == self._x.device

    def evaluate(self, x: torch.Tensor) -> CapturedEvaluation:
        """Return the oracle call at ``x``; raise `NotCapturable` if an eager call there gives other values."""
        point = x.detach().clone()
        number = self._replay_forward(point)
        ahead, self._asked = self._asked, False
        known = self._rows().detach().clone() if ahead else None
        values = self._values.detach().clone()
        if (self.passes - 1) % CHECK_EVERY == 0:
            self._check(point, values)

        def pullback(w: torch.Tensor, objective: Any = 1.0) -> torch.Tensor:
            if known is not None:
                weights = torch.as_tensor(w, dtype=known.dtype, device=known.device)
                return torch.addmv(objective * known[0], known[1:].T, weights)
            self._return_to(number, point)
            self._weights[0] = objective
            self._weights[1:] = torch.as_tensor(w, dtype=values.dtype, device=values.device)
            try:
                return self._pullback().detach().clone()
            except NotCapturable as error:
                self.failure = str(error)
                gradient: torch.Tensor = self._eager(point).pullback(self._weights[1:], objective)
                return gradient

        def derivatives() -> torch.Tensor:
            nonlocal known
            self._asked = True
            if known is None:
                self._return_to(number, point)
                try:
                    known = self._rows().detach().clone()
                except NotCapturable as error:
                    self.failure, self._asked = str(error), False
                    now = self._eager(point)
                    known = torch.cat([now.gradient()[None], now.jacobian()])
            return known

        return CapturedEvaluation(values, pullback, derivatives, ahead, self._passes)

    def _replay_forward(self, point: torch.Tensor) -> int:
        self._x.data.copy_(point)  # by .data: to autograd the captured x never changes
        self._forward()
        self.passes += 1
        return self.passes

    def _return_to(self, number: int, point: torch.Tensor) -> None:
        """Repeat the forward pass at ``point`` unless the last one was made there."""
        if number != self.passes:
            self._replay_forward(point)

    def _joined(self, x: torch.Tensor) -> torch.Tensor:
        f, g = self._function(x)
        return torch.cat([f[None], g])

    def _differentiate(self) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(
            self._values, self._x, self._weights, retain_graph=True, materialize_grads=True, allow_unused=True
        )
        return gradient

    def _warm_up(self) -> int:
        """Call the function as often as a capture needs; return how many numbers it keeps for a backward pass."""
        self._stream.wait_stream(torch.cuda.current_stream(self._x.device))
        try:
            with torch.cuda.stream(self._stream), torch.enable_grad():
                for _ in range(WARM_UP):
                    f, g = self._function(self._x)
                    values = [v.sum() for v in (f, g) if v.requires_grad and v.numel()]
                    torch.autograd.grad(values, self._x, allow_unused=True)
                kept = numbers_kept(self._function, self._x)
        except Exception as error:
            raise NotCapturable(str(error).partition("\n")[0]) from error
        torch.cuda.current_stream(self._x.device).wait_stream(self._stream)
        return kept

    def _check(self, point: torch.Tensor, replayed: torch.Tensor) -> None:
        with torch.no_grad():
            eager = self._joined(point)
            allowed = ALLOWED * torch.finfo(eager.dtype).eps ** 0.5 * (1 + eager.abs())
            same = ((replayed - eager).abs() <= allowed) | (~replayed.isfinite() & ~eager.isfinite())
            if not bool(same.all()):
                raise NotCapturable("its values depend on more than x (random numbers, a counter, changing data)")


def numbers_kept(function: Function, x: torch.Tensor) -> int:
    """Return how many numbers that depend on x a forward pass keeps for a backward pass.

    >>> x, data = torch.ones(2, requires_grad=True), torch.ones(5, 2)
    >>> numbers_kept(lambda x: (torch.tanh(data @ x).sum(), x), x)  # tanh keeps its five values, not the data
    5
    """
    total = 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal total
        total += tensor.numel() if tensor.requires_grad else 0
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        function(x)
    return total


def captured(function: Function, eager: Callable[[torch.Tensor], Evaluation], wanted: bool | None) -> Any:
    """Return an oracle that replays ``function`` on CUDA and falls back to ``eager``, with the reason.

    ``wanted=True`` warns if the function cannot be captured; None only logs it.
    """
    oracle: CapturedOracle | None = None
    calls, is_off = 0, False

    def evaluate(x: torch.Tensor) -> Evaluation:
        nonlocal oracle, calls, is_off
        calls += 1
        if is_off or not getattr(x, "is_cuda", False) or x.ndim != 1 or calls <= WARM_UP:
            return eager(x)
        try:
            oracle = CapturedOracle(function, x, eager) if oracle is None else oracle
            if oracle.failure is not None:
                raise NotCapturable(oracle.failure)
            if not oracle.fits(x):
                raise NotCapturable(f"x changed to shape {tuple(x.shape)}, {x.dtype}, {x.device}")
            return oracle.evaluate(x)
        except NotCapturable as error:
            oracle, is_off = None, True
            message = f"from_torch evaluates without a captured graph: {error}; capture=False does so without trying"
            if wanted:
                warnings.warn(message, RuntimeWarning, stacklevel=2)
            else:
                _logger.info(message)
            return eager(x)

    return evaluate
