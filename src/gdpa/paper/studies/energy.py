"""Networks under an energy budget on MNIST: GDPA beside magnitude pruning and uniform widths at equal energy.

A unit is one method on one network with one seed, and goes through all budgets. Every method gets the same number of
epochs in all, and at least as many tries as GDPA: the variant with the best accuracy on held-out images is the one
whose test accuracy counts.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from gdpa.paper.applications.energy_budget import (
    Batches,
    Chain,
    CountedEnergy,
    EnergyBudget,
    EnergyModel,
    count_layers,
    fit_energy,
    fit_widths,
    prune,
    prune_by_norm,
    sample_widths,
    train,
    train_within,
)
from gdpa.paper.base import Log, Section, Settings, Unit
from gdpa.paper.data.images import load
from gdpa.paper.records import Record
from gdpa.paper.studies.energy_report import describe

NAME = "energy"
title = "Networks under an energy budget on MNIST"

GDPA, MAGNITUDE, UNIFORM = "GDPA", "magnitude pruning", "uniform widths"
METHODS = (GDPA, MAGNITUDE, UNIFORM)
#: Not a contestant: GDPA's widths with fresh weights, trained for as many epochs in all.
SCRATCH = "GDPA's widths from scratch"
PERCEPTRON, CONVOLUTIONAL = "perceptron", "convolutional"
NETWORKS = (PERCEPTRON, CONVOLUTIONAL)

#: Steps of an epoch, unless the user gives another number, and images of a step; images held out to choose variants.
STEPS, BATCH, VALIDATION = 156, 64, 5_000
#: Epochs of the dense network, under the budget, and of fine-tuning.
EPOCHS = (3, 7, 5)
#: Shares of the dense network's energy.
BUDGETS = (0.25, 0.1)
#: Steps of Adam that every method tries. Chosen on `TUNING_SEED` by the held-out images, as the epochs were: there 1e-3
#: was worse than 3e-3 for every method, and GDPA at 10 % was better with 6e-3.
RATES = (3e-3, 6e-3)
#: The seed that settings were chosen on; the study's seeds come after it.
TUNING_SEED = 0
#: The step that the dense network is trained with, from which GDPA and pruning start.
DENSE_RATE = 3e-3
#: Networks at random widths that psi is fitted to.
MEASUREMENTS = 200
#: Images in a call whose time is measured, and how often each network is called.
TIMED_IMAGES, TIMED_CALLS = 256, 30


def units(settings: Settings) -> list[Unit]:
    """Every method on every network for every seed after `TUNING_SEED`.

    ``steps`` is how many steps an epoch has, and so decides how many images are used.
    """
    images = BATCH * (STEPS if settings.steps is None else settings.steps)
    config = {"images": images, "epochs": list(EPOCHS), "budgets": list(BUDGETS), "rates": list(RATES)}
    return [
        Unit(NAME, method, network, seed, config)
        for network in reversed(NETWORKS)  # the longer ones first
        for method in METHODS
        for seed in range(TUNING_SEED + 1, TUNING_SEED + 1 + settings.seeds)
    ]


def build(name: str, widths: Sequence[int] = ()) -> nn.Sequential:
    """Return a network with fresh weights, by default of full widths.

    >>> Chain(build("perceptron")).widths, Chain(build("convolutional")).widths
    ((300, 100), (16, 32, 128))
    """
    if name == PERCEPTRON:
        a, b = widths or (300, 100)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, a), nn.ReLU(), nn.Linear(a, b), nn.ReLU(), nn.Linear(b, 10))
    a, b, c = widths or (16, 32, 128)
    return nn.Sequential(
        nn.Conv2d(1, a, 5, stride=2), nn.ReLU(), nn.Conv2d(a, b, 5, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * b, c), nn.ReLU(), nn.Linear(c, 10),
    )  # fmt: skip


Labeled = tuple[torch.Tensor, torch.Tensor]


def _load(images: int, say: Callable[[str], None]) -> tuple[Labeled, Labeled, Labeled]:
    """Return the images and labels to train on, those held out, and those of the test."""
    data = load("mnist", progress=say)

    def tensors(x: Any, y: Any) -> Labeled:
        return torch.from_numpy(x[:, None] / np.float32(255)), torch.from_numpy(y.astype(np.int64))

    held_out = min(VALIDATION, len(data.train_y) // 2)
    cut = min(images, len(data.train_y) - held_out)
    held = tensors(data.train_x[-held_out:], data.train_y[-held_out:])
    return tensors(data.train_x[:cut], data.train_y[:cut]), held, tensors(data.test_x, data.test_y)


def accuracy(network: nn.Module, data: Labeled) -> float:
    """Return the share of images that the network classifies rightly, in percent."""
    images, labels = data
    network.eval()
    with torch.no_grad():
        found = torch.cat([network(some).argmax(1) for some in torch.split(images, 1000)])
    network.train()
    return 100 * float((found == labels).double().mean())


class _Found(NamedTuple):
    """A network that a method made for a budget, not yet judged."""

    variant: str
    network: nn.Sequential
    extra: Mapping[str, float]


class _Run:
    """One unit: the data, psi, the dense network, and the trainings."""

    def __init__(self, unit: Unit, log: Log) -> None:
        self.unit, self.log, self.config = unit, log, unit.config
        log.progress(0.0, "preparing the data")
        self.images, self.held_out, self.test = _load(self.config["images"], lambda text: log.progress(0.0, text))
        self.meter = CountedEnergy(torch.zeros(1, 1, 28, 28))
        torch.manual_seed(unit.seed)
        self.dense = build(unit.setting)
        self.dense_energy = self.meter(self.dense)
        chain = Chain(self.dense)
        self.full = chain.widths
        sampled = sample_widths(self.full, MEASUREMENTS)
        self.model, self.fit_error = fit_energy(sampled, [self.meter(chain.of_widths(w)) for w in sampled], self.full)

    def batches(self) -> Batches:
        """Return batches that every training of the unit sees in the same order."""
        return Batches(*self.images, size=min(BATCH, len(self.images[1])), seed=self.unit.seed)

    def trained(self, network: nn.Sequential, epochs: int, rate: float, note: str) -> nn.Sequential:
        """Train and return a network."""
        train(network, self.batches(), epochs=epochs, lr=rate, watch=lambda done: self.log.progress(done, note))
        return network

    def gdpa(self, limit: float) -> Iterator[_Found]:
        """Train under the budget, prune and fine-tune, at every rate."""
        _, under, after = self.config["epochs"]
        for rate in self.config["rates"]:
            budgeted = EnergyBudget(copy.deepcopy(self.dense), self.model, limit)
            optimizer = train_within(
                budgeted,
                self.batches(),
                epochs=under,
                lr=rate,
                watch=lambda done: self.log.progress(done, "under the budget"),
            )
            pruned = prune(budgeted, self.meter)
            extra = {
                "before fine-tuning": accuracy(pruned.network, self.test),
                "largest violation": budgeted.violations().max().item(),
                **{f"price of {n}": p for n, p in zip(budgeted.names, optimizer.multipliers.tolist(), strict=True)},
            }
            yield _Found(f"step {rate:g}", self.trained(pruned.network, after, rate, "fine-tuning"), extra)

    def magnitude(self, limit: float) -> Iterator[_Found]:
        """Prune the dense network by the norms of its channels, shares alike or by one ranking, and fine-tune."""
        chain = Chain(self.dense)
        with torch.no_grad():
            norms = [squares.sqrt() for squares in chain.squared_norms()]
        scores = [size / size.mean() for size in norms]
        ways: dict[str, Callable[[float], Sequence[int]]] = {
            "equal shares": lambda bound: fit_widths(self.model, bound, self.full),
            "one ranking": lambda bound: ranked_widths(self.model, bound, scores),
        }
        _, under, after = self.config["epochs"]
        for way, choose in ways.items():
            pruned = prune_by_norm(chain, scores, self.meter, limit, choose)
            extra = {"before fine-tuning": accuracy(pruned.network, self.test)}
            for rate in self.config["rates"]:
                network = self.trained(copy.deepcopy(pruned.network), under + after, rate, "fine-tuning")
                yield _Found(f"{way}, step {rate:g}", network, extra)

    def uniform(self, limit: float) -> Iterator[_Found]:
        """Train a network whose widths are all scaled alike."""
        chain, scores = Chain(self.dense), [torch.ones(width) for width in self.full]
        pruned = prune_by_norm(chain, scores, self.meter, limit, lambda bound: fit_widths(self.model, bound, self.full))
        return self.from_scratch(pruned.widths)

    def from_scratch(self, widths: Sequence[int]) -> Iterator[_Found]:
        """Train fresh weights at these widths for as many epochs as the whole of another method, at every rate."""
        for rate in self.config["rates"]:
            torch.manual_seed(self.unit.seed)
            network = build(self.unit.setting, widths)
            yield _Found(f"step {rate:g}", self.trained(network, sum(self.config["epochs"]), rate, "from scratch"), {})

    def describe(self, network: nn.Sequential) -> dict[str, Any]:
        """Return the size and the accuracy of a network."""
        return {
            "widths": "-".join(map(str, Chain(network).widths)),
            "parameters": sum(p.numel() for p in network.parameters()),
            "macs": sum(layer.macs for layer in count_layers(network, self.meter.example)),
            "validation": accuracy(network, self.held_out),
            "test": accuracy(network, self.test),
        }


def run(unit: Unit, log: Log) -> Mapping[str, Any]:
    """Run one method through all budgets and return its chosen networks beside the dense one."""
    work = _Run(unit, log)
    makers = {GDPA: work.gdpa, MAGNITUDE: work.magnitude, UNIFORM: work.uniform}
    work.trained(work.dense, unit.config["epochs"][0], DENSE_RATE, "dense")
    chosen: list[dict[str, Any]] = []

    def best(method: str, budget: float, variants: Iterable[_Found]) -> tuple[dict[str, Any], _Found]:
        """Log every variant and return the first that is best on the held-out images."""
        judged = []
        for found in variants:
            energy = work.meter(found.network) / work.dense_energy
            row = {"method": method, "budget": budget, "variant": found.variant, "energy": energy}
            judged.append(({**row, **work.describe(found.network)}, found))
            log.row(**judged[-1][0])
        return max(judged, key=lambda pair: pair[0]["validation"])

    for budget in unit.config["budgets"]:
        row, found = best(unit.method, budget, makers[unit.method](budget * work.dense_energy))
        seconds = _seconds([work.dense, found.network], work.test[0][:TIMED_IMAGES])
        chosen.append({**row, **found.extra, "seconds": seconds[1], "dense seconds": seconds[0]})
        if unit.method == GDPA:
            chosen.append(best(SCRATCH, budget, work.from_scratch(Chain(found.network).widths))[0])
    dense = {
        **work.describe(work.dense),
        "energy_joules": work.dense_energy,
        "layers": [layer._asdict() for layer in count_layers(work.dense, work.meter.example)],
    }
    return {"dense": dense, "chosen": chosen, "fit_error": work.fit_error, "psi": list(work.model.coefficients)}


def ranked_widths(model: EnergyModel, limit: float, scores: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Return the widths left when the smallest scores of all go first, until psi is at most ``limit``.

    >>> psi = EnergyModel((0.0, 1.0, 8.0, 1.0), full=(2, 2))
    >>> ranked_widths(psi, 6.0, [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])])
    (1, 2)
    """
    widths = np.asarray(model.full, dtype=float)
    for _, u in sorted((value, u) for u, score in enumerate(scores) for value in score.tolist()):
        if float(model(widths)) <= limit:
            break
        if widths[u] > 1:
            widths[u] -= 1
    return tuple(int(width) for width in widths)


def _seconds(networks: Sequence[nn.Module], images: torch.Tensor) -> list[float]:
    """Return the shortest time of a call of each network, called in turn."""
    times: list[list[float]] = [[] for _ in networks]
    with torch.no_grad():
        for _ in range(TIMED_CALLS):
            for network, found in zip(networks, times, strict=True):
                start = time.perf_counter()
                network(images)
                found.append(time.perf_counter() - start)
    return [min(found) for found in times]


def section(records: Sequence[Record]) -> Section:
    """Return the figures, tables and verdicts."""
    return describe(records, METHODS, SCRATCH)
