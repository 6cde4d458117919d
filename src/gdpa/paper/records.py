"""Records: a file ``records.jsonl`` with one line for each run, each line with its own hash, and folders of them.

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
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gdpa.base.writing import write_whole
from gdpa.paper.base import OutputError, Unit

Row = dict[str, Any]
Columns = dict[str, list[float | int | str]]

NAME = "records.jsonl"
SEAL = "sha256"
#: The entries of a record that identify its unit, in the order of `Unit`.
IDENTITY = ("experiment", "method", "setting", "seed", "config")


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
        check: Callable[[Row], Any] = lambda row: None,
    ) -> None:
        self.path, self._check = Path(path), check
        self._complain = complain or (lambda text: print(f"gdpa: {text}", file=sys.stderr))
        self._reported: set[str] = set()
        self._seen: tuple[tuple[int, int] | None, list[Row]] = (None, [])

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one record and return when it is on the disk.

        Raises:
            OutputError: the file cannot be written; it is then as it was before.
        """
        line = seal(row) + b"\n"
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab+", buffering=0) as file:
                _lock(file)
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
            self._report(f"cannot read {self.path}: {error.strerror}; it is left out")
            return []
        return list(self._seen[1])

    def _read(self) -> Iterator[Row]:
        for number, line in enumerate(self.path.read_bytes().splitlines(), 1):
            try:
                row = unseal(line)
                self._check(row)
                yield row
            except ValueError as error:
                self._report(f"{self.path}, line {number}: {error}; the line is left out")

    def _report(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self._complain(text)


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
        ValueError: the line is damaged; the message names the damage.
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


def _lock(file: Any, wait: bool = True) -> bool:
    """Lock an open file for this process until it is closed, and return whether that worked."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover - Windows: an append of one write is all there is
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


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


@dataclass(frozen=True)
class Record:
    """A finished unit: the summary that `run` returned, the rows by column, and the origin (time, commit, machine)."""

    unit: Unit
    summary: Mapping[str, Any]
    columns: Mapping[str, np.ndarray[Any, np.dtype[Any]]]
    about: Mapping[str, Any]


class Folder:
    """The output folder of `gdpa reproduce`.

        FOLDER/EXPERIMENT/records.jsonl     a line for each finished unit, and one for the request of the last run
        FOLDER/EXPERIMENT/failed/UNIT.txt   the traceback of a unit that failed

    A unit is finished as soon as its line is there. A unit that was cut off leaves nothing. Records repeat ``command``;
    ``complain`` gets a sentence for each damaged record, by default for standard error.
    """

    def __init__(
        self, path: str | os.PathLike[str], command: str = "", complain: Callable[[str], None] | None = None
    ) -> None:
        self.path, self.command, self._complain = Path(path), command, complain
        self._files: dict[str, RecordFile] = {}

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder: a second run is refused. The lock dies with its process, also by SIGKILL.

        The file is removed at the end, while the lock is held; a killed process leaves it, without a lock.
        """
        file = self.path / ".lock"
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            handle = open(file, "a+")  # noqa: SIM115 - held until the run ends
        with handle:
            # A file without a name was removed by the run that held it, after it was opened here: it protects nothing.
            if not _lock(handle, wait=False) or os.fstat(handle.fileno()).st_nlink == 0:
                handle.seek(0)
                raise OutputError(
                    f"another run holds the folder {self.path} ({handle.read().strip() or 'no details'}); "
                    "wait for it to end or choose another --out"
                )
            with writing(self.path):
                handle.truncate(0)
                handle.write(f"process {os.getpid()} on {platform.node()}: {self.command}\n")
                handle.flush()
            try:
                yield
            finally:
                with suppress(OSError):  # Windows does not remove an open file
                    file.unlink()

    def file(self, experiment: str) -> RecordFile:
        """Return the file of the experiment's records."""
        path = self.path / experiment / NAME
        return self._files.setdefault(experiment, RecordFile(path, self._complain, _check))

    def begin(self, experiment: str, units: Sequence[Unit]) -> None:
        """Note the request of this run: the command, which holds all settings, and the units."""
        plan = {"command": self.command, "units": [unit.name for unit in units]}
        if plan != self.run(experiment):
            self.file(experiment).append({"plan": plan})

    def finished(self, unit: Unit) -> bool:
        """Return whether the unit has its record."""
        return unit.hash in self._finished(unit.experiment)

    def summary(self, unit: Unit) -> Mapping[str, Any]:
        """Return the summary in the record of a finished unit."""
        return dict(self._finished(unit.experiment)[unit.hash]["summary"])

    def forget(self, units: Sequence[Unit]) -> None:
        """Remove the records of the units."""
        gone = {unit.hash for unit in units}
        for experiment in dict.fromkeys(unit.experiment for unit in units):
            rows = self.file(experiment).rows()
            kept = [row for row in rows if row.get("hash") not in gone]
            if len(kept) < len(rows):
                self.file(experiment).replace(kept)

    def finish(self, unit: Unit, summary: Mapping[str, Any], columns: Columns, about: Mapping[str, Any]) -> None:
        """Write the unit's record: from now on it is finished."""
        identity = {**{key: getattr(unit, key) for key in IDENTITY}, "config": dict(unit.config)}
        outcome = {"hash": unit.hash, "summary": dict(summary), "columns": columns, "about": dict(about)}
        self.file(unit.experiment).append({**identity, **outcome})

    def complaint(self, unit: Unit) -> Path:
        """Return where the traceback of a failed unit goes."""
        return self.path / unit.experiment / "failed" / f"{unit.name}.txt"

    def write_text(self, name: str | Path, text: str) -> Path:
        """Write a file of the folder, whole or not at all."""
        target = self.path / name
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            write_whole(target, text.encode())
        return target

    def experiments(self) -> tuple[str, ...]:
        """Return the experiments that have been run in this folder."""
        found = sorted(path.parent.name for path in self.path.glob(f"*/{NAME}"))
        return tuple(name for name in found if self.run(name))

    def read(self, experiment: str) -> list[Record]:
        """Return the finished units of the experiment's last run, in its order."""
        found = {record.unit.name: record for record in map(_record, self._finished(experiment).values())}
        return [found[name] for name in self.run(experiment)["units"] if name in found]

    def run(self, experiment: str) -> dict[str, Any]:
        """Return the request of the experiment's last run; empty if there was none."""
        return next((row["plan"] for row in reversed(self.file(experiment).rows()) if "plan" in row), {})

    def _finished(self, experiment: str) -> dict[str, Row]:
        """Return the records by the hashes of their units; the last one of each counts."""
        return {row["hash"]: row for row in self.file(experiment).rows() if row.get("experiment") == experiment}


def _check(row: Row) -> None:
    """Raise ValueError if a line is neither a whole record of a unit, nor a plan, nor of another kind of study."""
    if "plan" in row:
        if not isinstance(row["plan"], dict) or not {"units", "command"} <= set(row["plan"]):
            raise ValueError("its plan has no command or no units")
    elif "experiment" in row:
        _record(row)


def _record(row: Row) -> Record:
    try:
        unit = Unit(*(row[key] for key in IDENTITY))
        if unit.hash != row["hash"]:
            raise ValueError("its configuration does not fit its hash")
        columns = {name: np.array(values) for name, values in row["columns"].items()}
        columns = {n: column if column.dtype.kind == "U" else column.astype(float) for n, column in columns.items()}
        if len({column.shape for column in columns.values()}) > 1:
            raise ValueError("its columns have different lengths")
        return Record(unit, dict(row["summary"]), columns, dict(row["about"]))
    except KeyError as error:
        raise ValueError(f"it lacks {error.args[0]}") from error
    except (TypeError, AttributeError) as error:
        raise ValueError(f"an entry has the wrong type ({error})") from error
