"""One solver on one case, in a process of its own."""

from __future__ import annotations

import multiprocessing
import platform
import time
from typing import Any

from benchmarks.supervised import Connection, Row, supervised

#: Seconds between two reports of a process that evaluates points.
TELL = 2.0
#: A process is ended if it is silent for PATIENCE times its budget of wall time and GRACE seconds more.
PATIENCE, GRACE = 3.0, 60.0


def unit(
    case: str,
    solver: str,
    seconds: float,
    constants: dict[str, Any] | None = None,
    forwards: float = float("inf"),
    seed: int = 0,
) -> Row:
    """Run one solver on one case; return its record. What it had reached when it was ended is kept."""
    row: Row = {"case": case, "solver": solver, "seed": seed, "constants": constants or {}, "hits": {}}
    arguments = (case, solver, seconds, constants or {}, forwards, seed)
    return row | supervised(multiprocessing.get_context("spawn"), _child, arguments, PATIENCE * seconds + GRACE)


def _child(
    pipe: Connection,
    name: str,
    solver: str,
    seconds: float,
    constants: dict[str, Any],
    forwards: float,
    seed: int,
) -> None:
    import torch

    torch.set_num_threads(1)
    from benchmarks.large.cases import load
    from benchmarks.large.judge import Judge
    from benchmarks.large.solvers import run

    case = load(name, seed)
    case.at(case.x0).jacobian()  # the first call pays for what torch sets up

    def account() -> Row:
        return {
            "d": len(case.x0),
            "m": case.m,
            "one_pass": case.one_pass,
            "budget": seconds,
            "forwards": judge.forwards,
            "backwards": judge.backwards,
            "seconds": judge.seconds,
            "wall": judge.wall,
            "violation": judge.violation,
            "hits": {f"{level:g}": hit for level, hit in judge.hits.items()},
            "machine": platform.machine(),
        }

    told = [time.perf_counter(), 0.0]

    def tell() -> None:
        now, hits = time.perf_counter(), len(judge.hits)
        if now - told[0] > TELL or hits > told[1]:
            told[:] = [now, hits]
            pipe.send(account())

    judge = Judge(case, seconds, forwards, note=tell)
    outcome = run(solver, judge, constants)
    pipe.send({**account(), **outcome, "trace": judge.trace})
    pipe.close()
