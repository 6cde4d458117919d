"""Run by torchrun on two ranks: the cases of test_ranks.py. Every rank writes the outcome of each case to a file."""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

import gdpa
from gdpa import sharded
from tests.sharded.cases import DATA, Quadratic, quadratic

FOLDER = Path(*sys.argv[1:2])  # a worker of pytest has no arguments
START = np.zeros(5)


class Raises(Quadratic):
    def sums(self, x):
        raise KeyError("age")


class OneMore(Quadratic):
    def sums(self, x):
        return np.append(super().sums(x), 1.0)


def message(engine, shards, x0=START):
    try:
        gdpa.solve(sharded.problem(shards, engine), x0)
    except (sharded.ShardError, ValueError) as error:
        return str(error)
    return ""


def cases(engine):
    rank = engine.rank
    found = {"rank": rank}
    ours = gdpa.solve(sharded.problem(quadratic(4), engine), START, tolerance=1e-10)
    alone = gdpa.solve(sharded.problem(quadratic(4)), START, tolerance=1e-10)
    found["same bits"] = bool((ours.x == alone.x).all() and ours.success)
    found["raises"] = message(engine, [Quadratic(DATA), Raises(DATA)])
    found["one more"] = message(engine, [Quadratic(DATA), OneMore(DATA)])
    found["few"] = message(engine, quadratic(1))
    found["other data"] = message(engine, quadratic(4 if rank else 2))
    found["other start"] = message(engine, quadratic(2), START + rank)

    def interrupt(progress):
        if rank == 1 and progress.step == 3:
            signal.raise_signal(signal.SIGINT)

    options = {"stop": gdpa.MaxSteps(10), "observers": interrupt, "checkpoint": FOLDER / "interrupted"}
    stopped = gdpa.solve(sharded.problem(quadratic(2), engine), START, "GDPA", **options)
    found["interrupted"] = stopped.status.name, stopped.steps
    slow = gdpa.solve(sharded.problem(quadratic(2), engine), START, "GDPA", stop=[gdpa.MaxTime(0.05)])
    found["time"] = slow.status.name, slow.steps
    return found


def resumed(engine):
    """Kill rank 1 once, at step 25; torchrun starts both ranks again, and they continue from the checkpoint."""
    once = FOLDER / "killed"

    def kill(progress):
        if engine.rank == 1 and progress.step == 25 and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    options = {"stop": gdpa.MaxSteps(40), "checkpoint": FOLDER / "resumed", "every": 10, "resume": True}
    result = gdpa.solve(sharded.problem(quadratic(2), engine), START, "GDPA", observers=kill, **options)
    alone = gdpa.solve(sharded.problem(quadratic(2)), START, "GDPA", stop=gdpa.MaxSteps(40))
    return {"same bits": bool((result.x == alone.x).all()), "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"])}


if __name__ == "__main__":
    engine = sharded.Torch(timeout=60)
    outcome = {"cases": cases, "resumed": resumed}[sys.argv[2]](engine)
    (FOLDER / f"{sys.argv[2]}-{engine.rank}.json").write_text(json.dumps(outcome))
