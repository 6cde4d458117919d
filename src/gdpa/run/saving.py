"""Save a run to a file and continue it later: by hand, or on the way of `gdpa.solve`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gdpa.base.checks import check_count
from gdpa.base.signals import StopRequest
from gdpa.base.writing import reserved
from gdpa.core.problem import detach
from gdpa.files import DamagedFileError, load, save
from gdpa.files.checkpoints import Checkpoints
from gdpa.run.oracle import Job
from gdpa.run.progress import Run


def save_run(path: str | os.PathLike[str], run: Run) -> None:
    """Write ``run`` to ``path``, whole or not at all; the file is data, not code.

    >>> import tempfile
    >>> from gdpa import GDPA, MaxSteps, problems, solve
    >>> disc = problems.get("disc-product")
    >>> first = solve(disc.problem, disc.x0, GDPA(), stop=MaxSteps(10))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_run(f"{folder}/run", first.run)
    ...     rest = solve(disc.problem, run=load_run(f"{folder}/run"), stop=MaxSteps(20))
    >>> straight = solve(disc.problem, disc.x0, GDPA(), stop=MaxSteps(20))
    >>> bool((rest.x == straight.x).all())
    True
    """
    if not isinstance(run, Run):
        raise TypeError(f"run must be a Run, such as result.run, got {type(run).__name__}")
    save(path, detach(run))


def load_run(path: str | os.PathLike[str]) -> Run:
    """Read a run written by `save_run` or by ``solve(checkpoint=...)``; continue with ``solve(problem, run=...)``."""
    return _as_run(load(path), path)


def newest_run(path: str | os.PathLike[str]) -> Run | None:
    """Return the newest good run that ``solve(checkpoint=path)`` saved, or None if there is none."""
    newest = Checkpoints(path).newest()
    return None if newest is None else _as_run(newest.value, newest.path)


def _as_run(value: Any, path: str | os.PathLike[str]) -> Run:
    if not isinstance(value, Run):
        raise DamagedFileError(f"{Path(path)} does not hold a run of gdpa but a {type(value).__name__}")
    return value


class Saver:
    """Saves a run on the way of the loop: every ``every`` steps, at the end, and before SIGTERM ends the process.

    Inside ``with``, SIGTERM is noted, so that the loop ends after its step; then standard error names the file.
    ``stop`` is true after a signal, ``path`` the file of the last save. Of the processes of a ``job`` the first one
    saves, and no other job may save to the same place.
    """

    def __init__(self, path: str | os.PathLike[str], every: int, keep: int, job: Job | None = None) -> None:
        check_count(1, every=every)
        self._files: Checkpoints | None = Checkpoints(path, keep)
        self._every, self._saved = every, -1
        self.stop = StopRequest(signal.SIGTERM)
        self.path: Path | None = None
        self._job, self._lock = job, ExitStack()

    def __enter__(self) -> Saver:
        if self._files is not None and self._job is not None:
            if self._job.rank == 0:
                self._lock.enter_context(reserved(self._files.folder, self._files.stem))
            else:
                self._files = None
        self.stop.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        if self.stop.number == signal.SIGTERM and self.path is not None:
            sys.stderr.write(f"gdpa: terminated; the run is saved in {self.path}\n")
            sys.stderr.flush()
        self._lock.close()
        self.stop.__exit__(*raised)

    def offer(self, step: int, run: Callable[[], Run], final: bool = False) -> None:
        """Save the run if that is due after ``step``."""
        if self._files is not None and step != self._saved and (final or step % self._every == 0):
            self.path = self._files.save(step, detach(run()))
            self._saved = step
