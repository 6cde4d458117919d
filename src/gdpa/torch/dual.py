"""The dual side of a step: a rule, its state and its calibration; how the state is written, saved and loaded."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch.compiler import is_compiling

from gdpa.base.checks import is_number
from gdpa.torch import calibration, compat
from gdpa.torch.limits import Roster
from gdpa.torch.rules.base import LARGEST, MOST_STEPS, Entries, Entry, Part, Row, Rule, advance, advance_rows
from gdpa.torch.staging import Batch, Group, Stage

#: Up to this many constraints the dual state is in ``param_groups[0]``, which every checkpoint format saves.
#: Above, it is kept apart: the flat form of distributed checkpoints repeats a group's entries for every parameter.
LIMIT = 1024
#: Up to this many constraints on the CPU the dual update goes number by number.
FEW = 8

_KEY = "gdpa"
_NUMPY: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}

AWAITED = (
    "the loaded checkpoint holds no multipliers: the dual state of {} constraints is kept in opt.dual_state; save and "
    "load it beside the optimizer"
)

#: Among the changes of a stage: the numbers of each of a handful of constraints, see `Rows`.
ROWS = "rows"


class Rows:
    """The vectors that a rule reads, in one block of memory with a row of numbers per constraint.

    Indexing a tensor costs about a microsecond, so the numbers of a handful of constraints are read and written
    together. The block's columns are the tensors of the dual state; a tensor assigned from outside is copied into its
    column and replaced by it. A copy of the rows (pickle, deepcopy) is a new block, which does the same.
    """

    def __init__(self, rule: Rule, limits: list[float]) -> None:
        self._made_of = rule, limits
        codes = ["?" if vector.start is False else "d" for vector in rule.vectors.values()]
        fields = [*zip(rule.vectors, codes, strict=True), *((key, "d") for key in rule.given)]
        block = np.zeros(len(limits), np.dtype(fields, align=True))
        if "limit" in rule.given:
            block["limit"] = limits
        self._columns = [(key, torch.from_numpy(block[key])) for key, _ in fields if key != "limit"]
        self._bytes = block.view(np.uint8).data
        self._state = struct.Struct("".join(codes))
        self._row = struct.Struct("".join(code for _, code in fields) + "0d")  # which ends as an aligned dtype does
        self._weights: tuple[torch.Tensor, Any] | None = None

    def __reduce__(self) -> Any:
        return Rows, self._made_of

    def read(self, dual: Entries) -> Iterator[Row]:
        """Return the numbers of each constraint: the rule's ``vectors``, then the ones it is ``given``."""
        for key, column in self._columns:
            if dual[key] is not column:
                dual[key] = column.copy_(dual[key])
        return self._row.iter_unpack(self._bytes)

    def write(self, states: list[Row]) -> None:
        """Write the numbers of the rule's ``vectors``."""
        start = 0
        for state in states:
            self._state.pack_into(self._bytes, start, *state)
            start += self._row.size

    def weights(self, weights: list[float], dtype: torch.dtype) -> torch.Tensor:
        """Return the weights as a tensor: the one of the step before, unless a graph still holds it."""
        known = self._weights
        if known is None or known[0].dtype is not dtype or compat.count_uses(known[0]) != 1:
            array: Any = np.array(weights, _NUMPY[dtype])
            self._weights = (torch.from_numpy(array), memoryview(array))
            return self._weights[0]
        kept, window = known
        for i, number in enumerate(weights):
            window[i] = number
        return kept


@cache
def _side_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


# A dual rule is about sixty kernels on a few numbers, and ten more write its state. In a captured step each waits for
# the one before; on a second stream they run along with the gradient check and the base optimizer's step.


def _fork(like: torch.Tensor) -> None:
    """Let kernels `_aside` from now on wait for those that the device of ``like`` was given before, and no others."""
    if like.is_cuda and not is_compiling():
        _side_stream(like.device).wait_stream(torch.cuda.current_stream(like.device))


def _aside(like: torch.Tensor) -> AbstractContextManager[Any]:
    """Run the kernels of the block along with others since `_fork`; elsewhere than on CUDA, at once."""
    return torch.cuda.stream(_side_stream(like.device)) if like.is_cuda and not is_compiling() else nullcontext()


