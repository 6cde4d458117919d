"""The record of a run: reports on its constraints with advice, a picture, and observers (a CSV file, TensorBoard)."""

from __future__ import annotations

import csv
import logging
import math
import os
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gdpa.base.extras import needed_by
from gdpa.torch.dual import DualState
from gdpa.torch.staging import Stage

if TYPE_CHECKING:
    from gdpa.torch.limits import Roster

#: Steps that must be known before their course is judged.
ENOUGH = 50
#: A multiplier oscillates only if it also swings by this share of the largest multiplier, and by this share of the
#: weight at which its gradient is as long as the gradient of f.
LEAST_SWING = 0.01
#: A sentence names at most this many constraints.
MOST_NAMED = 5
#: A violation stays if it falls by less than this share from one half of the window to the other.
STAYS = 0.9
#: A multiplier rises if it grows by at least this share in each half of the window.
RISES = 0.02
#: A limit looks unattainable only if its weighted gradient has this many times the norm of grad f. Without measured
#: gradients the multiplier must have grown by this factor within the window.
OUTWEIGHS = 20.0
#: Rows that a printed report shows: of more constraints, the worst.
SHOWN = 20


@dataclass(frozen=True)
class Row:
    """One constraint.

    Attributes:
        value, limit: the value and its bound (g and 0 without `Limits`). The value of a group that was absent is NaN.
        violation: the positive part of g, |g| for an equality: with `Limits` a share of the limit. NaN if absent.
        size: the size of the limit in units of the violation; infinite if it is not known.
    """

    name: str
    value: float
    limit: float
    violation: float
    multiplier: float
    equality: bool
    size: float = 1.0

    @property
    def absent(self) -> bool:
        """Whether the batches looked at had no sample of the constraint's group."""
        return math.isnan(self.violation)

    def feasible(self, tolerance: float = 0.0) -> bool:
        """Return whether the violation is within ``tolerance``, a share of the size of the limit if that is known.

        False if the constraint was absent.
        """
        return self.violation <= (tolerance * self.size if math.isfinite(self.size) else tolerance)

    @property
    def beyond(self) -> str:
        """The violation in words: a share of the limit in per cent, or a number if the size is not known."""
        if self.absent:
            return "-"
        return f"{100 * self.violation / self.size:.3g} %" if math.isfinite(self.size) else f"{self.violation:.4g}"

    @property
    def active(self) -> bool:
        """Whether the multiplier is not zero, so that the constraint has a part in the gradient."""
        return self.multiplier != 0


@dataclass(frozen=True)
class Snapshot:
    """All constraints at one committed step, as that step's batch showed them."""

    step: int
    objective: float
    rows: tuple[Row, ...]

    @classmethod
    def of(
        cls,
        roster: Roster,
        multipliers: torch.Tensor,
        step: int,
        last: tuple[Any, Any] | None,
        unknown: float = math.nan,
    ) -> Snapshot:
        """Return a snapshot of f and g (``last``, in internal order); ``unknown`` is the violation of a NaN."""
        objective, g = last or (math.nan, [math.nan] * roster.size)
        values = roster.to_user(torch.as_tensor(g, device="cpu")).tolist()
        return cls(step, float(objective), rows_of(roster, values, roster.to_user(multipliers).tolist(), unknown))


def rows_of(
    roster: Roster, values: list[float], multipliers: list[float], unknown: float = math.nan
) -> tuple[Row, ...]:
    """Return the rows of all constraints, from g and multipliers in the user's order."""
    equal, sizes = roster.equal_positions, roster.user_sizes
    rows = []
    for i, g in enumerate(values):
        violation = unknown if g != g else abs(g) if i in equal else max(g, 0.0)
        rows.append(Row(roster.user_name(i), *roster.to_value(i, g), violation, multipliers[i], i in equal, sizes[i]))
    return tuple(rows)


@dataclass(frozen=True)
class Report:
    """The constraints with advice; ``print`` it.

    Attributes:
        snapshot: the rows. In `opt.report()` values are means over the last steps; `certify` judges the whole data.
        skipped: steps skipped for numbers that were not finite.
        tolerance: the violation that still counts as met: a share of the size of the limit, if that is known.
        advice: a sentence for each thing that looks wrong.
        source: the data that the values are taken over, in words.
    """

    snapshot: Snapshot
    skipped: int
    tolerance: float
    advice: tuple[str, ...]
    source: str = "last batch"

    @property
    def feasible(self) -> bool:
        """Whether every constraint was within the tolerance; an absent constraint is not known to be."""
        return all(row.feasible(self.tolerance) for row in self.snapshot.rows)

    def __getitem__(self, name: str) -> Row:
        return {row.name: row for row in self.snapshot.rows}[name]

    def __str__(self) -> str:
        rows = self.snapshot.rows
        shown = rows if len(rows) <= SHOWN else sorted(rows, key=_badness)[:SHOWN]
        wide = max([len(row.name) for row in shown] + [10])
        over = "over limit" if any(math.isfinite(row.size) for row in rows) else "violation"
        head = f"{'constraint':<{wide}}  {'value':>11} {'limit':>11} {over:>11} {'multiplier':>11}  met"
        lines = [f"step {self.snapshot.step}, objective {self.snapshot.objective:.6g} ({self.source})", head]
        for row in shown:
            value = "absent" if row.absent else f"{row.value:.4g}"
            met = "-" if row.absent else "yes" if row.feasible(self.tolerance) else "NO"
            columns = f"{value:>11} {row.limit:>11.4g} {row.beyond:>11} {row.multiplier:>11.4g}"
            lines.append(f"{row.name:<{wide}}  {columns}  {met}")
        if len(rows) > len(shown):
            lines.append(f"The {len(rows) - len(shown)} constraints not shown have smaller violations or none.")
        return "\n".join([*lines, *self.advice, self.verdict])

    @property
    def verdict(self) -> str:
        """How many limits are met, to the tolerance, in words."""
        rows = self.snapshot.rows
        met, absent = sum(row.feasible(self.tolerance) for row in rows), sum(row.absent for row in rows)
        text = f"{met} of {len(rows)} limits met"
        if self.tolerance:
            known = any(math.isfinite(row.size) for row in rows)
            share = f"{100 * self.tolerance:.3g} % of the limit" if known else f"{self.tolerance:g}"
            text += f" (a violation of up to {share} counts as met)"
        return text + (f", {absent} absent" if absent else "")


