"""What to tell about the constraints of a training run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from gdpa.torch.roster import Roster

#: Steps that must be known before anything is said about their course.
ENOUGH = 50
#: A multiplier oscillates only if it also swings by this share of the largest multiplier ...
LEAST_SWING = 0.01
#: ... and at most this many constraints are named for it.
MOST_NAMED = 5
#: A violation stays if it falls by less than this share from one half of the window to the other.
STAYS = 0.9
#: A multiplier rises if it grows by at least this share in each half of the window.
RISES = 0.02
#: A limit looks unattainable only if its weighted gradient has this many times the norm of that of f. Without measured
#: gradients the multiplier must have grown by this factor within the window.
OUTWEIGHS = 20.0
#: Lines that a printed report shows.
SHOWN = 20


@dataclass(frozen=True)
class Row:
    """One constraint.

    Attributes:
        name: its name.
        value, limit: the value and its bound (g and 0 without `Limits`). The value of a group that was absent is NaN.
        violation: the positive part of g, |g| for an equality: with `Limits` a share of the limit. NaN if absent.
        multiplier: lambda.
        equality: whether it is an equality.
        absent: whether no batch looked at had a sample of it.
    """

    name: str
    value: float
    limit: float
    violation: float
    multiplier: float
    equality: bool

    @property
    def absent(self) -> bool:
        """Whether the batches looked at had no sample of the constraint's group."""
        return math.isnan(self.violation)

    def feasible(self, tolerance: float = 0.0) -> bool:
        """Return whether the violation is within ``tolerance``; False if the constraint was absent."""
        return self.violation <= tolerance

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
        """Return a snapshot of f and g (``last``, in internal order); NaN before the first step.

        ``unknown`` is the violation of a g that is NaN: NaN if that declares an absent group, else infinite.
        """
        m = roster.size
        values = [math.nan] * m if last is None else roster.to_user(torch.as_tensor(last[1], device="cpu")).tolist()
        rows = _rows(roster, values, roster.to_user(multipliers).tolist(), unknown)
        return cls(step, math.nan if last is None else float(last[0]), rows)


def _rows(roster: Roster, values: list[float], multipliers: list[float], unknown: float = math.nan) -> tuple[Row, ...]:
    """Return the rows of all constraints, from g and multipliers in the user's order."""
    equal = roster.equal_positions
    rows = []
    for i, g in enumerate(values):
        name, value, limit = roster.user_name(i), g, 0.0
        if roster.limits is not None:
            value, limit = roster.limits.value(name, g)
        violation = unknown if g != g else abs(g) if i in equal else max(g, 0.0)
        rows.append(Row(name, value, limit, violation, multipliers[i], i in equal))
    return tuple(rows)


@dataclass(frozen=True)
class Report:
    """The constraints with advice; ``print`` it.

    Attributes:
        snapshot: the rows. In `opt.report()` values are means over the last ``window`` steps; `certify` judges the
            whole data.
        skipped: steps skipped for numbers that were not finite.
        tolerance: what counts as feasible.
        advice: a sentence for each thing that looks wrong.
        source: what the values are taken over, in words.
        relative: violations are shares of the limits.
    """

    snapshot: Snapshot
    skipped: int
    tolerance: float
    advice: tuple[str, ...]
    source: str = "last batch"
    relative: bool = False

    @property
    def feasible(self) -> bool:
        """Whether every constraint was within the tolerance; an absent constraint is not known to be."""
        return all(row.feasible(self.tolerance) for row in self.snapshot.rows)

    def __getitem__(self, name: str) -> Row:
        for row in self.snapshot.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def __str__(self) -> str:
        rows = self.snapshot.rows
        wide = max([len(row.name) for row in rows[:SHOWN]] + [10])
        over = "over limit" if self.relative else "violation"
        head = f"{'constraint':<{wide}}  {'value':>11} {'limit':>11} {over:>11} {'multiplier':>11}  met"
        lines = [f"step {self.snapshot.step}, objective {self.snapshot.objective:.6g} ({self.source})", head]
        for row in rows[:SHOWN]:
            if row.absent:
                seen = f"{'absent':>11} {row.limit:>11.4g} {'-':>11}"
            else:
                beyond = f"{100 * row.violation:.3g} %" if self.relative else f"{row.violation:.4g}"
                seen = f"{row.value:>11.4g} {row.limit:>11.4g} {beyond:>11}"
            met = "-" if row.absent else "yes" if row.feasible(self.tolerance) else "NO"
            lines.append(f"{row.name:<{wide}}  {seen} {row.multiplier:>11.4g}  {met}")
        if len(rows) > SHOWN:
            lines.append(f"... and {len(rows) - SHOWN} more")
        return "\n".join([*lines, *self.advice])


