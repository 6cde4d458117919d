"""Networks that are a chain of layers: hidden widths, channels, smaller copies, and the energy of one call."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn

#: Layers with weights, and layers that treat every channel by itself: a channel can be cut out of them.
WEIGHTED = (nn.Linear, nn.Conv2d)
NORMALIZING = (nn.BatchNorm1d, nn.BatchNorm2d)
CHANNELWISE = (
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Identity, nn.Dropout, nn.Dropout2d,
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Flatten,
)  # fmt: skip


class Hidden(NamedTuple):
    """A hidden width: S_u channels between the weighted layers at two places of the network."""

    width: int
    before: int
    after: int


class Chain:
    """A `torch.nn.Sequential` of linear and convolutional layers, read as a chain of widths.

    Channel i of hidden width u is unit i of one weighted layer and input channel i of the next. Cutting it out removes
    a row of the first weight, a column of the second, and its entry of a batch normalization in between.

    Args:
        network: `Linear` and `Conv2d` layers (without groups), batch normalization, and layers that treat every channel
            by itself (activations, pooling, dropout, Flatten).

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 6), nn.Linear(6, 2))
        >>> Chain(net).widths
        (4, 6)
        >>> small = Chain(net).narrow([torch.tensor([0, 3]), torch.tensor([1, 2, 5])])
        >>> small[0].out_channels, small[3].in_features, small[3].out_features, small[4].in_features
        (2, 18, 3, 3)
    """

    def __init__(self, network: nn.Sequential) -> None:
        if not isinstance(network, nn.Sequential):
            raise TypeError(f"network must be a torch.nn.Sequential, got {type(network).__name__}; list its layers")
        self.network = network
        self.hidden: tuple[Hidden, ...] = tuple(self._read())
        if not self.hidden:
            raise ValueError(
                "network has no hidden width to prune; it needs two or more linear or convolutional layers"
            )

    def _read(self) -> list[Hidden]:
        found: list[Hidden] = []
        last, width = -1, 0  # the weighted layer before, and its channels
        for place, layer in enumerate(self.network):
            if isinstance(layer, NORMALIZING):
                if last >= 0 and layer.num_features != width:
                    raise ValueError(
                        f"layer {place} normalizes {layer.num_features} features, the layer before has {width} "
                        "channels; put it before the Flatten"
                    )
            elif isinstance(layer, WEIGHTED):
                if isinstance(layer, nn.Conv2d) and layer.groups != 1:
                    raise ValueError(f"layer {place} has {layer.groups} groups; channels of grouped layers are not cut")
                inputs = int(layer.weight.shape[1])
                if last >= 0:
                    if inputs % width:
                        raise ValueError(f"layer {place} has {inputs} inputs for {width} channels before it")
                    found.append(Hidden(width, last, place))
                last, width = place, int(layer.weight.shape[0])
            elif not isinstance(layer, CHANNELWISE):
                raise TypeError(
                    f"layer {place} is a {type(layer).__name__}, whose channels cannot be cut; supported are Linear, "
                    "Conv2d, BatchNorm, activations, pooling, Dropout and Flatten"
                )
        return found

    @property
    def widths(self) -> tuple[int, ...]:
        """The hidden widths S_u, from input to output."""
        return tuple(hidden.width for hidden in self.hidden)

    def squared_norms(self) -> list[torch.Tensor]:
        """Return ||w_i||^2 of every channel, one tensor per hidden width; gradients flow.

        w_i holds all weights of channel i: those into it, its bias, and those out of it. With one side alone the other
        could take over its size, because an activation that is positively homogeneous passes factors on.
        """
        found = []
        for hidden in self.hidden:
            before: Any = self.network[hidden.before]
            after: Any = self.network[hidden.after]
            total = before.weight.flatten(1).square().sum(1)
            if before.bias is not None:
                total = total + before.bias.square()
            found.append(total + self._columns(after.weight, hidden).square().sum((0, 2)))
        return found

    def narrow(self, keep: Sequence[torch.Tensor]) -> nn.Sequential:
        """Return a smaller dense network with the channels ``keep[u]`` of every hidden width u."""
        if len(keep) != len(self.hidden):
            raise ValueError(f"keep must hold one index tensor per hidden width, {len(self.hidden)}, got {len(keep)}")
        for u, (chosen, hidden) in enumerate(zip(keep, self.hidden, strict=True)):
            places = set(chosen.tolist())
            if not places <= set(range(hidden.width)) or not 0 < len(places) == len(chosen):
                named = f"one or more different channels of 0..{hidden.width - 1}"
                raise ValueError(f"keep[{u}] must name {named}, got {chosen.tolist()}")
        small = copy.deepcopy(self.network)
        place_of = {hidden.before: chosen for hidden, chosen in zip(self.hidden, keep, strict=True)}
        with torch.no_grad():
            rows: torch.Tensor | None = None
            for place, one in enumerate(small):
                rows = place_of.get(place) if isinstance(one, WEIGHTED) else rows
                if rows is not None and isinstance(one, (*WEIGHTED, *NORMALIZING)):
                    _keep_rows(one, rows)
            for hidden, chosen in zip(self.hidden, keep, strict=True):
                layer: Any = small[hidden.after]
                weight = self._columns(layer.weight, hidden)[:, chosen]
                _replace(layer, "weight", weight.reshape(len(layer.weight), -1, *layer.weight.shape[2:]))
                setattr(layer, "in_features" if isinstance(layer, nn.Linear) else "in_channels", layer.weight.shape[1])
        return small

    def of_widths(self, widths: Sequence[int]) -> nn.Sequential:
        """Return a copy of these hidden widths with the first channels, to count and to measure its cost."""
        return self.narrow([torch.arange(width) for width in widths])

    @staticmethod
    def _columns(weight: torch.Tensor, hidden: Hidden) -> torch.Tensor:
        """View a weight as (outputs, channels, weights of one channel)."""
        return weight.view(len(weight), hidden.width, -1)


def _replace(layer: Any, name: str, value: torch.Tensor) -> None:
    old = getattr(layer, name)
    parameter = isinstance(old, nn.Parameter)
    setattr(layer, name, nn.Parameter(value.clone(), old.requires_grad) if parameter else value.clone())


def _keep_rows(layer: Any, rows: torch.Tensor) -> None:
    """Keep some outputs of a weighted layer, or some channels of a batch normalization."""
    for name in ("weight", "bias", "running_mean", "running_var"):
        if getattr(layer, name, None) is not None:
            _replace(layer, name, getattr(layer, name)[rows])
    for name in ("out_features", "out_channels", "num_features"):
        if hasattr(layer, name):
            setattr(layer, name, len(rows))


#: Maps a network to the energy of one call, in joules. `CountedEnergy` and `MeasuredEnergy` are two.
Meter: TypeAlias = Callable[[nn.Module], float]


class LayerCost(NamedTuple):
    """The cost of a layer in one call: parameters, multiply-accumulates, and words moved from and to memory.

    A parameter and an input are read once, an output is written once.
    """

    name: str
    parameters: int
    macs: int
    words: int


def count_layers(network: nn.Module, example: torch.Tensor) -> list[LayerCost]:
    """Return the cost of every linear and convolutional layer in the call ``network(example)``.

    A layer that is called twice counts twice. Bias additions are not multiply-accumulates.

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
    try:
        with _evaluating(network):
            network(example)
    finally:
        for handle in hooks:
            handle.remove()
    return found


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """Switch to evaluation without gradients inside the block."""
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(training)


@dataclass(frozen=True)
class Costs:
    """Joules of a multiply-accumulate and of a word read from or written to memory.

    The defaults are for a 45 nm process: a 32-bit floating-point multiplication (3.7 pJ) and addition (0.9 pJ),
    and a 32-bit access to DRAM (640 pJ).

    References:
        M. Horowitz, "Computing's energy problem (and what we can do about it)", ISSCC 2014; the same numbers stand in
        Table 1 of Han et al., "Learning both weights and connections for efficient neural networks", NeurIPS 2015.
    """

    mac: float = 4.6e-12
    word: float = 640e-12


@dataclass(frozen=True, eq=False)
class CountedEnergy:
    """The energy of one call, such as of one image, from counts of its operations.

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
        counter: returns the joules used so far, e.g. `rapl_counter()`. It counts the other work of the machine, too.
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
        with _evaluating(network):
            for _ in range(self.warm_up):
                network(self.example)
            before = self.counter()
            for _ in range(self.repeats):
                network(self.example)
            return (self.counter() - before) / self.repeats


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
