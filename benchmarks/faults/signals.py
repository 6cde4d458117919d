"""SIGTERM and SIGINT at random times: saved and gone after the step, and continued to the same end.

    python -m benchmarks.faults.signals KIND SEED COUNT FOLDER        one record as JSON

A process of its own, because it forks: each child runs a program on libraries that are loaded already. A child says
"ready" and then, after every step, the time; the parent sends the signal at a random time of the program's duration.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import gdpa
from benchmarks.faults.line import ROOT, Line, Row, largest, numbered, seed_of, total

#: Signals in one record, and to each program in all.
BATCH, SIGNALS = 10, 50
#: Seconds after which a process that has got a signal counts as hanging.
HANG = 60.0
#: Seconds for a batch; a busy machine takes minutes.
BATCH_LIMIT = 3000.0
#: Steps of the programs, and seconds that each evaluation of their functions takes at least.
STEPS, PAUSE = 150, 0.002


def say(*words: object) -> None:
    """Print a line at once, by one write."""
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


def square(x: Any) -> Any:
    time.sleep(PAUSE)
    return x @ x


def solve(folder: Path) -> None:
    """`gdpa.solve` with checkpoints."""
    problem = gdpa.from_functions(
        square, lambda x: 1 - x[:1], gradient=lambda x: 2 * x, jacobian=lambda x: -np.eye(1, 2)
    )
    say("ready")
    found = gdpa.solve(
        problem,
        np.array([3.0, 1.0]),
        gdpa.GDPA(alpha=1e-2, beta=1.0),
        stop=gdpa.MaxSteps(STEPS),
        tolerance=1e-12,
        observers=[lambda progress: say("time", progress.step, time.monotonic())],
        checkpoint=folder / "run",
        every=10,
        resume=True,
    )
    say("end", found.steps, found.x.tobytes().hex(), found.multipliers.tobytes().hex())


def minimize(folder: Path) -> None:
    """`gdpa.minimize` with checkpoints, on Rosenbrock's valley in a disc, with a fixed step so that it takes long."""
    from scipy.optimize import rosen, rosen_der

    def fun(x: Any) -> Any:
        time.sleep(PAUSE)
        return rosen(x)

    def callback(intermediate_result: Any) -> None:
        say("time", intermediate_result.nit, time.monotonic())

    constraint = {"type": "ineq", "fun": lambda x: 1.5 - x @ x, "jac": lambda x: -2 * x}
    options = {"maxiter": STEPS, "checkpoint": folder / "run", "every": 10, "resume": True}
    options |= {"alpha": 1e-3, "beta": 1.0}
    say("ready")
    found = gdpa.minimize(
        fun, [-1.0, 0.5], method="gdpa", jac=rosen_der, constraints=constraint, callback=callback, options=options
    )
    say("end", found.nit, found.x.tobytes().hex(), found.multipliers.tobytes().hex())


def train(folder: Path) -> None:
    """The training example, on one rank."""
    sys.argv = ["torchrun_restarts.py", str(folder), str(STEPS)]
    say("ready")
    runpy.run_path(str(ROOT / "examples/integrations/torchrun_restarts.py"), run_name="__main__")


def reproduce(folder: Path) -> None:
    """`gdpa reproduce`, three units and their report, without figures: they take long and save nothing."""
    from gdpa.paper.cli import app
    from gdpa.paper.records import Folder

    words = ["reproduce", "rate", "--only", "disc-product", "--steps", "150", "--jobs", "1", "--out", str(folder)]
    say("ready")
    try:
        with patch("gdpa.paper.report._picture", lambda folder, name, chart: ("", [])):
            app(words)
    except SystemExit as ended:
        if ended.code:
            raise
    for record in Folder(folder).read("rate"):
        columns = {name: values.tolist() for name, values in record.columns.items() if name != "seconds"}
        say("end", record.unit.name, hash(json.dumps(columns, sort_keys=True)))


PROGRAMS: dict[str, Callable[[Path], None]] = {
    "solve": solve,
    "minimize": minimize,
    "train": train,
    "reproduce": reproduce,
}
#: The libraries that a program needs, loaded before the first fork.
NEEDED = {"minimize": ("scipy.optimize",), "train": ("torch.distributed", "gdpa.torch")}
NEEDED["reproduce"] = ("gdpa.paper.cli", "gdpa.paper.studies.rate", "gdpa.paper.report", "matplotlib.pyplot")


