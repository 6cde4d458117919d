"""Ranks under torchrun: killed, frozen, and started a hundred times on a busy machine.

The program is examples/integrations/torchrun_restarts.py on two ranks; it prints the process of each rank and, at the
end, checksums of weights, multipliers and the order of the data.
"""

from __future__ import annotations

import os
import queue
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.faults.line import ROOT, Line, Row, largest, numbered, seed_of, total

INTEGRATIONS = ROOT / "examples" / "integrations"
RANKS = 2
#: Kills of one run, and of all; frozen ranks; starts.
KILLS_EACH, KILLS, FREEZES, STARTS = 5, 20, 5, 100
#: Steps of a run: enough for several seconds of training after each start.
STEPS = 1500
#: Seconds that the ranks left may take to end after a kill or a freeze.
LIMIT = 60.0
#: Seconds for a start of the ranks on a busy machine, and for a whole run.
START_LIMIT, RUN_LIMIT = 240.0, 1800.0
#: Seconds for the example under torchrun that `make test` starts, which takes about ten on an idle machine.
TORCHRUN_LIMIT = 240.0
#: Restarts: gloo now and then aborts a worker as it leaves, after its work is done; torchrun is made for that.
FLAGS = ("--nproc-per-node", str(RANKS), "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
#: Busy processes beside a start: with its three own, a load of more than 4 on two cores.
LOAD = 4

BEGINS = re.compile(r"rank (?P<rank>\d+) is process (?P<process>\d+) and begins at step (?P<step>\d+)")


def torchrun(*words: object, restarts: int = 3) -> list[str]:
    """Return the command that starts a program on two ranks."""
    flags = [*FLAGS, "--max-restarts", str(restarts)]
    return [sys.executable, "-m", "torch.distributed.run", *flags, *map(str, words)]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def output_of(command: list[str], limit: float) -> str:
    """Run a program and return what it prints; one that does not end in time is killed with all its processes."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    ) as process:
        try:
            out, complaints = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        # The rank that failed first comes first, torchrun's summary last.
        shown = complaints if len(complaints) <= 6000 else f"{complaints[:3000]}\n[...]\n{complaints[-3000:]}"
        raise RuntimeError(f"{' '.join(command[1:])} ended with {process.returncode}: {shown}")
    return out


def output_with_retry(command: list[str], limit: float, report: Callable[[str], Any]) -> str:
    """Run a program; if it fails or does not end in time, report that and run it once more."""
    try:
        return output_of(command, limit)
    except (subprocess.TimeoutExpired, RuntimeError) as error:  # gloo's rendezvous: twice in a row is an error
        report(f"{error}; it is started once more")
    return output_of(command, limit)


class Training:
    """The example under torchrun: its lines as they come, and the processes of its ranks."""

    def __init__(self, folder: Path, restarts: int, steps: int = STEPS) -> None:
        command = torchrun(INTEGRATIONS / "torchrun_restarts.py", folder, steps, restarts=restarts)
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**environment(), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self._queue.put(line.rstrip())
        self._queue.put(None)

    def wait_for(self, done: Callable[[str], bool], limit: float) -> str | None:
        """Return the first new line for which ``done`` is true, None at the end of the output; or raise."""
        deadline = time.monotonic() + limit
        while True:
            try:
                line = self._queue.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                tail = "\n".join(self.lines[-20:])
                raise TimeoutError(f"nothing came within {limit:g} s after\n{tail}") from None
            if line is None:
                return None
            self.lines.append(line)
            if done(line):
                return line

    def begun(self) -> dict[int, int]:
        """Wait until every rank has begun and return their processes."""
        found: dict[int, int] = {}

        def done(line: str) -> bool:
            match = BEGINS.search(line)
            if match:
                found[int(match["rank"])] = int(match["process"])
            return len(found) == RANKS or "end: step" in line

        self.wait_for(done, START_LIMIT)
        return found

    @property
    def end(self) -> str:
        """The last line, with the checksums."""
        ends = [line[line.index("end: step") :] for line in self.lines if "end: step" in line]
        return ends[-1] if ends else ""

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *raised: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for line in self.lines:
            if match := BEGINS.search(line):
                with suppress(ProcessLookupError):
                    os.kill(int(match["process"]), signal.SIGKILL)
        self.process.wait(timeout=LIMIT)
        self._reader.join(LIMIT)


def undisturbed(steps: int = STEPS) -> str:
    """Return the last line of a run that nobody disturbs; it is made once."""
    with _ONE_AT_A_TIME:
        return _undisturbed(steps)


_ONE_AT_A_TIME = threading.Lock()


@cache
def _undisturbed(steps: int) -> str:
    with TemporaryDirectory(prefix="gdpa-ranks-") as folder, Training(Path(folder), 3, steps) as training:
        training.wait_for(lambda line: "end: step" in line, RUN_LIMIT)
        return training.end


def runs(process: int) -> bool:
    """Tell whether a process of another parent is there; one that has ended and was not waited for is not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def seconds_until_gone(processes: list[int], limit: float) -> float:
    """Wait for processes to end, and return the seconds; infinite if they do not."""
    clock = time.monotonic()
    while any(map(runs, processes)):
        if time.monotonic() - clock > limit:
            return float("inf")
        time.sleep(0.02)
    return time.monotonic() - clock


def kill_ranks(seed: int, kills: int, folder: Path, steps: int = STEPS, longest: float = 4.0) -> Row:
    """Kill a random rank ``kills`` times and compare the end with that of an undisturbed run.

    A kill comes at most ``longest`` seconds after the ranks have begun.
    """
    rng = random.Random(f"kill {seed}")
    straight = undisturbed(steps)
    row: Row = {"kills": 0, "recovered": 0, "longest": 0.0}
    with Training(folder, 3 * kills + 3, steps) as training:
        ranks = training.begun()
        while row["kills"] < kills and len(ranks) == RANKS:
            time.sleep(rng.uniform(0, longest))
            victim = rng.randrange(RANKS)
            if not runs(ranks[victim]):  # it has ended by itself, or another start came in between
                ranks = training.begun()
                continue
            os.kill(ranks[victim], signal.SIGKILL)
            row["kills"] += 1
            gone = seconds_until_gone(list(ranks.values()), 2 * LIMIT)
            row["longest"] = round(max(row["longest"], gone), 2)
            ranks = training.begun()
            row["recovered"] += gone <= LIMIT and (len(ranks) == RANKS or bool(training.end))
        if not training.end:
            training.wait_for(lambda line: "end: step" in line, RUN_LIMIT)
        starts = [int(match["step"]) for line in training.lines if (match := BEGINS.search(line))]
        row |= {"equal": training.end == straight, "first steps": sorted(set(starts))}
    row["ok"] = row["equal"] and row["recovered"] == row["kills"] > 0
    return {**row, "note": "" if row["ok"] else "\n".join(training.lines[-15:])}


def freeze_rank(seed: int, folder: Path) -> Row:
    """Stop a rank by SIGSTOP: the other must end within the limit and name it."""
    rng = random.Random(f"freeze {seed}")
    frozen = seed % RANKS
    with Training(folder, 0, 1_000_000) as training:
        ranks = training.begun()
        time.sleep(rng.uniform(0.5, 2.0))
        os.kill(ranks[frozen], signal.SIGSTOP)
        gone = seconds_until_gone([ranks[rank] for rank in ranks if rank != frozen], 2 * LIMIT)
        wanted = f": rank {frozen} has been silent for "
        with suppress(TimeoutError):
            training.wait_for(lambda line: wanted in line, 5.0)
        named = any(line.count("has been silent") == 1 and wanted in line for line in training.lines)
    note = "" if named else "\n".join(training.lines[-15:])
    return {"seconds to end": round(gone, 2), "named": named, "ok": named and gone <= LIMIT, "note": note}


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep processes that do nothing but run beside the block."""
    children = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


@cache
def core_pairs() -> queue.Queue[list[int]]:
    """Return the pairs of cores that no start uses at the moment."""
    cores, pairs = sorted(os.sched_getaffinity(0)), queue.Queue[list[int]]()
    for first in range(0, max(1, len(cores) - 1), 2):
        pairs.put(cores[first : first + 2])
    return pairs


def start_once(load: int = LOAD) -> Row:
    """Start the example that `make test` starts, on two cores under load, as `make test` does: with one retry."""
    retries: list[str] = []
    before, two = os.sched_getaffinity(0), core_pairs().get()
    clock = time.monotonic()
    os.sched_setaffinity(0, two)  # of this thread and of the processes it starts
    try:
        with busy(load):
            command = torchrun(INTEGRATIONS / "torchrun_ddp.py")
            out = output_with_retry(command, TORCHRUN_LIMIT, retries.append)
    finally:
        os.sched_setaffinity(0, before)
        core_pairs().put(two)
    ended = "multipliers equal on all ranks: True" in out
    return {"ended": ended, "retries": len(retries), "longest": round(time.monotonic() - clock, 1), "ok": ended}


def found_killed(rows: list[Row]) -> str:
    longest = largest(rows, "longest")
    return (
        f"{total(rows, 'recovered')} of {total(rows, 'kills')} resumed, the ranks left ended within {longest:.2g} s; "
        f"{total(rows, 'equal')} of {len(rows)} runs equal to an undisturbed one, data order included"
    )


def found_frozen(rows: list[Row]) -> str:
    longest = largest(rows, "seconds to end")
    return f"{total(rows, 'named')} of {len(rows)} named, the others ended within {longest:.2g} s"


def found_started(rows: list[Row]) -> str:
    longest = largest(rows, "longest")
    retries = total(rows, "retries")
    return f"{total(rows, 'ended')} of {len(rows)} ended, longest {longest:.3g} s, {retries} started a second time"


KILLED = Line(
    "rank killed under torchrun, 20 times",
    "no hang over 60 s, resumed, equal to an undisturbed run",
    lambda short: numbered("run", 1 if short else KILLS // KILLS_EACH),
    lambda case, folder: kill_ranks(seed_of(case), KILLS_EACH, folder),
    found_killed,
    parallel=True,
)
FROZEN = Line(
    "frozen rank, 5 times",
    "the others end within 60 s and name it",
    lambda short: numbered("freeze", 1 if short else FREEZES),
    lambda case, folder: freeze_rank(seed_of(case), folder),
    found_frozen,
    parallel=True,
)
STARTED = Line(
    "100 starts of the torchrun test at a load of 4",
    f"100 ends within its limit of {TORCHRUN_LIMIT:g} s",
    lambda short: numbered("start", 1 if short else STARTS),
    lambda case, folder: start_once(),
    found_started,
    parallel=True,
)
