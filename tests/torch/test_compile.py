"""Compiled models train as the others do."""

from __future__ import annotations

import os
import shutil

import pytest
import torch

from tests.torch.helpers import KINDS, batch, flat, make, network, terms, train

pytestmark = pytest.mark.no_cover


def train_both(kind, backend):
    torch._dynamo.reset()
    net, twin = network(), network()
    opt, other = make(kind, net.parameters()), make(kind, twin.parameters())
    compiled = torch.compile(net, backend=backend)
    train(compiled, opt, 5)
    train(twin, other, 5)
    assert torch.allclose(flat(net), flat(twin), atol=1e-6)
    assert torch.allclose(opt.multipliers, other.multipliers, atol=1e-6)
    assert not torch.equal(flat(net), flat(network()))


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_model(kind):
    train_both(kind, "aot_eager")


@pytest.mark.parametrize(("kind", "capturable"), [("paper", False), ("sgd", True)])
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_step(kind, capturable):
    torch._dynamo.reset()
    nets = [network(), network()]
    opts = [make(kind, net.parameters(), capturable=capturable) for net in nets]
    steps = [torch.compile(opts[0].step, backend="aot_eager"), opts[1].step]
    for net, opt, step in zip(nets, opts, steps, strict=True):
        if kind != "paper":
            opt.calibrate(terms(net, batch(i)) for i in range(8))
        for i in range(5):
            opt.zero_grad()
            opt.lagrangian(*terms(net, batch(i))).backward()
            step()
    assert torch.allclose(flat(nets[0]), flat(nets[1]), atol=1e-6)
    assert torch.allclose(opts[0].multipliers, opts[1].multipliers, atol=1e-6)
    assert opts[0].dual_steps == 5


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")  # the compiler's own imports
def test_model_of_compiled_kernels(monkeypatch, tmp_path):
    compilers = [os.environ.get("CXX"), "g++", "clang++"]
    if not any(name and shutil.which(name) for name in compilers):
        pytest.skip("no C++ compiler is installed: torch.compile's kernels are NOT tested here")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    import torch._inductor.config

    with torch._inductor.config.patch(compile_threads=1):  # no pool of workers to outlive the test
        train_both("paper", "inductor")


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_calibration_of_a_model_trained_before_says_what_it_needs(kind):
    torch._dynamo.reset()
    net = network()
    opt = make(kind, net.parameters())
    compiled = torch.compile(net, backend="aot_eager")
    compiled(batch(0)).sum().backward()  # which settles that the graph is used once
    opt.zero_grad()
    with pytest.raises(RuntimeError) as caught:
        opt.lagrangian(*terms(compiled, batch(0)))
    assert any("donated_buffer = False" in note for note in caught.value.__notes__)
    opt.calibrate(terms(net, batch(i)) for i in range(8))
    train(compiled, opt, 5)
    assert opt.dual_steps == 5
