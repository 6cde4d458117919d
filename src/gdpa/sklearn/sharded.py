"""The training problem of an estimator with its samples in shards, for data that one process cannot hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from gdpa.base.typing import Vector
from gdpa.core.problem import Evaluation, Problem
from gdpa.sharded.problem import problem as sharded_problem
from gdpa.sharded.rows import Rows, split
from gdpa.sharded.shard import Engine
from gdpa.sklearn.oracle import Loss, Matrix, Network, RateProblem

#: Samples that a shard evaluates at a time.
CHUNK = 65_536


class RateShard:
    """Sums of weighted losses over the samples (X, target, weight, cell) of each cell, chunk by chunk."""

    def __init__(self, network: Network, loss: Loss, samples: Rows, cells: int) -> None:
        self._network, self._loss, self._samples, self._cells = network, loss, samples, cells

    def __len__(self) -> int:
        return len(self._samples)

    def sums(self, x: Vector) -> Vector:
        found: Vector = np.zeros(self._cells)
        for X, targets, weights, labels in self._samples.chunks():
            values, _ = self._loss(self._network.scores(x, X), targets)
            found += np.bincount(labels, weights * values, minlength=self._cells)
        return found

    def pullback(self, x: Vector, w: Vector) -> Vector:
        found: Vector = np.zeros_like(x)
        for X, targets, weights, labels in self._samples.chunks():
            found += self._gradients(x, X, targets, weights * w[labels], [slice(0, len(labels))])[0]
        return found

    def rows(self, x: Vector) -> Vector:
        found: Vector = np.zeros((self._cells, len(x)))
        for X, targets, weights, labels in self._samples.chunks():
            order = np.argsort(labels, kind="stable")
            ends = np.cumsum([0, *np.bincount(labels, minlength=self._cells)]).tolist()
            parts = [slice(a, b) for a, b in pairwise(ends)]
            found += self._gradients(x, X[order], targets[order], weights[order], parts)
        return found

    def _gradients(self, x: Vector, X: Matrix, targets: Vector, weights: Vector, parts: Sequence[slice]) -> Vector:
        activations = self._network.activations(x, X)
        _, slopes = self._loss(activations[-1], targets)
        return self._network.gradients(x, activations, weights[:, None] * slopes, parts)


class Ordered:
    """The rows of a matrix in another order, without a copy of the matrix."""

    def __init__(self, X: Matrix, order: Vector) -> None:
        self._X, self._order = X, order

    def __matmul__(self, weights: Vector) -> Vector:
        return np.asarray(self._X @ weights)[self._order]


@dataclass(frozen=True, eq=False)
class ShardedRates(RateProblem):
    """A `RateProblem` with one loss whose sums come from shards; made by `in_shards`."""

    whole: Problem = field(kw_only=True)

    @property
    def problem(self) -> Problem:
        return replace(self.whole, evaluate=self.evaluate, num_constraints=len(self.names), names=self.names)

    def evaluate(self, x: Vector) -> Evaluation:
        now = self.whole.evaluate(x)
        return Evaluation(now.objective, now.constraints - self.bounds, now.pullback, now.jacobian)


def in_shards(rates: RateProblem, X: Matrix, engine: str | Engine, shards: int) -> ShardedRates:
    """Return the problem, whose cells hold no X, with its samples in shards; X is in the order of the user."""
    cells, count = rates.cells, len(rates.cells.parts)
    labels = np.repeat(np.arange(count), [part.stop - part.start for part in cells.parts])
    back = np.argsort(cells.order)
    samples = (X, cells.targets[back], cells.weights[back], labels[back])
    matrix = np.vstack([rates.objective, rates.combination])
    whole = sharded_problem(
        [RateShard(rates.network, rates.loss, part, count) for part in split(samples, shards, CHUNK)],
        engine,
        partial(_combine, matrix),
        regularizer=rates.penalty,
    )
    own: dict[str, Any] = vars(rates) | {"cells": replace(cells, X=Ordered(X, cells.order)), "whole": whole}
    return ShardedRates(**own)


def _combine(matrix: Vector, sums: Vector) -> tuple[Vector, Vector]:
    return matrix @ sums, matrix
