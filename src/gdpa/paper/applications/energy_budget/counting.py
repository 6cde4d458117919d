"""What one call of a network costs: multiply-accumulates and memory traffic by layer, energy counted or measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn

from gdpa.paper.applications.energy_budget.chain import WEIGHTED

#: Maps a network to the energy of one call, in joules. `CountedEnergy` and `MeasuredEnergy` are two.
Meter: TypeAlias = Callable[[nn.Module], float]


class LayerCost(NamedTuple):
    """What one layer does in one call.

    Attributes:
        name: the layer's name in the network.
        parameters: weights and biases.
        macs: multiply-accumulates.
        words: numbers moved between memory and the arithmetic units, each once: parameters and inputs read, outputs
            written.
    """

    name: str
    parameters: int
    macs: int
    words: int


def count_layers(network: nn.Module, example: torch.Tensor) -> list[LayerCost]:
    """Return what every linear and convolutional layer costs in the call ``network(example)``.

    A layer that is called twice counts twice. Bias additions are no multiply-accumulates.

    >>> count_layers(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), torch.zeros(1, 3))
    [LayerCost(name='0', parameters=8, macs=6, words=13)]
    """
    found: list[LayerCost] = []

    def note(name: str) -> Callable[..., None]:
        def hook(layer: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            parameters = sum(p.numel() for p in layer.parameters(recurse=False))
            macs = output.numel() * math.prod(layer.weight.shape[1:])  # inputs that one output is a sum over
            found.append(LayerCost(name, parameters, macs, parameters + inputs[0].numel() + output.numel()))

        return hook

    layers = [(name, layer) for name, layer in network.named_modules() if isinstance(layer, WEIGHTED)]
    hooks = [layer.register_forward_hook(note(name)) for name, layer in layers]
    training = network.training
    try:
        network.eval()
        with torch.no_grad():
            network(example)
    finally:
        network.train(training)
        for handle in hooks:
            handle.remove()
    return found


@dataclass(frozen=True)
class Costs:
    """Joules of one operation.

    The defaults are those of a 45 nm process: a 32-bit floating-point multiplication (3.7 pJ) and addition (0.9 pJ),
    and a 32-bit access to DRAM (640 pJ).

    Attributes:
        mac: of a multiply-accumulate.
        word: of a number read from or written to memory.

    References:
        M. Horowitz, "Computing's energy problem (and what we can do about it)", ISSCC 2014; the same numbers stand in
        Table 1 of Han et al., "Learning both weights and connections for efficient neural networks", NeurIPS 2015.
    """

    mac: float = 4.6e-12
    word: float = 640e-12


@dataclass(frozen=True, eq=False)
class CountedEnergy:
    """The energy of one call from counts: joules per multiply-accumulate and per word moved.

    Args:
        example: the input of one call, e.g. one image.
        costs: joules of one operation.

    >>> meter = CountedEnergy(torch.zeros(1, 3), Costs(mac=1.0, word=10.0))
    >>> meter(nn.Linear(3, 2))
    136.0
    """

    example: torch.Tensor
    costs: Costs = Costs()

    def __call__(self, network: nn.Module) -> float:
        layers = count_layers(network, self.example)
        return sum(self.costs.mac * layer.macs + self.costs.word * layer.words for layer in layers)


@dataclass(frozen=True, eq=False)
class MeasuredEnergy:
    """The energy of one call as a counter of the machine shows it.

    Args:
        example: the input of one call.
        counter: returns the joules used so far, e.g. `rapl_counter()`. What else the machine does is counted with it.
        repeats: how many calls one measurement is the mean of.
        warm_up: how many calls go before it.

    Example:
        >>> used = iter([5.0, 7.0])
        >>> MeasuredEnergy(torch.zeros(1, 3), lambda: next(used), repeats=10)(nn.Linear(3, 2))
        0.2
    """

    example: torch.Tensor
    counter: Callable[[], float]
    repeats: int = 1000
    warm_up: int = 10

    def __call__(self, network: nn.Module) -> float:
        training = network.training
        network.eval()
        try:
            with torch.no_grad():
                for _ in range(self.warm_up):
                    network(self.example)
                before = self.counter()
                for _ in range(self.repeats):
                    network(self.example)
                return (self.counter() - before) / self.repeats
        finally:
            network.train(training)


def rapl_counter(folder: str | Path = "/sys/class/powercap/intel-rapl:0") -> Callable[[], float]:
    """Return a counter for `MeasuredEnergy` that reads the processor's own (Linux, Intel and AMD; needs permission).

    The processor's counter starts again at 0 after ``max_energy_range_uj``; the one returned goes on.
    """
    source, limit = Path(folder) / "energy_uj", Path(folder) / "max_energy_range_uj"
    if not source.exists():
        raise FileNotFoundError(
            f"{source} does not exist; give the folder of a RAPL zone, or another counter of joules"
        )
    around = int(limit.read_text())
    last, turns = int(source.read_text()), 0

    def read() -> float:
        nonlocal last, turns
        now = int(source.read_text())
        turns += now < last
        last = now
        return (now + turns * around) * 1e-6

    return read
