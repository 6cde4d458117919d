"""The display of a running experiment: live bars on a terminal, a line per finished unit elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from gdpa.paper.base import Unit
from gdpa.paper.runner import Event


class Display:
    """Shows the progress of an experiment's units. A context manager: the live part ends with it."""

    def __init__(self, title: str, total: int, console: Console) -> None:
        self._title, self._total, self._console = title, total, console
        self._done = self._skipped = 0
        self._tasks: dict[str, TaskID] = {}
        self._live = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Display:
        self._live.start()
        self._all = self._live.add_task(self._title, total=self._total, note="")
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._live.stop()
        if self._skipped:
            self._console.print(f"{self._title}: {self._skipped} of {self._total} units were already recorded")

    def __call__(self, event: Event) -> None:
        unit, kind = event.unit, event.kind
        if kind == "started":
            self._tasks[unit.name] = self._live.add_task(f"  {_label(unit)}", total=1.0, note="")
        elif kind == "progress":
            self._live.update(self._tasks[unit.name], completed=event.fraction, note=event.note)
        else:
            self._settle(event)

    def _settle(self, event: Event) -> None:
        self._done += 1
        self._live.update(self._all, completed=self._done)
        task = self._tasks.pop(event.unit.name, None)
        if task is not None:
            self._live.remove_task(task)
        if event.kind == "skipped":
            self._skipped += 1
            return
        outcome = f"{event.seconds:.1f} s" if event.kind == "finished" else f"FAILED: {event.note}"
        text = f"{self._title}: {self._done}/{self._total} {_label(event.unit)}: {outcome}"
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def _label(unit: Unit) -> str:
    return f"{unit.method}, {unit.setting}, seed {unit.seed}"
