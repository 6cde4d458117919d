"""The line of the state machines; Hypothesis, which draws their sequences, is loaded when they run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.faults.line import ROOT, Line, Row, numbered, seed_of, total

KINDS = ("solve", "minimize", "torch", "files")
#: Operations of one machine in all, and in one record.
OPERATIONS, BATCH = 10_000, 1000
#: Seconds for a batch on a busy machine.
LIMIT = 3600


def run(case: str, folder: Path) -> Row:
    """Run a batch in a process of its own."""
    words = [case.partition(" ")[0], str(seed_of(case)), str(BATCH)]
    command = [sys.executable, "-m", "benchmarks.faults.state_machines", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        return {"ok": False, "note": done.stderr[-2000:]}
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


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
    parallel=True,
)
