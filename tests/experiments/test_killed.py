"""Figures 1 and 2 killed with SIGKILL and continued: the records are those of an undisturbed run, seconds aside."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time

PROGRAM = [sys.executable, "-m", "tests.experiments.small", "reproduce", "mnpc", "budget"]
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


def finished(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.json")}


def kill_in(folder, process, units):
    """Kill the program while a unit of this folder is being written and ``units`` or more are finished."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        if len(finished(folder)) >= units and any(folder.glob("*.csv.*.part")):
            os.kill(process.pid, signal.SIGKILL)
            break
        time.sleep(0.002)
    assert process.wait(timeout=60) == -signal.SIGKILL
    process.stderr.close()
    time.sleep(0.5)  # the workers notice and end
    done = finished(folder)
    assert units <= len(done) < UNITS
    return done


def records(out):
    """Everything recorded, less seconds, times and machines."""
    found = {}
    for path in sorted(out.glob("*/records/*")):
        name = str(path.relative_to(out))
        if path.suffix == ".json":
            found[name] = json.loads(path.read_text())
            del found[name]["about"]
            found[name]["summary"].pop("seconds", None)
        else:
            with open(path, newline="") as file:
                found[name] = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
    return found


def test_killed_twice_and_continued_equals_undisturbed(tmp_path):
    out = tmp_path / "killed"
    first = kill_in(out / "mnpc" / "records", start(out), 1)
    second = kill_in(out / "budget" / "records", start(out), 2)
    finish(out)
    for name, before in (("mnpc", first), ("budget", second)):
        after = finished(out / name / "records")
        assert len(after) == UNITS
        assert {file: after[file] for file in before} == before  # what was finished was not run again
    finish(tmp_path / "undisturbed")
    assert records(out) == records(tmp_path / "undisturbed")
    assert len(records(out)) == 2 * 2 * UNITS  # a JSON and a CSV file each, and nothing half-written beside them
