"""The problems. Each is one torch oracle in double precision that every solver gets, from one fixed start.

- ``mnpc``: Neyman-Pearson classification of the MNIST digits 1..4 with unit noise, averaged losses held to 0.1
  (d = 3136, m = 3). ``mnpc-1000`` takes the first 1000 images of each digit.
- ``disjoint-M``: M populations with data of their own (Gaussian classes, four labels), each with its own averaged
  loss held to 0.1 (d = 3136). The data are disjoint, so one pass over them gives the whole Jacobian.
- ``shared-M``: M overlapping groups of one data set judged through one tanh network, each with its logistic loss
  held to what a reference network attains (d = 3061). Every row of the Jacobian is a backward pass of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from gdpa import Problem
from gdpa.paper.applications.neyman_pearson import neyman_pearson
from gdpa.paper.data.images import load as load_images

Tensor = torch.Tensor


class Point(Protocol):
    """The problem at one point; its forward pass is done."""

    f: Tensor
    g: Tensor

    def pullback(self, w: Tensor, objective: float = 1.0) -> Tensor:
        """Return ``objective * grad f + J^T w``."""

    def jacobian(self) -> Tensor:
        """Return J, (m, d)."""


@dataclass(frozen=True)
class Case:
    """``min f(x)`` subject to ``g(x) <= 0``.

    Attributes:
        x0: the start.
        m: the number of constraints.
        at: the forward pass.
        one_pass: whether one backward pass gives grad f and all of J. Passes are counted accordingly.
    """

    name: str
    x0: Tensor
    m: int
    at: Callable[[Tensor], Point]
    one_pass: bool


def load(name: str, seed: int = 0) -> Case:
    """Return the case ``name``; ``seed`` draws noise, data and start."""
    family, _, size = name.partition("-")
    if family == "mnpc":
        return _mnpc(name, int(size) if size else None, seed)
    if family == "disjoint":
        return _disjoint(name, int(size), seed)
    if family == "shared":
        return _shared(name, int(size), seed)
    raise ValueError(f"no case is called {name!r}; there are mnpc, mnpc-N, disjoint-M and shared-M")


class _OfProblem:
    """A `Problem` of the library whose pullbacks after the first one at a point are free."""

    def __init__(self, problem: Problem, x: Tensor) -> None:
        self.f, self.g, self.pullback = problem.evaluate(x)

    def jacobian(self) -> Tensor:
        return torch.stack([self.pullback(unit, 0.0) for unit in torch.eye(len(self.g), dtype=self.g.dtype)])


def _mnpc(name: str, images: int | None, seed: int) -> Case:
    data = load_images("mnist")
    study = neyman_pearson(data.train_x, data.train_y, images_per_class=images, seed=seed)
    return Case(name, study.start(seed), 3, lambda x: _OfProblem(study.problem, x), one_pass=True)


LABELS, FEATURES, LIMIT, WEIGHT = 4, 784, 0.1, 1.0


class _Populations:
    """``L_0(W) + |W|^2/2`` and ``L_j(W) - 0.1``, L_j the mean over population j of mNPC's pairwise sigmoid loss."""

    def __init__(self, samples: Tensor, labels: Tensor, x: Tensor) -> None:
        self._x, self._samples, self._labels = x, samples, labels
        scores = samples @ x.reshape(LABELS, FEATURES).T  # (populations, n, labels)
        own = scores.gather(2, labels)
        self._phi = torch.sigmoid(scores - own).scatter(2, labels, 0.0)
        losses = self._phi.sum(2).mean(1)
        self.f, self.g = losses[0] + WEIGHT / 2 * (x @ x), losses[1:] - LIMIT
        self._rows: Tensor | None = None

    def _gradients(self) -> Tensor:
        if self._rows is None:
            slope = self._phi * (1 - self._phi)
            slope = slope.scatter(2, self._labels, -slope.sum(2, keepdim=True)) / slope.shape[1]
            self._rows = torch.bmm(slope.transpose(1, 2), self._samples).reshape(len(slope), -1)
        return self._rows

    def pullback(self, w: Tensor, objective: float = 1.0) -> Tensor:
        v = torch.cat([torch.as_tensor(objective, dtype=w.dtype).reshape(1), w])
        return v @ self._gradients() + objective * WEIGHT * self._x

    def jacobian(self) -> Tensor:
        return self._gradients()[1:]


