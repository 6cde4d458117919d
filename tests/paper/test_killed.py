"""Figure 1 killed with SIGKILL and continued: the records are those of an undisturbed run, seconds aside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from gdpa.paper import comparison, report
from gdpa.paper.cli import app
from gdpa.paper.records import Folder, seal
from tests.paper.small import SIZE, toy_images

ARGUMENTS = ["reproduce", "mnpc", "--steps", "12", "--only", "IALM-Li"]
#: The grid search, both readings as printed and the tuned run.
UNITS = 4


def start(out, jobs):
    command = [sys.executable, "-m", "tests.paper.small", *ARGUMENTS, "--jobs", jobs, "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finished(out):
    """The lines of the finished units."""
    return {row["hash"]: seal(row) for row in Folder(out).file("mnpc").rows() if "hash" in row}


def records(out):
    """Everything recorded, less seconds, times and machines."""
    found = {row["hash"]: row for row in Folder(out).file("mnpc").rows() if "hash" in row}
    for row in found.values():
        del row["about"]
        row["columns"].pop("seconds", None)
        row["summary"].pop("seconds", None)
    return found


@pytest.fixture
def undisturbed(tmp_path, monkeypatch):
    """The records of the same command, run in this process."""
    monkeypatch.setattr(comparison, "QUICK", SIZE)
    monkeypatch.setattr(comparison, "load", toy_images)
    monkeypatch.setattr(report, "write_report", lambda folder: folder.path)
    answer = CliRunner().invoke(app, [*ARGUMENTS, "--jobs", "1", "--out", str(tmp_path / "undisturbed")])
    assert answer.exit_code == 0, answer.output
    return records(tmp_path / "undisturbed")


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.campaign)])
def test_killed_and_continued_equals_undisturbed(tmp_path, undisturbed, jobs):
    out = tmp_path / "killed"
    process, deadline = start(out, jobs), time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None and not finished(out):
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(timeout=60) == -signal.SIGKILL
    process.stderr.close()
    time.sleep(0.5)  # the workers notice and end
    before = finished(out)
    assert 1 <= len(before) < UNITS
    process = start(out, jobs)
    _, complaints = process.communicate(timeout=300)
    assert (process.returncode, complaints) == (0, "")
    after = finished(out)
    assert len(after) == UNITS
    assert {unit: after[unit] for unit in before} == before  # the finished units were not run again
    assert records(out) == undisturbed
    left = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert left == {"mnpc/records.jsonl"}  # and nothing half-written beside it
