"""Mutants of the core files: the figure of `benchmarks.mutants`, whose records are in ``results/mutants``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.faults.line import ROOT, Line, Row, total
from benchmarks.provenance import RESULTS, Study

LEAST = 0.9
#: Seconds for all mutants on a slow machine.
LIMIT = 24 * 3600


def run(case: str, folder: Path) -> Row:
    """Judge the mutants that have no record yet, and count all of them."""
    out = RESULTS / "mutants" if case == "all" else folder
    jobs = str(os.cpu_count() or 1)
    few = [] if case == "all" else ["--sample", "2", "--files", "methods/gdpa"]
    words = [sys.executable, "-m", "benchmarks.mutants", "--jobs", jobs, "--out", str(out), *few]
    subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT)
    return counted(out)


def counted(out: Path) -> Row:
    rows = Study("benchmarks.mutants", "mutants", key=("key",), out=out).rows()
    killed = sum(bool(row["killed"]) for row in rows)
    return {"mutants": len(rows), "killed": killed, "ok": killed >= LEAST * len(rows) > 0}


def found(rows: list[Row]) -> str:
    killed, mutants = total(rows, "killed"), total(rows, "mutants")
    return f"{killed} of {mutants} killed ({killed / mutants:.1%}); results/mutants/table.md lists the survivors"


LINE = Line(
    "mutants of the core files",
    ">= 90 % killed; survivors listed",
    lambda short: ["a few"] if short else ["all"],
    run,
    found,
)
