"""The record of an optimizer's steps, the observers that it calls, and a picture of the run."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gdpa.base.extras import needed_by
from gdpa.torch.report import Report, Snapshot, diagnose, means, rows_of
from gdpa.torch.roster import Roster
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

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._steps: deque[tuple[Any, Any]] = deque(maxlen=WINDOW if roster.size <= MANY else 2)
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

    def keep(self, stage: Stage, entries: dict[str, Any], on_device: bool) -> None:
        """Remember a committed step."""
        values = stage.batch.values
        self._last = (stage.objective, values)
        if on_device:
            return
        multipliers = stage.updates.get("rows") or entries["multipliers"].clone()
        self._steps.append((values, multipliers))
        done = entries["dual_steps"]
        if done % self._stride == 0 and self._roster.size <= MANY:
            self._course.append((done, values, multipliers))
            if len(self._course) > COURSE:
                self._course, self._stride = self._course[1::2], 2 * self._stride
        if done % LOOK_EVERY == 0 and self._roster.size <= MANY:
            self._tell(done, entries)
        for observer, every in self._observers:
            if done % every == 0:
                try:
                    observer(self.snapshot(entries))
                except Exception as error:
                    error.add_note(f"step {done} was taken before the observer raised this: do not repeat it")
                    raise

    def snapshot(self, entries: dict[str, Any]) -> Snapshot:
        """Return the constraints as the last committed step's batch showed them."""
        return Snapshot.of(self._roster, entries["multipliers"], int(entries["dual_steps"]), self._last)

    def report(self, entries: dict[str, Any], skipped: int, tolerance: float) -> Report:
        """Return the means over the last steps, with advice."""
        snapshot, source, notes = self.snapshot(entries), "last batch", []
        if snapshot.step == 0:
            notes.append("No step has used the constraints yet: call lagrangian(f, g) before backward and step.")
        if skipped:
            notes.append(f"{skipped} steps were skipped for values or gradients that were not finite.")
        if self._steps:
            g, multipliers = self._recent()
            rows = rows_of(self._roster, means(g), [row.multiplier for row in snapshot.rows])
            snapshot, source = replace(snapshot, rows=rows), f"constraints: mean of the last {len(g)} batches"
            notes += [note for _, note in diagnose(self._roster, g, multipliers, self._ratio(entries))]
        return Report(snapshot, skipped, tolerance, tuple(notes), source)

    def _recent(self) -> tuple[Any, Any]:
        """Return (g, multipliers) of the last steps, one row a step, in the user's order."""
        g, multipliers = zip(*self._steps, strict=True)
        return self._table(g), self._table(multipliers)

    def course(self) -> tuple[Any, Any, Any]:
        """Return (steps, g, multipliers) of at most `COURSE` steps of the whole run, in the user's order."""
        if not self._course:
            raise RuntimeError("no step has used the constraints yet; train first, then draw")
        steps, g, multipliers = zip(*self._course, strict=True)
        return np.array(steps), self._table(g), self._table(multipliers)

    def _table(self, rows: Sequence[Any]) -> Any:
        return np.array([_listed(row) for row in rows])[:, np.argsort(self._roster.order)]

    def _ratio(self, entries: dict[str, Any]) -> Any:
        return self._roster.to_user(entries["ratio"]).cpu().numpy() if "ratio" in entries else None

    def _tell(self, step: int, entries: dict[str, Any]) -> None:
        """Log once, while training runs, which limits look unattainable."""
        g, multipliers = self._recent()
        for name, note in diagnose(self._roster, g, multipliers, self._ratio(entries)):
            if "unattainable" in note and name not in self._told:
                self._told.add(name)
                _logger.warning("step %d: %s", step, note)


def _listed(row: Any) -> list[float]:
    """Return one step's numbers as a list; of states, which begin with the multiplier, the multipliers."""
    if type(row) is not list:
        numbers: list[float] = torch.as_tensor(row, device="cpu").tolist()
        return numbers
    return [entry[0] if type(entry) is tuple else entry for entry in row]


def plot_course(roster: Roster, course: tuple[Any, Any, Any], names: list[str] | None) -> Any:
    """Return a matplotlib figure with one panel for each limit and one for the multipliers; see `Record.course`."""
    with needed_by("opt.plot()"):
        import matplotlib.pyplot as plt
    steps, g, lam = course
    known = [roster.user_name(i) for i in range(roster.size)]
    if names is None:
        recent = np.nan_to_num(g[-SMOOTHED:]).mean(axis=0).clip(0) + np.abs(lam[-1]) / (np.abs(lam[-1]).max() or 1.0)
        shown = sorted(np.argsort(-recent, kind="stable")[:SHOWN].tolist())
    elif unknown := [name for name in names if name not in known]:
        raise KeyError(f"names holds {unknown}, which are not constraints; there are {roster.describe()}")
    else:
        shown = [known.index(name) for name in names]
    figure, axes = plt.subplots(
        len(shown) + 1, 1, sharex=True, layout="constrained", figsize=(7, 1.6 * (len(shown) + 1) + 0.6)
    )
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
