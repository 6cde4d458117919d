"""The output folder of `gdpa reproduce`: one file of records for each experiment.

    FOLDER/EXPERIMENT/records.jsonl     a line for each finished unit, and one for the request of the last run
    FOLDER/EXPERIMENT/failed/UNIT.txt   the traceback of a unit that failed

See `gdpa.paper.records.file` for the format. A unit is finished as soon as its line is there. A unit that was cut
off leaves nothing.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from gdpa.base.writing import write_whole
from gdpa.paper.base import OutputError, Settings, Unit
from gdpa.paper.records import file as record_file
from gdpa.paper.records.file import RecordFile, Row, writing
from gdpa.paper.records.provenance import about, versions

Columns = dict[str, list[float | int | str]]

#: The entries of a record that say which unit it is of, in the order of `Unit`.
IDENTITY = ("experiment", "method", "setting", "seed", "config")


@dataclass(frozen=True)
class Record:
    """A finished unit.

    Attributes:
        unit: the unit that ran.
        summary: the answer of `run`.
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
        complain: called with a sentence for each damaged record; default: standard error.
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
        with self._open_lock(file) as handle:
            with writing(self.path):
                handle.truncate(0)
                handle.write(f"process {os.getpid()} on {platform.node()}: {self.command}\n")
                handle.flush()
            try:
                yield
            finally:
                with suppress(OSError):  # Windows does not remove an open file
                    file.unlink()

    def _open_lock(self, file: Path) -> TextIO:
        """Return the lock file, open and locked; raise if another run holds it."""
        while True:
            with writing(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                handle = open(file, "a+")  # noqa: SIM115 - held until the run ends
            if not record_file.try_lock(handle):
                with handle:
                    handle.seek(0)
                    raise OutputError(
                        f"another run holds the folder {self.path} ({handle.read().strip() or 'no details'}); "
                        "wait for it to end or choose another --out"
                    )
            # The run that held the lock may have removed this file after it was opened here: then it protects nothing.
            if file.exists() and os.path.samestat(os.fstat(handle.fileno()), file.stat()):
                return handle
            handle.close()

    def file(self, experiment: str) -> RecordFile:
        """Return the file of the experiment's records."""
        path = self.path / experiment / record_file.NAME
        return self._files.setdefault(experiment, RecordFile(path, self._complain, _check))

    def begin(self, experiment: str, settings: Settings, units: Sequence[Unit]) -> None:
        """Note the request of this run."""
        plan = {"settings": asdict(settings), "command": self.command, "units": [unit.name for unit in units]}
        if plan != self._plan(experiment):
            self.file(experiment).append({"plan": plan})

    def finished(self, unit: Unit) -> bool:
        """Return whether the unit has its record."""
        return unit.hash in self._finished(unit.experiment)

    def summary(self, unit: Unit) -> Mapping[str, Any]:
        """Return the summary in the record of a finished unit."""
        summary = self._finished(unit.experiment)[unit.hash]["summary"]
        assert isinstance(summary, dict)
        return summary

    def forget(self, units: Sequence[Unit]) -> None:
        """Remove the records of the units."""
        for experiment in dict.fromkeys(unit.experiment for unit in units):
            rows, gone = self.file(experiment).rows(), {unit.hash for unit in units}
            kept = [row for row in rows if row.get("hash") not in gone]
            if len(kept) < len(rows):
                self.file(experiment).replace(kept)

    def finish(self, unit: Unit, summary: Mapping[str, Any], columns: Columns, about: Mapping[str, Any]) -> None:
        """Write the unit's record: from now on it is finished."""
        self.file(unit.experiment).append(
            {
                "experiment": unit.experiment,
                "method": unit.method,
                "setting": unit.setting,
                "seed": unit.seed,
                "config": dict(unit.config),
                "hash": unit.hash,
                "summary": dict(summary),
                "columns": columns,
                "about": dict(about),
            }
        )

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
        found = sorted(path.parent.name for path in self.path.glob(f"*/{record_file.NAME}"))
        return tuple(name for name in found if self._plan(name) is not None)

    def run(self, experiment: str) -> dict[str, Any]:
        """Return the request of the experiment's last run."""
        plan = self._plan(experiment)
        assert plan is not None, f"{experiment} is none of {self.experiments()}"
        return plan

    def read(self, experiment: str) -> list[Record]:
        """Return the finished units of the experiment's last run, in its order."""
        records = map(_record, self._finished(experiment).values())
        found = {record.unit.name: record for record in records}
        return [found[name] for name in self.run(experiment)["units"] if name in found]

    def _plan(self, experiment: str) -> dict[str, Any] | None:
        plans = [row["plan"] for row in self.file(experiment).rows() if isinstance(row.get("plan"), dict)]
        return plans[-1] if plans else None

    def _finished(self, experiment: str) -> dict[str, Row]:
        """Return the records by the hashes of their units; the last one of each counts."""
        return {row["hash"]: row for row in self.file(experiment).rows() if row.get("experiment") == experiment}


def _check(row: Row) -> None:
    """Raise ValueError if a line is neither a whole record of a unit, nor a plan, nor of another kind of study."""
    if "plan" in row:
        plan = row["plan"]
        if not isinstance(plan, dict) or not isinstance(plan.get("units"), list) or "command" not in plan:
            raise ValueError("its plan has no command or no units")
    elif "experiment" in row:
        missing = [key for key in (*IDENTITY, "hash", "summary", "columns", "about") if key not in row]
        if missing:
            raise ValueError(f"it lacks {', '.join(missing)}")
        _record(row)


def _record(row: Row) -> Record:
    try:
        unit = Unit(*(row[key] for key in IDENTITY))
        if unit.hash != row["hash"]:
            raise ValueError("its configuration does not fit its hash")
        columns = {name: np.array(values) for name, values in row["columns"].items()}
        columns = {
            name: values if values.dtype.kind == "U" else values.astype(float) for name, values in columns.items()
        }
        if len({values.shape for values in columns.values()}) > 1:
            raise ValueError("its columns have different lengths")
        return Record(unit, dict(row["summary"]), columns, dict(row["about"]))
    except (TypeError, AttributeError) as error:
        raise ValueError(f"an entry has the wrong type ({error})") from error


__all__ = ["Columns", "Folder", "Record", "about", "versions"]
