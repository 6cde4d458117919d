"""Terms against scikit-learn, fairlearn's definitions and hand-made NumPy; absent groups; the proxy Lagrangian."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gdpa.torch
from gdpa.torch import Limits, at_least, at_most, between, terms
from gdpa.torch.terms import Term, resolve

N = 200


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, N)
    labels = rng.integers(0, 2, N)
    scores = rng.normal(size=N) + labels + 0.3 * group
    return scores, labels, group


def tensors(scores, *rest):
    return torch.tensor(scores, requires_grad=True), *map(torch.tensor, rest)


def sigmoid(s):
    return 1 / (1 + np.exp(-s))


def check(term, surrogate, true, count):
    found = [one.item() for one in term]
    assert found == pytest.approx([surrogate, true, count], rel=1e-12)
    assert term.value.item() == found[1]  # exactly: no rounding between the rate and what the multiplier sees


def test_recall_and_false_positive_rate_are_those_of_scikit_learn(data):
    metrics = pytest.importorskip("sklearn.metrics")
    scores, labels, group = data
    s, y, a = tensors(*data)
    soft = sigmoid(scores - 0.5)
    recall = metrics.recall_score(labels, scores > 0.5)
    check(terms.recall(s, y, threshold=0.5), soft[labels == 1].mean(), recall, (labels == 1).sum())
    matrix = metrics.confusion_matrix(labels, scores > 0.5)
    wanted = matrix[0, 1] / matrix[0].sum()
    check(terms.false_positive_rate(s, y, threshold=0.5), soft[labels == 0].mean(), wanted, (labels == 0).sum())
    inside = group == 2
    wanted = metrics.recall_score(labels[inside], scores[inside] > 0)
    found = terms.recall(s, y, a == 2)
    check(found, sigmoid(scores)[inside & (labels == 1)].mean(), wanted, (inside & (labels == 1)).sum())
    hinge = terms.recall(s, y, surrogate=lambda t: torch.relu(1 + t))
    assert hinge.surrogate.item() == pytest.approx(np.maximum(1 + scores, 0)[labels == 1].mean())


def test_recall_of_one_class_of_many():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    logits, target = rng.normal(size=(N, 4)), rng.integers(0, 4, N)
    wanted = metrics.recall_score(target, logits.argmax(1), average=None)
    for k in range(4):
        found = terms.recall(terms.margin(torch.tensor(logits), k), torch.tensor(target) == k)
        assert float(found.true) == pytest.approx(wanted[k])


def test_gaps_between_groups(data):
    scores, labels, group = data
    s, y, a = tensors(*data)
    hard, soft = scores > 0, sigmoid(scores)
    one, two = group == 1, group == 2
    gap = terms.demographic_parity(s, a == 1, a == 2)
    check(gap, soft[one].mean() - soft[two].mean(), hard[one].mean() - hard[two].mean(), min(one.sum(), two.sum()))
    rest = terms.demographic_parity(s, a == 1)
    assert float(rest.true) == pytest.approx(hard[one].mean() - hard[~one].mean())
    for gap, kind in zip(terms.equalized_odds(s, y, a == 1, a == 2), (1, 0), strict=True):
        first, second = (mask & (labels == kind) for mask in (one, two))
        check(
            gap,
            soft[first].mean() - soft[second].mean(),
            hard[first].mean() - hard[second].mean(),
            min(first.sum(), second.sum()),
        )


def test_calibration_is_the_reliability_diagram(data):
    calibration_curve = pytest.importorskip("sklearn.calibration").calibration_curve
    scores, labels, _ = data
    s, y, _ = tensors(*data)
    shares, means = calibration_curve(labels, sigmoid(scores), n_bins=5, strategy="uniform")
    edges = np.linspace(0, 1, 6)
    for k in range(5):
        found = terms.calibration(s, y, low=edges[k], high=edges[k + 1])
        assert float(found.true) == pytest.approx(means[k] - shares[k])
        assert found.surrogate.item() == found.true.item()
    certain = terms.calibration(torch.tensor([80.0]), torch.tensor([0]), low=0.8)
    assert float(certain.true) == 1.0  # p = 1 belongs to the last bin


def test_kl_against_scipy_and_by_tokens():
    rel_entr = pytest.importorskip("scipy.special").rel_entr
    rng = np.random.default_rng(2)
    p, q = (rng.normal(size=(5, 3, 7)) for _ in range(2))
    each = rel_entr(*(np.exp(z) / np.exp(z).sum(-1, keepdims=True) for z in (p, q))).sum(-1)
    flat = terms.kl(torch.tensor(p[:, 0]), torch.tensor(q[:, 0]))
    assert float(flat.true) == pytest.approx(each[:, 0].mean())
    tokens = np.array([[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0], [0, 1, 1]])  # the third sample has no token
    wanted = np.mean([each[i, tokens[i] == 1].mean() for i in (0, 1, 3, 4)])
    found = terms.kl(torch.tensor(p), torch.tensor(q), torch.tensor(tokens))
    assert float(found.true) == pytest.approx(wanted)
    assert int(found.count) == 4
    with pytest.raises(ValueError, match=r"tokens is for values of shape \(n, tokens\)"):
        terms.kl(torch.tensor(p[:, 0]), torch.tensor(q[:, 0]), torch.tensor(tokens))


def test_sampled_kl_has_the_value_and_the_gradient_of_the_kl():
    """Summed over every outcome with its probability: exact expectations, no sampling."""
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([0.0, 0.5, -0.5], dtype=torch.float64), 0)
    exact = terms.kl(logits[None], reference[None])
    (wanted,) = torch.autograd.grad(exact.value, logits, retain_graph=True)
    logp = torch.log_softmax(logits, 0)
    p = logp.exp().detach()
    parts = [terms.kl_sampled(logp[i : i + 1], reference[i : i + 1]) for i in range(3)]
    value = sum(p[i] * parts[i].true for i in range(3))
    slope = sum(p[i] * torch.autograd.grad(parts[i].value, logits, retain_graph=True)[0] for i in range(3))
    assert float(value) == pytest.approx(float(exact.true), rel=1e-12)
    assert torch.allclose(slope, wanted, rtol=1e-12)


def test_sampled_cost_has_the_gradient_of_the_expected_cost():
    """Two outputs, summed over every pair with its probability: the exact expectation of the estimate."""
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    costs = torch.tensor([1.0, 4.0, -2.0], dtype=torch.float64)
    (wanted,) = torch.autograd.grad(torch.softmax(logits, 0) @ costs, logits)
    logp = torch.log_softmax(logits, 0)
    p = logp.exp().detach()
    slope, value = torch.zeros(3, dtype=torch.float64), 0.0
    for i in range(3):
        for j in range(3):
            pair = torch.tensor([i, j])
            term = terms.sampled_cost(costs[pair], logp[pair])
            slope += p[i] * p[j] * torch.autograd.grad(term.value, logits, retain_graph=True)[0]
            value += (p[i] * p[j] * term.true).item()
    assert torch.allclose(slope, wanted, rtol=1e-12)
    assert value == pytest.approx((p @ costs).item(), rel=1e-12)
    # others of the batch do not enter, and a truth value is a 0/1 outcome
    mask = torch.tensor([True, False, True])
    inside, alone = terms.sampled_cost(costs, logp, mask), terms.sampled_cost(costs[mask], logp[mask])
    assert inside.surrogate.item() == pytest.approx(alone.surrogate.item(), rel=1e-12)
    assert terms.sampled_cost(costs > 0, logp).true.item() == pytest.approx(2 / 3)


def test_weights():
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)).double()
    flat = np.concatenate([p.detach().numpy().ravel() for p in net.parameters()])
    assert float(terms.weight_norm(net.parameters()).true) == pytest.approx(np.linalg.norm(flat))
    assert float(terms.weight_norm(net.parameters(), 1.0).true) == pytest.approx(np.abs(flat).sum())
    found = terms.density(net.parameters(), threshold=0.2)
    check(found, np.mean(flat**2 / (flat**2 + 0.04)), np.mean(np.abs(flat) > 0.2), 1)
    zero = torch.zeros(3, requires_grad=True)
    (slope,) = torch.autograd.grad(terms.weight_norm([zero]).value, zero)
    assert torch.equal(slope, torch.zeros(3))  # finite at 0
    with pytest.raises(ValueError, match="no parameter was given"):
        terms.weight_norm([])
    with pytest.raises(ValueError, match="threshold must be a positive number, got 0"):
        terms.density([zero], threshold=0)


def test_open_gates_is_the_probability_of_a_gate_that_is_not_zero():
    """Drawn from the definition: s = sigmoid((log u - log(1 - u) + log_alpha) / T), stretched and clamped."""
    log_alpha = torch.tensor([-2.0, 0.0, 1.0])
    u = torch.rand(200_000, 3, generator=torch.Generator().manual_seed(0))
    s = torch.sigmoid((torch.logit(u) + log_alpha) / (2 / 3)) * 1.2 - 0.1
    assert float(terms.open_gates([log_alpha]).true) == pytest.approx(float((s > 0).float().mean()), abs=3e-3)


def test_monotonicity_and_steepness_against_closed_forms():
    x = torch.randn(N, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    w = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)

    def model(x):  # d/dx0 = w0 cos(x0), d/dx1 = w1
        return w[0] * torch.sin(x[:, 0]) + w[1] * x[:, 1]

    slope = np.cos(x[:, 0].numpy())
    found = terms.monotonicity(model, x, 0)
    check(found, np.maximum(-slope, 0).mean(), np.mean(slope < 0), N)
    (grad,) = torch.autograd.grad(found.value, w)
    assert grad.numpy() == pytest.approx([np.maximum(-slope, 0).mean(), 0])
    check(terms.monotonicity(model, x, 1, increasing=False), 0, 0, N)
    size = np.hypot(slope, 2)
    check(terms.steepness(model, x, 2.1), np.maximum(size - 2.1, 0).mean() / 2.1, np.mean(size > 2.1), N)
    with torch.no_grad():
        assert not terms.monotonicity(model, x, 0).surrogate.requires_grad
    with pytest.raises(ValueError, match=r"one number per sample, shape \(200,\), got \(200, 2\)"):
        terms.steepness(lambda x: x, x, 1.0)
    with pytest.raises(ValueError, match="limit must be a positive number"):
        terms.steepness(model, x, 0.0)


def test_lipschitz_bound_is_a_bound_and_tight_for_one_layer():
    torch.manual_seed(0)
    first = torch.nn.Linear(4, 8)
    net = torch.nn.Sequential(first, torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(8, 3)))
    bound = terms.lipschitz_bound(net)
    wanted = np.prod([np.linalg.svd(p.detach().numpy())[1][0] for p in net.parameters() if p.ndim == 2])
    assert float(bound.true) == pytest.approx(wanted, rel=1e-5)
    assert bound.surrogate.requires_grad
    a, b = torch.randn(500, 4), torch.randn(500, 4)
    with torch.no_grad():
        assert ((net(a) - net(b)).norm(dim=1) <= bound.true * (a - b).norm(dim=1) * (1 + 1e-6)).all()
    largest = np.linalg.norm(first.weight.detach().numpy(), 2)
    assert float(terms.lipschitz_bound(first).true) == pytest.approx(largest, rel=1e-5)
    for layer, name in [(torch.nn.BatchNorm1d(8), "layer 1: BatchNorm1d"), (torch.nn.ELU(2.0), "layer 1: ELU")]:
        with pytest.raises(TypeError, match=name):
            terms.lipschitz_bound(torch.nn.Sequential(torch.nn.Linear(4, 8), layer))
    with pytest.raises(ValueError, match="no linear layer"):
        terms.lipschitz_bound(torch.nn.ReLU())


def groups_of(s, y, inside):
    x = torch.stack([s.detach(), s.detach()], 1)
    logits = torch.stack([s, -s], 1)
    return {
        "recall": terms.recall(s, y, inside),
        "fpr": terms.false_positive_rate(s, y, inside),
        "parity": terms.demographic_parity(s, inside),
        "odds": terms.equalized_odds(s, y, inside)[0],
        "calibration": terms.calibration(s, y, inside),
        "kl": terms.kl(logits, logits.flip(1), inside=inside),
        "sampled": terms.kl_sampled(-s.abs(), s * 0 - 1, inside=inside),
        "mean": terms.mean(s, inside),
        "cost": terms.sampled_cost(s > 0, -s.abs(), inside),
        "monotone": terms.monotonicity(lambda x: s.sum() * x[:, 0], x, 0, inside),
        "steep": terms.steepness(lambda x: s.sum() * x[:, 0], x, 1.0, inside),
    }


@pytest.mark.parametrize("name", list(groups_of(torch.ones(2), torch.ones(2), torch.ones(2, dtype=torch.bool))))
def test_an_absent_group_is_nan_with_count_0_and_no_gradient(data, name):
    s, y, a = tensors(*data)
    term = groups_of(s, y, a == 7)[name]
    surrogate, true, count = term
    assert surrogate.isnan()
    assert true.isnan()
    assert int(count) == 0
    slope = torch.autograd.grad(torch.where(term.count > 0, term.value, 0.0), s)[0]
    assert torch.equal(slope, torch.zeros_like(s))  # a weight of 0 gives no NaN
    present = groups_of(s, y, a == 1)[name]
    assert torch.isfinite(torch.autograd.grad(present.value, s)[0]).all()


def test_terms_add_and_scale(data):
    s, y, _ = tensors(*data)
    a, b = terms.recall(s, y), terms.false_positive_rate(s, y)
    c = 0.5 - 2 * (a - b) + 1
    for i in range(2):
        assert list(c)[i].item() == pytest.approx(1.5 - 2 * (list(a)[i].item() - list(b)[i].item()))
    half = Term.of(s.half())
    assert half.surrogate.dtype == torch.float32


BAD = [
    (lambda x: Term.of(x[:, None]), ValueError, r"one floating-point number per sample, shape \(n,\), got \(3, 1\)"),
    (lambda x: Term.of(0.5), ValueError, "one floating-point number per sample"),
    (lambda x: Term.of(x, inside=torch.ones(3)), TypeError, "inside must be boolean, got torch.float32"),
    (lambda x: Term.of(x, x[:2] > 0), ValueError, r"outcomes has shape \(2,\), expected \(3,\)"),
    (lambda x: Term.of(x, bounds=(1, 1)), ValueError, r"bounds must be \(low, high\) with low < high, got \(1, 1\)"),
    (lambda x: terms.proxy(0.5, 1), TypeError, "surrogate of a true rate must be a tensor"),
    (lambda x: terms.proxy(x, torch.ones(2)), ValueError, r"true has shape \(2,\) and its surrogate \(3,\)"),
    (lambda x: resolve(x, {"a": 1.0}), KeyError, r"true holds \['a'\], which must be names of g, got g of Tensor"),
    (lambda x: resolve({"a": x}, {"b": 1.0}), KeyError, r"names of g, got g of \['a'\]"),
    (lambda x: resolve({"a": Term.of(x)}, {"a": 1.0}), TypeError, r"\['a'\] are terms, which have their true value"),
    (lambda x: resolve({"a": Term.of(x)}, None, [3]), TypeError, "terms count their samples"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.ones(3, requires_grad=True))


# The proxy Lagrangian.


@pytest.mark.parametrize("form", ["tensor", "dict", "limits"])
def test_multipliers_follow_the_true_rate_and_the_gradient_the_surrogate(form):
    """One step of the paper's rule by hand: lambda_1 = (1 - tau) 0 + beta g, from the true value of g."""
    x = torch.nn.Parameter(torch.tensor([0.3, -0.2], dtype=torch.float64))
    constraints = Limits(a=at_most(1.0)) if form == "limits" else ["a"]
    opt = gdpa.torch.GDPA([x], constraints, lr=0.1, beta=2.0, tau=0.1)
    twin = torch.nn.Parameter(x.detach().clone())
    straight = gdpa.torch.GDPA([twin], ["a"], lr=0.1, beta=2.0, tau=0.1)
    for rate in (0.5, 0.75, -0.25, 0.5):
        opt.zero_grad()
        smooth = x.square().sum()
        g, true = {
            "tensor": (smooth[None], torch.tensor([rate])),
            "dict": ({"a": smooth}, {"a": rate}),
            "limits": ({"a": smooth}, {"a": 1 + rate}),
        }[form]
        opt.lagrangian(x.sum(), g, true=true).backward()
        opt.step()
        # the same rule on g = rate + (surrogate - its value now), which has that value and that gradient
        straight.zero_grad()
        smooth = twin.square().sum()
        straight.lagrangian(twin.sum(), {"a": rate + smooth - smooth.item()}).backward()
        straight.step()
        assert torch.allclose(opt.multipliers, straight.multipliers, rtol=1e-12)
        assert torch.allclose(x, twin, rtol=1e-12)
        assert opt.snapshot().rows[0].value == pytest.approx(rate + (form == "limits"), abs=1e-12)


