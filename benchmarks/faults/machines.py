"""The line of the state machines; Hypothesis, which draws their sequences, is loaded when they run."""

from __future__ import annotations

from pathlib import Path

from benchmarks.faults.line import Line, Row, numbered, seed_of, total

KINDS = ("solve", "minimize", "torch", "files")
#: Operations of one machine in all, and in one record.
OPERATIONS, BATCH = 10_000, 1000


def run(case: str, folder: Path) -> Row:
    from benchmarks.faults.state_machines import run_machine

    return run_machine(case.partition(" ")[0], seed_of(case), BATCH)


def found(rows: list[Row]) -> str:
    parts = []
    for kind in dict.fromkeys(row["case"].partition(" ")[0] for row in rows):
        own = [row for row in rows if row["case"].startswith(kind)]
        parts.append(f"{kind}: {total(own, 'operations')} operations, {total(own, 'broken')} broken")
    return "; ".join(parts)


LINE = Line(
    "state machines",
    "10,000 operations each, no broken invariant",
    lambda short: [case for kind in KINDS for case in numbered(kind, 1 if short else OPERATIONS // BATCH)],
    run,
    found,
)
