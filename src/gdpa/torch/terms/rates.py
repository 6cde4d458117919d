"""Rates of a classifier. The surrogate of the indicator ``score > threshold`` is a sigmoid unless another is given.

Everywhere ``scores`` are logits of shape (n,), ``labels`` are 0/1, ``inside`` is a mask of the samples that count, and
``options`` are the threshold and the surrogate of `positive_rate`. For one class k of many use
``scores = margin(logits, k)`` and ``labels = target == k``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gdpa.torch.terms.term import Term


def margin(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Return the logit of class k minus the largest other one: positive exactly if class k is predicted.

    >>> margin(torch.tensor([[1.0, 3.0, 2.0]]), 1)
    tensor([1.])
    """
    others = torch.cat([logits[:, :k], logits[:, k + 1 :]], dim=1)
    return logits[:, k] - others.max(dim=1).values


def positive_rate(
    scores: torch.Tensor,
    inside: torch.Tensor | None = None,
    *,
    threshold: float = 0.0,
    surrogate: Callable[[torch.Tensor], torch.Tensor] = torch.sigmoid,
) -> Term:
    """Return the share of samples with a score above the threshold, ``P(score > threshold | inside)``.

    The surrogate, the term with a gradient, is a function of ``score - threshold``. The hinge
    ``lambda s: torch.relu(1 + s)`` bounds the rate from above and does not saturate.

    >>> positive_rate(torch.tensor([1.0, -2.0, 3.0, 0.5])).true.item()
    0.75
    """
    scores = scores if threshold == 0 else scores - threshold
    return Term.of(surrogate(scores), scores > 0, inside)


def recall(scores: torch.Tensor, labels: torch.Tensor, inside: torch.Tensor | None = None, **options: Any) -> Term:
    """Return the true-positive rate ``P(score > threshold | label = 1)``.

    >>> recall(torch.tensor([1.0, -2.0, 3.0]), torch.tensor([1, 1, 0])).true.item()
    0.5
    """
    return positive_rate(scores, _both(labels != 0, inside), **options)


def false_positive_rate(
    scores: torch.Tensor, labels: torch.Tensor, inside: torch.Tensor | None = None, **options: Any
) -> Term:
    """Return ``P(score > threshold | label = 0)``.

    >>> false_positive_rate(torch.tensor([1.0, -2.0, 3.0]), torch.tensor([1, 1, 0])).true.item()
    1.0
    """
    return positive_rate(scores, _both(labels == 0, inside), **options)


def demographic_parity(
    scores: torch.Tensor, group: torch.Tensor, other: torch.Tensor | None = None, **options: Any
) -> Term:
    """Return the gap of the positive rates of two groups, ``P(score > threshold | group) - P(... | other)``.

    Limit it by ``between(-0.05, 0.05)``. ``other`` is by default everybody else. A. Agarwal et al.: A reductions
    approach to fair classification. ICML 2018.

    >>> scores, group = torch.tensor([1.0, -2.0, 3.0, 0.5]), torch.tensor([1, 1, 0, 0])
    >>> demographic_parity(scores, group == 1).true.item()
    -0.5
    """
    return positive_rate(scores, group, **options) - positive_rate(
        scores, ~group if other is None else other, **options
    )


def equalized_odds(
    scores: torch.Tensor, labels: torch.Tensor, group: torch.Tensor, other: torch.Tensor | None = None, **options: Any
) -> tuple[Term, Term]:
    """Return two gaps between the groups: of the recall, and of the false-positive rate. Limit both.

    M. Hardt, E. Price, N. Srebro: Equality of opportunity in supervised learning. NeurIPS 2016. The first gap alone is
    equality of opportunity.

    >>> scores, labels = torch.tensor([1.0, -2.0, 3.0, -0.5]), torch.tensor([1, 0, 1, 0])
    >>> group = torch.tensor([True, True, False, False])
    >>> [gap.true.item() for gap in equalized_odds(scores, labels, group)]
    [0.0, 0.0]
    """
    other = ~group if other is None else other
    recalls, alarms = (
        rate(scores, labels, group, **options) - rate(scores, labels, other, **options)
        for rate in (recall, false_positive_rate)
    )
    return recalls, alarms


def calibration(
    scores: torch.Tensor,
    labels: torch.Tensor,
    inside: torch.Tensor | None = None,
    *,
    low: float = 0.0,
    high: float = 1.0,
) -> Term:
    """Return the calibration gap ``E[p - label | low <= p < high]`` with ``p = sigmoid(score)``.

    With one term for each bin and ``between(-0.05, 0.05)`` a reliability diagram is limited bin by bin; over [0, 1] and
    a group it is calibration in the large. The last bin includes 1. C. Guo et al.: On calibration of modern neural
    networks. ICML 2017.

    >>> calibration(torch.zeros(4), torch.tensor([1, 1, 1, 0])).true.item()
    -0.25
    """
    p = torch.sigmoid(scores)
    bin_ = (p >= low) & ((p < high) | (p >= 1) if high >= 1 else p < high)
    return Term.of(p - labels.to(p.dtype), None, _both(bin_.detach(), inside), (low - 1.0, high))


def _both(mask: torch.Tensor, inside: torch.Tensor | None) -> torch.Tensor:
    return mask if inside is None else mask & inside
