"""The tasks of benchmarks/minibatch: deterministic, and their limits attainable by an independent computation."""

import numpy as np
import pytest
import scipy.optimize
import torch

from benchmarks.minibatch import shapes
from benchmarks.minibatch.task import group_means
from gdpa.paper.data.images import cache_folder

#: The tasks whose data is drawn, not fetched.
DRAWN = ("finetune-kl", "groups-loss", "narrow-limit")
needs_data = pytest.mark.skipif(not (cache_folder() / "minibatch.npz").exists(), reason="the data is not in the cache")
ALL = pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in DRAWN else needs_data) for n in shapes.NAMES])


def start(name, seed=0):
    task = shapes.make(name)
    torch.manual_seed(seed)
    return task, task.network()


def clear_caches():
    for made in (shapes._policy, shapes._groups, shapes._cells, shapes._symmetry, shapes._turned, shapes._upright):
        made.cache_clear()


@ALL
def test_a_task_is_the_same_every_time(name):
    seen = []
    for noise in (1, 2):  # what torch's own generator held before must not matter
        torch.manual_seed(noise)
        clear_caches()
        task, net = start(name)
        batches = task.batches(seed=3)
        for _ in range(3):
            batch = next(batches)
        f, g, counts = task.values(net, batch)
        seen.append([*task.data, *batch, f, g, counts])
    for first, second in zip(*seen, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)


@ALL
def test_values_of_the_whole_data_are_finite_and_batches_say_who_is_absent(name):
    task, net = start(name)
    f, g, counts = task.values(net, task.data)
    assert g.shape == counts.shape == task.limits.shape == (len(task.names),)
    assert bool(torch.isfinite(f) & torch.isfinite(g).all() & (counts > 0).all())
    _, g, counts = task.values(net, next(task.batches(seed=0)))
    assert torch.equal(torch.isnan(g), counts == 0)


@ALL
def test_different_seeds_give_different_batches(name):
    task, _ = start(name)
    first, second = (next(task.batches(seed)) for seed in (0, 1))
    assert not torch.equal(first[0], second[0])


def test_group_means_against_a_loop():
    rng = np.random.default_rng(0)
    each, group = torch.tensor(rng.normal(size=50)), torch.tensor(rng.integers(0, 9, 50))
    group[group == 4] = 5
    means, counts = group_means(each, group, 9)
    for i in range(9):
        inside = each[group == i]
        assert counts[i] == len(inside)
        assert bool(torch.isnan(means[i])) if i == 4 else means[i].item() == pytest.approx(inside.mean().item())


def gradient_norm(scalar, net):
    found = torch.autograd.grad(scalar, list(net.parameters()), retain_graph=True, allow_unused=True)
    return float(torch.sqrt(sum(g.square().sum() for g in found if g is not None)))


def test_fine_tuning_starts_where_the_limit_has_no_gradient():
    task, net = start("finetune-kl")
    f, g, _ = task.values(net, next(task.batches(0)))
    assert g[0].item() == pytest.approx(-0.1, abs=1e-6)
    assert gradient_norm(g[0], net) < 1e-5 * gradient_norm(f, net)


def test_the_limit_of_fine_tuning_is_worth_reaching():
    """Over all policies the optimum is reference * exp(-cost / eta); eta by bisection for a KL of 0.1."""
    task, net = start("finetune-kl")
    _, reference, cost = (t.double() for t in task.data)
    low, high = 1e-3, 10.0
    for _ in range(60):
        eta = (low * high) ** 0.5
        logs = torch.log_softmax(reference - cost / eta, dim=1)
        kl = (logs.exp() * (logs - reference)).sum(1).mean().item()
        low, high = (eta, high) if kl > 0.1 else (low, eta)
    best = (logs.exp() * cost).sum(1).mean().item()
    at_start = task.values(net, task.data).f.item()
    assert kl == pytest.approx(0.1, rel=1e-6)
    assert best < 0.9 * at_start  # the start is feasible and far from optimal


