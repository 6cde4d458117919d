"""From a network trained under an energy budget to a smaller dense one inside the budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from gdpa.applications.energy_budget.budgeted import EnergyBudget
from gdpa.applications.energy_budget.chain import Chain
from gdpa.applications.energy_budget.counting import Meter
from gdpa.applications.energy_budget.model import EnergyModel

#: Rounds of rescaling the limit of psi by what the meter says; psi is right to a few percent, so two or three serve.
ROUNDS = 8


class OverBudgetError(RuntimeError):
    """No choice of widths that was tried is inside the budget on the meter."""


class Pruned(NamedTuple):
    """A smaller dense network.

    Attributes:
        network: the network.
        widths: its hidden widths.
        energy: what the meter says of it, at most the budget.
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

    Of width u the channels with the largest norms stay: as many as have a norm of at least d_u, and no more than s_u.
    If the budget is then exceeded, channels with the smallest norm per joule saved go; if it leaves space, channels
    with the largest norm per joule come back. psi makes these choices, and the meter checks them: the limit given to
    psi is rescaled until the measured energy is inside the budget, and close to it.

    Args:
        budgeted: the network after training.
        meter: the true energy of a network, see `Meter`.

    Raises:
        OverBudgetError: if the meter exceeds the budget for every choice tried.
    """
    chain, model, limit = budgeted.chain, budgeted.model, budgeted.limit
    with torch.no_grad():
        norms = [squares.sqrt() for squares in chain.squared_norms()]
        scales = budgeted.squared_scales.sqrt()
        alive = torch.stack([(size >= d).sum() for size, d in zip(norms, scales, strict=True)])
        wanted = torch.minimum(alive, budgeted.widths().round().long()).clamp_min(1).tolist()
    relative = [(size / d).cpu() for size, d in zip(norms, scales, strict=True)]
    return prune_by_norm(chain, relative, meter, limit, lambda bound: fit_widths(model, bound, wanted, relative), model)


def prune_by_norm(
    chain: Chain,
    scores: Sequence[torch.Tensor],
    meter: Meter,
    limit: float,
    choose: Callable[[float], Sequence[int]],
    model: EnergyModel,
) -> Pruned:
    """Keep the channels with the largest scores; ``choose(limit)`` says how many of each width.

    The limit given to ``choose`` is rescaled by what the meter says of its choice, until that is inside ``limit``.
    """
    order = [torch.argsort(score, descending=True, stable=True) for score in scores]
    best: Pruned | None = None
    bound, seen = limit, set()
    for _ in range(ROUNDS):
        widths = tuple(choose(bound))
        if widths in seen:
            break
        seen.add(widths)
        keep = tuple(places[:width].sort().values for places, width in zip(order, widths, strict=True))
        network = chain.narrow(keep)
        energy = meter(network)
        if energy <= limit and (best is None or energy > best.energy):
            best = Pruned(network, widths, energy, float(model(np.asarray(widths, dtype=float))), keep)
        bound *= limit / energy
    if best is None:
        raise OverBudgetError(f"no widths tried are inside the budget of {limit:.4g}; raise it, or fit psi again")
    return best


def fit_widths(
    model: EnergyModel, limit: float, wanted: Sequence[int], scores: Sequence[torch.Tensor]
) -> tuple[int, ...]:
    """Return widths near ``wanted`` that fill the budget ``limit`` of psi.

    While psi is above it, the channel with the smallest score per joule that it saves goes; while another one fits,
    the channel with the largest score per joule comes.

    >>> psi = EnergyModel((0.0, 4.0, 4.0), full=(4,))
    >>> scores = [torch.tensor([3.0, 1.0, 2.0, 4.0])]
    >>> fit_widths(psi, 4.0, [4], scores), fit_widths(psi, 4.0, [1], scores), fit_widths(psi, 7.0, [1], scores)
    ((2,), (2,), (3,))
    """
    ranked = [torch.sort(score, descending=True).values.tolist() for score in scores]
    widths = np.asarray(wanted, dtype=float)

    def step(u: int, by: int) -> tuple[float, float]:
        """Return psi with one channel of width u more or less, and the joules this makes."""
        other = widths.copy()
        other[u] += by
        energy = float(model(other))
        return energy, max(abs(energy - float(model(widths))), np.finfo(float).tiny)

    while float(model(widths)) > limit:
        places = [u for u in range(len(ranked)) if widths[u] > 1]
        if not places:
            break
        widths[min(places, key=lambda u: ranked[u][int(widths[u]) - 1] / step(u, -1)[1])] -= 1
    while places := [u for u in range(len(ranked)) if widths[u] < len(ranked[u]) and step(u, 1)[0] <= limit]:
        widths[max(places, key=lambda u: ranked[u][int(widths[u])] / step(u, 1)[1])] += 1
    return tuple(int(width) for width in widths)
