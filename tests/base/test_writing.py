import errno
import os
import subprocess
import sys
import threading

import pytest

from gdpa.base import writing as files
from gdpa.base.writing import remove_stale, write_whole

TOKEN = "0123456789abcdef"


def temporary(pid, host=None):
    return f".gdpa-{host or files._HOST}-{pid}-{TOKEN}.part"


@pytest.fixture
def dead():
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(timeout=60)
    return process.pid


@pytest.fixture
def alive():
    """The id of another process that runs."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.communicate(b"\n", timeout=60)


def test_the_content_is_replaced_whole(tmp_path):
    for data in (b"", b"first", b"x" * 1_000_000, b"last"):
        write_whole(tmp_path / "file", data)
        assert (tmp_path / "file").read_bytes() == data
    write_whole(str(tmp_path / "file"), b"a path as str")
    assert os.listdir(tmp_path) == ["file"]


def test_a_relative_name_is_written_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_whole("file", b"here")
    assert os.listdir(tmp_path) == ["file"]


def test_file_and_folder_are_flushed_before_and_after_the_rename(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os,
        "fsync",
        lambda handle: (events.append(os.readlink(f"/proc/self/fd/{handle}")), fsync(handle)),  # type: ignore[func-returns-value]
    )
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("rename"), replace(a, b)))  # type: ignore[func-returns-value]
    write_whole(tmp_path / "file", b"data")
    first, rename, last = events
    assert files._TEMPORARY.fullmatch(os.path.basename(first))
    assert (rename, last) == ("rename", str(tmp_path))


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_an_exception_keeps_the_old_content_and_leaves_nothing(tmp_path, monkeypatch, step, error):
    write_whole(tmp_path / "file", b"old")

    def fail(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(type(error)) as caught:
            write_whole(tmp_path / "file", b"new")
    if isinstance(error, OSError):
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.filename == str(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]
    assert not files._IN_USE


def test_the_error_names_the_file_that_was_asked_for(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing/file'$"):
        write_whole(tmp_path / "missing" / "file", b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match=r"folder'$"):
        write_whole(tmp_path / "folder", b"")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_file_system_that_flushes_no_folders_will_do(tmp_path, monkeypatch):
    fsync = os.fsync

    def refuse(handle):
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    write_whole(tmp_path / "file", b"data")
    assert (tmp_path / "file").read_bytes() == b"data"


def test_stale_files_go_and_live_ones_stay(tmp_path, dead, alive):
    stale = [temporary(dead), temporary(os.getpid()), temporary(10**30)]
    kept = [temporary(alive), temporary(1), temporary(dead, host="elsewhere"), "data.part", f".gdpa-{dead}.part"]
    for name in (*stale, *kept):
        (tmp_path / name).write_bytes(b"half")
    write_whole(tmp_path / "file", b"data")
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "file"])


def test_threads_do_not_remove_each_others_files(tmp_path):
    """Threads share the process id: what one of them writes is not stale for the others."""
    errors = []

    def write(number):
        try:
            for _ in range(30):
                write_whole(tmp_path / "file", bytes([number]) * 1000)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a writing thread did not end within 60 s"
    assert not errors
    assert os.listdir(tmp_path) == ["file"]
    content = (tmp_path / "file").read_bytes()
    assert len(content) == 1000
    assert len(set(content)) == 1


def test_a_folder_that_cannot_be_cleaned_is_left(tmp_path, dead, monkeypatch):
    remove_stale(tmp_path / "missing")
    (tmp_path / temporary(dead)).write_bytes(b"half")

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    remove_stale(tmp_path)


def test_without_posix_signals_every_writer_passes_for_alive(tmp_path, dead, monkeypatch):
    (tmp_path / temporary(dead)).write_bytes(b"half")
    monkeypatch.setattr(files.os, "name", "nt")
    assert files._runs(dead)
    files._flush_folder(tmp_path)
