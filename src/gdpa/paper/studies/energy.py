"""Networks under an energy budget on MNIST: GDPA beside magnitude pruning and uniform widths at equal energy.

A unit is one method on one network with one seed, and goes through all budgets. Every method gets the same number of
epochs in all, and at least as many tries as GDPA: the variant with the best accuracy on held-out images is the one
whose test accuracy counts.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from timeit import timeit
from typing import Any

import numpy as np
import torch
from torch import nn

from gdpa.base.typing import Vector
from gdpa.paper.applications.energy_budget import (
    Batches,
    Chain,
    CountedEnergy,
    EnergyModel,
    compress,
    count_layers,
    evaluating,
    fit_widths,
    measure_model,
    prune_by_norm,
    train,
)
from gdpa.paper.base import Finding, Log, Section, Settings, Table, Unit, Verdict, judge
from gdpa.paper.data.images import load
from gdpa.paper.figures import Chart, Panel, Series
from gdpa.paper.records import Record

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
    """Return a network with fresh weights, by default of full widths."""
    if name == PERCEPTRON:
        a, b = widths or (300, 100)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, a), nn.ReLU(), nn.Linear(a, b), nn.ReLU(), nn.Linear(b, 10))
    a, b, c = widths or (16, 32, 128)
    return nn.Sequential(
        nn.Conv2d(1, a, 5, stride=2), nn.ReLU(), nn.Conv2d(a, b, 5, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * b, c), nn.ReLU(), nn.Linear(c, 10),
    )  # fmt: skip


Labeled = tuple[torch.Tensor, torch.Tensor]
Row = Mapping[str, Any]


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
    with evaluating(network):
        found = torch.cat([network(some).argmax(1) for some in torch.split(images, 1000)])
    return 100 * float((found == labels).double().mean())


#: A variant of a method for a budget, not yet judged: its name, the network, and more numbers for the record.
Variant = tuple[str, nn.Sequential, Mapping[str, float]]


class _Run:
    """One unit: data, psi, the dense network, and the methods, which yield their variants for a limit of energy."""

    def __init__(self, unit: Unit, log: Log) -> None:
        self.unit, self.log, self.config = unit, log, unit.config
        log.progress(0.0, "preparing the data")
        self.images, self.held_out, self.test = _load(self.config["images"], lambda text: log.progress(0.0, text))
        self.meter = CountedEnergy(torch.zeros(1, 1, 28, 28))
        torch.manual_seed(unit.seed)
        self.dense = build(unit.setting)
        self.dense_energy = self.meter(self.dense)
        self.model = measure_model(self.dense, self.meter, count=MEASUREMENTS)

    def training(self, note: str) -> dict[str, Any]:
        """Return batches that every training of the unit sees in the same order, and the listener of a training."""
        batches = Batches(*self.images, size=min(BATCH, len(self.images[1])), seed=self.unit.seed)
        return {"data": batches, "watch": lambda done: self.log.progress(done, note)}

    def gdpa(self, limit: float) -> Iterator[Variant]:
        """Train under the budget, prune and fine-tune, at every rate."""
        _, under, after = self.config["epochs"]
        for rate in self.config["rates"]:
            options = {"epochs": under, "fine_tune": 0, "lr": rate, "model": self.model}
            found = compress(self.dense, meter=self.meter, limit=limit, **options, **self.training("under the budget"))
            network = found.pruned.network
            extra = {
                "before fine-tuning": accuracy(network, self.test),
                "largest violation": found.budgeted.violations().max().item(),
                **{f"price of {name}": price for name, price in found.multipliers.items()},
            }
            train(network, epochs=after, lr=rate, **self.training("fine-tuning"))
            yield f"step {rate:g}", network, extra

    def magnitude(self, limit: float) -> Iterator[Variant]:
        """Prune the dense network by the norms of its channels, shares alike or by one ranking, and fine-tune."""
        chain = Chain(self.dense)
        with torch.no_grad():
            norms = [squares.sqrt() for squares in chain.squared_norms()]
        scores = [size / size.mean() for size in norms]
        ways: dict[str, Callable[[float], Sequence[int]]] = {
            "equal shares": partial(fit_widths, self.model, wanted=self.model.full),
            "one ranking": lambda bound: ranked_widths(self.model, bound, scores),
        }
        _, under, after = self.config["epochs"]
        for way, choose in ways.items():
            pruned = prune_by_norm(chain, scores, self.meter, limit, choose).network
            extra = {"before fine-tuning": accuracy(pruned, self.test)}
            for rate in self.config["rates"]:
                network = copy.deepcopy(pruned)
                train(network, epochs=under + after, lr=rate, **self.training("fine-tuning"))
                yield f"{way}, step {rate:g}", network, extra

    def uniform(self, limit: float) -> Iterator[Variant]:
        """Train a network whose widths are all scaled alike."""
        scores = [torch.ones(width) for width in self.model.full]
        choose = partial(fit_widths, self.model, wanted=self.model.full)
        return self.from_scratch(prune_by_norm(Chain(self.dense), scores, self.meter, limit, choose).widths)

    def from_scratch(self, widths: Sequence[int]) -> Iterator[Variant]:
        """Train fresh weights at these widths for as many epochs as the whole of another method, at every rate."""
        for rate in self.config["rates"]:
            torch.manual_seed(self.unit.seed)
            network = build(self.unit.setting, widths)
            train(network, epochs=sum(self.config["epochs"]), lr=rate, **self.training("from scratch"))
            yield f"step {rate:g}", network, {}

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
    train(work.dense, epochs=unit.config["epochs"][0], lr=DENSE_RATE, **work.training("dense"))
    chosen: list[Row] = []

    def choose(method: str, budget: float, variants: Iterable[Variant]) -> tuple[nn.Sequential, Row]:
        """Log every variant and return the first that is best on the held-out images, with its row."""
        judged = []
        for variant, network, extra in variants:
            energy = work.meter(network) / work.dense_energy
            row = {"method": method, "budget": budget, "variant": variant, "energy": energy, **work.describe(network)}
            log.row(**row)
            judged.append((network, {**row, **extra}))
        return max(judged, key=lambda pair: pair[1]["validation"])

    for budget in unit.config["budgets"]:
        network, row = choose(unit.method, budget, makers[unit.method](budget * work.dense_energy))
        dense_seconds, seconds = _seconds([work.dense, network], work.test[0][:TIMED_IMAGES])
        chosen.append({**row, "seconds": seconds, "dense seconds": dense_seconds})
        if unit.method == GDPA:
            chosen.append(choose(SCRATCH, budget, work.from_scratch(Chain(network).widths))[1])
    dense = {
        **work.describe(work.dense),
        "energy_joules": work.dense_energy,
        "layers": [layer._asdict() for layer in count_layers(work.dense, work.meter.example)],
    }
    return {"dense": dense, "chosen": chosen, "fit_error": work.model.error, "psi": list(work.model.coefficients)}


def ranked_widths(model: EnergyModel, limit: float, scores: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Return the widths left when the smallest scores of all go first, until psi is at most ``limit``."""
    widths = np.asarray(model.full, dtype=float)
    for _, u in sorted((value, u) for u, score in enumerate(scores) for value in score.tolist()):
        if float(model(widths)) <= limit:
            break
        if widths[u] > 1:
            widths[u] -= 1
    return tuple(int(width) for width in widths)


