"""The energy of a network as a bilinear function of its widths, and training of weights and widths under a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import brentq
from torch import nn

from gdpa.base.arrays import from_numpy, namespace
from gdpa.base.sets import REALS, Box, Product
from gdpa.base.typing import Array
from gdpa.oracles.torch import ModuleProblem, from_module
from gdpa.paper.applications.energy_budget.network import Chain

#: The ridge penalty of Yang et al.'s code: half of a weight decay of 1e-3.
PENALTY = 5e-4
#: d_u relative to the median norm of the channels at the start; see docs/energy.md for its effect.
SMOOTHING = 0.5
#: The start's psi relative to the limit. Twice the limit makes the energy's violation 1 there, which is the unit that
#: the "damped" rule of `gdpa.torch` scales its multiplier by; and it is near: from S the shares overshoot the budget.
START = 2.0


@dataclass(frozen=True)
class EnergyModel:
    r"""Energy as a bilinear function of the hidden widths.

    .. math::
        \psi(s) = a_0 + \sum_{j=1}^{L} a_j\, \frac{s_{j-1}}{S_{j-1}} \frac{s_j}{S_j}

    for a chain of L layers: layer j multiplies a matrix of :math:`s_{j-1}` by :math:`s_j` channels. The widths of input
    and output do not change, :math:`s_0 = S_0` and :math:`s_L = S_L`.

    Args:
        coefficients: a_0, ..., a_L in joules.
        full: S_1, ..., S_{L-1}, the hidden widths of the full network.

    Example:
        >>> psi = EnergyModel((1.0, 10.0, 20.0, 30.0), full=(4, 8))
        >>> float(psi(np.array([4.0, 8.0]))), float(psi(np.array([2.0, 2.0])))
        (61.0, 16.0)

    References:
        H. Yang, Y. Zhu, J. Liu, "ECC: Platform-independent energy-constrained deep neural network compression via a
        bilinear regression model", CVPR 2019.
    """

    coefficients: tuple[float, ...]
    full: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.full or any(width < 1 for width in self.full):
            raise ValueError(f"full must hold the positive hidden widths of the network, got {self.full}")
        if len(self.coefficients) != len(self.full) + 2:
            raise ValueError(
                f"{len(self.full)} hidden widths need {len(self.full) + 2} coefficients, got {len(self.coefficients)}"
            )
        if not np.isfinite(self.coefficients).all():
            raise ValueError(f"coefficients must be finite, got {self.coefficients}; look at the measurements")

    def __call__(self, widths: Array) -> Any:
        """Return psi of ``widths`` (last axis; NumPy or torch, with gradients)."""
        a = from_numpy(np.asarray(self.coefficients), widths)
        return namespace(widths).sum(_products(widths, self.full) * a[1:], axis=-1) + a[0]

    @property
    def dense(self) -> float:
        """psi of the full network."""
        return float(sum(self.coefficients))


class EnergyFit(NamedTuple):
    """A fitted model, and the largest |psi - energy| over the measurements relative to the largest energy."""

    model: EnergyModel
    error: float


def fit_energy(
    widths: Sequence[Sequence[int]] | Array, energies: Sequence[float] | Array, full: Sequence[int], *,
    penalty: float = PENALTY,
) -> EnergyFit:  # fmt: skip
    r"""Fit an `EnergyModel` by ridge regression.

    .. math::
        a = \arg\min_a \|Xa - y\|^2 + \kappa \|a\|^2 = (X^T X + \kappa I)^{-1} X^T y

    with a row (1, products of neighboring shares) of X for every measurement: hidden ``widths`` of shape (n, L - 1) and
    ``energies`` y of shape (n,) in joules. ``full`` is S, ``penalty`` kappa.

    Example:
        >>> truth = EnergyModel((1.0, 10.0, 20.0, 30.0), full=(4, 8))
        >>> at = [(a, b) for a in (1, 2, 4) for b in (1, 4, 8)]
        >>> fit = fit_energy(at, truth(np.array(at, dtype=float)), full=(4, 8), penalty=1e-9)
        >>> [round(a, 3) for a in fit.model.coefficients]
        [1.0, 10.0, 20.0, 30.0]
    """
    at, y, sizes = np.asarray(widths, dtype=float), np.asarray(energies, dtype=float), tuple(int(s) for s in full)
    if at.ndim != 2 or at.shape[1] != len(sizes) or y.shape != at.shape[:1]:
        raise ValueError(f"widths must have shape (n, {len(sizes)}) and energies (n,), got {at.shape} and {y.shape}")
    if not (np.isfinite(at).all() and np.isfinite(y).all()):
        raise ValueError("widths and energies must be finite; remove the failed measurements")
    if len(y) < len(sizes) + 2:
        raise ValueError(f"{len(sizes) + 2} coefficients need at least as many measurements, got {len(y)}")
    if not penalty > 0:
        raise ValueError(f"penalty must be positive, got {penalty!r}; a small one such as 1e-9 hardly changes the fit")
    features = np.hstack([np.ones((len(y), 1)), _products(at, sizes)])
    gram = features.T @ features + penalty * np.eye(features.shape[1])
    model = EnergyModel(tuple(map(float, np.linalg.solve(gram, features.T @ y))), sizes)
    return EnergyFit(model, float(np.max(np.abs(model(at) - y)) / np.max(np.abs(y))))


def sample_widths(full: Sequence[int], count: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Return ``count`` random choices of hidden widths to measure at, the full network first.

    >>> sample_widths((4, 8), 2)[0]
    (4, 8)
    """
    rng = np.random.default_rng(seed)
    drawn = [tuple(int(rng.integers(1, size + 1)) for size in full) for _ in range(count - 1)]
    return [tuple(int(size) for size in full), *drawn]


