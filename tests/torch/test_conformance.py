"""What PyTorch's own suite asks of an optimizer, asked of both of ours (after torch's common_optimizers)."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import gdpa.torch
from tests.torch.helpers import KINDS, NAMES, batch, duals, flat, make, network, same, terms, train


def both(kind, first, second, steps=8):
    """Train two nets that differ in how the optimizer is built; return their weights."""
    out = []
    for build in (first, second):
        net = network(dtype=torch.float64)
        opt = build(net)
        train(net, opt, steps, dtype=torch.float64)
        out.append((flat(net), duals(opt)))
    return out


@pytest.mark.parametrize("contiguous", [True, False])
def test_foreach_equals_loop(contiguous):
    def build(foreach):
        def inner(net):
            if not contiguous:
                for layer in (net[0], net[2]):
                    layer.weight = torch.nn.Parameter(layer.weight.detach().t().contiguous().t())
            return gdpa.torch.GDPA(net.parameters(), NAMES, lr=0.05, foreach=foreach)

        return inner

    (a, lam_a), (b, lam_b) = both("paper", build(True), build(False))
    assert torch.equal(a, b)
    assert same(lam_a, lam_b)


@pytest.mark.parametrize("kind", KINDS)
def test_goes_in_the_right_direction(kind):
    """A constraint that the start violates shrinks."""
    net, x = network(), batch(0)
    opt = make(kind, net.parameters(), names=["mean"], equalities=[])

    def value():
        return 1 - net(x)[:, 0].mean()

    start = value().item()
    for _ in range(1000):
        opt.zero_grad()
        opt.lagrangian(0.01 * net(x)[:, 1].square().mean(), value()[None]).backward()
        opt.step()
    assert start > 0.5
    assert value().item() < 0.25 * start


@pytest.mark.parametrize("kind", KINDS)
def test_splitting_groups_changes_nothing(kind):
    def split(net):
        return make(kind, [{"params": list(net[0].parameters())}, {"params": list(net[2].parameters())}])

    (a, lam_a), (b, lam_b) = both(kind, lambda net: make(kind, net.parameters()), split)
    assert torch.equal(a, b)
    assert same(lam_a, lam_b)


@pytest.mark.parametrize("kind", KINDS)
def test_groups_have_their_own_learning_rate(kind):
    net = network()
    kept = net[0].weight.clone()
    opt = make(kind, [{"params": list(net[0].parameters()), "lr": 0.0}, {"params": list(net[2].parameters())}])
    moved = net[2].weight.clone()
    train(net, opt, 5)
    assert torch.equal(net[0].weight, kept)
    assert not torch.equal(net[2].weight, moved)


@pytest.mark.parametrize("foreach", [True, False])
def test_tensor_learning_rate(foreach):
    def build(lr):
        return lambda net: gdpa.torch.GDPA(net.parameters(), NAMES, lr=lr, foreach=foreach)

    (a, _), (b, _) = both("paper", build(0.05), build(torch.tensor(0.05, dtype=torch.float64)))
    assert torch.allclose(a, b, rtol=1e-12)


SCHEDULERS = [
    lambda opt: lr_scheduler.StepLR(opt, 2, gamma=0.5),
    lambda opt: lr_scheduler.CosineAnnealingLR(opt, 6),
    lambda opt: lr_scheduler.OneCycleLR(opt, 0.1, total_steps=10, cycle_momentum=False),
    lambda opt: lr_scheduler.LinearLR(opt, total_iters=4),
    lambda opt: lr_scheduler.LambdaLR(opt, lambda e: 0.9**e),
    gdpa.torch.PowerLR,
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_schedulers_drive_the_learning_rate(kind, scheduler):
    net = network()
    opt = make(kind, net.parameters())
    schedule = scheduler(opt)
    rates = []
    for i in range(8):
        rates.append(float(opt.param_groups[0]["lr"]))
        train(net, opt, 1, start=i)
        schedule.step()
    assert len(set(rates)) > 1
    assert torch.isfinite(flat(net)).all()
    copy.deepcopy(opt)  # a scheduler patches step on the instance; copies must not trip over it


@pytest.mark.parametrize("scheduler", [False, True])
def test_plateau_scheduler_and_tensor_lr(scheduler):
    net = network()
    opt = gdpa.torch.GDPA(net.parameters(), NAMES, lr=torch.tensor(0.05), lr_power=0.0)
    plan = lr_scheduler.ReduceLROnPlateau(opt, patience=0) if scheduler else gdpa.torch.PowerLR(opt)
    for i in range(4):
        train(net, opt, 1, start=i)
        plan.step(1.0) if scheduler else plan.step()  # type: ignore[call-arg]
    assert float(opt.param_groups[0]["lr"]) < 0.05


def test_the_papers_step_as_a_scheduler_is_the_built_in_one():
    net, twin = network(dtype=torch.float64), network(dtype=torch.float64)
    opt = gdpa.torch.GDPA(net.parameters(), NAMES, lr=0.05)
    other = gdpa.torch.GDPA(twin.parameters(), NAMES, lr=0.05, lr_power=0.0)
    schedule = gdpa.torch.PowerLR(other)
    for i in range(10):
        train(net, opt, 1, start=i, dtype=torch.float64)
        train(twin, other, 1, start=i, dtype=torch.float64)
        schedule.step()
    assert torch.equal(flat(net), flat(twin))


def test_power_lr_refuses_nonsense():
    with pytest.raises(ValueError, match="power must lie strictly between -inf and inf, got nan"):
        gdpa.torch.PowerLR(torch.optim.SGD(network().parameters(), lr=0.1), power=float("nan"))


@pytest.mark.parametrize("kind", KINDS)
def test_none_empty_and_zero_gradients_do_not_disrupt(kind):
    net = network()
    unused, empty = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(0, 3))
    opt = make(kind, [*net.parameters(), unused, empty])
    train(net, opt, 4)
    assert torch.equal(unused, torch.ones(3))
    point = flat(net)
    opt.zero_grad()
    opt.step()  # no gradients at all
    assert torch.equal(point, flat(net))
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    opt.step()
    if kind == "paper":
        assert torch.equal(point, flat(net))


@pytest.mark.parametrize("kind", KINDS)
def test_step_hooks_fire_in_order_and_see_the_optimizer(kind):
    net = network()
    opt = make(kind, net.parameters())
    train(net, opt, 2)
    seen = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: seen.append("global pre")),
        register_optimizer_step_post_hook(lambda *_: seen.append("global post")),
        opt.register_step_pre_hook(lambda o, *_: seen.append(("pre", o is opt))),
        opt.register_step_post_hook(lambda o, *_: seen.append(("post", o is opt))),
    ]
    try:
        train(net, opt, 1)
    finally:
        for handle in handles:
            handle.remove()
    assert seen == ["global pre", ("pre", True), ("post", True), "global post"]
    train(net, opt, 1)
    assert len(seen) == 4


@pytest.mark.parametrize(("kind", "name"), [("paper", "GDPA"), ("sgd", "SGD")])
def test_a_profiler_finds_the_labels_it_knows(kind, name):
    net = network()
    opt = make(kind, net.parameters())
    train(net, opt, 2)
    with torch.autograd.profiler.profile() as profiler:
        train(net, opt, 1)
    labels = {event.key for event in profiler.key_averages()}
    assert f"Optimizer.step#{name}.step" in labels
    assert f"Optimizer.zero_grad#{type(opt).__name__}.zero_grad" in labels


@pytest.mark.parametrize("kind", ["paper", "sgd"])
def test_a_step_leaves_gradients_on_and_a_kept_graph_alone(kind):
    x = torch.nn.Parameter(torch.tensor([0.5, 2.0]))
    opt = make(kind, [x], names=2, equalities=())
    if kind != "paper":
        opt.param_groups[0]["ratio"] = torch.ones(2, dtype=torch.float64)
    kept, wanted = [], []
    for i in range(4):
        opt.zero_grad()
        loss = opt.lagrangian(x.sum(), x - 0.1 * i)  # linear: the graph stays valid when x moves
        loss.backward(retain_graph=True)
        kept.append(loss)
        wanted.append(x.grad.clone())
        opt.step()
        assert torch.is_grad_enabled()
    for loss, gradient in zip(kept, wanted, strict=True):
        assert torch.equal(torch.autograd.grad(loss, x)[0], gradient)
    assert not torch.equal(wanted[-1], wanted[-2])


@pytest.mark.parametrize("kind", KINDS)
def test_state_dict_hooks(kind):
    opt = make(kind, network().parameters())
    seen = []
    opt.register_state_dict_pre_hook(lambda o: o.state.__setitem__("test", 1))
    opt.register_state_dict_post_hook(lambda o, s: seen.append("saved"))
    opt.register_load_state_dict_pre_hook(lambda o, s: seen.append("loading"))
    opt.register_load_state_dict_post_hook(lambda o: seen.append("loaded"))
    state = opt.state_dict()
    assert state["state"]["test"] == 1  # a string key in the state must not break anything
    opt.load_state_dict(state)
    assert seen == ["saved", "loading", "loaded"]


@pytest.mark.parametrize("kind", KINDS)
def test_state_dict_is_deterministic_and_printable(kind):
    runs = []
    for _ in range(2):
        net = network()
        opt = make(kind, net.parameters())
        train(net, opt, 5)
        runs.append(opt.state_dict())
    assert str(runs[0]) == str(runs[1])
    assert type(opt).__name__ in repr(opt)
    assert "multipliers" in repr(opt)


@pytest.mark.parametrize("kind", KINDS)
def test_named_parameters(kind):
    net = network()
    opt = make(kind, net.named_parameters())
    assert opt.state_dict()["param_groups"][0]["param_names"] == [n for n, _ in net.named_parameters()]
    train(net, opt, 3)
    plain = make(kind, network().parameters())
    plain.load_state_dict(opt.state_dict())
    assert torch.equal(plain.multipliers, opt.multipliers)


def test_add_param_group_on_the_way():
    net = network()
    opt = gdpa.torch.GDPA(net[0].parameters(), NAMES, lr=0.05)
    train(net, opt, 2)
    kept = net[2].weight.clone()
    opt.add_param_group({"params": list(net[2].parameters()), "lr": 0.1})
    assert opt.param_groups[1]["lr_power"] == opt.param_groups[0]["lr_power"]
    opt.zero_grad()
    train(net, opt, 2)
    assert not torch.equal(net[2].weight, kept)
    with pytest.raises(ValueError, match="lr must be a finite number of at least 0"):
        opt.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": -1.0})


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_clipping_between_backward_and_step(kind):
    net = network()
    opt = make(kind, net.parameters())
    train(net, opt, 1)
    first = duals(opt).get("slope_f")
    train(net, opt, 2)
    point = flat(net)
    opt.zero_grad()
    opt.lagrangian(*terms(net, batch(3))).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-6)
    opt.step()
    if kind == "paper":
        assert (flat(net) - point).norm() <= 1.01 * 1e-6 * 0.05  # the clipped norm times the learning rate
    assert opt.dual_steps == 4
    if first is not None:  # calibration measures by itself: clipping does not reach it
        clipped = network()
        other = make(kind, clipped.parameters())
        other.lagrangian(*terms(clipped, batch(0))).backward()
        torch.nn.utils.clip_grad_norm_(clipped.parameters(), 1e-6)
        other.step()
        assert torch.equal(other.param_groups[0]["slope_f"], first)
