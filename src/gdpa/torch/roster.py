"""The constraints of a training run: their number, their names, which are equalities, in which order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from gdpa.base.checks import is_number
from gdpa.torch.limits import NO_GRADIENT, Limits, listed, to_single

#: Values of ``constraints=``: how many, or their names, or their limits.
Constraints = int | Sequence[str] | Limits


class Roster:
    """Turns the values of each step into one vector g, equalities last; ``order[i]`` is the user's position of g_i."""

    def __init__(
        self,
        constraints: Constraints,
        equalities: Sequence[str | int] = (),
        sizes: Sequence[float] | float | None = None,
    ) -> None:
        self.limits = constraints if isinstance(constraints, Limits) else None
        self.names = _names(constraints)
        self.size = constraints if isinstance(constraints, int) else len(self.names or ())
        if self.limits is not None:
            if len(tuple(equalities)):
                raise ValueError("equalities= is for names or numbers; with Limits write equal_to(value) instead")
            if sizes is not None:
                raise ValueError("sizes= is for constraints without Limits, which have their own")
            equalities, sizes = self.limits.equalities, self.limits.sizes
        chosen = self._positions(equalities)
        #: The one table of named constraints; None if they have no names.
        self.table = self.limits
        if self.limits is None and self.names:
            self.table = Limits.of_names(self.names, chosen)
        self.num_equalities = len(chosen)
        #: The user's positions of the equalities.
        self.equal_positions = frozenset(chosen)
        self.order = (*(i for i in range(self.size) if i not in chosen), *chosen)
        checked = self._check_sizes(sizes)
        #: The size of each limit in units of its violation, in the user's order; infinite if it is not known. A limit
        #: of 0 has no size of its own: its violation is measured in its scale.
        self.user_sizes = checked if self.limits is None else [1.0] * self.size
        #: The size of each limit in units of g, in internal order; infinite if it is not known.
        self.limit_sizes = [checked[position] for position in self.order]
        self._shape = torch.Size((self.size,))
        self._index: torch.Tensor | None = None
        if self.order != tuple(range(self.size)):
            self._index = torch.tensor(self.order, device="cpu")

    def _positions(self, equalities: Sequence[str | int]) -> tuple[int, ...]:
        if isinstance(equalities, (str, int)):
            raise TypeError(f"equalities must be a list of names, got {equalities!r}; write [{equalities!r}]")
        found = []
        for one in equalities:
            if isinstance(one, str) and self.names is not None and one in self.names:
                found.append(self.names.index(one))
            elif isinstance(one, int) and not isinstance(one, bool) and 0 <= one < self.size:
                found.append(one)
            else:
                raise ValueError(f"equalities holds {one!r}, which is not a constraint; there are {self.describe()}")
        if len(set(found)) != len(found):
            raise ValueError(f"equalities must differ from each other, got {equalities!r}")
        return tuple(sorted(found))

    def describe(self) -> str:
        return f"{self.size} unnamed constraints" if self.names is None else listed(self.names)

    def name(self, internal: int) -> str:
        """Return the name of internal constraint ``internal``."""
        return self.user_name(self.order[internal])

    def user_name(self, position: int) -> str:
        """Return the name of the constraint that the user gave at ``position``."""
        return f"g[{position}]" if self.names is None else self.names[position]

    def to_value(self, position: int, g: Any) -> tuple[Any, float]:
        """Return (value, limit) behind g of the constraint at ``position``: g itself and 0 without `Limits`."""
        return (g, 0.0) if self.limits is None else self.limits.value(self.user_name(position), g)

    def to_user(self, values: torch.Tensor) -> torch.Tensor:
        """Return a vector of internal order in the user's order, as a copy."""
        if self._index is None:
            return values.clone()
        out = torch.empty_like(values)
        out[self._index.to(values.device)] = values
        return out

    def to_internal(self, values: torch.Tensor) -> torch.Tensor:
        """Return a vector of the user's order in internal order."""
        return values if self._index is None else values[self._index.to(values.device)]

    def vector(self, g: Any, differentiable: bool = True, present: Sequence[bool] | None = None) -> torch.Tensor:
        """Return g as one vector of internal order; entries of a dict that are not ``present`` leave the graph as 0."""
        if self.limits is None and isinstance(g, torch.Tensor):
            if g.shape != self._shape:
                scalar = (
                    " is a scalar; return a vector even for a single constraint, e.g. g[None] or torch.stack([...])"
                )
                shape = f" has shape {tuple(g.shape)}, expected ({self.size},): one number for each constraint"
                raise ValueError("g" + (shape if g.ndim else scalar))
            if differentiable and not g.requires_grad:
                raise ValueError(NO_GRADIENT.format("g"))
            vector = g if g.dtype is torch.float32 or g.dtype is torch.float64 else to_single(g)
        elif self.limits is None and not isinstance(g, Mapping):
            raise TypeError(
                f"g must be a tensor of shape ({self.size},) or a dict name -> value, got {type(g).__name__}; "
                "stack a list of values with torch.stack"
            )
        elif self.table is None:
            raise TypeError(
                f"g is a dict but the constraints have no names; build the optimizer with constraints={list(g)!r}"
            )
        else:
            out = () if present is None else [self.order[i] for i, here in enumerate(present) if not here]
            vector = self.table.vector(g, differentiable, out)
        return vector if self._index is None else self.to_internal(vector)

    def _check_sizes(self, sizes: Sequence[float] | float | None) -> list[float]:
        if sizes is None:
            return [math.inf] * self.size
        numbers = [float(size) for size in sizes] if isinstance(sizes, Iterable) else [float(sizes)] * self.size
        if len(numbers) != self.size or not all(size > 0 for size in numbers):
            raise ValueError(f"sizes must be one positive number, or {self.size} of them, got {numbers[:8]}")
        return numbers

    def counts(self, counts: Any) -> list[float]:
        """Return sample counts, given by position or by name, as a list of internal order."""
        counts = self._in_order(counts) if isinstance(counts, Mapping) else counts
        listed = list(counts) if isinstance(counts, (list, tuple)) else torch.as_tensor(counts).tolist()
        listed = listed if isinstance(listed, list) else [listed] * self.size
        if len(listed) != self.size:
            raise ValueError(f"counts has shape ({len(listed)},), expected ({self.size},)")
        return listed if self._index is None else [listed[position] for position in self.order]

    def count_tensor(self, counts: Any, like: torch.Tensor) -> torch.Tensor:
        """Return sample counts as a vector of internal order on the device of ``like``, where they may be already."""
        if isinstance(counts, Mapping) and not like.is_cpu:
            counts = torch.stack([torch.as_tensor(count).to(like) for count in self._in_order(counts)])
        if not isinstance(counts, torch.Tensor) or counts.shape != self._shape:
            return torch.tensor(self.counts(counts), dtype=like.dtype, device=like.device)
        return self.to_internal(counts.to(like.device, like.dtype))

    def _in_order(self, counts: Mapping[str, Any]) -> list[Any]:
        counts = counts if self.limits is None else self.limits.by_side(counts)
        if self.names is None or len(counts) != self.size or any(name not in counts for name in self.names):
            raise KeyError(f"counts must have one entry for each of {self.describe()}, got {list(counts)}")
        return [counts[name] if isinstance(counts[name], torch.Tensor) else float(counts[name]) for name in self.names]

    def sizes(self, values: torch.Tensor, samples: int | None, counts: Any, nan_is_absent: bool) -> torch.Tensor:
        """Return how many samples f and then each of ``values`` are means of, as one tensor."""
        n = values.new_full((1,), 1.0 if samples is None else float(samples))
        c = n.expand(values.shape) if counts is None else self.count_tensor(counts, values)
        return torch.cat([n, torch.where(torch.isnan(values), torch.zeros_like(c), c) if nan_is_absent else c])


