"""Training, pruning and fine-tuning: from a network to a smaller dense one inside its energy budget."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from gdpa.paper.applications.energy_budget.budget import SMOOTHING, EnergyBudget, EnergyModel, fit_energy, sample_widths
from gdpa.paper.applications.energy_budget.network import Chain, Meter
from gdpa.torch import ConstrainedOptimizer, constrain

#: Rounds of rescaling the limit of psi by the meter's reading. psi is right to a few percent, so few are needed.
ROUNDS = 10
#: Networks measured to fit psi; a chain of L layers has L + 1 coefficients.
MEASUREMENTS = 200
#: Of the multipliers. The constraints are known exactly at every step, so it may be larger than for sampled ones.
DUAL_RATE = 3.0
#: Adam's step of the shares s_u / S_u.
SHARES_RATE = 1e-3


class OverBudgetError(RuntimeError):
    """No choice of widths that was tried is inside the budget on the meter."""


class Pruned(NamedTuple):
    """A smaller dense network, its hidden widths, the meter's reading, and the channels kept of each full width."""

    network: nn.Sequential
    widths: tuple[int, ...]
    energy: float
    keep: tuple[torch.Tensor, ...]


def prune(budgeted: EnergyBudget, meter: Meter) -> Pruned:
    """Cut the channels that training made small and return a dense network whose measured energy is in the budget.

    Of every width the channels with the largest norms stay. How many: phi_d of every width, rounded, and scaled
    alike to fill the budget, because training leaves phi_d a little above or below it. psi makes this choice and the
    meter checks it: the limit given to psi is rescaled until the measured energy is inside the budget and close to it.

    Raises:
        OverBudgetError: the meter exceeds the budget for every choice tried.
    """
    chain, model = budgeted.chain, budgeted.model
    with torch.no_grad():
        scores = chain.squared_norms()
        wanted = budgeted.counts().tolist()
    return prune_by_norm(chain, scores, meter, budgeted.limit, lambda bound: fit_widths(model, bound, wanted))


def prune_by_norm(
    chain: Chain, scores: Sequence[torch.Tensor], meter: Meter, limit: float, choose: Callable[[float], Sequence[int]]
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
                best = Pruned(network, widths, energy, keep)
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


class Loader(Protocol):
    """Batches (inputs, targets), a known number of them, such as a torch DataLoader."""

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...


class Batches:
    """Shuffled batches of two tensors; the last ones that do not fill a batch are left out.

    >>> data = Batches(torch.arange(5.0)[:, None], torch.arange(5), size=2, seed=0)
    >>> len(data), [len(targets) for _, targets in data]
    (2, [2, 2])
    """

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor, *, size: int = 64, seed: int = 0) -> None:
        if len(inputs) != len(targets):
            raise ValueError(f"targets must be one per input, got {len(targets)} for {len(inputs)} inputs")
        if not 1 <= size <= len(inputs):
            raise ValueError(f"size must lie between 1 and the number of samples {len(inputs)}, got {size}")
        self._inputs, self._targets, self._size = inputs, targets, size
        self._generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self._inputs) // self._size

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = torch.randperm(len(self._inputs), generator=self._generator)
        for k in range(len(self)):
            chosen = order[k * self._size : (k + 1) * self._size]
            yield self._inputs[chosen], self._targets[chosen]


