"""Limits as people state them, ``value <= limit`` by name, and the constraints of a run in their internal order."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gdpa.base.checks import is_number
from gdpa.torch import compat


def mismatch(names: Collection[str], given: Collection[str]) -> str:
    """Return in words which of ``names`` are missing from ``given``, and which of ``given`` are unknown."""
    missing, unknown = [name for name in names if name not in given], [name for name in given if name not in names]
    return " and ".join([f"lack {missing}"] * bool(missing) + [f"have unknown {unknown}"] * bool(unknown))


@dataclass(frozen=True)
class Limit:
    """One bound on one named value, or on each entry of a vector; made by `at_most`, `at_least`, `between`, `equal_to`.

    Attributes:
        lower, upper: the bounds; infinite if there is none.
        scale: the number that a violation is divided by: |limit| by default, 1 for a limit of 0. A violation of 0.1
            then reads "ten per cent of the limit", and multipliers of differently sized limits are comparable.
        tighten: training aims at bounds that are tighter by this much, so that the limit holds on new data;
            `certify` judges the limit itself. See `gdpa.torch.tighten`.
        entries: of a vector of values, the limit of each entry.
    """

    lower: float
    upper: float
    scale: float
    tighten: float = 0.0
    entries: tuple[Limit, ...] = ()

    @property
    def is_equality(self) -> bool:
        """Whether the value must equal the limit."""
        return self.lower == self.upper

    def tightened(self, by: float, name: str = "a limit") -> Limit:
        """Return the same limit with another margin for training."""
        if not (math.isfinite(by) and by >= 0):
            raise ValueError(f"the margin of {name!r} must be a finite number at least 0, got {by!r}")
        if by and not self.lower + by < self.upper - by:
            raise ValueError(f"{name!r} {self} leaves no room for a margin of {by:.4g} on its sides; widen the limit")
        entries = tuple(entry.tightened(by, name) for entry in self.entries)
        return replace(self, tighten=float(by), entries=entries)

    def sides(self) -> tuple[tuple[str, float, float], ...]:
        """Return (suffix of the name, sign, bound) of each one-sided constraint ``sign * (value - bound) <= 0``."""
        if self.is_equality:
            return (("", 1.0, self.upper),)
        sides = ((" (upper)", 1.0, self.upper - self.tighten), (" (lower)", -1.0, self.lower + self.tighten))
        finite = tuple(side for side in sides if math.isfinite(side[2]))
        return finite if len(finite) == 2 else (("", *finite[0][1:]),)

    def __str__(self) -> str:
        if len(set(self.entries)) > 1:
            return f"{self.entries[0]} ... {self.entries[-1]}"
        if self.is_equality or not math.isfinite(self.lower):
            return f"{'=' if self.is_equality else '<='} {self.upper:g}"
        return f"in [{self.lower:g}, {self.upper:g}]" if math.isfinite(self.upper) else f">= {self.lower:g}"


#: A bound: one number, or one for each entry of a vector.
Bound = float | Sequence[float]


def _limit(lower: Any, upper: Any, scale: float | None, tighten: float = 0.0, size: int | None = None) -> Limit:
    given = [bound for bound in (lower, upper) if not is_number(bound) and not isinstance(bound, str)]
    if given or size is not None:
        count = len(given[0]) if given and size is None else size
        if not isinstance(count, int) or count < 1 or any(len(bound) != count for bound in given):
            raise ValueError(
                f"a limit on a vector needs one bound, or one for each entry, got {given} and size={size!r}"
            )
        pairs = zip(*(([bound] * count if is_number(bound) else bound) for bound in (lower, upper)), strict=True)
        entries = tuple(_limit(float(low), float(high), scale, tighten) for low, high in pairs)
        return replace(entries[0], entries=entries)
    for bound in (lower, upper):
        if not is_number(bound) or math.isnan(bound):
            raise ValueError(f"a limit must be a number, got {bound!r}")
    if not (math.isfinite(lower) or math.isfinite(upper)) or lower > upper:
        raise ValueError(f"a limit needs lower <= upper and one of them finite, got [{lower}, {upper}]")
    if scale is None:
        scale = max(abs(bound) for bound in (lower, upper) if math.isfinite(bound)) or 1.0
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale must be a positive finite number, got {scale!r}")
    return Limit(float(lower), float(upper), float(scale)).tightened(tighten)


def at_most(limit: Bound, *, size: int | None = None, scale: float | None = None, tighten: float = 0.0) -> Limit:
    """Return the limit ``value <= limit``, with ``size=n`` or a list for each entry of a vector of n values.

    >>> print(at_most(0.05))
    <= 0.05
    """
    return _limit(-math.inf, limit, scale, tighten, size)


def at_least(limit: Bound, *, size: int | None = None, scale: float | None = None, tighten: float = 0.0) -> Limit:
    """Return the limit ``value >= limit``; see `at_most`.

    >>> print(at_least(0.9))
    >= 0.9
    """
    return _limit(limit, math.inf, scale, tighten, size)


def between(
    lower: Bound, upper: Bound, *, size: int | None = None, scale: float | None = None, tighten: float = 0.0
) -> Limit:
    """Return the limit ``lower <= value <= upper``, which is two constraints on one value; see `at_most`.

    >>> print(between(-0.05, 0.05))
    in [-0.05, 0.05]
    """
    return _limit(lower, upper, scale, tighten, size)


def equal_to(value: Bound, *, size: int | None = None, scale: float | None = None) -> Limit:
    """Return the limit ``value = limit``; see `at_most`.

    >>> print(equal_to(1.0))
    = 1
    """
    return _limit(value, value, scale, size=size)


class Limits:
    """Named limits. Given as ``constraints=``, the optimizer takes *values* and forms the violations itself.

    A limit on a vector takes one tensor of shape (n,), which costs a step hardly more than one number does; its
    constraints are called ``name[0]``, ``name[1]``, ...

    Attributes:
        limits: the limit of each number by name; the entries of vectors have names of their own.
        names: the names of the one-sided constraints.
        sizes: the size of each one-sided limit in units of its violation; infinite for a limit of 0, which has none.

    >>> limits = Limits(recall=at_least(0.9), parity=between(-0.05, 0.05))
    >>> limits
    Limits(
      recall  >= 0.9            violations divided by 0.9
      parity  in [-0.05, 0.05]  violations divided by 0.05
    )
    >>> limits.names
    ('recall', 'parity (upper)', 'parity (lower)')
    >>> {k: round(float(v), 3) for k, v in limits.violations(
    ...     {"recall": torch.tensor(0.81), "parity": torch.tensor(0.1)}).items()}
    {'recall': 0.1, 'parity (upper)': 1.0, 'parity (lower)': -3.0}
    >>> Limits(gap=at_most(0.1, size=3)).names
    ('gap[0]', 'gap[1]', 'gap[2]')
    """

    def __init__(self, limits: Mapping[str, Limit] | None = None, /, **named: Limit) -> None:
        self._given = {**(limits or {}), **named}
        if twice := set(limits or ()) & set(named):
            raise ValueError(f"limits given twice: {sorted(twice)}")
        if not self._given:
            raise ValueError("Limits holds no limit; write e.g. Limits(recall=at_least(0.9))")
        self.limits: dict[str, Limit] = {}
        for name, limit in self._given.items():
            if not isinstance(limit, Limit):
                raise TypeError(f"the limit of {name!r} must be made by at_most, at_least, ..., got {limit!r}")
            self.limits |= {f"{name}[{i}]": entry for i, entry in enumerate(limit.entries)} or {name: limit}
        sides = [
            (name + suffix, place, bound, sign * limit.scale)
            for place, (name, limit) in enumerate(self.limits.items())
            for suffix, sign, bound in limit.sides()
        ]
        self.names = tuple(side[0] for side in sides)
        self.sizes = tuple(1.0 if bound or abs(factor) != 1.0 else math.inf for _, _, bound, factor in sides)
        #: The place of the value behind each one-sided constraint.
        self._places = [side[1] for side in sides]
        self._lines = {name: (bound, factor) for name, _, bound, factor in sides}
        self._vector = any(limit.entries for limit in self._given.values())
        self._label = "the value of {!r}"
        self._constants: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None = None

    @classmethod
    def of_names(cls, names: Iterable[str], equalities: Collection[int]) -> Limits:
        """Return the table of constraints on g itself: ``g = 0`` at the places of ``equalities``, else ``g <= 0``."""
        table = cls({name: (equal_to if i in equalities else at_most)(0.0) for i, name in enumerate(names)})
        table._label = "g[{!r}]"
        return table

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_constants": None}

    def judged(self) -> Limits:
        """Return the limits without the margins for training.

        >>> Limits(fpr=at_most(0.05, tighten=0.01)).judged()
        Limits(
          fpr  <= 0.05  violations divided by 0.05
        )
        """
        return Limits({name: limit.tightened(0.0) for name, limit in self._given.items()})

    @property
    def equalities(self) -> tuple[str, ...]:
        """The names of the equality limits."""
        return tuple(name for name, limit in self.limits.items() if limit.is_equality)

    def violations(self, values: Any, differentiable: bool = False) -> dict[str, torch.Tensor]:
        """Return ``sign * (value - bound) / scale`` by name, feasible if ``<= 0``.

        Unless they must be ``differentiable``, values may be numbers.
        """
        return dict(zip(self.names, self.vector(values, differentiable), strict=True))

    def vector(self, values: Any, differentiable: bool = True, absent: Collection[int] = ()) -> torch.Tensor:
        """Return the violations as one vector; ``absent`` constraints leave the graph, see `Roster.vector`."""
        if not isinstance(values, Mapping):
            raise TypeError(f"with Limits the values must be a dict name -> tensor, got {type(values).__name__}")
        given, label, plain = self._given, self._label, self._label[0] == "g"
        if values.keys() != given.keys():
            raise KeyError(
                f"the values{' of g' * plain} {mismatch(given, values)}; give one for each of {listed(given)}. Declare "
                "a group that is absent from the batch with counts={name: 0}, do not leave it out; keep metrics "
                "without a limit in a dict of their own"
            )
        out, place = {self._places[i] for i in absent} if absent else (), 0
        parts: list[torch.Tensor] = []
        for name, limit in given.items():
            value, count = values[name], len(limit.entries)
            if not isinstance(value, torch.Tensor):
                if differentiable or not is_number(value):
                    raise TypeError(f"{label.format(name)} {NUMBER.format(value)}")
                value = torch.tensor(float(value), device="cpu")
            if value.shape != (count,) if count else value.numel() != 1:
                wanted = f"shape ({count},)" if count else "one number; limit a vector with size="
                raise ValueError(f"{label.format(name)} has shape {tuple(value.shape)}, expected {wanted}")
            if differentiable and not value.requires_grad:
                raise ValueError(NO_GRADIENT.format(label.format(name)))
            if out and count:
                compat.cut_divisions_by_zero(value)
            elif place in out:
                value = torch.zeros_like(value)
            place += count or 1
            parts.append(value if count or not value.ndim else value.reshape(()))
        if not self._vector:
            flat = torch.stack(parts)
        else:
            flat = parts[0] if len(parts) == 1 else torch.cat([part.reshape(-1) for part in parts])
        if flat.dtype is not torch.float32 and flat.dtype is not torch.float64:
            flat = to_single(flat)
        if plain:
            return flat
        known = self._constants
        if known is None or known[0].dtype is not flat.dtype or known[0].device != flat.device:
            places = None if self._places == list(range(len(flat))) else self._places
            index = None if places is None else torch.tensor(places, device=flat.device)
            lines = flat.new_tensor([(bound, 1 / factor) for bound, factor in self._lines.values()])
            known = self._constants = (lines[:, 0].contiguous(), lines[:, 1].contiguous(), index)
        bounds, factors, index = known
        return ((flat if index is None else flat[index]) - bounds) * factors

    def by_side(self, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """Return numbers given by the names of the limits (or of their sides) by the names of the sides."""
        if not set(numbers) <= set(self._given):
            return dict(numbers)
        flat: list[Any] = []
        for name, limit in self._given.items():
            number, count = numbers.get(name), len(limit.entries)
            single = not count or is_number(number) or getattr(number, "ndim", 1) == 0
            flat += [number] * (count or 1) if single else list(number)  # type: ignore[arg-type]
        pairs = zip(self.names, self._places, strict=True)
        return {side: flat[place] for side, place in pairs if flat[place] is not None}

    def value(self, side: str, violation: float) -> tuple[float, float]:
        """Return (value, bound) behind the violation of the one-sided constraint ``side``."""
        bound, factor = self._lines[side]
        return bound + factor * violation, bound

    def __repr__(self) -> str:
        wide, bound = (max(len(str(part)) for part in parts) for parts in (self._given, self._given.values()))
        rows = (
            f"  {name:<{wide}}  {limit!s:<{bound}}  violations divided by {limit.scale:g}"
            + (f", each of {len(limit.entries)} entries" if limit.entries else "")
            + (f", tightened by {limit.tighten:.4g} in training" if limit.tighten else "")
            for name, limit in self._given.items()
        )
        return "Limits(\n" + "\n".join(rows) + "\n)"


def listed(names: Collection[str]) -> str:
    """Return the first names and their number in words."""
    shown = ", ".join(map(repr, list(names)[:8]))
    return shown + (f", ... ({len(names)} in all)" if len(names) > 8 else "")


def to_single(g: torch.Tensor) -> torch.Tensor:
    """Return floating-point numbers of another precision in single precision."""
    if not g.dtype.is_floating_point:
        raise TypeError(f"g must be real floating-point numbers, got {g.dtype}; convert it, e.g. g.float()")
    return g.float()


NUMBER = "must be a tensor computed from the parameters, got {!r}; leave out .item(), float() or .numpy()"
NO_GRADIENT = (
    "{} does not require a gradient: it was computed under no_grad, detached, or from frozen parameters only; "
    "compute it from the parameters being trained. A 0/1 rate has no gradient: give a differentiable surrogate as g "
    "and the rate as true=, lagrangian(f, surrogate, true=rate), or use the terms of gdpa.torch.terms"
)


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