def _names(constraints: Constraints) -> tuple[str, ...] | None:
    if isinstance(constraints, Mapping) and constraints:
        name, limit = next(iter(constraints.items()))
        raise TypeError(
            f"constraints must be Limits, got the dict {constraints!r}; write "
            f"Limits({{{name!r}: at_least({limit!r})}}), or at_most, between, equal_to"
        )
    if isinstance(constraints, bool) or not isinstance(constraints, (int, Sequence, Limits)):
        raise TypeError(
            f"constraints must be a number, a list of names or Limits, got {constraints!r}; write e.g. "
            "Limits(recall=at_least(0.9))"
        )
    if isinstance(constraints, int):
        if constraints < 0:
            raise ValueError(f"constraints must be a nonnegative number, got {constraints}")
        return None
    if isinstance(constraints, str):
        raise TypeError(f"constraints must be a list of names, got the string {constraints!r}; write [{constraints!r}]")
    names = constraints.names if isinstance(constraints, Limits) else tuple(constraints)
    for name in names:
        if not isinstance(name, str) or not name:
            raise TypeError(f"constraints must be a list of nonempty names, got {name!r} in it")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"constraints holds the name {twice!r} more than once; names must differ from each other")
    return names


def objective(f: Any, vector: torch.Tensor) -> torch.Tensor:
    """Return the objective as a scalar tensor on the device of ``vector``, or refuse it."""
    if not isinstance(f, torch.Tensor) and is_number(f):
        return torch.as_tensor(float(f), dtype=vector.dtype, device=vector.device)
    if not isinstance(f, torch.Tensor) or not f.is_floating_point():
        raise TypeError(f"f must be a scalar floating-point tensor, got {f!r}")
    if f.numel() != 1:
        raise ValueError(f"f has shape {tuple(f.shape)}, expected a scalar; reduce it, e.g. f.mean()")
    if not (f.is_cpu and vector.is_cpu) and f.device != vector.device:
        raise ValueError(f"f is on {f.device} but g on {vector.device}; compute both on one device")
    return f.reshape(()) if f.ndim else f
