"""Mistakes and accidents that other optimizers pass over in silence."""

from __future__ import annotations

import contextlib
import copy
import math

import pytest
import torch

import gdpa.torch
from gdpa.torch import NonFiniteWarning
from tests.torch.helpers import KINDS, batch, duals, flat, make, network, same, terms, train


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("named", [False, True])
def test_gradients_that_are_not_finite_skip_the_step_and_are_named(kind, named):
    """One number in one gradient each: nothing changes, and the parameter is named."""
    net = network()
    opt = make(kind, net.named_parameters() if named else net.parameters())
    train(net, opt, 3)
    before, point = duals(opt), flat(net)
    params = dict(net.named_parameters())
    rng = torch.Generator().manual_seed(0)
    for i in range(24):
        j = int(torch.randint(len(params), (1,), generator=rng))
        name = list(params)[j]
        opt.zero_grad()
        opt.lagrangian(*terms(net, batch(50 + i % 7))).backward()
        grad = params[name].grad.view(-1)
        grad[int(torch.randint(len(grad), (1,), generator=rng))] = (math.nan, math.inf, -math.inf)[i % 3]
        shown = name if named else f"parameter {j} of group 0"
        with pytest.warns(NonFiniteWarning, match=f"step skipped: the gradient of {shown}"):
            opt.step()
        assert torch.equal(point, flat(net))
        assert same(before, duals(opt))
    assert opt.skipped == 24
    assert "24 steps were skipped" in str(opt.report())


def test_many_bad_gradients_are_named_in_short():
    params = [torch.nn.Parameter(torch.ones(1)) for _ in range(12)]
    opt = gdpa.torch.GDPA(params, 1)
    opt.lagrangian(sum(p.sum() for p in params), params[0]).backward()
    for p in params:
        p.grad.fill_(math.inf)
    with pytest.warns(NonFiniteWarning, match="and 4 more was not finite"):
        opt.step()


def test_sparse_gradients_that_are_not_finite_skip_the_step_among_dense_ones():
    table, net = torch.nn.Embedding(5, 2, sparse=True), torch.nn.Linear(2, 1)
    params = [*net.named_parameters(), ("table", table.weight)]
    opt = gdpa.torch.constrain(torch.optim.SGD(params, lr=0.1), 1)
    kept = table.weight.detach().clone()
    for bad, name in ((None, ""), (table.weight, "table"), (net.weight, "weight"), (None, "")):
        point = flat(table), flat(net)
        opt.zero_grad()
        out = net(table(torch.tensor([1, 2])))
        opt.lagrangian(out.square().sum(), out[0]).backward()
        if bad is None:
            opt.step()
            continue
        assert bad.grad is not None
        (bad.grad._values() if bad.grad.is_sparse else bad.grad)[0, 1] = math.nan
        with pytest.warns(NonFiniteWarning, match=f"the gradient of {name} was not finite"):
            opt.step()
        assert torch.equal(point[0], flat(table))
        assert torch.equal(point[1], flat(net))
    assert opt.dual_steps == 2
    assert opt.skipped == 2
    assert not torch.equal(table.weight[1], kept[1])


@pytest.mark.parametrize("kind", KINDS)
def test_backward_of_something_else_is_noticed_at_step(kind):
    net = network()
    opt = make(kind, net.parameters())
    train(net, opt, 3)
    before, point = duals(opt), flat(net)
    opt.zero_grad()
    f, g = terms(net, batch(0))
    opt.lagrangian(f, g)
    f.backward()
    with pytest.raises(RuntimeError, match="did not go through the loss that lagrangian returned"):
        opt.step()
    assert same(before, duals(opt))
    assert torch.equal(point, flat(net))
    train(net, opt, 1)  # and a right step afterwards is served


@pytest.mark.parametrize("kind", KINDS)
def test_more_than_the_lagrangian_is_fine(kind):
    net = network()
    opt = make(kind, net.parameters())
    for keep in (False, True):
        opt.zero_grad()
        loss = opt.lagrangian(*terms(net, batch(0))) + 1e-3 * flat_norm(net)
        loss.backward(retain_graph=keep)
        opt.step()
    assert opt.dual_steps == 2


def after_backward(change, net):
    params = list(net.parameters())
    if change == "norm":
        torch.nn.utils.clip_grad_norm_(params, 1e-3)
    elif change == "values":
        torch.nn.utils.clip_grad_value_(params, 1e-4)  # the gradient has another direction then
    elif change == "unscaled":
        torch._foreach_mul_([p.grad for p in params], 2.0**-16)
    elif change == "other loss":
        (100 * flat_norm(net)).backward()


