"""The record of an optimizer's steps, the observers that it calls (a CSV file, TensorBoard), and a picture of it."""

from __future__ import annotations

import csv
import logging
import os
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gdpa.base.extras import needed_by
from gdpa.torch.dual import DualState
from gdpa.torch.report import Report, Snapshot, diagnose, means, rows_of
from gdpa.torch.staging import Stage

_logger = logging.getLogger("gdpa.torch")

#: Steps that `report` looks back on.
WINDOW = 200
#: Steps after which limits that look unattainable are logged. Looking costs some 300 microseconds.
LOOK_EVERY = 500
#: Steps of the whole run that `plot` shows; of a longer run every second, fourth, ... step is kept.
COURSE = 1000
#: With more constraints than this only the last two steps are kept.
MANY = 1024
#: Limits that a picture shows unless names are given: those with the largest violations and multipliers.
SHOWN = 4
#: Points that the smooth line averages.
SMOOTHED = 20

Observer = Callable[[Snapshot], None]


class Record:
    """The last steps of a run. It is not part of the state: a resumed run starts a new one."""

    def __init__(self, dual: DualState) -> None:
        self._dual, self._roster = dual, dual.roster
        self._steps: deque[tuple[Any, Any]] = deque(maxlen=WINDOW if dual.roster.size <= MANY else 2)
        self._last: tuple[Any, Any] | None = None
        self._observers: list[tuple[Observer, int]] = []
        self._told: set[str] = set()
        self._course: list[tuple[int, Any, Any]] = []
        self._stride = 1

    def observe(self, observer: Observer, every: int) -> None:
        """Call ``observer`` after every ``every``-th committed step."""
        if not callable(observer) or not isinstance(every, int) or every < 1:
            raise ValueError(f"observer must be callable and every a positive integer, got {observer!r}, {every!r}")
        self._observers.append((observer, every))
        if hasattr(observer, "prepare"):
            observer.prepare(self.snapshot())

    def keep(self, stage: Stage) -> None:
        """Remember a committed step."""
        values, updates = stage.batch.values, stage.updates
        self._last = (stage.objective, values)
        if stage.guarded:
            return
        done, multipliers = updates["dual_steps"], self._dual.entries["multipliers"]
        multipliers = multipliers.tolist() if type(values) is list else multipliers.clone()
        self._steps.append((values, multipliers))
        if self._roster.size <= MANY:
            if done % self._stride == 0:
                self._course.append((done, values, multipliers))
                if len(self._course) > COURSE:
                    self._course, self._stride = self._course[1::2], 2 * self._stride
            if done % LOOK_EVERY == 0:
                self._warn_of_unattainable(done)
        for observer, every in self._observers:
            if done % every == 0:
                try:
                    observer(self.snapshot())
                except Exception as error:
                    error.add_note(f"step {done} was taken before the observer raised this: do not repeat it")
                    raise

    def snapshot(self) -> Snapshot:
        """Return the constraints as the last committed step's batch showed them."""
        entries = self._dual.entries
        return Snapshot.of(self._roster, entries["multipliers"], int(entries["dual_steps"]), self._last)

    def report(self, skipped: int, tolerance: float) -> Report:
        """Return the means over the last steps, with advice."""
        snapshot, source, notes = self.snapshot(), "last batch", []
        if snapshot.step == 0:
            notes.append("No step has used the constraints yet: call lagrangian(f, g) before backward and step.")
        if skipped:
            notes.append(f"{skipped} steps were skipped for values or gradients that were not finite.")
        if self._steps:
            g, found = self._look_back()
            rows = rows_of(self._roster, means(g), [row.multiplier for row in snapshot.rows])
            snapshot, source = replace(snapshot, rows=rows), f"constraints: mean of the last {len(g)} batches"
            notes += [note for _, note in found]
        return Report(snapshot, skipped, tolerance, tuple(notes), source)

    def _look_back(self) -> tuple[Any, list[tuple[str, str]]]:
        """Return g of the last steps, one row a step, and the findings of `diagnose`."""
        g, multipliers = map(self._table, zip(*self._steps, strict=True))
        ratio = self._dual.entries.get("ratio")
        ratio = None if ratio is None else self._roster.to_user(ratio).cpu().numpy()
        return g, diagnose(self._roster, g, multipliers, ratio)

    def _table(self, rows: Sequence[Any]) -> Any:
        """Return the numbers of some steps as an array in the user's order."""
        listed = [row if type(row) is list else torch.as_tensor(row, device="cpu").tolist() for row in rows]
        return np.array(listed)[:, np.argsort(self._roster.order)]

    def _warn_of_unattainable(self, step: int) -> None:
        """Log once, while training runs, which limits look unattainable."""
        for name, note in self._look_back()[1]:
            if "unattainable" in note and name not in self._told:
                self._told.add(name)
                _logger.warning("step %d: %s", step, note)

    def plot(self, names: list[str] | None) -> Any:
        """Return a matplotlib figure with one panel for each limit and one for the multipliers."""
        with needed_by("opt.plot()"):
            import matplotlib.pyplot as plt
        if not self._course:
            raise RuntimeError("no step has used the constraints yet; train first, then draw")
        done, *columns = zip(*self._course, strict=True)
        steps, (g, lam), roster = np.array(done), map(self._table, columns), self._roster
        known = [roster.user_name(i) for i in range(roster.size)]
        if names is None:
            last = np.abs(lam[-1])
            recent = np.nan_to_num(g[-SMOOTHED:]).mean(axis=0).clip(0) + last / (last.max() or 1.0)
            shown = sorted(np.argsort(-recent, kind="stable")[:SHOWN].tolist())
        elif unknown := [name for name in names if name not in known]:
            raise KeyError(f"names holds {unknown}, which are not constraints; there are {roster.describe()}")
        else:
            shown = [known.index(name) for name in names]
        panels = len(shown) + 1
        figure, axes = plt.subplots(panels, 1, sharex=True, layout="constrained", figsize=(7, 1.6 * panels + 0.6))
        for color, (i, panel) in enumerate(zip(shown, axes, strict=False)):
            values, limit = roster.to_value(i, g[:, i])
            here = ~np.isnan(values)
            width = min(SMOOTHED, max(int(here.sum()), 1))
            mean = np.convolve(values[here], np.ones(width) / width, mode="valid")
            panel.plot(steps[here], values[here], color=f"C{color}", alpha=0.3, linewidth=0.8)
            panel.plot(steps[here][width - 1 :], mean, color=f"C{color}", label="mean of recent batches")
            panel.axhline(limit, color="black", linestyle="--", linewidth=1, label=f"limit {limit:g}")
            panel.set(ylabel=known[i])
            panel.legend(loc="best", fontsize="small", ncols=2)
            axes[-1].plot(steps, lam[:, i], color=f"C{color}", label=known[i])
        axes[-1].set(xlabel="step", ylabel="multiplier")
        axes[-1].legend(loc="best", fontsize="small")
        return figure


#: The numbers of each constraint.
COLUMNS = ("value", "violation", "multiplier")


def scalars(snapshot: Snapshot, prefix: str = "constraints") -> dict[str, float]:
    """Return the numbers of a snapshot by tag, as loggers take them: objective, then the numbers of each constraint.

    >>> import gdpa.torch
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