class DualState:
    """The multipliers and the other numbers of a rule, by name: ``entries``.

    Up to `LIMIT` constraints they are entries of the optimizer's first parameter group, above they are kept apart. As a
    ``Stateful`` it saves and loads the entries beside the optimizer, e.g. ``dcp.save({"duals": opt.dual_state})``:
    copied both ways, matched by constraint name, checked by value. With ``weights`` the state holds the weights of the
    last step (micro-batches in the stale mode); if ``capturable``, every entry that changes is on the device.
    """

    def __init__(
        self, owner: torch.optim.Optimizer, rule: Rule, roster: Roster, weights: bool, capturable: bool
    ) -> None:
        #: The optimizer that holds the parameter groups.
        self.owner = owner
        self.rule, self.roster, self.capturable = rule, roster, capturable
        self._apart: Entries | None = None
        #: A checkpoint was loaded that did not hold the entries that are kept apart.
        self.awaited = False
        self.vectors: dict[str, Entry] = dict(rule.vectors)
        self.scalars: dict[str, Entry] = {"dual_steps": Entry(0, high=MOST_STEPS), **rule.scalars()}
        self.calibrates = "ratio" in rule.given
        if self.calibrates:
            self.vectors |= calibration.VECTORS
            self.scalars |= calibration.SCALARS
        if weights and not rule.lagged:
            self.vectors["stale_weights"] = Entry(0.0, -LARGEST)
        self.limit = torch.tensor(roster.limit_sizes, dtype=torch.float64, device="cpu")
        #: How many steps the device has skipped; a tensor there once one has run.
        self.skipped: int | torch.Tensor = 0
        self._missing: tuple[torch.Tensor, int, list[int]] | None = None
        #: The numbers of a handful of constraints in the memory of the CPU; None if there are more.
        self.rows = Rows(rule, roster.limit_sizes) if roster.size <= FEW and not capturable else None
        self._equal = [i >= roster.size - roster.num_equalities for i in range(roster.size)]

    @property
    def entries(self) -> Entries:
        """The state: numbers and tensors by name."""
        return self.owner.param_groups[0] if self._apart is None else self._apart

    def install(self) -> None:
        """Put the initial entries, in double precision, in their place; call after the parameter groups are built."""
        roster = self.roster
        initial: Entries = {"constraint_names": list(roster.names or ()), "constraint_order": list(roster.order)}
        for key, vector in self.vectors.items():
            kind = torch.bool if vector.start is False else torch.float64
            initial[key] = torch.full((roster.size,), vector.start, dtype=kind, device="cpu")
        for key, scalar in self.scalars.items():
            moves = self.capturable and key in ("dual_steps", "beta_r")
            initial[key] = torch.zeros((), dtype=torch.float64, device="cpu") if moves else scalar.start
        self.keys = tuple(initial)
        if roster.size <= LIMIT:
            self.owner.param_groups[0].update(initial)
        else:
            self._apart = initial

    def read(
        self, g: torch.Tensor, counts: Any = None, nan_is_absent: bool = False, samples: torch.Tensor | None = None
    ) -> Batch:
        """Return g without its graph; ``counts`` are of g as users give them, ``samples`` of f and g in our order."""
        if self.rows is not None and g.is_cpu:
            values = g.tolist()
            if counts is not None:
                here: Any = [count > 0 for count in self.roster.counts(counts)]
            else:
                here = None if samples is None else (samples[1:] > 0).tolist()
            if nan_is_absent:
                here = [value == value and (here is None or here[i]) for i, value in enumerate(values)]
            if here is None or all(here):
                return Batch(values, None, samples)
            values = [value if there else math.nan for value, there in zip(values, here, strict=True)]
            return Batch(values, here, samples)
        seen = g.detach()
        if counts is not None:
            present: Any = self.roster.count_tensor(counts, seen) > 0
        else:
            present = None if samples is None else samples[1:] > 0
        if nan_is_absent:
            present = seen == seen if present is None else present & (seen == seen)
        return Batch(self.widen(seen if present is None else torch.where(present, seen, math.nan)), present, samples)

    def weigh(self, batch: Batch, dtype: torch.dtype) -> tuple[Entries, torch.Tensor]:
        """Return (changed entries, weights); without changed entries if `catch_up` finds them later."""
        values, present, _ = batch
        rows = self.rows
        if rows is not None and type(values) is list:
            entries = self.entries
            states, updates, w = advance_rows(self.rule, entries, rows.read(entries), values, present, self._equal)
            updates[ROWS] = states
            return updates, rows.weights(w, dtype)
        if self.defers:
            lagged = self.entries["multipliers"]
            return {}, (lagged if present is None else torch.where(present, lagged, 0.0)).to(dtype)
        updates, weights = self.advance(values, present)
        return updates, weights.to(dtype)

    def advance(self, values: torch.Tensor, present: torch.Tensor | None) -> tuple[Entries, torch.Tensor]:
        """Return (changed entries, weights) for values in the precision of the state, from `read`."""
        p, view = self.roster.num_equalities, {**self.entries, "limit": self.limit}
        if self.capturable or not values.is_cpu:
            return advance(self.rule, view, values, present, p)
        view |= {key: view[key].numpy() for key in (*self.rule.vectors, *self.rule.given)}
        updates, w = advance(self.rule, view, values.numpy(), None if present is None else present.numpy(), p)
        return updates, torch.from_numpy(w)

    @property
    def defers(self) -> bool:
        """Whether `step` applies the rule: its weights are known before, and on the device its kernels run aside."""
        return self.capturable and self.rule.lagged and not is_compiling()

    def catch_up(self, stage: Stage) -> None:
        """Apply the rule of a stage that left it for `step`, parallel to the kernels on the device until the commit."""
        values, present, _ = stage.batch
        _fork(values)
        with _aside(values):
            stage.updates |= self.advance(values, present)[0]

    def guard(self, stage: Stage, nonfinite: torch.Tensor | None) -> torch.Tensor:
        """Return whether the step is skipped, as a tensor: a value or a gradient is not finite."""
        if nonfinite is not None:
            stage.check = stage.check & (nonfinite == 0).to(stage.check.device)
        _fork(stage.check)  # `commit_guarded` needs this and no more
        return ~stage.check  # type: ignore[no-any-return]

    def widen(self, values: torch.Tensor) -> torch.Tensor:
        """Return a copy of ``values`` in the state's precision, with the state moved to their device."""
        entries = self.entries
        wide = torch.float32 if values.device.type == "mps" else torch.float64  # mps has no double precision
        if entries["multipliers"].device != values.device:
            for key in (*self.vectors, *self.scalars):
                entry = entries[key]
                if isinstance(entry, torch.Tensor):
                    entries[key] = entry.to(values.device, wide if entry.is_floating_point() else None)
            self.limit = self.limit.to(values.device, wide)
        return values.to(wide, copy=True)  # g may share the memory of a parameter, which the step changes

    def measures(self, values: Any) -> bool:
        """Return whether a gradient ratio may be measured: one is missing for a violated constraint, or due again."""
        if not self.calibrates:
            return False
        entries, known = self.entries, self._missing
        ratio, steps = entries["ratio"], entries["dual_steps"]
        if known is None or known[0] is not ratio or known[1] != ratio._version:
            known = self._missing = (ratio, ratio._version, torch.nonzero(ratio == 0).flatten().tolist())
        if not self.capturable and steps >= calibration.AGAIN_FROM and calibration.is_due(steps):
            return True
        if not known[2] or type(values) is not list:
            return bool(known[2])
        for i in known[2]:  # noqa: SIM110  # a generator costs two calls a step
            if values[i] > 0 or self._equal[i]:
                return True
        return False

    def calibrate(
        self,
        f: torch.Tensor,
        g: torch.Tensor,
        batch: Batch,
        here: Any,
        ranks: Group,
        everything: bool = False,
    ) -> Entries:
        """Measure gradient ratios that are missing or due again and return the changed entries.

        f and g, with their graph, are of this rank, which has samples of the constraints ``here``; ``batch`` is of all.
        """
        if g.is_cuda and torch.cuda.is_current_stream_capturing():
            return {}  # the host cannot look at g: call `calibrate` before capturing
        entries = {**self.entries, "limit": self.limit}
        dual = {key: _to_numpy(e) if isinstance(e, torch.Tensor) else e for key, e in entries.items()}
        params = [p for group in self.owner.param_groups for p in group["params"] if p.requires_grad]
        present, here = (None if one is None else _to_numpy(one) for one in (batch.present, here))
        again = not (self.capturable or everything) and calibration.is_due(int(dual["dual_steps"]))
        slopes = partial(calibration.squared_slopes, f, g, here, params, ranks)
        return calibration.measure(self.roster, dual, _to_numpy(batch.values), present, slopes, everything, again)

    def settle(self) -> None:
        """Turn measurements of fewer batches than asked for into ratios."""
        slope_f, slope_g, ratio = (self.entries[key] for key in ("slope_f", "slope_g", "ratio"))
        known = (ratio == 0) & (slope_f > 0) & (slope_g > 0)
        ratio[known] = (slope_f[known] / slope_g[known]).sqrt()

    def commit_guarded(self, stage: Stage) -> None:
        """Write the changes of a stage into the state aside, if its check is true; everything after waits for it."""
        check = stage.check
        with _aside(check):
            if not isinstance(self.skipped, torch.Tensor):
                self.skipped = torch.zeros((), dtype=torch.int64, device=check.device)
            self.skipped += ~check
            self.write(stage.updates, check)
        if check.is_cuda and not is_compiling():
            torch.cuda.current_stream(check.device).wait_stream(_side_stream(check.device))

    def write(self, updates: Entries, check: torch.Tensor | None = None) -> None:
        """Write changed entries, with ``check`` in place and only if it is true: a captured graph reads this memory."""
        entries = self.entries
        for key, value in updates.items():
            kind = type(value)
            if key == ROWS:
                self.rows.write(value)  # type: ignore[union-attr]
            elif kind is Part:
                entry = entries[key]
                numbers = torch.as_tensor(value.numbers, dtype=entry.dtype, device=entry.device)
                positions = torch.as_tensor(value.positions, device=entry.device)
                entry[positions] = numbers if check is None else torch.where(check, numbers, entry[positions])
            elif check is not None and isinstance(value, torch.Tensor):
                entry = entries[key]
                torch.where(check, value.to(entry.dtype), entry, out=entry)
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
        first, *others = state_dict["param_groups"]
        return {**state_dict, "param_groups": [_copy(first), *others]}

    def check(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return ``state_dict`` with the entries in our order; raise before anything changes if they do not fit."""
        groups = list(state_dict["param_groups"])
        for group in groups:
            if "lr" in group:
                _check(self.roster, "lr", Entry(), group["lr"], vector=False)
        # torch would share the tensors of the base optimizer's state with whoever saved them.
        checked = {**state_dict, "state": _copy(state_dict["state"]), "param_groups": groups}
        if self._apart is None:
            groups[0] = {**groups[0], **self._fit(groups[0])}
        elif _KEY in state_dict:
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
        if missing := [key for key in self.keys if key not in saved]:
            raise ValueError(
                f"the state has no {missing}: it was not saved by an optimizer with constraints and the same rule. "
                "Load a base optimizer's own state into optimizer.base"
            )
        roster, m, names = self.roster, len(saved["multipliers"]), list(saved["constraint_names"])
        if m != roster.size:
            raise ValueError(f"the state holds multipliers of {m} constraints, this optimizer has {roster.size}")
        ours = list(roster.names or ())
        if sorted(names) != sorted(ours):
            lost, new = sorted(set(names) - set(ours)), sorted(set(ours) - set(names))
            raise ValueError(
                f"the state's constraints are called otherwise: it has {lost[:8]}, this optimizer has {new[:8]}"
            )
        order = [int(i) for i in saved["constraint_order"]]
        if sorted(order) != list(range(m)):
            raise ValueError(f"the state's constraint_order must be a permutation of 0..{m - 1}, got {order[:8]}")
        fitted = {key: _copy(saved[key]) for key in self.keys}
        fitted["constraint_names"], fitted["constraint_order"] = ours, list(roster.order)
        # Vectors were saved in the internal order of the saving optimizer.
        theirs = [names[i] for i in order] if names else order
        wanted = [ours[i] for i in roster.order] if names else list(roster.order)
        if theirs != wanted:
            where = {name: i for i, name in enumerate(theirs)}
            index = torch.tensor([where[name] for name in wanted], device="cpu")
            fitted |= {key: fitted[key][index.to(fitted[key].device)] for key in self.vectors}
        for key, entry in (self.vectors | self.scalars).items():
            _check(roster, key, entry, fitted[key], key in self.vectors)
        return fitted


def _to_numpy(values: Any) -> Any:
    """Return a copy on the host, numbers in double precision."""
    if not isinstance(values, torch.Tensor):
        return np.array(values)
    values = values.detach().cpu()
    return (values if values.dtype is torch.bool else values.double()).numpy().copy()


def _copy(value: Any) -> Any:
    """Return a copy of a tensor, or of the tensors in dictionaries."""
    if isinstance(value, dict):
        return {key: _copy(entry) for key, entry in value.items()}
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _check(roster: Roster, key: str, entry: Entry, value: Any, vector: bool = True) -> None:
    """Refuse a saved value of another shape or out of its range."""
    if vector and not (isinstance(value, torch.Tensor) and value.shape == (roster.size,)):
        raise ValueError(f"the state's {key} must be a tensor of shape ({roster.size},), got {value!r}")
    single = isinstance(value, torch.Tensor) and (vector or value.numel() == 1)
    kind, free = "whole" if type(entry.start) is int else "finite", roster.size
    if key in ("multipliers", "stale_weights"):  # of equalities they have either sign
        free -= roster.num_equalities
    for i, number in enumerate(value.flatten().tolist() if single else [value]):
        low = entry.low if i < free or not vector else -entry.high
        ok = type(number) is type(entry.start) is bool or (is_number(number) and low <= number <= entry.high)
        if not ok or (entry.open_low and number == low) or (kind == "whole" and number != int(number)):
            of, left = f" of {roster.name(i)!r}" if vector else "", "(" if entry.open_low else "["
            raise ValueError(
                f"the state's {key}{of} is {number!r}, which must be a {kind} number in {left}{low:g}, "
                f"{entry.high:g}]; the checkpoint is damaged or was edited"
            )
