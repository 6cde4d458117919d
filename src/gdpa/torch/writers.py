"""Where snapshots of a run go: a CSV file, TensorBoard, a logger. ``opt.observe_steps(writer, every=10)`` takes one."""

from __future__ import annotations

import csv
import os
import warnings
from typing import Any

from gdpa.torch.report import Snapshot

#: The numbers of each constraint.
COLUMNS = ("value", "violation", "multiplier")


def scalars(snapshot: Snapshot, prefix: str = "constraints") -> dict[str, float]:
    """Return the numbers of a snapshot by tag, as loggers take them: objective, then the numbers of each constraint.

    >>> import torch, gdpa.torch
    >>> x = torch.nn.Parameter(torch.ones(2))
    >>> opt = gdpa.torch.GDPA([x], constraints=["first"])
    >>> opt.lagrangian(x.sum(), {"first": x[0] - 0.5}).backward()
    >>> opt.step()
    >>> for tag, number in scalars(opt.snapshot()).items():
    ...     print(tag, number)
    constraints/objective 2.0
    constraints/first/value 0.5
    constraints/first/violation 0.5
    constraints/first/multiplier 0.0
    """
    numbers = {f"{prefix}/objective": snapshot.objective}
    for row in snapshot.rows:
        numbers |= {f"{prefix}/{row.name}/{column}": getattr(row, column) for column in COLUMNS}
    return numbers


class CSVWriter:
    """Appends one row per snapshot: step, objective, then value, violation and multiplier of each constraint.

    An existing file is continued, so that a resumed run has one record; a last row that a kill cut short is dropped.
    If a row cannot be written (a full disk), a warning reports it, and training continues.

    Use it as ``opt.observe_steps(CSVWriter("run.csv"))``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path

    def prepare(self, snapshot: Snapshot) -> None:
        """Write the header, or compare it with the file's; `observe_steps` calls it before the first step."""
        header = ["step", "objective", *(f"{row.name} {column}" for row in snapshot.rows for column in COLUMNS)]
        with open(self._path, "a+b") as file:
            file.seek(0)
            found = file.read()
            whole, end, torn = found.rpartition(b"\n")  # a torn row has no end of line
            first = next(csv.reader((whole or torn).decode().splitlines()), [])
            if first != header and (whole or header[: max(len(first) - 1, 0)] != first[:-1]):
                raise ValueError(f"{self._path} has other columns than this run; write to another file")
            file.truncate(len(whole + end))
        if not whole:
            self._write(header)

    def __call__(self, snapshot: Snapshot) -> None:
        try:
            numbers = [getattr(row, column) for row in snapshot.rows for column in COLUMNS]
            self._write([snapshot.step, snapshot.objective, *numbers])
        except OSError as error:
            warnings.warn(f"step {snapshot.step} is missing in {self._path}: {error}", RuntimeWarning, stacklevel=2)

    def _write(self, row: list[Any]) -> None:
        with open(self._path, "a", newline="") as file:
            csv.writer(file).writerow(row)


class TensorBoardWriter:
    """Writes every snapshot to a ``torch.utils.tensorboard.SummaryWriter`` (or anything with ``add_scalar``).

    The tags begin with ``prefix``.
    """

    def __init__(self, writer: Any, prefix: str = "constraints") -> None:
        if not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(f"writer must have add_scalar, as SummaryWriter has, got {writer!r}")
        self._writer, self._prefix = writer, prefix

    def __call__(self, snapshot: Snapshot) -> None:
        for tag, number in scalars(snapshot, self._prefix).items():
            self._writer.add_scalar(tag, number, snapshot.step)
