"""Mixed precision: overflows freeze the multipliers, bf16 works, the scaler's order of calls is ours."""

from __future__ import annotations

import pytest
import torch

from tests.torch.helpers import KINDS, batch, duals, flat, make, network, same, terms


def scaled_step(net, opt, scaler, i, overflow=False, clip=False):
    opt.zero_grad()
    loss = opt.lagrangian(*terms(net, batch(i)))
    scaler.scale(loss).backward()
    if overflow:
        next(net.parameters()).grad.view(-1)[0] = float("inf")
    if clip:
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1e3)
    scaler.step(opt)
    scaler.update()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clip", [False, True])
def test_overflows_leave_everything_as_it_was(kind, clip):
    net = network()
    opt = make(kind, net.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for i in range(5):
        scaled_step(net, opt, scaler, i, clip=clip)
    before, point, beta = duals(opt), flat(net), opt.param_groups[0].get("beta_r")
    for i in range(20):
        scaled_step(net, opt, scaler, i, overflow=True, clip=clip)
        assert same(before, duals(opt))
        assert torch.equal(point, flat(net))
    assert opt.param_groups[0].get("beta_r") == beta
    scaler.update(1024.0)
    for i in range(5, 10):
        scaled_step(net, opt, scaler, i, clip=clip)
    twin = network()
    other = make(kind, twin.parameters())
    calm = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for i in range(10):
        scaled_step(twin, other, calm, i, clip=clip)
    assert torch.equal(flat(net), flat(twin))
    assert same(duals(opt), duals(other))


@pytest.mark.parametrize("kind", KINDS)
def test_an_overflow_with_gradients_cleared_by_the_model(kind):
    """Many loops call ``model.zero_grad()``: the optimizer hears of the skipped step only at the next call."""
    net = network()
    opt = make(kind, net.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for i in range(12):
        net.zero_grad()
        loss = opt.lagrangian(*terms(net, batch(i)))
        scaler.scale(loss).backward()
        if i % 3 == 2:
            next(net.parameters()).grad.view(-1)[0] = float("inf")
        scaler.step(opt)
        scaler.update()
    assert opt.dual_steps == 8


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_autocast(kind):
    net, twin = network(), network()
    opt, other = make(kind, net.parameters()), make(kind, twin.parameters())
    for i in range(20):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out_terms = terms(net, batch(i))
            loss = opt.lagrangian(*out_terms)
        loss.backward()
        opt.step()
        other.zero_grad()
        other.lagrangian(*terms(twin, batch(i))).backward()
        other.step()
    assert opt.multipliers.dtype == torch.float64
    assert torch.allclose(opt.multipliers, other.multipliers, rtol=0.1, atol=0.02)
