"""The energy of a network as a bilinear function of its hidden widths, fitted to measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gdpa.base.arrays import from_numpy, namespace
from gdpa.base.typing import Array

#: The ridge penalty of Yang et al.'s code: half of a weight decay of 1e-3.
PENALTY = 5e-4


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
    """A fitted model and how far it is from its measurements.

    Attributes:
        model: the model.
        error: the largest |psi - energy| over the measurements, relative to the largest energy.
    """

    model: EnergyModel
    error: float


def fit_energy(
    widths: Sequence[Sequence[int]] | Array, energies: Sequence[float] | Array, full: Sequence[int], *,
    penalty: float = PENALTY,
) -> EnergyFit:  # fmt: skip
    r"""Fit an `EnergyModel` by ridge regression.

    .. math::
        a = \arg\min_a \|Xa - y\|^2 + \kappa \|a\|^2 = (X^T X + \kappa I)^{-1} X^T y

    with a row (1, products of neighboring shares) of X for every measurement.

    Args:
        widths: the hidden widths measured, of shape (n, L - 1).
        energies: y, of shape (n,), in joules.
        full: the hidden widths of the full network.
        penalty: kappa.

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