def make_report(
    roster: Roster, snapshot: Snapshot, recent: tuple[Any, Any] | None, ratio: Any, skipped: int, tolerance: float
) -> Report:
    """Return the report of a run, from (g, multipliers) of its last steps, one row a step, one column a constraint."""
    notes, window = [], 0
    if snapshot.step == 0:
        notes.append("No step has used the constraints yet: call lagrangian(f, g) before backward and step.")
    if skipped:
        notes.append(f"{skipped} steps were skipped for values or gradients that were not finite.")
    if recent is not None:
        g, window = recent[0], len(recent[0])
        seen = ~np.isnan(g)
        counts = seen.sum(axis=0)
        means = np.where(seen, g, 0.0).sum(axis=0) / np.maximum(counts, 1)
        means = np.where(counts > 0, means, math.nan).tolist()
        snapshot = replace(snapshot, rows=_rows(roster, means, [row.multiplier for row in snapshot.rows]))
        notes += [note for _, note in diagnose(roster, *recent, ratio)]
    source = f"constraints: mean of the last {window} batches" if window else "last batch"
    return Report(snapshot, skipped, tolerance, tuple(notes), source, roster.limits is not None)


def diagnose(roster: Roster, g: Any, lam: Any, ratio: Any = None) -> list[tuple[str, str]]:
    """Return (name, sentence) for constraints whose course over the last steps looks wrong.

    Args:
        roster: the constraints.
        g, lam: values and multipliers, one row a step, one column a constraint.
        ratio: ||grad f|| / ||grad g_i||, 0 if not measured; None if the rule does not measure it.
    """
    found: list[tuple[str, str]] = []
    if len(g) < ENOUGH:
        return found
    equal = roster.equal_positions
    swinging, floor = [], LEAST_SWING * np.abs(lam).max(initial=0.0)
    for i in range(g.shape[1]):
        name, present = roster.user_name(i), ~np.isnan(g[:, i])
        values, mine = g[present, i], lam[:, i]
        half = len(values) // 2
        if half < ENOUGH // 4:
            continue
        if i in equal:
            values, mine = np.sign(values[half:].mean()) * values, np.abs(mine)
        early, late = values[:half].mean(), values[half:].mean()
        violated = late > max(2 * values.std() / math.sqrt(half), 0.0)
        start, middle, end = mine[0], mine[len(mine) // 2], mine[-1]
        rises = violated and min(end - middle, middle - start) > RISES * abs(middle)
        enough = OUTWEIGHS * (start if ratio is None else ratio[i])
        said = _limit_note(name, roster, late, late > STAYS * early > 0 and end > enough > 0, end) if rises else ""
        if said:
            found.append((name, said))
        elif _oscillates(values, mine, floor):
            swinging.append((name, mine))
    for name, mine in swinging[:MOST_NAMED]:
        text = (
            f"{name!r} oscillates: its multiplier swings between {mine.min():.3g} and {mine.max():.3g}. "
            "Lower the dual rate (or beta), or the learning rate."
        )
        found.append((name, text))
    if len(swinging) > MOST_NAMED:
        found.append(("", f"{len(swinging) - MOST_NAMED} more multipliers oscillate."))
    return found


def _limit_note(name: str, roster: Roster, late: float, hopeless: bool, multiplier: float) -> str:
    """Return what to say of a violation that stays while its multiplier rises."""
    beyond = f"{100 * late:.3g} % over its limit" if roster.limits is not None else f"violated by {late:.3g}"
    if hopeless:
        return (
            f"{name!r} looks unattainable: it stays {beyond} while its multiplier rises (now {multiplier:.3g}) and "
            "outweighs the objective. Check the limit."
        )
    return (
        f"{name!r} is still {beyond} and its multiplier is still rising (now {multiplier:.3g}): "
        "give it more steps or a larger dual_rate."
    )


def _oscillates(g: Any, lam: Any, floor: float) -> bool:
    swing = lam.max() - lam.min()
    turns = np.count_nonzero(np.diff(np.sign(np.diff(lam))))
    waves = np.count_nonzero(np.diff(np.sign(np.convolve(g, np.ones(5) / 5, mode="valid"))))
    return bool(waves >= 4 and turns >= 4 and swing > max(0.5 * abs(lam.mean()), floor))
