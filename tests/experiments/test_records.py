import errno
import json
import math
import multiprocessing

import numpy as np
import pytest

from gdpa.experiments.base import OutputError, Settings, Unit, UsageError
from gdpa.experiments.records import Folder, RowWriter, about

UNIT = Unit("toy", "m", "s", 0, {"k": [1, 2.5, None]})


def write(folder, unit=UNIT, rows=((1, 0.1), (2, 1 / 3))):
    folder.begin("toy", Settings(), [unit])
    writer = RowWriter(folder, unit)
    for step, value in rows:
        writer.row(step=step, value=value)
    writer.close(keep=True)
    folder.finish(unit, {"answer": 42}, {"seconds": 1.0, **about("gdpa reproduce toy")})


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


def test_a_unit_is_finished_only_with_its_json_file(tmp_path):
    folder = Folder(tmp_path)
    folder.begin("toy", Settings(), [UNIT])
    writer = RowWriter(folder, UNIT)
    writer.row(step=1)
    writer.close(keep=True)
    assert not folder.finished(UNIT)
    assert folder.read("toy") == []
    folder.finish(UNIT, {}, {})
    assert folder.finished(UNIT)
    folder.forget(UNIT)
    assert not folder.finished(UNIT)


def test_rows_are_on_disk_before_the_unit_ends_and_leftovers_are_cleared(tmp_path):
    folder = Folder(tmp_path)
    folder.begin("toy", Settings(), [UNIT])
    writer = RowWriter(folder, UNIT)
    writer.row(step=1, value=2.0)
    (part,) = folder.records("toy").glob("*.part")
    assert part.read_text() == "step,value\n1,2.0\n"
    folder.begin("toy", Settings(), [UNIT])  # the next run, after a kill
    assert not list(folder.records("toy").glob("*.part"))
    writer.close(keep=False)


def test_a_row_with_other_columns_is_refused(tmp_path):
    folder = Folder(tmp_path)
    folder.begin("toy", Settings(), [UNIT])
    writer = RowWriter(folder, UNIT)
    writer.row(step=1)
    with pytest.raises(ValueError, match=r"a row has the columns \('other',\)"):
        writer.row(other=1)
    writer.close(keep=False)
    assert not list(folder.records("toy").iterdir())


def test_a_second_run_is_refused_and_the_lock_ends_with_its_holder(tmp_path):
    folder = Folder(tmp_path / "out", "gdpa reproduce toy")
    with (
        folder.lock(),
        pytest.raises(OutputError, match=r"another run holds the folder .*gdpa reproduce toy"),
        Folder(tmp_path / "out").lock(),
    ):
        pass
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
    assert ours.recv()
    with pytest.raises(OutputError), Folder(tmp_path).lock():
        pass
    process.kill()
    process.join()
    with Folder(tmp_path).lock():
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OutputError, match=r"cannot write .*file.*; choose another --out"),
        Folder(tmp_path / "file").lock(),
    ):
        pass


def test_a_full_disk_is_said_and_leaves_nothing_behind(tmp_path, monkeypatch):
    folder = Folder(tmp_path)
    write(folder)
    before = (tmp_path / "toy" / "run.json").read_text()

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputError, match=r"no space left for .*run.json"):
        folder.begin("toy", Settings(seeds=2), [UNIT])
    assert (tmp_path / "toy" / "run.json").read_text() == before
    assert not list(tmp_path.rglob("*.part"))


def test_damaged_records_are_named(tmp_path):
    folder = Folder(tmp_path)
    write(folder)
    stem = folder.records("toy") / UNIT.name
    rows = stem.with_name(f"{UNIT.name}.csv")
    rows.unlink()
    with pytest.raises(UsageError, match=r"cannot read .*\.csv: .*--fresh"):
        folder.read("toy")
    stem.with_name(f"{UNIT.name}.json").write_text("{")
    with pytest.raises(UsageError, match=r"cannot read .*\.json: .*--fresh"):
        folder.read("toy")


def test_records_say_where_they_come_from(tmp_path):
    write(Folder(tmp_path))
    (path,) = (tmp_path / "toy" / "records").glob("*.json")
    content = json.loads(path.read_text())
    assert content["hash"] == UNIT.hash
    assert {"time", "commit", "versions", "machine", "command", "seconds"} <= content["about"].keys()
