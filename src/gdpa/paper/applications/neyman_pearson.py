"""Multi-class Neyman-Pearson classification (mNPC): one class first, the others within their budgets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

from gdpa.base.checks import check_at_least, check_positive
from gdpa.base.typing import Array
from gdpa.paper.applications.by_class import ByClass

Tensor = torch.Tensor


class NeymanPearson(ByClass):
    r"""A linear classifier that does best on one class while every other class stays within its budget.

    With one vector :math:`x_{(i)}` per class, :math:`W = (x_{(1)}, \dots, x_{(k)})`, and
    :math:`\varphi(z) = 1/(1+e^z)`, the loss of class j over its samples :math:`\xi \in D_j` is

    .. math::
        L_j(W) = \sum_{\xi \in D_j} \sum_{i \ne j} \varphi\bigl((x_{(j)} - x_{(i)})^T \xi\bigr)
        \qquad (\text{divided by } |D_j| \text{ when averaged})

    and the problem, with p the prioritized class, is

    .. math::
        \min_W\; L_p(W) + \tfrac{\lambda}{2} \sum_i \|x_{(i)}\|^2
        \quad\text{subject to}\quad L_j(W) \le r_j,\; j \ne p .

    One oracle call is one product of the data with W; a pullback is one product of the data with the derivatives, and
    keeps one gradient per class (`gdpa.paper.applications.by_class`). x may have leading axes (many W, and thresholds
    of shape (..., m) with them).

    Args:
        images, labels, classes: the data and the classes that take part.
        thresholds: r_j: one number for all, one each in the order of ``classes``, or a batch of shape (..., m).
        regularizer: lambda.
        norm: "squared" as above, or "plain": (lambda/2) sum_i ||x_(i)||, as the paper prints it, with
            ||x|| smoothed to sqrt(||x||^2 + smoothing^2): the printed one has no gradient at 0.
        smoothing: see ``norm``.
        noise, **data: as in `gdpa.paper.applications.by_class.ByClass`.

    References:
        The problem of section 5 of Lu, ICML 2022, after Ma, Lin, Yang, ICML 2020, where losses are averaged and W lies
        in a ball instead of being penalized.

    Example:
        Two pixels, three classes, no noise. At W = 0 every term is phi(0) = 1/2.

        >>> pixels = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> study = neyman_pearson(pixels, np.array([1, 2, 3]), classes=(1, 2, 3), noise=0.0)
        >>> f, g, pullback = study.problem.evaluate(torch.zeros(6, dtype=torch.float64))
        >>> f.item(), [round(v, 3) for v in g.tolist()]
        (1.0, [0.9, 0.9])
        >>> pullback(torch.zeros(2, dtype=torch.float64)).tolist()  # class 1 alone: towards x_(1), away from the rest
        [-0.5, 0.0, 0.25, 0.0, 0.25, 0.0]
    """

    def __init__(
        self,
        images: Array,
        labels: Array,
        *,
        classes: Sequence[int] = (1, 2, 3, 4),
        thresholds: float | Sequence[float] | Tensor = 0.1,
        regularizer: float = 1.0,
        norm: Literal["squared", "plain"] = "squared",
        smoothing: float = 1e-6,
        noise: float = 1.0,
        **data: Any,
    ) -> None:
        super().__init__(images, labels, classes, thresholds, noise=noise, **data)
        self.regularizer, self.norm, self.smoothing = regularizer, norm, smoothing
        if norm not in ("squared", "plain"):
            raise ValueError(f"norm must be 'squared' or 'plain', got {norm!r}")
        check_at_least(0, regularizer=regularizer)
        check_positive(smoothing=smoothing)  # the plain norm needs it at 0

    def _as_thresholds(self, value: float | Sequence[float] | Tensor) -> Tensor:
        found = super()._as_thresholds(value)
        sizes = [1 if self.reduction == "mean" else self.counts[j] for j in self.constrained]
        most = (len(self.classes) - 1) * torch.tensor(sizes, dtype=torch.float64)
        if not bool((found.detach().cpu().double() < most).all()):
            raise ValueError(
                f"thresholds must lie strictly between 0 (which no classifier attains) and {most.tolist()} (which none "
                f"exceeds) for losses reduced by {self.reduction!r}, got {found.tolist()}"
            )
        return found

    @property
    def dimension(self) -> int:
        """The number of pixels; x has as many entries per class."""
        return int(self.samples.shape[1])

    def start(self, seed: int = 0, variance: float = 1e-3) -> Tensor:
        """Return the paper's x_0: independent Gaussian entries of variance 1e-3."""
        draws = np.random.default_rng(seed).standard_normal(len(self.classes) * self.dimension)
        return torch.as_tensor(math.sqrt(variance) * draws, dtype=self.samples.dtype, device=self.samples.device)

    def _rows(self, x: Tensor) -> Tensor:
        if x.shape[-1] != len(self.classes) * self.dimension:
            raise ValueError(f"x has {x.shape[-1]} entries, expected {len(self.classes)} x {self.dimension}")
        return x.reshape(*x.shape[:-1], -1, self.dimension)

    def scores(self, x: Tensor, samples: Tensor) -> Tensor:
        """Return x_(i)^T xi for every sample xi and class i."""
        rows = self._rows(x)
        products = torch.nn.functional.linear(samples, rows.reshape(-1, self.dimension))
        return products.reshape(len(samples), *rows.shape[:-1]).movedim(0, -2)

    def _losses_of(self, scores: Tensor, j: int) -> Tensor:
        others = [i for i in range(len(self.classes)) if i != j]
        return torch.sigmoid(scores[..., others] - scores[..., j : j + 1]).sum(-1)  # phi((x_(j) - x_(i))^T xi)

    def _penalty(self, x: Tensor) -> Tensor:
        squares = self._rows(x).square().sum(-1)
        sizes = squares if self.norm == "squared" else (squares + self.smoothing**2).sqrt()
        return self.regularizer / 2 * sizes.sum(-1)


#: Makes a `NeymanPearson` from images.
neyman_pearson = NeymanPearson
