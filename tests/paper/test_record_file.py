"""The format of records: what is written is read back, and every damaged line is named and left out."""

import errno
import json
import math
import multiprocessing
import os

import numpy as np
import pytest

from gdpa.paper.base import OutputError
from gdpa.paper.records import RecordFile, seal, unseal

ROW = {"study": "toy", "seed": 0, "value": 1 / 3, "words": 'naïve "quoted"\n', "list": [1, None, True]}


@pytest.fixture
def told():
    return []


@pytest.fixture
def file(tmp_path, told):
    return RecordFile(tmp_path / "a" / "b" / "records.jsonl", told.append)


def test_rows_come_back_in_order_and_bit_for_bit(file):
    rows = [ROW, {"x": [5e-324, -math.inf, -0.0, 1e308]}, {"integer": 2**80}]
    for row in rows:
        file.append(row)
    assert file.rows() == rows
    assert math.copysign(1.0, file.rows()[1]["x"][2]) == -1.0
    assert file.path.read_bytes().count(b"\n") == 3
    file.append({"y": math.nan})
    assert math.isnan(file.rows()[-1]["y"])


def test_numbers_of_array_libraries_are_written_as_pythons(file):
    file.append({"i": np.int64(3), "f": np.float64(0.1), "a": np.arange(2), "t": (1, 2)})
    assert file.rows() == [{"i": 3, "f": 0.1, "a": [0, 1], "t": [1, 2]}]
    with pytest.raises(TypeError, match="a record holds JSON values, not object"):
        file.append({"o": object()})
    assert len(file.rows()) == 1


def test_no_file_has_no_rows(file, told):
    assert (file.rows(), told) == ([], [])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda line: line.replace(b"0.3333", b"0.3334"), "its content does not fit its sha256"),
        (lambda line: line.replace(b'"seed": 0', b'"seed": 1'), "its content does not fit its sha256"),
        (lambda line: line.replace(b'"seed"', b'"sead"'), "its content does not fit its sha256"),
        (lambda line: line.replace(b"true", b"1"), "its content does not fit its sha256"),
        (lambda line: line[:-9], "it is not JSON, or cut off"),
        (lambda line: line[9:], "it is not JSON, or cut off"),
        (lambda line: b"", "it is not JSON, or cut off"),
        (lambda line: b"\xff\xfe" + line, "it is not JSON, or cut off"),
        (lambda line: b"\0" * len(line), "it is not JSON, or cut off"),
        (lambda line: b"[" * 100_000, "it is not JSON, or cut off"),
        (lambda line: b"[1, 2]", "it is not a JSON object but list"),
        (lambda line: b"12", "it is not a JSON object but int"),
        (lambda line: json.dumps(ROW).encode(), "it has no sha256"),
        (lambda line: json.dumps({**ROW, "sha256": 5}).encode(), "its content does not fit its sha256"),
    ],
)
def test_a_damaged_line_is_named_once_and_the_others_are_read(file, told, damage, reason):
    lines = [seal({"n": 1}), damage(seal(ROW)), seal({"n": 2})]
    file.path.parent.mkdir(parents=True)
    file.path.write_bytes(b"\n".join(lines) + b"\n")
    for _ in range(2):
        assert file.rows() == [{"n": 1}, {"n": 2}]
    assert told == [f"{file.path}, line 2: {reason}; the line is left out"]


def test_every_flipped_bit_is_noticed():
    line = seal(ROW)
    for place in range(len(line)):
        for bit in range(8):
            flipped = line[:place] + bytes([line[place] ^ (1 << bit)]) + line[place + 1 :]
            try:
                found = unseal(flipped)
            except ValueError:
                continue
            assert found == ROW  # white space, or the same number written in another way


def test_every_truncation_is_noticed():
    line = seal(ROW)
    for end in range(len(line)):
        with pytest.raises(ValueError, match="it is not JSON"):
            unseal(line[:end])


def test_a_check_of_the_user_counts_as_damage(tmp_path, told):
    def check(row):
        if row["n"] == 1:
            raise ValueError("one is not allowed")

    file = RecordFile(tmp_path / "records.jsonl", told.append, check)
    file.append({"n": 1})
    file.append({"n": 2})
    assert file.rows() == [{"n": 2}]
    assert "line 1: one is not allowed" in told[0]


def test_an_append_removes_what_a_killed_append_left(file, told):
    file.append({"n": 1})
    with open(file.path, "ab") as raw:
        raw.write(seal(ROW)[:40])
    assert file.rows() == [{"n": 1}]
    assert "line 2" in told[0]
    file.append({"n": 2})
    assert file.path.read_bytes() == seal({"n": 1}) + b"\n" + seal({"n": 2}) + b"\n"


def test_a_whole_last_line_without_a_newline_is_kept(file, told):
    file.append({"n": 1})
    file.path.write_bytes(file.path.read_bytes().rstrip(b"\n"))
    file.append({"n": 2})
    assert (file.rows(), told) == ([{"n": 1}, {"n": 2}], [])


@pytest.mark.parametrize("written", [0, 7])
def test_a_full_disk_is_said_and_leaves_no_half_line(file, monkeypatch, written):
    file.append({"n": 1})
    before = file.path.read_bytes()

    def full(handle, data):
        os.write(handle.fileno(), data[:written])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gdpa.paper.records._write", full)
    with pytest.raises(OutputError, match=r"no space left for .*records.jsonl"):
        file.append({"n": 2})
    assert file.path.read_bytes() == before
    assert [path.name for path in file.path.parent.iterdir()] == ["records.jsonl"]


def test_replacing_writes_the_whole_file(file):
    file.append({"n": 1})
    file.append({"n": 2})
    file.replace([{"n": 2}])
    assert file.rows() == [{"n": 2}]
    assert [path.name for path in file.path.parent.iterdir()] == ["records.jsonl"]


def _append(path, worker):
    file = RecordFile(path)
    for i in range(50):
        file.append({"worker": worker, "i": i, "filling": "x" * (997 * (i % 3))})


def test_processes_share_a_file(file, told):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_append, args=(file.path, k)) for k in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
        assert worker.exitcode == 0, "an appending process did not end within 120 s"
    assert sorted((row["worker"], row["i"]) for row in file.rows()) == [(k, i) for k in range(3) for i in range(50)]
    assert told == []
