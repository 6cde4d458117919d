"""The interface of a dual rule, and the two ways to apply one: to whole vectors, or to one number after another.

A rule is a pure function of one constraint: from its state, its value g and the shared values of this step it
makes the new state and the weight w of its gradient. The formula is elementwise, so it is written once and applied to
NumPy arrays, torch tensors and Python floats alike. A tensor operation costs microseconds whatever its size, so a
handful of constraints is cheaper as Python floats.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

#: One constraint's entry of a state: a float, or the vector of all constraints.
Number = Any
#: Several numbers of one constraint.
Row = tuple[Number, ...]
Dual = dict[str, Any]


#: No run comes near this number, and its square is finite: larger ones in a saved state are damage.
LARGEST = 1e100
#: Every whole number up to this one is a float, so that counts of steps enter formulas exactly.
MOST_STEPS = 2**53


class Vector(NamedTuple):
    """An entry of the dual state with one number per constraint: its start, and the range a saved one must lie in."""

    start: float | bool = 0.0
    low: float = 0.0
    high: float = LARGEST


class Scalar(NamedTuple):
    """An entry of the dual state with one number for all constraints, and the range a saved one must lie in.

    ``open_low`` excludes the lower end.
    """

    start: Any
    low: float = 0.0
    high: float = LARGEST
    open_low: bool = False


class Numbers:
    """The functions that rules need besides arithmetic, for Python floats."""

    abs = staticmethod(abs)
    sqrt = staticmethod(math.sqrt)
    maximum = staticmethod(max)
    minimum = staticmethod(min)
    at_least = staticmethod(max)

    @staticmethod
    def clip(x: float, low: float, high: float) -> float:
        return low if x < low else high if x > high else x

    @staticmethod
    def where(condition: bool, yes: float, no: float) -> float:
        return yes if condition else no


class Arrays:
    """The same for NumPy arrays."""

    maximum = np.maximum
    minimum = np.minimum
    at_least = np.maximum
    abs = np.abs
    sqrt = np.sqrt
    clip = np.clip
    where = np.where


class Tensors:
    """The same for torch tensors."""

    maximum = staticmethod(torch.maximum)
    minimum = staticmethod(torch.minimum)
    at_least = staticmethod(torch.clamp_min)
    abs = staticmethod(torch.abs)
    sqrt = staticmethod(torch.sqrt)
    clip = staticmethod(torch.clamp)
    where = staticmethod(torch.where)


def functions(g: Number) -> Any:
    """Return the functions for numbers of the type of ``g``.

    >>> functions(1.0).clip(5.0, 0.0, 2.0), functions(np.ones(1)).clip(np.array([5.0]), 0.0, 2.0).tolist()
    (2.0, [2.0])
    """
    return Numbers if type(g) is float else Arrays if type(g) is np.ndarray else Tensors


class Rule(ABC):
    """How multipliers follow the constraints, and the weights they give.

    Attributes:
        name: its name in ``constrain(..., rule=name)``.
        vectors: the entries of the state that `update` reads and returns, in its order; the first is "multipliers".
        given: entries that `update` reads and somebody else writes: "ratio" (calibration) and "limit" (`Limits`).
        lagged: the weights are the multipliers from before the batch, so they are known before the forward pass.
        signed: multipliers can have either sign, so that the rule takes equalities.
    """

    name: ClassVar[str]
    vectors: ClassVar[dict[str, Vector]] = {"multipliers": Vector()}
    given: ClassVar[tuple[str, ...]] = ()
    lagged: ClassVar[bool] = False
    signed: ClassVar[bool] = True

    def scalars(self) -> dict[str, Scalar]:
        """Return the rule's own entries with one number for all constraints, "dual_steps" excepted."""
        return {}

    @abstractmethod
    def begin(self, dual: Dual) -> tuple[Any, dict[str, Any]]:
        """Return (the values shared by all constraints in this step, the new scalars besides "dual_steps")."""

    @abstractmethod
    def update(
        self, state: tuple[Number, ...], given: tuple[Number, ...], g: Number, shared: Any, num_equalities: int
    ) -> tuple[tuple[Number, ...], Number]:
        """Return (new state, weight) of one constraint, or of all of them as vectors.

        Args:
            state, given: in the order of ``vectors`` and ``given``.
            g: the value seen; feasible if ``<= 0``.
            shared: from `begin`.
            num_equalities: how many of the last constraints are equalities; for one float 0 or 1.
        """


def advance(rule: Rule, dual: Dual, g: Any, present: Any, num_equalities: int) -> tuple[Dual, Any]:
    """Return (the entries of the dual state that change, the weights w) after seeing the vector g.

    Args:
        rule: the dual rule.
        dual: the dual state; it is not changed.
        g: one value per constraint, a NumPy array or a torch tensor.
        present: True for constraints with samples in this batch, None for all. An absent constraint keeps its state and
            has the weight 0.
        num_equalities: how many of the last constraints are equalities.
    """
    shared, scalars = rule.begin(dual)
    state, given = tuple(dual[key] for key in rule.vectors), tuple(dual[key] for key in rule.given)
    new, w = rule.update(state, given, g, shared, num_equalities)
    if present is not None:
        where = functions(g).where
        new = tuple(n if n is old else where(present, n, old) for n, old in zip(new, state, strict=True))
        w = where(present, w, 0.0 * state[0])
    changed = {key: n for key, n, old in zip(rule.vectors, new, state, strict=True) if n is not old}
    return {"dual_steps": dual["dual_steps"] + 1, **scalars, **changed}, w


class Part(NamedTuple):
    """New numbers for some positions of a vector, the others stay."""

    positions: Any
    numbers: Any


def advance_few(rule: Rule, dual: Dual, g: Any, present: Any, num_equalities: int) -> tuple[Dual, Any]:
    """Do as `advance` does for NumPy vectors of which few are present: only those are computed."""
    positions = np.flatnonzero(present)
    equalities = int(np.count_nonzero(positions >= len(g) - num_equalities))
    part = {**dual, **{key: dual[key][positions] for key in (*rule.vectors, *rule.given)}}
    updates, some = advance(rule, part, g[positions], None, equalities)
    for key in rule.vectors:
        if key in updates:
            updates[key] = Part(positions, updates[key])
    w = np.zeros_like(g)
    w[positions] = some
    return updates, w


def advance_rows(
    rule: Rule,
    dual: Dual,
    rows: Sequence[Row],
    values: Sequence[float],
    present: Sequence[bool] | None,
    first_equality: int,
) -> tuple[list[Row], Dual, list[float]]:
    """Do as `advance` does, number by number.

    Args:
        rule: the dual rule.
        dual: the entries of the dual state that have one number for all constraints.
        rows: for each constraint its numbers of the rule's ``vectors``, then those that the rule is ``given``.
        values: g.
        present: as in `advance`.
        first_equality: the position of the first equality.

    Returns:
        the new numbers of the rule's ``vectors`` for each constraint, the other entries that change, and the weights.
    """
    shared, scalars = rule.begin(dual)
    size, update = len(rule.vectors), rule.update
    states, w = [], []
    for i, g in enumerate(values):
        row = rows[i]
        if present is None or present[i]:
            state, weight = update(row[:size], row[size:], g, shared, 1 if i >= first_equality else 0)
        else:
            state, weight = row[:size], 0.0
        states.append(state)
        w.append(weight)
    return states, {"dual_steps": dual["dual_steps"] + 1, **scalars}, w
