"""Records of finished units: one CSV of rows and one JSON of everything else, each written whole or not at all.

    FOLDER/EXPERIMENT/run.json              what the last run was asked for and which units belong to it
    FOLDER/EXPERIMENT/records/UNIT.csv      the rows of a unit
    FOLDER/EXPERIMENT/records/UNIT.json     its configuration, summary, versions, machine, commit and command

The JSON file appears last: where it stands, the unit is finished. A unit that was cut off leaves a ``.part`` file,
which the next run removes.
"""

from __future__ import annotations

import csv
import errno
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import gdpa
from gdpa.experiments.base import OutputError, Settings, Unit, UsageError
from gdpa.files import write_whole

LIBRARIES = ("numpy", "scipy", "array-api-compat", "torch", "jax", "matplotlib", "plotly", "typer", "rich", "gymnasium")


@dataclass(frozen=True)
class Record:
    """A finished unit.

    Attributes:
        unit: what was run.
        summary: what `run` returned.
        columns: the rows it reported, by column.
        about: seconds, time, versions, machine, commit, command.
    """

    unit: Unit
    summary: Mapping[str, Any]
    columns: Mapping[str, np.ndarray[Any, np.dtype[Any]]]
    about: Mapping[str, Any]


class Folder:
    """The output folder of `gdpa reproduce`.

    Args:
        path: the folder; made if it does not exist.
        command: the command that is running, which records repeat.
    """

    def __init__(self, path: str | os.PathLike[str], command: str = "") -> None:
        self.path, self.command = Path(path), command

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder: a second run is refused. The lock dies with its process, also by SIGKILL."""
        with _writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            handle = open(self.path / ".lock", "a+")  # noqa: SIM115 - held until the run ends
        with handle:
            if not _try_lock(handle):
                handle.seek(0)
                raise OutputError(
                    f"another run holds the folder {self.path} ({handle.read().strip() or 'no details'}); "
                    "wait for it to end or choose another --out"
                )
            with _writing(self.path):
                handle.truncate(0)
                handle.write(f"process {os.getpid()} on {platform.node()}: {self.command}\n")
                handle.flush()
            yield

    def records(self, experiment: str) -> Path:
        """Return the folder of the experiment's records."""
        return self.path / experiment / "records"

    def begin(self, experiment: str, settings: Settings, units: Sequence[Unit]) -> None:
        """Note what this run is asked for, and clear away what a killed run left behind."""
        folder = self.records(experiment)
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob("*.part"):
                leftover.unlink()
        run = {"settings": asdict(settings), "command": self.command, "units": [unit.name for unit in units]}
        self.write_text(Path(experiment) / "run.json", json.dumps(run, indent=1) + "\n")

    def finished(self, unit: Unit) -> bool:
        """Tell whether the unit has its record."""
        return (self.records(unit.experiment) / f"{unit.name}.json").is_file()

    def summary(self, unit: Unit) -> Mapping[str, Any]:
        """Return the summary in the record of a finished unit."""
        summary = _read_json(self.records(unit.experiment) / f"{unit.name}.json")["summary"]
        assert isinstance(summary, dict)
        return summary

    def forget(self, unit: Unit) -> None:
        """Remove the unit's record; its JSON file first, so that no half of it can pass for a record."""
        for suffix in ("json", "csv"):
            (self.records(unit.experiment) / f"{unit.name}.{suffix}").unlink(missing_ok=True)

    def finish(self, unit: Unit, summary: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Write the unit's JSON file: from now on it is finished."""
        content = {
            "experiment": unit.experiment,
            "method": unit.method,
            "setting": unit.setting,
            "seed": unit.seed,
            "config": dict(unit.config),
            "hash": unit.hash,
            "summary": dict(summary),
            "about": dict(about),
        }
        path = self.records(unit.experiment).relative_to(self.path) / f"{unit.name}.json"
        self.write_text(path, json.dumps(content, indent=1) + "\n")

    def write_text(self, name: str | Path, text: str) -> Path:
        """Write a file of the folder, whole or not at all."""
        target = self.path / name
        with _writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            write_whole(target, text.encode())
        return target

    def experiments(self) -> tuple[str, ...]:
        """Return the experiments that have been run in this folder."""
        return tuple(sorted(path.parent.name for path in self.path.glob("*/run.json")))

    def run(self, experiment: str) -> dict[str, Any]:
        """Return what the experiment's last run was asked for."""
        return _read_json(self.path / experiment / "run.json")

    def read(self, experiment: str) -> list[Record]:
        """Return the finished units of the experiment's last run, in its order."""
        folder = self.records(experiment)
        names = [name for name in self.run(experiment)["units"] if (folder / f"{name}.json").is_file()]
        return [_read(folder / name) for name in names]


class RowWriter:
    """The rows of one unit, written as they come to a ``.part`` file that becomes the CSV file at the end.

    Numbers are written with all their digits: reading them back gives the same bits.
    """

    def __init__(self, folder: Folder, unit: Unit) -> None:
        self._target = folder.records(unit.experiment) / f"{unit.name}.csv"
        self._part = self._target.with_name(f"{unit.name}.csv.{os.getpid()}.part")
        self._head: tuple[str, ...] | None = None
        with _writing(self._part):
            self._file = open(self._part, "w", newline="", encoding="utf-8")  # noqa: SIM115 - closed below
        self._csv = csv.writer(self._file, lineterminator="\n")

    def row(self, **columns: float | int | str) -> None:
        head = tuple(columns)
        with _writing(self._part):
            if self._head is None:
                self._head = head
                self._csv.writerow(head)
            elif head != self._head:
                raise ValueError(f"a row has the columns {head}, the rows before have {self._head}")
            self._csv.writerow(columns.values())
            self._file.flush()

    def close(self, keep: bool) -> None:
        """Make the rows a CSV file, or drop them."""
        with _writing(self._part):
            if keep:
                os.fsync(self._file.fileno())
            self._file.close()
            if keep:
                os.replace(self._part, self._target)
            else:
                self._part.unlink(missing_ok=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into a message for the user."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError(f"no space left for {path}; free some, or choose another --out") from error
        raise OutputError(f"cannot write {path}: {error.strerror}; choose another --out") from error


def _try_lock(handle: Any) -> bool:
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


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}; run the experiment again with --fresh") from error
    assert isinstance(content, dict)
    return content


def _read(stem: Path) -> Record:
    content = _read_json(stem.with_name(stem.name + ".json"))
    unit = Unit(*(content[key] for key in ("experiment", "method", "setting", "seed", "config")))
    rows = stem.with_name(stem.name + ".csv")
    try:
        with open(rows, newline="", encoding="utf-8") as file:
            head, *lines = list(csv.reader(file)) or [[]]
    except OSError as error:
        raise UsageError(f"cannot read {rows}: {error.strerror}; run the experiment again with --fresh") from error
    columns = {name: _column([line[i] for line in lines]) for i, name in enumerate(head)}
    return Record(unit, content["summary"], columns, content["about"])


def _column(values: list[str]) -> np.ndarray[Any, np.dtype[Any]]:
    try:
        return np.array([float(value) for value in values])
    except ValueError:
        return np.array(values)


def about(command: str) -> dict[str, Any]:
    """Return what a record says of where it was made: time, commit, versions, machine, command."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "versions": versions(),
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
        },
        "command": command,
    }


def versions() -> dict[str, str]:
    """Return the versions of gdpa, Python and the libraries that are installed.

    >>> versions()["gdpa"] == gdpa.__version__
    True
    """
    found = {"gdpa": gdpa.__version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """Return the commit of the source, if it lies in a git repository; ``-dirty`` where files differ from it."""

    def git(*arguments: str) -> str:
        answer = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
        )
        return answer.stdout.strip()

    try:
        git(
            "ls-files", "--error-unmatch", Path(__file__).name
        )  # an installed copy may lie in someone else's repository
        return git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None