def losses_of_groups(task):
    x, y, group = (t.double() if t.is_floating_point() else t for t in task.data)
    m, width = len(task.names), x.shape[1]
    counts = torch.bincount(group, minlength=m)

    def losses(z):
        out = x @ z[:width] + z[width:][group]
        each = torch.nn.functional.binary_cross_entropy_with_logits(out, y, reduction="none")
        return each.mean(), torch.zeros(m, dtype=torch.float64).index_add(0, group, each) / counts

    return losses, width + m


def lbfgs(value, z, maxiter):
    def fun(z):
        point = torch.tensor(z, requires_grad=True)
        out = value(point)
        out.backward()
        return out.item(), point.grad.numpy()

    return scipy.optimize.minimize(fun, z, jac=True, method="L-BFGS-B", options={"maxiter": maxiter}).x


def test_the_limits_of_240_groups_are_attainable_and_bind():
    """The largest group loss is convex in the weights; its smooth maximum is minimized by SciPy."""
    task, _ = start("groups-loss")
    losses, n = losses_of_groups(task)
    z = lbfgs(lambda z: losses(z)[0], np.zeros(n), 300)
    assert losses(torch.tensor(z))[1].max() > 1.3 * task.limits[0]  # without limits they are far exceeded
    for width in (0.1, 0.03, 0.01):
        z = lbfgs(lambda z, width=width: width * torch.logsumexp(losses(z)[1] / width, 0), z, 300)
    assert losses(torch.tensor(z))[1].max() < 0.98 * task.limits[0]


@pytest.mark.parametrize("name", ["groups-loss", pytest.param("groups-rate", marks=needs_data)])
def test_at_least_200_groups_most_of_them_absent(name):
    task, net = start(name)
    assert len(task.names) >= 200
    batches, absent = task.batches(0), []
    for _ in range(50):
        absent.append((task.values(net, next(batches)).counts == 0).double().mean().item())
    assert np.mean(absent) > 0.7


@needs_data
@pytest.mark.parametrize("name", ["groups-rate", "saturated"])
def test_low_scores_everywhere_meet_the_limits_on_scores(name):
    task, net = start(name)
    with torch.no_grad():
        net[-1].weight.zero_()
        net[-1].bias.fill_(-3.0)  # sigmoid(-3) = 0.047
    assert bool((task.values(net, task.data).g < 0).all())


@needs_data
def test_a_saturated_start_is_violated_without_a_gradient():
    task, net = start("saturated")
    f, g, _ = task.values(net, next(task.batches(0)))
    assert g[0] > 2 * task.limits[0]
    assert gradient_norm(g[0], net) < 0.01 * gradient_norm(f, net)


def test_the_narrow_limit_is_attainable_and_costs_something():
    """A network of zeros has no defect and no norm. The target's odd part has to be given up."""
    task, net = start("narrow-limit")
    assert bool((task.values(net, task.data).g > 0).any())
    x, y = (t.double() for t in task.data)
    odd = torch.sin(2 * x[:, 0]) * x[:, 3]
    assert (y - odd).var() > 0.3  # an even network has something to learn
    assert odd.square().mean() > 0.15  # what any even network leaves over, at least
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    assert bool((task.values(net, task.data).g < 0).all())


@needs_data
def test_the_old_task_is_met_at_the_start_and_lost_without_the_limit():
    task, net = start("kept-task")
    before = task.values(net, task.data)
    assert -0.1 * task.limits[0] < before.g[0] < 0
    opt, batches = torch.optim.Adam(net.parameters(), lr=3e-3), task.batches(0)
    for _ in range(600):
        opt.zero_grad()
        task.values(net, next(batches)).f.backward()
        opt.step()
    after = task.values(net, task.data)
    assert after.f < 0.2 * before.f
    assert after.g[0] > task.limits[0]
