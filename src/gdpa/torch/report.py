"""Reports on the constraints of a training run: a table, and advice."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from gdpa.torch.roster import Roster

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
