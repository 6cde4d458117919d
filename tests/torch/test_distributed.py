"""Ranks: the same gradient as one process on the whole batch, the same multipliers on every rank, bit for bit."""

from __future__ import annotations

import pytest
import torch

import gdpa.torch
from tests.torch import ranks
from tests.torch.helpers import batch, make, network, terms

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")


def alone(kind):
    net = network()
    opt = ranks.calibrated(kind, make(kind, net.parameters()))
    grads, lams = [], []
    for i in range(ranks.STEPS):
        opt.zero_grad()
        opt.lagrangian(*terms(net, batch(i, n=ranks.TOTAL))).backward()
        grads.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
        opt.step()
        lams.append(opt.multipliers)
    return grads, lams


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Every case, run once on four processes."""
    return ranks.spawn(tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(("kind", "how", "world"), ranks.CASES)
def test_ranks_with_unequal_and_empty_batches(results, kind, how, world):
    grads, lams = alone(kind)
    mine = [r[f"{kind} {how} {world}"] for r in results[:world]]
    for r in mine:
        for ours, theirs in zip(r["grads"], grads, strict=True):
            assert (ours - theirs).norm() <= 1e-6 * max(1.0, theirs.norm())
        for ours, theirs, first in zip(r["lams"], lams, mine[0]["lams"], strict=True):
            assert torch.equal(ours, first)  # bit for bit on all ranks
            assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["paper", "adam"])
def test_fsdp2_equals_ddp(results, kind):
    for r in results[:2]:
        for a, b in zip(r[f"{kind} fsdp 2"]["grads"], r[f"{kind} ddp 2"]["grads"], strict=True):
            assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)
        assert r[f"{kind} fsdp 2"]["checkpoints"] == {"flat=False": True, "flat=True": True}


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_calibration_agrees_on_all_ranks(results, how):
    first, second = (r["calibrate"][how] for r in results[:2])
    for key in ("ratio", "variance", "multipliers"):
        assert torch.equal(first[key], second[key])
    # FSDP averages gradients before their norms are taken, DDP after: noise in the batches counts for less.
    assert torch.allclose(first["ratio"], results[0]["calibrate"]["ddp"]["ratio"], rtol=0.5)
    assert (first["ratio"] > 0).all()


def test_one_rank_that_is_not_finite_stops_all(results):
    for r in results:
        assert (r["disagree"]["steps"], r["disagree"]["skipped"]) == (2, 1)
        assert torch.equal(r["disagree"]["lam"], results[0]["disagree"]["lam"])


def test_a_shard_of_a_gradient_that_is_not_finite_stops_all(results):
    for r in results[:2]:
        assert r["spoiled"] == {"kept": True, "steps": 2, "skipped": 1}


def test_one_process_pools_nothing():
    x = torch.nn.Parameter(torch.ones(2))
    for group in ("world", None):
        opt = gdpa.torch.GDPA([x], 1, process_group=group)
        opt.lagrangian(x.sum(), x[:1]).backward()
        opt.step()
        assert opt.dual_steps == 1
