"""Training, compressing and fine-tuning: the loops around the problem."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from gdpa.paper.applications.energy_budget.budgeted import SMOOTHING, EnergyBudget
from gdpa.paper.applications.energy_budget.chain import Chain
from gdpa.paper.applications.energy_budget.counting import Meter
from gdpa.paper.applications.energy_budget.model import EnergyModel, fit_energy, sample_widths
from gdpa.paper.applications.energy_budget.pruning import OverBudgetError, Pruned, prune
from gdpa.torch import ConstrainedOptimizer, constrain

#: Networks measured to fit psi; a chain of L layers has L + 1 coefficients.
MEASUREMENTS = 200
#: Of the multipliers. The constraints are known exactly at every step, so it may be larger than for sampled ones.
DUAL_RATE = 3.0

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Loader(Protocol):
    """What is trained on: batches (inputs, targets), a known number of them; a torch DataLoader is one."""

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
    loss: Loss = nn.functional.cross_entropy,
    watch: Callable[[float], None] = lambda done: None,
) -> None:
    """Train a network by Adam with a cosine decay of the step to 0; ``watch`` gets the share of steps done."""
    optimizer = torch.optim.Adam(network.parameters(), lr, fused=True)
    steps = epochs * len(data)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: (1 + math.cos(math.pi * k / max(steps, 1))) / 2)
    for step, (inputs, targets) in enumerate(_epochs(data, epochs)):
        optimizer.zero_grad()
        value: Any = loss(network(inputs), targets)
        value.backward()
        optimizer.step()
        schedule.step()
        watch((step + 1) / steps)


def train_within(
    budgeted: EnergyBudget,
    data: Loader,
    *,
    epochs: int,
    lr: float = 1e-3,
    shares_lr: float = 1e-3,
    dual_rate: float = DUAL_RATE,
    loss: Loss = nn.functional.cross_entropy,
    watch: Callable[[float], None] = lambda done: None,
) -> ConstrainedOptimizer:
    """Train (W, S) under the budget by `gdpa.torch.constrain` around Adam and return the optimizer.

    Args:
        budgeted: the network and its budget, changed in place.
        data: batches of inputs and targets.
        epochs: how often to go through them.
        lr, shares_lr: Adam's steps for the weights and for the shares s_u / S_u, constant: `train` decays afterwards.
        dual_rate: of the multipliers.
        loss: maps outputs and targets to the objective.
        watch: gets the share of steps done.
    """
    base = torch.optim.Adam(budgeted.parameter_groups(lr, shares_lr), fused=True)
    optimizer = constrain(base, budgeted.names, dual_rate, rule="damped", average=False)
    steps = epochs * len(data)
    for step, (inputs, targets) in enumerate(_epochs(data, epochs)):
        optimizer.zero_grad()
        outputs, g = budgeted(inputs)
        value: Any = optimizer.lagrangian(loss(outputs, targets), g)
        value.backward()
        optimizer.step()
        watch((step + 1) / steps)
    return optimizer


def measure_model(network: nn.Sequential, meter: Meter, *, count: int = MEASUREMENTS, seed: int = 0) -> EnergyModel:
    """Return psi of a network: the meter's energy at random widths, fitted by `fit_energy`."""
    chain = Chain(network)
    widths = sample_widths(chain.widths, count, seed)
    energies = [meter(chain.of_widths(chosen)) for chosen in widths]
    return fit_energy(widths, energies, chain.widths).model


class Compressed(NamedTuple):
    """What `compress` returns.

    Attributes:
        pruned: the smaller dense network, fine-tuned, with its widths and its energy.
        budgeted: the network of full size after training under the budget.
        multipliers: the prices of the constraints, by name.
    """

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
    fine_tune_lr: float = 1e-3,
    model: EnergyModel | None = None,
    smoothing: float = SMOOTHING,
    loss: Loss = nn.functional.cross_entropy,
    watch: Callable[[float], None] = lambda done: None,
) -> Compressed:
    """Return a smaller dense network whose energy is at most ``limit``: train under the budget, prune, fine-tune.

    Args:
        network: a trained chain of layers, see `Chain`; it is left as it is.
        data: batches of inputs and targets.
        meter: the true energy of a network in joules, counted or measured.
        limit: the budget in joules.
        epochs, fine_tune: how often to go through the data under the budget, and afterwards with the smaller network.
        lr, fine_tune_lr: Adam's steps.
        model: psi; by default fitted to `MEASUREMENTS` readings of the meter.
        smoothing: see `EnergyBudget`.
        loss: maps outputs and targets to the objective.
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
    optimizer = train_within(
        budgeted, data, epochs=epochs, lr=lr, loss=loss, watch=lambda done: watch(done * epochs / total)
    )
    pruned = prune(budgeted, meter)
    train(
        pruned.network, data, epochs=fine_tune, lr=fine_tune_lr, loss=loss,
        watch=lambda done: watch((epochs + done * fine_tune) / total),
    )  # fmt: skip
    energy = meter(pruned.network)  # widths decide it, so training cannot change it, unless a meter is noisy
    if energy > limit:
        raise OverBudgetError(f"the meter reads {energy:.4g} after fine-tuning, over the budget of {limit:.4g}")
    prices = dict(zip(budgeted.names, optimizer.multipliers.tolist(), strict=True))
    return Compressed(pruned._replace(energy=energy), budgeted, prices)


def _epochs(data: Iterable[Any], epochs: int) -> Iterator[Any]:
    for _ in range(epochs):
        yield from data
