"""Gradient ratios, measured while training goes on.

rho_i = rms ||grad f|| / rms ||grad g_i|| over the first batches that violate constraint i (equalities: the first
batches). Nothing is measured where it would say nothing: a constraint that holds needs no multiplier yet, and its
gradient may vanish (KL to a reference model at the start of fine-tuning). A constraint whose group has not appeared
waits. Each measured batch costs one extra backward pass for f and one for every constraint measured.

Gradients at the start may say little of those later on: of a saturated network they almost vanish. So the ratios of
constraints that are violated or have a multiplier are measured again after 64, 128, 256, ... steps.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import torch

from gdpa.torch.pooling import Group
from gdpa.torch.roster import Roster
from gdpa.torch.rules.base import Part, Scalar, Vector

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
#: ... each time over this many batches, ...
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
    "ratio": Vector(), "slope_f": Vector(), "slope_g": Vector(), "squares": Vector(), "measured": Vector(),
}  # fmt: skip
SCALARS = {"measurements": Scalar(0), "common_ratio": Scalar(0.0)}

_SEVERAL_PASSES = (
    "calibration takes several backward passes through one batch's graph. A compiled model that was trained before "
    "allows them with torch._functorch.config.donated_buffer = False, set before its first call; or calibrate with the "
    "model that is not compiled: opt.calibrate((f, g) of a few batches)"
)


def candidates(roster: Roster, dual: dict[str, Any], values: Any, present: Any, everything: bool) -> list[int]:
    """Return the constraints to measure in this batch: not known yet, present, and violated or an equality.

    Args:
        roster: the constraints.
        dual: ``ratio`` and ``measured``, as sequences or arrays.
        values: g over all samples.
        present: which constraints have samples; None for all.
        everything: take constraints that hold, too.
    """
    ratio, first = dual["ratio"], roster.size - roster.num_equalities
    found: list[int]
    if isinstance(values, np.ndarray):
        here = np.arange(roster.size) if present is None else np.flatnonzero(present)
        g = values[here]
        wanted = (g > 0) | ((here >= first) | everything) & (g == g)
        found = here[wanted & (np.asarray(ratio)[here] == 0)].tolist()
    else:
        found = [
            i
            for i, g in enumerate(values)
            if ratio[i] == 0 and (present is None or present[i]) and (g > 0 or (g == g and (i >= first or everything)))
        ]
    if len(found) > MOST_AT_ONCE:
        found.sort(key=lambda i: (dual["measured"][i], i))
    return found


def measure(
    roster: Roster,
    group: Group,
    dual: dict[str, Any],
    f: torch.Tensor,
    g: torch.Tensor,
    values: Any,
    here: Any,
    which: list[int],
    params: list[torch.Tensor],
) -> dict[str, Any]:
    """Measure the constraints ``which`` on this batch and return the entries of the dual state that change.

    Args:
        roster: the constraints.
        group: the ranks that measure together.
        dual: the dual state on the host.
        f, g: of this rank's samples, with their graph; g of absent groups masked.
        values: g over all ranks.
        here: which groups have samples on this rank; None for all.
        which: from `candidates`, the same on all ranks.
        params: the parameters to differentiate by.
    """
    many, done = roster.size > MOST_AT_ONCE, int(dual["measurements"])
    left = MOST_IN_ALL - done if many else len(which)
    chosen = which[: max(0, min(left, MOST_AT_ONCE))] if many else which
    new = {key: {i: float(dual[key][i]) for i in which} for key in VECTORS}
    common = float(dual["common_ratio"])
    if chosen:
        slopes = _slopes(f, [(g[i], here is None or bool(here[i])) for i in chosen], params, group)
        for i, slope in zip(chosen, slopes[1:], strict=True):
            if slope > 0:  # else the gradient vanishes here, which is no scale
                new["slope_f"][i] += slopes[0]
                new["slope_g"][i] += slope
                new["squares"][i] += float(values[i]) ** 2
                new["measured"][i] += 1
            if new["measured"][i] >= BATCHES:  # if f does not move, any ratio above 0 will do
                new["ratio"][i] = ((new["slope_f"][i] or new["measured"][i]) / new["slope_g"][i]) ** 0.5
                _logger.info("%s: gradient ratio %.4g", roster.name(i), new["ratio"][i])
    if many and left <= len(chosen):
        if not common:
            common = _common(dual, new)
            _logger.info("the other constraints: gradient ratio %.4g over their limits", common)
        measured, squares = _array(dual["measured"]), _array(dual["squares"])
        typical = float(np.median(np.sqrt(squares[measured > 0] / measured[measured > 0]))) if measured.any() else 0.0
        for i in which:
            size = float(dual["limit"][i])
            if not math.isfinite(size):  # one batch's |g| may be anything; the running square is the mean of many
                seen = float(dual["square"][i]) ** 0.5 if "square" in dual else float(dual["size"][i])
                size = max(seen, abs(float(values[i])))
                size = typical if typical / ALIKE < size < typical * ALIKE else size
            if new["ratio"][i] == 0 and size > 0:
                new["ratio"][i] = common / size
    parts = {key: Part(which, list(numbers.values())) for key, numbers in new.items()}
    return {**parts, "measurements": done + len(chosen), "common_ratio": common}


def due(steps: int) -> bool:
    """Return whether ratios are measured again in the batch after ``steps`` steps.

    >>> [steps for steps in range(200) if due(steps)]
    [64, 65, 66, 67, 128, 129, 130, 131]
    """
    return steps >= AGAIN_FROM and steps - (1 << (steps.bit_length() - 1)) < AGAIN_BATCHES  # see `_batch_of_turn`


def _batch_of_turn(steps: int) -> int:
    return steps - (1 << (steps.bit_length() - 1))


def measure_again(
    roster: Roster,
    group: Group,
    dual: dict[str, Any],
    f: torch.Tensor,
    g: torch.Tensor,
    values: Any,
    present: Any,
    here: Any,
    params: list[torch.Tensor],
) -> dict[str, Any]:
    """Measure known ratios again on a batch that is `due`; with the arguments and the answer of `measure`."""
    old, slope_f, slope_g, lam = (_array(dual[key]) for key in ("ratio", "slope_f", "slope_g", "multipliers"))
    steps, known, g_now = int(dual["dual_steps"]), old > 0, np.asarray(values, dtype=float)
    if _batch_of_turn(steps) == 0:
        slope_f[known] = slope_g[known] = 0.0
    wanted = known & ((lam != 0) | (g_now > 0)) & (g_now == g_now) & (True if present is None else np.asarray(present))
    which = np.flatnonzero(wanted)
    which = which[:: -(-len(which) // MOST_AGAIN) or 1]
    if len(which):
        try:
            slopes = _slopes(f, [(g[int(i)], here is None or bool(here[i])) for i in which], params, group)
        except RuntimeError as error:
            _logger.warning("gradient ratios stay as they are: %s", error)
            return {}
        moves = np.array(slopes[1:]) > 0  # else the gradient vanishes here, which is no scale
        slope_f[which] += slopes[0] * moves
        slope_g[which] += slopes[1:]
    ratio, found = old.copy(), known & (slope_f > 0) & (slope_g > 0)
    if _batch_of_turn(steps) == AGAIN_BATCHES - 1 and found.any():
        factor = np.minimum(np.sqrt(slope_f[found] / slope_g[found]) / old[found], LARGEST_RISE)
        if roster.size > MOST_AT_ONCE:
            ratio[known] *= np.median(factor)
            unsized = known & ~np.isfinite(_array(dual["limit"]))
            if "variance" in dual and unsized.any():  # as equal in units of their noise as sized ones in their limits
                size = np.sqrt(np.maximum(_array(dual["variance"]), LEAST_NOISE * _array(dual["square"])))
                share = size[unsized] / np.median(size[unsized])
                share[(share > 1 / ALIKE) & (share < ALIKE)] = 1.0
                ratio[unsized] = np.median(ratio[unsized]) / share
        else:
            ratio[found] *= factor
    positions = np.flatnonzero(known)
    return {
        key: Part(positions, vector[positions])
        for key, vector in (("ratio", ratio), ("slope_f", slope_f), ("slope_g", slope_g))
    }


def _array(vector: Any) -> Any:
    return torch.as_tensor(vector, device="cpu").detach().double().numpy().copy()


def _common(dual: dict[str, Any], new: dict[str, dict[int, float]]) -> float:
    """Return the median of rho_i c_i over the constraints measured at least once."""
    vectors = {key: _array(dual[key]) for key in VECTORS}
    for key, numbers in new.items():
        vectors[key][list(numbers)] = list(numbers.values())
    n = vectors["measured"]
    seen = n > 0
    if not seen.any():
        return 0.0
    slope_f = np.where(vectors["slope_f"][seen] > 0, vectors["slope_f"][seen], n[seen])
    limit = _array(dual["limit"])[seen]
    size = np.where(np.isfinite(limit), limit, np.sqrt(vectors["squares"][seen] / n[seen]))
    return float(np.median(np.sqrt(slope_f / vectors["slope_g"][seen]) * size))


def _slopes(
    f: torch.Tensor, terms: list[tuple[torch.Tensor, bool]], params: list[torch.Tensor], group: Group
) -> list[float]:
    """Return the mean over ranks of ||grad f||^2 and of each ||grad g_i||^2, over ranks that have samples of it."""
    try:
        squares = [squared_norm(value, params) for value, _ in [(f, True), *terms]]
    except RuntimeError as error:
        error.add_note(_SEVERAL_PASSES)
        raise
    there = torch.tensor([1.0, *(float(here) for _, here in terms)], dtype=torch.float64, device="cpu")
    local = torch.stack([s.detach().double().cpu() for s in squares])
    packed = torch.cat([torch.where(there > 0, local, torch.zeros_like(local)), there])
    summed = group.sum_(packed.to(f.device))
    total, counted = summed[: len(there)], summed[len(there) :]
    means: list[float] = (total / counted.clamp_min(1.0)).tolist()
    return means


def squared_norm(value: torch.Tensor, params: list[torch.Tensor]) -> torch.Tensor:
    """Return ||grad value||^2 over the parameters, keeping the graph for the passes to come.

    >>> x = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> squared_norm(x.square().sum(), [x]).item()
    100.0
    """
    zero = torch.zeros((), dtype=value.dtype, device=value.device)
    if not value.requires_grad:
        return zero
    grads: Any
    if any(hasattr(p, "full_tensor") for p in params):
        # Sharded parameters (FSDP2) are not nodes of the graph: their gradients arrive in .grad alone.
        kept = [p.grad for p in params]
        for p in params:
            p.grad = None
        value.backward(retain_graph=True)  # type: ignore[no-untyped-call]
        grads = [p.grad for p in params]
        for p, old in zip(params, kept, strict=True):
            p.grad = old
    else:
        grads = torch.autograd.grad(value, params, retain_graph=True, allow_unused=True)
    found = [g.coalesce().values() if g.is_sparse else g for g in grads if g is not None]
    if not found:
        return zero
    norm: Any = torch.nn.utils.get_total_norm(found)
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    square: torch.Tensor = norm.double().square() if norm.device.type != "mps" else norm.square()
    return square
