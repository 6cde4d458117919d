"""Limits as people state them: ``value <= limit`` and ``value >= limit``, by name."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from gdpa.base.checks import is_number


def mismatch(names: Collection[str], given: Collection[str]) -> str:
    """Say which of ``names`` are missing from ``given``, and which of ``given`` are not among them.

    >>> mismatch(["a", "b"], ["a", "c"]), mismatch(["a"], ["a", "c"])
    ("lack ['b'] and have unknown ['c']", "have unknown ['c']")
    """
    missing, unknown = [name for name in names if name not in given], [name for name in given if name not in names]
    return " and ".join([f"lack {missing}"] * bool(missing) + [f"have unknown {unknown}"] * bool(unknown))


@dataclass(frozen=True)
class Limit:
    """One bound on one named value; made by `at_most`, `at_least`, `between` or `equal_to`.

    Attributes:
        lower, upper: the bounds; infinite if there is none.
        scale: what a violation is divided by: |limit| by default, 1 for a limit of 0. A violation of 0.1 then reads
            "ten per cent of the limit", and multipliers of differently sized limits are comparable.
        tighten: training aims at bounds that are tighter by this much, so that the limit holds on new data;
            `certify` judges the limit itself. See `gdpa.torch.tighten`.
    """

    lower: float
    upper: float
    scale: float
    tighten: float = 0.0

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
        return replace(self, tighten=float(by))

    def sides(self) -> tuple[tuple[str, float, float], ...]:
        """Return (suffix of the name, sign, bound) of each one-sided constraint ``sign * (value - bound) <= 0``."""
        if self.is_equality:
            return (("", 1.0, self.upper),)
        sides = [(1.0, self.upper - self.tighten)] if math.isfinite(self.upper) else []
        sides += [(-1.0, self.lower + self.tighten)] if math.isfinite(self.lower) else []
        if len(sides) == 1:
            return (("", *sides[0]),)
        return ((" (upper)", *sides[0]), (" (lower)", *sides[1]))

    def __str__(self) -> str:
        if self.is_equality:
            return f"= {self.upper:g}"
        if not math.isfinite(self.upper):
            return f">= {self.lower:g}"
        if not math.isfinite(self.lower):
            return f"<= {self.upper:g}"
        return f"in [{self.lower:g}, {self.upper:g}]"


def _limit(lower: float, upper: float, scale: float | None, tighten: float = 0.0) -> Limit:
    for bound in (lower, upper):
        if not is_number(bound) or math.isnan(bound):
            raise ValueError(f"a limit must be a number, got {bound!r}")
    if not (math.isfinite(lower) or math.isfinite(upper)) or lower > upper:
        raise ValueError(f"a limit needs lower <= upper and one of them finite, got [{lower}, {upper}]")
    if scale is None:
        size = max(abs(bound) for bound in (lower, upper) if math.isfinite(bound))
        scale = size if size > 0 else 1.0
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale must be a positive finite number, got {scale!r}")
    return Limit(float(lower), float(upper), float(scale)).tightened(tighten)


def at_most(limit: float, *, scale: float | None = None, tighten: float = 0.0) -> Limit:
    """Return the limit ``value <= limit``.

    >>> print(at_most(0.05))
    <= 0.05
    """
    return _limit(-math.inf, limit, scale, tighten)


def at_least(limit: float, *, scale: float | None = None, tighten: float = 0.0) -> Limit:
    """Return the limit ``value >= limit``.

    >>> print(at_least(0.9))
    >= 0.9
    """
    return _limit(limit, math.inf, scale, tighten)


def between(lower: float, upper: float, *, scale: float | None = None, tighten: float = 0.0) -> Limit:
    """Return the limit ``lower <= value <= upper``, which is two constraints on one value.

    >>> print(between(-0.05, 0.05))
    in [-0.05, 0.05]
    """
    return _limit(lower, upper, scale, tighten)


def equal_to(value: float, *, scale: float | None = None) -> Limit:
    """Return the limit ``value = limit``.

    >>> print(equal_to(1.0))
    = 1
    """
    return _limit(value, value, scale)


class Limits:
    """Named limits. Given as ``constraints=``, the optimizer takes *values* and forms the violations itself.

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
    """

    def __init__(self, limits: Mapping[str, Limit] | None = None, /, **named: Limit) -> None:
        self.limits = {**(limits or {}), **named}
        if limits is not None and set(limits) & set(named):
            raise ValueError(f"limits given twice: {sorted(set(limits) & set(named))}")
        if not self.limits:
            raise ValueError("Limits holds no limit; write e.g. Limits(recall=at_least(0.9))")
        for name, limit in self.limits.items():
            if not isinstance(limit, Limit):
                raise TypeError(f"the limit of {name!r} must be made by at_most, at_least, ..., got {limit!r}")
        sides = [
            (name + suffix, name, sign, bound, limit.scale)
            for name, limit in self.limits.items()
            for suffix, sign, bound in limit.sides()
        ]
        self.names = tuple(side[0] for side in sides)
        #: The size of each one-sided limit in units of its violation; infinite for a limit of 0, which has none.
        self.sizes = tuple(1.0 if bound or scale != 1.0 else math.inf for _, _, _, bound, scale in sides)
        self._sides = sides

    def judged(self) -> Limits:
        """Return the limits without the margins for training.

        >>> Limits(fpr=at_most(0.05, tighten=0.01)).judged()
        Limits(
          fpr  <= 0.05  violations divided by 0.05
        )
        """
        return Limits({name: limit.tightened(0.0) for name, limit in self.limits.items()})

    @property
    def equalities(self) -> tuple[str, ...]:
        """The names of the equality limits."""
        return tuple(name for name, limit in self.limits.items() if limit.is_equality)

    def violations(self, values: Any, differentiable: bool = True) -> dict[str, torch.Tensor]:
        """Return ``sign * (value - bound) / scale`` by name, feasible if ``<= 0``.

        Without need of gradients (``differentiable=False``) a value may be a number.
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"with Limits the values must be a dict name -> tensor, got {type(values).__name__}")
        if len(values) != len(self.limits) or any(name not in values for name in self.limits):
            raise KeyError(
                f"the values {mismatch(self.limits, values)}; the limits are {list(self.limits)}. Keep metrics "
                "without a limit in a dict of their own"
            )
        for name, value in values.items():
            if not isinstance(value, torch.Tensor) and (differentiable or not is_number(value)):
                raise TypeError(f"the value of {name!r} must be a tensor computed from the parameters, got {value!r}")
        return {side: (values[name] - bound) * (sign / scale) for side, name, sign, bound, scale in self._sides}

    def by_side(self, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """Return numbers given by the names of the limits (or of their sides) by the names of the sides.

        >>> Limits(parity=between(-1, 1)).by_side({"parity": 20})
        {'parity (upper)': 20, 'parity (lower)': 20}
        """
        if not set(numbers) <= set(self.limits):
            return dict(numbers)
        return {side: numbers[name] for side, name, *_ in self._sides if name in numbers}

    def value(self, side: str, violation: float) -> tuple[float, float]:
        """Return (value, bound) behind the violation of the one-sided constraint ``side``."""
        for name, _, sign, bound, scale in self._sides:
            if name == side:
                return bound + sign * scale * violation, bound
        raise KeyError(side)

    def __repr__(self) -> str:
        wide = max(len(name) for name in self.limits)
        texts = {name: str(limit) for name, limit in self.limits.items()}
        bound = max(map(len, texts.values()))
        rows = (
            f"  {name:<{wide}}  {texts[name]:<{bound}}  violations divided by {limit.scale:g}"
            + (f", tightened by {limit.tighten:.4g} in training" if limit.tighten else "")
            for name, limit in self.limits.items()
        )
        return "Limits(\n" + "\n".join(rows) + "\n)"
