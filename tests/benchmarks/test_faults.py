"""The fault campaign: `make faults` notices twelve mutations of the lines that users trust, and short runs pass."""

import importlib
import inspect
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from benchmarks.faults import long_run, machines, ranks, signals, state_machines, success
from benchmarks.faults.__main__ import campaign, main, run_case
from benchmarks.faults.report import KEY, LINES, table
from benchmarks.provenance import Study

#: A mutation: module, function or method in it, a piece of its source, the piece in its place, the line that notices.
MUTATIONS = {
    "the certificate always holds": (
        *("gdpa.core.certificate", "Certificate.holds", "worst <= tolerance", "True"),
        "forged",
    ),
    "a residual that is not a number counts as met": (
        *("gdpa.core.certificate", "Certificate.holds", "worst <= tolerance", "not worst > tolerance"),
        "forged",
    ),
    "stationarity is always 0": (
        *(
            "gdpa.core.certificate",
            "relative_residuals",
            "return Residuals.of(stationarity",
            "return Residuals.of(0 * stationarity",
        ),
        "forged",
    ),
    "feasibility is always 0": (
        *("gdpa.core.certificate", "relative_residuals", "violated = violation(", "violated = 0 * violation("),
        "forged",
    ),
    "slackness is always 0": (
        *("gdpa.core.certificate", "relative_residuals", "slack = xp.minimum(", "slack = 0 * xp.minimum("),
        "forged",
    ),
    "every run is a success": (
        *("gdpa.run.loop", "conclude", "success = certificate.holds(tolerance)", "success = True"),
        "forged",
    ),
    "x outside X is verified": ("gdpa.run.verify", "_outside", "> 10 * eps", "> 1e10 * eps", "forged"),
    "values of a receipt are not compared": (
        "gdpa.run.verify",
        "_other_values",
        "if far.any():",
        "if False:",
        "forged",
    ),
    "the checksum of a run file is not compared": (
        *("gdpa.files.format", "decode", "!= view[-_DIGEST:]", "is None"),
        "forged",
    ),
    "infinite multipliers are loaded": (
        *("gdpa.torch.dual", "_check", "is_number(number) and low <= number <= entry.high", "number == number"),
        "forged",
    ),
    "records are appended without the lock": (
        *("gdpa.paper.records", "_lock", "fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))", "pass"),
        "forged",
    ),
    "the hash of a record is not compared": (
        "gdpa.paper.records",
        "unseal",
        "given != _hash(row)",
        "False",
        "damage",
    ),
}


def mutate(monkeypatch, module, name, old, new):
    """Give a function the code of one with another piece of source, wherever it has been imported."""
    module = importlib.import_module(module)
    *owners, last = name.split(".")
    function = inspect.unwrap(getattr(getattr(module, owners[0]) if owners else module, last))
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) >= 1, f"{name} has no {old!r} any more: choose another mutation of the same check"
    names: dict = {}
    exec("from __future__ import annotations\n" + source.replace(old, new), module.__dict__, names)
    monkeypatch.setattr(function, "__code__", inspect.unwrap(names[last]).__code__)


@pytest.mark.parametrize("change", MUTATIONS)
def test_b15_make_faults_ends_with_1_under_a_mutation(change, monkeypatch, capsys):
    *where, line = MUTATIONS[change]
    mutate(monkeypatch, *where)
    assert main(["--short", line]) == 1
    assert "NOT as asked" in capsys.readouterr().out


def test_make_faults_ends_with_0_without_a_mutation(capsys):
    assert len(MUTATIONS) == 12
    assert main(["--short", "forged", "damage"]) == 0
    assert "NOT as asked" not in capsys.readouterr().out


def test_a_record_counts_only_for_its_commit(tmp_path, capsys):
    study = Study("benchmarks.faults", "faults", KEY, out=tmp_path)
    study.origin = {**study.origin, "commit": "1a2b", "dirty": False}
    campaign(study, ["damage"], True, 1)
    printed = capsys.readouterr().out
    made = printed.count("as asked (")
    assert made == len(LINES["damage"].cases(True)), printed
    campaign(study, ["damage"], True, 1)
    assert "as asked (" not in capsys.readouterr().out
    study.origin = {**study.origin, "commit": "3c4d"}
    rows, _ = campaign(study, ["damage"], True, 1)
    assert capsys.readouterr().out.count("as asked (") == made
    assert {row["about"]["commit"] for row in rows} == {"3c4d"}


