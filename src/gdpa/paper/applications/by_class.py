"""Problems whose losses are one per class of the data: one class in the objective, the others within thresholds.

The samples of the classes are disjoint, so one backward pass over the data yields the gradient of *every* class's loss
when the classes are kept apart: the Jacobian costs what a pullback costs, and further pullbacks at the same point
cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

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

    ``name`` is what complaints call them.

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