def _badness(row: Row) -> tuple[bool, float, float]:
    """Return the key that sorts the worst rows first: by violation, then by value."""
    size = row.size if math.isfinite(row.size) else 1.0
    return row.absent, -row.violation / size, -abs(row.multiplier)


def means(g: Any) -> list[float]:
    """Return the mean of each column over the rows that are not NaN; NaN for a column without any."""
    counts = np.count_nonzero(~np.isnan(g), axis=0)
    found: list[float] = np.where(counts > 0, np.nansum(g, axis=0) / np.maximum(counts, 1), math.nan).tolist()
    return found


def diagnose(roster: Roster, g: Any, lam: Any, ratio: Any = None) -> list[tuple[str, str]]:
    """Return (name, sentence) for constraints whose course over the last steps (rows of g and lam) looks wrong.

    ``ratio`` is ||grad f|| / ||grad g_i||, 0 if not measured; None if the rule does not measure it.
    """
    if len(g) < ENOUGH:
        return []
    rows = rows_of(roster, means(g), np.abs(lam[-1]).tolist())
    floor = LEAST_SWING * np.abs(lam).max(initial=0.0)
    stuck, slow, swinging, hopeless = [], [], [], []
    for i, row in enumerate(rows):
        values, mine = g[~np.isnan(g[:, i]), i], lam[:, i]
        half = len(values) // 2
        if half < ENOUGH // 4:
            continue
        if row.equality:
            values, mine = np.sign(values[half:].mean()) * values, np.abs(mine)
        early, late = values[:half].mean(), values[half:].mean()
        start, middle, end = mine[0], mine[len(mine) // 2], mine[-1]
        violated, stays = late > max(2 * values.std() / math.sqrt(half), 0.0), late > STAYS * early > 0
        rises = min(end - middle, middle - start) > RISES * abs(middle)
        enough = OUTWEIGHS * (start if ratio is None else ratio[i])
        weight = floor if ratio is None else max(floor, LEAST_SWING * ratio[i])
        if violated and rises and stays and end > enough > 0:
            hopeless.append(row)
        elif violated and stays and end >= start > 0:
            stuck.append(row)
        elif violated and rises:
            slow.append(row)
        elif _oscillates(values, mine, weight):
            swinging.append(row)
    together, found = stuck + hopeless, list[tuple[str, str]]()
    more = "more steps or a larger dual_rate."
    if len(together) > 1:
        worst = min(together, key=_badness)
        text = (
            f"The limits {_named(together)} pull against each other: all of them stay violated (worst: {worst.name!r}, "
            f"{_over(worst)}) and no multiplier falls. Perhaps no model meets them all: relax some of them, enlarge "
            f"the model, or give it {more}"
        )
        found.append(("", text))
    else:
        slow += stuck
    for row in hopeless[:MOST_NAMED]:
        text = f"{row.name!r} looks unattainable: it stays {_over(row)} while its multiplier rises (now "
        found.append((row.name, text + f"{row.multiplier:.3g}) and outweighs the objective. Check the limit."))
    if len(slow) == 1:
        text = f"{slow[0].name!r} is still {_over(slow[0])} with a multiplier of {slow[0].multiplier:.3g}: "
        found.append((slow[0].name, f"{text}give it {more}"))
    elif slow:
        text = f"{_named(slow)} are still over their limits, and their multipliers are rising: give them {more}"
        found.append(("", text))
    if swinging:
        verb = "oscillates" if len(swinging) == 1 else "oscillate"
        text = f"{_named(swinging)} {verb}: the multiplier swings by half of its size or more. "
        found.append((swinging[0].name, text + "Lower the dual rate (or beta), or the learning rate."))
    return found


def _over(row: Row) -> str:
    return f"{row.beyond} over its limit" if math.isfinite(row.size) else f"violated by {row.beyond}"


def _named(rows: list[Row]) -> str:
    names = ", ".join(repr(row.name) for row in rows[:MOST_NAMED])
    return names + (f" and {len(rows) - MOST_NAMED} more" if len(rows) > MOST_NAMED else "")


def _oscillates(g: Any, lam: Any, floor: float) -> bool:
    swing = lam.max() - lam.min()
    turns = np.count_nonzero(np.diff(np.sign(np.diff(lam))))
    waves = np.count_nonzero(np.diff(np.sign(np.convolve(g, np.ones(5) / 5, mode="valid"))))
    return bool(waves >= 4 and turns >= 4 and swing > max(0.5 * abs(lam.mean()), floor))


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
PANELS = 4
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
            shown = sorted(np.argsort(-recent, kind="stable")[:PANELS].tolist())
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
