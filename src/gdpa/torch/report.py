"""What to tell about the constraints of a training run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from gdpa.torch.roster import Roster


@dataclass(frozen=True)
class Row:
    """One constraint: its value and limit, the violation (positive part of g, |g| for an equality), its multiplier."""

    name: str
    value: float
    limit: float
    violation: float
    multiplier: float
    equality: bool

    def feasible(self, tolerance: float = 0.0) -> bool:
        """Tell whether the violation is within ``tolerance``."""
        return self.violation <= tolerance

    @property
    def active(self) -> bool:
        """Whether the constraint pushes: its multiplier is not zero."""
        return self.multiplier != 0


@dataclass(frozen=True)
class Snapshot:
    """All constraints at one committed step, as that step's batch showed them."""

    step: int
    objective: float
    rows: tuple[Row, ...]

    @classmethod
    def of(cls, roster: Roster, multipliers: torch.Tensor, step: int, last: tuple[Any, Any] | None) -> Snapshot:
        """Read a snapshot off the optimizer's state; NaN before the first step."""
        m = roster.size
        values = [math.nan] * m if last is None else roster.to_user(torch.as_tensor(last[1])).tolist()
        lam = roster.to_user(multipliers).tolist()
        equal = set(roster.order[m - roster.num_equalities :])
        rows = []
        for i in range(m):
            name = roster.names[i] if roster.names is not None else f"g[{i}]"
            g, limit = values[i], 0.0
            value = g
            if roster.limits is not None:
                value, limit = roster.limits.value(name, g)
            violation = abs(g) if i in equal else (max(g, 0.0) if g == g else math.nan)
            rows.append(Row(name, value, limit, violation, lam[i], i in equal))
        return cls(step, math.nan if last is None else float(last[0]), tuple(rows))


@dataclass(frozen=True)
class Report:
    """A snapshot with advice. Values are those of the last batch: `certify` judges the whole data."""

    snapshot: Snapshot
    skipped: int
    tolerance: float
    advice: tuple[str, ...]

    @property
    def feasible(self) -> bool:
        """Whether every constraint was within the tolerance on the last batch."""
        return all(row.feasible(self.tolerance) for row in self.snapshot.rows)

    def __getitem__(self, name: str) -> Row:
        for row in self.snapshot.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def __str__(self) -> str:
        rows = self.snapshot.rows
        wide = max([len(row.name) for row in rows[:20]] + [10])
        head = (
            f"{'constraint':<{wide}}  {'value':>11} {'limit':>11} {'violation':>11} {'multiplier':>11}  active feasible"
        )
        lines = [f"step {self.snapshot.step}, objective {self.snapshot.objective:.6g} (last batch)", head]
        for row in rows[:20]:
            feasible = "yes" if row.feasible(self.tolerance) else "NO"
            lines.append(
                f"{row.name:<{wide}}  {row.value:>11.4g} {row.limit:>11.4g} {row.violation:>11.4g} "
                f"{row.multiplier:>11.4g}  {'yes' if row.active else 'no':<6} {feasible}"
            )
        if len(rows) > 20:
            lines.append(f"... and {len(rows) - 20} more")
        return "\n".join([*lines, *self.advice])


def make_report(
    snapshot: Snapshot, history: Iterable[tuple[Any, Any]], skipped: int, tolerance: float, advice: list[str]
) -> Report:
    """Return the report of a run, with a sentence for each thing that looks wrong."""
    notes = list(advice)
    if snapshot.step == 0:
        notes.append("No step has used the constraints yet: call lagrangian(f, g) before backward and step.")
    if skipped:
        notes.append(f"{skipped} steps were skipped for values that were not finite.")
    rows = [(np.asarray(g.tolist()), np.asarray(lam.tolist())) for g, lam in history]
    if len(rows) >= 50:
        g, lam = (np.stack(column) for column in zip(*rows, strict=True))
        notes += _diagnose([row.name for row in snapshot.rows], g, lam, {r.name for r in snapshot.rows if r.equality})
    return Report(snapshot, skipped, tolerance, tuple(notes))


def _diagnose(names: list[str], g: Any, lam: Any, equalities: set[str]) -> list[str]:
    """Look at the last steps: g and multipliers, one row a step, one column a constraint."""
    notes = []
    half = len(g) // 2
    for i, name in enumerate(names):
        early, late = g[:half, i].mean(), g[half:, i].mean()
        noise = g[:, i].std() / math.sqrt(half)
        violated = late > 2 * noise and late > 0 if name not in equalities else abs(late) > 2 * noise
        rising = lam[-1, i] > 1.02 * lam[half, i] > 1.02 * 1.02 * lam[0, i]
        if violated and rising and late > 0.9 * early > 0:
            notes.append(
                f"{name!r} looks unattainable: its multiplier grows ({lam[0, i]:.3g} to {lam[-1, i]:.3g}) while its "
                f"violation stays at {late:.3g}. Check the limit, or give it more steps."
            )
            continue
        turns = np.diff(np.sign(np.diff(lam[:, i])))
        swing = lam[:, i].max() - lam[:, i].min()
        waves = np.count_nonzero(np.diff(np.sign(_smooth(g[:, i]))))
        if waves >= 4 and swing > 0.5 * abs(lam[:, i].mean()) > 0 and np.count_nonzero(turns) >= 4:
            notes.append(
                f"{name!r} oscillates: its multiplier swings between {lam[:, i].min():.3g} and {lam[:, i].max():.3g}. "
                "Lower the dual rate (or beta), or the learning rate."
            )
    return notes


def _smooth(values: Any) -> Any:
    return np.convolve(values, np.ones(5) / 5, mode="valid")
