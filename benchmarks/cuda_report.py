"""The tables of benchmarks.cuda and benchmarks.cuda_solve, from their records alone."""

from __future__ import annotations

from typing import Any

from benchmarks.provenance import markdown, told

#: Entries of a record that are no figures.
ABOUT = ("part", "figure", "machine", "about")


def table(rows: list[dict[str, Any]]) -> str:
    """Return one line for each figure, in Markdown.

    >>> print(table([{"figure": "a step", "plain_ms": 2.0, "success": True, "machine": "GPU"}]))
    | figure | measured |
    | --- | --- |
    | a step | plain ms 2, success True |
    <BLANKLINE>
    On one GPU.
    """
    lines = [[row["figure"], ", ".join(_words(row))] for row in rows]
    parts = [markdown(["figure", "measured"], lines), f"On one {rows[0]['machine']}.", told(rows)]
    return "\n\n".join(filter(None, parts))


def _words(row: dict[str, Any]) -> list[str]:
    numbers = {name.replace("_", " "): value for name, value in row.items() if name not in ABOUT}
    return [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in numbers.items()]
