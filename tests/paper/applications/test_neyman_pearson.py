"""mNPC: the definition written out in loops, finite differences, autograd, batches, and bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from gdpa import GDPA, MaxSteps, certify, solve
from gdpa.core.problem import row_by_row
from gdpa.paper.applications.by_class import select
from gdpa.paper.applications.neyman_pearson import neyman_pearson
from gdpa.run.oracle import CountingOracle, Counts

CLASSES = (1, 3, 4, 7)


def data(n=40, pixels=5, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.resize([0, *CLASSES], n))
    return rng.uniform(size=(n, pixels)), labels


def study(**options):
    images, labels = data()
    return neyman_pearson(images, labels, **{"classes": CLASSES, "prioritized": 3, **options})


def by_definition(case, images, labels, x):
    """f and g exactly as printed, one term at a time; noise-free."""
    vectors = dict(zip(case.classes, x.reshape(len(case.classes), -1), strict=True))
    losses = {}
    for j in case.classes:
        rows = [xi for xi, y in zip(images, labels, strict=True) if y == j]
        total = sum(1 / (1 + math.exp((vectors[j] - vectors[i]) @ xi)) for xi in rows for i in case.classes if i != j)
        losses[j] = total / len(rows) if case.reduction == "mean" else total
    size = {"squared": lambda v: v @ v, "plain": lambda v: math.sqrt(v @ v + case.smoothing**2)}[case.norm]
    f = losses[case.prioritized] + case.regularizer / 2 * sum(size(v) for v in vectors.values())
    r = dict(zip([c for c in case.classes if c != case.prioritized], case.thresholds.tolist(), strict=True))
    return f, np.array([losses[j] - r[j] for j in r])


VARIANTS = [
    {"reduction": reduction, "norm": norm, "regularizer": weight, "thresholds": thresholds}
    for reduction, norm, weight, thresholds in [
        ("mean", "squared", 1.0, 0.1),
        ("sum", "squared", 0.3, [0.1, 0.2, 0.4]),
        ("mean", "plain", 2.0, [1.0, 0.2, 0.4]),
        ("sum", "plain", 1.0, 0.5),
        ("mean", "squared", 0.0, 0.1),
    ]
]


@pytest.mark.parametrize("options", VARIANTS)
def test_values_are_the_definition(options):
    case = study(noise=0.0, **options)
    x = np.random.default_rng(1).normal(size=20)
    f, g, _ = case.problem.evaluate(torch.from_numpy(x))
    expected_f, expected_g = by_definition(case, *data(), x)  # type: ignore[call-arg]
    assert f.item() == pytest.approx(expected_f, rel=1e-13)
    np.testing.assert_allclose(g.numpy(), expected_g, rtol=1e-12)


@pytest.mark.parametrize("options", VARIANTS)
def test_pullback_and_jacobian_against_central_differences(options):
    case = study(**options)
    rng = np.random.default_rng(2)
    x, w = torch.from_numpy(rng.normal(size=20)), torch.from_numpy(rng.uniform(size=3))

    def weighted(x):
        f, g, _ = case.problem.evaluate(x)
        return torch.cat([(0.7 * f + w @ g)[None], g])

    h = 1e-5
    steps = h * torch.eye(20, dtype=torch.float64)
    slopes = torch.stack([(weighted(x + s) - weighted(x - s)) / (2 * h) for s in steps], dim=-1)
    gradient = case.problem.evaluate(x).pullback(w, objective=0.7)
    torch.testing.assert_close(gradient, slopes[0], rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(case.problem.evaluate(x).jacobian(), slopes[1:], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("options", VARIANTS)
def test_pullback_against_autograd(options):
    case = study(**options)
    x = torch.randn(20, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
    w = torch.tensor([0.3, 0.0, 2.0], dtype=torch.float64)
    W = x.reshape(4, 5)
    losses, start = [], 0
    for j, n in enumerate(case.counts):
        scores = case.samples[start : start + n] @ W.T
        terms = torch.sigmoid(scores - scores[:, j : j + 1])
        kept = [i for i in range(4) if i != j]
        losses.append(terms[:, kept].sum() / (n if case.reduction == "mean" else 1))
        start += n
    square = (W * W).sum(-1)
    size = square if case.norm == "squared" else (square + case.smoothing**2).sqrt()
    total = losses[1] + case.regularizer / 2 * size.sum() + w @ torch.stack([losses[0], losses[2], losses[3]])
    (expected,) = torch.autograd.grad(total, x)
    torch.testing.assert_close(case.problem.evaluate(x.detach()).pullback(w), expected, rtol=1e-12, atol=1e-14)


def test_a_batch_equals_a_loop_over_its_members():
    thresholds = torch.tensor([[0.1, 0.2, 0.3], [1.0, 0.9, 0.8]], dtype=torch.float64)
    batched = study(thresholds=thresholds)
    rng = np.random.default_rng(4)
    x, w = torch.from_numpy(rng.normal(size=(2, 20))), torch.from_numpy(rng.uniform(size=(2, 3)))
    objective = torch.tensor([1.0, 0.5], dtype=torch.float64)
    f, g, pullback = now = batched.problem.evaluate(x)
    gradient, J = pullback(w, objective), now.jacobian()
    for b in range(2):
        one = batched.with_thresholds(thresholds[b])
        f_b, g_b, pullback_b = one.problem.evaluate(x[b])
        torch.testing.assert_close(f[b], f_b, rtol=1e-13, atol=0)
        torch.testing.assert_close(g[b], g_b, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(gradient[b], pullback_b(w[b], float(objective[b])), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(J[b], one.problem.evaluate(x[b]).jacobian(), rtol=1e-12, atol=1e-14)


def test_a_batched_solve_equals_separate_solves():
    thresholds = torch.tensor([[0.5] * 3, [1.2] * 3], dtype=torch.float64)
    batched = study(thresholds=thresholds, noise=0.1, regularizer=0.01)
    method, x0 = GDPA(alpha=0.3, beta=1.0), batched.start(0)
    together = solve(batched.problem, x0.expand(2, -1).clone(), method, stop=MaxSteps(50))
    for b in range(2):
        alone = solve(batched.with_thresholds(thresholds[b]).problem, x0, method, stop=MaxSteps(50))
        torch.testing.assert_close(together.x_last[b], alone.x_last, rtol=1e-9, atol=1e-11)


def test_two_leading_axes():
    case = study()
    x = torch.randn(2, 3, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    f, g, pullback = case.problem.evaluate(x)
    assert (f.shape, g.shape, pullback(g).shape) == ((2, 3), (2, 3, 3), (2, 3, 20))
    torch.testing.assert_close(f[1, 2], case.problem.evaluate(x[1, 2]).objective)


def test_float32_agrees_with_float64():
    a, b = study(dtype=torch.float32, reduction="sum"), study(reduction="sum")
    x = b.start(1)
    one, two = a.problem.evaluate(x.float()), b.problem.evaluate(x)
    torch.testing.assert_close(one.constraints.double(), two.constraints, rtol=1e-5, atol=1e-5)
    w = torch.ones(3)
    torch.testing.assert_close(one.pullback(w).double(), two.pullback(w.double()), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_cuda_agrees_with_the_host():
    host, device = study(), study(device="cuda")
    x = host.start(1)
    w = torch.ones(3, dtype=torch.float64)
    one, two = host.problem.evaluate(x), device.problem.evaluate(x.cuda())
    torch.testing.assert_close(two.constraints.cpu(), one.constraints)
    torch.testing.assert_close(two.pullback(w.cuda()).cpu(), one.pullback(w))


def test_an_evaluation_keeps_the_jacobian_of_its_own_point():
    case = study()
    first, second = case.start(1), case.start(2)
    one, two = case.problem.evaluate(first), case.problem.evaluate(second)
    expected = torch.stack([one.pullback(unit, 0.0) for unit in torch.eye(3, dtype=torch.float64)])
    torch.testing.assert_close(one.jacobian(), expected, rtol=1e-10, atol=1e-13)  # after the call at another point
    assert not torch.allclose(two.jacobian(), one.jacobian())
    assert one.jacobian() is one.jacobian()


def test_scaling_law_between_sums_and_means():
    """Sums with (alpha, beta) walk as means with (N alpha, N beta), regularizer / N and thresholds / N."""
    images, labels = data(50)
    options = {"classes": CLASSES, "prioritized": 3, "noise": 0.0}
    n = 10
    sums = neyman_pearson(images, labels, reduction="sum", regularizer=1.0, thresholds=3.0, **options)
    means = neyman_pearson(images, labels, reduction="mean", regularizer=1.0 / n, thresholds=3.0 / n, **options)
    assert set(sums.counts) == {n}
    x0 = sums.start(0)
    a = solve(sums.problem, x0, GDPA(alpha=0.01, beta=0.02), stop=MaxSteps(40))
    b = solve(means.problem, x0, GDPA(alpha=n * 0.01, beta=n * 0.02), stop=MaxSteps(40))
    torch.testing.assert_close(a.x_last, b.x_last, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(a.multipliers_last, b.multipliers_last, rtol=1e-9, atol=1e-12)
    assert float(a.multipliers_last.max()) > 0


def test_one_forward_and_one_backward_per_iteration():
    case = study()
    result = solve(case.problem, case.start(0), GDPA(), stop=MaxSteps(10))
    assert (result.forwards, result.backwards) == (11, 10)
    oracle = CountingOracle(case.problem)
    now = oracle.problem.evaluate(case.start(0))
    assert now.has_cheap_jacobian
    now.jacobian()
    assert oracle.method == Counts(1, 1)


def test_certificate_uses_the_hook_and_agrees_with_pullbacks():
    case = study(thresholds=0.9)
    x = case.start(2)
    one, two = certify(case.problem, x), certify(row_by_row(case.problem), x)
    torch.testing.assert_close(one.multipliers, two.multipliers, rtol=1e-8, atol=1e-10)


def test_losses_and_confusion():
    images = np.eye(4)
    labels = np.array([5, 6, 7, 8])
    case = neyman_pearson(images, labels, classes=(5, 6, 7, 8), prioritized=5, noise=0.0)
    x = 20 * torch.eye(4, dtype=torch.float64).reshape(-1)
    assert float(case.losses(x).max()) < 1e-7
    table = case.confusion(x, np.concatenate([images, images[:1], np.ones((1, 4))]), np.array([5, 6, 7, 8, 6, 0]))
    assert table.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def test_start_has_the_printed_variance():
    images, labels = data(pixels=784)
    case = neyman_pearson(images, labels, classes=CLASSES, prioritized=3)
    assert case.start(0).var().item() == pytest.approx(1e-3, rel=0.1)
    assert not torch.equal(case.start(0), case.start(1))
    assert torch.equal(case.start(7), case.start(7))


def test_noise_is_drawn_once_per_seed_and_label():
    images, labels = np.zeros((400, 100)), np.resize([1, 2], 400)
    one = select(images, labels, (1, 2), noise=1.0, seed=3)
    other_order = select(images, labels, (2, 1), noise=1.0, seed=3, images_per_class=7)
    assert torch.equal(one.samples[200:207], other_order.samples[:7])
    assert not torch.equal(one.samples[:200], one.samples[200:])
    assert one.samples.mean().item() == pytest.approx(0.0, abs=0.02)
    assert one.samples.std().item() == pytest.approx(1.0, abs=0.02)
    assert not torch.equal(one.samples, select(images, labels, (1, 2), noise=1.0, seed=4).samples)


BAD = [
    ({"classes": (1, 12)}, "class 12 has no image; the labels present are"),
    ({"classes": (1, 1)}, "classes must differ"),
    ({"classes": (1, 2.5)}, r"classes must be integers, the labels of the images, got \(1, 2.5\)"),
    ({"classes": (1, "2")}, "classes must be integers"),
    ({"classes": (1,), "prioritized": 1}, "at least two classes"),
    ({"prioritized": 9}, "prioritized must be one of the classes"),
    ({"thresholds": [0.1, 0.2]}, r"one number or 3 of them.*got shape \(2,\)"),
    ({"thresholds": -0.1}, "thresholds must be positive"),
    ({"thresholds": 0.0}, "thresholds must be positive"),
    ({"thresholds": 3.0}, "strictly between 0"),
    ({"thresholds": float("inf")}, "thresholds must be positive and finite"),
    ({"thresholds": float("nan")}, "thresholds must be positive"),
    ({"thresholds": [0.1, 100.0, 0.1], "reduction": "sum"}, "strictly between 0"),
    ({"regularizer": -1.0}, "regularizer must be a finite number of at least 0"),
    ({"norm": "l1"}, "norm must be 'squared' or 'plain'"),
    ({"smoothing": 0.0}, "smoothing must be a positive finite"),
    ({"reduction": "median"}, "reduction must be 'mean' or 'sum'"),
    ({"noise": -1.0}, "noise must be a finite number of at least 0"),
    ({"images_per_class": 0}, "images_per_class must be a positive integer"),
    ({"dtype": torch.float16}, "dtype must be torch.float32 or torch.float64"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        study(**options)


def test_labels_of_another_length():
    with pytest.raises(ValueError, match="one per image"):
        neyman_pearson(np.zeros((3, 2)), np.zeros(2))


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (np.zeros(20), TypeError, "torch tensor"),
        (torch.zeros(20), TypeError, "dtype"),
        (torch.zeros(19, dtype=torch.float64), ValueError, "expected 4 x 5"),
    ],
)
def test_bad_x(x, error, message):
    with pytest.raises(error, match=message):
        study().problem.evaluate(x)
