"""Each private interface of torch does what `gdpa.torch.compat` says it does, on the torch that is installed."""

from __future__ import annotations

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gdpa.torch import compat


def test_profiler_enabled():
    assert not compat.profiler_enabled()
    with torch.autograd.profiler.profile():
        assert compat.profiler_enabled()


def test_call_without_gradients():
    seen = []
    compat.call_without_gradients(lambda *args: seen.append((args, torch.is_grad_enabled())), 1, 2)
    assert seen == [((1, 2), False)]
    assert torch.is_grad_enabled()
    with pytest.raises(ZeroDivisionError):
        compat.call_without_gradients(lambda: 1 / 0)
    assert torch.is_grad_enabled()


def test_take_step_serves_every_hook():
    opt = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    seen = []
    for register in (
        *(opt.register_step_pre_hook, opt.register_step_post_hook),
        *(register_optimizer_step_pre_hook, register_optimizer_step_post_hook),
    ):
        handle = register(lambda *_: seen.append("hook"))
        compat.take_step(opt)
        handle.remove()
    compat.take_step(opt)
    assert len(seen) == 4


def test_take_step():
    """Every step is the optimizer's own, and hooks, schedulers and profilers are served."""

    class Doubled(torch.optim.SGD):
        def step(self, closure=None):
            super().step()
            return super().step()

    for kind in (torch.optim.SGD, torch.optim.Adam, Doubled):
        mine, theirs = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
        ours, other = kind([mine], lr=0.1), kind([theirs], lr=0.1)

        def both(grad, mine=mine, theirs=theirs, ours=ours, other=other):
            mine.grad, theirs.grad = torch.full((2,), grad), torch.full((2,), grad)
            compat.take_step(ours)
            other.step()
            assert torch.equal(mine, theirs)

        both(1.0)
        calls: list = []
        handle = ours.register_step_pre_hook(lambda *_, calls=calls: calls.append("hook"))
        both(2.0)
        handle.remove()
        assert calls
        with torch.autograd.profiler.profile() as profile:
            both(3.0)
        assert any(event.key.startswith("Optimizer.step") for event in profile.key_averages())
        torch.optim.lr_scheduler.StepLR(ours, 100)  # replaces the step of the instance, to see that it was called
        both(4.0)
        assert ours._opt_called


def test_restore_hooks():
    opt = torch.optim.SGD.__new__(torch.optim.SGD)
    opt.defaults, opt.param_groups = {}, []
    compat.restore_hooks(opt)
    assert not opt._optimizer_step_pre_hooks
    assert not opt._optimizer_step_post_hooks


def test_count_uses():
    value = torch.ones(2)
    assert compat.count_uses(value) == 1
    graph = torch.dot(torch.ones(2, requires_grad=True), value)
    assert compat.count_uses(value) > 1
    graph.backward(retain_graph=True)
    assert compat.count_uses(value) > 1
    graph.backward()
    assert compat.count_uses(value) == 1


def test_cut_divisions_by_zero():
    x, count = torch.ones(3, requires_grad=True), torch.tensor([2.0, 0.0, 4.0])
    y = 3 * (x * torch.tensor([2.0, 0.0, 1.0]) / count).sqrt()
    compat.cut_divisions_by_zero(y)
    torch.dot(y, torch.tensor([1.0, 0.0, 0.0])).backward()
    assert x.grad.tolist() == [1.5, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
def test_find_nonfinite(dtype, bad):
    grads = [torch.full((3, 2), 1e4, dtype=dtype), torch.zeros(0, dtype=dtype), torch.ones((), dtype=dtype)]
    if bad is not None:
        grads[0][1, 1] = bad
    kept = [g.clone() for g in grads]
    found = torch.zeros(())
    compat.find_nonfinite_(grads, found, torch.ones(()))
    assert found.item() == (bad is not None)
    assert all(torch.equal(g.nan_to_num(), k.nan_to_num()) for g, k in zip(grads, kept, strict=True))


def test_multi_tensor_kernels():
    def pair():
        return [torch.tensor([1.0, 2.0]), torch.tensor([3.0])], [torch.tensor([10.0, 20.0]), torch.tensor([30.0])]

    params, grads = pair()
    compat.multi_tensor_add_(params, grads, -0.125)
    assert [p.tolist() for p in params] == [[-0.25, -0.5], [-0.75]]
    params, grads = pair()
    compat.multi_tensor_sub_(params, grads, torch.tensor(0.125))
    assert [p.tolist() for p in params] == [[-0.25, -0.5], [-0.75]]
    for dtype in (torch.float32, torch.float64):
        params, grads = pair()
        params[1], grads[1] = params[1].to(dtype), grads[1].to(dtype)
        compat.multi_tensor_lerp_(params, grads, 0.5)
        assert [p.tolist() for p in params] == [[5.5, 11.0], [16.5]]


@pytest.mark.parametrize("skip", [0.0, 1.0])
def test_fused_sgd(skip):
    params, grads = [torch.ones(2)], [torch.full((2,), float("nan") if skip else 1.0)]
    compat.fused_sgd_(params, grads, torch.tensor(0.5), torch.tensor(skip))
    assert params[0].tolist() == ([1.0, 1.0] if skip else [0.5, 0.5])


def test_uncompiled():
    assert compat.uncompiled(lambda x: x + 1)(2) == 3
