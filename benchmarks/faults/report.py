"""The lines of the campaign and their table, from the records alone."""

from __future__ import annotations

from benchmarks.faults import damage, forged, long_run, machines, mutated, ranks, signals, success, workers
from benchmarks.faults.line import Line, Row
from benchmarks.provenance import markdown, told

#: Which case a record is of.
KEY = ("line", "case")
LINES: dict[str, Line] = {
    "success": success.LINE,
    "sigterm": signals.TERMINATED,
    "sigint": signals.INTERRUPTED,
    "killed": ranks.KILLED,
    "frozen": ranks.FROZEN,
    "damage": damage.LINE,
    "forged": forged.LINE,
    "machines": machines.LINE,
    "long": long_run.LINE,
    "mutants": mutated.LINE,
    "starts": ranks.STARTED,
    "workers": workers.LINE,
}


def table(rows: list[Row]) -> str:
    """Return the figures asked for and found, a row for each line that has records.

    >>> rows = [{"line": "damage", "case": "a list", "ok": True, "named": True, "traceback": False, "accepted": False}]
    >>> print(table(rows).splitlines()[2])
    | damaged records | 50 named, 0 tracebacks, 0 accepted | 1 of 1 named, 0 tracebacks, 0 accepted | 1 of 1 |
    """
    body = []
    for name, line in LINES.items():
        own = [row for row in rows if row["line"] == name]
        if own:
            good = sum(bool(row["ok"]) for row in own)
            body.append((line.fault, line.asked, line.found(own), f"{good} of {len(own)}"))
    text = markdown(["fault", "asked", "found", "cases as asked"], body)
    return f"{text}\n\n{told(rows)}".rstrip()
