import math
import multiprocessing

import numpy as np
import pytest

from gdpa.paper.base import OutputError, Unit
from gdpa.paper.provenance import about
from gdpa.paper.records import Folder

UNIT = Unit("toy", "m", "s", 0, {"k": [1, 2.5, None]})


def write(folder, unit=UNIT, rows=((1, 0.1), (2, 1 / 3))):
    folder.begin("toy", [unit])
    columns = dict(zip(("step", "value"), map(list, zip(*rows, strict=True)), strict=True))
    folder.finish(unit, {"answer": 42}, columns, {"seconds": 1.0, **about("gdpa reproduce toy")})


def test_what_is_written_is_read_back_bit_for_bit(tmp_path):
    folder = Folder(tmp_path / "a" / "b")
    rows = ((1, 0.1), (2, 1 / 3), (3, math.nan), (4, -math.inf), (5, 5e-324))
    write(folder, rows=rows)
    (record,) = folder.read("toy")
    assert record.unit == UNIT
    assert record.unit.name == UNIT.name
    assert record.summary == {"answer": 42}
    assert np.array_equal(record.columns["step"], [1, 2, 3, 4, 5])
    assert np.array_equal(record.columns["value"], [value for _, value in rows], equal_nan=True)
    assert record.about["command"] == "gdpa reproduce toy"
    assert record.about["versions"]["numpy"] == np.__version__
    assert folder.experiments() == ("toy",)


def test_words_are_columns_too(tmp_path):
    write(Folder(tmp_path), rows=((1, "a"), (2, "b")))
    assert Folder(tmp_path).read("toy")[0].columns["value"].tolist() == ["a", "b"]


def test_a_unit_is_finished_with_its_record_until_it_is_forgotten(tmp_path):
    folder = Folder(tmp_path)
    folder.begin("toy", [UNIT])
    assert not folder.finished(UNIT)
    assert folder.read("toy") == []
    folder.finish(UNIT, {}, {}, {})
    assert folder.finished(UNIT)
    assert Folder(tmp_path).summary(UNIT) == {}
    folder.forget([UNIT])
    assert not folder.finished(UNIT)
    assert folder.run("toy")["units"] == [UNIT.name]


def test_a_plan_is_noted_once(tmp_path):
    folder, other = Folder(tmp_path, "gdpa reproduce toy"), Unit("toy", "m", "s", 1)
    for _ in range(3):
        folder.begin("toy", [UNIT])
    assert len(folder.file("toy").rows()) == 1
    folder.begin("toy", [UNIT, other])
    assert len(folder.file("toy").rows()) == 2
    assert folder.run("toy") == {"command": "gdpa reproduce toy", "units": [UNIT.name, other.name]}


def test_a_second_run_is_refused_and_the_lock_ends_with_its_holder(tmp_path):
    folder = Folder(tmp_path / "out", "gdpa reproduce toy")
    with (
        folder.lock(),
        pytest.raises(OutputError, match=r"another run holds the folder .*gdpa reproduce toy"),
        Folder(tmp_path / "out").lock(),
    ):
        pass
    assert not (tmp_path / "out" / ".lock").exists()
    with Folder(tmp_path / "out").lock():
        pass


def _hold(path, ready):
    with Folder(path).lock():
        ready.send(True)
        ready.recv()


def test_the_lock_dies_with_a_killed_process(tmp_path):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_hold, args=(tmp_path, theirs))
    process.start()
    assert ours.poll(120), "the process that holds the lock did not start within 120 s"
    assert ours.recv()
    with pytest.raises(OutputError), Folder(tmp_path).lock():
        pass
    process.kill()
    process.join(timeout=60)
    with Folder(tmp_path).lock():
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OutputError, match=r"cannot write .*file.*; choose another --out"),
        Folder(tmp_path / "file").lock(),
    ):
        pass


def edited(**changes):
    """The record of UNIT with other entries and a hash of the line that fits them."""

    def edit(row):
        return {key: value for key, value in {**row, **changes}.items() if value is not None}

    return edit


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (edited(config={"k": []}), "its configuration does not fit its hash"),
        (edited(seed=1), "its configuration does not fit its hash"),
        (edited(method="other"), "its configuration does not fit its hash"),
        (edited(config=None), "it lacks config"),
        (edited(summary=None, about=None), "it lacks summary"),
        (edited(summary=5), "an entry has the wrong type"),
        (edited(columns=[1, 2]), "an entry has the wrong type"),
        (edited(columns={"a": [1, 2], "b": [1]}), "its columns have different lengths"),
        (edited(columns={"a": [[1], [2, 3]]}), "inhomogeneous"),
        (edited(config=7), "an entry has the wrong type"),
        (edited(plan={"units": 3}), "its plan has no command or no units"),
        (edited(plan=[]), "its plan has no command or no units"),
    ],
)
def test_a_whole_line_that_makes_no_sense_is_named_and_the_others_are_read(tmp_path, edit, reason):
    told: list = []
    other = Unit("toy", "m", "s", 1)
    write(Folder(tmp_path))
    write(Folder(tmp_path), other)
    file = Folder(tmp_path).file("toy")
    file.replace([edit(row) if row.get("hash") == UNIT.hash else row for row in file.rows()])
    folder = Folder(tmp_path, complain=told.append)
    folder.begin("toy", [UNIT, other])
    assert [record.unit for record in folder.read("toy")] == [other]
    assert (folder.finished(UNIT), folder.finished(other)) == (False, True)
    assert len(told) == 1
    assert f"{file.path}, line 2: " in told[0]
    assert reason in told[0]


def test_a_line_cut_by_a_kill_is_named_and_the_unit_is_run_again(tmp_path):
    told: list = []
    write(Folder(tmp_path))
    path = tmp_path / "toy" / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    folder = Folder(tmp_path, complain=told.append)
    assert not folder.finished(UNIT)
    assert f"{path}, line 2: it is not JSON, or cut off" in told[0]
    write(folder)
    assert folder.finished(UNIT)
    assert len(told) == 1


def test_records_say_where_they_come_from(tmp_path):
    write(Folder(tmp_path))
    plan, content = Folder(tmp_path).file("toy").rows()
    assert plan["plan"]["units"] == [UNIT.name]
    assert content["hash"] == UNIT.hash
    assert {"time", "commit", "dirty", "versions", "machine", "command", "seconds"} <= content["about"].keys()
    assert [path.name for path in (tmp_path / "toy").iterdir()] == ["records.jsonl"]


def test_a_source_without_history_may_be_told_its_commit(monkeypatch):
    def no_git(*arguments, **options):
        raise FileNotFoundError("git")

    monkeypatch.setattr("subprocess.run", no_git)
    monkeypatch.delenv("GDPA_COMMIT", raising=False)
    assert (about("c")["commit"], about("c")["dirty"]) == (None, None)
    monkeypatch.setenv("GDPA_COMMIT", "1a2b3c4d5e6f-dirty")
    assert (about("c")["commit"], about("c")["dirty"]) == ("1a2b3c4d5e6f", True)
