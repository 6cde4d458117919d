"""Rows of J pulled back in batches, and captured graphs: the same numbers as torch.autograd.functional.jacobian."""

import numpy as np
import pytest
import torch

import gdpa
from gdpa.oracles import torch_capture
from gdpa.oracles.torch_capture import Rows
from gdpa.run.oracle import CountingOracle

A = torch.arange(35.0, dtype=torch.float64).reshape(7, 5).sin()


def constraints(x):
    return torch.tanh(A @ x) * x[0] - 0.5


def function(x):
    return (x**4).sum(), constraints(x)


POINT = torch.linspace(-1, 1, 5, dtype=torch.float64)


def autograd(at):
    return torch.autograd.functional.jacobian(constraints, at)


@pytest.mark.parametrize("block", [1, 3, 64])
def test_blocks_of_any_size_give_the_jacobian(block, monkeypatch):
    monkeypatch.setattr(torch_capture, "BLOCK", block)
    J = gdpa.from_torch(function).evaluate(POINT).jacobian()
    assert torch.allclose(J, autograd(POINT), atol=1e-14)


def test_every_row_counts_as_a_backward_pass():
    oracle = CountingOracle(gdpa.from_torch(function))
    now = oracle.problem.evaluate(POINT)
    now.jacobian()
    now.jacobian()
    assert (oracle.method.forwards, oracle.method.backwards) == (1, 7)
    assert not now.has_cheap_jacobian


class Unbatched(torch.autograd.Function):
    """x -> x^2 whose backward pass cannot be batched: it looks at a value of the gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        if gradient.abs().sum().item() == 0:
            return torch.zeros_like(x)
        return 2 * x * gradient


def test_a_function_that_cannot_be_batched_is_pulled_back_row_by_row():
    problem = gdpa.from_torch(lambda x: (x.sum(), Unbatched.apply(x)))
    assert torch.equal(problem.evaluate(POINT).jacobian(), torch.diag(2 * POINT))


def test_a_block_that_does_not_fit_is_halved(monkeypatch):
    sizes, pull = [], torch_capture._pull

    def pull_at_most_two(g, leaf, weights, batched=False):
        if batched:
            sizes.append(len(weights))
            if len(weights) > 2:
                raise torch.OutOfMemoryError("simulated")
        return pull(g, leaf, weights, batched)

    monkeypatch.setattr(torch_capture, "_pull", pull_at_most_two)
    monkeypatch.setattr(torch_capture, "BLOCK", 8)
    leaf = POINT.clone().requires_grad_(True)
    assert torch.allclose(Rows()(constraints(leaf), leaf), autograd(POINT), atol=1e-14)
    assert sizes == [7, 4, 2, 2, 2, 1]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_points_on_the_host_give_values_of_their_own_library(kind):
    problem = gdpa.from_torch(function, device="cpu")
    x = POINT.numpy() if kind == "numpy" else POINT
    now = problem.evaluate(x)
    arrays = (now.constraints, now.pullback(now.constraints), now.pullback(now.constraints, 0.5), now.jacobian())
    assert all(type(a) is type(x) for a in arrays)
    assert torch.allclose(torch.as_tensor(now.jacobian()), autograd(POINT), atol=1e-14)
    plain = gdpa.from_torch(function).evaluate(POINT)
    assert torch.equal(torch.as_tensor(arrays[2]), plain.pullback(plain.constraints, 0.5))


def test_a_numpy_start_solves_a_torch_function_with_a_device():
    problem = gdpa.from_torch(lambda x: (-x[0] * x[1], (x @ x - 2)[None]), device="cpu")
    result = gdpa.solve(problem, np.array([1.0, 2.0]))
    assert result.success
    assert isinstance(result.x, np.ndarray)
    assert result.x == pytest.approx([1.0, 1.0], abs=1e-5)


def test_a_module_is_trained_from_the_host_and_written_back():
    net = torch.nn.Linear(2, 1, bias=False).double()
    data = torch.ones(4, 2, dtype=torch.float64)
    training = gdpa.from_module(net, lambda n: (n(data).square().mean(), 1 - n(data).mean()[None]), device="cpu")
    training.load(gdpa.solve(training).x)
    assert net(data).mean().item() == pytest.approx(1.0, abs=1e-5)


def test_a_point_on_another_device_is_refused():
    problem = gdpa.from_torch(function, device="cpu")
    with pytest.raises(TypeError, match=r"pass x0\.cpu\(\)"):
        problem.evaluate(POINT.to("meta"))


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@cuda
@pytest.mark.parametrize("capture", [None, True])
def test_captured_evaluations_equal_eager_ones(capture):
    matrix = A.cuda()
    on_device = lambda x: ((x**4).sum(), torch.tanh(matrix @ x) * x[0] - 0.5)  # noqa: E731
    problem, eager = gdpa.from_torch(on_device, capture=capture), gdpa.from_torch(on_device, capture=False)
    points = [POINT.cuda() * (1 + 0.1 * k) for k in range(8)]
    calls = [problem.evaluate(x) for x in points]
    w = torch.linspace(0, 1, 7, dtype=torch.float64, device="cuda")
    for x, now in zip(points, calls, strict=True):  # every one but the last is stale by now
        reference = eager.evaluate(x)
        assert torch.allclose(now.objective, reference.objective)
        assert torch.allclose(now.constraints, reference.constraints)
        assert torch.allclose(now.pullback(w, 0.5), reference.pullback(w, 0.5))
        assert torch.allclose(now.jacobian(), reference.jacobian())


@cuda
def test_a_random_function_is_not_captured():
    problem = gdpa.from_torch(lambda x: ((x * torch.randn_like(x)).sum(), x[:1]), capture=True)
    x = POINT.cuda()
    with pytest.warns(RuntimeWarning, match="depend on more than x"):
        values = [float(problem.evaluate(x).objective) for _ in range(8)]
    assert len(set(values)) == 8


@cuda
def test_a_function_that_synchronizes_is_not_captured():
    problem = gdpa.from_torch(lambda x: ((x**2).sum() * (1.0 if x[0].item() < 9 else 2.0), x[:1]), capture=True)
    with pytest.warns(RuntimeWarning, match="without a captured graph"):
        now = [problem.evaluate(POINT.cuda()) for _ in range(6)][-1]
    assert torch.allclose(now.pullback(torch.zeros(1, dtype=torch.float64, device="cuda")), 2 * POINT.cuda())


@cuda
def test_a_change_of_shape_or_dtype_falls_back():
    problem = gdpa.from_torch(lambda x: ((x**2).sum(), x[:1]), capture=True)
    for _ in range(6):
        problem.evaluate(POINT.cuda())
    with pytest.warns(RuntimeWarning, match="changed to shape"):
        assert float(problem.evaluate(torch.ones(3, device="cuda")).objective) == 3.0
