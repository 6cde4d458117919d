"""Problems whose losses are one per class of the data: one class in the objective, the others within thresholds.

The samples of the classes are disjoint, so one backward pass over the data yields the gradient of *every* class's loss
when the classes are kept apart: the Jacobian costs no more than a pullback, and further pullbacks at the same point
cost nothing. `select` makes such samples from labeled images.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch

from gdpa.base.checks import check_at_least, is_count
from gdpa.base.typing import Array
from gdpa.core.problem import Evaluation, Problem

Tensor = torch.Tensor


class ClassLosses(Protocol):
    """The losses of all k classes at one point, of shape (..., k), and on demand their gradients, (..., k, d)."""

    @property
    def losses(self) -> Tensor: ...

    @property
    def gradients(self) -> Tensor: ...


def no_penalty(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the value and the gradient of no penalty at all."""
    return torch.zeros_like(x[..., 0]), torch.zeros_like(x)


@dataclass(frozen=True, eq=False)
class ByClass:
    """``min L_p(x) + penalty(x)`` subject to ``L_j(x) <= r_j`` for every other class j.

    Args:
        at: the forward pass: maps x to its `ClassLosses`.
        classes: the labels, in the order of the losses.
        prioritized: the label p of the objective.
        thresholds: r_j in the order of ``classes`` without p, of shape (m,) or (..., m).
        penalty: maps x to a value and its gradient.
    """

    at: Callable[[Tensor], ClassLosses]
    classes: tuple[int, ...]
    prioritized: int
    thresholds: Tensor
    penalty: Callable[[Tensor], tuple[Tensor, Tensor]] = no_penalty

    @property
    def constrained(self) -> list[int]:
        """The places of the constrained classes in ``classes``."""
        return [j for j, label in enumerate(self.classes) if label != self.prioritized]

    def problem(self) -> Problem:
        """Return the problem; its constraints are called "class 2" and so on."""
        names = tuple(f"class {self.classes[j]}" for j in self.constrained)
        return Problem(self.evaluate, num_constraints=len(names), names=names)

    def evaluate(self, x: Tensor) -> Evaluation:
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"x must be a torch tensor, got {type(x).__name__}")
        point = x.detach()
        now = self.at(point)
        value, penalty_gradient = self.penalty(point)
        p = self.classes.index(self.prioritized)
        f = now.losses[..., p] + value
        g = now.losses[..., self.constrained] - self.thresholds

        def pullback(w: Tensor, objective: float | Tensor = 1.0) -> Tensor:
            scale = torch.as_tensor(objective, dtype=x.dtype, device=x.device).expand(f.shape)[..., None]
            v = torch.cat([w[..., :p], scale, w[..., p:]], dim=-1)
            return torch.einsum("...j,...jd->...d", v, now.gradients) + scale * penalty_gradient

        return Evaluation(f, g, pullback, lambda: now.gradients[..., self.constrained, :])


def check_prioritized(prioritized: int, classes: Sequence[int]) -> None:
    """Raise unless there are two classes or more and ``prioritized`` is one of them."""
    if len(classes) < 2:
        raise ValueError(f"classes must name at least two classes, got {tuple(classes)}")
    if prioritized not in classes:
        raise ValueError(f"prioritized must be one of the classes {tuple(classes)}, got {prioritized!r}")


def check_reduction(reduction: str) -> None:
    """Raise unless ``reduction`` is "mean" or "sum"."""
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")


def as_thresholds(
    value: float | Sequence[float] | Tensor, classes: Sequence[int], like: Tensor, name: str = "thresholds"
) -> Tensor:
    """Return one threshold per class but the prioritized one, of shape (m,) or (..., m), positive and finite.

    ``name`` is their name in errors.

    >>> as_thresholds(0.5, (1, 2, 3), torch.zeros(1)).tolist()
    [0.5, 0.5]
    """
    m = len(classes) - 1
    tensor = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    tensor = tensor.expand(m) if tensor.ndim == 0 else tensor
    if tensor.shape[-1] != m:
        raise ValueError(
            f"{name} must be one number or {m} of them, one per class other than the prioritized one, "
            f"got shape {tuple(tensor.shape)}"
        )
    if not bool(((tensor > 0) & tensor.isfinite()).all()):
        raise ValueError(
            f"{name} must be positive and finite, got {tensor.tolist()}: the losses are positive everywhere"
        )
    return tensor


class Labeled(NamedTuple):
    """Samples grouped by class.

    Attributes:
        samples: of shape (n, dimension), class after class.
        counts: samples per class.
        classes: the labels in that order.
    """

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
    """Return the images of the given classes, flat, scaled to [0, 1] if they are bytes, with noise added.

    Args:
        images: of shape (n, ...).
        labels: of shape (n,).
        classes: the labels wanted, in the order wanted.
        images_per_class: how many of each class, the first ones; None takes all.
        noise: standard deviation of independent Gaussian noise on every pixel.
        seed: of the noise. The draw of a class depends on the seed and the label alone, and the first images of a
            class get the same noise however many are taken.
        dtype, device: of the samples.

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