def _seconds(networks: Sequence[nn.Module], images: torch.Tensor) -> list[float]:
    """Return the shortest time of a call of each network, called in turn."""
    with torch.no_grad():
        rounds = [[timeit(partial(network, images), number=1) for network in networks] for _ in range(TIMED_CALLS)]
    return [min(times) for times in zip(*rounds, strict=True)]


#: The color of the dense network, which no method has.
DENSE = 6
#: By method: a dashed line shows a solid one under it, because pruning in equal shares has the uniform widths.
STYLES = ("line", "line", "dashed", "dotted")

INTRODUCTION = (
    "min loss(W) subject to phi(w_u) <= s_u for every hidden width u and psi(S) <= E, a motivating example of the "
    "paper, after Yang et al. (CVPR 2019). GDPA around Adam trains the weights and the widths of a dense network "
    "under the budget; channels that became small are cut out, and the smaller dense network is fine-tuned. "
    "Beside it: pruning the dense network by the norms of its channels, in equal shares or by one ranking over all "
    "widths; and networks whose widths are scaled alike, trained from scratch. What equal shares leave of the "
    "budget is filled channel by channel. Energy is counted for one image: "
    "4.6 pJ per multiply-accumulate and 640 pJ per number moved to or from memory. psi, the bilinear model, is "
    "fitted to 200 counted networks; 'true energy' is the count of the network that results."
)


