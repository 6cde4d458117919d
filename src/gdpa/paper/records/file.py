"""The one format of records: a file ``records.jsonl`` with one line for each run, each line with its own hash.

A line is a JSON object. Its entry ``sha256`` is the hash of the object without that entry, so an edited number, a cut
line and a line of another program are all noticed. A reader names such a line, leaves it out and carries on with the
others. An append is one write under a lock: processes can share a file, and a killed one leaves at most one cut line
at the end, which the next append removes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gdpa.base.writing import write_whole
from gdpa.paper.base import OutputError

Row = dict[str, Any]

NAME = "records.jsonl"
SEAL = "sha256"


class RecordFile:
    """The records of one study.

    Args:
        path: the file; its folder is made by the first append.
        complain: called once with a sentence for each damaged line; default: standard error.
        check: raises ValueError for a line that is whole but makes no sense; such a line counts as damaged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = RecordFile(f"{folder}/records.jsonl", complain=lambda text: print(text.rpartition("/")[2]))
    ...     records.append({"solver": "GDPA", "steps": 12})
    ...     records.append({"solver": "IPPP", "steps": 40})
    ...     _ = records.path.write_text(records.path.read_text().replace("40", "30"))
    ...     records.rows()
    records.jsonl, line 2: its content does not fit its sha256; the line is left out
    [{'solver': 'GDPA', 'steps': 12}]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        complain: Callable[[str], None] | None = None,
        check: Callable[[Row], None] | None = None,
    ) -> None:
        self.path, self._check = Path(path), check
        self._complain = _to_stderr if complain is None else complain
        self._told: set[str] = set()
        self._seen: tuple[tuple[int, int] | None, list[Row]] = (None, [])

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one record and return when it is on the disk.

        Raises:
            OutputError: the file cannot be written; it is then as it was before.
        """
        line = seal(row) + b"\n"
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab+", buffering=0) as file, _locked(file):
                size = _whole_lines(file)
                try:
                    _write(file, line)
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(size)
                    raise

    def replace(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the whole file again, or leave it as it is if that fails."""
        data = b"".join(seal(row) + b"\n" for row in rows)
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, data)

    def rows(self) -> list[Row]:
        """Return the undamaged records in their order, without their hashes; none if there is no file."""
        try:
            status = self.path.stat()
            state = (status.st_size, status.st_mtime_ns)
            if state != self._seen[0]:
                self._seen = state, list(self._read())
        except FileNotFoundError:
            return []
        except OSError as error:
            self._tell(f"cannot read {self.path}: {error.strerror}; it is left out")
            return []
        return list(self._seen[1])

    def _read(self) -> Iterator[Row]:
        for number, line in enumerate(self.path.read_bytes().splitlines(), 1):
            try:
                row = unseal(line)
                if self._check is not None:
                    self._check(row)
                yield row
            except ValueError as error:
                self._tell(f"{self.path}, line {number}: {error}; the line is left out")

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._complain(text)


def latest(rows: Iterable[Row], key: Callable[[Row], Any]) -> list[Row]:
    """Return the last record of each key, in the order in which the keys first appear.

    >>> latest([{"k": 1, "v": 0}, {"k": 2, "v": 0}, {"k": 1, "v": 5}], lambda row: row["k"])
    [{'k': 1, 'v': 5}, {'k': 2, 'v': 0}]
    """
    return list({key(row): row for row in rows}.values())


def seal(row: Mapping[str, Any]) -> bytes:
    """Return the record as a line with its hash.

    >>> unseal(seal({"a": 0.1, "b": float("inf")}))
    {'a': 0.1, 'b': inf}
    """
    content = {key: value for key, value in row.items() if key != SEAL}
    plain = json.loads(json.dumps(content, default=_plain))  # as a reader will see it: tuples are lists there
    return json.dumps({**plain, SEAL: _hash(plain)}).encode()


def unseal(line: bytes) -> Row:
    """Return the record in a line.

    Raises:
        ValueError: the line is damaged; the message says how.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not JSON, or cut off") from error
    if not isinstance(row, dict):
        raise ValueError(f"it is not a JSON object but {type(row).__name__}")  # noqa: TRY004 - damage, not a wrong call
    given = row.pop(SEAL, None)
    if given is None:
        raise ValueError(f"it has no {SEAL}")
    if given != _hash(row):
        raise ValueError(f"its content does not fit its {SEAL}")
    return row


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the file system into a message for the user."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError(f"no space left for {path}; free some, or choose another --out") from error
        raise OutputError(f"cannot write {path}: {error.strerror}; choose another --out") from error


def try_lock(handle: Any) -> bool:
    """Lock an open file for this process, without waiting, and return whether that worked."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover - Windows
        import msvcrt

        try:
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _locked(file: Any) -> Iterator[None]:
    """Hold the file while a line is appended; closing it lets go."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover - Windows: an append of one write is all there is
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX)
    yield


def _whole_lines(file: Any) -> int:
    """Remove the remains of a killed append behind the last newline, and return the size of the rest."""
    size = int(file.seek(0, os.SEEK_END))
    if size == 0:
        return 0
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return size
    file.seek(0)
    content = file.read()
    start = int(content.rfind(b"\n")) + 1
    try:
        unseal(content[start:])
    except ValueError:
        file.truncate(start)
        return start
    _write(file, b"\n")  # a whole record to which an editor gave no newline
    return size + 1


def _write(file: Any, data: bytes) -> None:
    """Write all of ``data`` to an unbuffered file, which may take a part at a time."""
    while data:
        data = data[file.write(data) :]


def _hash(row: Row) -> str:
    return hashlib.sha256(json.dumps(row).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Return the numbers of an array library as Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a record holds JSON values, not {type(value).__name__}: {value!r}")


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"gdpa: {text}\n")
