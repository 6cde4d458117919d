"""The oracle of the estimators: a small dense network, and rates over disjoint cells of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from gdpa.base.typing import Vector
from gdpa.core.problem import Evaluation, Problem
from gdpa.sharded.problem import problem as sharded_problem
from gdpa.sharded.rows import Rows, split
from gdpa.sharded.shard import Engine

#: Samples that a worker evaluates at a time.
CHUNK = 65_536

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

    def penalty(self, regularizer: float, x: Vector) -> tuple[float, Vector]:
        """Return (regularizer/2) sum ||W||^2 and its gradient."""
        gradient = regularizer * x
        for _, bias in self.layers(gradient):
            bias[:] = 0.0
        return float(gradient @ x) / 2, gradient

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


def soft_decision(scores: Vector, targets: Vector, temperature: float) -> tuple[Vector, Vector]:
    """The smooth stand-in sigmoid(s / temperature) of the decision 1[s > 0], of one score s."""
    value = sigmoid(scores[:, 0] / temperature)
    return value, (value * (1 - value) / temperature)[:, None]


class RateShard:
    """Sums of weighted losses over the samples (X, target, weight, cell) of each cell, loss after loss."""

    def __init__(self, network: Network, losses: Sequence[Loss], samples: Rows, cells: int) -> None:
        self._network, self._losses, self._samples, self._cells = network, losses, samples, cells
        self._known: tuple[Any, ...] = (None, None)

    def __len__(self) -> int:
        return len(self._samples)

    def sums(self, x: Vector) -> Vector:
        found = np.zeros((len(self._losses), self._cells))
        for _, terms, weights, labels in self._passes(x):
            found += [np.bincount(labels, weights * values, minlength=self._cells) for values, _ in terms]
        return found.ravel()

    def pullback(self, x: Vector, w: Vector) -> Vector:
        return np.asarray(w @ self.rows(x))

    def rows(self, x: Vector) -> Vector:
        found: Vector = np.zeros((len(self._losses), self._cells, len(x)))
        for activations, terms, weights, labels in self._passes(x):
            slopes = [weights[:, None] * each for _, each in terms]
            if (labels[1:] < labels[:-1]).any():
                order = np.argsort(labels, kind="stable")
                activations, slopes = ([part[order] for part in parts] for parts in (activations, slopes))
            ends = np.cumsum([0, *np.bincount(labels, minlength=self._cells)]).tolist()
            cells = [slice(a, b) for a, b in pairwise(ends)]
            found += [self._network.gradients(x, activations, each, cells) for each in slopes]
        return found.reshape(-1, len(x))

    def _passes(self, x: Vector) -> Iterator[tuple[Any, ...]]:
        """Yield activations, losses with slopes, weights and labels, chunk by chunk; an only chunk keeps its own."""
        for X, targets, weights, labels in self._samples.chunks():
            if self._known[0] is X and np.array_equal(self._known[1], x):
                activations, terms = self._known[2:]
            else:
                activations = self._network.activations(x, X)
                terms = [loss(activations[-1], targets) for loss in self._losses]
                if len(labels) == len(self):  # the next question is about the same point
                    self._known = X, x.copy(), activations, terms
            yield activations, terms, weights, labels


def cell_means(
    network: Network,
    losses: Sequence[Loss],
    samples: Sequence[Matrix],
    regularizer: float,
    engine: str | Engine | None = None,
    shards: int = 1,
) -> Problem:
    """Return the problem whose constraints are the means over cells, loss after loss, and whose f is the penalty.

    Args:
        samples: X, targets, weights and cells 0, 1, ..., each of which has a positive weight.
        engine: None evaluates all samples at once, from a copy that is ordered by cells.
    """
    X, targets, weights, labels = samples
    of_cells, chunk = np.bincount(labels, weights), CHUNK
    arrays: tuple[Matrix, ...] = X, targets, weights / of_cells[labels], labels
    if engine is None:
        order = np.argsort(labels, kind="stable")
        arrays, shards, chunk = tuple(own[order] for own in arrays), 1, len(labels)
    parts = [RateShard(network, losses, part, len(of_cells)) for part in split(arrays, shards, chunk)]
    penalty = partial(network.penalty, regularizer)
    return sharded_problem(parts, engine or "local", _as_constraints, regularizer=penalty)


def _as_constraints(sums: Vector) -> tuple[Vector, Vector]:
    return np.append(0.0, sums), np.eye(1 + len(sums))[:, 1:]


@dataclass(frozen=True, eq=False)
class RateProblem:
    """``min o^T l(x) + (regularizer/2) sum ||W||^2`` subject to ``C r(x) <= bounds``.

    l(x) are the first of ``means`` (see `cell_means`) and r(x) the last, one for each cell; they may be the same.
    ``objective`` is o and ``combination`` C, of shape (limits, cells). The b_l are not penalized.
    """

    means: Problem
    objective: Vector
    combination: Vector
    bounds: Vector
    names: tuple[str, ...]

    @property
    def problem(self) -> Problem:
        """The problem in the flat parameters x."""
        return replace(self.means, evaluate=self.evaluate, num_constraints=len(self.names), names=self.names)

    def evaluate(self, x: Vector) -> Evaluation:
        now, count = self.means.evaluate(x), len(self.objective)
        means = now.constraints

        def pullback(w: Vector, objective: Any = 1.0) -> Vector:
            weights = np.zeros_like(means)
            weights[:count] = objective * self.objective
            weights[-count:] += w @ self.combination
            now.jacobian()  # its rows cost about as much as one pullback, and serve all that follow
            return np.asarray(now.pullback(weights, objective))

        def jacobian() -> Vector:
            return np.asarray(self.combination @ now.jacobian()[-count:])

        f = np.asarray(now.objective + self.objective @ means[:count])
        return Evaluation(f, self.combination @ means[-count:] - self.bounds, pullback, jacobian)