#: The chosen networks by (network, budget, method), a row per seed; "dense" in a row is the row of the dense network.
Cells = dict[tuple[str, float, str], list[Row]]


def section(records: Sequence[Record]) -> Section:
    """Return the figures, tables and verdicts."""
    if not records:
        return Section(INTRODUCTION, (), (), ())
    networks = sorted({record.unit.setting for record in records}, reverse=True)
    budgets = sorted({b for record in records for b in record.unit.config["budgets"]}, reverse=True)
    cells: Cells = {key: [] for key in itertools.product(networks, budgets, (*METHODS, SCRATCH))}
    for record in records:
        for row in record.summary["chosen"]:
            cells[record.unit.setting, row["budget"], row["method"]].append({**row, "dense": record.summary["dense"]})
    cells = {key: rows for key, rows in cells.items() if rows}
    return Section(
        f"{INTRODUCTION} {_settings(records, networks)}",
        charts=(_accuracy_chart(cells), _widths_chart(cells)),
        tables=(_accuracy_table(cells), _size_table(cells), _training_table(records, cells)),
        verdicts=_verdicts(cells),
    )


def _settings(records: Sequence[Record], networks: Sequence[str]) -> str:
    """Return the settings of the runs in words."""
    config = records[0].unit.config
    first, under, after = config["epochs"]
    seeds = sorted({record.unit.seed for record in records})
    rates = " and ".join(f"{rate:g}" for rate in config["rates"])
    errors = ", ".join(
        f"{100 * max(r.summary['fit_error'] for r in records if r.unit.setting == network):.2g} % ({network})"
        for network in networks
    )
    return (
        f"{config['images']} training images, seed{'s' if len(seeds) > 1 else ''} "
        f"{', '.join(map(str, seeds))}; settings were chosen on seed 0 by the held-out images. Every method has "
        f"{first + under + after} epochs: GDPA {first} dense, {under} under the budget, {after} of fine-tuning; "
        f"pruning {first} dense and {under + after} of fine-tuning; uniform widths all of them. Steps of Adam "
        f"tried: {rates}; the variant that is best on 5000 held-out images counts. psi differs from the "
        f"counts it is fitted to by at most {errors} of the dense energy."
    )


def _column(rows: Sequence[Row], name: str) -> Vector:
    return np.array([row[name] for row in rows])


def _dense(cells: Cells, network: str) -> list[Row]:
    return [row["dense"] for (name, _, _), rows in cells.items() if name == network for row in rows]


def _curve(method: str, color: int, x: Any, values: Vector) -> list[Series]:
    """Return a line with its band, and points on it; ``values`` has a row per seed."""
    mean = values.mean(axis=0)
    line = Series(method, x, mean, STYLES[color], color, values.min(axis=0), values.max(axis=0))
    return [line, Series(method, x, mean, "points", color)]