def _products(widths: Array, full: tuple[int, ...]) -> Any:
    """Return s_{j-1} s_j / (S_{j-1} S_j) for j = 1, ..., L, the last axis."""
    xp = namespace(widths)
    shares = widths / from_numpy(np.asarray(full, dtype=float), widths)
    one = xp.ones_like(shares[..., :1])
    return xp.concat([one, shares], axis=-1) * xp.concat([shares, one], axis=-1)


def smooth_count(squared_norms: torch.Tensor, squared_scale: torch.Tensor | float) -> torch.Tensor:
    r"""Return :math:`\phi_d(w) = \sum_i \|w_i\|^2 / (\|w_i\|^2 + d^2)`, the number of channels that are not small.

    A channel far below the scale d counts as 0, one far above it as 1. phi is smooth and not convex.

    >>> round(smooth_count(torch.tensor([0.0, 1.0, 1e6]), 1.0).item(), 4)
    1.5
    """
    return (squared_norms / (squared_norms + squared_scale)).sum(-1)


def _start(model: EnergyModel, energy: float) -> list[float]:
    """Return shares that are alike, as far as their box allows, and have psi = ``energy``; all ones if that is more."""
    full = np.asarray(model.full, dtype=float)

    def excess(share: float) -> float:
        return float(model(np.maximum(share * full, 1.0))) - energy

    share = brentq(excess, 0.0, 1.0, xtol=1e-15) if model.dense > energy else 1.0
    return [max(share, 1 / width) for width in model.full]


