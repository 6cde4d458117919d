"""Certificates on whole data: against one full batch, whatever the batches; against known solutions."""

from __future__ import annotations

import pytest
import torch

from gdpa import from_module
from gdpa.core.certificate import certificate_at
from gdpa.core.units import ReferencePoint
from gdpa.torch import Limits, at_most, certify, choose
from tests.torch.helpers import NAMES, batch, make, network, terms, train

DTYPE = torch.float64


@pytest.mark.parametrize("sizes", [[60], [7, 20, 33], [1] * 60])
def test_batches_do_not_matter(sizes):
    net = network(dtype=DTYPE)
    data = batch(0, n=60, dtype=DTYPE)
    found = certify(net, data.split(sizes), terms, constraints=NAMES)
    f, g = terms(net, data)
    assert found.objective == pytest.approx(f.item(), rel=1e-12)
    assert found.samples == 60
    for name, value in g.items():
        assert found.report[name].value == pytest.approx(value.item(), rel=1e-10)
    # the KKT conditions are those of the full-batch problem
    problem = from_module(net, lambda call: (lambda f, g: (f, torch.stack([g[n] for n in NAMES])))(*terms(call, data)))
    now = problem.problem.evaluate(problem.x0)
    ones = ReferencePoint(problem.x0, torch.ones_like(problem.x0), now.constraints)
    wanted = certificate_at(problem.problem, problem.x0, ones, now)
    assert found.certificate.residuals.stationarity == pytest.approx(wanted.residuals.stationarity, rel=1e-6)
    assert torch.allclose(found.certificate.multipliers, wanted.multipliers, rtol=1e-5, atol=1e-9)


def test_a_solved_problem_is_certified():
    """min (w - 3)^2 with w <= 2 on data of ones: w = 2, multiplier 2."""
    net = torch.nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        net.weight.fill_(2.0)
    data = torch.ones(10, 1, dtype=DTYPE)

    def values(net, x):
        return (net(x) - 3).square().mean(), {"size": net(x).mean()}

    found = certify(net, data.split(3), values, constraints=Limits(size=at_most(2.0)))
    assert found.feasible
    assert found.certificate.residuals.worst < 1e-12
    assert found.report["size"].multiplier == pytest.approx(4.0)  # in the limit's scale of 2
    assert found.report["size"].limit == 2.0
    assert "10 samples" in str(found)
    assert "KKT residuals" in str(found)


def test_counts_weigh_group_means():
    """Means over groups of different size in every batch add up by their counts."""
    net = network(dtype=DTYPE)
    data = batch(0, n=60, dtype=DTYPE)

    def groups(net, x):
        out, inside = net(x)[:, 0], x[:, 1] > 0.3
        mean = out[inside].mean()  # NaN where the batch has none
        return out.square().mean(), {"inside": mean - 0.1}, {"inside": int(inside.sum())}

    found = certify(net, data.split(4), groups, constraints=["inside"])
    inside = data[:, 1] > 0.3
    assert found.report["inside"].value == pytest.approx(net(data)[inside, 0].mean().item() - 0.1, rel=1e-10)
    assert found.certificate.residuals.stationarity > 0


def test_c8_combine_for_a_value_that_is_not_a_mean():
    net = network(dtype=DTYPE)
    data = batch(0, n=60, dtype=DTYPE)

    def statistics(net, x):
        out, side = net(x)[:, 0], x[:, 1] > 0
        values = torch.stack([out.square().mean(), out[side].mean(), out[~side].mean()])
        return values, [len(x), int(side.sum()), int((~side).sum())]

    def combine(means):
        return means[0], (means[1] - means[2]).square()[None] - 0.01

    found = certify(net, data.split(5), statistics, constraints=1, combine=combine)
    side = data[:, 1] > 0
    out = net(data)[:, 0]
    gap = out[side].mean() - out[~side].mean()
    assert found.report["g[0]"].value == pytest.approx((gap**2 - 0.01).item(), rel=1e-9)
    slope = torch.autograd.grad(out.square().mean(), list(net.parameters()), allow_unused=True)
    lam = found.certificate.multipliers[0]
    pull = torch.autograd.grad(
        (net(data)[side, 0].mean() - net(data)[~side, 0].mean()).square(), list(net.parameters()), allow_unused=True
    )
    total = torch.cat([(a + lam * b).flatten() for a, b in zip(slope, pull, strict=True)])
    assert found.certificate.residuals.stationarity == pytest.approx(total.norm().item(), rel=1e-6)


def test_mode_of_the_model_is_left_alone_and_eval_is_used():
    net = torch.nn.Sequential(torch.nn.Dropout(0.5), network(dtype=DTYPE))
    data = batch(0, n=60, dtype=DTYPE)
    net.train()
    a, b = (certify(net, data.split(20), terms, constraints=NAMES, stationarity=False) for _ in range(2))
    assert net.training
    assert a.objective == b.objective
    assert a.certificate is None


def test_multipliers_of_the_optimizer_are_candidates():
    net = network()
    opt = make("paper", net.parameters())
    train(net, opt, 30)
    found = certify(net, [batch(0, n=64)], terms, optimizer=opt)
    assert found.report.snapshot.step == 30
    assert found.certificate.residuals.worst > 0


def test_choose_prefers_feasible_then_cheap():
    def fixed(value):
        net = torch.nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            net.weight.fill_(value)
        return net

    def values(net, x):
        return (net(x) - 3).square().mean(), {"size": net(x).mean() - 2}

    data = [torch.ones(4, 1)]
    models = {"far": fixed(1.0), "near": fixed(1.9), "outside": fixed(2.5)}
    name, model, found = choose(models, data, values, constraints=["size"])
    assert name == "near"
    assert model is models["near"]
    assert not found["outside"].feasible
    assert found["outside"].violation == pytest.approx(0.5)
    name, _, _ = choose({"a": fixed(2.5), "b": fixed(2.2)}, data, values, constraints=["size"])
    assert name == "b"
    with pytest.raises(ValueError, match="models is empty"):
        choose({}, data, values, constraints=["size"])


def test_bad_input():
    net = network()
    with pytest.raises(TypeError, match="give constraints= or optimizer="):
        certify(net, [batch(0)], terms)
    with pytest.raises(ValueError, match="loader has no samples"):
        certify(net, iter([]), terms, constraints=NAMES)
    with pytest.raises(ValueError, match="empty has no sample in the whole loader"):
        certify(net, [batch(0)], lambda n, x: (n(x).mean(), {"empty": n(x).mean()}, [0]), constraints=["empty"])
    frozen = network()
    for p in frozen.parameters():
        p.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        certify(frozen, [batch(0)], terms, constraints=NAMES)
