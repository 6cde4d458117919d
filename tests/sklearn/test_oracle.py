"""The oracle of the estimators against torch's autograd, central differences and hand-computed values."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy import sparse

from gdpa.sklearn.oracle import Network, RateProblem, cell_means, logistic, pairwise_sigmoid, soft_decision

REGULARIZER = 0.1


def data(rng, n=40, features=3, cells=3):
    X = rng.standard_normal((n, features))
    labels = rng.permutation(np.resize(np.arange(cells), n))
    return X, labels, rng.integers(0, 4, n).astype(float)


def pairwise_problem(rng, hidden=(), container=np.asarray, **engine):
    """Return the network, the samples (X, targets, weights, cells) and the problem of three classes."""
    X, labels, weights = data(rng)
    network, samples = Network((3, *hidden, 3)), (container(X), labels, weights, labels)
    means = cell_means(network, (pairwise_sigmoid,), samples, REGULARIZER, **engine)
    rates = RateProblem(means, np.eye(3)[1], np.eye(3)[[0, 2]], np.array([0.3, 0.4]), ("class 0", "class 2"))
    return network, samples, rates


def decision_problem(rng, hidden=(), **engine):
    X, labels, weights = data(rng, cells=4)  # cell = 2 * group + target
    network, samples = Network((3, *hidden, 1)), (X, labels % 2, weights, labels)
    means = cell_means(network, (logistic, partial(soft_decision, temperature=0.3)), samples, REGULARIZER, **engine)
    objective = np.array([0.1, 0.2, 0.3, 0.4])
    return (
        network,
        samples,
        RateProblem(means, objective, rng.standard_normal((2, 4)), np.array([0.1, -0.2]), ("a", "b")),
    )


def scores_in_torch(network, x, X):
    """The network again, by torch."""
    h, at = torch.as_tensor(X), 0
    for a, b in zip(network.widths, network.widths[1:], strict=False):
        W, at = x[at : at + a * b].reshape(a, b), at + a * b
        bias, at = x[at : at + b], at + b
        h = h @ W + bias
        h = torch.tanh(h) if at < len(x) else h
    return h


def means_in_torch(values, weights, cells):
    inside = torch.as_tensor(np.eye(cells.max() + 1)[cells] * weights[:, None])
    return values @ inside / inside.sum(dim=0)


def squared_weights(network, x):
    total, at = 0.0, 0
    for a, b in zip(network.widths, network.widths[1:], strict=False):
        total, at = total + (x[at : at + a * b] ** 2).sum(), at + (a + 1) * b
    return total


def compare(network, samples, rates, x, values):
    """Compare f, g, pullbacks and J with autograd's."""
    X, targets, weights, cells = samples
    leaf = torch.tensor(x, requires_grad=True)
    loss, rate = values(scores_in_torch(network, leaf, X), torch.as_tensor(targets))
    f = torch.as_tensor(rates.objective) @ means_in_torch(loss, weights, cells)
    f = f + REGULARIZER / 2 * squared_weights(network, leaf)
    g = torch.as_tensor(rates.combination) @ means_in_torch(rate, weights, cells) - torch.as_tensor(rates.bounds)
    now = rates.problem.evaluate(x)
    np.testing.assert_allclose(now.objective, f.detach(), rtol=1e-12)
    np.testing.assert_allclose(now.constraints, g.detach(), rtol=1e-12, atol=1e-15)
    for objective, w in ((1.0, [0.0, 0.0]), (0.0, [1.0, 0.0]), (0.7, [0.3, -2.0])):
        weights = [torch.tensor(value, dtype=torch.float64) for value in (objective, w)]
        (expected,) = torch.autograd.grad([f, g], leaf, weights, retain_graph=True)
        np.testing.assert_allclose(now.pullback(np.array(w), objective), expected, rtol=1e-10, atol=1e-14)
    J = [torch.autograd.grad(one, leaf, retain_graph=True)[0].numpy() for one in g]
    np.testing.assert_allclose(now.jacobian(), J, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(now.pullback(np.ones(2)), now.gradient() + np.sum(J, axis=0), rtol=1e-10, atol=1e-14)


shapes = pytest.mark.parametrize(
    ("hidden", "engine"), [((), {}), ((4, 2), {}), ((4,), {"engine": "local", "shards": 3})], ids=str
)


@shapes
def test_the_losses_of_classes_against_autograd(rng, hidden, engine):
    network, samples, rates = pairwise_problem(rng, hidden, **engine)

    def values(scores, targets):
        own = scores.gather(1, targets[:, None])
        each = torch.sigmoid(scores - own).sum(dim=1) - 0.5  # the term of the class itself is 1/2
        return each, each

    compare(network, samples, rates, rng.standard_normal(network.size), values)


@shapes
def test_decisions_and_the_logistic_loss_against_autograd(rng, hidden, engine):
    network, samples, rates = decision_problem(rng, hidden, **engine)

    def values(scores, targets):
        z = scores[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(z, targets.double(), reduction="none")
        return loss, torch.sigmoid(z / 0.3)

    compare(network, samples, rates, rng.standard_normal(network.size), values)


def test_sparse_data_gives_what_dense_data_gives():
    problems = [pairwise_problem(np.random.default_rng(1), container=c) for c in (np.asarray, sparse.csr_array)]
    (network, _, dense), (_, _, thin) = problems
    x = np.random.default_rng(2).standard_normal(network.size)
    one, other = dense.problem.evaluate(x), thin.problem.evaluate(x)
    np.testing.assert_allclose(one.objective, other.objective)
    np.testing.assert_allclose(one.pullback(np.ones(2)), other.pullback(np.ones(2)))


def test_cells_hold_weighted_means_by_hand():
    scores, labels = np.array([[1.0], [2.0], [3.0], [4.0]]), np.array([1, 0, 1, 0])
    samples = scores, labels, np.array([1.0, 0.0, 3.0, 2.0]), labels
    means = cell_means(Network((1, 1)), (lambda s, _: (s[:, 0], np.ones_like(s)),), samples, 0.0)
    now = means.evaluate(np.array([1.0, 0.0]))  # the score is the feature
    assert now.constraints.tolist() == [4.0, (1 * 1 + 3 * 3) / 4]
    assert now.jacobian().tolist() == [[4.0, 1.0], [2.5, 1.0]]


def test_saturated_losses_stay_finite():
    scores = np.array([[1e4, -1e4], [-1e4, 1e4]])
    for loss in (pairwise_sigmoid, logistic, partial(soft_decision, temperature=0.1)):
        for part in loss(scores, np.array([0, 0])):
            assert np.isfinite(part).all()
