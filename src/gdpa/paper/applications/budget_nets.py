"""Neural networks under loss budgets: train on one digit, keep the loss on the others within budgets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from gdpa.base.checks import is_count
from gdpa.base.typing import Array
from gdpa.core.problem import Problem
from gdpa.paper.applications.by_class import ByClass, as_thresholds, check_prioritized, check_reduction, select

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class BudgetNet:
    r"""A fully connected sigmoid network whose loss on one class is minimized under budgets on the others.

    With :math:`\ell_j(W)` the softmax cross-entropy of the network on the samples of class j (averaged or summed) and p
    the prioritized class,

    .. math::
        \min_W\; \ell_p(W) \quad\text{subject to}\quad \ell_j(W) \le b_j,\; j \ne p .

    x is the flat vector of all weights and biases, layer after layer (weights first, as torch.nn.Linear keeps them);
    it may have leading axes. One oracle call is one forward pass over the data and a pullback one backward pass, which
    keeps the gradients of the classes apart, see `gdpa.paper.applications.by_class`.

    Make one from images with `budget_net`.

    Attributes:
        samples: the data, of shape (n, inputs), class after class in the order of ``classes``.
        counts: samples per class.
        classes: the labels; each is also the place of its output unit.
        prioritized: the class in the objective.
        budgets: b_j, of shape (m,) or (..., m), in the order of ``classes`` without the prioritized one.
        widths: units per layer, inputs and outputs included: (784, 30, 10) in the paper.
        reduction: "mean" or "sum" over the samples of a class.

    References:
        The second experiment of section 5 of Lu, ICML 2022. The paper names the widths and the sigmoid; that the loss
        is cross-entropy and that layers have biases is our reading.
    """

    samples: Tensor
    counts: tuple[int, ...]
    classes: tuple[int, ...]
    prioritized: int
    budgets: Tensor
    widths: tuple[int, ...]
    reduction: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        check_reduction(self.reduction)
        if len(self.widths) < 2 or not all(is_count(w, 1) for w in self.widths):
            raise ValueError(f"widths must be two or more positive integers, got {self.widths!r}")
        outputs = self.widths[-1]
        if not all(0 <= label < outputs for label in self.classes):
            raise ValueError(f"classes must lie in 0..{outputs - 1}, one output unit each, got {self.classes}")

    @property
    def size(self) -> int:
        """How many parameters the network has."""
        return sum((a + 1) * b for a, b in itertools.pairwise(self.widths))

    @property
    def problem(self) -> Problem:
        """The problem in the flat x of shape (..., size)."""
        return ByClass(self._forward, self.classes, self.prioritized, self.budgets).problem()

    def with_budgets(self, budgets: float | Sequence[float] | Tensor) -> BudgetNet:
        """Return the same network and data under other budgets: a number, m numbers, or a batch of shape (..., m)."""
        return replace(self, budgets=as_thresholds(budgets, self.classes, self.samples, "budgets"))

    def to(self, dtype: torch.dtype) -> BudgetNet:
        """Return the same problem in another precision."""
        return replace(self, samples=self.samples.to(dtype), budgets=self.budgets.to(dtype))

    def start(self, seed: int = 0) -> Tensor:
        """Return a start: entries uniform within 1/sqrt(fan-in), layer by layer, as torch.nn.Linear begins."""
        rng = np.random.default_rng(seed)
        parts = [rng.uniform(-1, 1, size=(a + 1) * b) / math.sqrt(a) for a, b in itertools.pairwise(self.widths)]
        return torch.as_tensor(np.concatenate(parts), dtype=self.samples.dtype, device=self.samples.device)

    def outputs(self, x: Tensor, samples: Tensor) -> Tensor:
        """Return the network's outputs (logits) for ``samples``, of shape (..., n, outputs)."""
        return self._activations(x, samples)[-1]

    def _activations(self, x: Tensor, samples: Tensor) -> list[Tensor]:
        """Return the input, the sigmoid of every hidden layer, and the outputs."""
        values = [samples]
        for weight, bias in self._layers(x):
            # W Z^T and not Z W^T: the product of few rows with many columns is the quicker one.
            values.append((weight @ values[-1].mT + bias[..., None]).mT)
            if len(values) < len(self.widths):
                values[-1].sigmoid_()
        return values

    def losses(self, x: Tensor) -> Tensor:
        """Return the loss of every class, in the order of ``classes``."""
        return self._forward(x).losses

    def confusion(self, x: Tensor, images: Array, labels: Array) -> Any:
        """Return how images of each class are classified: row = true class, column = largest output unit."""
        test = select(images, labels, self.classes, dtype=self.samples.dtype, device=self.samples.device)
        found = self.outputs(x, test.samples).argmax(dim=-1)
        table = np.zeros((len(self.classes), self.widths[-1]), dtype=int)
        for j, part in enumerate(torch.split(found, list(test.counts))):
            table[j] = np.bincount(part.cpu().numpy(), minlength=self.widths[-1])
        return table

    def _layers(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        if x.shape[-1] != self.size:
            raise ValueError(f"x has {x.shape[-1]} entries, the network of widths {self.widths} has {self.size}")
        if x.dtype != self.samples.dtype:
            raise TypeError(f"x has dtype {x.dtype}, the data {self.samples.dtype}; convert one of them")
        layers = []
        shapes = list(itertools.pairwise(self.widths))
        for (a, b), part in zip(shapes, torch.split(x, [(a + 1) * b for a, b in shapes], dim=-1), strict=True):
            weight = part[..., : a * b].reshape(*x.shape[:-1], b, a)
            layers.append((weight, part[..., a * b :]))
        return layers

    def _forward(self, x: Tensor) -> _ClassLosses:
        return _ClassLosses(self, x)


class _ClassLosses:
    """The losses of every class at one point, and their gradients on demand by backpropagation."""

    def __init__(self, net: BudgetNet, x: Tensor) -> None:
        self._net, self._x = net, x
        *self._hidden, logits = net._activations(x, net.samples)
        self._log_odds = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
        parts = torch.split(self._log_odds, list(net.counts), dim=-2)
        # Cross-entropy: minus the logarithm of the probability of the true class.
        sums = [-part[..., label].sum(dim=-1) for label, part in zip(net.classes, parts, strict=True)]
        self.losses = torch.stack(sums, dim=-1) / self._divisors
        self._gradients: Tensor | None = None

    @property
    def _divisors(self) -> Tensor:
        net = self._net
        sizes = net.counts if net.reduction == "mean" else [1] * len(net.counts)
        return torch.tensor(sizes, dtype=net.samples.dtype, device=net.samples.device)

    @property
    def gradients(self) -> Tensor:
        """The gradient of every loss, of shape (..., k, size): one backward pass, the classes kept apart."""
        if self._gradients is None:
            net, counts = self._net, list(self._net.counts)
            delta = self._log_odds.exp()  # along the outputs: probabilities, less 1 at the true class
            for label, part in zip(net.classes, torch.split(delta, counts, dim=-2), strict=True):
                part[..., label] -= 1
            pieces: list[Tensor] = []
            for (weight, _), value in zip(reversed(net._layers(self._x)), reversed(self._hidden), strict=True):
                inputs = torch.split(value, counts, dim=-2)
                deltas = torch.split(delta, counts, dim=-2)
                weights = [d.mT @ v for d, v in zip(deltas, inputs, strict=True)]
                biases = [d.sum(dim=-2) for d in deltas]
                pieces = [torch.stack(weights, dim=-3).flatten(-2), torch.stack(biases, dim=-2), *pieces]
                if value is not self._hidden[0]:
                    delta = (delta @ weight) * (value * (1 - value))
            self._gradients = torch.cat(pieces, dim=-1) / self._divisors[:, None]
        return self._gradients


def budget_net(
    images: Array,
    labels: Array,
    *,
    classes: Sequence[int] = (1, 2, 3, 4, 5, 6),
    prioritized: int = 1,
    budgets: float | Sequence[float] | Tensor = 1.0,
    hidden: Sequence[int] = (30,),
    outputs: int = 10,
    reduction: Literal["mean", "sum"] = "mean",
    images_per_class: int | None = None,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> BudgetNet:
    """Return the paper's budgeted network on labeled images.

    Args:
        images: of shape (n, ...); bytes are scaled to [0, 1].
        labels: of shape (n,).
        classes: the labels that take part.
        prioritized: the one in the objective; every other one gets a budget.
        budgets: one number for all, one each in the order of ``classes``, or a batch of shape (..., m).
        hidden: widths of the hidden layers; () makes the network linear.
        outputs: width of the last layer.
        reduction: losses averaged ("mean") or summed ("sum") over the samples of a class.
        images_per_class: how many of each class, the first ones; None takes all.
        dtype, device: of the data and of x.

    Example:
        With all weights zero every output is the same, and every loss is log 10.

        >>> pixels, digits = np.zeros((4, 3)), np.array([1, 2, 1, 2])
        >>> study = budget_net(pixels, digits, classes=(1, 2), hidden=(5,))
        >>> f, g, _ = study.problem.evaluate(torch.zeros(study.size, dtype=torch.float64))
        >>> round(f.item(), 4), [round(v, 4) for v in g.tolist()]
        (2.3026, [1.3026])
    """
    data = select(images, labels, classes, images_per_class=images_per_class, dtype=dtype, device=device)
    check_prioritized(prioritized, data.classes)
    return BudgetNet(
        samples=data.samples,
        counts=data.counts,
        classes=data.classes,
        prioritized=prioritized,
        budgets=as_thresholds(budgets, data.classes, data.samples, "budgets"),
        widths=(int(data.samples.shape[1]), *hidden, outputs),
        reduction=reduction,
    )
