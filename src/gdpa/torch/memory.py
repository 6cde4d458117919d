"""Fast reading and writing of the dual state of a handful of constraints on the CPU.

Indexing a tensor costs about a microsecond, so the numbers of a handful of constraints are read and written together.
The tensors stay the one place where the state is kept.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import torch

from gdpa.torch import compat
from gdpa.torch.rules.base import Row, Rule

#: Up to this many constraints on the CPU the dual update goes number by number.
FEW = 8
_NUMPY: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


class Rows:
    """The vectors that a rule reads, in one block of memory with a row of numbers per constraint.

    The block's columns are the tensors of the dual state. A tensor that somebody else put into the state is copied into
    its column, which then takes its place. A copy of the rows (pickle, deepcopy) is a new block, which does the same.

    Args:
        rule: says which vectors there are.
        limits: the size of each limit.

    >>> from gdpa.torch.rules import TwoSample
    >>> rows, dual = Rows(TwoSample(), [1.0, 1.0]), {"multipliers": torch.tensor([1.0, 2.0])}
    >>> rows.read(dual)
    [(1.0,), (2.0,)]
    >>> rows.write([(3.0,), (4.0,)])
    >>> dual["multipliers"].tolist()
    [3.0, 4.0]
    """

    def __init__(self, rule: Rule, limits: list[float]) -> None:
        self._made_of = rule, limits
        codes = ["?" if vector.start is False else "d" for vector in rule.vectors.values()]
        fields = [*zip(rule.vectors, codes, strict=True), *((key, "d") for key in rule.given)]
        block = np.zeros(len(limits), np.dtype(fields, align=True))
        if "limit" in rule.given:
            block["limit"] = limits
        self._columns = [(key, torch.from_numpy(block[key])) for key, _ in fields if key != "limit"]
        self._bytes = block.view(np.uint8).data
        self._state = struct.Struct("".join(codes))
        self._row = struct.Struct("".join(code for _, code in fields) + "0d")  # which ends as an aligned dtype does
        self._weights: tuple[torch.Tensor, Any] | None = None

    def __reduce__(self) -> Any:
        return Rows, self._made_of

    def read(self, dual: dict[str, Any]) -> list[Row]:
        """Return the numbers of each constraint: the rule's ``vectors``, then those it is ``given``."""
        for key, column in self._columns:
            if dual[key] is not column:
                column.copy_(dual[key])
                dual[key] = column
        return list(self._row.iter_unpack(self._bytes))

    def write(self, states: list[Row]) -> None:
        """Write the numbers of the rule's ``vectors``."""
        start = 0
        for state in states:
            self._state.pack_into(self._bytes, start, *state)
            start += self._row.size

    def weights(self, weights: list[float], dtype: torch.dtype) -> torch.Tensor:
        """Return the weights as a tensor: the one of the step before, unless a graph still holds it."""
        known = self._weights
        if known is None or known[0].dtype is not dtype or not compat.is_unshared(known[0]):
            array: Any = np.array(weights, _NUMPY[dtype])
            self._weights = (torch.from_numpy(array), memoryview(array))
            return self._weights[0]
        kept, window = known
        for i, number in enumerate(weights):
            window[i] = number
        return kept
