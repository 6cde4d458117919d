"""The oracle of the estimators: a small dense network, and rates over disjoint cells of the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from gdpa.base.typing import Vector
from gdpa.core.problem import Evaluation, Problem

Matrix = Any
"""A NumPy array or a SciPy sparse matrix of shape (n, features)."""
Loss = Callable[[Vector, Vector], tuple[Vector, Vector]]
"""Maps the scores (n, k) and the targets (n,) to one value per sample (n,) and its derivatives by the scores (n, k)."""


@dataclass(frozen=True)
class Network:
    r"""Scores :math:`S = H_L W_L + b_L` with :math:`H_0 = X` and :math:`H_{l+1} = \tanh(H_l W_l + b_l)`.

    The parameters are one flat vector x: layer after layer, W_l row by row, then b_l. ``widths`` are the number of
    features, the hidden widths and the number of scores; without hidden layers the network is linear.
    """

    widths: tuple[int, ...]

    @property
    def size(self) -> int:
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
        for weights, bias in self.layers(x):
            z = found[-1] @ weights + bias
            found.append(np.tanh(z) if len(found) + 1 < len(self.widths) else z)
        return found

    def scores(self, x: Vector, X: Matrix) -> Vector:
        """Return S, of shape (n, number of scores)."""
        return np.asarray(self.activations(x, X)[-1])

    def gradients(self, x: Vector, activations: Sequence[Any], slopes: Vector, cells: Sequence[slice]) -> Vector:
        """Return sum_i slopes_i dS_i/dx over the samples of each cell, of shape (cells, size): one backward pass."""
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


def sigmoid(z: Vector) -> Vector:
    """Return 1 / (1 + exp(-z)) without overflow."""
    return (1 + np.tanh(z / 2)) / 2


def pairwise_sigmoid(scores: Vector, targets: Vector) -> tuple[Vector, Vector]:
    """The loss of Neyman-Pearson classification: sum_(i != j) sigmoid(s_i - s_j) for a sample of class j."""
    every = np.arange(len(scores))
    terms = sigmoid(scores - scores[every, targets][:, None])
    terms[every, targets] = 0.0
    slopes = terms * (1 - terms)
    slopes[every, targets] = -slopes.sum(axis=1)
    return terms.sum(axis=1), slopes


def logistic(scores: Vector, targets: Vector) -> tuple[Vector, Vector]:
    """The logistic loss log(1 + exp(-s)) for target 1 and log(1 + exp(s)) for target 0, of one score s."""
    sign = 1 - 2 * targets
    margin = scores[:, 0] * sign
    return np.logaddexp(0, margin), (sign * sigmoid(margin))[:, None]


@dataclass(frozen=True)
class SoftDecision:
    """The smooth stand-in sigmoid(s / temperature) of the decision 1[s > 0], of one score s."""

    temperature: float

    def __call__(self, scores: Vector, targets: Vector) -> tuple[Vector, Vector]:
        value = sigmoid(scores[:, 0] / self.temperature)
        return value, (value * (1 - value) / self.temperature)[:, None]


@dataclass(frozen=True, eq=False)
class Cells:
    """Samples ordered cell after cell; ``weights`` sum to 1 over each cell, ``masses`` are the cells' shares.

    ``order`` are the places of the samples in the arrays given to `cells_of`.
    """

    X: Matrix
    targets: Vector
    weights: Vector
    parts: tuple[slice, ...]
    masses: Vector
    order: Vector

    def means(self, values: Vector) -> Vector:
        """Return the weighted mean of ``values`` over each cell."""
        return np.asarray(np.add.reduceat(self.weights * values, [part.start for part in self.parts]))


def cells_of(X: Matrix, targets: Vector, weights: Vector, labels: Vector, count: int) -> Cells:
    """Order the samples by their cell, 0 to count - 1; samples of weight 0 are left out, each cell must keep one."""
    order = np.flatnonzero(weights > 0)
    order = order[np.argsort(labels[order], kind="stable")]
    sizes = np.bincount(labels[order], minlength=count)
    ends = np.cumsum(sizes)
    parts = tuple(slice(int(end - size), int(end)) for end, size in zip(ends, sizes, strict=True))
    sums = np.bincount(labels[order], weights[order], minlength=count)
    own = weights[order] / np.repeat(sums, sizes)
    return Cells(X[order], targets[order], own, parts, masses=sums / sums.sum(), order=order)


@dataclass(frozen=True, eq=False)
class RateProblem:
    """``min o^T l(x) + (regularizer/2) sum ||W||^2`` subject to ``C r(x) <= bounds``.

    l(x) and r(x) are the means of ``loss`` and ``rate`` over the cells, ``objective`` is o and ``combination`` C, of
    shape (limits, cells). Cells are disjoint, so one backward pass gives all gradients. The b_l are not penalized.
    """

    network: Network
    cells: Cells
    loss: Loss
    rate: Loss
    objective: Vector
    regularizer: float
    combination: Vector = field(default_factory=lambda: np.zeros((0, 0)))
    bounds: Vector = field(default_factory=lambda: np.zeros(0))
    names: tuple[str, ...] = ()

    @property
    def problem(self) -> Problem:
        """The problem in the flat parameters x."""
        return Problem(self.evaluate, num_constraints=len(self.names), names=self.names)

    def penalty(self, x: Vector) -> tuple[float, Vector]:
        """Return (regularizer/2) sum ||W||^2 and its gradient."""
        gradient = self.regularizer * x
        for _, bias in self.network.layers(gradient):
            bias[:] = 0.0
        return float(gradient @ x) / 2, gradient

    def evaluate(self, x: Vector) -> Evaluation:
        cells, network = self.cells, self.network
        activations = network.activations(x, cells.X)
        rates = self.rate(activations[-1], cells.targets)
        losses = rates if self.loss is self.rate else self.loss(activations[-1], cells.targets)
        penalty, penalty_gradient = self.penalty(x)
        f = np.asarray(self.objective @ cells.means(losses[0]) + penalty)
        g = self.combination @ cells.means(rates[0]) - self.bounds

        @cache
        def cell_gradients() -> Vector:
            return network.gradients(x, activations, cells.weights[:, None] * rates[1], cells.parts)

        @cache
        def gradient() -> Vector:
            if losses is rates:
                return np.asarray(self.objective @ cell_gradients() + penalty_gradient)
            weights = cells.weights * np.repeat(self.objective, [part.stop - part.start for part in cells.parts])
            (found,) = network.gradients(x, activations, weights[:, None] * losses[1], [slice(0, len(weights))])
            return np.asarray(found + penalty_gradient)

        def pullback(w: Vector, objective: Any = 1.0) -> Vector:
            out: Vector = objective * gradient() if np.count_nonzero(objective) else np.zeros_like(x)
            return out + (w @ self.combination) @ cell_gradients() if np.count_nonzero(w) else out

        return Evaluation(f, g, pullback)