@dataclass
class Ended:
    """How a child ended: its exit code (negative for a signal), output, and what the parent measured."""

    code: int
    lines: list[str]
    complaints: str
    sent: float = 0.0
    seconds: float = 0.0
    duration: float = 0.0
    times: list[float] = field(default_factory=list)

    @property
    def end(self) -> list[str]:
        return [line for line in self.lines if line.startswith("end")]


def start(program: Callable[[Path], None], folder: Path) -> tuple[int, int]:
    """Fork a child that runs the program in ``folder``; return its id and the pipe of its output."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    code = 1
    try:
        os.dup2(writer, 1)
        handle = os.open(folder / "complaints.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        program(folder)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_program(program: Callable[[Path], None], folder: Path, delay: float | None, number: int = 0) -> Ended:
    """Run a program and send it a signal ``delay`` seconds after it is ready; None sends nothing."""
    child, reader = start(program, folder)
    lines: list[str] = []
    ready = threading.Event()

    def read() -> None:
        with os.fdopen(reader) as stream:
            for line in stream:
                lines.append(line.strip())
                if line.startswith("ready"):
                    ready.set()
        ready.set()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    ready.wait(HANG)
    began = sent = time.monotonic()
    if delay is not None:
        time.sleep(delay)
        sent = time.monotonic()
        os.kill(child, number)
    after = time.monotonic()
    code = _reap(child, after + (HANG if delay is not None else BATCH_LIMIT))
    ended = time.monotonic()
    thread.join(HANG)
    complaints = (folder / "complaints.txt").read_text()
    times = [float(line.split()[2]) for line in lines if line.startswith("time ")]
    return Ended(code, lines, complaints, after, ended - sent, ended - began, times)


def _reap(child: int, deadline: float) -> int:
    """Return the exit code of a child; one that is still there at the deadline is killed: -9."""
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -int(signal.SIGKILL)


def terminate(kind: str, seed: int, count: int, folder: Path) -> Row:
    """Send SIGTERM to a program ``count`` times, continue each run, and compare its end with an undisturbed one."""
    program, rng = PROGRAMS[kind], random.Random(f"{kind} {seed}")
    for module in NEEDED.get(kind, ()):
        __import__(module)
    (folder / "straight").mkdir()
    straight = run_program(program, folder / "straight", None)
    assert straight.code == 0, straight.complaints
    row: Row = {"signals": count, "in time": 0, "saved": 0, "resumed": 0, "finished before": 0, "longest": 0.0}
    notes = []
    for i in range(count):
        own = folder / str(i)
        own.mkdir()
        struck = run_program(program, own, rng.uniform(0, straight.duration), signal.SIGTERM)
        late = sum(moment > struck.sent for moment in struck.times)
        saved = struck.code == 0 or _is_saved(kind, own, struck)
        rest = run_program(program, own, None)
        in_time = late <= 1 and struck.code in (0, -15, 143)
        row["in time"] += in_time
        row["saved"] += saved
        row["resumed"] += rest.code == 0 and rest.end == straight.end
        row["finished before"] += struck.code == 0
        row["longest"] = round(max(row["longest"], struck.seconds), 3)
        if not (in_time and saved and rest.end == straight.end):
            notes.append(
                f"{i}: code {struck.code}, {late} steps after it, {struck.lines[-1:]}, {rest.complaints[-300:]}"
            )
    row["ok"] = row["in time"] == row["saved"] == row["resumed"] == count
    return {**row, "note": "; ".join(notes)}


def _is_saved(kind: str, folder: Path, struck: Ended) -> bool:
    """Tell whether the last step that was over is in a file, and whether the program said where."""
    if kind == "reproduce":
        return struck.code == -15 or "terminated; finished units are recorded in" in struck.complaints
    files = sorted(folder.glob("*-step-*.gdpa"))
    if not files:  # the signal came before the first step
        return not struck.times
    if kind == "train":
        said = [line for line in struck.lines if line.startswith("SIGTERM: step")]
        return bool(said) and str(files[-1]) in said[0]
    step = int(files[-1].stem.rpartition("-")[2])
    return step >= len(struck.times) and str(files[-1]) in struck.complaints


def interrupt(seed: int, count: int) -> Row:
    """Press Ctrl-C ``count`` times while `minimize` runs, a third of them before the first step."""
    from scipy.optimize import rosen, rosen_der

    signal.signal(signal.SIGINT, signal.default_int_handler)
    rng = random.Random(f"interrupt {seed}")
    began = [0.0]

    def fun(x: Any) -> Any:
        time.sleep(PAUSE)
        return rosen(x)

    def run() -> Any:
        began[0] = time.monotonic()
        constraint = {"type": "ineq", "fun": lambda x: 1.5 - x @ x}
        return gdpa.minimize(fun, np.array([-1.0, 0.5]), jac=rosen_der, constraints=constraint)

    run()
    whole = run()
    duration = time.monotonic() - began[0]
    row: Row = {"signals": 0, "results": 0, "partial": 0, "escaped": 0}
    while row["signals"] < count:
        delay = rng.uniform(0.0005, 0.01 if row["signals"] % 3 == 0 else duration)
        timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            found = run()
            came = timer.finished.is_set()
            timer.cancel()
            timer.join()
        except KeyboardInterrupt as error:
            if _inside_gdpa(error):
                row["signals"] += 1
                row["escaped"] += 1
            continue  # else it came before the call, or after it
        if not came:
            continue
        row["signals"] += 1
        partial = found.status == 98 and bool(np.isfinite(found.x).all())
        row["partial"] += partial
        row["results"] += not partial and found.success == whole.success and found.x.tobytes() == whole.x.tobytes()
    row["ok"] = row["results"] + row["partial"] == count
    return row


def _inside_gdpa(error: BaseException) -> bool:
    """Tell whether an exception came out of a call of the library."""
    package = str(Path(gdpa.__file__).parent)
    return any(frame.filename.startswith(package) for frame in traceback.extract_tb(error.__traceback__))


def run(case: str, folder: Path) -> Row:
    kind = case.partition(" ")[0]
    return run_batch(kind, seed_of(case), BATCH, folder)


def run_batch(kind: str, seed: int, count: int, folder: Path) -> Row:
    """Run a batch in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "PYTHONHASHSEED": "0"}
    words = [sys.executable, "-m", "benchmarks.faults.signals", kind, str(seed), str(count), str(folder)]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=BATCH_LIMIT)
    if done.returncode:
        return {"ok": False, "note": done.stderr[-2000:]}
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def found_terminated(rows: list[Row]) -> str:
    parts = []
    for kind in dict.fromkeys(row["case"].partition(" ")[0] for row in rows):
        own = [row for row in rows if row["case"].startswith(kind)]
        n = total(own, "signals")
        parts.append(
            f"{kind}: {total(own, 'saved')} of {n} saved, {total(own, 'in time')} in time "
            f"(longest {largest(own, 'longest'):.2g} s), {total(own, 'resumed')} resumed to the same end"
        )
    return "; ".join(parts)


def found_interrupted(rows: list[Row]) -> str:
    return (
        f"{total(rows, 'results')} results, {total(rows, 'partial')} partial results, "
        f"{total(rows, 'escaped')} escaped, of {total(rows, 'signals')}"
    )


def _cases(short: bool) -> list[str]:
    batches = 1 if short else SIGNALS // BATCH
    return [case for kind in PROGRAMS for case in numbered(kind, batches)]


TERMINATED = Line(
    "SIGTERM at 50 random times in `solve`, `minimize`, a training example and `gdpa reproduce`",
    "saved and gone within one step plus one save; resumed to the same end",
    _cases,
    run,
    found_terminated,
    parallel=True,
)
INTERRUPTED = Line(
    "SIGINT at 50 random times in `minimize`",
    "50 results or partial results",
    lambda short: numbered("interrupt", 1 if short else SIGNALS // BATCH),
    run,
    found_interrupted,
    parallel=True,
)


def main() -> None:
    kind, seed, count, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    row = interrupt(seed, count) if kind == "interrupt" else terminate(kind, seed, count, folder)
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
