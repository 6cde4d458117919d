"""Saving and loading the dual state: copied both ways, matched by constraint name, checked by value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from gdpa.base.checks import is_number
from gdpa.torch.rules.base import Scalar, Vector

if TYPE_CHECKING:
    from gdpa.torch.core import MultiplierOptimizer

#: Up to this many constraints the dual state is in ``param_groups[0]``, which every checkpoint format saves.
#: Above, it is kept apart: the flat form of distributed checkpoints repeats a group's entries for every parameter.
LIMIT = 1024

_KEY = "gdpa"

AWAITED = (
    "the loaded checkpoint holds no multipliers: those of {} constraints are kept in opt.dual_state; save and load it "
    "beside the optimizer"
)


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def save(optimizer: MultiplierOptimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return ``state_dict`` with copies of the dual state in it."""
    if optimizer._apart is not None:
        return {**state_dict, _KEY: {key: _copy(value) for key, value in optimizer._apart.items()}}
    first = {key: _copy(value) for key, value in state_dict["param_groups"][0].items()}
    return {**state_dict, "param_groups": [first, *state_dict["param_groups"][1:]]}


def check(optimizer: MultiplierOptimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return ``state_dict`` with its multipliers in our order; raise before anything is changed if they do not fit."""
    # torch would share the tensors of the base optimizer's state with whoever saved them.
    own = {
        key: {k: _copy(v) for k, v in s.items()} if isinstance(s, dict) else s for key, s in state_dict["state"].items()
    }
    state_dict = {**state_dict, "state": own}
    for group in state_dict["param_groups"]:
        if "lr" in group:
            _check_scalar("lr", Scalar(0.0), group["lr"])
    if optimizer._apart is None:
        groups = list(state_dict["param_groups"])
        groups[0] = {**groups[0], **_fit(optimizer, groups[0])}
        return {**state_dict, "param_groups": groups}
    if _KEY in state_dict:
        return {**state_dict, _KEY: _fit(optimizer, state_dict[_KEY])}
    return state_dict


def restore(optimizer: MultiplierOptimizer, state_dict: dict[str, Any]) -> None:
    """Finish loading if the dual state is kept apart."""
    optimizer.discard()
    if optimizer._apart is None:
        return
    if _KEY in state_dict:
        optimizer._apart = state_dict[_KEY]
        optimizer._awaits_duals = False
    else:  # a distributed checkpoint carries groups and states only
        optimizer._awaits_duals = True


def _fit(optimizer: MultiplierOptimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """Return copies of the dual entries of ``saved``, reordered to our constraints."""
    if "turns" in optimizer._keys and "seen" in saved:
        saved = {"turns": torch.zeros_like(saved["seen"]), **saved}  # a state of 0.1.0
    missing = [key for key in optimizer._keys if key not in saved]
    if missing:
        raise ValueError(
            f"the state has no {missing}: it was not saved by a {type(optimizer).__name__} with the same rule. "
            "Load a base optimizer's own state into optimizer.base"
        )
    roster = optimizer._roster
    m, names = len(saved["multipliers"]), list(saved["constraint_names"])
    if m != roster.size:
        raise ValueError(f"the state holds multipliers of {m} constraints, this optimizer has {roster.size}")
    ours = list(roster.names or ())
    if sorted(names) != sorted(ours):
        lost, new = sorted(set(names) - set(ours)), sorted(set(ours) - set(names))
        raise ValueError(
            f"the state's constraints are called otherwise: it has {lost[:8]}, this optimizer has {new[:8]}"
        )
    picked = {key: _copy(saved[key]) for key in optimizer._keys}
    order = [int(i) for i in saved["constraint_order"]]
    if sorted(order) != list(range(m)):
        raise ValueError(f"the state's constraint_order must be a permutation of 0..{m - 1}, got {order[:8]}")
    # Vectors were saved in the internal order of the saving optimizer, given beside the names.
    theirs = [names[i] for i in order] if names else [str(i) for i in order]
    wanted = [roster.name(i) for i in range(m)] if names else [str(i) for i in roster.order]
    if theirs != wanted:
        where = {name: i for i, name in enumerate(theirs)}
        index = torch.tensor([where[name] for name in wanted], device="cpu")
        for key in optimizer._dual.vectors:
            picked[key] = picked[key][index.to(picked[key].device)]
    picked["constraint_names"], picked["constraint_order"] = ours, list(roster.order)
    for key, vector in optimizer._dual.vectors.items():
        _check_vector(optimizer, key, vector, picked[key])
    for key, scalar in optimizer._dual.scalars.items():
        _check_scalar(key, scalar, picked[key])
    return picked


def _check_vector(optimizer: MultiplierOptimizer, key: str, vector: Vector, value: Any) -> None:
    roster = optimizer._roster
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


class DualState:
    """The dual state as a ``Stateful``: save it beside the optimizer, e.g. ``dcp.save({"duals": opt.dual_state})``."""

    def __init__(self, optimizer: MultiplierOptimizer) -> None:
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the multipliers and the rest of the dual state."""
        return {key: _copy(self._optimizer._entries[key]) for key in self._optimizer._keys}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of `state_dict`, by name."""
        self._optimizer._entries.update(_fit(self._optimizer, state_dict))
        self._optimizer._awaits_duals = False
