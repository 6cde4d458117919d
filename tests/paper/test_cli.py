"""The command line, from outside."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gdpa
from gdpa import experiments, method_names
from gdpa.base.writing import write_whole
from gdpa.paper import records as record_file
from gdpa.paper.base import Unit
from gdpa.paper.cli import app
from gdpa.paper.records import Folder

TOY = ["reproduce", "toy", "--steps", "50", "--only", "adder", "--jobs", "1"]


@pytest.fixture
def cli():
    def call(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return call


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "gdpa", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_reproduce_ends_with_the_path_of_a_report_and_skips_what_is_done(cli, tmp_path, toy):
    out = tmp_path / "out"
    first = cli(*TOY, "--out", out)
    assert first.exit_code == 0, first.output
    assert first.output.splitlines()[-1] == f"report: {out / 'report.html'}"
    assert "toy: 3/3 adder, n 3, seed 0: " in first.output
    for name in ("toy-values.png", "toy-values.svg"):
        assert (out / "toy" / "figures" / name).stat().st_size > 1000
    html = (out / "report.html").read_text()
    assert f"gdpa reproduce toy --out {out} --seeds 1 --preset both --steps 50 --only adder" in html
    again = cli(*TOY, "--out", out)
    assert "3 of 3 units were already recorded" in again.output
    (out / "report.html").unlink()
    assert cli("report", out).exit_code == 0  # from records alone
    assert (out / "report.html").read_text() == html


def test_the_subprocess_ends_with_a_report_and_zero(tmp_path):
    arguments = ["rate", "--steps", "20", "--only", "0.5_disc-product", "--jobs", 1]
    process = start("reproduce", *arguments, "--out", tmp_path / "out")
    output, complaints = process.communicate(timeout=120)
    assert (process.returncode, complaints) == (0, "")
    assert output.splitlines()[-1].endswith("report.html")
    assert len(list((tmp_path / "out/rate/figures").iterdir())) == 4


@pytest.mark.parametrize(
    ("number", "code", "word", "jobs"), [(signal.SIGINT, 130, "interrupted", 2), (signal.SIGTERM, 143, "terminated", 1)]
)
def test_a_signal_ends_with_its_code_and_keeps_what_is_finished(tmp_path, jobs, number, code, word):
    out = tmp_path / "out"
    process = start("reproduce", "rate", "--steps", "100000", "--only", "disc", "--jobs", jobs, "--out", out)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (out / "rate" / "records.jsonl").exists():
        time.sleep(0.01)
    time.sleep(1.0)  # into the first units
    process.send_signal(number)
    _, complaints = process.communicate(timeout=60)
    assert process.returncode == code
    assert f"{word}; finished units are recorded in {out}" in complaints
    assert Folder(out).read("rate") == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["reproduce", "nope"], 2, "no experiment is called 'nope'; there are"),
        (["reproduce", "rate", "--budget", "0"], 2, "--budget must be a positive number of seconds, got 0.0"),
        (["reproduce", "mnpc", "budget", "--budget", "0"], 2, "--budget must be a positive number of seconds, got 0.0"),
        (["reproduce", "mnpc", "--budget", "nan"], 2, "--budget must be a positive number of seconds, got nan"),
        (["reproduce", "budget", "--steps", "0"], 2, "--steps must be at least 1, got 0"),
        (["reproduce", "rate", "--seeds", "0"], 2, "--seeds must be at least 1"),
        (["reproduce", "rate", "--seeds", "many"], 2, "--seeds"),
        (["reproduce", "rate", "--jobs", "0"], 2, "--jobs must be at least 1, got 0"),
        (["reproduce", "rate", "--preset", "best"], 2, "--preset must be one of"),
        (["reproduce", "rate", "--only", "nothing like it"], 2, "no unit of rate has 'nothing like it'"),
        (["reproduce"], 2, "the experiments to run: mnpc, budget, rate, cmdp, energy, race, or all (without race)"),
        (["report", "no/such/folder"], 2, "is not a folder"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_bad_usage_ends_with_two_and_writes_nothing(cli, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    result = cli(*arguments)
    assert result.exit_code == code
    assert message in result.output + result.stderr
    assert not list(tmp_path.rglob("*.json"))


def test_a_folder_that_cannot_be_used_ends_with_three(cli, tmp_path, toy):
    (tmp_path / "file").write_text("")
    result = cli(*TOY, "--out", tmp_path / "file")
    assert (result.exit_code, "cannot write" in result.stderr) == (3, True)
    with Folder(tmp_path / "out").lock():
        result = cli(*TOY, "--out", tmp_path / "out")
    assert (result.exit_code, "another run holds the folder" in result.stderr) == (3, True)


@pytest.fixture
def undrawn(monkeypatch):
    """Reports without figures, which take most of the time."""
    monkeypatch.setattr("gdpa.paper.report._picture", lambda folder, name, chart: ("", []))


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("plan", set()),
        ("record", {"toy/records.jsonl"}),
        ("report.html", {"toy/records.jsonl", "toy/summary.md"}),
    ],
)
def test_a_full_folder_ends_with_three_and_nothing_half_written(cli, tmp_path, monkeypatch, toy, undrawn, where, left):
    append = record_file._write

    def full_append(file, data):
        if where == ("plan" if b'{"plan"' in data else "record"):
            file.write(data[:5])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file.write(data)

    def full_write(path, data):
        if Path(path).match(where):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write_whole(path, data)

    monkeypatch.setattr(record_file, "_write", full_append)
    monkeypatch.setattr(record_file, "write_whole", full_write)
    result = cli(*TOY, "--out", tmp_path)
    assert (result.exit_code, "no space left for" in result.stderr) == (3, True)
    found = {path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size} - {tmp_path / ".lock"}
    found = {path.relative_to(tmp_path) for path in found}
    assert all(any(path.match(pattern) for pattern in left) for path in found), found
    monkeypatch.setattr(record_file, "_write", append)
    monkeypatch.setattr(record_file, "write_whole", write_whole)
    assert cli(*TOY, "--out", tmp_path).exit_code == 0  # with room again it goes on


def test_a_figure_is_written_whole_or_not_at_all(cli, tmp_path, toy, monkeypatch):
    assert cli(*TOY, "--out", tmp_path).exit_code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "toy" / "figures").iterdir()}

    def savefig(self, drawn, **options):
        drawn.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", savefig)
    result = cli("report", tmp_path)
    assert (result.exit_code, "cannot write the figure toy-values" in result.stderr) == (3, True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "toy" / "figures").iterdir()} == before


@pytest.fixture
def troubled(monkeypatch, toy):
    """The toy experiment, whose second unit fails in the given way."""

    def use(what):
        units = [Unit("toy", "m", "s", seed, {"what": what if seed else None}) for seed in (0, 1)]
        monkeypatch.setattr(toy, "units", lambda settings: units)

    return use


def test_a_failing_unit_ends_with_one_and_the_report_is_written(cli, tmp_path, troubled, undrawn):
    troubled("raise")
    result = cli("reproduce", "all", "--jobs", 1, "--out", tmp_path)
    assert result.exit_code == 1
    assert "FAILED: ZeroDivisionError: broken unit" in result.output
    assert "1 of 2 units of toy failed" in result.stderr
    assert (tmp_path / "report.html").is_file()


def test_missing_data_end_with_four_and_the_report_is_written(cli, tmp_path, troubled, undrawn):
    troubled("no data")
    result = cli("reproduce", "toy", "--jobs", 1, "--out", tmp_path)
    assert (result.exit_code, "no data here" in result.stderr) == (4, True)
    assert (tmp_path / "report.html").is_file()


def test_an_interrupt_in_this_process_ends_with_130(cli, tmp_path, troubled):
    troubled("interrupt")
    result = cli("reproduce", "toy", "--jobs", 1, "--out", tmp_path)
    assert (result.exit_code, "the same command continues" in result.stderr) == (130, True)


def test_data_that_nobody_knows_end_with_a_message(cli, tmp_path):
    result = cli("data", "fetch", "no-such-data", "--cache", tmp_path)
    assert (result.exit_code, "no data set is called 'no-such-data'" in result.stderr) == (2, True)


def test_data_fetch_says_where_it_lies(cli, tmp_path, monkeypatch):
    from gdpa.paper.data import images as data

    monkeypatch.setattr(data, "fetch", lambda name, cache, progress: data.Fetched(cache / name, "cache"))
    result = cli("data", "fetch", "mnist", "--cache", tmp_path)
    assert (result.exit_code, result.output) == (0, f"mnist: {tmp_path / 'mnist'} (from cache)\n")


def test_versions_and_methods(cli):
    assert f"gdpa {gdpa.__version__}" in cli("versions").output
    listed = cli("methods").output.splitlines()  # a line each, however wide: for grep
    assert [line.split()[0] for line in listed] == list(method_names())
    assert cli("--version").output == f"{gdpa.__version__}\n"
    assert cli("-h").output == cli("--help").output
    assert set(experiments.names()) <= set(re.findall(r"\w+", cli("reproduce", "-h").output))


def run_main(monkeypatch, *arguments):
    from gdpa.__main__ import main

    monkeypatch.setattr(sys, "argv", ["gdpa", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code


def test_main_runs_the_command_line(monkeypatch, capsys):
    assert not run_main(monkeypatch, "versions")
    assert "numpy" in capsys.readouterr().out


def test_a_missing_library_is_named_with_its_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "gdpa.paper.cli")
    assert run_main(monkeypatch, "versions") == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("the command line of gdpa needs typer")
    assert complaint.strip().endswith("pip install -e '.[experiments]' in a checkout of gdpa")


def test_a_broken_installation_of_gdpa_itself_is_not_called_a_missing_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "gdpa.paper.cli", None)
    with pytest.raises(ModuleNotFoundError, match=r"gdpa\.paper\.cli"):
        run_main(monkeypatch, "versions")


def test_a_library_missing_later_is_named_too(cli, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.delitem(sys.modules, "gdpa.paper.report", raising=False)
    result = cli("reproduce", "rate", "--out", tmp_path)
    assert (result.exit_code, "pip install -e '.[experiments]'" in result.stderr) == (2, True)
