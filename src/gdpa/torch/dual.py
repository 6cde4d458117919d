"""The dual side of a step: a rule, its state and its calibration; how the state is written, saved and loaded."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.compiler import is_compiling

from gdpa.base.arrays import to_numpy
from gdpa.base.checks import is_number
from gdpa.torch import calibration
from gdpa.torch.aside import aside, fork, join
from gdpa.torch.memory import FEW, Rows
from gdpa.torch.pooling import Group, mask
from gdpa.torch.roster import Roster
from gdpa.torch.rules.base import (
    LARGEST,
    MOST_STEPS,
    Part,
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

#: Up to this many constraints the dual state is in ``param_groups[0]``, which every checkpoint format saves.
#: Above, it is kept apart: the flat form of distributed checkpoints repeats a group's entries for every parameter.
LIMIT = 1024

_KEY = "gdpa"

AWAITED = (
    "the loaded checkpoint holds no multipliers: those of {} constraints are kept in opt.dual_state; save and load it "
    "beside the optimizer"
)

Entries = dict[str, Any]


#: Among the changes of a stage: the numbers of each of a handful of constraints, see `Rows`.
ROWS = "rows"


class Batch(NamedTuple):
    """The constraints of one call, in internal order.

    Attributes:
        values: g without gradient, NaN if absent: of a handful of constraints on the CPU a list of floats, else a
            tensor in the precision of the state.
        present: which constraints have samples, a list or a tensor; None for all.
    """

    values: Any
    present: Any


class DualState:
    """The multipliers and the other numbers of a rule, by name: ``entries``.

    Up to `LIMIT` constraints they are entries of the optimizer's first parameter group, above they are kept apart. As a
    ``Stateful`` it saves and loads the entries beside the optimizer, e.g. ``dcp.save({"duals": opt.dual_state})``:
    copied both ways, matched by constraint name, checked by value.

    Args:
        owner: the optimizer that has the parameter groups.
        rule: the dual rule.
        roster: the constraints.
        weights: keep the weights of the last step in the state (micro-batches in the stale mode).
        capturable: every entry that changes is a tensor on the device, written in place.
    """

    def __init__(
        self, owner: torch.optim.Optimizer, rule: Rule, roster: Roster, weights: bool, capturable: bool
    ) -> None:
        self._owner, self.rule, self.roster, self.capturable = owner, rule, roster, capturable
        self._apart: Entries | None = None
        #: A checkpoint was loaded that did not hold the entries that are kept apart.
        self.awaited = False
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

    @property
    def entries(self) -> Entries:
        """The state: numbers and tensors by name."""
        return self._owner.param_groups[0] if self._apart is None else self._apart

    def install(self) -> None:
        """Put the initial entries in their place; call after the parameter groups are built."""
        initial = self._initial()
        self.keys = tuple(initial)
        if self.roster.size <= LIMIT:
            self._owner.param_groups[0].update(initial)
        else:
            self._apart = initial

    def _initial(self) -> Entries:
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

    def read(self, vector: torch.Tensor, counts: Any, nan_is_absent: bool) -> Batch:
        """Return the values of a call without their graph, and which of them have samples.

        Args:
            vector: g in internal order.
            counts: as for ``lagrangian``.
            nan_is_absent: whether NaN declares an absent group.
        """
        if self.rows is not None and vector.is_cpu:
            values = vector.tolist()
            here = None if counts is None else [count > 0 for count in self.roster.counts(counts)]
            if nan_is_absent:
                here = [value == value and (here is None or here[i]) for i, value in enumerate(values)]
            if here is None or all(here):
                return Batch(values, None)
            return Batch([value if there else math.nan for value, there in zip(values, here, strict=True)], here)
        seen = vector.detach()
        present = None if counts is None else self.roster.count_tensor(counts, seen) > 0
        if nan_is_absent:
            present = seen == seen if present is None else present & (seen == seen)
        return Batch(self.widen(seen if present is None else torch.where(present, seen, math.nan)), present)

    def weigh(self, batch: Batch, dtype: torch.dtype) -> tuple[Entries, torch.Tensor]:
        """Return (changed entries, weights); without changed entries if `catch_up` finds them later."""
        entries, rows = self.entries, self.rows
        if rows is not None and type(batch.values) is list:
            read = rows.read(entries)
            states, updates, weights = advance_rows(self.rule, entries, read, *batch, self._first_equality)
            return {**updates, ROWS: states}, rows.weights(weights, dtype)
        if self.defers:
            lagged = entries["multipliers"]
            return {}, (lagged if batch.present is None else mask(lagged, batch.present)).to(dtype)
        updates, w = self.advance(*batch)
        return updates, w.to(dtype)

    def advance(self, values: torch.Tensor, present: torch.Tensor | None) -> tuple[Entries, torch.Tensor]:
        """Return (changed entries, weights) for values from `widen`."""
        p, entries = self.roster.num_equalities, self.entries
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

    def catch_up(self, stage: Stage) -> None:
        """Apply the rule of a stage that left it for `step`, parallel to the kernels on the device until `commit`."""
        assert not isinstance(stage.present, list)
        fork(stage.values)
        with aside(stage.values):
            stage.updates |= self.advance(stage.values, stage.present)[0]

    def guard(self, stage: Stage, nonfinite: torch.Tensor | None) -> torch.Tensor:
        """Return whether the step is skipped, as a tensor: a value or a gradient is not finite."""
        if nonfinite is not None:
            stage.check = stage.check & (nonfinite == 0).to(stage.check.device)
        fork(stage.check)  # `commit` needs this and no more
        return ~stage.check  # type: ignore[no-any-return]

    def widen(self, values: torch.Tensor) -> torch.Tensor:
        """Return a copy of ``values`` in the state's precision, with the state moved to their device.

        It is a copy because g may share the memory of a parameter, which the step changes.
        """
        entries = self.entries
        wide = torch.float32 if values.device.type == "mps" else torch.float64  # mps has no double precision
        if entries["multipliers"].device != values.device:
            for key in (*self.vectors, *self.scalars):
                entry = entries[key]
                if isinstance(entry, torch.Tensor):
                    entries[key] = entry.to(values.device, wide if entry.is_floating_point() else None)
            self.limit = self.limit.to(values.device, wide)
        return values.to(wide, copy=True)

    def measures(self) -> bool:
        """Return whether a gradient ratio is missing (kept until the ratios change), or due to be measured again."""
        entries = self.entries
        ratio, known = entries.get("ratio"), self._missing
        if ratio is None:
            return False
        if known is None or known[0] is not ratio or known[1] != ratio._version:
            known = self._missing = (ratio, ratio._version, bool((ratio == 0).any()))
        return known[2] or (not self.capturable and calibration.due(entries["dual_steps"]))

    def calibrate(
        self,
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
            f, g: of this rank's samples, with their graph.
            values, present: g over all samples, and which constraints have any (None for all).
            here: which constraints have samples on this rank.
            groups: the parameter groups.
            ranks: who measures together.
        """
        entries = self.entries
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

    def settle(self) -> None:
        """Turn measurements of fewer batches than asked for into ratios."""
        entries = self.entries
        slope_f, slope_g, ratio = (entries[key] for key in ("slope_f", "slope_g", "ratio"))
        known = (ratio == 0) & (slope_f > 0) & (slope_g > 0)
        ratio[known] = (slope_f[known] / slope_g[known]).sqrt()

    def commit_aside(self, stage: Stage) -> None:
        """Do as `commit` does on the second stream of the device, and let everything after wait for it."""
        with aside(stage.check):
            self.commit(stage)
        join(stage.check)

    def commit(self, stage: Stage) -> None:
        """Write the changes of a stage into the state."""
        entries = self.entries
        if stage.guarded:
            if not isinstance(self.skipped, torch.Tensor):
                self.skipped = torch.zeros((), dtype=torch.int64, device=stage.check.device)
            self.skipped += ~stage.check
        for key, value in stage.updates.items():
            kind = type(value)
            if key == ROWS:
                self.rows.write(value)  # type: ignore[union-attr]
            elif kind is Part:
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

    # Saving and loading.

    def state_dict(self) -> Entries:
        """Return copies of the entries."""
        return {key: _copy(self.entries[key]) for key in self.keys}

    def load_state_dict(self, state_dict: Entries) -> None:
        """Load entries from `state_dict`, by the names of the constraints."""
        self.entries.update(self._fit(state_dict))
        self.awaited = False

    def save(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return the optimizer's ``state_dict`` with copies of the entries in it."""
        if self._apart is not None:
            return {**state_dict, _KEY: self.state_dict()}
        first = {key: _copy(value) for key, value in state_dict["param_groups"][0].items()}
        return {**state_dict, "param_groups": [first, *state_dict["param_groups"][1:]]}

    def check(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return ``state_dict`` with the entries in our order; raise before anything changes if they do not fit."""
        # torch would share the tensors of the base optimizer's state with whoever saved them.
        state = state_dict["state"].items()
        own = {key: {k: _copy(v) for k, v in s.items()} if isinstance(s, dict) else s for key, s in state}
        groups = list(state_dict["param_groups"])
        for group in groups:
            if "lr" in group:
                _check_scalar("lr", Scalar(0.0), group["lr"])
        if self._apart is None:
            groups[0] = {**groups[0], **self._fit(groups[0])}
        checked = {**state_dict, "state": own, "param_groups": groups}
        if self._apart is not None and _KEY in state_dict:
            checked[_KEY] = self._fit(state_dict[_KEY])
        return checked

    def restore(self, state_dict: dict[str, Any]) -> None:
        """Finish loading; a distributed checkpoint carries groups and states alone."""
        if self._apart is not None:
            self._apart = state_dict.get(_KEY, self._apart)
            self.awaited = _KEY not in state_dict

    def _fit(self, saved: Entries) -> Entries:
        """Return copies of the dual entries of ``saved``, reordered to our constraints."""
        if "turns" in self.keys and "seen" in saved:
            saved = {"turns": torch.zeros_like(saved["seen"]), **saved}  # a state of 0.1.0
        missing = [key for key in self.keys if key not in saved]
        if missing:
            raise ValueError(
                f"the state has no {missing}: it was not saved by an optimizer with constraints and the same rule. "
                "Load a base optimizer's own state into optimizer.base"
            )
        roster = self.roster
        m, names = len(saved["multipliers"]), list(saved["constraint_names"])
        if m != roster.size:
            raise ValueError(f"the state holds multipliers of {m} constraints, this optimizer has {roster.size}")
        ours = list(roster.names or ())
        if sorted(names) != sorted(ours):
            lost, new = sorted(set(names) - set(ours)), sorted(set(ours) - set(names))
            raise ValueError(
                f"the state's constraints are called otherwise: it has {lost[:8]}, this optimizer has {new[:8]}"
            )
        picked = {key: _copy(saved[key]) for key in self.keys}
        order = [int(i) for i in saved["constraint_order"]]
        if sorted(order) != list(range(m)):
            raise ValueError(f"the state's constraint_order must be a permutation of 0..{m - 1}, got {order[:8]}")
        # Vectors were saved in the internal order of the saving optimizer, given beside the names.
        theirs = [names[i] for i in order] if names else [str(i) for i in order]
        wanted = [roster.name(i) for i in range(m)] if names else [str(i) for i in roster.order]
        if theirs != wanted:
            where = {name: i for i, name in enumerate(theirs)}
            index = torch.tensor([where[name] for name in wanted], device="cpu")
            for key in self.vectors:
                picked[key] = picked[key][index.to(picked[key].device)]
        picked["constraint_names"], picked["constraint_order"] = ours, list(roster.order)
        for key, vector in self.vectors.items():
            _check_vector(self.roster, key, vector, picked[key])
        for key, scalar in self.scalars.items():
            _check_scalar(key, scalar, picked[key])
        return picked


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _check_vector(roster: Roster, key: str, vector: Vector, value: Any) -> None:
    if not isinstance(value, torch.Tensor) or value.shape != (roster.size,):
        raise ValueError(f"the state's {key} must be a tensor of shape ({roster.size},), got {value!r}")
    if value.dtype is torch.bool:
        return
    signed = key in ("multipliers", "stale_weights")  # of equalities they have either sign
    first = roster.size - roster.num_equalities if signed else roster.size
    bad = ~(value <= vector.high)
    bad |= value < -vector.high
    bad[:first] |= value[:first] < vector.low
    if bool(bad.any()):
        i = int(torch.nonzero(bad)[0])
        raise ValueError(
            f"the state's {key} of {roster.name(i)!r} is {value[i].item()!r}, which must be a finite number in "
            f"[{vector.low:g}, {vector.high:g}]; the checkpoint is damaged or was edited"
        )


def _check_scalar(key: str, scalar: Scalar, value: Any) -> None:
    number = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
    whole = isinstance(scalar.start, int)
    ok = is_number(number) and math.isfinite(number)
    ok = ok and (number > scalar.low if scalar.open_low else number >= scalar.low) and number <= scalar.high
    if not ok or (whole and number != int(number)):
        left = "(" if scalar.open_low else "["
        kind = "whole number" if whole else "finite number"
        raise ValueError(
            f"the state's {key} is {value!r}, which must be a {kind} in {left}{scalar.low:g}, {scalar.high:g}]; the "
            "checkpoint is damaged or was edited"
        )
