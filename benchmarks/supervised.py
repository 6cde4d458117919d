"""One run in a process of its own, so that a solver deep in its own algebra can be ended on time."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

Row = dict[str, Any]


def supervised(context: Any, target: Callable[..., None], arguments: tuple[Any, ...], silence: float) -> Row:
    """Run ``target(pipe, *arguments)`` in a process; return what it sent, later entries over earlier ones.

    Args:
        context: of `multiprocessing`: how processes are started.
        target: sends dictionaries over the pipe and closes it at the end.
        arguments: for the target.
        silence: a process is ended if it sends nothing for this many seconds; what it sent before is kept.
    """
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(there, *arguments), daemon=True)
    process.start()
    there.close()
    row: Row = {"ended": "ended from outside"}
    try:
        while here.poll(silence):
            row.update(here.recv())
    except EOFError:  # it has ended, or is about to
        process.join(silence)
    if process.is_alive():
        process.kill()
    process.join()
    here.close()
    if len(row) == 1 and process.exitcode == 1:  # no solver's fault
        raise RuntimeError(f"the process died before its run began, arguments {arguments!r}; it printed why")
    return row


__all__ = ["Connection", "Row", "supervised"]