class EnergyBudget(nn.Module):
    r"""A network with variable widths and an energy budget.

    .. math::
        \min_{W,\,s}\; \ell(W) \quad\text{subject to}\quad \phi_d(w_u) \le s_u \text{ for every hidden width } u,
        \quad \psi(s) \le E, \quad 1 \le s_u \le S_u .

    The variables are the weights W of the network and ``shares``, :math:`s_u / S_u`. The constraints are kept without
    units: :math:`(\phi_d(w_u) - s_u) / S_u` and :math:`\psi(s) / E - 1`.

    The weights start as they are, the shares alike at twice the budget. Calling it gives the network's outputs and the
    constraints. It trains by the PyTorch optimizer (`train_within` does it),

        opt = gdpa.torch.constrain(torch.optim.Adam(budgeted.parameter_groups(1e-3)), budgeted.names)
        outputs, g = budgeted(images)
        opt.lagrangian(loss(outputs), g).backward()
        opt.step()

    and `problem` states it for every method of the library.

    Args:
        network: a chain of layers, see `Chain`. It is trained in place.
        model: psi.
        limit: E, in the model's units.
        smoothing: d_u relative to the median norm of the channels of width u now.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> budgeted = EnergyBudget(net, EnergyModel((0.0, 3.0, 2.0), full=(8,)), limit=1.0)
        >>> outputs, g = budgeted(torch.zeros(1, 3))
        >>> budgeted.names, round(g[1].item(), 3)  # the start needs twice the budget
        (('width 1', 'energy'), 1.0)

    References:
        The second motivating example of section 1 of Lu, ICML 2022, after Yang, Zhu, Liu, CVPR 2019, whose phi counts
        channels exactly. The smooth phi is ours.
    """

    shares: nn.Parameter
    squared_scales: torch.Tensor

    def __init__(
        self, network: nn.Sequential, model: EnergyModel, limit: float, *, smoothing: float = SMOOTHING
    ) -> None:
        super().__init__()
        self.chain = Chain(network)
        if self.chain.widths != model.full:
            raise ValueError(
                f"model is of widths {model.full}, the network has {self.chain.widths}; fit it to this one"
            )
        smallest = float(model(torch.ones(len(model.full), dtype=torch.float64)))
        if not smallest <= limit:
            raise ValueError(f"limit is {limit!r}, and one channel in every width takes {smallest:.4g}; raise it")
        if not smoothing > 0:
            raise ValueError(f"smoothing must be positive, got {smoothing!r}")
        self.model, self.limit = model, float(limit)
        first = next(network.parameters())
        self.shares = nn.Parameter(torch.tensor(_start(model, START * limit), dtype=first.dtype, device=first.device))
        self.network = network
        with torch.no_grad():
            medians = torch.stack([norms.median() for norms in self.chain.squared_norms()])
        self.register_buffer("squared_scales", smoothing**2 * medians)

    @property
    def names(self) -> tuple[str, ...]:
        """One name per constraint: "width 1" from the input on, and "energy"."""
        return (*(f"width {u + 1}" for u in range(len(self.model.full))), "energy")

    @property
    def domain(self) -> Box:
        """The box of ``shares``: one channel at least, all of them at most."""
        return Box([1 / width for width in self.model.full], 1.0)

    def counts(self) -> torch.Tensor:
        """Return phi_d of every hidden width."""
        pairs = zip(self.chain.squared_norms(), self.squared_scales, strict=True)
        return torch.stack([smooth_count(norms, scale) for norms, scale in pairs])

    def violations(self) -> torch.Tensor:
        """Return g, feasible if at most 0."""
        full = self.shares.new_tensor(self.model.full)
        energy = self.model(self.shares * full) / self.limit - 1
        return torch.cat([self.counts() / full - self.shares, energy[None]])

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the network's outputs and g."""
        return self.network(inputs), self.violations()

    def parameter_groups(self, lr: float, shares_lr: float | None = None) -> list[dict[str, Any]]:
        """Return the groups for a base optimizer: the weights, and the shares with their box."""
        rate = lr if shares_lr is None else shares_lr
        return [
            {"params": list(self.network.parameters()), "lr": lr},
            {"params": [self.shares], "lr": rate, "domain": self.domain},
        ]

    def problem(self, inputs: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor]) -> ModuleProblem:
        """Return the problem in the flat x = (shares, W), with ``loss`` of the network's outputs as objective.

        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).double()
        >>> budgeted = EnergyBudget(net, EnergyModel((0.0, 3.0, 2.0), full=(8,)), limit=2.5)
        >>> stated = budgeted.problem(torch.ones(4, 3, dtype=torch.float64), lambda outputs: outputs.square().mean())
        >>> stated.x0.shape, stated.problem.num_constraints, stated.problem.names
        (torch.Size([51]), 2, ('width 1', 'energy'))
        """

        def terms(module: Any) -> tuple[torch.Tensor, torch.Tensor]:
            outputs, g = module(inputs)
            return loss(outputs), g

        weights = sum(p.numel() for p in self.network.parameters() if p.requires_grad)
        domain = Product([(len(self.model.full), self.domain), (weights, REALS)])
        return from_module(self, terms, num_constraints=len(self.names), domain=domain, names=self.names)
