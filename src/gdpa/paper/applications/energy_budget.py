"""Networks under an energy budget: an energy model, training of weights and widths, pruning to a smaller network.

`Chain` reads a network, `CountedEnergy` and `MeasuredEnergy` give the cost of a call, `fit_energy` makes psi of such
readings, `EnergyBudget` is the problem, `prune` makes a smaller dense network, and `compress` does all of it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from scipy.optimize import brentq
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from gdpa.base.arrays import from_numpy, namespace
from gdpa.base.sets import REALS, Box, Product
from gdpa.base.typing import Array
from gdpa.oracles.torch import ModuleProblem, from_module
from gdpa.torch import ConstrainedOptimizer, constrain

__all__ = [
    "Batches", "Chain", "Compressed", "CountedEnergy", "EnergyBudget", "EnergyModel", "LayerCost", "MeasuredEnergy",
    "OverBudgetError", "Pruned", "compress", "count_layers", "fit_energy", "fit_widths", "measure_model", "prune",
    "prune_by_norm", "rapl_counter", "sample_widths", "smooth_count", "train", "train_within",
]  # fmt: skip

#: d_u relative to the median norm of the channels at the start; see docs/energy.md for its effect.
SMOOTHING = 0.5
#: Networks measured to fit psi; a chain of L layers has L + 1 coefficients.
MEASUREMENTS = 200
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
        self.hidden = self._read()
        #: The hidden widths S_u, from input to output.
        self.widths = tuple(hidden.width for hidden in self.hidden)
        if not self.hidden:
            raise ValueError("network has no hidden width to prune; it needs two or more weighted layers")

    def _read(self) -> list[Hidden]:
        found: list[Hidden] = []
        last, width = -1, 0  # the weighted layer before, and its channels
        for place, layer in enumerate(self.network):
            if not isinstance(layer, (*WEIGHTED, *NORMALIZING, *CHANNELWISE)):
                raise TypeError(
                    f"layer {place} is a {type(layer).__name__}, whose channels cannot be cut; supported are Linear, "
                    "Conv2d, BatchNorm, activations, pooling, Dropout and Flatten"
                )
            if getattr(layer, "groups", 1) != 1:
                raise ValueError(f"layer {place} has {layer.groups} groups; channels of grouped layers are not cut")
            if isinstance(layer, NORMALIZING) and last >= 0 and layer.num_features != width:
                raise ValueError(
                    f"layer {place} normalizes {layer.num_features} features, the layer before has {width} "
                    "channels; put it before the Flatten"
                )
            if isinstance(layer, WEIGHTED):
                outputs, inputs = layer.weight.shape[:2]
                if last >= 0 and inputs % width:
                    raise ValueError(f"layer {place} has {inputs} inputs for {width} channels before it")
                found += [Hidden(width, last, place)] if last >= 0 else []
                last, width = place, outputs
        return found

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
        for hidden, chosen in zip(self.hidden, keep, strict=True):
            for one in list(small)[hidden.before : hidden.after]:  # the weighted layer and its normalizations
                _keep_outputs(one, chosen)
            after: Any = small[hidden.after]
            weight = after.weight.data
            after.weight.data = self._columns(weight, hidden)[:, chosen].reshape(len(weight), -1, *weight.shape[2:])
            setattr(after, "in_features" if isinstance(after, nn.Linear) else "in_channels", after.weight.shape[1])
        return small

    def of_widths(self, widths: Sequence[int]) -> nn.Sequential:
        """Return a copy of these hidden widths with the first channels, to count and to measure its cost."""
        return self.narrow([torch.arange(width) for width in widths])

    @staticmethod
    def _columns(weight: torch.Tensor, hidden: Hidden) -> torch.Tensor:
        """View a weight as (outputs, channels, weights of one channel)."""
        return weight.view(len(weight), hidden.width, -1)


def _keep_outputs(layer: nn.Module, rows: torch.Tensor) -> None:
    """Keep some outputs of a weighted layer, or some channels of a batch normalization."""
    for tensor in (*layer.parameters(), *layer.buffers()):
        if tensor.ndim:  # a normalization also counts its batches
            tensor.data = tensor.data[rows]
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
    layers = {layer: name for name, layer in network.named_modules() if isinstance(layer, WEIGHTED)}

    def count(layer: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        parameters = sum(p.numel() for p in layer.parameters(recurse=False))
        macs = output.numel() * math.prod(layer.weight.shape[1:])  # inputs that one output is a sum over
        words = parameters + inputs[0].numel() + output.numel()
        found.append(LayerCost(layers[layer], parameters, macs, words))

    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        with evaluating(network):
            network(example)
    finally:
        for handle in hooks:
            handle.remove()
    return found


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Switch to evaluation without gradients inside the block."""
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(training)


