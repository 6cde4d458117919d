"""A line of the campaign, and helpers for its cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Line:
    """One kind of fault.

    Args:
        fault: the first column of the table.
        asked: the figure that it must show.
        cases: the names of the cases, with True those of a short campaign.
        run: runs the case of this name in a folder of its own and returns its record. The entry ``ok`` is true if it
            went as asked, ``note`` is the reason if not.
        found: the figure, from the records of the line.
        parallel: whether cases may run side by side.
    """

    fault: str
    asked: str
    cases: Callable[[bool], list[str]]
    run: Callable[[str, Path], Row]
    found: Callable[[list[Row]], str]
    parallel: bool = False


def numbered(word: str, count: int) -> list[str]:
    """Return names of cases.

    >>> numbered("kill", 2)
    ['kill 0', 'kill 1']
    """
    return [f"{word} {i}" for i in range(count)]


def seed_of(case: str) -> int:
    """Return the number at the end of a name.

    >>> seed_of("solve 17")
    17
    """
    return int(case.rpartition(" ")[2])


def total(rows: Iterable[Row], name: str) -> int:
    """Return the sum of an entry over records."""
    return sum(int(row.get(name, 0)) for row in rows)


def largest(rows: Iterable[Row], name: str) -> float:
    """Return the largest value of an entry; a record without it, of a case that failed, does not count.

    >>> largest([{"longest": 2.5}, {"ok": False}], "longest")
    2.5
    """
    return max((float(row[name]) for row in rows if name in row), default=0.0)
