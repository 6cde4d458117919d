"""The terms of a limit: means over samples, each with a surrogate that has a gradient and the value that counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

#: Bounds of a 0/1 outcome.
UNIT = (0.0, 1.0)


def proxy(surrogate: torch.Tensor, true: Any) -> torch.Tensor:
    """Return a tensor with the value of ``true``, which the multiplier follows, and the gradient of ``surrogate``.

    >>> x = torch.tensor(0.3, requires_grad=True)
    >>> value = proxy(torch.sigmoid(x), x > 0)
    >>> value.item(), round(torch.autograd.grad(value, x)[0].item(), 4)
    (1.0, 0.2445)

    References:
        A. Cotter, H. Jiang, K. Sridharan: Two-player games for efficient non-convex constrained optimization. ALT 2019.
        A. Cotter et al.: Optimization with non-differentiable constraints with applications to fairness, recall, churn,
        and other goals. JMLR 20(172), 2019.
    """
    if not isinstance(surrogate, torch.Tensor):
        raise TypeError(f"the surrogate of a true rate must be a tensor, got {surrogate!r}")
    rate = torch.as_tensor(true, device=surrogate.device).detach().to(surrogate.dtype)
    if rate.shape != surrogate.shape:
        shapes = f"shape {tuple(rate.shape)} and its surrogate {tuple(surrogate.shape)}"
        raise ValueError(f"true has {shapes}; give one rate for each value")
    return (surrogate - surrogate.detach()) + rate  # the difference is exactly 0, so that the value is exactly true


@dataclass(frozen=True, eq=False)
class Mean:
    """A mean over the samples of one group; NaN if the group is absent from the batch.

    Attributes:
        values: differentiable values of the samples, shape (n,).
        outcomes: the values that count, shape (n,), without gradient. Booleans are 0/1 outcomes.
        inside: which samples belong to the group, shape (n,).
        bounds: (low, high) that no outcome leaves, on new data either; None if there are none.
    """

    values: torch.Tensor
    outcomes: torch.Tensor
    inside: torch.Tensor
    bounds: tuple[float, float] | None = None

    @property
    def count(self) -> torch.Tensor:
        """How many samples of the group the batch holds."""
        return self.inside.sum()

    @property
    def surrogate(self) -> torch.Tensor:
        """The mean of the differentiable values."""
        return self._average(self.values)

    @property
    def true(self) -> torch.Tensor:
        """The mean of the outcomes."""
        return self._average(self.outcomes.to(self.values.dtype))

    def _average(self, values: torch.Tensor) -> torch.Tensor:
        # No indexing by the mask, which would wait for the device; no division by 0, whose gradient is NaN.
        count = self.count
        total = torch.where(self.inside, values, torch.zeros_like(values)).sum()
        return torch.where(count > 0, total / count.clamp(min=1), torch.full_like(total, torch.nan))


@dataclass(frozen=True, eq=False)
class Term:
    """A constant plus a weighted sum of means, ``c + sum_j a_j mean_j``: recall, the gap of two rates, a norm.

    Terms add, subtract and scale. Unpacked, a term is (surrogate, true value, count); the count is 0 and both values
    are NaN if a group is absent from the batch. ``opt.lagrangian(f, {"recall": term})`` takes terms as they are.

    Attributes:
        means: pairs (a_j, mean_j).
        fixed: the part independent of samples, as (surrogate, true value): a constant, or a function of the weights.

    >>> score, label = torch.tensor([2.0, -1.0, 3.0], requires_grad=True), torch.tensor([1, 1, 0])
    >>> hit = Term.of(torch.sigmoid(score), score > 0, label == 1)
    >>> surrogate, true, count = hit
    >>> round(surrogate.item(), 4), true.item(), count.item()
    (0.5749, 0.5, 2)
    >>> miss = 1 - hit
    >>> miss.true.item()
    0.5
    """

    means: tuple[tuple[float, Mean], ...] = ()
    fixed: tuple[Any, Any] = (0.0, 0.0)

    @classmethod
    def of(
        cls,
        values: torch.Tensor,
        outcomes: torch.Tensor | None = None,
        inside: torch.Tensor | None = None,
        bounds: tuple[float, float] | None = None,
    ) -> Term:
        """Return the mean of one number per sample; see `Mean`. By default the values count themselves."""
        if not isinstance(values, torch.Tensor) or values.ndim != 1 or not values.is_floating_point():
            got = tuple(values.shape) if isinstance(values, torch.Tensor) else values
            raise ValueError(f"a term needs one floating-point number per sample, shape (n,), got {got}")
        if values.dtype in (torch.float16, torch.bfloat16):
            values = values.float()
        outcomes = values.detach() if outcomes is None else outcomes.detach()
        inside = torch.ones_like(values, dtype=torch.bool) if inside is None else inside
        for name, given in (("outcomes", outcomes), ("inside", inside)):
            if given.shape != values.shape:
                text = f"{name} has shape {tuple(given.shape)}, expected {tuple(values.shape)}: one per sample"
                raise ValueError(text)
        if inside.dtype is not torch.bool:
            raise TypeError(f"inside must be boolean, got {inside.dtype}; write e.g. group == 1")
        if outcomes.dtype is torch.bool:
            bounds = UNIT
        if bounds is not None and not bounds[0] < bounds[1]:
            raise ValueError(f"bounds must be (low, high) with low < high, got {bounds}")
        return cls(((1.0, Mean(values, outcomes, inside, bounds)),))

    @property
    def surrogate(self) -> torch.Tensor:
        """The differentiable value."""
        return torch.as_tensor(sum(a * mean.surrogate for a, mean in self.means) + self.fixed[0])

    @property
    def true(self) -> torch.Tensor:
        """The value that counts, without gradient."""
        return torch.as_tensor(sum(a * mean.true for a, mean in self.means) + self.fixed[1]).detach()

    @property
    def value(self) -> torch.Tensor:
        """The value that counts with the surrogate's gradient; see `proxy`."""
        return proxy(self.surrogate, self.true)

    @property
    def count(self) -> torch.Tensor:
        """How many samples the value is a mean of, in the smallest group; 1 for a function of the weights alone."""
        counts = [mean.count for _, mean in self.means]
        return torch.stack(counts).min() if counts else torch.ones(())

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter((self.surrogate, self.true, self.count))

    def __getitem__(self, place: int) -> torch.Tensor:
        return tuple(self)[place]

    def __add__(self, other: Term | float) -> Term:
        more = other if isinstance(other, Term) else Term((), (other, other))
        return Term(self.means + more.means, (self.fixed[0] + more.fixed[0], self.fixed[1] + more.fixed[1]))

    def __mul__(self, factor: float) -> Term:
        means = tuple((factor * a, mean) for a, mean in self.means)
        return Term(means, (factor * self.fixed[0], factor * self.fixed[1]))

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Term:
        return self * -1.0

    def __sub__(self, other: Term | float) -> Term:
        return self + (-other)

    def __rsub__(self, other: float) -> Term:
        return -self + other


