"""Observers: called after every step with the progress of the run; they look and never touch."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from gdpa.base.arrays import largest, max_norm
from gdpa.base.checks import is_number
from gdpa.run.progress import Progress


def read_disp(disp: Any) -> tuple[Callable[[Progress], None], ...]:
    """Return the observers that ``disp`` of `gdpa.solve` asks for."""
    if isinstance(disp, str) and disp not in ("lines", "bar"):
        raise ValueError(f"disp must be True, False, 'lines' or 'bar', got {disp!r}")
    bar = disp == "bar" or (disp != "lines" and _in_notebook(sys.stdout))
    return (ProgressDisplay(force=True) if bar else IterationLines(),)


class IterationLines:
    """A line for every accepted point, as IPOPT prints them; a heading every `HEADING` lines.

    The columns: the step; f; the violation and the stationarity, relative as the tolerance is; the penalty beta, if the
    method has one; the largest change of a coordinate since the line before; forward and backward passes.

    Args:
        stream: where to write; default standard output.
    """

    #: Lines between two headings.
    HEADING = 20
    COLUMNS = ("step", "objective", "violation", "stationarity", "penalty", "length", "forwards", "backwards")

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._lines, self._x = 0, None

    def __call__(self, progress: Progress) -> None:
        probe, residuals = progress.state.probe, progress.residuals
        if probe is None or residuals is None:  # a trial was refused
            return
        if self._lines % self.HEADING == 0:
            step, *names = self.COLUMNS
            wide = " ".join(f"{name:>12}" for name in names[1:5])
            print(f"{step:>6} {names[0]:>15} {wide} forwards backwards", file=self._stream)
        self._lines += 1
        before = progress.start.x if self._x is None else self._x
        self._x = probe.x
        numbers = (residuals.feasibility, residuals.stationarity, _penalty(progress), max_norm(probe.x - before))
        shown = " ".join(f"{'-':>12}" if value is None else f"{largest(value):12.2e}" for value in numbers)
        counts = f"{progress.forwards:8} {progress.backwards:9}  {progress.oracle.job.note()}".rstrip()
        print(f"{progress.step:6} {largest(probe.objective):15.7e} {shown} {counts}", file=self._stream, flush=True)

    def finish(self) -> None:
        """Begin the next run with a heading."""
        self._lines, self._x = 0, None


def _penalty(progress: Progress) -> float | None:
    """Return beta: of the F_beta in the method's state, or of the method's schedule; None if it has none."""
    beta: Any = getattr(getattr(progress.state, "lagrangian", progress.algorithm), "beta", None)
    beta = beta(progress.step) if callable(beta) else beta
    return float(beta) if is_number(beta) else None


class ProgressDisplay:
    """One line with a bar, rewritten a few times a second, on a terminal and in notebooks; silent elsewhere.

    The bar shows the digits gained: how far log(relative KKT) has come from its first value to the tolerance.

    Args:
        stream: where to write; default standard error.
        interval: seconds between two writes; in a notebook, where each goes to the browser, at least one second.
        force: write even if the stream is neither a terminal nor a notebook's.
    """

    #: Seconds between two writes in a notebook.
    NOTEBOOK_INTERVAL = 1.0
    #: Characters of the bar.
    WIDTH = 20

    def __init__(self, stream: TextIO | None = None, interval: float = 0.2, force: bool = False) -> None:
        self._stream = sys.stderr if stream is None else stream
        notebook = _in_notebook(self._stream)
        self._active = force or notebook or self._stream.isatty()
        self._interval, self._next = max(interval, self.NOTEBOOK_INTERVAL) if notebook else interval, 0.0
        self._last: str | None = None
        self._first, self._least = math.nan, math.inf

    def __call__(self, progress: Progress) -> None:
        if not self._active:
            return
        now = time.monotonic()
        self._last = (
            f"step {progress.step:>8}  forwards {progress.forwards:>8}  "
            f"relative KKT {progress.kkt:9.2e}  {self._bar(progress)}  {progress.seconds:8.1f} s"
            f"  {progress.oracle.job.note()}".rstrip()
        )
        if now >= self._next:
            self._next = now + self._interval
            print(f"\r{self._last}", end="", file=self._stream, flush=True)

    def finish(self) -> None:
        """Show the last step and end the line."""
        if self._last is not None:
            print(f"\r{self._last}", file=self._stream, flush=True)
            self._last, self._next = None, 0.0
        self._first, self._least = math.nan, math.inf

    def _bar(self, progress: Progress) -> str:
        if math.isfinite(progress.kkt):
            self._first = progress.kkt if self._first != self._first else self._first
            self._least = min(self._least, progress.kkt)
        share = 0.0
        if self._least <= progress.tolerance:
            share = 1.0
        elif self._least < self._first:
            share = math.log(self._first / self._least) / math.log(self._first / progress.tolerance)
        full = int(share * self.WIDTH)
        return f"[{'#' * full}{'.' * (self.WIDTH - full)}]"


def _in_notebook(stream: Any) -> bool:
    """Return whether a stream is the one by which a Jupyter kernel writes into the notebook."""
    return type(stream).__module__.partition(".")[0] == "ipykernel"
