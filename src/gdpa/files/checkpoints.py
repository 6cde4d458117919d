"""The last few saves of a run in numbered files, any of which a kill, a crash or a full disk leaves whole."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from gdpa.base.checks import check_count
from gdpa.base.writing import remove_stale
from gdpa.files import DamagedFileError, load, save


class Checkpoint(NamedTuple):
    """One saved value, the step it was saved with, and its file, which `gdpa.storage.load` reads, too."""

    step: int
    value: Any
    path: Path


class Checkpoints:
    """Numbered files ``STEM-NUMBER-step-STEP.gdpa``, of which the last ``keep`` stay.

    The number grows by one with every save, so the newest file is the one that was saved last, also if a run begins
    again at a lower step. Processes that save under the same stem see each other's files; each file is whole.

    Args:
        path: a folder that exists, for files ``checkpoint-...`` in it; or the stem of the files, e.g. "runs/first" for
            "runs/first-00000001-step-10.gdpa". The folder of a stem is made by the first save.
        keep: how many files stay, at least 1. More than one protects against damage by the disk.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoints = Checkpoints(folder, keep=2)
        ...     for step in (10, 20, 30):
        ...         path = checkpoints.save(step, {"x": step / 10})
        ...     [path.name for path in checkpoints.files()], checkpoints.newest()[:2]
        (['checkpoint-00000002-step-20.gdpa', 'checkpoint-00000003-step-30.gdpa'], (30, {'x': 3.0}))
    """

    def __init__(self, path: str | os.PathLike[str], keep: int = 3) -> None:
        check_count(1, keep=keep)
        path = Path(path)
        self.keep = keep
        self.folder, self.stem = (path, "checkpoint") if path.is_dir() else (path.parent, path.name)
        self._name = re.compile(re.escape(self.stem) + r"-(?P<number>\d{8,})-step-(?P<step>\d+)\.gdpa", re.ASCII)

    def save(self, step: int, value: Any) -> Path:
        """Write ``value`` (see `gdpa.storage.encode`) and return its file when it is on the disk, then remove old ones.

        Raises:
            OSError: the file cannot be written; the files before it stay.
            TypeError: ``value`` cannot be stored.
        """
        check_count(0, step=step)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_old()  # a killed process may have left one file too many
        files = self.files()
        number = 1 + (self._order(files[-1])[0] if files else 0)
        path = self.folder / f"{self.stem}-{number:08d}-step-{step}.gdpa"
        save(path, value)
        self._remove_old(path)
        return path

    def newest(self) -> Checkpoint | None:
        """Return the newest good save, or None if there is no file; temporary files of killed writers are removed.

        A damaged file is skipped with a warning that names it.

        Raises:
            DamagedFileError: all files are damaged.
            UnavailableError: the file needs an array library or a device that is not available here.
        """
        remove_stale(self.folder)
        tried: dict[Path, str] = {}  # with the damage
        while left := [path for path in self.files() if path not in tried]:
            path = left[-1]
            try:
                value = load(path)
            except FileNotFoundError:  # another process has saved and removed it since: look again
                tried[path] = ""
            except DamagedFileError as error:
                tried[path] = str(error)
            else:
                for reason in filter(None, tried.values()):
                    warnings.warn(f"{reason}; an older checkpoint is used instead, {path}", stacklevel=2)
                return Checkpoint(self._order(path)[1], value, path)
        if damage := "; ".join(filter(None, tried.values())):
            raise DamagedFileError(f"no checkpoint {self.folder / self.stem} can be read: {damage}")
        return None

    def files(self) -> list[Path]:
        """Return the files, oldest first."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        return sorted((self.folder / name for name in names if self._name.fullmatch(name)), key=self._order)

    def _remove_old(self, own: Path | None = None) -> None:
        """Remove all but the last files; ``own`` stays, because other processes may have saved many since."""
        for old in self.files()[: -self.keep]:
            if old != own:
                old.unlink(missing_ok=True)

    def _order(self, path: Path) -> tuple[int, int]:
        found = self._name.fullmatch(path.name)
        assert found is not None
        return int(found["number"]), int(found["step"])
