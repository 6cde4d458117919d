"""The writer of the benchmarks, and the check of the tables that pages include."""

import re
import subprocess

import pytest

from benchmarks import check_results, readme_rows, studies
from benchmarks.check_results import age, check, faults, included
from benchmarks.provenance import ROOT, Study, cells, told
from gdpa.paper.records import RecordFile

GOOD = "| a |\n\nMade by\n\n- `python -m a`: 3 runs, commit 1a2b3c4d, 2 cores\n\nwith numpy 2.4.6.\n"


def test_a_study_stamps_its_records_and_the_last_of_a_run_counts(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["x", "--out", "elsewhere", "--jobs", "2"])
    study = Study("benchmarks.toy", "toy", ("solver",), out=tmp_path)
    study.add({"solver": "a", "value": 1})
    study.add({"solver": "b", "value": 2})
    study.add({"solver": "a", "value": 3})
    assert [(row["solver"], row["value"]) for row in study.rows()] == [("a", 3), ("b", 2)]
    assert study.rows()[0]["about"]["command"] == "python -m benchmarks.toy --jobs 2"
    assert {"commit", "dirty", "versions", "machine", "time"} <= study.rows()[0]["about"].keys()
    assert len(study.file.rows()) == 3
    study.tidy()
    assert len(study.file.rows()) == 2
    study.write("text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records.jsonl", "table.md"]


def test_the_parts_of_a_study_share_a_file_and_leave_each_other_alone(tmp_path):
    one, other = (Study("m", "toy", part=part, out=tmp_path) for part in ("one", "other"))
    one.replace([{"n": 1}, {"n": 2}])
    other.replace([{"n": 3}])
    one.replace([{"n": 4}])
    assert [row["n"] for row in one.rows()] == [4]
    assert [row["n"] for row in other.rows()] == [3]
    assert cells(one.rows()).startswith("| n |\n| --- |\n| 4 |\n\nMade by\n\n- `python -m m")


def test_invocations_and_notes_are_told_once():
    place = {"command": "c", "commit": "1a", "dirty": True, "machine": {}, "versions": {"numpy": "2", "rich": "1"}}
    rows = [{"about": place}, {"about": place | {"note": "N. M."}}, {"about": place | {"note": "M."}}, {}]
    assert told(rows) == "Made by\n\n- `c`: 3 runs, commit 1a-dirty\n\nwith numpy 2. N. M."
    assert told([{}]) == ""


def test_every_table_of_the_pages_is_declared_and_says_where_it_is_from():
    tables = included()
    assert len(tables) >= 16
    present = [table for table in tables if (check_results.RESULTS / table).exists()]  # the site's test finds others
    assert {table: list(faults(table)) for table in present if list(faults(table))} == {}


def test_every_study_is_declared():
    folders = {path.parent.name for path in check_results.RESULTS.glob("*/records.jsonl")}
    assert folders <= set(studies.STUDIES)


@pytest.mark.parametrize("study", studies.STUDIES)
def test_what_a_study_measures_exists(study):
    for pattern in studies.STUDIES[study].measures:
        path = pattern.removeprefix(":(glob)").removeprefix(":(exclude)")
        assert list(ROOT.glob(path)), f"{study} names {pattern}, and there is no such file"


def test_the_readme_has_the_rows_of_the_records():
    text = readme_rows.README.read_text()
    assert readme_rows.inserted(text, readme_rows.table()) == text, "run python -m benchmarks.readme_rows"


def test_all_rows_are_measured_by_the_commands():
    measured = " ".join(map(str, readme_rows.commands(2)))
    for row in readme_rows.table().splitlines()[2:]:
        command = re.search(r"`(?:python -m )?(.*?)`", row.split("|")[3])
        assert command is None or command[1].split(" --")[0].split()[-1] in measured, row


@pytest.mark.parametrize("study", ["noise", "certificate", "choice", "cmdp"])
def test_saved_tables_are_drawn_from_the_saved_records(study):
    assert list(check_results.differences(study)) == []


def make(root, text=GOOD, study="choice"):
    (root / "docs").mkdir()
    (root / "docs" / "page.md").write_text(f'# Page\n\n--8<-- "results/{study}/table.md"\n')
    (root / "results" / study).mkdir(parents=True)
    (root / "results" / study / "table.md").write_text(text)
    RecordFile(root / "results" / study / "records.jsonl").append({"n": 1})


@pytest.mark.parametrize(
    ("remove", "fault"),
    [
        ("commit 1a2b3c4d", "no commit"),
        ("`python -m a`", "no command"),
        ("numpy 2.4.6", "no versions"),
    ],
)
def test_a_table_that_hides_its_origin_fails(tmp_path, capsys, remove, fault):
    make(tmp_path, GOOD.replace(remove, ""))
    assert check(fast=True, root=tmp_path) == 1
    assert f"FAULT results/choice/table.md (in docs/page.md): it names {fault}" in capsys.readouterr().out


def test_a_good_table_passes_and_says_that_there_is_no_history(tmp_path, capsys):
    make(tmp_path)
    assert check(fast=True, root=tmp_path) == 0
    assert "measured at 1a2b3c4d; there is no git history here" in capsys.readouterr().out


def test_other_faults_are_named(tmp_path, capsys):
    make(tmp_path, study="unheard-of")
    make_two = tmp_path / "results" / "choice"
    make_two.mkdir()
    (make_two / "records.jsonl").write_text("{}\n")
    assert check(fast=True, root=tmp_path) == 4
    out = capsys.readouterr().out
    assert "its study is not declared in benchmarks/studies.py" in out
    assert "choice/records.jsonl, line 1: it has no sha256" in out
    assert "choice/records.jsonl: there are no records" in out
    assert "FAULT results/unheard-of: the study is not declared" in out


def test_a_table_that_its_records_do_not_give_fails(tmp_path):
    make(tmp_path)
    (fault,) = check_results.differences("choice", tmp_path / "results")
    assert fault.startswith("choice/table.md: its records give another table")


def test_the_age_of_a_table_is_told(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, timeout=60, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(name, text):
        (tmp_path / name).write_text(text)
        git("add", ".")
        git("commit", "-q", "-m", text)
        return git("rev-parse", "--short=12", "HEAD")

    git("init", "-q")
    first = commit("measured.py", "1")
    commit("other.py", "2")
    assert age(first, ("measured.py",), tmp_path) == f"measured at {first}; the code it measures is the same"
    last = commit("measured.py", "3")
    words = f"measured at {first}; the code it measures has changed since (1 commits, last {last[:7]})"
    assert age(first, ("measured.py",), tmp_path) == words
    assert age("0123456789ab", ("x",), tmp_path) == "measured at 0123456789ab, which is not in this history"
