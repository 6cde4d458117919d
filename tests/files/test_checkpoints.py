import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gdpa import GDPA, Checkpoints, problems, storage
from gdpa.base import writing as files
from gdpa.files import checkpoints as checkpoints_module
from tests.stored import assert_same, craft_array

KILLS = 60


def names(folder):
    return sorted(os.listdir(folder))


def test_the_last_few_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.newest() is None
    for step in range(5):
        path = checkpoints.save(step, {"step": step})
        assert storage.load(path) == {"step": step}
        newest = checkpoints.newest()
        assert (newest.step, newest.value, newest.path) == (step, {"step": step}, path)
        assert len(names(tmp_path)) == min(step + 1, 2)
    assert names(tmp_path) == ["checkpoint-00000004-step-3.gdpa", "checkpoint-00000005-step-4.gdpa"]


def test_a_stem_and_its_folder(tmp_path):
    first, second = Checkpoints(tmp_path / "runs" / "first"), Checkpoints(str(tmp_path / "runs" / "first-1"), keep=1)
    assert first.newest() is None
    assert names(tmp_path) == []
    first.save(7, 1)
    for step in range(3):
        second.save(step, "other")
    assert names(tmp_path / "runs") == ["first-00000001-step-7.gdpa", "first-1-00000003-step-2.gdpa"]
    assert (first.newest().value, second.newest().value) == (1, "other")


def test_a_state_comes_back(tmp_path):
    known = problems.get("HS43")
    state = GDPA().init(known.problem, known.x0)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, (GDPA(), state))
    assert_same((GDPA(), state), checkpoints.newest().value)


def test_a_run_that_begins_again_is_the_newest(tmp_path):
    """The number orders the files, not the step."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (10**6, 2 * 10**6, 3):
        checkpoints.save(step, step)
    assert checkpoints.newest().step == 3


def test_numbers_of_any_length_are_ordered(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(1, 1).rename(tmp_path / "checkpoint-99999999-step-1.gdpa")
    checkpoints.save(2, 2)
    assert names(tmp_path) == ["checkpoint-100000000-step-2.gdpa", "checkpoint-99999999-step-1.gdpa"]
    assert checkpoints.newest().step == 2


def test_damaged_files_are_skipped_by_name(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    old, middle, new = (checkpoints.save(step, np.full(10, float(step))) for step in (1, 2, 3))
    new.write_bytes(new.read_bytes()[:-1])
    middle.write_bytes(b"")
    with pytest.warns(UserWarning, match="an older checkpoint is used instead") as caught:
        newest = checkpoints.newest()
    assert (newest.step, newest.path) == (1, old)
    assert [str(path) in str(w.message) for path, w in zip((new, middle), caught, strict=True)] == [True, True]
    # The next save goes on from there; nothing damaged hides it.
    checkpoints.save(2, "again")
    assert checkpoints.newest().value == "again"


def test_if_all_are_damaged_it_is_refused_with_every_name(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    paths = [checkpoints.save(step, step) for step in (1, 2)]
    for path in paths:
        path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(storage.DamagedFileError) as caught:
        checkpoints.newest()
    assert all(str(path) in str(caught.value) for path in paths)
    assert names(tmp_path) == sorted(path.name for path in paths)


def test_a_file_that_needs_another_machine_is_not_skipped(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, 1)
    checkpoints.save(2, 2).write_bytes(craft_array(bytes(16), library="jax", device="tpu"))
    with pytest.raises(storage.UnavailableError, match=r"step-2\.gdpa holds JAX arrays on the device tpu"):
        checkpoints.newest()


def test_what_cannot_be_stored_or_written_leaves_the_files_before_it(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, 1)
    with pytest.raises(TypeError, match="cannot be stored"):
        checkpoints.save(2, object())

    def full(handle):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"No space left on device.*step-2\.gdpa"):
            checkpoints.save(2, 2)
    assert names(tmp_path) == ["checkpoint-00000001-step-1.gdpa"]
    assert checkpoints.newest().value == 1


def test_arguments(tmp_path):
    for keep in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match=rf"keep must be an integer of at least 1, got {keep}"):
            Checkpoints(tmp_path, keep=keep)
    for step in (-1, 1.0, False):
        with pytest.raises(ValueError, match=rf"step must be an integer of at least 0, got {step}"):
            Checkpoints(tmp_path).save(step, None)


@pytest.mark.parametrize("look", [lambda c: c.newest(), lambda c: c.save(2, 2)], ids=["newest", "save"])
def test_temporary_files_of_killed_writers_go(tmp_path, look):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, 1)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(timeout=60)
    stale = tmp_path / f".gdpa-{files._HOST}-{ended.pid}-0123456789abcdef.part"
    stale.write_bytes(b"half")
    look(checkpoints)
    assert not stale.exists()


def test_a_file_that_another_process_removes_meanwhile_is_no_error(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, keep=1)
    first = checkpoints.save(1, 1)
    calls: list = []

    def load_after_another_save(path):
        if not calls:
            calls.append(path)
            Checkpoints(tmp_path, keep=1).save(2, 2)
        return storage.load(path)

    monkeypatch.setattr("gdpa.files.checkpoints.load", load_after_another_save)
    assert checkpoints.newest().value == 2
    assert calls == [first]
    dangling = tmp_path / "checkpoint-00000009-step-9.gdpa"
    dangling.symlink_to(tmp_path / "nowhere")
    assert checkpoints.newest().value == 2


def test_a_file_just_saved_stays_if_another_process_has_overtaken_it(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, keep=2)
    save = checkpoints_module.save

    def save_after_the_other(path, value):
        monkeypatch.setattr(checkpoints_module, "save", save)
        for step in range(3):
            Checkpoints(tmp_path, keep=2).save(step, "other")
        save(path, value)

    monkeypatch.setattr(checkpoints_module, "save", save_after_the_other)
    assert storage.load(checkpoints.save(7, "own")) == "own"
    checkpoints.save(8, "own")
    assert names(tmp_path) == ["checkpoint-00000003-step-2.gdpa", "checkpoint-00000004-step-8.gdpa"]


SAVER = """if 1:
    import sys
    from gdpa.files.checkpoints import Checkpoints
    checkpoints = Checkpoints(sys.argv[1])
    for step in range(60):
        path = checkpoints.save(step, [sys.argv[2], step])
        assert checkpoints.newest() is not None
"""


def test_two_processes_do_not_disturb_each_other(tmp_path):
    savers = [subprocess.Popen([sys.executable, "-W", "error", "-c", SAVER, tmp_path, name]) for name in "ab"]
    assert [saver.wait(timeout=300) for saver in savers] == [0, 0]
    checkpoints = Checkpoints(tmp_path)
    assert all(storage.load(path)[1] == int(path.stem.split("-")[-1]) for path in checkpoints.files())
    assert checkpoints.newest().step == 59
    checkpoints.save(60, None)
    assert len(names(tmp_path)) == 3


def test_kills_while_saving(tmp_path):
    """Nothing unreadable, nothing older than acknowledged, no file left behind."""
    command = [sys.executable, str(Path(__file__).with_name("kill_loop.py")), str(tmp_path), str(KILLS)]
    seen = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout)
    assert seen["kills"] == KILLS
    assert seen["acknowledged"] > KILLS / 4  # the processes did save
    assert seen["cut"] > 0  # and some were killed in the middle of a save
    assert (seen["older"], seen["unreadable"], seen["left"]) == (0, 0, 0)