def has_terms(g: Any) -> bool:
    """Return whether ``g`` is a dict with a `Term` in it."""
    return isinstance(g, Mapping) and Term in map(type, g.values())


def resolve(g: Any, true: Any = None, counts: Any = None, samples: int | None = None) -> tuple[Any, Any]:
    """Return (g, counts) in tensors: terms and true rates are replaced by their values (`Term.value`, `proxy`)."""
    if isinstance(true, Mapping):
        if not isinstance(g, Mapping) or any(name not in g for name in true):
            known = list(g) if isinstance(g, Mapping) else type(g).__name__
            raise KeyError(f"true holds {list(true)}, which must be names of g, got g of {known}")
        if terms := [name for name in true if type(g[name]) is Term]:
            raise TypeError(f"{terms} are terms, which have their true value; leave them out of true=")
        g = {name: proxy(value, true[name]) if name in true else value for name, value in g.items()}
    elif true is not None:
        g = proxy(g, true)
    if not has_terms(g):
        return g, counts
    if counts is not None and not isinstance(counts, Mapping):
        raise TypeError("terms count their samples; counts= is a dict for the other names, or left out")
    given = {} if counts is None else counts
    each = 1 if samples is None else samples
    counts = {name: value.count if type(value) is Term else given.get(name, each) for name, value in g.items()}
    return {name: value.value if type(value) is Term else value for name, value in g.items()}, counts
