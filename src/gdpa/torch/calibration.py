"""Gradient ratios, measured while training goes on.

rho_i = rms ||grad f|| / rms ||grad g_i|| over the first batches that violate constraint i (equalities: the first
batches); a constraint that holds needs no multiplier yet, and its gradient may vanish. Each measured batch costs one
extra backward pass for f and one for every constraint measured. The first gradients of a saturated network almost
vanish, so ratios of constraints with a violation or a multiplier are measured again after 64, 128, 256, ... steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gdpa.torch.limits import Roster
from gdpa.torch.rules.base import Entries, Entry, Part
from gdpa.torch.staging import Group

_logger = logging.getLogger("gdpa.torch")

# `python -m benchmarks.minibatch.run constants` halves and doubles each of these; docs/benchmarks.md shows the results.

#: Batches that a constraint's ratio is measured over.
BATCHES = 8
#: With more constraints than this, at most this many are measured in a batch ...
MOST_AT_ONCE = 32
#: ... and this many measurements are made in all. The others get the median ratio in units of their limits.
MOST_IN_ALL = 512
#: Ratios are measured again after this many steps, after twice as many, and so on, ...
AGAIN_FROM = 64
#: ... each time over this many batches (a power of two), ...
AGAIN_BATCHES = 4
#: ... and at most this many constraints a batch. With more than `MOST_AT_ONCE` constraints all ratios change by the
#: median factor.
MOST_AGAIN = 8
#: A ratio rises at most by this factor when it is measured again: multipliers are in units of it, and a gradient of g
#: that almost vanishes for a while must not raise them at once. It may fall by any factor.
LARGEST_RISE = 2.0

#: Noise of a constraint without a size counts as at least this share of its running square.
LEAST_NOISE = 1e-4
#: Constraints without sizes that are within this factor of the median count as equally large.
ALIKE = 4.0

#: The entries of calibration in the dual state. ``ratio`` is 0 until it is known.
VECTORS = {
    "ratio": Entry(), "slope_f": Entry(), "slope_g": Entry(), "squares": Entry(), "measured": Entry(),
}  # fmt: skip
SCALARS = {"measurements": Entry(0), "common_ratio": Entry(0.0)}

_SEVERAL_PASSES = (
    "calibration takes several backward passes through one batch's graph. A compiled model that was trained before "
    "allows them with torch._functorch.config.donated_buffer = False, set before its first call; or calibrate with the "
    "model that is not compiled: opt.calibrate((f, g) of a few batches)"
)


def measure(
    roster: Roster,
    entries: Entries,
    values: Any,
    present: Any,
    slopes: Callable[[Any], list[float]],
    everything: bool = False,
    again: bool = False,
) -> Entries:
    """Measure ratios on a batch (NumPy arrays) and return the entries that change; for ``slopes`` see `squared_slopes`.

    ``everything`` also measures constraints that hold, ``again`` also ratios that are known.
    """
    new, changed = {key: entries[key].copy() for key in VECTORS}, {}
    here = np.ones(roster.size, bool) if present is None else present
    first = np.arange(roster.size) >= roster.size - roster.num_equalities
    wanted = here & (new["ratio"] == 0) & ((values > 0) | (first | everything) & (values == values))
    if wanted.any():
        changed = _measure_missing(roster, entries, new, values, np.flatnonzero(wanted), slopes)
    if again:
        _measure_again(roster, entries, new, values, here, slopes)
    for key, vector in new.items():
        at = np.flatnonzero(vector != entries[key])
        if len(at):
            changed[key] = Part(at, vector[at])
    return changed


def _measure_missing(roster: Roster, entries: Entries, new: Entries, values: Any, which: Any, slopes: Any) -> Entries:
    many, done, ratio = roster.size > MOST_AT_ONCE, int(entries["measurements"]), new["ratio"]
    if many:
        which = which[np.argsort(new["measured"][which], kind="stable")]
    left = MOST_IN_ALL - done if many else len(which)
    chosen = which[: max(0, min(left, MOST_AT_ONCE))] if many else which
    if len(chosen):
        slope_f, *rest = slopes(chosen)
        slope_g = np.array(rest)
        at, slope_g = chosen[slope_g > 0], slope_g[slope_g > 0]  # else the gradient vanishes here and gives no scale
        for key, more in (("slope_f", slope_f), ("slope_g", slope_g), ("squares", values[at] ** 2), ("measured", 1)):
            new[key][at] += more
        ripe = at[new["measured"][at] >= BATCHES]  # if f does not move, any ratio above 0 will do
        above = np.where(new["slope_f"][ripe] > 0, new["slope_f"][ripe], new["measured"][ripe])
        ratio[ripe] = np.sqrt(above / new["slope_g"][ripe])
        for i in ripe:
            _logger.info("%s: gradient ratio %.4g", roster.name(i), ratio[i])
    common = float(entries["common_ratio"])
    if many and left <= len(chosen):  # the others get the median ratio in units of their sizes
        measured = new["measured"] > 0
        above = np.where(new["slope_f"] > 0, new["slope_f"], new["measured"])[measured]
        typical = np.sqrt(new["squares"][measured] / new["measured"][measured])
        if not common and measured.any():
            sizes = np.where(np.isfinite(entries["limit"][measured]), entries["limit"][measured], typical)
            common = float(np.median(np.sqrt(above / new["slope_g"][measured]) * sizes))
            _logger.info("the other constraints: gradient ratio %.4g over their limits", common)
        others = which[ratio[which] == 0]
        # One batch's |g| may be anything; the running square is the mean of many.
        seen = np.sqrt(entries["square"][others]) if "square" in entries else entries["size"][others]
        seen = np.maximum(seen, np.abs(values[others]))
        usual = float(np.median(typical)) if measured.any() else 0.0
        seen = np.where((seen > usual / ALIKE) & (seen < usual * ALIKE), usual, seen)
        size = np.where(np.isfinite(entries["limit"][others]), entries["limit"][others], seen)
        ratio[others[size > 0]] = common / size[size > 0]
    return {"measurements": done + len(chosen), "common_ratio": common}


def is_due(steps: int) -> bool:
    """Return whether ratios are measured again after ``steps`` steps: 64 to 67, 128 to 131, 256 to 259, ..."""
    start = steps & -AGAIN_BATCHES
    return start >= AGAIN_FROM and start & (start - 1) == 0


def _measure_again(roster: Roster, entries: Entries, new: Entries, values: Any, here: Any, slopes: Any) -> None:
    """Measure known ratios again on a batch that `is_due`; change them after the last batch of the turn."""
    old, ratio, slope_f, slope_g = entries["ratio"], new["ratio"], new["slope_f"], new["slope_g"]
    turn, known = int(entries["dual_steps"]) % AGAIN_BATCHES, old > 0
    if turn == 0:
        slope_f[known] = slope_g[known] = 0.0
    which = np.flatnonzero(known & ((entries["multipliers"] != 0) | (values > 0)) & (values == values) & here)
    which = which[:: -(-len(which) // MOST_AGAIN) or 1]
    if len(which):
        try:
            above, *below = slopes(which)
        except RuntimeError as error:
            _logger.warning("gradient ratios stay as they are: %s", error)
            return
        slope_f[which] += above * (np.array(below) > 0)  # else the gradient vanishes here and gives no scale
        slope_g[which] += below
    found = known & (slope_f > 0) & (slope_g > 0)
    if turn < AGAIN_BATCHES - 1 or not found.any():
        return
    factor = np.minimum(np.sqrt(slope_f[found] / slope_g[found]) / old[found], LARGEST_RISE)
    if roster.size <= MOST_AT_ONCE:
        ratio[found] *= factor
        return
    ratio[known] *= np.median(factor)
    unsized = known & ~np.isfinite(entries["limit"])
    if "variance" in entries and unsized.any():  # as equal in units of their noise as sized ones in their limits
        size = np.sqrt(np.maximum(entries["variance"], LEAST_NOISE * entries["square"]))[unsized]
        share = size / np.median(size)
        share[(share > 1 / ALIKE) & (share < ALIKE)] = 1.0
        ratio[unsized] = np.median(ratio[unsized]) / share


def squared_slopes(
    f: torch.Tensor, g: torch.Tensor, here: Any, params: list[torch.Tensor], group: Group, which: Any
) -> list[float]:
    """Return the mean over ranks of ||grad f||^2 and of each ||grad g_i||^2, over ranks with samples of it."""
    try:
        squares = [squared_norm(value, params) for value in (f, *(g[int(i)] for i in which))]
    except RuntimeError as error:
        error.add_note(_SEVERAL_PASSES)
        raise
    there = torch.tensor([1.0, *(here is None or here[i] for i in which)], dtype=torch.float64, device="cpu")
    local = torch.stack([s.detach().double().cpu() for s in squares])
    packed = torch.stack([torch.where(there > 0, local, torch.zeros_like(local)), there])
    total, counted = group.sum_(packed.to(f.device))
    return list((total / counted.clamp_min(1.0)).tolist())


def squared_norm(value: torch.Tensor, params: list[torch.Tensor]) -> torch.Tensor:
    """Return ||grad value||^2 over the parameters, keeping the graph for the passes to come."""
    grads: Any = ()
    if value.requires_grad and any(hasattr(p, "full_tensor") for p in params):
        # Sharded parameters (FSDP2) are not nodes of the graph: their gradients arrive in .grad alone.
        kept = [p.grad for p in params]
        for p in params:
            p.grad = None
        value.backward(retain_graph=True)  # type: ignore[no-untyped-call]
        grads = [p.grad for p in params]
        for p, old in zip(params, kept, strict=True):
            p.grad = old
    elif value.requires_grad:
        grads = torch.autograd.grad(value, params, retain_graph=True, allow_unused=True)
    found = [g.coalesce().values() if g.is_sparse else g for g in grads if g is not None]
    if not found:
        return torch.zeros((), dtype=value.dtype, device=value.device)
    norm: Any = torch.nn.utils.get_total_norm(found)
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    square: torch.Tensor = norm.double().square() if norm.device.type != "mps" else norm.square()
    return square
