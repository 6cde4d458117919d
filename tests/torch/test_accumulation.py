"""Several micro-batches in one step: exact, stale, never silently."""

from __future__ import annotations

import pytest
import torch

import gdpa.torch
from tests.torch.helpers import KINDS, batch, duals, flat, make, network, terms, train

DTYPE = torch.float64


def exact_step(net, opt, parts):
    opt.zero_grad()
    with torch.no_grad():
        for part in parts:
            opt.add_micro_batch(*terms(net, part), samples=len(part))
    for part in parts:
        opt.lagrangian(*terms(net, part), samples=len(part)).backward()
    opt.step()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", range(1, 9))
def test_exact_is_the_whole_batch(kind, k):
    net, twin = network(dtype=torch.float32), network(dtype=torch.float32)
    opt = make(kind, net.parameters(), accumulate="exact")
    other = make(kind, twin.parameters())
    if kind != "paper":  # parts and whole have other gradient norms, so give both the same ratios
        for o in (opt, other):
            o.param_groups[0].update(ratio=torch.ones(3, dtype=DTYPE))
    for i in range(6):
        whole = batch(i, n=24)
        sizes = [24 // k] * (k - 1)
        exact_step(net, opt, whole.split([*sizes, 24 - sum(sizes)]))  # the last one is larger
        other.zero_grad()
        other.lagrangian(*terms(twin, whole)).backward()
        other.step()
        ours, theirs = (torch.cat([p.grad.flatten() for p in n.parameters()]) for n in (net, twin))
        assert (ours - theirs).norm() <= 1e-6 * theirs.norm()
    assert torch.allclose(opt.multipliers, other.multipliers, rtol=1e-5, atol=1e-7)
    assert opt.dual_steps == 6


def test_the_mean_of_many_parts_is_as_good_as_that_of_the_whole():
    """A running sum of 3,000 numbers in single precision would be off by some 1e-5."""
    x = torch.nn.Parameter(torch.ones(2))
    opt = make("paper", [x], names=2, equalities=(), accumulate="exact")
    scales = torch.rand(3000, 2, generator=torch.Generator().manual_seed(0)) + 0.5
    counts = torch.randint(1, 9, (3000,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for scale, n in zip(scales, counts.tolist(), strict=True):
            opt.add_micro_batch(x.sum() * 0, x * scale, samples=n)
    opt.lagrangian(x.sum() * 0, x * scales[0], samples=1)
    wanted = (scales.double() * counts.double()[:, None]).sum(0) / counts.sum()
    assert torch.equal(torch.tensor(opt._stage.batch.values).float(), wanted.float())


def test_weights_of_parts_are_something_else():
    """What the exact mode is for: adding up each part's own weights is far off."""
    net = network(dtype=DTYPE)
    whole = batch(0, n=24, dtype=DTYPE)

    def gradient(parts, share):
        total = 0
        for part in parts:
            opt = make("paper", net.parameters(), beta=5.0)
            opt.lagrangian(*terms(net, part)).backward()
            total = total + share * torch.cat([p.grad.flatten() for p in net.parameters()])
            opt.zero_grad()
        return total

    right, wrong = gradient([whole], 1.0), gradient(whole.split(3), 1 / 8)
    assert (right - wrong).norm() > 0.02 * right.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_exact_refuses_what_it_cannot_know(kind):
    net = network()
    opt = make(kind, net.parameters(), accumulate="exact")
    with pytest.raises(RuntimeError, match=r"call opt.add_micro_batch\(f, g\) on every micro-batch"):
        opt.lagrangian(*terms(net, batch(0)))
    for i in range(2):
        opt.add_micro_batch(*terms(net, batch(i)))
    opt.lagrangian(*terms(net, batch(0))).backward()
    with pytest.raises(RuntimeError, match="add_micro_batch came after lagrangian"):
        opt.add_micro_batch(*terms(net, batch(0)))
    with pytest.raises(RuntimeError, match="add_micro_batch saw 2 micro-batches but lagrangian 1"):
        opt.step()


def test_micro_batches_belong_to_exact():
    net = network()
    with pytest.raises(RuntimeError, match='add_micro_batch is for accumulate="exact"'):
        make("paper", net.parameters()).add_micro_batch(*terms(net, batch(0)))
    assert gdpa.torch.GDPA.observe is gdpa.torch.GDPA.add_micro_batch  # its name in 0.1.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_that_did_not_step_is_forgotten(kind):
    net = network(dtype=DTYPE)
    opt = make(kind, net.parameters(), accumulate="exact")
    parts = [batch(i, dtype=DTYPE) for i in range(2)]
    for part in parts:
        opt.add_micro_batch(*terms(net, part))
    for part in parts:
        opt.lagrangian(*terms(net, part)).backward()
    exact_step(net, opt, parts)  # begins with zero_grad
    assert opt.dual_steps == 1


def test_stale_uses_the_weights_of_the_step_before():
    net = network(dtype=DTYPE)
    opt = make("paper", net.parameters(), accumulate="stale")
    twin = network(dtype=DTYPE)
    by_hand = make("paper", twin.parameters())
    weights = torch.zeros(3, dtype=DTYPE)
    for i in range(5):
        parts = batch(i, n=16, dtype=DTYPE).split(4)
        opt.zero_grad()
        for part in parts:
            (opt.lagrangian(*terms(net, part)) / 4).backward()
        ours = torch.cat([p.grad.flatten() for p in net.parameters()])
        opt.step()
        # the same gradient from the whole batch with the weights known so far
        f, g = terms(twin, batch(i, n=16, dtype=DTYPE))
        vector = torch.stack([g["mean"], g["norm"], g["balance"]])
        wanted = torch.autograd.grad(f + weights @ vector, list(twin.parameters()))
        assert torch.allclose(ours, torch.cat([w.flatten() for w in wanted]), rtol=1e-9, atol=1e-12)
        # and the multipliers of the ordinary rule on the mean of g
        updates, weights = by_hand.dual_state.advance(vector.detach(), None)
        by_hand.param_groups[0].update(
            {k: torch.from_numpy(v) if hasattr(v, "shape") else v for k, v in updates.items()}
        )
        with torch.no_grad():
            for p, q in zip(twin.parameters(), net.parameters(), strict=True):
                p.copy_(q)
    assert torch.allclose(opt.multipliers, by_hand.multipliers, rtol=1e-9)
    assert (weights != 0).any()


@pytest.mark.parametrize("kind", ["paper", "sgd"])
def test_stale_trains(kind):
    net = network()
    opt = make(kind, net.parameters(), accumulate="stale")
    for i in range(400):
        opt.zero_grad()
        for part in batch(i, n=32).split(8):
            (opt.lagrangian(*terms(net, part)) / 4).backward()
        opt.step()
    g = terms(net, batch(0, n=512))[1]
    assert g["mean"] < 0.1
    assert torch.isfinite(flat(net)).all()
    assert opt.dual_steps == 400


def test_one_call_a_step_needs_no_mode():
    a, b = network(), network()
    train(a, make("paper", a.parameters()), 5)
    opt = make("paper", b.parameters(), accumulate="exact")
    for i in range(5):
        exact_step(b, opt, [batch(i)])
    assert torch.allclose(flat(a), flat(b), atol=1e-6)
    assert duals(opt)["dual_steps"] == 5
