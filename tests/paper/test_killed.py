"""Figures 1 and 2 killed with SIGKILL and continued: the records are those of an undisturbed run, seconds aside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from gdpa.paper.records.file import seal
from gdpa.paper.records.folder import Folder

PROGRAM = [sys.executable, "-m", "tests.paper.small", "reproduce", "mnpc", "budget"]
OPTIONS = ["--steps", "12", "--only", "IALM-Li", "--jobs", "2"]
#: The grid search, both readings as printed and the tuned run.
UNITS = 4


def start(out):
    command = [*PROGRAM, *OPTIONS, "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(out):
    process = start(out)
    _, complaints = process.communicate(timeout=300)
    assert (process.returncode, complaints) == (0, "")


def finished(out, name):
    """The lines of the finished units."""
    rows = Folder(out).file(name).rows()
    return {row["hash"]: seal(row) for row in rows if "hash" in row}


def kill_in(out, name, process, units):
    """Kill the program when ``units`` or more of the experiment are finished and before all are."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        if len(finished(out, name)) >= units:
            os.kill(process.pid, signal.SIGKILL)
            break
        time.sleep(0.002)
    assert process.wait(timeout=60) == -signal.SIGKILL
    process.stderr.close()
    time.sleep(0.5)  # the workers notice and end
    done = finished(out, name)
    assert units <= len(done) < UNITS
    return done


def records(out):
    """Everything recorded, less seconds, times and machines."""
    found = {}
    for name in ("mnpc", "budget"):
        for row in Folder(out).file(name).rows():
            if "hash" in row:
                del row["about"]
                row["columns"].pop("seconds", None)
                row["summary"].pop("seconds", None)
                found[row["hash"]] = row
    return found


def test_killed_twice_and_continued_equals_undisturbed(tmp_path):
    out = tmp_path / "killed"
    first = kill_in(out, "mnpc", start(out), 1)
    second = kill_in(out, "budget", start(out), 2)
    finish(out)
    for name, before in (("mnpc", first), ("budget", second)):
        after = finished(out, name)
        assert len(after) == UNITS
        assert {unit: after[unit] for unit in before} == before  # what was finished was not run again
    finish(tmp_path / "undisturbed")
    assert records(out) == records(tmp_path / "undisturbed")
    assert len(records(out)) == 2 * UNITS
    left = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert left == {"mnpc/records.jsonl", "budget/records.jsonl"}  # and nothing half-written beside them