def _accuracy_chart(cells: Cells) -> Chart:
    """Return test accuracy against the energy used, one panel per network."""
    panels, ends = [], [100 * pick(budget for _, budget, _ in cells) for pick in (min, max)]
    for network in dict.fromkeys(name for name, _, _ in cells):
        series: list[Series] = []
        for color, method in enumerate((*METHODS, SCRATCH)):
            if found := [rows for (name, _, own), rows in cells.items() if (name, own) == (network, method)]:
                energy = [100 * float(_column(rows, "energy").mean()) for rows in found]
                series += _curve(method, color, energy, np.array([_column(rows, "test") for rows in found]).T)
        dense = float(_column(_dense(cells, network), "test").mean())
        series.append(Series("dense network", ends, [dense, dense], "dashed", DENSE))
        panels.append(Panel(network, "true energy (% of dense)", "test accuracy (%)", series, log_x=False, log_y=False))
    caption = (
        "Lines: means over seeds; bands: least and most. All methods have the same number of epochs in all; the dense "
        "network has fewer, those before pruning."
    )
    return Chart("energy-accuracy", "Test accuracy against energy", caption, panels, columns=2)


def _widths_chart(cells: Cells) -> Chart:
    """Return the share of channels kept in every hidden width, one panel per network and budget."""
    panels = []
    places = dict.fromkeys((network, budget) for network, budget, _ in cells)
    for network, budget in places:
        full = _widths(_dense(cells, network)[0])
        ticks = {float(place): f"{place} (of {width})" for place, width in enumerate(full, 1)}
        series: list[Series] = []
        for color, method in enumerate(METHODS):
            if rows := cells.get((network, budget, method)):
                shares = np.array([_widths(row) for row in rows]) / full * 100
                series += _curve(method, color, np.arange(1, len(full) + 1), shares)
        name = f"{network}, {budget:.0%} of the energy"
        panels.append(Panel(name, "hidden width u", "channels kept (%)", series, False, False, ticks))
    return Chart(
        "energy-widths",
        "Channels that are kept in each hidden width",
        "Shares of the dense widths, which stand in brackets. Lines: means over seeds; bands: least and most.",
        panels,
        columns=len({budget for _, budget in places}),
    )


def _widths(row: Row) -> Vector:
    return np.array([int(width) for width in row["widths"].split("-")])


def _accuracy_table(cells: Cells) -> Table:
    rows: list[list[Any]] = []
    for (network, budget, method), found in cells.items():
        dense, ours = _dense(cells, network), cells.get((network, budget, GDPA))
        if network not in {row[0] for row in rows}:
            rows.append([network, "all", "dense", dense[0]["widths"], 1.0, _spread(dense, "test"), None, None])
        before = _spread(found, "before fine-tuning") if "before fine-tuning" in found[0] else None
        gap = _column(ours, "test").mean() - _column(found, "test").mean() if ours and method != GDPA else None
        better = None if gap is None else f"{gap:+.2f}"
        widths, most = ", ".join(row["widths"] for row in found), max(row["energy"] for row in found)
        rows.append([network, f"{budget:.0%}", method, widths, most, _spread(found, "test"), before, better])
    head = (
        *("network", "budget", "method", "widths, by seed", "largest true energy / dense"),
        *("test accuracy in %", "before fine-tuning", "GDPA is better by"),
    )
    return Table("Accuracy at equal energy: means over seeds, in brackets least and most", head, rows)


def _ratios(found: Sequence[Row]) -> tuple[float, float, float]:
    """Return how many times smaller parameters, multiply-accumulates and time of a call are than the dense ones."""
    parameters, macs = (min(row["dense"][name] / row[name] for row in found) for name in ("parameters", "macs"))
    return parameters, macs, min(row["dense seconds"] / row["seconds"] for row in found)


