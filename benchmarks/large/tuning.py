"""Constants for the methods of the paper: the grid of the paper's own figures, searched on a smaller case.

The smaller case is drawn from another seed, so nothing is tuned on what is measured. Every point of the grid gets the
same number of forward passes. The best is the one that reaches 1e-2 in the fewest passes, or else comes nearest to it.
"""

from __future__ import annotations

import math
from typing import Any

from benchmarks.large.study import unit
from benchmarks.provenance import Study

HELD_OUT, FORWARDS, SECONDS = 10_000, 1000, 60.0
#: The grid: step lengths, penalties, and tolerances of IQRC. Multipliers here are of order 10 to 100.
STEPS, PENALTIES = (0.01, 0.03, 0.1, 0.3), (1.0, 3.0, 10.0, 30.0, 100.0)
TOLERANCES = (1.0, 0.3, 0.1, 0.03, 0.01)
#: Family -> the case on which its constants are chosen.
PILOTS = {"mnpc": "mnpc-500", "disjoint": "disjoint-3", "shared": "shared-3"}


def tuned(trials: Study, family: str, method: str) -> dict[str, Any] | None:
    """Return the best constants found so far for a method on a family of cases, None if none were tried."""
    rows = [r for r in trials.rows() if r["family"] == family and r["solver"] == method]
    return min(rows, key=_rank)["constants"] if rows else None


def tune(trials: Study, family: str, method: str) -> None:
    """Try what of the grid was not tried yet; one line a trial."""
    from gdpa.paper.contestants import grid

    done = [r["constants"] for r in trials.rows() if r["family"] == family and r["solver"] == method]
    for constants in grid(method, STEPS, PENALTIES, TOLERANCES):
        if constants in done:
            continue
        row = unit(PILOTS[family], method, SECONDS, constants, FORWARDS, HELD_OUT)
        row["nearest"] = min((entry[3] for entry in row.pop("trace", [])), default=None)
        trials.add({"family": family, **row})


def _rank(row: dict[str, Any]) -> tuple[float, float, float]:
    hit = row["hits"].get("0.01", {}).get("forwards", math.inf)
    nearest = math.inf if row["nearest"] is None else row["nearest"]
    return hit, nearest, row.get("violation", math.inf)  # the last: least violation of a run that was never judged