def cases(name, count):
    """Return cases of a line spread over all of them."""
    every = LINES[name].cases(False)
    return [(name, case) for case in every[:: max(1, len(every) // count)][:count]]


@pytest.mark.parametrize(("name", "case"), cases("damage", 3))
def test_damaged_records_are_named_and_left_out(name, case):
    row = run_case(name, case)
    assert row["ok"], row["note"]


def test_no_success_without_a_certificate_of_another_make():
    row = success.run_problems(range(3 * len(success.KINDS)))
    assert row["ok"], row["note"]
    assert row["successes"] >= 15


def test_the_independent_certificate_tells_right_from_wrong():
    # min (x - c)' H (x - c) / 2 has the KKT point c if c is feasible, and no other.
    drawn = success.draw(0)
    ones = np.ones(len(drawn.start))
    assert not success.is_kkt(drawn, drawn.start, ones)
    free = success.Drawn(
        "square", lambda x: x @ x, lambda x: 2 * x, lambda x: x[:1] - 1, lambda x: np.eye(1, 2), 0,  # type: ignore[return-value]
        np.ones(2), np.full(2, -np.inf), np.full(2, np.inf),
    )  # fmt: skip
    assert success.is_kkt(free, np.zeros(2), np.ones(2))
    assert not success.is_kkt(free, np.array([0.01, 0.0]), np.ones(2))
    assert not success.is_kkt(free, np.array([1.0, 0.0]), np.ones(2))  # the multiplier would be -2
    pushed = success.Drawn(
        "pushed", lambda x: (x - 2) @ (x - 2), lambda x: 2 * (x - 2), lambda x: x - 1, lambda x: np.eye(1), 0,
        np.zeros(1), np.full(1, -np.inf), np.full(1, np.inf),
    )  # fmt: skip
    assert success.is_kkt(pushed, np.ones(1), np.ones(1))
    assert not success.is_kkt(pushed, np.array([1.01]), np.ones(1))


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.campaign] * (kind != "solve")) for kind in signals.PROGRAMS]
)
def test_sigterm_saves_and_the_run_continues_to_the_same_end(kind, tmp_path):
    row = signals.run_batch(kind, 99, 2, tmp_path)
    assert row["ok"], row["note"]


def test_every_interrupt_of_minimize_gives_a_result(tmp_path):
    row = signals.run_batch("interrupt", 99, 6, tmp_path)
    assert row["ok"], row


@pytest.mark.campaign
def test_a_killed_rank_is_replaced_and_the_end_is_that_of_an_undisturbed_run(tmp_path, capsys):
    """A start under torchrun that fails is tried again, and reported."""
    for attempt in range(3):
        row = ranks.kill_ranks(99, 1, tmp_path / str(attempt), steps=900, longest=0.3)
        if row["ok"]:
            break
        with capsys.disabled():
            print(f"\nattempt {attempt + 1} with a killed rank failed: {row}")
    assert row["ok"], row["note"]


@pytest.mark.campaign
def test_a_frozen_rank_is_named_and_the_others_end(tmp_path):
    row = ranks.freeze_rank(99, tmp_path)
    assert row["ok"], row["note"]


@pytest.mark.parametrize("kind", machines.KINDS)
def test_random_sequences_of_calls_break_no_invariant(kind):
    row = state_machines.run_machine(kind, 99, 150)
    assert row["ok"], row["note"]
    assert row["operations"] >= 150


def test_a_long_run_grows_no_memory_and_keeps_its_multipliers():
    row = long_run.run_steps(4000)
    assert row["ok"], row


HANGS_OR_FAILS_ONCE = """
import pathlib, sys, time
marker = pathlib.Path(sys.argv[1])
if not marker.exists():
    marker.touch()
    time.sleep(600) if sys.argv[2] == "hangs" else sys.exit("no rendezvous")
print("ended")
"""


@pytest.mark.parametrize(("start", "words"), [("hangs", "timed out after 3"), ("fails", "no rendezvous")])
def test_a_start_that_hangs_or_fails_is_reported_and_repeated(tmp_path, start, words):
    said: list = []
    command = [sys.executable, "-c", HANGS_OR_FAILS_ONCE, str(tmp_path / "marker"), start]
    assert ranks.output_with_retry(command, 3.0, said.append) == "ended\n"
    assert words in said[0]
    assert "it is started once more" in said[0]


def test_a_start_that_hangs_twice_is_an_error():
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(subprocess.TimeoutExpired):
        ranks.output_with_retry(command, 0.5, lambda text: None)


def test_the_table_has_a_row_for_every_line_with_records():
    rows = [{"line": "success", "case": "problems 0", "ok": True, "problems": 50, "wrong": 0}]
    assert "| 0 of 50 " in table(rows)
    assert "damaged" not in table(rows)
