"""Multi-class Neyman-Pearson classification (mNPC): one class first, the others within their budgets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from gdpa.base.checks import check_at_least, check_positive
from gdpa.base.typing import Array
from gdpa.core.problem import Problem
from gdpa.paper.applications.by_class import ByClass, as_thresholds, check_prioritized, check_reduction, select

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class NeymanPearson:
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

    One oracle call is one product of the data with W; a pullback is one product of the data with the derivatives.
    The data of the classes are disjoint, so the pullback keeps one gradient per class: the Jacobian costs what a
    pullback costs, and a second pullback at the same point costs nothing. x may have leading axes (many W, and
    thresholds of shape (..., m) with them): they are columns of the same two products.

    Make one from images with `neyman_pearson`.

    Attributes:
        samples: the data, of shape (n, dimension), class after class in the order of ``classes``.
        counts: samples per class.
        classes: the labels.
        prioritized: the class in the objective.
        thresholds: r_j, of shape (m,) or (..., m), in the order of ``classes`` without the prioritized one.
        regularizer: lambda.
        norm: "squared" as above, or "plain": (lambda/2) sum_i ||x_(i)||, as the paper prints it, with
            ||x|| smoothed to sqrt(||x||^2 + smoothing^2): the printed one has no gradient at 0.
        smoothing: see ``norm``.
        reduction: "mean" or "sum" over the samples of a class.
        noise: the standard deviation of the noise that was added to the samples, repeated on test images.
        noise_seed: its seed.

    References:
        The problem of section 5 of Lu, ICML 2022, after Ma, Lin, Yang, ICML 2020, where losses are averaged and W lies
        in a ball instead of being penalized.
    """

    samples: Tensor
    counts: tuple[int, ...]
    classes: tuple[int, ...]
    prioritized: int
    thresholds: Tensor
    regularizer: float = 1.0
    norm: Literal["squared", "plain"] = "squared"
    smoothing: float = 1e-6
    reduction: Literal["mean", "sum"] = "mean"
    noise: float = 0.0
    noise_seed: int = 0

    def __post_init__(self) -> None:
        if self.norm not in ("squared", "plain"):
            raise ValueError(f"norm must be 'squared' or 'plain', got {self.norm!r}")
        check_reduction(self.reduction)
        check_at_least(0, regularizer=self.regularizer, noise=self.noise)
        check_positive(smoothing=self.smoothing)  # the plain norm needs it at 0
        self._check_thresholds()

    def _check_thresholds(self) -> None:
        sizes = [1 if self.reduction == "mean" else self.counts[j] for j in self._by_class.constrained]
        most = (len(self.classes) - 1) * torch.tensor(sizes, dtype=torch.float64)
        values = self.thresholds.detach().cpu().double()
        if not bool(((values > 0) & (values < most)).all()):
            raise ValueError(
                f"thresholds must lie strictly between 0 (which no classifier attains) and {most.tolist()} (which none "
                f"exceeds) for losses reduced by {self.reduction!r}, got {self.thresholds.tolist()}"
            )

    @property
    def dimension(self) -> int:
        """The number of pixels; x has as many entries per class."""
        return int(self.samples.shape[1])

    @property
    def _by_class(self) -> ByClass:
        return ByClass(self._forward, self.classes, self.prioritized, self.thresholds, self._penalty)

    @property
    def problem(self) -> Problem:
        """The problem in the flat x of shape (..., k * dimension)."""
        return self._by_class.problem()

    def with_thresholds(self, thresholds: float | Sequence[float] | Tensor) -> NeymanPearson:
        """Return the same data under other thresholds: a number, m numbers, or a batch of shape (..., m)."""
        return replace(self, thresholds=as_thresholds(thresholds, self.classes, self.samples))

    def to(self, dtype: torch.dtype) -> NeymanPearson:
        """Return the same problem in another precision."""
        return replace(self, samples=self.samples.to(dtype), thresholds=self.thresholds.to(dtype))

    def start(self, seed: int = 0, variance: float = 1e-3) -> Tensor:
        """Return the paper's x_0: independent Gaussian entries of variance 1e-3."""
        draws = np.random.default_rng(seed).standard_normal(len(self.classes) * self.dimension)
        return torch.as_tensor(math.sqrt(variance) * draws, dtype=self.samples.dtype, device=self.samples.device)

    def losses(self, x: Tensor) -> Tensor:
        """Return the loss L_j of every class, in the order of ``classes``."""
        return self._forward(x).losses

    def confusion(self, x: Tensor, images: Array, labels: Array, noise: float | None = None) -> Any:
        """Return how images of each class are classified: row = true class, column = argmax_i x_(i)^T xi.

        Args:
            x: one classifier.
            images, labels: for example the test set; other classes are left out.
            noise: standard deviation of the noise added to the images; default as in training.
        """
        test = select(
            images,
            labels,
            self.classes,
            noise=self.noise if noise is None else noise,
            seed=self.noise_seed + 1_000_003,  # not the training draw
            dtype=self.samples.dtype,
            device=self.samples.device,
        )
        scores = test.samples @ self._rows(x).T
        table = np.zeros((len(self.classes),) * 2, dtype=int)
        for j, part in enumerate(torch.split(scores.argmax(dim=1), list(test.counts))):
            table[j] = np.bincount(part.cpu().numpy(), minlength=len(self.classes))
        return table

    def _rows(self, x: Tensor) -> Tensor:
        """View x as one row per class and batch member."""
        if x.dtype != self.samples.dtype:
            raise TypeError(f"x has dtype {x.dtype}, the data {self.samples.dtype}; convert one of them")
        if x.shape[-1] != len(self.classes) * self.dimension:
            raise ValueError(f"x has {x.shape[-1]} entries, expected {len(self.classes)} x {self.dimension}")
        return x.reshape(-1, self.dimension)

    def _forward(self, x: Tensor) -> _ClassGradients:
        return _ClassGradients(self, x)

    def _penalty(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(lambda/2) sum_i ||x_(i)||^2, or with the smoothed plain norm, and its gradient."""
        half = self.regularizer / 2
        if self.norm == "squared":
            return half * (x * x).sum(-1), self.regularizer * x
        rows = x.reshape(*x.shape[:-1], -1, self.dimension)
        sizes = ((rows * rows).sum(-1, keepdim=True) + self.smoothing**2).sqrt()
        return half * sizes.sum(dim=(-2, -1)), half * (rows / sizes).reshape(x.shape)


class _ClassGradients:
    """The losses of every class at one point, and their gradients on demand."""

    def __init__(self, owner: NeymanPearson, x: Tensor) -> None:
        rows = owner._rows(x)
        self._owner, self._lead, self._d = owner, x.shape[:-1], x.shape[-1]
        k = len(owner.classes)
        scores = (owner.samples @ rows.T).reshape(-1, rows.shape[0] // k, k)  # the first product: x_(i)^T xi
        parts = torch.split(scores, list(owner.counts))
        for j, z in enumerate(parts):
            z.sub_(z[..., j : j + 1].clone())
        scores.sigmoid_()  # phi((x_(j) - x_(i))^T xi)
        for j, phi in enumerate(parts):
            phi[..., j] = 0.0  # only i != j counts
        self._phi: tuple[Tensor, ...] | None = parts
        losses = [self._reduce(phi.sum(dim=(0, 2)), j) for j, phi in enumerate(parts)]
        self.losses = torch.stack(losses, dim=-1).reshape(*self._lead, k)
        self._gradients: Tensor | None = None

    def _reduce(self, total: Tensor, j: int) -> Tensor:
        """Average a sum over the samples of class j, if ``reduction`` is "mean"."""
        return total / self._owner.counts[j] if self._owner.reduction == "mean" else total

    @property
    def gradients(self) -> Tensor:
        """The gradient of every L_j, of shape (..., k, k * dimension), by one more product with the data."""
        if self._gradients is None:
            assert self._phi is not None
            gradients = []
            samples = torch.split(self._owner.samples, list(self._owner.counts))
            for j, (phi, xi) in enumerate(zip(self._phi, samples, strict=True)):
                slope = phi * (1 - phi)  # of each term, along x_(i)
                slope[..., j] = -slope.sum(-1)  # of all terms, along x_(j)
                product = slope.reshape(len(xi), -1).T @ xi  # the second product
                gradients.append(self._reduce(product.reshape(-1, self._d), j))
            self._gradients = torch.stack(gradients, dim=-2).reshape(*self._lead, len(gradients), self._d)
            self._phi = None  # no longer needed
        return self._gradients


def neyman_pearson(
    images: Array,
    labels: Array,
    *,
    classes: Sequence[int] = (1, 2, 3, 4),
    prioritized: int = 1,
    thresholds: float | Sequence[float] | Tensor = 0.1,
    regularizer: float = 1.0,
    norm: Literal["squared", "plain"] = "squared",
    smoothing: float = 1e-6,
    reduction: Literal["mean", "sum"] = "mean",
    noise: float = 1.0,
    seed: int = 0,
    images_per_class: int | None = None,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> NeymanPearson:
    """Return the paper's mNPC problem on labeled images.

    Args:
        images: of shape (n, ...); bytes are scaled to [0, 1], floating-point numbers are taken as they are.
        labels: of shape (n,).
        classes: the labels that take part.
        prioritized: the one in the objective; every other one gets a constraint.
        thresholds: r_j: one number for all, one each in the order of ``classes``, or a batch of shape (..., m).
        regularizer: lambda.
        norm, smoothing, reduction: see `NeymanPearson`.
        noise: standard deviation of the Gaussian noise added to every pixel, drawn once.
        seed: of the noise. A class's noise depends on the seed and its label alone.
        images_per_class: how many of each class, the first ones; None takes all.
        dtype, device: of the data and of x.

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
    data = select(
        images, labels, classes, images_per_class=images_per_class, noise=noise, seed=seed, dtype=dtype, device=device
    )
    check_prioritized(prioritized, data.classes)
    return NeymanPearson(
        samples=data.samples,
        counts=data.counts,
        classes=data.classes,
        prioritized=prioritized,
        thresholds=as_thresholds(thresholds, data.classes, data.samples),
        regularizer=regularizer,
        norm=norm,
        smoothing=smoothing,
        reduction=reduction,
        noise=noise,
        noise_seed=seed,
    )