@dataclass(frozen=True, eq=False)
class CountedEnergy:
    """The energy of one call, such as of one image, from counts of its operations.

    Args:
        example: the input of one call.
        mac: joules of a multiply-accumulate, by default 32 bits at 45 nm: 3.7 pJ to multiply, 0.9 pJ to add.
        word: joules of a word read from or written to memory, by default 32 bits of DRAM.

    References:
        M. Horowitz, "Computing's energy problem (and what we can do about it)", ISSCC 2014; the same numbers stand in
        Table 1 of Han et al., "Learning both weights and connections for efficient neural networks", NeurIPS 2015.

    >>> CountedEnergy(torch.zeros(1, 3), mac=1.0, word=10.0)(nn.Linear(3, 2))
    136.0
    """

    example: torch.Tensor
    mac: float = 4.6e-12
    word: float = 640e-12

    def __call__(self, network: nn.Module) -> float:
        return sum(self.mac * layer.macs + self.word * layer.words for layer in count_layers(network, self.example))


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
        with evaluating(network):
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


@dataclass(frozen=True)
class EnergyModel:
    r"""Energy as a bilinear function of the hidden widths.

    .. math::
        \psi(s) = a_0 + \sum_{j=1}^{L} a_j\, \frac{s_{j-1}}{S_{j-1}} \frac{s_j}{S_j}

    for a chain of L layers: layer j multiplies a matrix of :math:`s_{j-1}` by :math:`s_j` channels. The widths of input
    and output do not change, :math:`s_0 = S_0` and :math:`s_L = S_L`.

    Args:
        coefficients: a_0, ..., a_L in joules.
        full: S_1, ..., S_{L-1}, the hidden widths of the full network.
        error: the largest |psi - energy| over the measurements it was fitted to, relative to the largest energy.

    Example:
        >>> psi = EnergyModel((1.0, 10.0, 20.0, 30.0), full=(4, 8))
        >>> float(psi(np.array([4.0, 8.0]))), float(psi(np.array([2.0, 2.0])))
        (61.0, 16.0)

    References:
        H. Yang, Y. Zhu, J. Liu, "ECC: Platform-independent energy-constrained deep neural network compression via a
        bilinear regression model", CVPR 2019.
    """

    coefficients: tuple[float, ...]
    full: tuple[int, ...]
    error: float = math.nan

    def __post_init__(self) -> None:
        if not self.full or any(width < 1 for width in self.full):
            raise ValueError(f"full must hold the positive hidden widths of the network, got {self.full}")
        if len(self.coefficients) != len(self.full) + 2 or not np.isfinite(self.coefficients).all():
            needed = f"{len(self.full)} hidden widths need {len(self.full) + 2} finite coefficients"
            raise ValueError(f"{needed}, got {self.coefficients}; look at the measurements")

    def __call__(self, widths: Array) -> Any:
        """Return psi of ``widths`` (last axis; NumPy or torch, with gradients)."""
        a = from_numpy(np.asarray(self.coefficients), widths)
        return namespace(widths).sum(_products(widths, self.full) * a[1:], axis=-1) + a[0]

    @property
    def dense(self) -> float:
        """psi of the full network."""
        return float(sum(self.coefficients))


