"""Runs units of work, one process each, and reports events to a listener."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from gdpa.paper import EXPERIMENTS, get
from gdpa.paper.base import ExperimentError, Unit
from gdpa.paper.provenance import about
from gdpa.paper.records import Columns, Folder

#: Seconds between two notes on a unit's progress.
INTERVAL = 0.1


class Event(NamedTuple):
    """An event of a unit: "started", "progress", "finished", "skipped" or "failed".

    ``note`` is the progress in words, or the error; ``error`` is the one that ends the whole run.
    """

    kind: str
    unit: Unit
    fraction: float = 0.0
    note: str = ""
    seconds: float = 0.0
    error: ExperimentError | None = None


Listener = Callable[[Event], None]


def run_units(
    folder: Folder, units: Sequence[Unit], listen: Listener, *, jobs: int = 1, fresh: bool = False
) -> list[Unit]:
    """Run the units that have no record yet (``fresh``: all) and return those that failed.

    The caller holds the lock of the folder. ``listen`` gets every `Event`, in this process. One job runs the units in
    this process, more run each in a process of one thread.

    Raises:
        ExperimentError: an error that no other unit will escape either (the output folder is full, data are missing).
        KeyboardInterrupt: on Ctrl-C, and `Terminated` on SIGTERM; the units cut off leave no record.
    """
    todo: list[Unit] = []
    failed: list[Unit] = []
    if fresh:
        folder.forget(units)
    for unit in units:
        if folder.finished(unit):
            listen(Event("skipped", unit, 1.0))
        else:
            todo.append(unit)

    def note(event: Event) -> None:
        if event.kind == "failed":
            failed.append(event.unit)
        listen(event)
        if event.error is not None:
            raise event.error

    for reads_another in (False, True):  # first the units that others read
        wave = []
        for unit in (unit for unit in todo if (unit.after is not None) == reads_another):
            if unit.after is None or folder.finished(unit.after):
                wave.append(unit)
            else:
                note(Event("failed", unit, note=f"it requires the record {unit.after.name}, which does not exist"))
        if jobs > 1 and wave:
            _run_processes(folder, wave, note, jobs)
        elif jobs == 1:
            for unit in wave:
                _run_one(folder, unit, note)
    return failed


class _Log:
    """The log of a unit: rows go to its record, by column, progress to the listener."""

    def __init__(self, folder: Folder, unit: Unit, emit: Listener) -> None:
        self._folder, self._unit, self._emit, self._next = folder, unit, emit, 0.0
        self.columns: Columns = {}

    def row(self, **columns: float | int | str) -> None:
        if not self.columns:
            self.columns = {name: [] for name in columns}
        elif tuple(columns) != tuple(self.columns):
            raise ValueError(f"a row has the columns {tuple(columns)}, the rows before have {tuple(self.columns)}")
        for name, value in columns.items():
            self.columns[name].append(value)

    def progress(self, fraction: float, note: str = "") -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + INTERVAL
            self._emit(Event("progress", self._unit, min(max(fraction, 0.0), 1.0), note))

    def summary(self, unit: Unit) -> Mapping[str, Any]:
        return self._folder.summary(unit)


def _run_one(folder: Folder, unit: Unit, emit: Listener) -> None:
    emit(Event("started", unit))
    clock = time.perf_counter()
    complaint = folder.complaint(unit)
    try:
        log = _Log(folder, unit, emit)
        with interruptible():
            summary = get(unit.experiment).run(unit, log)
        seconds = time.perf_counter() - clock
        origin = {"seconds": round(seconds, 3), **about(folder.command)}
        folder.finish(unit, summary, log.columns, origin)
        complaint.unlink(missing_ok=True)
        with suppress(OSError):  # other complaints are still there
            complaint.parent.rmdir()
    except ExperimentError as error:
        emit(Event("failed", unit, note=str(error), error=error))
    except Exception as error:
        text = traceback.format_exc()
        folder.write_text(complaint.relative_to(folder.path), text)
        emit(Event("failed", unit, note=f"{type(error).__name__}: {error}; see {complaint}"))
    else:
        emit(Event("finished", unit, 1.0, seconds=seconds))


def _run_processes(folder: Folder, units: Sequence[Unit], note: Listener, jobs: int) -> None:
    """Run each unit in its own process, so that a crash or a lack of memory ends one unit alone."""
    context: Any = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
    if sys.platform != "win32":
        context.set_forkserver_preload(sorted({EXPERIMENTS[unit.experiment].partition(":")[0] for unit in units}))
    waiting = deque(units)
    running: dict[Any, tuple[Any, Unit]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                unit = waiting.popleft()
                receive, send = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(folder.path, folder.command, unit, send))
                process.start()
                send.close()
                running[receive] = process, unit
            ready: list[Any] = wait(list(running))
            for connection in ready:
                process, unit = running[connection]
                try:
                    event: Event = connection.recv()
                except EOFError:
                    process.join()
                    event = Event("failed", unit, note=f"its process ended with exit code {process.exitcode}")
                if event.kind in ("finished", "failed"):
                    process.join()
                    del running[connection]
                note(event)
    finally:
        for process, _ in running.values():
            process.kill()
            process.join()


def _work(path: Path, command: str, unit: Unit, send: Any) -> None:  # pragma: no cover - another process
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach the whole group; the parent decides
        signal.signal(number, signal.SIG_IGN)
    parent: Any = multiprocessing.parent_process()

    def die_with_parent() -> None:  # which, if killed, no longer holds the folder
        parent.join()
        os._exit(1)

    threading.Thread(target=die_with_parent, daemon=True).start()
    if "torch" in sys.modules:  # units side by side share the cores: one thread each, on every machine
        sys.modules["torch"].set_num_threads(1)
    _run_one(Folder(path, command), unit, send.send)


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised as Ctrl-C is."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C and `Terminated` on SIGTERM, at the end of the block if code inside hid it.

    `gdpa.solve` answers Ctrl-C with a partial result; a unit cut short must not pass for a finished one. Ignored
    signals stay ignored.
    """
    kinds = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}
    came: list[type[KeyboardInterrupt]] = []

    def handler(number: int, frame: Any) -> None:
        came.append(kinds[signal.Signals(number)])
        raise came[-1]

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        heeded = [number for number in kinds if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, now in before.items():
            signal.signal(number, now)
    if came:
        raise came[0]
