"""Neural networks under loss budgets: train on one digit, keep the loss on the others within budgets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gdpa.base.checks import is_count
from gdpa.base.typing import Array
from gdpa.paper.applications.by_class import ByClass

Tensor = torch.Tensor


class BudgetNet(ByClass):
    r"""A fully connected sigmoid network whose loss on one class is minimized under budgets on the others.

    With :math:`\ell_j(W)` the softmax cross-entropy of the network on the samples of class j (averaged or summed) and p
    the prioritized class,

    .. math::
        \min_W\; \ell_p(W) \quad\text{subject to}\quad \ell_j(W) \le b_j,\; j \ne p .

    x is the flat vector of all weights and biases, layer after layer (weights first, as torch.nn.Linear keeps them);
    it may have leading axes. One oracle call is one forward pass over the data and a pullback one backward pass, which
    keeps the gradients of the classes apart, see `gdpa.paper.applications.by_class`.

    Args:
        images, labels, classes: the data and the classes that take part; a label is also the place of its output unit.
        budgets: b_j: one number for all, one each in the order of ``classes``, or a batch of shape (..., m).
        hidden, outputs: widths of the hidden layers, where () makes the network linear, and of the last one.
        **data: as in `gdpa.paper.applications.by_class.ByClass`.

    References:
        The second experiment of section 5 of Lu, ICML 2022. The paper names the widths and the sigmoid; that the loss
        is cross-entropy and that layers have biases is our reading.

    Example:
        With all weights zero every output is the same, and every loss is log 10.

        >>> pixels, digits = np.zeros((4, 3)), np.array([1, 2, 1, 2])
        >>> study = budget_net(pixels, digits, classes=(1, 2), hidden=(5,))
        >>> f, g, _ = study.problem.evaluate(torch.zeros(study.size, dtype=torch.float64))
        >>> round(f.item(), 4), [round(v, 4) for v in g.tolist()]
        (2.3026, [1.3026])
    """

    _thresholds_name = "budgets"

    def __init__(
        self,
        images: Array,
        labels: Array,
        *,
        classes: Sequence[int] = (1, 2, 3, 4, 5, 6),
        budgets: float | Sequence[float] | Tensor = 1.0,
        hidden: Sequence[int] = (30,),
        outputs: int = 10,
        **data: Any,
    ) -> None:
        super().__init__(images, labels, classes, budgets, **data)
        #: Units per layer, inputs and outputs included: (784, 30, 10) in the paper.
        self.widths = (int(self.samples.shape[1]), *hidden, outputs)
        if not all(is_count(w, 1) for w in self.widths):
            raise ValueError(f"widths must be two or more positive integers, got {self.widths!r}")
        if not all(0 <= label < outputs for label in self.classes):
            raise ValueError(f"classes must lie in 0..{outputs - 1}, one output unit each, got {self.classes}")

    @property
    def size(self) -> int:
        """How many parameters the network has."""
        return sum((a + 1) * b for a, b in itertools.pairwise(self.widths))

    def start(self, seed: int = 0) -> Tensor:
        """Return a start: entries uniform within 1/sqrt(fan-in), layer by layer, as torch.nn.Linear begins."""
        rng = np.random.default_rng(seed)
        parts = [rng.uniform(-1, 1, size=(a + 1) * b) / math.sqrt(a) for a, b in itertools.pairwise(self.widths)]
        return torch.as_tensor(np.concatenate(parts), dtype=self.samples.dtype, device=self.samples.device)

    def scores(self, x: Tensor, samples: Tensor) -> Tensor:
        """Return the network's outputs (logits) for ``samples``, of shape (..., n, outputs)."""
        if x.shape[-1] != self.size:
            raise ValueError(f"x has {x.shape[-1]} entries, the network of widths {self.widths} has {self.size}")
        shapes = list(itertools.pairwise(self.widths))
        parts = torch.split(x, [(a + 1) * b for a, b in shapes], dim=-1)
        values = samples.mT  # W Z^T and not Z W^T: the product of few rows with many columns is the quicker one
        for layer, ((a, b), part) in enumerate(zip(shapes, parts, strict=True)):
            inputs = values.sigmoid() if layer else values
            values = part[..., : a * b].reshape(*x.shape[:-1], b, a) @ inputs + part[..., a * b :, None]
        return values.mT

    def _losses_of(self, scores: Tensor, j: int) -> Tensor:
        """Cross-entropy: minus the logarithm of the probability of the true class."""
        return torch.logsumexp(scores, dim=-1) - scores[..., self.classes[j]]


#: Makes a `BudgetNet` from images.
budget_net = BudgetNet
