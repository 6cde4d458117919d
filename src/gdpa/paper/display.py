"""The display of a running experiment: live bars on a terminal, a line per finished unit elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from gdpa.paper.base import Unit
from gdpa.paper.runner import Event, Listener


@contextmanager
def display(title: str, total: int, console: Console) -> Iterator[Listener]:
    """Give a listener that shows the progress of an experiment's units; the live part ends with the block."""
    columns = (BarColumn(bar_width=24), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn())
    described = (TextColumn("{task.description}"), *columns, TextColumn("{task.fields[note]}"))
    tasks: dict[str, TaskID] = {}
    skipped: list[Unit] = []
    with Progress(*described, console=console, transient=True, disable=not console.is_terminal) as live:
        whole = live.add_task(title, total=total, note="")

        def listen(event: Event) -> None:
            unit = event.unit
            named = f"{unit.method}, {unit.setting}, seed {unit.seed}"
            if event.kind == "started":
                tasks[unit.name] = live.add_task(f"  {named}", total=1.0, note="")
            elif event.kind == "progress":
                live.update(tasks[unit.name], completed=event.fraction, note=event.note)
            else:
                live.advance(whole)
                if unit.name in tasks:
                    live.remove_task(tasks.pop(unit.name))
                if event.kind == "skipped":
                    skipped.append(unit)
                    return
                outcome = f"{event.seconds:.1f} s" if event.kind == "finished" else f"FAILED: {event.note}"
                text = f"{title}: {live.tasks[whole].completed:.0f}/{total} {named}: {outcome}"
                console.print(text, highlight=False, markup=False, soft_wrap=True)

        yield listen
    if skipped:
        console.print(f"{title}: {len(skipped)} of {total} units were already recorded")
