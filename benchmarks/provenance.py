"""Where a record was made: kept in every row, told below every table."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from typing import Any

from gdpa.experiments.records import about


def origin(module: str) -> dict[str, Any]:
    """Return commit, command and machine of this invocation of ``python -m module``; versions are the commit's.

    Where it wrote to is left out: that says nothing of the figures.
    """
    words = sys.argv[1:]
    if "--out" in words:
        at = words.index("--out")
        del words[at : at + 2]
    place = about(shlex.join(["python", "-m", module, *words]))
    return {key: place[key] for key in ("command", "commit", "machine")}


def told(rows: list[dict[str, Any]]) -> str:
    """Return a list of the invocations that made the rows, in Markdown; nothing where no row says where it is from.

    >>> print(told([{"about": {"command": "python -m a", "commit": "1a2b", "machine": {"cores": 2}}}] * 3))
    Made by
    <BLANKLINE>
    - `python -m a`: 3 runs, commit 1a2b, 2 cores
    """
    places = Counter(
        (r["about"]["command"], r["about"]["commit"], r["about"]["machine"]["cores"]) for r in rows if "about" in r
    )
    lines = [
        f"- `{command}`: {n} runs, commit {commit}, {cores} cores" for (command, commit, cores), n in places.items()
    ]
    return "\n".join(["Made by", "", *lines]) if lines else ""
