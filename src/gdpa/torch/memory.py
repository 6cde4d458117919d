"""Fast reading and writing of the dual state's tensors on the CPU.

Indexing a tensor costs about a microsecond; a window on the tensor's memory costs a tenth of it. The tensors stay the
one place where the state is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from gdpa.torch import _compat

#: Up to this many constraints on the CPU the dual update goes number by number.
FEW = 8
_NUMPY: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


class Memory:
    """Windows on tensors, by the name of their entry; a window is renewed if its tensor was replaced.

    >>> memory, dual = Memory(), {"multipliers": torch.tensor([1.0, 2.0])}
    >>> memory.lists(dual, ["multipliers"], torch.zeros(2))["multipliers"]
    [1.0, 2.0]
    >>> memory.write(dual, "multipliers", [3.0, 4.0])
    >>> dual["multipliers"].tolist()
    [3.0, 4.0]
    """

    def __init__(self) -> None:
        self._windows: dict[str, tuple[torch.Tensor, Any]] = {}
        self._weights: tuple[torch.Tensor, Any] | None = None
        self._unmeasured: tuple[torch.Tensor, int, bool] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_windows": {}, "_weights": None, "_unmeasured": None}  # windows belong to their tensors

    def _window(self, key: str, value: torch.Tensor) -> Any:
        known = self._windows.get(key)
        if known is None or known[0] is not value:
            array: Any = value.numpy()
            known = self._windows[key] = (value, memoryview(array))
        return known[1]

    def lists(self, dual: dict[str, Any], keys: Iterable[str], limit: torch.Tensor) -> dict[str, Any]:
        """Return a copy of the dual state with the vectors ``keys`` as lists."""
        view = dual.copy()
        for key in keys:
            view[key] = self._window(key, limit if key == "limit" else dual[key]).tolist()
        return view

    def arrays(self, dual: dict[str, Any], keys: Iterable[str], limit: torch.Tensor) -> dict[str, Any]:
        """Return a copy of the dual state with the vectors ``keys`` as NumPy arrays that share its memory."""
        return {**dual, **{key: (limit if key == "limit" else dual[key]).numpy() for key in keys}}

    def write(self, dual: dict[str, Any], key: str, numbers: list[float]) -> None:
        """Write ``numbers`` into the vector ``key``."""
        window = self._window(key, dual[key])
        for i, number in enumerate(numbers):
            window[i] = number

    def weights(self, weights: list[float], dtype: torch.dtype) -> torch.Tensor:
        """Return the weights as a tensor: that of the step before, unless a graph still holds it."""
        known = self._weights
        if known is None or known[0].dtype is not dtype or not _compat.is_unshared(known[0]):
            array: Any = np.array(weights, _NUMPY[dtype])
            self._weights = (torch.from_numpy(array), memoryview(array))
            return self._weights[0]
        kept, window = known
        for i, number in enumerate(weights):
            window[i] = number
        return kept

    def unmeasured(self, ratio: torch.Tensor) -> bool:
        """Return whether a gradient ratio is still 0; the answer is kept until ``ratio`` changes."""
        known = self._unmeasured
        if known is None or known[0] is not ratio or known[1] != ratio._version:
            known = self._unmeasured = (ratio, ratio._version, bool((ratio == 0).any()))
        return known[2]
