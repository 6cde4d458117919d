"""The dual side of a step: the rule, its state, its calibration, and how new state is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.compiler import is_compiling

from gdpa.base.arrays import to_numpy
from gdpa.torch import calibration
from gdpa.torch.aside import aside, fork, join
from gdpa.torch.memory import FEW, Rows
from gdpa.torch.pooling import Group, mask
from gdpa.torch.roster import Roster
from gdpa.torch.rules.base import (
    LARGEST,
    MOST_STEPS,
    Part,
    Row,
    Rule,
    Scalar,
    Vector,
    advance,
    advance_few,
    advance_rows,
)
from gdpa.torch.staging import Stage

#: `advance_few` serves if at most this share of the constraints is present.
SPARSE = 0.2

Entries = dict[str, Any]


class Dual:
    """Forms new dual states by a rule. The state itself (``entries``) is kept by the optimizer and handed in.

    Args:
        rule: the dual rule.
        roster: the constraints.
        weights: keep the weights of the last step in the state (micro-batches in the stale mode).
        capturable: every entry that changes is a tensor on the device, written in place.
    """

    def __init__(self, rule: Rule, roster: Roster, weights: bool, capturable: bool) -> None:
        self.rule, self.roster, self.capturable = rule, roster, capturable
        self.vectors: dict[str, Vector] = dict(rule.vectors)
        self.scalars: dict[str, Scalar] = {"dual_steps": Scalar(0, high=MOST_STEPS), **rule.scalars()}
        if "ratio" in rule.given:
            self.vectors |= calibration.VECTORS
            self.scalars |= calibration.SCALARS
        if weights and not rule.lagged:
            self.vectors["stale_weights"] = Vector(0.0, -LARGEST)
        self.limit = torch.tensor(roster.limit_sizes, dtype=torch.float64, device="cpu")
        self.measures_everything = False
        #: How many steps the device has skipped; a tensor there once one has run.
        self.skipped: int | torch.Tensor = 0
        self._missing: tuple[torch.Tensor, int, bool] | None = None
        #: The numbers of a handful of constraints in the memory of the CPU; None if there are more.
        self.rows = Rows(rule, roster.limit_sizes) if roster.size <= FEW and not capturable else None
        self._read = (*rule.vectors, *rule.given)
        self._first_equality = roster.size - roster.num_equalities

    def initial(self) -> Entries:
        """Return the entries of the state at the start. Numbers are kept in double precision."""
        roster = self.roster
        entries: Entries = {"constraint_names": list(roster.names or ()), "constraint_order": list(roster.order)}
        for key, vector in self.vectors.items():
            kind = torch.bool if vector.start is False else torch.float64
            entries[key] = torch.full((roster.size,), vector.start, dtype=kind, device="cpu")
        for key, scalar in self.scalars.items():
            moves = self.capturable and key in ("dual_steps", "beta_r")
            entries[key] = torch.zeros((), dtype=torch.float64, device="cpu") if moves else scalar.start
        return entries

    def advance_numbers(
        self, rows: Rows, entries: Entries, values: list[float], present: list[bool] | None
    ) -> tuple[list[Row], Entries, list[float]]:
        """Return (states of the constraints, other changed entries, weights) for a handful of constraints."""
        return advance_rows(self.rule, entries, rows.read(entries), values, present, self._first_equality)

    def advance(
        self, entries: Entries, values: torch.Tensor, present: torch.Tensor | None
    ) -> tuple[Entries, torch.Tensor]:
        """Return (changed entries, weights) for values from `widen`."""
        p = self.roster.num_equalities
        if self.capturable or not values.is_cpu:
            return advance(self.rule, {**entries, "limit": self.limit}, values, present, p)
        view = {**entries, **{key: (self.limit if key == "limit" else entries[key]).numpy() for key in self._read}}
        here = None if present is None else present.numpy()
        sparse = here is not None and np.count_nonzero(here) <= SPARSE * len(here)
        updates, w = (advance_few if sparse else advance)(self.rule, view, values.numpy(), here, p)
        return updates, torch.from_numpy(w)

    @property
    def defers(self) -> bool:
        """Whether `step` applies the rule: its weights are known before, and on the device its kernels run aside."""
        return self.capturable and self.rule.lagged and not is_compiling()

    def weigh(
        self, entries: Entries, values: torch.Tensor, present: torch.Tensor | None
    ) -> tuple[Entries, torch.Tensor]:
        """Return the answer of `advance`; without changed entries if `catch_up` finds them later."""
        if not self.defers:
            return self.advance(entries, values, present)
        weights = entries["multipliers"]
        return {}, weights if present is None else mask(weights, present)

    def catch_up(self, entries: Entries, stage: Stage) -> None:
        """Apply the rule of a stage that left it for `step`, concurrently with the device until `commit`."""
        if stage.later:
            assert not isinstance(stage.present, list)
            fork(stage.values)
            with aside(stage.values):
                stage.updates |= self.advance(entries, stage.values, stage.present)[0]

    def guard(self, stage: Stage, nonfinite: torch.Tensor | None) -> torch.Tensor:
        """Return whether the step is skipped, as a tensor: a value or a gradient is not finite."""
        if nonfinite is not None:
            stage.check = stage.check & (nonfinite == 0).to(stage.check.device)
        fork(stage.check)  # `commit` needs this and no more
        return ~stage.check  # type: ignore[no-any-return]

    def widen(self, entries: Entries, values: torch.Tensor) -> torch.Tensor:
        """Return a copy of ``values`` in the state's precision, with the state moved to their device.

        It is a copy because g may share the memory of a parameter, which the step changes.
        """
        wide = torch.float32 if values.device.type == "mps" else torch.float64  # mps has no double precision
        if entries["multipliers"].device != values.device:
            for key in (*self.vectors, *self.scalars):
                entry = entries[key]
                if isinstance(entry, torch.Tensor):
                    entries[key] = entry.to(values.device, wide if entry.is_floating_point() else None)
            self.limit = self.limit.to(values.device, wide)
        return values.to(wide, copy=True)

    def measures(self, entries: Entries) -> bool:
        """Return whether a gradient ratio is missing (kept until the ratios change), or due to be measured again."""
        ratio, known = entries.get("ratio"), self._missing
        if ratio is None:
            return False
        if known is None or known[0] is not ratio or known[1] != ratio._version:
            known = self._missing = (ratio, ratio._version, bool((ratio == 0).any()))
        return known[2] or (not self.capturable and calibration.due(entries["dual_steps"]))

    def calibrate(
        self,
        entries: Entries,
        f: torch.Tensor,
        g: torch.Tensor,
        values: Any,
        present: Any,
        here: Any,
        groups: list[dict[str, Any]],
        ranks: Group,
    ) -> Entries:
        """Measure gradient ratios that are missing or due again on this batch and return the changed entries.

        Args:
            entries: the dual state.
            f, g: of this rank's samples, with their graph.
            values, present: g over all samples, and which constraints have any (None for all).
            here: which constraints have samples on this rank.
            groups: the parameter groups.
            ranks: who measures together.
        """
        view = {**entries, "limit": self.limit}
        if isinstance(values, torch.Tensor):
            if values.is_cuda and torch.cuda.is_current_stream_capturing():
                return {}  # the host cannot look at g: call `calibrate` before capturing
            values = values.detach().cpu().double().numpy()
            present, here = (None if t is None else t.cpu().numpy() for t in (present, here))
            view = {key: to_numpy(e) if isinstance(e, torch.Tensor) else e for key, e in view.items()}
        which = calibration.candidates(self.roster, view, values, present, self.measures_everything)
        params = [p for group in groups for p in group["params"] if p.requires_grad]
        changes = calibration.measure(self.roster, ranks, view, f, g, values, here, which, params) if which else {}
        if not (self.capturable or self.measures_everything) and calibration.due(entries["dual_steps"]):
            more = calibration.measure_again(self.roster, ranks, view, f, g, values, present, here, params)
            for key, part in more.items():  # of constraints other than the ones `measure` saw
                first = changes.get(key, Part([], []))
                changes[key] = Part([*first.positions, *part.positions], [*first.numbers, *part.numbers])
        return changes

    def settle(self, entries: Entries) -> None:
        """Turn measurements of fewer batches than asked for into ratios."""
        slope_f, slope_g, ratio = (entries[key] for key in ("slope_f", "slope_g", "ratio"))
        known = (ratio == 0) & (slope_f > 0) & (slope_g > 0)
        ratio[known] = (slope_f[known] / slope_g[known]).sqrt()

    def commit(self, entries: Entries, stage: Stage) -> None:
        """Write a stage into the state."""
        if stage.guarded:
            with aside(stage.check):
                self._write(entries, stage)
            join(stage.check)
        else:
            self._write(entries, stage)

    def _write(self, entries: Entries, stage: Stage) -> None:
        if stage.guarded:
            if not isinstance(self.skipped, torch.Tensor):
                self.skipped = torch.zeros((), dtype=torch.int64, device=stage.check.device)
            self.skipped += ~stage.check
        if stage.states is not None and self.rows is not None:
            self.rows.write(stage.states)
        for key, value in stage.updates.items():
            kind = type(value)
            if kind is Part:
                entry = entries[key]
                numbers = torch.as_tensor(value.numbers, dtype=entry.dtype, device=entry.device)
                positions = torch.as_tensor(value.positions, device=entry.device)
                if stage.guarded:
                    numbers = torch.where(stage.check, numbers, entry[positions])
                entry[positions] = numbers
            elif stage.guarded and isinstance(value, torch.Tensor):  # in place: a captured graph reads this memory
                entry = entries[key]
                torch.where(stage.check, value.to(entry.dtype), entry, out=entry)
            else:
                entries[key] = torch.from_numpy(value) if kind is np.ndarray else value
