"""The interface of a dual rule, and its application to whole vectors or to one number after another.

A rule is an elementwise formula: from the state of a constraint, its value g and the shared values of the step follow
the new state and the weight w of its gradient. It is written once for NumPy arrays, torch tensors and Python floats; a
tensor operation costs microseconds whatever its size, so a handful of constraints is cheaper as floats.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import repeat
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

#: One constraint's entry of a state: a float, or the vector of all constraints.
Number = Any
#: Several numbers of one constraint.
Row = tuple[Number, ...]
#: The entries of the dual state by name.
Entries = dict[str, Any]

#: No run comes near this number, and its square is finite: larger ones in a saved state are damage.
LARGEST = 1e100
#: Every whole number up to this one is a float, so that counts of steps enter formulas exactly.
MOST_STEPS = 2**53


class Entry(NamedTuple):
    """An entry of the dual state: its start, and the range a saved one must lie in.

    ``open_low`` excludes the lower end; if the start is an integer, the entry is a whole number.
    """

    start: Any = 0.0
    low: float = 0.0
    high: float = LARGEST
    open_low: bool = False


def _clip(x: float, bound: float) -> float:
    return -bound if x < -bound else bound if x > bound else x


#: The functions that rules need besides arithmetic; the second argument of the last three is a number, and ``clip``
#: cuts to [-bound, bound].
Numbers = SimpleNamespace(
    abs=abs, sqrt=math.sqrt, where=lambda condition, yes, no: yes if condition else no,
    maximum=max, minimum=min, at_least=max, at_most=min, clip=_clip,
)  # fmt: skip
#: The same for NumPy arrays.
Arrays = SimpleNamespace(
    abs=np.abs, sqrt=np.sqrt, where=np.where,
    maximum=np.maximum, minimum=np.minimum, at_least=np.maximum, at_most=np.minimum,
    clip=lambda x, bound: np.minimum(np.maximum(x, -bound), bound),
)  # fmt: skip
#: The same for torch tensors.
Tensors = SimpleNamespace(
    abs=torch.abs, sqrt=torch.sqrt, where=torch.where,
    maximum=torch.maximum, minimum=torch.minimum, at_least=torch.clamp_min, at_most=torch.clamp_max,
    clip=lambda x, bound: torch.clamp(x, -bound, bound),
)  # fmt: skip


def functions(g: Number) -> Any:
    """Return the functions for numbers of the type of ``g``."""
    return Numbers if type(g) is float else Arrays if type(g) is np.ndarray else Tensors


class Rule(ABC):
    """How multipliers follow the constraints, and the weights they give.

    Attributes:
        name: its name in ``constrain(..., rule=name)``.
        vectors: the entries with one number per constraint that `update` reads and returns, in its order; the first
            is "multipliers".
        given: entries that `update` only reads: "ratio" (from calibration) and "limit" (from `Limits`).
        lagged: the weights are the multipliers from before the batch, so they are known before the forward pass.
        signed: multipliers can have either sign, so that the rule takes equalities.
    """

    name: ClassVar[str]
    vectors: ClassVar[dict[str, Entry]] = {"multipliers": Entry()}
    given: ClassVar[tuple[str, ...]] = ()
    lagged: ClassVar[bool] = False
    signed: ClassVar[bool] = True

    def scalars(self) -> dict[str, Entry]:
        """Return the rule's own entries with one number for all constraints; by default its ``dual_rate``, if any."""
        rate = getattr(self, "dual_rate", None)
        return {} if rate is None else {"dual_rate": Entry(float(rate), open_low=True)}

    def begin(self, dual: Entries) -> tuple[Any, Entries]:
        """Return (the values shared by all constraints in this step, the new scalars besides "dual_steps")."""
        return dual.get("dual_rate"), {}

    @abstractmethod
    def update(self, state: Row, given: Row, g: Number, shared: Any, num_equalities: int) -> tuple[Row, Number]:
        """Return (new state, weight) of one constraint, or of all of them as vectors.

        Args:
            state, given: in the order of ``vectors`` and ``given``.
            g: the value seen; feasible if ``<= 0``.
            shared: from `begin`.
            num_equalities: how many of the last constraints are equalities; for one float 0 or 1.
        """


class Part(NamedTuple):
    """New numbers for some positions of a vector."""

    positions: Any
    numbers: Any


def advance(rule: Rule, dual: Entries, g: Any, present: Any, num_equalities: int) -> tuple[Entries, Any]:
    """Return (changed entries, weights w) for the vector g; absent constraints keep their state and get weight 0."""
    shared, changed = rule.begin(dual)
    changed = {"dual_steps": dual["dual_steps"] + 1, **changed}
    state, given = tuple(dual[key] for key in rule.vectors), tuple(dual[key] for key in rule.given)
    if present is not None and type(g) is np.ndarray:
        at = np.flatnonzero(present)
        last = int(np.count_nonzero(at >= len(g) - num_equalities))
        new, some = rule.update(tuple(v[at] for v in state), tuple(v[at] for v in given), g[at], shared, last)
        w: Any = np.zeros_like(g)
        w[at] = some
        return {**changed, **{key: Part(at, n) for key, n in zip(rule.vectors, new, strict=True)}}, w
    new, w = rule.update(state, given, g, shared, num_equalities)
    if present is not None:
        new = tuple(n if n is old else torch.where(present, n, old) for n, old in zip(new, state, strict=True))
        w = torch.where(present, w, 0.0 * state[0])
    moved = {key: n for key, n, old in zip(rule.vectors, new, state, strict=True) if n is not old}
    return {**changed, **moved}, w


def advance_rows(
    rule: Rule, dual: Entries, rows: Iterable[Row], values: Sequence[float], present: Any, equal: Sequence[bool]
) -> tuple[list[Row], Entries, list[float]]:
    """Do as `advance` does for rows of (vectors, given) numbers; return (new states, other changes, weights)."""
    shared, changed = rule.begin(dual)
    size, update, states, w = len(rule.vectors), rule.update, [], []
    for row, g, equality, here in zip(rows, values, equal, present or repeat(True)):  # noqa: B905
        state, weight = update(row[:size], row[size:], g, shared, equality) if here else (row[:size], 0.0)
        states.append(state)
        w.append(weight)
    return states, {"dual_steps": dual["dual_steps"] + 1, **changed}, w
