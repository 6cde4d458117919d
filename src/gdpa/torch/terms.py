"""Ready terms for limits. Each is (surrogate, true value, count), NaN and 0 if its group is absent from the batch.

Rates of a classifier: the surrogate of the indicator ``score > threshold`` is a sigmoid unless another is given.
Everywhere ``scores`` are logits of shape (n,), ``labels`` are 0/1, ``inside`` is a mask of the samples that count, and
``options`` are the threshold and the surrogate of `positive_rate`. For one class k of many use
``scores = margin(logits, k)`` and ``labels = target == k``.

Terms of the model itself: distance to a reference, size and sparsity of weights, monotonicity, Lipschitz bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gdpa.base.checks import check_limit

__all__ = [
    "positive_rate", "recall", "false_positive_rate", "demographic_parity", "equalized_odds", "calibration", "margin",
    "mean", "kl", "kl_sampled", "sampled_cost", "weight_norm", "density", "open_gates", "monotonicity", "steepness",
    "lipschitz_bound", "proxy", "Term", "Mean",
]  # fmt: skip


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


#: The stretch of the hard concrete distribution and its temperature, as Louizos et al. (2018), section 4, choose them.
GATE_LOW, GATE_HIGH, GATE_TEMPERATURE = -0.1, 1.1, 2 / 3
#: Layers that move no two points apart: `lipschitz_bound` passes over them.
NON_EXPANSIVE = (
    *(torch.nn.ReLU, torch.nn.LeakyReLU, torch.nn.Tanh, torch.nn.Sigmoid, torch.nn.Softplus, torch.nn.ELU),
    *(torch.nn.Identity, torch.nn.Flatten, torch.nn.Softsign, torch.nn.Hardtanh, torch.nn.LogSigmoid, torch.nn.Dropout),
)
#: The options of these layers that must lie within [-1, 1] for that.
SLOPES = ("negative_slope", "alpha")


def mean(
    values: torch.Tensor, inside: torch.Tensor | None = None, *, bounds: tuple[float, float] | None = None
) -> Term:
    """Return the mean of a loss, one number per sample, over the samples ``inside``, by default all.

    ``bounds`` (low, high), which the loss cannot leave, are needed for statements on new data (`gdpa.torch.certify`).

    >>> mean(torch.tensor([1.0, 2.0, 6.0]), bounds=(0, 10)).true.item()
    3.0
    """
    return Term.of(values, None, inside, bounds)


def kl(logits: torch.Tensor, reference: torch.Tensor, tokens: torch.Tensor | None = None, **options: Any) -> Term:
    """Return ``KL(p || q)`` of the model's distribution p to a reference q, both given by logits.

    Args:
        logits, reference: shape (n, classes), or (n, tokens, classes): then a sample's value is the mean over its
            tokens, because samples are independent of each other and tokens are not.
        tokens: which tokens count, shape (n, tokens). A sample without any does not count.
        options: ``inside`` and ``bounds`` of `mean`.

    >>> logits = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    >>> kl(logits, logits).true.item()
    0.0
    """
    p, q = torch.log_softmax(logits, -1), torch.log_softmax(reference.detach(), -1)
    return _over_tokens((p.exp() * (p - q)).sum(-1), None, tokens, **options)


def kl_sampled(logp: torch.Tensor, reference: torch.Tensor, tokens: torch.Tensor | None = None, **options: Any) -> Term:
    """Return the KL to a reference from log probabilities of tokens that the model itself has drawn, see `kl`.

    The value is ``r - 1 - log r`` with r = q/p, nonnegative with mean KL(p || q). The gradient is taken of
    ``(log p - log q)^2 / 2``, whose mean over samples of p is the gradient of KL(p || q); the gradient of the value is
    not. J. Schulman: Approximating KL divergence, 2020, names them k3 and k2.

    >>> kl_sampled(torch.tensor([-1.0]), torch.tensor([-1.0])).true.item()
    0.0
    """
    gap = logp - reference.detach()
    value = (torch.expm1(-gap) + gap).detach()
    return _over_tokens(gap.square() / 2, value, tokens, **options)


def sampled_cost(costs: torch.Tensor, logp: torch.Tensor, inside: torch.Tensor | None = None, **options: Any) -> Term:
    """Return the mean cost of outputs that the model itself has drawn: their length, price, or a 0/1 complaint.

    The gradient is the score function's, ``mean (cost_i - mean of the others) grad log p_i``. R. Williams: Simple
    statistical gradient-following algorithms for connectionist reinforcement learning. Machine Learning 8, 1992. The
    baseline is due to W. Kool, H. van Hoof, M. Welling: Buy 4 REINFORCE samples, get a baseline for free! 2019.

    ``costs`` has one number, or one truth value, per output, ``logp`` the log probability of each whole output; the
    option is ``bounds`` of `mean`.

    >>> sampled_cost(torch.tensor([3.0, 5.0]), torch.tensor([-1.0, -2.0])).true.item()
    4.0
    """
    numbers = costs.detach().to(logp.dtype)
    mask = torch.ones_like(numbers, dtype=torch.bool) if inside is None else inside
    total = torch.where(mask, numbers, torch.zeros_like(numbers)).sum()
    others = (total - numbers) / (mask.sum() - 1).clamp(min=1)
    return Term.of((numbers - others) * logp, costs, inside, **options)


def weight_norm(parameters: Iterable[torch.Tensor], order: float = 2.0) -> Term:
    """Return the norm of all parameters together, ``(sum |w|^order)^(1/order)``.

    >>> weight_norm([torch.tensor([3.0]), torch.tensor([[4.0]])]).true.item()
    5.0
    """
    norms = _flat(torch.linalg.vector_norm(p, order) for p in parameters)
    return _fixed(torch.linalg.vector_norm(norms, order))


def density(parameters: Iterable[torch.Tensor], threshold: float = 1e-3) -> Term:
    """Return the share of weights with ``|w| > threshold``; the others can be set to 0.

    The gradient is taken of the mean of ``w^2 / (w^2 + threshold^2)``, which is 1/2 at the threshold; it vanishes far
    from it, so begin with a threshold of the size of the weights.

    >>> density([torch.tensor([0.0, 1.0, -2.0, 1e-4])]).true.item()
    0.5
    """
    check_limit(threshold=threshold)
    weights = _flat(parameters)
    square = weights.square()
    return _fixed((square / (square + threshold**2)).mean(), (weights.detach().abs() > threshold).to(square).mean())


def open_gates(log_alpha: Iterable[torch.Tensor]) -> Term:
    """Return the expected share of open hard concrete gates, ``mean sigmoid(log_alpha - T log(-low / high))``.

    C. Louizos, M. Welling, D. Kingma: Learning sparse neural networks through L0 regularization. ICLR 2018, eq. (12).
    As a limit: J. Gallego-Posada et al.: Controlled sparsity via constrained optimization. NeurIPS 2022.

    >>> round(open_gates([torch.zeros(3)]).true.item(), 4)
    0.8318
    """
    shift = GATE_TEMPERATURE * math.log(-GATE_LOW / GATE_HIGH)
    return _fixed(torch.sigmoid(_flat(log_alpha) - shift).mean())


def monotonicity(
    model: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    feature: int,
    inside: torch.Tensor | None = None,
    *,
    increasing: bool = True,
) -> Term:
    """Return the share of samples at which the output falls while a feature grows (rises, if not ``increasing``).

    The gradient is taken of the mean of ``max(0, -d output / d feature)``. A. Gupta et al.: How to incorporate
    monotonicity in deep networks while preserving flexibility? 2019.

    The model maps x of shape (n, features) to one number per sample, row by row: no batch normalization in training.

    >>> monotonicity(lambda x: x[:, 0] * x[:, 1], torch.tensor([[1.0, 2.0], [1.0, -2.0]]), feature=0).true.item()
    0.5
    """
    slope = _input_gradient(model, x)[:, feature] * (1.0 if increasing else -1.0)
    return Term.of(torch.relu(-slope), slope < 0, inside)


def steepness(
    model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, limit: float, inside: torch.Tensor | None = None
) -> Term:
    """Return the share of samples at which the gradient of the output by the input is longer than ``limit``.

    The gradient is taken of the mean of ``max(0, |d output / d x| - limit) / limit``. It is a statement about the data;
    `lipschitz_bound` is one about every input. I. Gulrajani et al.: Improved training of Wasserstein GANs. NeurIPS
    2017.

    >>> steepness(lambda x: x.square().sum(1), torch.tensor([[1.0], [3.0]]), limit=4.0).true.item()
    0.5
    """
    check_limit(limit=limit)
    size = torch.linalg.vector_norm(_input_gradient(model, x).flatten(1), dim=1)
    return Term.of(torch.relu(size - limit) / limit, size > limit, inside)


def lipschitz_bound(model: torch.nn.Module) -> Term:
    """Return an upper bound of the Lipschitz constant: the product of the spectral norms of the linear layers.

    It holds for a stack of linear layers and activations that move no two points apart; other layers are refused by
    name. H. Gouk et al.: Regularisation of neural networks by enforcing Lipschitz continuity. Machine Learning 110,
    2021.

    >>> layer = torch.nn.Linear(2, 2, bias=False)
    >>> _ = layer.weight.data.copy_(torch.tensor([[0.0, 3.0], [1.0, 0.0]]))
    >>> round(lipschitz_bound(torch.nn.Sequential(layer, torch.nn.ReLU(), layer)).true.item(), 4)
    9.0
    """
    norms = []
    for name, layer in _layers(model, "the model"):
        if isinstance(layer, torch.nn.Linear):
            norms.append(torch.linalg.matrix_norm(layer.weight, 2))
        elif not isinstance(layer, NON_EXPANSIVE) or any(abs(getattr(layer, slope, 1.0)) > 1 for slope in SLOPES):
            raise TypeError(
                f"lipschitz_bound accepts Sequential of Linear and non-expansive activations, got {name}: "
                f"{type(layer).__name__}; bound it yourself, or limit steepness() on the data"
            )
    if not norms:
        raise ValueError("lipschitz_bound found no linear layer in the model")
    return _fixed(torch.stack(norms).prod())


def _layers(layer: torch.nn.Module, name: str) -> Iterable[tuple[str, torch.nn.Module]]:
    if not isinstance(layer, torch.nn.Sequential):
        yield name, layer
        return
    for i, inner in enumerate(layer):  # its children by name would leave out a layer's second use
        yield from _layers(inner, f"layer {i}" if name == "the model" else f"{name}, layer {i}")


def _input_gradient(model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    create = torch.is_grad_enabled()
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        out = model(point)
        if out.shape not in ((len(x),), (len(x), 1)):
            raise ValueError(f"the model must return one number per sample, shape ({len(x)},), got {tuple(out.shape)}")
        (slope,) = torch.autograd.grad(out.sum(), point, create_graph=create)
    return slope if create else slope.detach()


def _over_tokens(
    values: torch.Tensor,
    outcomes: torch.Tensor | None,
    tokens: torch.Tensor | None,
    inside: torch.Tensor | None = None,
    bounds: tuple[float, float] | None = None,
) -> Term:
    if values.ndim == 2:
        tokens = torch.ones_like(values, dtype=torch.bool) if tokens is None else tokens.bool()
        count = tokens.sum(1)
        share = tokens / count.clamp(min=1)[:, None]

        def over(each: torch.Tensor) -> torch.Tensor:
            return (torch.where(tokens, each, torch.zeros_like(each)) * share).sum(1)

        values, outcomes = over(values), None if outcomes is None else over(outcomes)
        inside = count > 0 if inside is None else inside & (count > 0)
    elif tokens is not None:
        raise ValueError(f"tokens is for values of shape (n, tokens), got shape {tuple(values.shape)}")
    return Term.of(values, outcomes, inside, bounds)


def _fixed(surrogate: torch.Tensor, true: torch.Tensor | None = None) -> Term:
    return Term((), (surrogate, surrogate.detach() if true is None else true))


def _flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return all entries of the tensors as one vector."""
    found = [tensor.reshape(-1) for tensor in ([tensors] if isinstance(tensors, torch.Tensor) else tensors)]
    if not found:
        raise ValueError("no parameter was given (an iterator that is used up?)")
    return torch.cat(found)
