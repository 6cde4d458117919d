"""Shards on the ranks of torch.distributed. Every rank runs the same solve; values are gathered and added in one order.

A rank decides from numbers that all ranks have, bit by bit: values and gradients added in the order of the ranks, the
clock of the first rank, and signals that any rank has noted. So no rank takes a path of its own. Collectives stay out
of autograd: a rank computes its sums and its gradient first, then they are exchanged.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from gdpa.base.checks import check_limit
from gdpa.base.signals import StopRequest
from gdpa.base.typing import Vector
from gdpa.sharded.shard import Engine, Recipe, ShardError, add, make

#: The numbers before the sums in a message: failed, seconds, signal, checksum of x.
HEADER = 4
#: Seconds that a rank waits for the others at its end; one that failed does not come.
LEAVING = 10.0


class Torch(Engine):
    """The shards are dealt to the ranks in order; a script that is started without ``torchrun`` has one rank.

    Args:
        group: the process group; default all ranks. They are connected by this object if they are not yet.
        backend: "gloo" or "nccl"; default "gloo", whose numbers travel from host to host. It is the faster one if the
            run's own vectors are on the host.
        timeout: seconds for each exchange, the wait for the slowest rank included. After it the job ends with an error.
    """

    name = "torch"

    def __init__(self, group: Any = None, backend: str = "gloo", timeout: float = 600.0) -> None:
        check_limit(timeout=timeout)
        self._timeout, self._device = timeout, "cpu"
        limit = timedelta(seconds=timeout)
        if not dist.is_initialized() and "WORLD_SIZE" in os.environ and "MASTER_ADDR" in os.environ:
            _connect(backend, limit)
        self.world, self.rank = 1, 0
        if dist.is_initialized():
            self._group = dist.new_group(backend=backend, timeout=limit) if group is None else group
            self.world, self.rank = dist.get_world_size(self._group), dist.get_rank(self._group)
            if dist.get_backend(self._group) == "nccl":
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
                self._device = "cuda"
        self._length, self._seconds, self._begin = 0, 0.0, time.perf_counter()
        self._lost = ""

    def start(self, recipes: Sequence[Recipe]) -> None:
        count = len(recipes)
        if count < self.world:
            raise ValueError(f"shards has {count} shards for {self.world} ranks; give at least one for each rank")
        self._ends = [count * (rank + 1) // self.world for rank in range(self.world)]
        self._first, end = (0, *self._ends)[self.rank], self._ends[self.rank]
        self._shards = []
        self._together(lambda: self._shards.extend(make(recipes[i], i) for i in range(self._first, end)))

    def ask(self, question: str, *arguments: Any) -> list[Any]:
        parts = self._together(lambda: super(Torch, self).ask(question, *arguments))
        return [answer for part in parts for answer in part]

    def total(self, answers: Sequence[Vector]) -> Vector:
        self._length = len(answers[0])
        return add([add(answers[a:b]) for a, b in zip([0, *self._ends], self._ends, strict=False)])

    def add(self, question: str, *arguments: Any) -> Vector:
        if self.world == 1:
            return super().add(question, *arguments)
        x, k = arguments[0], self._length
        shape = {"sums": (k,), "pullback": x.shape, "rows": (k, *x.shape)}[question]
        found, error = _attempt(lambda: self._own(question, shape, *arguments))
        if found is None:
            found = np.zeros(shape, x.dtype)
        return self._add_sums(x, found, error) if question == "sums" else self._add_large(found, error)

    def agree(self, facts: Any) -> None:
        for rank, other in enumerate(self._together(lambda: facts)):
            for key, value in facts.items():
                if other[key] != value:
                    raise ValueError(
                        f"rank {rank} and rank {self.rank} differ in {key}: {other[key]} and {value}; start all ranks "
                        "with the same code, versions, shards and x0, and seed random starts"
                    )

    def clock(self) -> float:
        return self._seconds if self.world > 1 else time.perf_counter()

    def _own(self, question: str, shape: tuple[int, ...], *arguments: Any) -> Vector:
        """Return the sum over the shards of this rank."""
        found = add(super().ask(question, *arguments))
        if found.shape != shape:
            raise ShardError(f"shard {self._first} returned shape {found.shape} from {question}, expected {shape}")
        return found

    def _add_sums(self, x: Vector, found: Vector, error: ShardError | None) -> Vector:
        """Gather the sums of all ranks, with the clock, signals and a checksum of x, and add them in order."""
        seconds = time.perf_counter() - self._begin
        gathered = self._gather(np.append([error is not None, seconds, StopRequest.noted(), _checksum(x)], found))
        failed, clocks, signals, checksums = gathered[:, :HEADER].T
        if failed.any():
            self._together(error)
        other = checksums != checksums[0]
        if other.any():
            raise ShardError(
                f"the ranks have parted: x differs between rank 0 and rank {int(other.argmax())}; their "
                "processors or libraries round differently. Run all ranks on one kind of machine, or use Ray"
            )
        self._seconds = float(clocks[0])
        StopRequest.agree(int(signals.max()))
        return add(list(gathered[:, HEADER:]))

    def _add_large(self, found: Vector, error: ShardError | None) -> Vector:
        """Add arrays of all ranks in order: each rank adds one piece of them, then the pieces are gathered."""
        size = -(-found.size // self.world)
        padded = np.pad(found.ravel(), (0, self.world * size - found.size)).reshape(self.world, -1)
        message = np.column_stack([np.full(self.world, error is not None, found.dtype), padded])
        sent = torch.from_numpy(message).to(self._device)
        received = torch.empty_like(sent)
        self._call(dist.all_to_all_single, received, sent)
        pieces = received.cpu().numpy()
        if pieces[:, 0].any():
            self._together(error)
        return self._gather(add(list(pieces[:, 1:]))).ravel()[: found.size].reshape(found.shape)

    def _gather(self, numbers: Vector) -> Vector:
        """Return the vectors of all ranks as rows."""
        sent = torch.from_numpy(np.ascontiguousarray(numbers)).to(self._device)
        received = [torch.empty_like(sent) for _ in range(self.world)]
        self._call(dist.all_gather, received, sent)
        return torch.stack(received).cpu().numpy()

    def _together(self, work: Callable[[], Any] | ShardError | None) -> list[Any]:
        """Return the results of ``work`` on all ranks; raise on all of them if one raised, or has an error already."""
        found, error = _attempt(work) if callable(work) else (None, work)
        if self.world == 1:
            if error is not None:
                raise error
            return [found]
        gathered: list[Any] = [None] * self.world
        self._call(dist.all_gather_object, gathered, (found, None if error is None else str(error)))
        for rank, (_, message) in enumerate(gathered):
            if message is not None:
                raise ShardError(f"{message} (rank {rank})") from error
        return [value for value, _ in gathered]

    def _call(self, collective: Callable[..., Any], *arguments: Any) -> None:
        if self._lost:
            raise ShardError(self._lost)
        try:
            collective(*arguments, group=self._group)
        except RuntimeError as error:
            self._lost = (
                f"a rank was lost, or gave no answer within {self._timeout:g} s: {error}; start with torchrun "
                "--max-restarts=3 and solve with checkpoint=... and resume=True, and the ranks continue"
            )
            raise ShardError(self._lost) from error


def _connect(backend: str, limit: timedelta) -> None:
    """Connect the ranks that torchrun started.

    After a restart, torchrun's store still has the addresses of the processes before it, and gloo would wait for them.
    So each start on one machine has a prefix of its own. On several machines the counts of restarts differ, and
    ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`` makes torchrun start a new store.
    """
    store, rank, world = next(iter(rendezvous("env://", timeout=limit)))
    alone = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if alone else "0"
    own = dist.PrefixStore(f"gdpa-{start}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=own, rank=rank, world_size=world, timeout=limit)
    atexit.register(_leave)


def _leave() -> None:
    """Leave with the other ranks: gloo may abort a rank whose peer is gone."""
    with suppress(Exception):
        dist.monitored_barrier(timeout=timedelta(seconds=LEAVING))
    with suppress(Exception):
        dist.destroy_process_group()


def _checksum(x: Vector) -> int:
    """Return a number below 2^53 that changes with the bits of x."""
    words = np.ascontiguousarray(x).view(f"u{x.itemsize}")
    return int(words.sum(dtype=np.uint64)) % (1 << 53)


def _attempt(work: Callable[[], Any]) -> tuple[Any, ShardError | None]:
    """Return the result or the error, so that the ranks meet in the exchange that follows."""
    try:
        return work(), None
    except ShardError as error:
        return None, error