def test_a_hard_rate_is_refused_with_the_remedy():
    x = torch.nn.Parameter(torch.ones(3))
    opt = gdpa.torch.GDPA([x], ["fpr"])
    hard = (x > 0).float().mean()
    with pytest.raises(ValueError, match=r"A 0/1 rate has no gradient: .* lagrangian\(f, surrogate, true=rate\)"):
        opt.lagrangian(x.sum(), {"fpr": hard})
    opt.lagrangian(x.sum(), {"fpr": torch.sigmoid(x).mean()}, true={"fpr": hard}).backward()
    opt.step()
    assert opt.report()["fpr"].value == 1.0


def task(seed=0, n=2000):
    rng = torch.Generator().manual_seed(seed)
    y = (torch.rand(n, generator=rng) < 0.3).float()
    x = torch.randn(n, 2, generator=rng) + 1.2 * y[:, None]
    return x, y, torch.rand(n, generator=rng) < 0.02  # a rare group


def rates(net, batch):
    x, y, rare = batch
    scores = net(x)[:, 0]
    f = torch.nn.functional.binary_cross_entropy_with_logits(scores, y)
    return f, {
        "recall": terms.recall(scores, y),
        "fpr": terms.false_positive_rate(scores, y),
        "rare": terms.mean(torch.sigmoid(scores), rare, bounds=(0, 1)),
        "norm": terms.weight_norm(net.parameters()),
        "plain": net.weight[0, 0],
    }


