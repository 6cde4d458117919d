"""The minibatch rule: by hand, its units, missing groups, calibration, the base optimizer it wraps."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gdpa.torch
from gdpa.sets import Box
from tests.torch.helpers import NAMES, batch, flat, make, network, terms
from tests.torch.helpers import train as train_net


def make_data(seed=0, n=512, d=6):
    rng = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=rng)
    y = (X[:, 0] + 0.7 * X[:, 1] + 0.5 * torch.randn(n, generator=rng) > 0).float()
    group = (X[:, 1] + 0.5 * torch.randn(n, generator=rng) > 0).float()
    return X, y, group


def losses(net, X, y, group):
    out = net(X).squeeze(-1)
    score = torch.sigmoid(out)
    f = torch.nn.functional.binary_cross_entropy_with_logits(out, y)
    gap = (score * group).sum() / group.sum() - (score * (1 - group)).sum() / (1 - group).sum()
    return f, torch.stack([gap - 0.05, -gap - 0.05])


def train(steps=800, f_scale=1.0, g_scale=(1.0, 1.0), seed=0, **kwargs):
    X, y, group = make_data()
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
    opt = gdpa.torch.GDPA(torch.optim.Adam(net.parameters(), lr=3e-3), constraints=["upper", "lower"], **kwargs)
    rng = torch.Generator().manual_seed(seed)
    scale = torch.tensor(g_scale, dtype=torch.float64)
    for _ in range(steps):
        batch = torch.randint(len(X), (64,), generator=rng)
        opt.zero_grad()
        f, g = losses(net, X[batch].double(), y[batch].double(), group[batch].double())
        opt.lagrangian(f * f_scale, g * scale).backward()
        opt.step()
    return net, opt, losses(net, X.double(), y.double(), group.double())


def test_learns_within_the_limit():
    _, opt, (f, g) = train()
    free = train(g_scale=(1.0, 1.0), dual_rate=1e-9)[2]
    assert free[1].max() > 0.1  # the limit matters
    assert g.max() < 0.03
    assert f < free[0] + 0.2
    assert opt.multipliers[0] > 0


@pytest.mark.parametrize(
    ("f_scale", "g_scale"), [(100.0, (1, 1)), (0.01, (1, 1)), (1.0, (100, 0.01)), (0.01, (0.01, 100))]
)
def test_units_of_f_and_g_do_not_matter(f_scale, g_scale):
    reference = train(steps=300)[0]
    # Adam's epsilon is the one absolute number left; it acts through gradients scaled by f_scale.
    scaled, opt, _ = train(steps=300, f_scale=f_scale, g_scale=g_scale)
    tolerance = 1e-4 if f_scale < 1 else 1e-6
    for a, b in zip(reference.parameters(), scaled.parameters(), strict=True):
        assert torch.allclose(a, b, atol=tolerance, rtol=tolerance)
    assert opt.dual_steps == 300 - 8


def test_the_rule_by_hand():
    # f = 2 x, g = x: gradient norms 2 and 1, so rho = 2; |g| = 4 at the start, so G = 4; beta = .1 * 2 / 4 = .05.
    x = torch.nn.Parameter(torch.tensor([4.0], dtype=torch.float64))
    opt = gdpa.torch.MinibatchGDPA(torch.optim.SGD([x], lr=0.5), 1, calibration=2)
    for _ in range(2):
        opt.zero_grad()
        opt.lagrangian(2 * x.sum(), x).backward()
        opt.step()
        assert x.item() == 4.0  # calibration trains nothing
    assert opt.dual_steps == 0
    opt.zero_grad()
    opt.lagrangian(2 * x.sum(), x).backward()
    # lambda = .1 * .05 * 4 = .02, w = .02 + .05 * 4 = .22, gradient 2.22
    assert x.grad.item() == pytest.approx(2.22, rel=1e-12)
    assert opt.multipliers.item() == 0.0  # staged, not committed
    opt.step()
    assert opt.multipliers.item() == pytest.approx(0.02, rel=1e-12)
    assert x.item() == pytest.approx(4 - 0.5 * 2.22, rel=1e-12)


def test_calibration_costs_its_batches_and_nothing_after():
    backwards = []

    class Count(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            backwards[-1] += 1
            return grad

    x = torch.nn.Parameter(torch.ones(3))
    opt = gdpa.torch.GDPA(torch.optim.SGD([x], lr=0.1), 2, calibration=3)
    for _ in range(6):
        backwards.append(0)
        y = Count.apply(x)
        opt.zero_grad()
        opt.lagrangian(y.square().sum(), y[:2]).backward()
        opt.step()
    assert backwards == [4, 4, 4, 1, 1, 1]  # m + 1 extra while calibrating


def test_many_constraints_are_calibrated_by_random_sums():
    torch.manual_seed(0)
    m, d = 300, 50
    A = torch.randn(m, d) / d**0.5
    for unit in (1.0, 100.0):
        x = torch.nn.Parameter(torch.zeros(d))
        opt = gdpa.torch.GDPA(torch.optim.SGD([x], lr=0.01), m)
        g = (A @ x - 1) * unit
        torch.manual_seed(1)
        opt.calibrate(((x - 1).square().sum() / 2, g) for _ in range(8))
        ratio = opt.param_groups[0]["ratio"]
        # ||grad f|| = sqrt(50), ||grad g_i|| is about unit: one common ratio is right within a factor of two.
        truth = 50**0.5 / (A.norm(dim=1) * unit)
        assert ((ratio / truth - 1).abs() < 0.5).all()


class TestMissingGroups:
    def run(self, mode, batches=30):
        """One constraint is absent from every other batch."""
        x = torch.nn.Parameter(torch.tensor([1.0, 1.0], dtype=torch.float64))
        nan = "absent" if mode == "nan" else "skip"
        opt = gdpa.torch.GDPA(torch.optim.SGD([x], lr=0.01), ["a", "b"], nan=nan, calibration=2)
        trail = []
        for i in range(batches):
            absent = i % 2 == 1
            opt.zero_grad()
            a = x[0] if not absent else (x[:0].mean() if mode != "mask" else x[0] * 0 + 123.0)
            counts = None if mode == "nan" else {"a": 0 if absent else 5, "b": 5}
            opt.lagrangian(x.square().sum(), {"a": a, "b": x[1]}, counts=counts).backward()
            trail.append((absent, opt.multipliers.clone(), x.grad.clone(), x.detach().clone()))
            opt.step()
            trail[-1] += (opt.multipliers.clone(),)
        return trail

    @pytest.mark.parametrize("mode", ["counts", "nan", "mask"])
    def test_absent_is_neither_satisfied_nor_violated(self, mode):
        trail = self.run(mode)
        for absent, before, grad, x, after in trail[2:]:
            assert torch.isfinite(grad).all()
            if absent:
                assert after[0] == before[0]
                assert grad[0] == 2 * x[0]  # f alone
            else:
                assert after[0] > before[0]
            assert after[1] > before[1]

    def test_the_ways_to_say_so_agree(self):
        reference = self.run("counts")
        for mode in ("nan", "mask"):
            for a, b in zip(reference, self.run(mode), strict=True):
                assert all(torch.allclose(u, v, rtol=1e-12) for u, v in zip(a[1:], b[1:], strict=True))

    def test_a_constraint_that_never_appears_is_an_error(self):
        x = torch.nn.Parameter(torch.ones(2))
        opt = gdpa.torch.GDPA(torch.optim.SGD([x], lr=0.01), ["a", "b"])

        def loop():
            for _ in range(100):
                opt.zero_grad()
                opt.lagrangian(x.sum(), x, counts=[1, 0]).backward()
                opt.step()

        with pytest.raises(RuntimeError, match=r"never saw the constraints \['b'\] in 64 batches"):
            loop()


class TestBase:
    def test_groups_and_state_are_one(self):
        net = torch.nn.Linear(2, 2)
        base = torch.optim.AdamW(net.parameters(), lr=0.1)
        opt = gdpa.torch.GDPA(base, 1)
        assert isinstance(opt, gdpa.torch.MinibatchGDPA)
        assert isinstance(opt, torch.optim.Optimizer)
        assert opt.param_groups is base.param_groups
        assert opt.state is base.state
        opt.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))], "lr": 0.5, "domain": Box(0.0, 1.0)})
        assert len(base.param_groups) == 2
        assert base.param_groups[1]["lr"] == 0.5
        assert "domain" not in base.param_groups[1]

    @pytest.mark.parametrize(
        "name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adadelta", "Adamax"]
    )
    def test_a_step_with_nothing_staged_is_the_base_step(self, name):
        x, y = (torch.nn.Parameter(torch.arange(1.0, 4.0)) for _ in range(2))
        make = getattr(torch.optim, name)
        opt, plain = gdpa.torch.GDPA(make([x], lr=0.1), 2), make([y], lr=0.1)
        for _ in range(3):
            for p, o in ((x, opt), (y, plain)):
                o.zero_grad()
                p.square().sum().backward()
                o.step()
        assert torch.equal(x, y)
        assert opt.dual_steps == 0

    def test_projection_after_the_base_step(self):
        x = torch.nn.Parameter(torch.tensor([0.5, 0.5]))
        base = torch.optim.SGD([{"params": [x], "domain": Box(0.0, 1.0)}], lr=1.0)
        opt = gdpa.torch.GDPA(base, 1, calibration=1)
        for _ in range(3):
            opt.zero_grad()
            opt.lagrangian(x[0] - 5 * x[1], x[:1]).backward()
            opt.step()
        assert x.tolist() == [0.0, 1.0]

    def test_refuses_what_it_cannot_wrap(self):
        x = torch.nn.Parameter(torch.zeros(2))
        with pytest.raises(TypeError, match="LBFGS evaluates its closure several times"):
            gdpa.torch.GDPA(torch.optim.LBFGS([x]), 1)
        with pytest.raises(TypeError, match="has constraints already"):
            gdpa.torch.GDPA(gdpa.torch.GDPA([x], 1), 1)
        with pytest.raises(TypeError, match="base must be a torch optimizer"):
            gdpa.torch.MinibatchGDPA([x], 1)

    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"dual_rate": 0.0}, "dual_rate must be a positive"),
            ({"dual_rate": float("inf")}, "dual_rate must be a positive"),
            ({"damping": 0.0}, r"damping must lie in \(0, 1\]"),
            ({"damping": 1.5}, r"damping must lie in \(0, 1\]"),
            ({"calibration": 0}, "calibration must be a positive number"),
        ],
    )
    def test_bad_settings(self, kwargs, message):
        x = torch.nn.Parameter(torch.zeros(2))
        with pytest.raises(ValueError, match=message):
            gdpa.torch.GDPA(torch.optim.SGD([x], lr=0.1), 1, **kwargs)


def test_a_vanishing_gradient_at_the_start_is_no_scale():
    x = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    opt = gdpa.torch.GDPA(torch.optim.SGD([x], lr=0.1), 2, calibration=2)
    opt.calibrate(((x + 1).square().sum(), torch.stack([x[0] ** 2 - 0.5, x[1] - 2])) for _ in range(2))
    ratio, size = opt.param_groups[0]["ratio"], opt.param_groups[0]["size"]
    # f = 2, |g| = (.5, 2): no gradient of g_0, so its ratio is that of the values, 2 / .5.
    assert ratio[0].item() == pytest.approx(4.0)
    assert ratio[1].item() == pytest.approx(8**0.5)
    assert size.tolist() == pytest.approx([0.5, 2.0])


def test_weight_average_follows_committed_steps():
    x = torch.nn.Linear(1, 1, bias=False)
    opt = gdpa.torch.GDPA(torch.optim.SGD(x.parameters(), lr=0.1), 1, calibration=2)
    average = gdpa.torch.average_weights(x, opt, decay=0.5)
    start = x.weight.item()
    expected = start
    for i in range(6):
        opt.zero_grad()
        opt.lagrangian(x.weight.square().sum(), x.weight.flatten() - 10).backward()
        opt.step()
        if i == 2:
            expected = x.weight.item()
        elif i > 2:
            expected = 0.5 * expected + 0.5 * x.weight.item()
    assert average.module.weight.item() == pytest.approx(expected, rel=1e-6)
    assert expected != start


def test_capturable_keeps_to_tensors_and_to_the_same_numbers():
    results = []
    for capturable in (False, True):
        net = network(dtype=torch.float64)
        opt = make("sgd", net.parameters(), capturable=capturable)
        opt.calibrate(terms(net, batch(i, dtype=torch.float64)) for i in range(2))
        step = opt.param_groups[0]["dual_steps"]
        address = opt.param_groups[0]["multipliers"]
        train_net(net, opt, 40, dtype=torch.float64)
        results.append((flat(net), opt.multipliers))
        if capturable:
            assert opt.param_groups[0]["multipliers"] is address  # updated in place, as a captured graph needs
            assert step.item() == 40
    assert torch.allclose(results[0][0], results[1][0], rtol=1e-10)
    assert torch.allclose(results[0][1], results[1][1], rtol=1e-10)


@pytest.mark.parametrize("fused", [True, False])
def test_capturable_skips_what_is_not_finite(fused):
    net = network()
    opt = gdpa.torch.GDPA(
        torch.optim.AdamW(net.parameters(), lr=0.01, fused=fused), NAMES, calibration=2, capturable=True
    )
    f, g = terms(net, batch(0))
    opt.lagrangian(f, {**g, "norm": g["norm"] * math.nan}).backward()
    with pytest.warns(gdpa.torch.NonFiniteWarning, match="norm"):  # calibration is on the host
        opt.step()
    train_net(net, opt, 6)
    state = {key: value.clone() for key, value in opt.state[net[0].weight].items()}
    point, multipliers, steps = flat(net), opt.multipliers, opt.dual_steps
    opt.zero_grad()
    f, g = terms(net, batch(9))
    opt.lagrangian(f * math.inf, g).backward()
    opt.step()
    assert torch.equal(opt.multipliers, multipliers)
    assert opt.dual_steps == steps == 4
    if fused:
        assert torch.equal(flat(net), point)
        assert all(torch.equal(opt.state[net[0].weight][key], value) for key, value in state.items())
    assert torch.isfinite(flat(net)).all()
    train_net(net, opt, 1)
    assert not torch.equal(flat(net), point)
    assert opt.dual_steps == 5


@settings(max_examples=25)
@given(
    g=st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=12),
    lam=st.floats(0, 2, width=32),
    seed=st.integers(0, 1000),
)
def test_few_and_many_constraints_follow_one_rule(g, lam, seed):
    """Number by number or as a vector, masked by nothing: the same multipliers and weights; permuting permutes."""
    m = len(g)
    values = torch.tensor(g, dtype=torch.float64)
    order = torch.randperm(m, generator=torch.Generator().manual_seed(seed))
    for make_one in (
        lambda **kw: gdpa.torch.GDPA([torch.nn.Parameter(torch.zeros(1))], m, **kw),
        lambda **kw: gdpa.torch.GDPA(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1), m, **kw),
    ):
        opt = make_one()
        slot = opt.param_groups[0]
        slot.update(multipliers=torch.full((m,), lam, dtype=torch.float64), dual_steps=25)
        if "gate" in slot:
            slot.update(gate=values < 1, beta_r=0.7)
        else:
            slot.update(ratio=torch.full((m,), 0.5).double(), size=torch.ones(m).double(), calibrated=True)
        each, w_each = opt._advance_each(values.tolist())
        whole, w = opt._advance(values.numpy(), None)
        assert w_each == w.tolist()
        assert each["multipliers"] == whole["multipliers"].tolist()
        assert (w >= 0).all()
        with_equality = make_one(equalities=[m - 1])
        with_equality.param_groups[0].update({k: v for k, v in slot.items() if k != "params"})
        each, w_each = with_equality._advance_each(values.tolist())
        signed, w_signed = with_equality._advance(values.numpy(), None)
        assert w_each == w_signed.tolist()
        assert each["multipliers"] == signed["multipliers"].tolist()
        assert (whole["multipliers"] >= 0).all()
        if "gate" in slot:
            slot["gate"] = slot["gate"][order]
        permuted, w_permuted = opt._advance(values[order].numpy(), None)
        assert torch.equal(torch.from_numpy(w_permuted), torch.from_numpy(w)[order])
        assert torch.equal(torch.from_numpy(permuted["multipliers"]), torch.from_numpy(whole["multipliers"])[order])
