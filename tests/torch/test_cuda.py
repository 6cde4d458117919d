"""Training on a CUDA device gives the multipliers and weights of the CPU. Skipped on a machine without one."""

import copy

import numpy as np
import pytest
import torch

import gdpa.torch
from gdpa.torch import calibration

SAMPLES, GROUPS, STEPS = 96, 3, 40
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 8, generator=generator, dtype=torch.float64)
    y = (x[:, :1] + 0.5 * torch.randn(SAMPLES, 1, generator=generator, dtype=torch.float64) > 0).double()
    return x, y


def losses(net, x, y, groups):
    each = torch.nn.functional.binary_cross_entropy_with_logits(net(x), y, reduction="none").reshape(groups, -1)
    means = each.mean(1)
    return means[0], means[1:] - 0.3


def trained(device, groups=GROUPS, **options):
    net, (x, y) = network().to(device), data()
    x, y = x.to(device), y.to(device)
    opt = gdpa.torch.constrain(torch.optim.Adam(net.parameters(), lr=0.01), groups - 1, **options)
    for _ in range(STEPS):
        opt.zero_grad()
        f, g = losses(net, x, y, groups)
        if options.get("nan") == "absent":
            g = torch.where(torch.arange(len(g), device=device) == 1, torch.nan, g)
        opt.lagrangian(f, g).backward()
        opt.step()
    return net, opt


@needs_cuda
@pytest.mark.parametrize("groups", [GROUPS, SAMPLES // 2])
@pytest.mark.parametrize("options", [{}, {"nan": "absent"}, {"average": False}], ids=["plain", "absent", "no average"])
def test_training_on_the_device_is_training_on_the_host(groups, options):
    (net, opt), (reference, ours) = trained("cuda", groups, **options), trained("cpu", groups, **options)
    assert bool((ours.multipliers > 0).any())
    assert torch.allclose(opt.multipliers.cpu(), ours.multipliers, rtol=1e-6, atol=1e-9)
    for here, there in zip(net.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(here.detach().cpu(), there.detach(), rtol=1e-6, atol=1e-9)
    assert str(opt.report()).splitlines()[0] == str(ours.report()).splitlines()[0]


@needs_cuda
def test_state_of_the_device_continues_on_the_host():
    _, opt = trained("cuda")
    state = copy.deepcopy(opt.state_dict())
    other = gdpa.torch.constrain(torch.optim.Adam(network().parameters(), lr=0.01), GROUPS - 1)
    other.load_state_dict(state)
    assert torch.allclose(other.multipliers.cpu(), opt.multipliers.cpu())


@needs_cuda
def test_finish_certifies_on_the_device():
    net, opt = trained("cuda")
    x, y = data()
    batches = [(x.cuda(), y.cuda())]
    chosen = opt.finish(net, batches, lambda net, batch: losses(net, *batch, GROUPS))  # type: ignore[call-arg]
    assert np.isfinite(chosen.certificate.objective)


@needs_cuda
def test_calibrated_captured_steps_are_eager_steps():
    x, y = (part.cuda() for part in data())
    results = []
    for capture in (False, True):
        net = network().cuda()
        opt = gdpa.torch.constrain(
            torch.optim.Adam(net.parameters(), lr=0.01, capturable=True), GROUPS - 1, capturable=True
        )
        opt.calibrate(losses(net, x, y, GROUPS) for _ in range(8))
        assert bool((opt.param_groups[0]["ratio"] > 0).all())

        def step(net=net, opt=opt):
            opt.zero_grad(set_to_none=False)
            opt.lagrangian(*losses(net, x, y, GROUPS)).backward()
            opt.step()

        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        replay = step
        if capture:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            replay = graph.replay  # type: ignore[assignment]
        for _ in range(STEPS):
            replay()
        results.append((opt.multipliers.clone(), [p.detach().clone() for p in net.parameters()]))
    (eager, weights), (replayed, others) = results
    assert torch.equal(eager, replayed)
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))


def test_calibration_reads_host_arrays_alone(monkeypatch):
    """On a CUDA device NumPy cannot read a tensor; this shows on any machine that calibration is given none."""
    seen, original = [], calibration.measure  # type: ignore[var-annotated]

    def measure(roster, dual, values, present, *rest):
        seen.extend(entry for entry in (*dual.values(), values, present) if isinstance(entry, torch.Tensor))
        return original(roster, dual, values, present, *rest)

    monkeypatch.setattr(calibration, "measure", measure)
    _, opt = trained("cpu", SAMPLES // 2, capturable=True)
    assert not seen
    assert bool((opt.param_groups[0]["ratio"] > 0).any())
