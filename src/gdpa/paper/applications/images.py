"""Labeled images as samples, class after class, with noise that is drawn once."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from gdpa.base.checks import check_at_least, is_count
from gdpa.base.typing import Array


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