def fit_energy(
    widths: Sequence[Sequence[int]] | Array,
    energies: Sequence[float] | Array,
    full: Sequence[int],
    *,
    penalty: float = 5e-4,
) -> EnergyModel:
    r"""Fit an `EnergyModel` by ridge regression.

    .. math::
        a = \arg\min_a \|Xa - y\|^2 + \kappa \|a\|^2 = (X^T X + \kappa I)^{-1} X^T y

    with a row (1, products of neighboring shares) of X for every measurement: hidden ``widths`` of shape (n, L - 1) and
    ``energies`` y of shape (n,) in joules. ``full`` is S, ``penalty`` kappa: half of the weight decay of 1e-3 in Yang
    et al.'s code.

    Example:
        >>> truth = EnergyModel((1.0, 10.0, 20.0, 30.0), full=(4, 8))
        >>> at = [(a, b) for a in (1, 2, 4) for b in (1, 4, 8)]
        >>> psi = fit_energy(at, truth(np.array(at, dtype=float)), full=(4, 8), penalty=1e-9)
        >>> [round(a, 3) for a in psi.coefficients]
        [1.0, 10.0, 20.0, 30.0]
    """
    at, y, sizes = np.asarray(widths, dtype=float), np.asarray(energies, dtype=float), tuple(int(s) for s in full)
    if at.ndim != 2 or at.shape[1] != len(sizes) or y.shape != at.shape[:1]:
        raise ValueError(f"widths must have shape (n, {len(sizes)}) and energies (n,), got {at.shape} and {y.shape}")
    if len(y) < len(sizes) + 2:
        raise ValueError(f"{len(sizes) + 2} coefficients need at least as many measurements, got {len(y)}")
    if not penalty > 0:
        raise ValueError(f"penalty must be positive, got {penalty!r}; a small one such as 1e-9 hardly changes the fit")
    features = np.hstack([np.ones((len(y), 1)), _products(at, sizes)])
    gram = features.T @ features + penalty * np.eye(features.shape[1])
    a = np.linalg.solve(gram, features.T @ y)
    return EnergyModel(tuple(map(float, a)), sizes, float(np.max(np.abs(features @ a - y)) / np.max(np.abs(y))))