@pytest.mark.parametrize("change", ["norm", "values", "unscaled", "other loss", "saved-tensor hooks", "two optimizers"])
@pytest.mark.parametrize("kind", ["paper", "sgd"])
def test_a_kept_graph_never_hides_which_loss_was_differentiated(kind, change):
    net, other = network(), network()
    opt, second = make(kind, net.parameters()), make(kind, other.parameters())
    train(net, opt, 12)  # the graphs of these steps are freed
    scale = 2.0**16 if change == "unscaled" else 1.0
    hooks = torch.autograd.graph.save_on_cpu() if change == "saved-tensor hooks" else contextlib.nullcontext()
    before, point = duals(opt), flat(net)
    for right in (False, True):
        opt.zero_grad()
        with hooks:
            f, g = terms(net, batch(0))
            loss = opt.lagrangian(f, g)
        if change == "two optimizers":
            second.zero_grad()
            loss = loss + second.lagrangian(*terms(other, batch(0)))
        (scale * (loss if right else f)).backward(retain_graph=True)
        after_backward(change, net)
        if right:
            opt.step()
            if change == "two optimizers":
                second.step()
            continue
        with pytest.raises(RuntimeError, match="did not go through the loss that lagrangian returned"):
            opt.step()
        assert same(before, duals(opt))
        assert torch.equal(point, flat(net))
    assert opt.dual_steps == 13
    assert not torch.equal(point, flat(net))


def flat_norm(net):
    return sum(p.square().sum() for p in net.parameters())


BAD = [
    ("multipliers", lambda t: t * math.nan, "multipliers of 'mean' is nan"),
    ("multipliers", lambda t: t - 7, "multipliers of 'mean' is -"),
    ("multipliers", lambda t: t[:, None], "multipliers must be a tensor of shape"),
    ("dual_steps", lambda n: -7, "dual_steps is -7, which must be a whole number"),
    ("dual_steps", lambda n: 2.5, "dual_steps is 2.5"),
    ("dual_steps", lambda n: "three", "dual_steps is 'three'"),
    ("constraint_order", lambda order: [0, 0, 1], "must be a permutation"),
]
PAPER = [
    ("tau", lambda n: 5.0, r"tau is 5.0, which must be a finite number in \(0, 1\]"),
    ("beta", lambda n: 0.0, "beta is 0.0"),
    ("beta_r", lambda n: math.inf, "beta_r is inf"),
]
OURS = [
    ("dual_rate", lambda n: -1.0, "dual_rate is -1.0"),
    ("ratio", lambda t: t - 1e6, "ratio of 'mean' is -"),
    ("variance", lambda t: t * math.inf, "variance of"),
    ("smoothed", lambda t: t + 100, "smoothed of 'mean' is 1"),
]


@pytest.mark.parametrize(
    ("kind", "key", "damage", "message"),
    [(kind, *row) for kind in ("paper", "adam") for row in BAD + (PAPER if kind == "paper" else OURS)],
)
def test_damaged_states_are_refused_before_anything_changes(kind, key, damage, message):
    net = network()
    opt = make(kind, net.parameters())
    train(net, opt, 12)
    state = copy.deepcopy(opt.state_dict())
    state["param_groups"][0][key] = damage(state["param_groups"][0][key])
    new = make(kind, network().parameters())
    before = duals(new)
    with pytest.raises(ValueError, match=message):
        new.load_state_dict(state)
    assert same(before, duals(new))


def test_multipliers_of_equalities_may_be_negative():
    opt = make("paper", network().parameters())
    state = opt.state_dict()
    state["param_groups"][0]["multipliers"] = torch.tensor([0.0, 1.0, -3.0], dtype=torch.float64)
    opt.load_state_dict(state)
    assert opt.multipliers.tolist() == [0.0, 1.0, -3.0]


def test_a_hard_rate_is_told_about_surrogates():
    net, x = network(), batch(0)
    opt = gdpa.torch.constrain(torch.optim.SGD(net.parameters(), lr=0.1), gdpa.torch.Limits(r=gdpa.torch.at_most(0.2)))
    out = net(x)[:, 0]
    rate = (out > 0).float().mean()
    with pytest.raises(ValueError, match=r"A 0/1 rate has no gradient: .* lagrangian\(f, surrogate, true=rate\)"):
        opt.lagrangian(out.square().mean(), {"r": rate})
    with pytest.raises(
        TypeError,
        match=r"the value of 'r' must be a tensor computed from the parameters, got 0\.\d+; leave out .item\(\)",
    ):
        opt.lagrangian(out.square().mean(), {"r": rate.item()})
    opt.lagrangian(out.square().mean(), {"r": torch.sigmoid(out).mean()}, true={"r": rate}).backward()
    opt.step()
    assert opt.snapshot().rows[0].value == pytest.approx(rate.item())  # the multiplier follows the true rate
