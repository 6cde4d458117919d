"""Networks that are a chain of layers: their hidden widths, the norms of their channels, and smaller copies."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

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
    """A hidden width: the channels between two weighted layers.

    Attributes:
        width: S_u, how many channels there are.
        before, after: positions of the two weighted layers in the network.
        block: inputs of the layer after that belong to one channel (more than 1 behind a Flatten).
    """

    width: int
    before: int
    after: int
    block: int


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
        last: int | None = None
        for place, layer in enumerate(self.network):
            if isinstance(layer, NORMALIZING):
                if last is not None and layer.num_features != _outputs(self.network[last]):
                    raise ValueError(
                        f"layer {place} normalizes {layer.num_features} features, the layer before has "
                        f"{_outputs(self.network[last])} channels; put it before the Flatten"
                    )
            elif isinstance(layer, WEIGHTED):
                if isinstance(layer, nn.Conv2d) and layer.groups != 1:
                    raise ValueError(f"layer {place} has {layer.groups} groups; channels of grouped layers are not cut")
                if last is not None:
                    width = _outputs(self.network[last])
                    block, rest = divmod(_inputs(layer), width)
                    if rest:
                        raise ValueError(f"layer {place} has {_inputs(layer)} inputs for {width} channels before it")
                    found.append(Hidden(width, last, place, block))
                last = place
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
            before, after = self._pair(hidden)
            total = before.weight.flatten(1).square().sum(1)
            if before.bias is not None:
                total = total + before.bias.square()
            found.append(total + self._columns(after.weight, hidden).square().sum((0, 2)))
        return found

    def narrow(self, keep: Sequence[torch.Tensor]) -> nn.Sequential:
        """Return a smaller dense network with the channels ``keep[u]`` of every hidden width u."""
        self._check(keep)
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
                _set_inputs(layer, len(chosen) * hidden.block)
        return small

    def masked(self, keep: Sequence[torch.Tensor]) -> nn.Sequential:
        """Return a copy of full size in which channels outside ``keep`` have no effect: weights out of them are 0.

        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
        >>> keep, x = [torch.tensor([0, 2])], torch.randn(5, 3, dtype=torch.float64)
        >>> bool(torch.allclose(Chain(net).masked(keep)(x), Chain(net).narrow(keep)(x)))
        True
        """
        self._check(keep)
        copied = copy.deepcopy(self.network)
        with torch.no_grad():
            for hidden, chosen in zip(self.hidden, keep, strict=True):
                gone = torch.ones(hidden.width, dtype=torch.bool)
                gone[chosen] = False
                after: Any = copied[hidden.after]
                self._columns(after.weight, hidden)[:, gone] = 0.0
        return copied

    def of_widths(self, widths: Sequence[int]) -> nn.Sequential:
        """Return a copy of these hidden widths with the first channels, to count and to measure what it costs."""
        if len(widths) != len(self.hidden) or any(
            not 1 <= width <= hidden.width for width, hidden in zip(widths, self.hidden, strict=False)
        ):
            raise ValueError(f"widths must be {len(self.hidden)} numbers from 1 to {self.widths}, got {tuple(widths)}")
        return self.narrow([torch.arange(width) for width in widths])

    def _pair(self, hidden: Hidden) -> tuple[Any, Any]:
        return self.network[hidden.before], self.network[hidden.after]

    @staticmethod
    def _columns(weight: torch.Tensor, hidden: Hidden) -> torch.Tensor:
        """View a weight as (outputs, channels, weights of one channel)."""
        return weight.view(len(weight), hidden.width, -1)

    def _check(self, keep: Sequence[torch.Tensor]) -> None:
        if len(keep) != len(self.hidden):
            raise ValueError(f"keep must hold one index tensor per hidden width, {len(self.hidden)}, got {len(keep)}")
        for u, (chosen, hidden) in enumerate(zip(keep, self.hidden, strict=True)):
            if not len(chosen) or len(set(chosen.tolist())) != len(chosen):
                raise ValueError(f"keep[{u}] must name one or more different channels, got {chosen.tolist()}")
            if int(chosen.min()) < 0 or int(chosen.max()) >= hidden.width:
                raise ValueError(f"keep[{u}] must lie in 0..{hidden.width - 1}, got {chosen.tolist()}")


def _outputs(layer: Any) -> int:
    return int(layer.weight.shape[0])


def _inputs(layer: Any) -> int:
    return int(layer.weight.shape[1])


def _replace(layer: Any, name: str, value: torch.Tensor) -> None:
    old = getattr(layer, name)
    if isinstance(old, nn.Parameter):
        setattr(layer, name, nn.Parameter(value.clone(), requires_grad=old.requires_grad))
    else:
        setattr(layer, name, value.clone())


def _keep_rows(layer: Any, rows: torch.Tensor) -> None:
    """Keep some outputs of a weighted layer, or some channels of a batch normalization."""
    for name in ("weight", "bias", "running_mean", "running_var"):
        if getattr(layer, name, None) is not None:
            _replace(layer, name, getattr(layer, name)[rows])
    for name in ("out_features", "out_channels", "num_features"):
        if hasattr(layer, name):
            setattr(layer, name, len(rows))


def _set_inputs(layer: Any, inputs: int) -> None:
    setattr(layer, "in_features" if isinstance(layer, nn.Linear) else "in_channels", inputs)
