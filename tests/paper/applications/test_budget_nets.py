"""Budgeted networks against torch.nn, finite differences, batches, and bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gdpa import GDPA, MaxSteps, from_module, solve
from gdpa.paper.applications.budget_nets import budget_net
from gdpa.run.oracle import CountingOracle, Counts

CLASSES = (1, 2, 4)


def data(n=30, pixels=6):
    rng = np.random.default_rng(0)
    return rng.uniform(size=(n, pixels)), rng.permutation(np.resize([0, *CLASSES], n))


def study(**options):
    return budget_net(*data(), **{"classes": CLASSES, "prioritized": 2, "hidden": (4,), "outputs": 6, **options})


def as_module(net, x):
    layers = []
    for a, b in zip(net.widths, net.widths[1:], strict=False):
        layers += [torch.nn.Linear(a, b, dtype=torch.float64), torch.nn.Sigmoid()]
    module = torch.nn.Sequential(*layers[:-1])
    torch.nn.utils.vector_to_parameters(x, module.parameters())
    return module


@pytest.mark.parametrize("hidden", [(), (4,), (5, 3)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_values_and_pullback_against_torch(hidden, reduction):
    net = study(hidden=hidden, reduction=reduction, budgets=[0.5, 1.5])
    x = net.start(3)
    images, labels = data()

    def loss(module):
        losses = [
            torch.nn.functional.cross_entropy(
                module(torch.from_numpy(images[labels == j])),
                torch.full((int((labels == j).sum()),), j),
                reduction=reduction,
            )
            for j in CLASSES
        ]
        return losses[1], torch.stack([losses[0] - 0.5, losses[2] - 1.5])

    reference = from_module(as_module(net, x), loss)
    torch.testing.assert_close(reference.x0, x)  # the same flat order as torch keeps
    w = torch.tensor([0.3, 2.0], dtype=torch.float64)
    f, g, pullback = net.problem.evaluate(x)
    expected = reference.problem.evaluate(reference.x0)
    torch.testing.assert_close(f, expected.objective)
    torch.testing.assert_close(g, expected.constraints)
    torch.testing.assert_close(pullback(w, 0.7), expected.pullback(w, 0.7))


def test_jacobian_and_gradient_against_central_differences():
    net = study()
    x = net.start(1)
    h = 1e-5
    steps = h * torch.eye(len(x), dtype=torch.float64)

    def values(x):
        f, g, _ = net.problem.evaluate(x)
        return torch.cat([f[None], g])

    slopes = torch.stack([(values(x + s) - values(x - s)) / (2 * h) for s in steps], dim=-1)
    zero = torch.zeros(2, dtype=torch.float64)
    torch.testing.assert_close(net.problem.evaluate(x).pullback(zero), slopes[0], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(net.problem.evaluate(x).jacobian(), slopes[1:], rtol=1e-6, atol=1e-8)


def test_a_batch_equals_a_loop_over_its_members():
    budgets = torch.tensor([[0.5, 1.0], [2.0, 0.1]], dtype=torch.float64)
    net = study(budgets=budgets, hidden=(4, 3))
    x = torch.stack([net.start(0), net.start(1)])
    w = torch.tensor([[1.0, 2.0], [0.5, 0.0]], dtype=torch.float64)
    f, g, pullback = net.problem.evaluate(x)
    gradient = pullback(w)
    for b in range(2):
        f_b, g_b, pullback_b = net.with_thresholds(budgets[b]).problem.evaluate(x[b])
        torch.testing.assert_close(f[b], f_b)
        torch.testing.assert_close(g[b], g_b)
        torch.testing.assert_close(gradient[b], pullback_b(w[b]))


def test_pullbacks_repeat_and_the_start_is_left_alone():
    net = study()
    x = net.start(0)
    before = x.clone()
    now = net.problem.evaluate(x)
    w = torch.ones(2, dtype=torch.float64)
    torch.testing.assert_close(now.pullback(w), now.pullback(w))
    torch.testing.assert_close(now.pullback(2 * w, 2.0), 2 * now.pullback(w))
    assert not x.requires_grad
    assert torch.equal(x, before)


def test_gdpa_trains_it_and_costs_one_pass_each_way():
    net = study(budgets=1.2)
    start = net.start(0)
    result = solve(net.problem, start, GDPA(alpha=2.0, beta=0.5), stop=MaxSteps(300))
    assert result.forwards == 301
    assert result.backwards == 300
    before, after = net.losses(start), net.losses(result.x_last)
    assert float(after[1]) < float(before[1])
    assert float((after[[0, 2]] - 1.2).max()) < float((before[[0, 2]] - 1.2).max())
    oracle = CountingOracle(net.problem)
    now = oracle.problem.evaluate(start)
    assert now.has_cheap_jacobian
    now.jacobian()
    assert oracle.method == Counts(1, 1)


def test_confusion_counts_every_image_of_the_classes():
    net = study()
    images, labels = data()
    table = net.confusion(net.start(0), images, labels)
    assert table.shape == (3, 6)
    assert table.sum(axis=1).tolist() == [int((labels == j).sum()) for j in CLASSES]
    module = as_module(net, net.start(0))
    found = module(torch.from_numpy(images)).argmax(-1).numpy()
    assert table[2].tolist() == np.bincount(found[labels == 4], minlength=6).tolist()


def test_the_papers_size():
    net = budget_net(np.zeros((12, 28, 28), dtype=np.uint8), np.resize([1, 2, 3, 4, 5, 6], 12))
    assert net.widths == (784, 30, 10)
    assert net.size == 784 * 30 + 30 + 30 * 10 + 10
    assert net.problem.num_constraints == 5
    assert net.start(0)[: 784 * 30].abs().max() <= 1 / 28


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": (1, 8), "prioritized": 1}, "class 8 has no image"),
        ({"classes": (1, 2, 4), "outputs": 4}, r"classes must lie in 0\.\.3"),
        ({"prioritized": 7}, "prioritized must be one of"),
        ({"budgets": [1.0, 1.0, 1.0]}, "one number or 2 of them"),
        ({"budgets": -1.0}, "budgets must be positive and finite"),
        ({"budgets": [1.0, float("inf")]}, "budgets must be positive and finite"),
        ({"classes": (1, "two")}, "classes must be integers"),
        ({"hidden": (0,)}, "widths must be two or more positive integers"),
        ({"reduction": "max"}, "reduction must be"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        study(**options)


def test_bad_x():
    net = study()
    with pytest.raises(ValueError, match="the network of widths"):
        net.problem.evaluate(torch.zeros(3, dtype=torch.float64))
    with pytest.raises(TypeError, match="dtype"):
        net.problem.evaluate(torch.zeros(net.size))
    with pytest.raises(TypeError, match="torch tensor"):
        net.problem.evaluate(np.zeros(net.size))
