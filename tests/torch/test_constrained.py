"""Constrained optimizers: by hand, units, missing groups, calibration, the base optimizer underneath."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch

import gdpa.torch
from gdpa import Box
from gdpa.torch import calibration
from gdpa.torch.rules import Feedback
from tests.torch.helpers import NAMES, advance_each, batch, flat, make, network, terms
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
    # Adam's epsilon is an absolute number: it is made small enough not to count.
    base = torch.optim.Adam(net.parameters(), lr=3e-3, eps=1e-16)
    opt = gdpa.torch.constrain(base, constraints=["upper", "lower"], **kwargs)
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


@pytest.mark.parametrize(("f_scale", "g_scale"), [(1e4, (1, 1)), (0.01, (1e4, 1e-4))])
def test_units_of_f_and_g_do_not_matter(f_scale, g_scale):
    reference = train(steps=300)[0]
    scaled, opt, _ = train(steps=300, f_scale=f_scale, g_scale=g_scale)
    tolerance = 1e-6
    for a, b in zip(reference.parameters(), scaled.parameters(), strict=True):
        assert torch.allclose(a, b, atol=tolerance, rtol=tolerance)
    assert opt.dual_steps == 300


def test_a_run_by_hand():
    """f = 2 x, g = x - 1 with plain gradient steps: calibration, lagged weights, commit with the step."""
    x = torch.nn.Parameter(torch.tensor([4.0], dtype=torch.float64))
    opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.01), gdpa.torch.Limits(x=gdpa.torch.at_most(1.0)))
    rule = Feedback()
    dual: dict[str, Any] = {key: [float(v.start)] for key, v in Feedback.vectors.items()}
    dual |= {"dual_steps": 0, "dual_rate": 1.0, "ratio": [0.0], "limit": [1.0]}
    position = 4.0
    for i in range(20):
        opt.zero_grad()
        opt.lagrangian(2 * x.sum(), {"x": x.sum()}).backward()
        updates, (w,) = advance_each(rule, dual, [position - 1], None, 1)
        assert x.grad.item() == pytest.approx(2 + w, rel=1e-12)
        assert opt.multipliers.item() == pytest.approx(dual["multipliers"][0], rel=1e-12)  # staged, not committed
        opt.step()
        dual |= updates
        if i == calibration.BATCHES - 1:
            dual["ratio"] = [2.0]  # gradient norms 2 and 1
        position -= 0.01 * (2 + w)
        assert x.item() == pytest.approx(position, rel=1e-12)
        assert opt.multipliers.item() == pytest.approx(dual["multipliers"][0], rel=1e-12)
    assert opt.param_groups[0]["ratio"].item() == 2.0
    assert opt.multipliers.item() > 0


class Count(torch.autograd.Function):
    """The identity; ``backwards[-1]`` counts the passes through it."""

    backwards: ClassVar[list[int]] = []

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        Count.backwards[-1] += 1
        return grad


def _refuse(*_):
    raise RuntimeError("donated buffers")


class TestCalibration:
    def test_costs_one_pass_for_f_and_one_for_each_violated_constraint(self):
        x = torch.nn.Parameter(torch.ones(3))
        opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=1e-3), 3, equalities=[2])
        Count.backwards.clear()
        for _ in range(10):
            Count.backwards.append(0)
            y = Count.apply(x)
            opt.zero_grad()
            opt.lagrangian(y.square().sum(), torch.stack([y[0], y[1] - 5, y[2] - 2])).backward()
            opt.step()
        # the first is violated, the second is not, the third is an equality
        assert Count.backwards == [4] * 8 + [1] * 2
        assert opt.param_groups[0]["ratio"].tolist()[1] == 0
        assert opt.param_groups[0]["measured"].tolist() == [8, 0, 8]

    def test_training_goes_on_meanwhile(self):
        x = torch.nn.Parameter(torch.ones(1))
        opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.1), 1)
        opt.lagrangian(x.sum(), x).backward()
        opt.step()
        assert x.item() == pytest.approx(0.9)
        assert opt.dual_steps == 1

    def test_a_vanishing_gradient_is_not_measured(self):
        """KL to a reference model: 0 with gradient 0 at the start, so it holds and is not looked at."""
        x = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
        opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.05), 2)
        for _ in range(60):
            opt.zero_grad()
            still = x[0] * 0 + 1.0  # violated, but nothing moves it
            opt.lagrangian((x - 1).square().sum(), torch.stack([x @ x - 0.5, still])).backward()
            opt.step()
        ratio = opt.param_groups[0]["ratio"]
        # measured just above x = (.5, .5): |grad f| = 2 sqrt(2) (1 - t), |grad g| = 2 sqrt(2) t, for t from .5 up
        assert 0.2 < ratio[0].item() <= 1.0
        assert ratio[1].item() == 0
        assert torch.isfinite(x).all()

    @pytest.mark.parametrize("m", [2, 40])
    def test_ratios_are_measured_again(self, m):
        """The gradients of g are small at first, as those of a saturated network, and grow."""
        x = torch.nn.Parameter(torch.ones(m, dtype=torch.float64))
        opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=1e-9), m, sizes=[1.0] * m)
        Count.backwards.clear()
        ratios, multipliers = [], []
        for i in range(140):
            Count.backwards.append(0)
            y = Count.apply(x)
            opt.zero_grad()
            slope = 1e-3 if i < 60 else 1.0 if i < 100 else 1e-6
            opt.lagrangian(2 * y.sum() / m**0.5, slope * (y - 1) + 1).backward()
            opt.step()
            ratios.append(opt.param_groups[0]["ratio"].tolist())
            multipliers.append(opt.multipliers.tolist())
        assert ratios[66] == pytest.approx([2000.0] * m)
        assert ratios[67] == pytest.approx([2.0] * m)  # over steps 64 to 67
        assert ratios[131] == pytest.approx([4.0] * m)  # 2 million is cut: a ratio at most doubles
        assert multipliers[68][0] == pytest.approx(1e-3 * multipliers[67][0], rel=0.02)
        extra = {i: n for i, n in enumerate(Count.backwards[60:], 60) if n > 1}
        assert extra == dict.fromkeys([*range(64, 68), *range(128, 132)], 2 + min(m, calibration.MOST_AGAIN))

    def test_an_absent_group_or_one_that_holds_is_not_measured_again(self):
        x = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=1e-9), 3, sizes=[1.0] * 3)
        for i in range(70):
            opt.zero_grad()
            slope = 1.0 if i < 60 else 10.0
            g = torch.stack([slope * x[0], slope * (x[1] - 1) + (1 if i < 8 else -9), slope * x[2]])
            opt.lagrangian(x.sum(), g, counts=[1, 1, 1 if i < 8 else 0]).backward()
            opt.step()
        first, second, third = opt.param_groups[0]["ratio"].tolist()
        assert first == pytest.approx(3**0.5 / 10)
        assert second == third == pytest.approx(3**0.5)

    def test_a_graph_that_allows_one_pass_keeps_its_ratios(self, monkeypatch, caplog):
        x = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=1e-9), 1)
        for i in range(70):
            if i == 60:
                monkeypatch.setattr(calibration, "squared_slopes", _refuse)
            opt.zero_grad()
            opt.lagrangian(x.sum(), x).backward()
            opt.step()
        assert opt.param_groups[0]["ratio"].item() == 1.0
        assert "gradient ratios stay as they are: donated buffers" in caplog.text

    def test_many_constraints_share_the_median(self):
        torch.manual_seed(0)
        m, d = 300, 50
        A = torch.randn(m, d, dtype=torch.float64) / d**0.5
        ratios = []
        for unit in (1.0, 100.0):
            x = torch.nn.Parameter(torch.ones(d, dtype=torch.float64))
            opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=1e-9), m)
            Count.backwards.clear()
            for _ in range(40):
                Count.backwards.append(0)
                y = Count.apply(x)
                opt.zero_grad()
                opt.lagrangian((y - 2).square().sum() / 2, (A @ y + 4) * unit).backward()
                opt.step()
            ratios.append(opt.param_groups[0]["ratio"] * unit)
            assert sum(Count.backwards) == 40 + 16 + calibration.MOST_IN_ALL
            # ||grad f|| = sqrt(50), ||grad g_i|| is about unit, g_i is 1 to 7 unit: the median over it is near
            truth = 50**0.5 / A.norm(dim=1)
            off = (ratios[-1] / truth).log().abs()
            assert off.median() < 0.3
            assert off.max() < 1.8
        assert torch.allclose(ratios[0], ratios[1], rtol=1e-9)

    def test_before_training(self):
        x = torch.nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))
        opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.1), 2)
        opt.calibrate((x.square().sum() / 2, torch.stack([x[0] - 9, 2 * x[1]])) for _ in range(3))
        assert opt.param_groups[0]["ratio"].tolist() == pytest.approx([5.0, 2.5])  # also of what holds
        assert opt.dual_steps == 0
        with pytest.raises(RuntimeError, match="'nupi' has nothing to calibrate"):
            gdpa.torch.constrain(torch.optim.SGD([x], lr=0.1), 2, rule="nupi").calibrate([])


class TestMissingGroups:
    def run(self, mode, batches=30):
        """One constraint is absent from every other batch."""
        x = torch.nn.Parameter(torch.tensor([1.0, 1.0], dtype=torch.float64))
        nan = "absent" if mode == "nan" else "skip"
        opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.01), ["a", "b"], nan=nan)
        opt.param_groups[0]["ratio"] = torch.ones(2, dtype=torch.float64)
        trail = []
        for i in range(batches):
            absent = i % 2 == 1
            opt.zero_grad()
            a = x[0] if not absent else (x[:0].mean() if mode != "mask" else x[0] * 0 + 123.0)
            counts = None if mode == "nan" else {"a": 0 if absent else 5, "b": 5}
            opt.lagrangian(x.square().sum(), {"a": a, "b": x[1]}, counts=counts).backward()
            trail.append((absent, opt.multipliers.clone(), x.grad.clone(), x.detach().clone()))
            opt.step()
            trail[-1] += (opt.multipliers.clone(),)  # type: ignore[assignment]
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

    def test_an_empty_group_may_be_a_division_by_zero(self):
        """0 / 0 has no gradient to pass on; given by name it leaves the graph."""
        x = torch.nn.Parameter(torch.ones(2))
        opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.01), ["a", "b"], nan="absent")
        member = torch.zeros(2)
        opt.lagrangian(x.square().sum(), {"a": (x * member).sum() / member.sum(), "b": x[1]}).backward()
        assert torch.isfinite(x.grad).all()
        opt.step()
        assert opt.dual_steps == 1

    def test_a_constraint_that_never_appears_waits(self):
        x = torch.nn.Parameter(torch.ones(2))
        opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.01), ["a", "b"])
        for _ in range(100):
            opt.zero_grad()
            opt.lagrangian(x.sum(), x, counts=[1, 0]).backward()
            opt.step()
        assert opt.multipliers[0] > 0
        assert opt.multipliers[1] == 0
        assert opt.report()["b"].absent

    @pytest.mark.parametrize("m", [4, 40])
    def test_few_and_many_constraints_with_few_present(self, m):
        """Number by number, gathered, or masked as a vector: the absent ones stand still."""
        x = torch.nn.Parameter(torch.linspace(1, 2, m, dtype=torch.float64))
        opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.01), m)
        opt.param_groups[0]["ratio"] = torch.ones(m, dtype=torch.float64)
        counts = torch.zeros(m)
        counts[1] = 3
        for _ in range(3):
            opt.zero_grad()
            opt.lagrangian(0.0, torch.where(counts > 0, x, torch.nan), counts=counts).backward()
            opt.step()
        assert (opt.multipliers > 0).tolist() == (counts > 0).tolist()
        assert (x.grad != 0).tolist() == (counts > 0).tolist()
        assert opt.param_groups[0]["seen"].tolist() == [3.0 if c else 0.0 for c in counts]


class TestBase:
    def test_groups_and_state_are_one(self):
        net = torch.nn.Linear(2, 2)
        base = torch.optim.AdamW(net.parameters(), lr=0.1)
        opt = gdpa.torch.constrain(base, 1)
        assert isinstance(opt, gdpa.torch.ConstrainedOptimizer)
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
        opt, plain = gdpa.torch.constrain(make([x], lr=0.1), 2), make([y], lr=0.1)
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
        opt = gdpa.torch.constrain(base, 1)
        for _ in range(3):
            opt.zero_grad()
            opt.lagrangian(x[0] - 5 * x[1], x[:1]).backward()
            opt.step()
        assert x.tolist() == [0.0, 1.0]

    def test_refuses_what_it_cannot_wrap(self):
        x = torch.nn.Parameter(torch.zeros(2))
        with pytest.raises(TypeError, match="LBFGS evaluates its closure several times"):
            gdpa.torch.constrain(torch.optim.LBFGS([x]), 1)
        with pytest.raises(TypeError, match="has constraints already"):
            gdpa.torch.constrain(gdpa.torch.GDPA([x], 1), 1)
        with pytest.raises(TypeError, match="optimizer must be a torch optimizer"):
            gdpa.torch.constrain([x], 1)
        with pytest.raises(TypeError, match=r"GDPA is the paper's method.*use|gdpa.torch.constrain\(optimizer"):
            gdpa.torch.GDPA(torch.optim.SGD([x], lr=0.1), 1)
        with pytest.raises(TypeError, match=r"got a Linear; pass model.parameters\(\)"):
            gdpa.torch.GDPA(torch.nn.Linear(2, 1), 1)

    def test_bad_settings(self):
        x = torch.nn.Parameter(torch.zeros(2))
        base = torch.optim.SGD([x], lr=0.1)
        with pytest.raises(ValueError, match="dual_rate must be a positive"):
            gdpa.torch.constrain(base, 1, 0.0)
        with pytest.raises(ValueError, match="average=True cannot be combined with capturable=True"):
            gdpa.torch.constrain(base, 1, average=True, capturable=True)
        with pytest.raises(ValueError, match='"spbm" has no equalities'):
            gdpa.torch.constrain(base, 1, rule="spbm", equalities=[0])


def test_capturable_keeps_to_tensors_and_to_the_same_numbers():
    results = []
    for capturable in (False, True):
        net = network(dtype=torch.float64)
        opt = make("sgd", net.parameters(), capturable=capturable)
        opt.calibrate(terms(net, batch(i, dtype=torch.float64)) for i in range(8))
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
@pytest.mark.parametrize("what", ["objective", "gradient"])
def test_capturable_skips_what_is_not_finite(fused, what):
    net = network()
    opt = gdpa.torch.constrain(torch.optim.AdamW(net.parameters(), lr=0.01, fused=fused), NAMES, capturable=True)
    train_net(net, opt, 6)
    state = {key: value.clone() for key, value in opt.state[net[0].weight].items()}
    point, multipliers, steps = flat(net), opt.multipliers, opt.dual_steps
    opt.zero_grad()
    f, g = terms(net, batch(9))
    if what == "objective":
        opt.lagrangian(f * math.inf, g).backward()
    else:
        opt.lagrangian(f, g).backward()
        net[2].weight.grad[0, 3] = math.nan
    opt.step()
    assert torch.equal(opt.multipliers, multipliers)
    assert opt.dual_steps == steps == 6
    assert opt.skipped == 1
    assert "1 steps were skipped for values or gradients that were not finite" in str(opt.report())
    if fused:
        assert torch.equal(flat(net), point)
        assert all(torch.equal(opt.state[net[0].weight][key], value) for key, value in state.items())
    assert torch.isfinite(flat(net)).all()
    train_net(net, opt, 1)
    assert not torch.equal(flat(net), point)
    assert opt.dual_steps == 7
