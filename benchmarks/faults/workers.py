"""Kill a worker that holds a shard: an actor of Ray before an evaluation, or a rank of torchrun at a step."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path
from typing import Any

import gdpa
from benchmarks import shards
from benchmarks.faults.line import Line, Row, seed_of, total

STOP = gdpa.MaxSteps(30)


@functools.cache
def undisturbed() -> Any:
    return gdpa.solve(shards.cases()["12 groups"].in_shards(2, "local"), None, "GDPA", stop=STOP).x.tolist()


def kill_actor(at: int, folder: Path) -> Row:
    training = shards.cases()["12 groups"].in_shards(2, "ray")
    calls = 0

    def evaluate(x: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            os.kill(training.problem.job.engine.processes()[-1], signal.SIGKILL)
        return training.problem.evaluate(x)

    result = gdpa.solve(gdpa.Problem(evaluate, num_constraints=12), training.x0, "GDPA", stop=STOP)
    return {"x": result.x.tolist(), "kills": int(calls >= at)}


def kill_rank(at: int, folder: Path) -> Row:
    found = shards.ask("torch", "resumed", at, str(folder), options=("--max-restarts=3",))
    return {"x": found["x"], "kills": int(found["restarts"] > 0)}


def run(case: str, folder: Path) -> Row:
    kill = kill_actor if case.startswith("ray") else kill_rank
    found = kill(seed_of(case), folder)
    same = found.pop("x") == undisturbed()
    return {**found, "same": same, "ok": same and found["kills"] == 1, "note": f"same bits: {same}, {found}"}


def cases(short: bool) -> list[str]:
    return [f"{engine} {at}" for engine in ("ray", "torchrun") for at in ((3,) if short else range(1, 21))]


LINE = Line(
    fault="SIGKILL of an actor of Ray or of a rank that holds a shard",
    asked="40 of 40 end with the undisturbed bits",
    cases=cases,
    run=run,
    found=lambda rows: f"{total(rows, 'same')} of {total(rows, 'kills')} end with the undisturbed bits",
)
