"""The rules of other authors, step by step beside the authors' own code, and RCML beside the family's recursion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gdpa.torch
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.torch.rules import RCML, SPBM, SSLALM

STEPS, EPOCH = 60, 15


def batches() -> Any:
    """Minibatches of a logistic regression with two groups, seeded."""
    generator = torch.Generator().manual_seed(3)
    X = torch.randn(400, 3, generator=generator, dtype=torch.float64)
    y = (X.sum(dim=1) + torch.randn(400, generator=generator, dtype=torch.float64) > 0).double()
    for _ in range(STEPS):
        chosen = torch.randint(0, 400, (32,), generator=generator)
        yield X[chosen], y[chosen]


def loss_and_constraints(w: torch.Tensor, X: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean loss, and two limits: one that is violated at first, and one on the size of w."""
    z = X @ w
    f = torch.nn.functional.binary_cross_entropy_with_logits(z, y)
    first = torch.nn.functional.softplus(-z[y > 0]).mean() - 0.6
    return f, torch.stack([first, w.square().sum() - 0.05])


def add_moreau_term(base: torch.optim.Optimizer, mu: float = 2.0, beta: float = 0.5) -> torch.optim.Optimizer:
    """Have ``base`` add mu (x - z) to the gradient before each step, then move z by beta (x - z); z starts at x."""
    params = [p for group in base.param_groups for p in group["params"]]
    centers = [p.detach().clone() for p in params]

    @torch.no_grad()
    def smooth(*_: Any) -> None:
        for p, z in zip(params, centers, strict=True):
            p.grad.add_(p - z, alpha=mu)
            z.add_(p - z, alpha=beta)

    base.register_step_pre_hook(smooth)
    return base


def train_ours(rule: Any, lr: float = 0.1) -> tuple[list[Any], list[Any]]:
    w = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    base = add_moreau_term(torch.optim.SGD([w], lr=lr))
    opt = gdpa.torch.constrain(base, 2, rule=rule, average=False)
    points, duals = [], []
    for X, y in batches():
        opt.zero_grad()
        opt.lagrangian(*loss_and_constraints(w, X, y)).backward()
        opt.step()
        points.append(w.detach().clone())
        duals.append(opt.multipliers.detach().clone())
    return points, duals


def train_theirs(dual: Any, lr: float = 0.1) -> tuple[list[Any], list[Any]]:
    from humancompatible.train.dual_optim import MoreauEnvelope

    w = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    base = MoreauEnvelope(torch.optim.SGD([w], lr=lr), mu=2.0, beta=0.5)
    points, duals = [], []
    for X, y in batches():
        w.grad = None
        dual.forward_update(*loss_and_constraints(w, X, y)).backward()
        base.step()
        points.append(w.detach().clone())
        duals.append(dual.duals.detach().clone())
    return points, duals


def check(ours: Any, theirs: Any) -> None:
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(torch.stack(own), torch.stack(other), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("rule", "options"), [
    (SPBM(epoch_length=EPOCH), {"epoch_length": EPOCH}),
    (SPBM(), {"gamma_annealing": False, "penalty_annealing": False}),
], ids=["annealed", "constant"])  # fmt: skip
def test_spbm_is_that_of_humancompatible_train(rule: SPBM, options: dict[str, Any]) -> None:
    optim = pytest.importorskip("humancompatible.train.dual_optim")
    start = torch.ones(2, dtype=torch.float64)
    dual = optim.PBM(m=2, init_duals=1e-9 * start, init_penalties=start.clone(), **options)
    ours = train_ours(rule)
    check(ours, train_theirs(dual))
    assert ours[1][-1].max() > 1e-6  # the multipliers rose from 1e-9


def test_ssl_alm_is_that_of_humancompatible_train() -> None:
    optim = pytest.importorskip("humancompatible.train.dual_optim")
    zeros = torch.zeros(2, dtype=torch.float64)
    dual = optim.ALM(m=2, lr=0.05, penalty=1.0, is_ineq=True, init_duals=zeros)
    ours = train_ours(SSLALM())
    check(ours, train_theirs(dual))
    assert ours[1][-1].min() > 1e-3


def test_spbm_by_hand() -> None:
    # lambda = 1, p = 1, gamma = K = 1/2. g = 1: w = 2, lambda = 1.5; phi'(1) = 2: p = (1 + 1/2)/2 = 0.75.
    # g = -0.75: t = -1, slope 1/4: w = 0.375, lambda = 0.9375; phi'(-0.75) = 1/3: p = clip((0.75 + 2.25)/2) = 1.
    rule = SPBM(gamma=0.5, mix=0.5)
    shared, _ = rule.begin({"dual_rate": 1.0, "dual_steps": 0})
    (first, p), w = rule.update((1.0, 1.0), (), 1.0, shared, 0)
    assert (w, first, p) == pytest.approx((2.0, 1.5, 0.75))
    (second, p), w = rule.update((first, p), (), -0.75, shared, 0)
    assert (w, second, p) == pytest.approx((0.375, 0.9375, 1.0))


def test_rcml_is_the_damped_rule_to_rounding() -> None:
    """Pressure and memory with a constant gain: `AugmentedLagrangian.damped`, as `DampedGDPA` uses it."""
    rule, rng = RCML(penalty=0.7, gain=0.2), np.random.default_rng(0)
    memory = np.abs(rng.standard_normal(5))
    expected = memory.copy()
    for _ in range(50):
        g = rng.standard_normal(5)
        (memory,), w = rule.update((memory,), (), g, rule.begin({"dual_rate": 1.0})[0], 1)
        F = AugmentedLagrangian(expected, 0.7, 0.0, 1)
        np.testing.assert_allclose(w, F.weights(g), rtol=1e-12)
        expected = F.damped(g, 0.2)
        np.testing.assert_allclose(memory, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("options", [{"gamma": 1.0}, {"mix": -0.1}, {"epoch_length": 0}], ids=repr)
def test_bad_constants_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} must"):
        SPBM(**options)
