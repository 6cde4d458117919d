"""Captured oracles on a CUDA device give the numbers of eager ones. Skipped on a machine without one."""

import functools

import pytest
import torch

import gdpa
from gdpa import Evaluation
from gdpa.oracles.torch_capture import WARM_UP, CapturedEvaluation, numbers_kept

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
A = torch.arange(35.0, dtype=torch.float64).reshape(7, 5).sin()
POINT = torch.linspace(-1, 1, 5, dtype=torch.float64)


@functools.cache
def matrix(device):
    """A on the device: a copy from the host is nothing that a capture allows."""
    return A.to(device)


def function(x):
    return (x**4).sum(), torch.tanh(matrix(x.device) @ x) * x[0] - 0.5


class Unbatched(torch.autograd.Function):
    """x^2 with a backward pass that torch cannot batch."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        if torch._C._functorch.is_batchedtensor(gradient):
            raise RuntimeError("no batching rule")
        return 2 * x * gradient


class Looking(Unbatched):
    """x^2 with a backward pass that looks at a number, which no capture allows."""

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient if gradient.abs().sum().item() >= 0 else gradient


def with_square(square):
    return lambda x: (x.sum(), square.apply(x) - 1.0)


def rows_after_capture(function):
    problem = gdpa.from_torch(function)
    x = POINT.cuda()
    for _ in range(WARM_UP + 3):
        now = problem.evaluate(x)
        J = now.jacobian()
        gradient = now.pullback(torch.ones(len(J), dtype=x.dtype, device=x.device))
    return now, J, gradient


@needs_cuda
@pytest.mark.parametrize("f", [function, with_square(Unbatched)], ids=["batched", "unbatched"])
def test_captured_rows_are_those_of_autograd(f):
    now, J, gradient = rows_after_capture(f)
    assert isinstance(now, CapturedEvaluation)
    x = POINT.cuda()
    assert torch.allclose(J, torch.autograd.functional.jacobian(lambda z: f(z)[1], x))
    expected = torch.autograd.functional.jacobian(lambda z: f(z)[0] + f(z)[1].sum(), x)
    assert torch.allclose(gradient, expected)


@needs_cuda
def test_a_backward_pass_that_cannot_be_captured_is_made_eagerly():
    f = with_square(Looking)
    now, J, gradient = rows_after_capture(f)
    assert type(now) is Evaluation
    x = POINT.cuda()
    assert torch.allclose(J, torch.diag(2 * x))
    assert torch.allclose(gradient, 1 + 2 * x)
    with pytest.warns(RuntimeWarning, match="without a captured graph"):
        gdpa.solve(gdpa.from_torch(f, capture=True), x, record=0, stop=gdpa.MaxSteps(20))


@needs_cuda
def test_solve_on_the_device_finds_the_point_of_the_host():
    def chain(x):
        f = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
        return f, torch.stack([x @ x - 2.0, x[:3].mean() - 0.6])

    host = gdpa.solve(gdpa.from_torch(chain), POINT)
    device = gdpa.solve(gdpa.from_torch(chain), POINT.cuda())
    assert device.success
    assert device.x.is_cuda
    assert torch.allclose(device.x.cpu(), host.x, atol=1e-6)


def test_the_activations_of_a_layer_are_kept_and_its_data_are_not():
    x, data = torch.ones(5, dtype=torch.float64, requires_grad=True), torch.ones(100, 5, dtype=torch.float64)
    assert numbers_kept(lambda z: (torch.tanh(data @ z).sum(), z), x) == 100
