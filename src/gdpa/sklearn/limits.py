"""Limits on rates of positive decisions, by group: stated by the user, turned into rows over cells (group, target)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gdpa.base.checks import is_number
from gdpa.base.typing import Vector

#: The rates that a limit can bound: name -> the targets over whose samples the share of positive decisions is taken.
RATES = {"selection rate": (0, 1), "recall": (1,), "false positive rate": (0,)}


@dataclass(frozen=True)
class Limit:
    """One limit on rates of positive decisions; make one by the functions of this module.

    Attributes:
        rates: names in `RATES`.
        sense: "at most" or "at least" the bound, or "parity": each group's rate within the bound of the rate of all.
        bound: strictly between 0 and 1.
        groups: "all" (the data as a whole), "each" (one limit per group), or the labels of some groups.
    """

    rates: tuple[str, ...]
    sense: Literal["at most", "at least", "parity"]
    bound: float
    groups: str | tuple[Any, ...] = "all"

    def __post_init__(self) -> None:
        if not (is_number(self.bound) and 0 < self.bound < 1):
            raise ValueError(f"the bound of a limit must lie strictly between 0 and 1, got {self.bound!r}")
        if isinstance(self.groups, str) and self.groups not in ("all", "each"):
            raise ValueError(f"groups must be 'all', 'each' or a list of labels, got {self.groups!r}")


def demographic_parity(bound: float) -> Limit:
    """Every group's selection rate P(positive | group) is within ``bound`` of the selection rate of all."""
    return Limit(("selection rate",), "parity", bound, "each")


def equalized_odds(bound: float) -> Limit:
    """Every group's recall and every group's false positive rate are within ``bound`` of the rates of all."""
    return Limit(("recall", "false positive rate"), "parity", bound, "each")


def equal_opportunity(bound: float) -> Limit:
    """Every group's recall is within ``bound`` of the recall of all."""
    return Limit(("recall",), "parity", bound, "each")


def recall_at_least(bound: float, groups: str | Sequence[Any] = "all") -> Limit:
    """The recall P(positive | y = 1) is at least ``bound``, over all the data, in "each" group, or in those named."""
    return Limit(("recall",), "at least", bound, groups if isinstance(groups, str) else tuple(groups))


def false_positive_rate_at_most(bound: float, groups: str | Sequence[Any] = "all") -> Limit:
    """The false positive rate P(positive | y = 0) is at most ``bound``, over all data, in "each" group or some."""
    return Limit(("false positive rate",), "at most", bound, groups if isinstance(groups, str) else tuple(groups))


def rows_of(
    limits: Sequence[Limit], labels: Sequence[Any], group: Vector, target: Vector, masses: Vector
) -> dict[str, Any]:
    """Return names, C and bounds of ``limits``; ``labels`` are of groups, ``masses`` of cells (group, target)."""
    found: dict[str, tuple[Vector, float]] = {}

    def rate(name: str, place: int | None) -> Vector:
        inside = np.isin(target, RATES[name]) & ((group == place) if place is not None else True)
        if not inside.any():
            who = "the data" if place is None else f"the group {labels[place]!r}"
            raise ValueError(f"{who} has no samples of class {RATES[name][0]}, so its {name} has no meaning")
        row: Vector = np.where(inside, masses, 0.0)
        return np.asarray(row / row.sum())

    for limit in limits:
        for name in limit.rates:
            for place in _places(limit, labels):
                row, who = rate(name, place), "all" if place is None else str(labels[place])
                if limit.sense == "parity":
                    row = row - rate(name, None)
                    found[f"{name} of {who} - all <= {limit.bound:g}"] = row, limit.bound
                    found[f"all - {name} of {who} <= {limit.bound:g}"] = -row, limit.bound
                elif limit.sense == "at least":
                    found[f"{name} of {who} >= {limit.bound:g}"] = -row, -limit.bound
                else:
                    found[f"{name} of {who} <= {limit.bound:g}"] = row, limit.bound
    matrix = np.array([row for row, _ in found.values()]).reshape(len(found), len(masses))
    bounds = np.array([bound for _, bound in found.values()])
    return {"names": tuple(found), "combination": matrix, "bounds": bounds}


def _places(limit: Limit, labels: Sequence[Any]) -> list[int | None]:
    if limit.groups == "all":
        return [None]
    if limit.groups == "each":
        return list(range(len(labels)))
    missing = [label for label in limit.groups if label not in labels]
    if missing:
        raise ValueError(f"a limit names the groups {missing}, which are not in groups; there are {list(labels)}")
    return [list(labels).index(label) for label in limit.groups]
