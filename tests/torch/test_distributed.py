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


def check(results, kind):
    grads, lams = alone(kind)
    for r in results:
        for ours, theirs in zip(r["grads"], grads, strict=True):
            assert (ours - theirs).norm() <= 1e-6 * max(1.0, theirs.norm())
        for ours, theirs, first in zip(r["lams"], lams, results[0]["lams"], strict=True):
            assert torch.equal(ours, first)
            assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("world", "kind"), [(1, "paper"), (2, "paper"), (4, "paper"), (2, "adam")])
def test_ddp_with_unequal_and_empty_batches(world, kind, tmp_path):
    results = ranks.spawn(ranks.work, world, tmp_path, kind, "ddp", True)
    check(results, kind)


@pytest.mark.parametrize("kind", ["paper", "adam"])
def test_fsdp2_equals_ddp_and_checkpoints(kind, tmp_path):
    results = ranks.spawn(ranks.work, 2, tmp_path, kind, "fsdp", True)
    check(results, kind)
    assert all(all(r["checkpoints"].values()) for r in results)


def test_calibration_agrees_on_all_ranks(tmp_path):
    first, second = ranks.spawn(ranks.calibrate, 2, tmp_path)
    assert first["calibrated"]
    for key in ("ratio", "size", "multipliers"):
        assert torch.equal(first[key], second[key])
    assert (first["ratio"] > 0).all()


def test_one_process_pools_nothing():
    x = torch.nn.Parameter(torch.ones(2))
    for group in ("world", None):
        opt = gdpa.torch.GDPA([x], 1, process_group=group)
        opt.lagrangian(x.sum(), x[:1]).backward()
        opt.step()
        assert opt.dual_steps == 1
