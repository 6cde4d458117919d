"""Shards and data that the tests of every engine share; importable by other processes."""

import numpy as np


class Quadratic:
    """Rows a_i with f the mean of |x - a_i|^2 / 2 and g the mean of a_i'x - 1; the solution has a closed form."""

    def __init__(self, rows):
        self.rows = np.asarray(rows)

    def __len__(self):
        return len(self.rows)

    def sums(self, x):
        return np.array([((x - self.rows) ** 2).sum() / 2, (self.rows @ x - 1).sum(), len(self.rows)])

    def pullback(self, x, w):
        return w[0] * (x - self.rows).sum(0) + w[1] * self.rows.sum(0)


class RowsToo:
    """A `Quadratic` that also returns all gradients at once."""

    def __init__(self, rows):
        self._inner = Quadratic(rows)
        self.sums, self.pullback = self._inner.sums, self._inner.pullback

    def rows(self, x):
        return np.stack([self.pullback(x, w) for w in np.eye(3)])


DATA = np.random.default_rng(0).normal(1.0, 1.0, (64, 5))


def quadratic(count, kind=Quadratic, data=DATA):
    return [kind(part) for part in np.array_split(data, count)]


def solution(data=DATA):
    """The projection of the mean c on c'x <= 1, and its multiplier."""
    c = data.mean(0)
    multiplier = max(0.0, (c @ c - 1) / (c @ c))
    return c - multiplier * c, multiplier


class Wide:
    """Almost no work on many parameters: the cost of a question is the cost of the engine."""

    def __init__(self, size, seed):
        self.size = size

    def sums(self, x):
        return np.array([x[0], x[1], 1.0])

    def pullback(self, x, w):
        found = np.zeros_like(x)
        found[:2] = w[:2]
        return found
