"""Problems whose losses are one per class of the data: one class in the objective, the others within thresholds.

The samples of the classes are disjoint, so a backward pass for each class costs together what one over all the data
costs: the Jacobian costs no more than a pullback, and further pullbacks at the same point cost nothing. `select` makes
such samples from labeled images.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch

from gdpa.base.checks import check_at_least, is_count
from gdpa.base.typing import Array
from gdpa.core.problem import Evaluation, Problem

Tensor = torch.Tensor


class ByClass(ABC):
    """``min L_p(x) + penalty(x)`` subject to ``L_j(x) <= r_j`` for every other class j.

    Args:
        images: of shape (n, ...); bytes are scaled to [0, 1], floating-point numbers are taken as they are.
        labels, classes: of shape (n,), and those that take part.
        thresholds: r_j: one number for all, one each in the order of ``classes``, or a batch of shape (..., m).
        prioritized: the label p of the objective.
        reduction: losses averaged ("mean") or summed ("sum") over the samples of a class.
        noise, seed: standard deviation and seed of the Gaussian noise added to every pixel, drawn once.
        images_per_class, dtype, device: as in `select`.

    Attributes:
        samples: the data, of shape (n, dimension), class after class in the order of ``classes``.
        counts: samples per class.
    """

    #: The name of the thresholds in errors.
    _thresholds_name = "thresholds"

    def __init__(
        self,
        images: Array,
        labels: Array,
        classes: Sequence[int],
        thresholds: float | Sequence[float] | Tensor,
        *,
        prioritized: int = 1,
        reduction: Literal["mean", "sum"] = "mean",
        noise: float = 0.0,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self.samples, self.counts, self.classes = select(images, labels, classes, noise=noise, seed=seed, **options)
        self.prioritized, self.reduction, self._noise, self._seed = prioritized, reduction, noise, seed
        if len(self.classes) < 2:
            raise ValueError(f"classes must name at least two classes, got {self.classes}")
        if prioritized not in self.classes:
            raise ValueError(f"prioritized must be one of the classes {self.classes}, got {prioritized!r}")
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")
        self.thresholds = self._as_thresholds(thresholds)

    @abstractmethod
    def scores(self, x: Tensor, samples: Tensor) -> Tensor:
        """Return the outputs for ``samples``, of shape (..., n, outputs); the largest is the class found."""

    @abstractmethod
    def _losses_of(self, scores: Tensor, j: int) -> Tensor:
        """Return the losses of samples of class j from their scores, of shape (..., n)."""

    def _penalty(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x[..., 0])

    @property
    def constrained(self) -> list[int]:
        """The places of the constrained classes in ``classes``."""
        return [j for j, label in enumerate(self.classes) if label != self.prioritized]

    @property
    def problem(self) -> Problem:
        """The problem in a flat x, which may have leading axes; its constraints are called "class 2" and so on."""
        names = tuple(f"class {self.classes[j]}" for j in self.constrained)
        return Problem(self._evaluate, num_constraints=len(names), names=names)

    def to(self, dtype: torch.dtype) -> Self:
        """Return the same problem in another precision."""
        found = copy(self)
        found.samples, found.thresholds = self.samples.to(dtype), self.thresholds.to(dtype)
        return found

    def with_thresholds(self, thresholds: float | Sequence[float] | Tensor) -> Self:
        """Return the same data under other thresholds: a number, m numbers, or a batch of shape (..., m)."""
        found = copy(self)
        found.thresholds = self._as_thresholds(thresholds)
        return found

    def _as_thresholds(self, value: float | Sequence[float] | Tensor) -> Tensor:
        """Return one threshold per class but the prioritized one, of shape (m,) or (..., m), positive and finite."""
        m, name = len(self.classes) - 1, self._thresholds_name
        tensor = torch.as_tensor(value, dtype=self.samples.dtype, device=self.samples.device)
        tensor = tensor.expand(m) if tensor.ndim == 0 else tensor
        if tensor.shape[-1] != m:
            raise ValueError(
                f"{name} must be one number or {m} of them, one per class other than the prioritized one, "
                f"got shape {tuple(tensor.shape)}"
            )
        if not bool(((tensor > 0) & tensor.isfinite()).all()):
            raise ValueError(f"{name} must be positive and finite, as the losses are everywhere, got {tensor.tolist()}")
        return tensor

    def _each(self, x: Tensor) -> list[Tensor]:
        """Return the losses of the classes apart, so that each has its own graph."""
        parts = torch.split(self.samples, list(self.counts))
        totals = [self._losses_of(self.scores(x, part), j).sum(-1) for j, part in enumerate(parts)]
        return [t / n for t, n in zip(totals, self.counts, strict=True)] if self.reduction == "mean" else totals

    def losses(self, x: Tensor) -> Tensor:
        """Return the loss L_j of every class, in the order of ``classes``."""
        return torch.stack(self._each(x), dim=-1)

    def _evaluate(self, x: Tensor) -> Evaluation:
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"x must be a torch tensor, got {type(x).__name__}")
        if x.dtype != self.samples.dtype:
            raise TypeError(f"x has dtype {x.dtype}, the data {self.samples.dtype}; convert one of them")
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            each, penalty = self._each(point), self._penalty(point)
        p = self.classes.index(self.prioritized)

        def gradient_of(value: Tensor) -> Tensor:
            return torch.autograd.grad(value.sum(), point)[0]

        @cache
        def gradients() -> tuple[Tensor, Tensor]:
            """The gradient of every L_j, of shape (..., k, d), and of the penalty."""
            regular = gradient_of(penalty) if penalty.requires_grad else torch.zeros_like(point)
            return torch.stack([*map(gradient_of, each)], dim=-2), regular

        def pullback(w: Tensor, objective: float | Tensor = 1.0) -> Tensor:
            rows, regular = gradients()
            scale = torch.as_tensor(objective, dtype=x.dtype, device=x.device).expand(penalty.shape)[..., None]
            v = torch.cat([w[..., :p], scale, w[..., p:]], dim=-1)
            return torch.einsum("...j,...jd->...d", v, rows) + scale * regular

        values = torch.stack(each, dim=-1).detach()
        return Evaluation(
            values[..., p] + penalty.detach(),
            values[..., self.constrained] - self.thresholds,
            pullback,
            lambda: gradients()[0][..., self.constrained, :],
        )

    def confusion(self, x: Tensor, images: Array, labels: Array) -> Any:
        """Return how images of each class are classified, with as much noise as in training.

        Rows are true classes, columns the largest output. Images of other classes are left out.
        """
        like: dict[str, Any] = {"dtype": self.samples.dtype, "device": self.samples.device}
        test = select(images, labels, self.classes, noise=self._noise, seed=self._seed + 1_000_003, **like)
        found = self.scores(x, test.samples)
        parts = torch.split(found.argmax(dim=-1), list(test.counts))
        return np.array([np.bincount(part.cpu().numpy(), minlength=found.shape[-1]) for part in parts])


class Labeled(NamedTuple):
    """Samples of shape (n, dimension), class after class; samples per class; the labels in that order."""

    samples: torch.Tensor
    counts: tuple[int, ...]
    classes: tuple[int, ...]


def select(
    images: Array,
    labels: Array,
    classes: Sequence[int],
    *,
    images_per_class: int | None = None,
    noise: float = 0.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> Labeled:
    """Return the (first) images of the given classes, flat, scaled to [0, 1] if they are bytes, with Gaussian noise.

    The noise of a class depends on the seed and the label alone, and the first images of a class get the same noise
    however many are taken.

    >>> found = select(np.array([[255, 0], [0, 51]], dtype=np.uint8), np.array([7, 3]), (3, 7))
    >>> found.samples.tolist(), found.counts
    ([[0.0, 0.2], [1.0, 0.0]], (1, 1))
    """
    images, labels = np.asarray(images), np.asarray(labels)
    if labels.ndim != 1 or len(images) != len(labels):
        raise ValueError(f"labels must be one per image, got shapes {labels.shape} and {images.shape}")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype!r}")
    if images_per_class is not None and not is_count(images_per_class, 1):
        raise ValueError(f"images_per_class must be a positive integer or None, got {images_per_class!r}")
    check_at_least(0, noise=noise)
    try:
        wanted = tuple(operator.index(label) for label in classes)
    except TypeError:
        raise ValueError(f"classes must be integers, the labels of the images, got {tuple(classes)!r}") from None
    if len(set(wanted)) != len(wanted):
        raise ValueError(f"classes must differ from each other, got {wanted}")
    present = sorted(set(labels.tolist()))
    rows = [np.flatnonzero(labels == label)[:images_per_class] for label in wanted]
    for label, found in zip(wanted, rows, strict=True):
        if not len(found):
            raise ValueError(f"class {label} has no image; the labels present are {present}")
    counts = tuple(map(len, rows))
    samples = np.empty((sum(counts), math.prod(images.shape[1:])))
    parts = np.split(samples, np.cumsum(counts)[:-1])
    for label, found, part in zip(wanted, rows, parts, strict=True):
        np.divide(images[found].reshape(part.shape), 255 if images.dtype == np.uint8 else 1, out=part)
        if noise:
            # Labels may be negative, seeds may not: two's complement keeps them apart.
            stream = np.random.default_rng([seed, label & 0xFFFFFFFF])
            part += noise * stream.standard_normal(part.shape, dtype=np.float32)
    return Labeled(torch.from_numpy(samples).to(dtype=dtype, device=device), counts, wanted)