def sample_widths(full: Sequence[int], count: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Return ``count`` random choices of hidden widths to measure at, the full network first.

    >>> sample_widths((4, 8), 2)[0]
    (4, 8)
    """
    rng = np.random.default_rng(seed)
    return [tuple(full), *(tuple(int(rng.integers(1, size + 1)) for size in full) for _ in range(count - 1))]


def _products(widths: Array, full: tuple[int, ...]) -> Any:
    """Return s_{j-1} s_j / (S_{j-1} S_j) for j = 1, ..., L, the last axis."""
    xp = namespace(widths)
    shares = widths / from_numpy(np.asarray(full, dtype=float), widths)
    one = xp.ones_like(shares[..., :1])
    return xp.concat([one, shares], axis=-1) * xp.concat([shares, one], axis=-1)


def smooth_count(squared_norms: torch.Tensor, squared_scale: torch.Tensor | float) -> torch.Tensor:
    r"""Return :math:`\phi_d(w) = \sum_i \|w_i\|^2 / (\|w_i\|^2 + d^2)`, the number of channels that are not small.

    A channel far below the scale d counts as 0, one far above it as 1. phi is smooth and not convex.

    >>> round(smooth_count(torch.tensor([0.0, 1.0, 1e6]), 1.0).item(), 4)
    1.5
    """
    return (squared_norms / (squared_norms + squared_scale)).sum(-1)


class EnergyBudget(nn.Module):
    r"""A network with variable widths and an energy budget.

    .. math::
        \min_{W,\,s}\; \ell(W) \quad\text{subject to}\quad \phi_d(w_u) \le s_u \text{ for every hidden width } u,
        \quad \psi(s) \le E, \quad 1 \le s_u \le S_u .

    The variables are the weights W of the network and ``shares``, :math:`s_u / S_u`. The constraints are kept without
    units: :math:`(\phi_d(w_u) - s_u) / S_u` and :math:`\psi(s) / E - 1`.

    The weights start as they are, the shares alike at twice the budget. Calling it gives the network's outputs and the
    constraints. It trains by the PyTorch optimizer (`train_within` does it),

        opt = gdpa.torch.constrain(torch.optim.Adam(budgeted.parameter_groups(1e-3)), budgeted.names)
        outputs, g = budgeted(images)
        opt.lagrangian(loss(outputs), g).backward()
        opt.step()

    and `problem` states it for every method of the library.

    Args:
        network: a chain of layers, see `Chain`. It is trained in place.
        model: psi.
        limit: E, in the model's units.
        smoothing: d_u relative to the median norm of the channels of width u now.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> budgeted = EnergyBudget(net, EnergyModel((0.0, 3.0, 2.0), full=(8,)), limit=1.0)
        >>> outputs, g = budgeted(torch.zeros(1, 3))
        >>> budgeted.names, round(g[1].item(), 3)  # the start needs twice the budget
        (('width 1', 'energy'), 1.0)

    References:
        The second motivating example of section 1 of Lu, ICML 2022, after Yang, Zhu, Liu, CVPR 2019, whose phi counts
        channels exactly. The smooth phi is ours.
    """

    shares: nn.Parameter
    squared_scales: torch.Tensor

    def __init__(
        self, network: nn.Sequential, model: EnergyModel, limit: float, *, smoothing: float = SMOOTHING
    ) -> None:
        super().__init__()
        self.chain = Chain(network)
        if self.chain.widths != model.full:
            raise ValueError(
                f"model is of widths {model.full}, the network has {self.chain.widths}; fit it to this one"
            )
        smallest = float(model(torch.ones(len(model.full), dtype=torch.float64)))
        if not smallest <= limit:
            raise ValueError(f"limit is {limit!r}, and one channel in every width takes {smallest:.4g}; raise it")
        if not smoothing > 0:
            raise ValueError(f"smoothing must be positive, got {smoothing!r}")
        self.model, self.limit = model, float(limit)
        # Twice the limit: the energy's violation is 1 there, the unit by which the "damped" rule of `gdpa.torch` scales
        # its multiplier, and the start is near: from S the shares overshoot the budget.
        full, share = np.asarray(model.full, dtype=float), 1.0
        if model.dense > 2 * limit:
            share = brentq(lambda one: float(model(np.maximum(one * full, 1.0))) - 2 * limit, 0.0, 1.0, xtol=1e-15)
        self.shares = nn.Parameter(next(network.parameters()).new_tensor(np.maximum(share, 1 / full).tolist()))
        self.network = network
        with torch.no_grad():
            medians = torch.stack([norms.median() for norms in self.chain.squared_norms()])
        self.register_buffer("squared_scales", smoothing**2 * medians)

    @property
    def names(self) -> tuple[str, ...]:
        """One name per constraint: "width 1" from the input on, and "energy"."""
        return (*(f"width {u + 1}" for u in range(len(self.model.full))), "energy")

    @property
    def domain(self) -> Box:
        """The box of ``shares``: one channel at least, all of them at most."""
        return Box([1 / width for width in self.model.full], 1.0)

    def counts(self) -> torch.Tensor:
        """Return phi_d of every hidden width."""
        pairs = zip(self.chain.squared_norms(), self.squared_scales, strict=True)
        return torch.stack([smooth_count(norms, scale) for norms, scale in pairs])

    def violations(self) -> torch.Tensor:
        """Return g, feasible if at most 0."""
        full = self.shares.new_tensor(self.model.full)
        energy = self.model(self.shares * full) / self.limit - 1
        return torch.cat([self.counts() / full - self.shares, energy[None]])

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the network's outputs and g."""
        return self.network(inputs), self.violations()

    def parameter_groups(self, lr: float, shares_lr: float | None = None) -> list[dict[str, Any]]:
        """Return the groups for a base optimizer: the weights, and the shares with their box."""
        shares = {"params": [self.shares], "lr": lr if shares_lr is None else shares_lr, "domain": self.domain}
        return [{"params": list(self.network.parameters()), "lr": lr}, shares]

    def problem(self, inputs: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor]) -> ModuleProblem:
        """Return the problem in the flat x = (shares, W), with ``loss`` of the network's outputs as objective.

        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).double()
        >>> budgeted = EnergyBudget(net, EnergyModel((0.0, 3.0, 2.0), full=(8,)), limit=2.5)
        >>> stated = budgeted.problem(torch.ones(4, 3, dtype=torch.float64), lambda outputs: outputs.square().mean())
        >>> stated.x0.shape, stated.problem.num_constraints, stated.problem.names
        (torch.Size([51]), 2, ('width 1', 'energy'))
        """

        def terms(module: Any) -> tuple[torch.Tensor, torch.Tensor]:
            outputs, g = module(inputs)
            return loss(outputs), g

        weights = sum(p.numel() for p in self.network.parameters() if p.requires_grad)
        domain = Product([(len(self.model.full), self.domain), (weights, REALS)])
        return from_module(self, terms, num_constraints=len(self.names), domain=domain, names=self.names)


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

    The limit given to ``choose`` is rescaled by the meter's reading of its choice, until that is within ``limit``; psi
    is right to a few percent, so ten rounds are enough.
    """
    order = [torch.argsort(score, descending=True, stable=True) for score in scores]
    best: Pruned | None = None
    bound, low, high = limit, 0.0, math.inf  # of the limit given to psi: too low leaves space, too high exceeds
    for _ in range(10):
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


class Batches(DataLoader[Any]):
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
        order = RandomSampler(range(len(inputs)), generator=torch.Generator().manual_seed(seed))
        batches: Any = BatchSampler(order, size, drop_last=True)  # each batch is one index of the tensors
        super().__init__(TensorDataset(inputs, targets), None, sampler=batches, generator=torch.Generator())


def train(
    network: nn.Module,
    data: DataLoader[Any],
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
    data: DataLoader[Any],
    *,
    epochs: int,
    lr: float = 1e-3,
    dual_rate: float = 3.0,
    watch: Callable[[float], None] = lambda done: None,
) -> ConstrainedOptimizer:
    """Train (W, S) in place under the budget by `gdpa.torch.constrain` around Adam and return the optimizer.

    Adam's steps for the weights (``lr``) and for the shares s_u / S_u are constant: `train` decays afterwards. The
    constraints are known exactly at every step, so ``dual_rate`` may be larger than for sampled ones.
    """
    base = torch.optim.Adam(budgeted.parameter_groups(lr, shares_lr=1e-3), fused=True)
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
    return fit_energy(widths, [meter(chain.of_widths(chosen)) for chosen in widths], chain.widths)


class Compressed(NamedTuple):
    """The smaller network, fine-tuned; the full one trained under the budget; the prices of the constraints by name."""

    pruned: Pruned
    budgeted: EnergyBudget
    multipliers: dict[str, float]


def compress(
    network: nn.Sequential,
    data: DataLoader[Any],
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
    first = epochs / max(epochs + fine_tune, 1)  # the share of the work before pruning
    budgeted = EnergyBudget(copy.deepcopy(network), psi, limit, smoothing=smoothing)
    optimizer = train_within(budgeted, data, epochs=epochs, lr=lr, watch=lambda done: watch(done * first))
    pruned = prune(budgeted, meter)
    train(pruned.network, data, epochs=fine_tune, lr=lr, watch=lambda done: watch(first + done * (1 - first)))
    energy = meter(pruned.network)  # widths decide it, so training cannot change it, unless a meter is noisy
    if energy > limit:
        raise OverBudgetError(f"the meter reads {energy:.4g} after fine-tuning, over the budget of {limit:.4g}")
    prices = dict(zip(budgeted.names, optimizer.multipliers.tolist(), strict=True))
    return Compressed(pruned._replace(energy=energy), budgeted, prices)


def _batches(data: DataLoader[Any], epochs: int, watch: Callable[[float], None]) -> Iterator[Any]:
    """Yield the batches of all epochs; ``watch`` gets the share of them that is done."""
    for epoch in range(epochs):
        for k, batch in enumerate(data, 1):
            yield batch
            watch((epoch * len(data) + k) / (epochs * len(data)))