def _disjoint(name: str, m: int, seed: int) -> Case:
    rng = np.random.default_rng([seed, m])
    per_population = max(40, 4000 // (m + 1))
    means = 0.15 * rng.standard_normal((LABELS, FEATURES))  # about 6 standard deviations apart
    labels = np.arange(m + 1) % LABELS
    shifts = 0.05 * rng.standard_normal((m + 1, FEATURES))
    samples = rng.standard_normal((m + 1, per_population, FEATURES)) + (means[labels] + shifts)[:, None, :]
    data = torch.from_numpy(samples)
    index = torch.from_numpy(labels)[:, None, None].expand(-1, per_population, 1)
    x0 = torch.from_numpy(math.sqrt(1e-3) * rng.standard_normal(LABELS * FEATURES))
    return Case(name, x0, m, lambda x: _Populations(data, index, x), one_pass=True)


INPUTS, HIDDEN, SAMPLES, DECAY = 100, 30, 2000, 1e-3
#: Losses are counted in tenths: gradients at the start then have entries near 1, as those of the other cases.
UNIT = 10.0


@dataclass(frozen=True)
class _Data:
    inputs: Tensor  # (n, INPUTS)
    signs: Tensor  # (2, n): the labels of the objective, then those of the constraints
    groups: Tensor  # (m, n): rows of averaging weights
    limits: Tensor


def _layers(inputs: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The hidden layer, the weights of the output and the outputs of the network with parameters x."""
    weights, bias, out, last = torch.split(x, [HIDDEN * INPUTS, HIDDEN, HIDDEN, 1])
    hidden = torch.tanh(torch.addmm(bias, inputs, weights.reshape(HIDDEN, INPUTS).T))
    return hidden, out, hidden @ out + last


class _Network:
    """A tanh network: f its mean logistic loss on one labeling plus decay, g_j its loss on group j of another."""

    def __init__(self, data: _Data, x: Tensor) -> None:
        self._data, self._x = data, x
        self._hidden, self._out, outputs = _layers(data.inputs, x)
        margin = data.signs * outputs
        losses = UNIT * torch.nn.functional.softplus(-margin)
        self._slopes = -UNIT * data.signs * torch.sigmoid(-margin)  # of each sample's loss along the network's output
        self.f = losses[0].mean() + UNIT * DECAY / 2 * (x @ x)
        self.g = data.groups @ losses[1] - data.limits

    def pullback(self, w: Tensor, objective: float = 1.0) -> Tensor:
        along = w @ self._data.groups * self._slopes[1] + (objective / SAMPLES) * self._slopes[0]
        inner = along[:, None] * (1 - self._hidden**2) * self._out
        parts = [(inner.T @ self._data.inputs).reshape(-1), inner.sum(0), along @ self._hidden, along.sum().reshape(1)]
        return torch.cat(parts) + objective * UNIT * DECAY * self._x

    def jacobian(self) -> Tensor:
        """Every row is a backward pass; the passes are made in blocks, faster than one by one."""
        damped = (1 - self._hidden**2) * self._out
        rows = []
        for along in torch.split(self._data.groups * self._slopes[1], 10):
            inner = along[:, :, None] * damped
            weights = (inner.transpose(1, 2) @ self._data.inputs).reshape(len(along), -1)
            rows.append(torch.cat([weights, inner.sum(1), along @ self._hidden, along.sum(1, keepdim=True)], dim=1))
        return torch.cat(rows)


def _shared(name: str, m: int, seed: int) -> Case:
    rng = np.random.default_rng([seed, m])

    def network() -> Tensor:
        scales = [(2 / math.sqrt(INPUTS), HIDDEN * INPUTS), (0.1, HIDDEN), (4 / math.sqrt(HIDDEN), HIDDEN), (0.1, 1)]
        return torch.from_numpy(np.concatenate([scale * rng.standard_normal(n) for scale, n in scales]))

    inputs = rng.standard_normal((SAMPLES, INPUTS))
    heights = rng.standard_normal((m, INPUTS)) @ inputs.T
    members = heights > np.quantile(heights, 0.9, axis=1, keepdims=True)  # a tenth of the data, beyond a hyperplane
    groups = torch.from_numpy(members / members.sum(1, keepdims=True))
    x = torch.from_numpy(inputs)
    reference, other = network(), network()
    likely = torch.sigmoid(_layers(x, reference)[2]).numpy()
    labels = torch.from_numpy(np.where(rng.random(SAMPLES) < likely, 1.0, -1.0))
    signs = torch.stack([_layers(x, other)[2].sign(), labels])
    limits = _Network(_Data(x, signs, groups, torch.zeros(m)), reference).g  # so the reference network is feasible
    x0 = network() / 4
    data = _Data(x, signs, groups, limits)
    return Case(name, x0, m, lambda z: _Network(data, z), one_pass=False)