def test_training_on_terms_meets_the_true_rates_and_absent_groups_wait():
    torch.manual_seed(0)
    data = task()
    net = torch.nn.Linear(2, 1)
    limits = Limits(
        recall=at_least(0.9), fpr=at_most(0.5), rare=at_most(0.9), norm=at_most(10.0), plain=between(-9.0, 9.0)
    )
    opt = gdpa.torch.constrain(torch.optim.Adam(net.parameters(), lr=0.02), limits, dual_rate=3.0)
    rng = torch.Generator().manual_seed(0)
    for _ in range(900):
        index = torch.randint(len(data[0]), (64,), generator=rng)
        opt.zero_grad()
        opt.lagrangian(*rates(net, tuple(part[index] for part in data))).backward()
        opt.step()
    assert opt.skipped == 0  # the rare group is absent from a quarter of the batches
    with torch.no_grad():
        scores = net(data[0])[:, 0]
    assert (scores[data[1] == 1] > 0).float().mean() == pytest.approx(0.9, abs=0.03)
    assert opt.report()["recall"].multiplier > 0


def test_counts_by_the_name_of_a_limit_with_two_sides():
    x = torch.nn.Parameter(torch.ones(2))
    opt = gdpa.torch.GDPA([x], Limits(a=between(0, 2), b=at_most(0.5)))
    for _ in range(2):
        opt.zero_grad()
        opt.lagrangian(x.sum(), {"a": x[0] + 9, "b": x[1]}, counts={"a": 0, "b": 4}).backward()
        opt.step()
    assert opt.skipped == 0
    assert opt.multipliers.tolist()[:2] == [0, 0]
    assert opt.multipliers[2] > 0
    with pytest.raises(KeyError, match="counts must have one entry"):
        opt.lagrangian(x.sum(), {"a": x[0], "b": x[1]}, counts={"a": 0})


def test_accumulated_micro_batches_of_terms_are_the_whole_batch():
    data = task(1, n=96)
    found = []
    for parts in (1, 3):
        torch.manual_seed(0)
        net = torch.nn.Linear(2, 1).double()
        limits = Limits(recall=at_least(0.9), fpr=at_most(0.1))
        opt = gdpa.torch.GDPA(net.parameters(), limits, lr=0.1, accumulate="exact")

        def some(part, net=net):
            f, g = rates(net, [one.double() if one.is_floating_point() else one for one in part])
            return f, {name: g[name] for name in ("recall", "fpr")}

        for _ in range(5):
            batches = list(zip(*(one.split(96 // parts) for one in data), strict=True))
            opt.zero_grad()
            with torch.no_grad():
                for one in batches:
                    opt.add_micro_batch(*some(one))
            for one in batches:
                opt.lagrangian(*some(one)).backward()
            opt.step()
        found.append((opt.multipliers, net.weight.detach()))
    assert torch.allclose(found[0][0], found[1][0], rtol=1e-12)
    assert torch.allclose(found[0][1], found[1][1], rtol=1e-12)
