"""Write a file whole or not at all, and durably: after a crash there is the old content or the new one."""

from __future__ import annotations

import errno
import os
import platform
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: The machine's name in temporary names: a process id means something on its own machine only.
_HOST = re.sub(r"[^A-Za-z0-9.]", "_", platform.node()) or "unknown"
_TEMPORARY = re.compile(r"\.gdpa-(?P<host>[A-Za-z0-9._]+)-(?P<pid>[1-9][0-9]*)-[0-9a-f]{16}\.part")
#: The names that threads of this process are writing to now.
_IN_USE: set[str] = set()


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write ``data`` to ``path`` and return when it is on the disk.

    The bytes go to a temporary file ``.gdpa-HOST-PID-TOKEN.part`` of the same folder, which is flushed, renamed to
    ``path`` and made durable by a flush of the folder. An exception removes it and leaves the old content of ``path``;
    an OSError names ``path``. A killed process leaves its temporary file; the next writer in the folder removes it.
    """
    target = Path(path)
    remove_stale(target.parent)
    name = f".gdpa-{_HOST}-{os.getpid()}-{secrets.token_hex(8)}.part"
    temporary = target.parent / name
    _IN_USE.add(name)
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        _flush_folder(target.parent)
    except OSError as error:  # users recognize the target, not the temporary name
        raise OSError(error.errno, error.strerror or str(error), str(target)) from error
    finally:
        with suppress(OSError):
            temporary.unlink()
        _IN_USE.discard(name)


@contextmanager
def reserved(folder: Path, stem: str) -> Iterator[None]:
    """Keep the files ``stem`` of ``folder`` to this process inside ``with``; BlockingIOError if another has them."""
    if os.name != "posix":  # other systems have no such lock
        yield
        return
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f".{stem}.lock", "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            reason = "another job saves here; wait until it has ended, or choose another place"
            raise BlockingIOError(error.errno, reason, f"{folder / stem}") from error
        yield


def remove_stale(folder: str | os.PathLike[str]) -> None:
    """Remove the temporary files that killed writers left in ``folder``; a live writer's file stays."""
    with suppress(OSError):  # litter is not a reason to fail: the folder may be missing or read-only
        for name in os.listdir(folder):
            found = _TEMPORARY.fullmatch(name)
            if found and found["host"] == _HOST and name not in _IN_USE and not _runs(int(found["pid"])):
                Path(folder, name).unlink(missing_ok=True)


def _runs(pid: int) -> bool:
    """Return whether another process has this id. Our own id on a name we do not use belongs to an earlier process."""
    if pid == os.getpid() or os.name != "posix":  # signal 0 works on POSIX only; elsewhere other writers count as alive
        return pid != os.getpid()
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _flush_folder(folder: Path) -> None:
    """Make a rename in ``folder`` durable, if the file system can."""
    if os.name != "posix":  # a folder cannot be opened elsewhere
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems flush no folders and say so by EINVAL
            raise
    finally:
        os.close(handle)
