"""The records and tables of a benchmark: ``results/STUDY/records.jsonl``, one line for each run, and ``*.md``.

study = Study("benchmarks.units", "units", key=("solver", "problem"))
study.add({"solver": "gdpa", "problem": "disc", "seconds": 0.1})     # with command, commit, versions and machine
study.write(table(study.rows()))                                     # `told` names the invocations below it
"""

from __future__ import annotations

import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from gdpa.base.writing import write_whole
from gdpa.paper.provenance import about, commit_named, versions_named
from gdpa.paper.records import NAME, RecordFile, Row

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
#: The versions that a table shows.
SHOWN = ("python", "numpy", "scipy", "torch")


class Study:
    """The records of one benchmark and the tables made of them.

    Args:
        module: the module that is run, for the command that records repeat.
        name: the folder under ``results/``.
        key: the entries that say which run a record is of; the last record of a run counts.
        part: of a study that has several parts in one file, the one meant; records name it.
        out: a folder instead of ``results/NAME``.
    """

    def __init__(
        self, module: str, name: str, key: Sequence[str] = (), part: str | None = None, out: Path | None = None
    ) -> None:
        self.module, self.names, self.part = module, tuple(key), part
        self.folder = RESULTS / name if out is None else out
        self.file = RecordFile(self.folder / NAME)

    @cached_property
    def origin(self) -> Row:
        """Where the records of this invocation come from."""
        return origin(self.module)

    def key(self, row: Row) -> tuple[Any, ...]:
        """Return which run a record is of; an entry that the record lacks is None."""
        return tuple(_hashable(row.get(name)) for name in self.names)

    def rows(self) -> list[Row]:
        """Return the records of this part, of each run the last one."""
        rows = [row for row in self.file.rows() if row.get("part") == self.part]
        return list({self.key(row): row for row in rows}.values()) if self.names else rows

    def add(self, row: Row) -> Row:
        """Append the record of one run with its origin, and return it."""
        full = self._full(row)
        self.file.append(full)
        return full

    def replace(self, rows: Iterable[Row]) -> list[Row]:
        """Write these records with their origin in place of all others of this part, and return them."""
        full = [self._full(row) for row in rows]
        self.keep(full)
        return full

    def tidy(self) -> None:
        """Drop records of this part that later ones replace."""
        self.keep(self.rows())

    def write(self, text: str, name: str = "table.md") -> None:
        """Write a table."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / name, f"{text}\n".encode())

    def _full(self, row: Row) -> Row:
        part = {} if self.part is None else {"part": self.part}
        return {**part, **row, "about": self.origin}

    def keep(self, rows: list[Row]) -> None:
        """Keep these records of this part, in this order, and no others."""
        before = self.file.rows()
        after = [row for row in before if row.get("part") != self.part] + rows
        if after != before:
            self.file.replace(after)


def markdown(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table in Markdown.

    >>> print(markdown(["a", "b"], [[1, "x"]]))
    | a | b |
    | --- | --- |
    | 1 | x |
    """
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def cells(rows: list[Row]) -> str:
    """Return records of one row of a table each as that table, with what made them.

    >>> print(cells([{"part": "p", "method": "GDPA", "gap": "1e-3"}]))
    | method | gap |
    | --- | --- |
    | GDPA | 1e-3 |
    """
    head = [name for name in rows[0] if name not in ("part", "about")]
    return f"{markdown(head, [[row[name] for name in head] for row in rows])}\n\n{told(rows)}".rstrip()


def origin(module: str) -> Row:
    """Return time, commit, versions, machine and command of this invocation of ``python -m module``.

    Options that say where it wrote to are left out: they say nothing of the figures.
    """
    words = sys.argv[1:]
    if "--out" in words:
        at = words.index("--out")
        del words[at : at + 2]
    return about(shlex.join(["python", "-m", module, *words]))


def told(rows: list[Row]) -> str:
    """Return a list of the invocations that made the rows, in Markdown; nothing if no row says where it is from.

    >>> place = {"command": "python -m a", "commit": "1a2b", "machine": {"cores": 2}, "versions": {"numpy": "2.4.6"}}
    >>> print(told([{"about": place}] * 3))
    Made by
    <BLANKLINE>
    - `python -m a`: 3 runs, commit 1a2b, 2 cores
    <BLANKLINE>
    with numpy 2.4.6.
    """
    origins = [row["about"] for row in rows if "about" in row]
    if not origins:
        return ""
    places = Counter((origin["command"], _place(origin)) for origin in origins)
    lines = [f"- `{command}`: {n} runs, {place}" for (command, place), n in places.items()]
    kinds = dict.fromkeys(_versions(origin) for origin in origins)
    notes = dict.fromkeys(line for origin in origins for line in re.split(r"(?<=\.) ", origin.get("note", "")))
    words = " ".join([f"with {' or '.join(kinds)}.", *filter(None, notes)])
    return "\n".join(["Made by", "", *lines, "", words])


def _place(origin: Row) -> str:
    cores = origin["machine"].get("cores")
    return f"commit {commit_named(origin)}" + ("" if cores is None else f", {cores} cores")


def _versions(origin: Row) -> str:
    """Return the versions that a table shows; a record has them all."""
    shown = {name: origin["versions"][name] for name in SHOWN if name in origin["versions"]}
    return versions_named({"versions": shown})


def _hashable(value: Any) -> Any:
    return repr(value) if isinstance(value, (list, dict)) else value
