"""A small dense network in NumPy: scores of samples, and gradients cell by cell. Without hidden layers it is linear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from gdpa.base.typing import Vector

Matrix = Any
"""A NumPy array or a SciPy sparse matrix of shape (n, features)."""


@dataclass(frozen=True)
class Network:
    r"""Scores :math:`S = H_L W_L + b_L` with :math:`H_0 = X` and :math:`H_{l+1} = \tanh(H_l W_l + b_l)`.

    The parameters are one flat vector x: layer after layer, W_l row by row, then b_l.

    Args:
        widths: features, hidden widths, number of scores.

    Example:
        >>> network = Network((2, 1))
        >>> network.size, network.scores(np.array([1.0, 2.0, 0.5]), np.array([[1.0, 1.0]])).tolist()
        (3, [[3.5]])
    """

    widths: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum((a + 1) * b for a, b in pairwise(self.widths))

    def layers(self, x: Vector) -> list[tuple[Vector, Vector]]:
        """Return views of x as (W_l, b_l)."""
        found, at = [], 0
        for a, b in pairwise(self.widths):
            found.append((x[at : at + a * b].reshape(a, b), x[at + a * b : at + (a + 1) * b]))
            at += (a + 1) * b
        return found

    def start(self, rng: np.random.RandomState) -> Vector:
        """Return the first parameters: zero for a linear model, uniform after Glorot and Bengio (2010) otherwise."""
        x = np.zeros(self.size)
        if len(self.widths) > 2:
            for weights, _ in self.layers(x):
                bound = np.sqrt(6 / sum(weights.shape))
                weights[:] = rng.uniform(-bound, bound, weights.shape)
        return x

    def activations(self, x: Vector, X: Matrix) -> list[Any]:
        """Return [H_0, ..., H_L, S]."""
        found = [X]
        layers = self.layers(x)
        for place, (weights, bias) in enumerate(layers):
            z = found[-1] @ weights + bias
            found.append(np.tanh(z) if place + 1 < len(layers) else z)
        return found

    def scores(self, x: Vector, X: Matrix) -> Vector:
        """Return S, of shape (n, number of scores)."""
        scores: Vector = self.activations(x, X)[-1]
        return scores

    def gradients(self, x: Vector, activations: Sequence[Any], slopes: Vector, cells: Sequence[slice]) -> Vector:
        """Return sum_i slopes_i dS_i/dx over the samples of each cell, of shape (cells, size): one backward pass.

        Args:
            x: the parameters.
            activations: as `activations` returns them.
            slopes: derivatives by the scores, of shape (n, number of scores).
            cells: the samples of each cell.
        """
        rows = np.empty((len(cells), self.size))
        end = self.size
        for (weights, _), below in zip(reversed(self.layers(x)), reversed(activations[:-1]), strict=True):
            split, begin = end - weights.shape[1], end - weights.shape[1] - weights.size
            for row, cell in zip(rows, cells, strict=True):
                row[begin:split] = (below[cell].T @ slopes[cell]).ravel()
                row[split:end] = slopes[cell].sum(axis=0)
            if begin:
                slopes = (slopes @ weights.T) * (1 - below * below)
            end = begin
        return rows
