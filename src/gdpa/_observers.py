"""Observers: called after every step with the progress of the run; they look and never touch."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

import numpy as np

from gdpa._arrays import to_numpy
from gdpa._progress import Progress
from gdpa._result import History


def _scalar(value: Any) -> Any:
    """A float for a single problem, the host copy of one value each for a batch."""
    if isinstance(value, float):
        return value
    values = to_numpy(value)
    return float(values) if values.ndim == 0 else np.array(values)


class Recorder:
    """Keeps every ``every``-th step as a row of the history."""

    COLUMNS = (
        "step",
        "forwards",
        "backwards",
        "seconds",
        "objective",
        "stationarity",
        "feasibility",
        "slackness",
        "kkt",
    )

    def __init__(self, every: int = 1, before: History | None = None) -> None:
        self.every = every
        self._rows: list[tuple[Any, ...]] = list(zip(*before.values(), strict=True)) if before else []

    def __call__(self, progress: Progress) -> None:
        probe = progress.state.probe
        if probe is None or progress.step % self.every:
            return
        absolute, relative = progress.absolute(), progress.residuals
        assert absolute is not None
        assert relative is not None
        self._rows.append(
            (
                progress.step,
                progress.forwards,
                progress.backwards,
                progress.seconds,
                _scalar(probe.objective),
                *(_scalar(r) for r in absolute),
                _scalar(relative.worst),
            )
        )

    def history(self) -> History:
        """Return what was kept as columns."""
        if not self._rows:
            return History()
        columns = zip(*self._rows, strict=True)
        return History({name: np.array(column) for name, column in zip(self.COLUMNS, columns, strict=True)})


def finish(observer: Any) -> None:
    """Tell an observer that the run is over, if it has a method ``finish``."""
    end = getattr(observer, "finish", None)
    if callable(end):
        end()


class ProgressDisplay:
    """One line, rewritten a few times a second, on a terminal and in notebooks; silent elsewhere.

    Args:
        stream: where to write; default standard error.
        interval: seconds between two writes; in a notebook, where each goes to the browser, at least one second.
        force: write even if the stream is neither a terminal nor a notebook's.
    """

    #: Seconds between two writes in a notebook.
    NOTEBOOK_INTERVAL = 1.0

    def __init__(self, stream: TextIO | None = None, interval: float = 0.2, force: bool = False) -> None:
        self._stream = sys.stderr if stream is None else stream
        notebook = _in_notebook(self._stream)
        self._active = force or notebook or self._stream.isatty()
        self._interval, self._next = max(interval, self.NOTEBOOK_INTERVAL) if notebook else interval, 0.0
        self._last: str | None = None

    def __call__(self, progress: Progress) -> None:
        if not self._active:
            return
        now = time.monotonic()
        self._last = (
            f"step {progress.step:>8}  forwards {progress.forwards:>8}  "
            f"relative KKT {progress.kkt:9.2e}  {progress.seconds:8.1f} s"
        )
        if now >= self._next:
            self._next = now + self._interval
            self._write(f"\r{self._last}")

    def finish(self) -> None:
        """Show the last step and end the line."""
        if self._last is not None:
            self._write(f"\r{self._last}\n")
            self._last, self._next = None, 0.0

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _in_notebook(stream: Any) -> bool:
    """Tell whether a stream is the one by which a Jupyter kernel writes into the notebook."""
    return type(stream).__module__.partition(".")[0] == "ipykernel"