def _size_table(cells: Cells) -> Table:
    rows = []
    for (network, budget, method), found in cells.items():
        if method == GDPA:
            parameters, macs, times = _ratios(found)
            numbers = (parameters, macs, min(1 / row["energy"] for row in found), times)
            rows.append([network, f"{budget:.0%}", *(f"{number:.1f}" for number in numbers)])
    head = ("network", "budget", "parameters", "multiply-accumulates", "energy", "time of a call with 256 images")
    return Table(f"How many times smaller the network of {GDPA} is than the dense one (least over seeds)", head, rows)


def _training_table(records: Sequence[Record], cells: Cells) -> Table:
    tried: dict[tuple[str, str], set[str]] = {}
    for record in records:
        columns = (record.columns.get(name, ()) for name in ("method", "variant"))
        own = {str(variant) for method, variant in zip(*columns, strict=True) if method == record.unit.method}
        tried.setdefault((record.unit.setting, record.unit.method), set()).update(own)
    rows: list[list[Any]] = []
    for (network, budget, method), found in cells.items():
        if method != SCRATCH:
            prices = [", ".join(f"{row[key]:.3g}" for key in row if key.startswith("price of ")) for row in found]
            violations = [f"{row['largest violation']:.3f}" for row in found if "largest violation" in row]
            last = ("; ".join(prices) if any(prices) else None, ", ".join(violations) or None)
            chosen = "; ".join(row["variant"] for row in found)
            rows.append([network, f"{budget:.0%}", method, len(tried.get((network, method), ())), chosen, *last])
    head = (
        *("network", "budget", "method", "variants tried", "chosen, by seed"),
        *("GDPA's multipliers (widths, energy)", "largest violation before pruning"),
    )
    return Table("Variants and multipliers", head, rows)


def _verdicts(cells: Cells) -> list[Verdict]:
    """Judge energy, accuracy beside each rival, and size."""
    inside: list[Finding] = []
    smaller: list[Finding] = []
    as_good: dict[str, list[Finding]] = {rival: [] for rival in METHODS[1:]}
    for (network, budget, method), found in cells.items():
        if method != GDPA:
            continue
        where = f"{network}, {budget:.0%}:"
        shares = ", ".join(f"{100 * row['energy']:.2f} %" for row in found)
        inside.append((all(row["energy"] <= budget for row in found), f"{where} {shares}."))
        for rival, judged in as_good.items():
            if others := cells.get((network, budget, rival)):
                ours, theirs = _column(found, "test"), _column(others, "test")
                gap = ours.mean() - theirs.mean()
                several = 1 < len(ours) == len(theirs)
                each = f" (by seed {', '.join(f'{value:+.2f}' for value in ours - theirs)})" if several else ""
                words = f"{'better' if gap >= 0 else 'worse'} by {abs(gap):.2f} points{each}."
                judged.append((bool(gap >= 0), f"{where} {words}"))
        parameters, macs, times = _ratios(found)
        words = f"{parameters:.1f} times fewer parameters, {macs:.1f} times fewer multiply-accumulates, a call"
        smaller.append((min(parameters, macs, times) > 1, f"{where} {words} {times:.1f} times as fast."))
    own: dict[str, Any] = {"ours": True, "strict": True}
    opening = "Shares of the dense energy, by seed. "
    size = "parameters, multiply-accumulates and time of a call on the CPU"
    return [
        judge("The pruned network's true energy is inside the budget in every seed.", inside, opening, **own),
        *(
            judge(f"{GDPA}'s test accuracy is at least that of {rival} at the same energy.", judged, **own)
            for rival, judged in as_good.items()
        ),
        judge(f"The pruned network is really smaller: {size}.", smaller, **own),
    ]


def _spread(rows: Sequence[Row], name: str) -> str:
    """Return a mean, with its range if there is one."""
    values = _column(rows, name)
    mean = f"{values.mean():.2f}"
    return mean if values.min() == values.max() else f"{mean} ({values.min():.2f} to {values.max():.2f})"
