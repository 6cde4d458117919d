"""Terms of the model itself: distance to a reference, size and sparsity of weights, monotonicity, Lipschitz bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from gdpa.base.checks import check_limit
from gdpa.torch.terms.term import Term

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
