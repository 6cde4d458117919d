"""The paper's recursion: against `gdpa.solve`, by hand, and as a torch optimizer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import gdpa
import gdpa.torch
from gdpa import Ball, Box, NonNegative, Simplex, from_torch

DOUBLE = torch.float64


def disc_product(x):
    return -x[0] * x[1], torch.stack([x @ x - 2, x[0] - 3])


def disc_square(x):
    return -((x[0] * x[1]) ** 2), torch.stack([x @ x - 2, x[0] - 3])


def random_problem(seed, d=12, m=4):
    """Nonconvex f and g with mixed activity."""
    rng = torch.Generator().manual_seed(seed)
    A, B, c = (torch.randn(*s, generator=rng, dtype=DOUBLE) for s in ((d, d), (m, d), (m,)))
    return lambda x: (
        torch.sin(A @ x).sum() + x @ x / 4,
        torch.tanh(B @ x) + 0.1 * (x @ x) - 0.3 * c.abs(),
    )


def run(function, x0, steps, **kwargs):
    x = torch.nn.Parameter(x0.clone())
    _, g = function(x)
    opt = gdpa.torch.GDPA([x], constraints=kwargs.pop("constraints", g.shape[0]), **kwargs)
    points, multipliers = [], []
    for _ in range(steps):
        opt.zero_grad()
        loss = opt.lagrangian(*function(x))
        loss.backward()
        opt.step()
        points.append(x.detach().clone())
        multipliers.append(opt.multipliers)
    return opt, torch.stack(points), torch.stack(multipliers)


@pytest.mark.parametrize("domain", [None, Box(-0.4, 0.9), Ball(1.1)], ids=["reals", "box", "ball"])
@pytest.mark.parametrize(("seed", "num_equalities"), [(0, 0), (1, 1)])
def test_full_batch_trajectory_is_that_of_solve_bit_for_bit(seed, num_equalities, domain):
    function = random_problem(seed)
    x0 = torch.linspace(-1, 1, 12, dtype=DOUBLE)
    problem = from_torch(function, num_equalities=num_equalities, domain=domain or gdpa.REALS)
    x0 = problem.domain.project(x0)
    wanted, duals = [], []

    def keep(progress):
        wanted.append(progress.state.x.clone())
        duals.append(progress.state.multipliers.clone())

    algorithm = gdpa.GDPA(alpha=0.03, beta=0.7, tau=0.2)
    gdpa.solve(problem, x0, algorithm, stop=gdpa.MaxSteps(200), observers=[keep])
    equalities = [3] if num_equalities else []
    _, got, lam = run(function, x0, 200, lr=0.03, beta=0.7, tau=0.2, equalities=equalities, domain=domain)
    assert torch.equal(got, torch.stack(wanted))
    # After step r the optimizer holds lambda_r; solve has seen g(x_{r+1}) already and holds lambda_{r+1}.
    assert torch.equal(lam[1:], torch.stack(duals)[:-1])


def test_two_steps_by_hand():
    # f = x, g = x + 1, so grad F = 1 + w. alpha = .1, beta = 2, tau = .5, constant steps.
    x = torch.nn.Parameter(torch.tensor([1.0], dtype=DOUBLE))
    opt = gdpa.torch.GDPA([x], 1, lr=0.1, beta=2.0, tau=0.5, lr_power=0.0, beta_power=0.0)
    opt.lagrangian(x.sum(), x + 1).backward()
    opt.step()
    # lambda_1 = 0, q = 2 * 2 = 4, x = 1 - .1 (1 + 4) = .5
    assert x.item() == pytest.approx(0.5, rel=1e-15)
    assert opt.multipliers.tolist() == [0.0]
    opt.zero_grad()
    opt.lagrangian(x.sum(), x + 1).backward()
    opt.step()
    # lambda_2 = 2 * 1.5 = 3, q = .5 * 3 + 2 * 1.5 = 4.5, x = .5 - .1 * 5.5 = -.05
    assert x.item() == pytest.approx(-0.05, abs=1e-15)
    assert opt.multipliers.tolist() == pytest.approx([3.0])


@pytest.mark.parametrize(("function", "multiplier"), [(disc_product, 0.5), (disc_square, 1.0)])
def test_both_discs_converge_with_defaults(function, multiplier):
    x0 = torch.tensor([0.5, 1.5], dtype=DOUBLE)
    opt, points, _ = run(function, x0, 3000)
    assert (points[-1] - 1).abs().max() < 2e-2
    # The bias of a fixed tau: the violation stands at tau lambda / beta_r.
    predicted = 0.1 * multiplier / 3000 ** (1 / 3)
    assert (points[-1] @ points[-1] - 2).item() == pytest.approx(predicted, rel=0.05)
    assert opt.multipliers[0].item() == pytest.approx(multiplier, rel=0.02)
    assert opt.multipliers[1].item() == 0.0


def test_equalities_by_name_wherever_they_stand():
    """Naming the equality first, in a dict or a tensor, gives what naming it last gives."""

    def run_named(names, as_dict):
        x = torch.nn.Parameter(torch.tensor([2.0, 0.3], dtype=DOUBLE))
        opt = gdpa.torch.GDPA([x], names, lr=0.05, equalities=["sum"])
        for _ in range(400):
            opt.zero_grad()
            g = {"sum": x.sum() - 1, "first": 0.7 - x[0]}
            opt.lagrangian(x @ x, g if as_dict else torch.stack([g[n] for n in names])).backward()
            opt.step()
        return x.detach(), dict(zip(names, opt.multipliers.tolist(), strict=True))

    reference = run_named(["first", "sum"], True)
    for names, as_dict in ((["sum", "first"], True), (["sum", "first"], False), (["first", "sum"], False)):
        x, lam = run_named(names, as_dict)
        assert torch.equal(x, reference[0])
        assert lam == reference[1]
    # min x.x with sum = 1 and x0 >= .7: (.7, .3); 2 x + lam_sum (1,1) - lam_first (1,0) = 0.
    assert reference[0].tolist() == pytest.approx([0.7, 0.3], abs=0.02)
    assert reference[1]["sum"] == pytest.approx(-0.6, abs=0.05)
    assert reference[1]["first"] == pytest.approx(0.8, abs=0.05)


def test_projection_sets_per_group():
    a, b, c = (torch.nn.Parameter(torch.randn(s, dtype=DOUBLE)) for s in ((3,), (2, 4), ()))
    groups = [
        {"params": [a], "domain": NonNegative()},
        {"params": [b], "domain": Simplex(), "lr": 0.3},
        {"params": [c]},
    ]
    opt = gdpa.torch.GDPA(groups, 1, lr=0.1)
    for _ in range(5):
        opt.zero_grad()
        opt.lagrangian((a + 1).square().sum() + (b * torch.arange(4)).sum() + c, c[None] + 1).backward()
        opt.step()
    assert (a >= 0).all()
    assert torch.allclose(b.sum(-1), torch.ones(2, dtype=DOUBLE))
    assert (b >= 0).all()
    assert "domain" not in opt.state_dict()["param_groups"][0]


def test_domain_must_fit_and_be_a_set():
    x = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(TypeError, match=r"domain must be a gdpa.ConvexSet"):
        gdpa.torch.GDPA([x], 1, domain=lambda p: p)
    with pytest.raises(ValueError, match="the box has 2 bounds but x has 3"):
        gdpa.torch.GDPA([x], 1, domain=Box([0.0, 0.0], [1.0, 1.0]))
    base = torch.optim.SGD([{"params": [x], "domain": Box([0.0, 0.0], [1.0, 1.0])}], lr=0.1)
    with pytest.raises(ValueError, match="the box has 2 bounds but x has 3 coordinates"):
        gdpa.torch.constrain(base, 1)


def test_no_memory_per_parameter():
    x = torch.nn.Parameter(torch.randn(1000))
    opt = gdpa.torch.GDPA([x], 2)
    for _ in range(3):
        opt.zero_grad()
        opt.lagrangian(x.square().sum(), x[:2]).backward()
        opt.step()
    assert len(opt.state) == 0
    tensors = [v for v in opt.param_groups[0].values() if isinstance(v, torch.Tensor)]
    assert sum(t.numel() for t in tensors) == 4  # two multipliers, two flags


@pytest.mark.parametrize("steps", [1, 3])
def test_one_forward_and_one_backward_a_step(steps):
    calls = {"forward": 0, "backward": 0}

    class Count(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            calls["forward"] += 1
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            calls["backward"] += 1
            return grad

    x = torch.nn.Parameter(torch.ones(2))
    opt = gdpa.torch.GDPA([x], 1)
    for _ in range(steps):
        y = Count.apply(x)
        opt.zero_grad()
        opt.lagrangian(y.square().sum(), y[:1]).backward()
        opt.step()
    assert calls == {"forward": steps, "backward": steps}


def test_multipliers_are_kept_in_double_precision():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x = torch.nn.Parameter(torch.ones(3, dtype=dtype))
        opt = gdpa.torch.GDPA([x], 2)
        for _ in range(2):
            opt.zero_grad()
            loss = opt.lagrangian(x.square().sum(), x[:2] - 0.5)
            loss.backward()
            opt.step()
        assert opt.multipliers.dtype == torch.float64
        assert x.dtype == dtype
        assert torch.isfinite(x).all()


def test_no_constraint_is_gradient_descent():
    x, y = (torch.nn.Parameter(torch.arange(3.0)) for _ in range(2))
    opt, sgd = gdpa.torch.GDPA([x], 0, lr=0.1, lr_power=0.0), torch.optim.SGD([y], lr=0.1, foreach=False)
    for _ in range(4):
        opt.zero_grad()
        opt.lagrangian(x.square().sum(), torch.zeros(0)).backward()
        opt.step()
        sgd.zero_grad()
        y.square().sum().backward()
        sgd.step()
    assert torch.allclose(x, y, rtol=1e-6)


def test_large_tensors_go_in_pieces_to_the_same_numbers():
    torch.manual_seed(0)
    start = torch.randn(700, 500)
    results = []
    for foreach in (None, False):
        x = torch.nn.Parameter(start.clone())
        opt = gdpa.torch.GDPA([x], 1, lr=0.1, foreach=foreach)
        opt.lagrangian((x**3).sum(), x.mean()[None]).backward()
        opt.step()
        results.append(x.detach())
    assert torch.equal(*results)
    assert not torch.equal(results[0], start)


def test_beta_and_tau_as_tensors():
    x0 = torch.tensor([0.5, 1.5], dtype=DOUBLE)
    _, numbers, _ = run(disc_product, x0, 50, lr=0.05, beta=0.5, tau=0.25)
    _, tensors, _ = run(disc_product, x0, 50, lr=0.05, beta=torch.tensor(0.5), tau=torch.tensor(0.25))
    assert torch.equal(numbers, tensors)


def test_capturable_keeps_to_tensors_and_to_the_same_numbers():
    x0 = torch.tensor([0.5, 1.5], dtype=DOUBLE)
    _, numbers, lam = run(disc_product, x0, 60, lr=0.05, beta=0.5)
    opt, tensors, lam_t = run(disc_product, x0, 60, lr=torch.tensor(0.05, dtype=DOUBLE), beta=0.5, capturable=True)
    assert torch.allclose(numbers, tensors, rtol=1e-12)
    assert torch.allclose(lam, lam_t, rtol=1e-12)
    assert opt.dual_steps == 60
    before = {k: v.clone() for k, v in opt.param_groups[0].items() if isinstance(v, torch.Tensor) and k != "lr"}
    address = opt.param_groups[0]["multipliers"].data_ptr()
    x = opt.param_groups[0]["params"][0]
    point = x.detach().clone()
    opt.zero_grad()
    opt.lagrangian(-x[0] * x[1] * math.nan, disc_product(x)[1]).backward()
    opt.step()
    assert torch.equal(x, point)
    assert all(torch.equal(before[k], opt.param_groups[0][k]) for k in before)
    assert opt.param_groups[0]["multipliers"].data_ptr() == address


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, DOUBLE])
@pytest.mark.parametrize("layout", ["dense", "odd strides"])
def test_capturable_takes_the_same_step_or_none(dtype, layout):
    """Whichever kernel the precision and the layout of the parameters allow."""
    start = torch.linspace(-1, 1, 42).to(dtype).reshape(6, 7)
    nets = []
    for capturable in (False, True):
        x = torch.nn.Parameter(start.clone() if layout == "dense" else start.t().contiguous().t())
        still = torch.nn.Parameter(torch.ones(2, dtype=dtype))  # without a gradient
        opt = gdpa.torch.GDPA([x, still], 2, lr=0.05, capturable=capturable)
        for _ in range(5):
            opt.zero_grad()
            opt.lagrangian((x - 1).square().sum(), torch.stack([x.sum() - 1, -x[0, 0]])).backward()
            opt.step()
        nets.append((x, opt))
    (x, plain), (y, opt) = nets
    tolerance = 1e-2 if dtype is torch.bfloat16 else 1e-5
    assert torch.allclose(x, y, rtol=tolerance, atol=tolerance)
    assert torch.allclose(plain.multipliers, opt.multipliers, rtol=tolerance, atol=tolerance)
    assert not torch.allclose(y, start, rtol=0.1)
    kept = y.detach().clone()
    opt.zero_grad()
    opt.lagrangian((y * math.inf).square().sum(), torch.stack([y.sum() - 1, -y[0, 0]])).backward()
    assert not torch.isfinite(y.grad).any()
    opt.step()
    assert torch.equal(y, kept)
    assert opt.dual_steps == 5


def test_infeasible_multipliers_stay_bounded():
    # x <= -1 and x >= 1: lambda is bounded by beta max(g) / tau.
    x = torch.nn.Parameter(torch.zeros(1, dtype=DOUBLE))
    opt = gdpa.torch.GDPA([x], 2, lr=0.01)
    for _ in range(500):
        opt.zero_grad()
        opt.lagrangian(x.sum() * 0, torch.cat([x + 1, 1 - x])).backward()
        opt.step()
    assert np.all(opt.multipliers.numpy() <= 500 ** (1 / 3) * 1.5 / 0.1)
