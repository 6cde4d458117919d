"""What a computation in torch keeps in memory, and how often it would wait for a device, counted on any machine."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: Operations whose result the host needs: on a device it waits for them.
WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")


class Storages(TorchDispatchMode):
    """Counts, inside ``with``, the storages that are alive, and the transfers that a host waits for.

    Temporary arrays inside one operation of torch do not count, nor do arrays of NumPy.

    Attributes:
        peak: the largest number of bytes alive at one time, of storages of at least ``least`` bytes.
        waits: how many numbers or arrays went to the host.

    >>> with Storages() as seen:
    ...     x = torch.ones(8, dtype=torch.float64)
    ...     y = float((x + x).sum())
    >>> seen.peak, seen.waits
    (136, 1)
    """

    def __init__(self, least: int = 0) -> None:
        super().__init__()
        self.least, self.alive, self.peak, self.waits = least, 0, 0, 0
        self._known: set[int] = set()

    def __enter__(self) -> Storages:
        to_host: Callable[..., Any] = torch.Tensor.cpu

        def counted(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
            self.waits += 1  # of a tensor on the host it is no operation
            return to_host(tensor, *arguments, **options)

        self._patch = mock.patch.object(torch.Tensor, "cpu", counted)
        self._patch.start()
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._patch.stop()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        found = function(*arguments, **(options or {}))
        self.waits += function.name() in WAITS
        for part in tree_leaves(found):
            if isinstance(part, torch.Tensor):
                self._see(part.untyped_storage())
        return found

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or size < self.least:
            return
        self._known.add(key)
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.alive -= size
