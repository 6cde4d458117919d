"""From a network trained under an energy budget to a smaller dense one inside the budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from gdpa.paper.applications.energy_budget.budgeted import EnergyBudget
from gdpa.paper.applications.energy_budget.chain import Chain
from gdpa.paper.applications.energy_budget.counting import Meter
from gdpa.paper.applications.energy_budget.model import EnergyModel

#: Rounds of rescaling the limit of psi by the meter's reading. psi is right to a few percent, so few are needed.
ROUNDS = 10


class OverBudgetError(RuntimeError):
    """No choice of widths that was tried is inside the budget on the meter."""


class Pruned(NamedTuple):
    """A smaller dense network.

    Attributes:
        network: the network.
        widths: its hidden widths.
        energy: the meter's reading, at most the budget.
        model_energy: psi of its widths.
        keep: the channels of the full network that are left, by hidden width.
    """

    network: nn.Sequential
    widths: tuple[int, ...]
    energy: float
    model_energy: float
    keep: tuple[torch.Tensor, ...]


def prune(budgeted: EnergyBudget, meter: Meter) -> Pruned:
    """Cut the channels that training made small and return a dense network whose measured energy is in the budget.

    Of every width the channels with the largest norms stay. How many: phi_d of every width, rounded, and scaled
    alike to fill the budget, because training leaves phi_d a little above or below it. psi makes this choice and the
    meter checks it: the limit given to psi is rescaled until the measured energy is inside the budget and close to it.

    Args:
        budgeted: the network after training.
        meter: the true energy of a network, see `Meter`.

    Raises:
        OverBudgetError: if the meter exceeds the budget for every choice tried.
    """
    chain, model = budgeted.chain, budgeted.model
    with torch.no_grad():
        scores = chain.squared_norms()
        wanted = budgeted.counts().tolist()
    return prune_by_norm(chain, scores, meter, budgeted.limit, lambda bound: fit_widths(model, bound, wanted), model)


def prune_by_norm(
    chain: Chain,
    scores: Sequence[torch.Tensor],
    meter: Meter,
    limit: float,
    choose: Callable[[float], Sequence[int]],
    model: EnergyModel,
) -> Pruned:
    """Keep the channels with the largest scores; ``choose(limit)`` returns how many of each width.

    The limit given to ``choose`` is rescaled by the meter's reading of its choice, until that is within ``limit``.
    """
    order = [torch.argsort(score, descending=True, stable=True) for score in scores]
    best: Pruned | None = None
    bound, low, high = limit, 0.0, math.inf  # of the limit given to psi: too low leaves space, too high exceeds
    for _ in range(ROUNDS):
        widths = tuple(choose(bound))
        keep = tuple(places[:width].sort().values for places, width in zip(order, widths, strict=True))
        network = chain.narrow(keep)
        energy = meter(network)
        if energy <= limit:
            low = bound
            if best is None or energy > best.energy:
                best = Pruned(network, widths, energy, float(model(np.asarray(widths, dtype=float))), keep)
        else:
            high = bound
        bound *= limit / energy
        if not low < bound < high:
            bound = (low + high) / 2 if high < math.inf else 1.02 * low
    if best is None:
        raise OverBudgetError(f"no widths tried are inside the budget of {limit:.4g}; raise it, or fit psi again")
    return best


def fit_widths(model: EnergyModel, limit: float, wanted: Sequence[float]) -> tuple[int, ...]:
    """Return whole widths that fill the budget ``limit`` of psi in the proportions of ``wanted``, channel by channel.

    While psi is above the limit, the width that is largest beside ``wanted`` loses a channel; while another channel
    fits, the width that is smallest beside ``wanted`` gets it.

    >>> psi = EnergyModel((0.0, 1.0, 8.0, 1.0), full=(10, 10))
    >>> fit_widths(psi, 10.0, [3.0, 6.0]), fit_widths(psi, 2.5, [3.0, 6.0]), fit_widths(psi, 0.5, [3.0, 6.0])
    ((10, 10), (3, 6), (1, 2))
    """
    shares = np.maximum(np.asarray(wanted, dtype=float), 1.0)
    widths = np.clip(np.round(shares), 1, model.full)
    while float(model(widths)) > limit and widths.max() > 1:
        widths[np.argmax(np.where(widths > 1, (widths - 0.5) / shares, -np.inf))] -= 1

    def fits(u: int) -> bool:
        more = widths.copy()
        more[u] += 1
        return widths[u] < model.full[u] and float(model(more)) <= limit

    while places := [u for u in range(len(widths)) if fits(u)]:
        widths[min(places, key=lambda u: (widths[u] + 0.5) / shares[u])] += 1
    return tuple(int(width) for width in widths)