def train(
    network: nn.Module,
    data: Loader,
    *,
    epochs: int,
    lr: float = 1e-3,
    watch: Callable[[float], None] = lambda done: None,
) -> None:
    """Train a classifier by Adam with a cosine decay of the step to 0; ``watch`` gets the share of steps done."""
    optimizer = torch.optim.Adam(network.parameters(), lr, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(epochs * len(data), 1))
    for inputs, targets in _batches(data, epochs, watch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()


def train_within(
    budgeted: EnergyBudget,
    data: Loader,
    *,
    epochs: int,
    lr: float = 1e-3,
    dual_rate: float = DUAL_RATE,
    watch: Callable[[float], None] = lambda done: None,
) -> ConstrainedOptimizer:
    """Train (W, S) in place under the budget by `gdpa.torch.constrain` around Adam and return the optimizer.

    Adam's steps for the weights (``lr``) and for the shares s_u / S_u are constant: `train` decays afterwards.
    """
    base = torch.optim.Adam(budgeted.parameter_groups(lr, SHARES_RATE), fused=True)
    optimizer = constrain(base, budgeted.names, dual_rate, rule="damped", average=False)
    for inputs, targets in _batches(data, epochs, watch):
        optimizer.zero_grad()
        outputs, g = budgeted(inputs)
        optimizer.lagrangian(nn.functional.cross_entropy(outputs, targets), g).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return optimizer


def measure_model(network: nn.Sequential, meter: Meter, *, count: int = MEASUREMENTS, seed: int = 0) -> EnergyModel:
    """Return psi of a network: the meter's energy at random widths, fitted by `fit_energy`."""
    chain = Chain(network)
    widths = sample_widths(chain.widths, count, seed)
    energies = [meter(chain.of_widths(chosen)) for chosen in widths]
    return fit_energy(widths, energies, chain.widths).model


class Compressed(NamedTuple):
    """The smaller network, fine-tuned; the full one trained under the budget; the prices of the constraints by name."""

    pruned: Pruned
    budgeted: EnergyBudget
    multipliers: dict[str, float]


def compress(
    network: nn.Sequential,
    data: Loader,
    meter: Meter,
    limit: float,
    *,
    epochs: int = 5,
    fine_tune: int = 5,
    lr: float = 1e-3,
    model: EnergyModel | None = None,
    smoothing: float = SMOOTHING,
    watch: Callable[[float], None] = lambda done: None,
) -> Compressed:
    """Return a smaller dense network whose energy is at most ``limit``: train under the budget, prune, fine-tune.

    Args:
        network: a trained chain of layers, see `Chain`; it is left as it is.
        data: batches of inputs and targets.
        meter: the true energy of a network in joules, counted or measured.
        limit: the budget in joules.
        epochs, fine_tune: how often to go through the data under the budget, and afterwards with the smaller network.
        lr: Adam's step.
        model: psi; by default fitted to `MEASUREMENTS` readings of the meter.
        smoothing: see `EnergyBudget`.
        watch: gets the share of the work done.

    Example:
        >>> from gdpa.paper.applications.energy_budget import Batches, CountedEnergy
        >>> _ = torch.manual_seed(0)
        >>> inputs = torch.randn(256, 4)
        >>> data = Batches(inputs, (inputs[:, 0] * inputs[:, 1] > 0).long(), size=32)
        >>> net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        >>> meter = CountedEnergy(inputs[:1])
        >>> small = compress(net, data, meter, 0.25 * meter(net)).pruned
        >>> small.widths, bool(meter(small.network) <= 0.25 * meter(net))
        ((7,), True)
    """
    psi = measure_model(network, meter) if model is None else model
    total = max(epochs + fine_tune, 1)
    budgeted = EnergyBudget(copy.deepcopy(network), psi, limit, smoothing=smoothing)
    optimizer = train_within(budgeted, data, epochs=epochs, lr=lr, watch=lambda done: watch(done * epochs / total))
    pruned = prune(budgeted, meter)
    last = (epochs / total, fine_tune / total)
    train(pruned.network, data, epochs=fine_tune, lr=lr, watch=lambda done: watch(last[0] + done * last[1]))
    energy = meter(pruned.network)  # widths decide it, so training cannot change it, unless a meter is noisy
    if energy > limit:
        raise OverBudgetError(f"the meter reads {energy:.4g} after fine-tuning, over the budget of {limit:.4g}")
    prices = dict(zip(budgeted.names, optimizer.multipliers.tolist(), strict=True))
    return Compressed(pruned._replace(energy=energy), budgeted, prices)


def _batches(data: Loader, epochs: int, watch: Callable[[float], None]) -> Iterator[Any]:
    """Yield the batches of all epochs; ``watch`` gets the share of them that is done."""
    for epoch in range(epochs):
        for k, batch in enumerate(data, 1):
            yield batch
            watch((epoch * len(data) + k) / (epochs * len(data)))
