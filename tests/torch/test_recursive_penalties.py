"""The STORM and SPIDER penalty methods: steps by hand with noise that is known, and a noisy run to the solution."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from gdpa.torch.rules import SpiderPenalty, StormPenalty

NOISE = [0.2, -0.4, 0.3]


def problem(x: Any, xi: float = 0.0, noisy: bool = True) -> Any:
    """min (x - 2)^2/2 subject to x <= 1, with noise: the gradient of f has xi more, and g if it is ``noisy``."""
    return lambda: ((x - 2).square().sum() / 2 + xi * x.sum(), x - 1 + xi * noisy)


def parameter(value: float = 2.0) -> Any:
    return torch.nn.Parameter(torch.tensor([value], dtype=torch.float64))


def test_three_steps_of_storm_by_hand() -> None:
    """d_k = G_k(x_k) + (1 - a_k)(d_{k-1} - G_{k-1}(x_{k-1})) on the sample of step k, a_k = k^(-2/3) / 2."""
    x, eta, rho = parameter(), 0.3, 1.0
    opt = StormPenalty([x], lr=eta, penalty=rho, memory=0.5)

    def gradient(at: float, r: float, xi: float) -> float:
        return at - 2 + xi + r * max(at - 1 + xi, 0)

    points, d = [2.0], 0.0
    for k, xi in enumerate(NOISE, start=1):
        here = gradient(points[-1], rho * k ** (1 / 3), xi)
        if k > 1:
            here += (1 - 0.5 * k ** (-2 / 3)) * (d - gradient(points[-2], rho * (k - 1) ** (1 / 3), xi))
        d = here
        points.append(points[-1] - eta * k ** (-1 / 3) * d)
        opt.step(problem(x, xi))
        assert x.item() == pytest.approx(points[-1], rel=1e-12)


def test_three_steps_of_spider_by_hand() -> None:
    # beta = 2, nu = 1/2, eta = 1/2, q = 2; g of the large batch has no noise, and differences cancel it.
    # 1: u = 1: w = 2 clip(2) = 2; x = 2 - (0 + 0.2 + 2)/2 = 0.9
    # 2: u = 1 + (0.9 - 2) = -0.1: w = 0; x = 0.9 - (-1.1 - 0.4)/2 = 1.65
    # 3: u = 0.65, large batch: w = 2; x = 1.65 - (-0.35 + 0.3 + 2)/2 = 0.675
    x = parameter()
    opt = SpiderPenalty([x], lr=0.5, penalty=2.0, smoothing=0.5, period=2)
    for xi, expected in zip(NOISE, [0.9, 1.65, 0.675], strict=True):
        opt.step(problem(x, xi), large=problem(x))
        assert x.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", [StormPenalty, SpiderPenalty])
def test_noisy_runs_come_near_the_solution(kind: Any) -> None:
    """x* = 1; the bias is 1/rho_k, or nu/beta. The theory of STORM's penalty is for constraints without noise."""
    x, generator = parameter(), torch.Generator().manual_seed(0)
    options = {"penalty": 4.0} if kind is StormPenalty else {"penalty": 4.0, "smoothing": 0.2}
    opt, tail = kind([x], lr=0.05, **options), []
    for k in range(600):
        batch = problem(x, float(torch.randn((), generator=generator)) * 0.1, noisy=kind is SpiderPenalty)
        opt.step(batch, **({} if kind is StormPenalty else {"large": problem(x)}))
        tail += [x.item()] if k >= 400 else []
    assert sum(tail) / len(tail) == pytest.approx(1.03, abs=0.04)


@pytest.mark.parametrize("kind", [StormPenalty, SpiderPenalty])
def test_a_resumed_run_takes_the_same_steps(kind: Any) -> None:
    def take(opt: Any, x: Any, noise: list[float]) -> None:
        for xi in noise:
            opt.step(problem(x, xi), **({} if kind is StormPenalty else {"large": problem(x)}))

    x = parameter()
    opt = kind([x], lr=0.1)
    take(opt, x, NOISE)
    y = torch.nn.Parameter(x.detach().clone())
    other = kind([y], lr=0.1)
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    take(opt, x, NOISE)
    take(other, y, NOISE)
    assert torch.equal(x, y)
    assert other.steps == 6


@pytest.mark.parametrize("kind", [StormPenalty, SpiderPenalty])
def test_a_backward_pass_that_needs_the_parameters_sees_those_of_its_step(kind: Any) -> None:
    """min x^2 y^2 + (x - y)^2 subject to x y >= 1: x = y = 1. A product keeps its factors for the backward pass."""
    x, y = parameter(1.5), parameter(0.5)
    opt = kind([x, y], lr=0.01, penalty=10.0)

    def batch() -> Any:
        return ((x * y) ** 2 + (x - y) ** 2).sum(), 1 - x * y

    for _ in range(500):
        opt.step(batch, **({} if kind is StormPenalty else {"large": batch}))
    assert [x.item(), y.item()] == pytest.approx([1, 1], abs=0.05)


def test_bad_constants_are_named() -> None:
    with pytest.raises(ValueError, match="memory must be a positive finite number, got 0"):
        StormPenalty([parameter()], lr=0.1, memory=0)
    with pytest.raises(ValueError, match="period must be an integer of at least 1, got 0"):
        SpiderPenalty([parameter()], lr=0.1, period=0)
