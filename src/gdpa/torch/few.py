"""A handful of constraints on the CPU, number by number.

A tensor operation costs microseconds whatever its size, so that for a few constraints the formulas are dearer on
vectors than on Python's floats. Reading and writing go through windows on the state's memory, which stays the one
place where it is kept.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch

from gdpa.torch.stage import Stage

#: Up to this many constraints on the CPU the dual update goes number by number.
FEW = 8
_NUMPY: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


class FewConstraints:
    """The part of `ConstrainedOptimizer` that serves a handful of constraints."""

    _stage: Stage | None
    _windows: dict[str, tuple[torch.Tensor, Any]]

    @property
    @abstractmethod
    def _slot(self) -> dict[str, Any]: ...

    @abstractmethod
    def _advance_each(self, values: list[float]) -> tuple[dict[str, Any], list[float]]:
        """Do as `_advance` does, number by number: lists for vectors, all constraints present."""

    def _lagrangian_of_few(self, f: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        values = vector.tolist()
        updates, weights = self._advance_each(values)
        product = torch.dot(vector, self._as_tensor(weights, vector.dtype))
        total = f + product
        self._stage = Stage(total.item(), f.item(), values, updates, product)
        return total

    def _as_tensor(self, weights: list[float], dtype: torch.dtype) -> torch.Tensor:
        """Return the weights in the tensor of the step before, unless a graph still holds it."""
        known = self._windows.get("weights")
        if known is None or known[0].dtype is not dtype or known[0]._use_count() != 1:  # type: ignore[attr-defined]
            array: Any = np.array(weights, _NUMPY[dtype])
            fresh = torch.from_numpy(array)
            self._windows["weights"] = (fresh, memoryview(array))
            return fresh
        kept, numbers = known
        for i, number in enumerate(weights):
            numbers[i] = number
        return kept

    def _numbers(self, key: str) -> Any:
        """Return a window on the numbers of the entry ``key`` of the dual state."""
        value = self._slot[key]
        known = self._windows.get(key)
        if known is None or known[0] is not value:
            array: Any = value.numpy()
            known = self._windows[key] = (value, memoryview(array))
        return known[1]
