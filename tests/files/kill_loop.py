"""Kill a process again and again while it saves, and check after every kill what is on the disk.

Usage: python tests/files/kill_loop.py FOLDER KILLS. Prints one JSON object. A program of its own, because it forks:
torch and JAX, which the tests load, do not survive that.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import warnings

import numpy as np

from gdpa import Checkpoints, storage

KEEP = 3
#: Numbers in a file: writing them takes a while, so that kills strike there, too.
SIZE = 100_000


def save_one(checkpoints: Checkpoints, step: int) -> None:
    checkpoints.save(step, {"step": step, "x": np.full(SIZE, float(step))})


def save_forever(folder: str, step: int, acknowledge: int) -> None:
    """Save one step after the other; say so on the pipe only after each save has returned."""
    checkpoints = Checkpoints(folder, KEEP)
    while True:
        step += 1
        save_one(checkpoints, step)
        os.write(acknowledge, step.to_bytes(8, "little"))


def main(folder: str, kills: int) -> None:
    warnings.simplefilter("error")  # a skipped file is a failure here
    rng = random.Random(0)
    checkpoints = Checkpoints(folder, KEEP)
    seen = {"kills": 0, "acknowledged": 0, "cut": 0, "older": 0, "unreadable": 0, "left": 0}
    start, step = time.perf_counter(), 0
    for step in range(1, 6):  # also loads what the children would load each
        save_one(checkpoints, step)
    duration = (time.perf_counter() - start) / 5
    while seen["kills"] < kills:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            try:
                save_forever(folder, step, writer)
            finally:
                os._exit(1)
        os.close(writer)
        acknowledged = [step]
        with os.fdopen(reader, "rb") as pipe:
            for _ in range(rng.randrange(2)):  # wait for no save or one, then strike into the next
                acknowledged.append(int.from_bytes(pipe.read(8), "little"))
            time.sleep(rng.uniform(0, 1.5 * duration))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            while word := pipe.read(8):
                acknowledged.append(int.from_bytes(word, "little"))
        seen["kills"] += 1
        seen["acknowledged"] += len(acknowledged) - 1
        seen["cut"] += any(name.endswith(".part") for name in os.listdir(folder))
        newest = checkpoints.newest()
        assert newest is not None
        step = newest.step
        seen["older"] += step < acknowledged[-1]
        for path in checkpoints.files():
            value = storage.load(path)
            seen["unreadable"] += not (f"-step-{value['step']}." in path.name and (value["x"] == value["step"]).all())
        names = os.listdir(folder)
        seen["left"] += len(names) - len(checkpoints.files())
        seen["left"] += max(0, len(names) - KEEP - 1)  # one more than KEEP if the kill came before the oldest went
    checkpoints.save(step + 1, None)
    seen["left"] += len(os.listdir(folder)) - KEEP
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
