"""The oracle of the estimators against torch's autograd, central differences and hand-computed values."""

import numpy as np
import pytest
import torch
from scipy import sparse

from gdpa.sklearn.oracle import Network, RateProblem, SoftDecision, cells_of, logistic, pairwise_sigmoid


def data(rng, n=40, features=3, cells=3):
    X = rng.standard_normal((n, features))
    labels = rng.permutation(np.resize(np.arange(cells), n))
    weights = rng.integers(0, 4, n).astype(float)
    return X, labels, weights


def pairwise_problem(rng, hidden=(), container=np.asarray):
    X, labels, weights = data(rng)
    return RateProblem(
        network=Network((3, *hidden, 3)),
        cells=cells_of(container(X), labels, weights, labels, 3),
        loss=pairwise_sigmoid,
        rate=pairwise_sigmoid,
        objective=np.array([0.0, 1.0, 0.0]),
        combination=np.eye(3)[[0, 2]],
        bounds=np.array([0.3, 0.4]),
        regularizer=0.1,
        names=("class 0", "class 2"),
    )


def decision_problem(rng, hidden=()):
    X, labels, weights = data(rng, cells=4)  # cell = 2 * group + target
    return RateProblem(
        network=Network((3, *hidden, 1)),
        cells=cells_of(X, labels % 2, weights, labels, 4),
        loss=logistic,
        rate=SoftDecision(0.3),
        objective=np.array([0.1, 0.2, 0.3, 0.4]),
        combination=rng.standard_normal((2, 4)),
        bounds=np.array([0.1, -0.2]),
        regularizer=0.1,
        names=("a", "b"),
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


def means_in_torch(values, cells):
    weights = torch.as_tensor(cells.weights)
    return torch.stack([(weights[part] * values[part]).sum() for part in cells.parts])


def squared_weights(network, x):
    total, at = 0.0, 0
    for a, b in zip(network.widths, network.widths[1:], strict=False):
        total, at = total + (x[at : at + a * b] ** 2).sum(), at + (a + 1) * b
    return total


def compare(rates, x, values):
    """Compare f, g and pullbacks with autograd's."""
    leaf = torch.tensor(x, requires_grad=True)
    loss, rate = values(scores_in_torch(rates.network, leaf, rates.cells.X), torch.as_tensor(rates.cells.targets))
    f = torch.as_tensor(rates.objective) @ means_in_torch(loss, rates.cells)
    f = f + rates.regularizer / 2 * squared_weights(rates.network, leaf)
    g = torch.as_tensor(rates.combination) @ means_in_torch(rate, rates.cells) - torch.as_tensor(rates.bounds)
    now = rates.problem.evaluate(x)
    np.testing.assert_allclose(now.objective, f.detach(), rtol=1e-12)
    np.testing.assert_allclose(now.constraints, g.detach(), rtol=1e-12, atol=1e-15)
    for objective, w in ((1.0, [0.0, 0.0]), (0.0, [1.0, 0.0]), (0.7, [0.3, -2.0])):
        weights = [torch.tensor(value, dtype=torch.float64) for value in (objective, w)]
        (expected,) = torch.autograd.grad([f, g], leaf, weights, retain_graph=True)
        np.testing.assert_allclose(now.pullback(np.array(w), objective), expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("hidden", [(), (4,), (4, 2)])
def test_the_losses_of_classes_against_autograd(rng, hidden):
    rates = pairwise_problem(rng, hidden)

    def values(scores, targets):
        own = scores.gather(1, targets[:, None])
        each = torch.sigmoid(scores - own).sum(dim=1) - 0.5  # the term of the class itself is 1/2
        return each, each

    compare(rates, rng.standard_normal(rates.network.size), values)


@pytest.mark.parametrize("hidden", [(), (4,)])
def test_decisions_and_the_logistic_loss_against_autograd(rng, hidden):
    rates = decision_problem(rng, hidden)

    def values(scores, targets):
        z = scores[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(z, targets.double(), reduction="none")
        return loss, torch.sigmoid(z / 0.3)

    compare(rates, rng.standard_normal(rates.network.size), values)


def test_sparse_data_gives_what_dense_data_gives():
    dense, thin = (pairwise_problem(np.random.default_rng(1), container=c) for c in (np.asarray, sparse.csr_array))
    x = np.random.default_rng(2).standard_normal(dense.network.size)
    one, other = dense.problem.evaluate(x), thin.problem.evaluate(x)
    np.testing.assert_allclose(one.objective, other.objective)
    np.testing.assert_allclose(one.pullback(np.ones(2)), other.pullback(np.ones(2)))


def test_cells_hold_weighted_means_by_hand():
    X = np.array([[1.0], [2.0], [3.0], [4.0]])
    labels = np.array([1, 0, 1, 0])
    cells = cells_of(X, labels, np.array([1.0, 0.0, 3.0, 2.0]), labels, 2)
    assert cells.X.ravel().tolist() == [4.0, 1.0, 3.0]
    assert cells.means(cells.X.ravel()).tolist() == [4.0, (1 * 1 + 3 * 3) / 4]
    assert cells.masses.tolist() == [2 / 6, 4 / 6]


def test_saturated_losses_stay_finite():
    scores = np.array([[1e4, -1e4], [-1e4, 1e4]])
    for loss in (pairwise_sigmoid, logistic, SoftDecision(0.1)):
        for part in loss(scores, np.array([0, 0])):
            assert np.isfinite(part).all()
