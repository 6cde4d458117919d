"""What an iteration of GDPA costs, both sides measured in one run.

(a) One GDPA iteration through the torch oracle over one plain gradient step on the same graph with fixed weights: a
    Neyman-Pearson classifier of four classes, n = 24,000 samples of 784 pixels, d = 4 * 784 = 3136 variables, m = 3
    constraints, float32. Target: at most 1.05.
(b) What `solve` adds to each iteration of a bare Python loop with the same NumPy formulas, on a problem of two
    variables with recording off. Target: at most 40 microseconds.

One thread, processor time (other programs then disturb less), the two sides in turn, medians.

    python benchmarks/step_cost.py [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import gdpa

CLASSES, PIXELS, PER_CLASS = 4, 784, 6_000
ALPHA, BETA, TAU = 0.05, 0.5, 0.1


def classifier(per_class: int) -> tuple[Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
    """Return the function (f, g) of the pairwise sigmoid loss and a start."""
    generator = torch.Generator().manual_seed(0)
    images = [torch.rand(per_class, PIXELS, generator=generator) for _ in range(CLASSES)]
    x0 = 0.03 * torch.randn(CLASSES * PIXELS, generator=generator)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        W = x.reshape(CLASSES, PIXELS)
        losses = []
        for j, samples in enumerate(images):
            scores = samples @ W.T
            pairs = torch.sigmoid(scores - scores[:, j : j + 1])  # 1 / (1 + exp((w_j - w_i)^T xi)); 1/2 for i = j
            losses.append(pairs.sum(dim=1).mean() - 0.5)
        return losses[0] + 0.5 * (x @ x), torch.stack(losses[1:]) - 0.1

    return function, x0


def torch_ratio(repetitions: int, steps: int, per_class: int) -> tuple[float, float]:
    """Return the median seconds of a plain gradient step and of a GDPA iteration."""
    function, x0 = classifier(per_class)
    problem = gdpa.from_torch(function, num_constraints=CLASSES - 1)
    algorithm = gdpa.GDPA(alpha=0.01, beta=1.0, tau=TAU)
    fixed = torch.ones(CLASSES - 1)

    def plain() -> None:
        x = x0.clone().requires_grad_(True)
        for _ in range(steps):
            f, g = function(x)
            (gradient,) = torch.autograd.grad(f + fixed @ g, x)
            x = (x - 0.01 * gradient).detach().requires_grad_(True)

    state = algorithm.init(problem, x0)

    def ours() -> None:
        nonlocal state
        for _ in range(steps):
            state = algorithm.update(problem, state)

    plain_seconds, our_seconds = side_by_side(plain, ours, repetitions)
    return plain_seconds / steps, our_seconds / steps


def numpy_overhead(repetitions: int, steps: int) -> tuple[float, float]:
    """Return the median seconds of an iteration of the bare loop and of `solve`."""
    x0 = np.array([0.5, 1.5])

    def objective(x: Any) -> Any:
        return -x[0] * x[1]

    def constraints(x: Any) -> Any:
        return np.array([x @ x - 2])

    def gradient(x: Any) -> Any:
        return np.array([-x[1], -x[0]])

    def jacobian(x: Any) -> Any:
        return 2 * x[None]

    problem = gdpa.from_functions(objective, constraints, gradient=gradient, jacobian=jacobian)
    algorithm = gdpa.GDPA(ALPHA, BETA, TAU)

    def bare() -> Any:
        x, multipliers = x0, np.zeros(1)
        f, g = objective(x), constraints(x)
        for r in range(1, steps + 1):
            alpha, beta = ALPHA * r ** (-1 / 3), BETA * r ** (1 / 3)
            q = (1 - TAU) * multipliers + beta * g
            x = x - alpha * (gradient(x) + np.maximum(q, 0.0) @ jacobian(x))
            f, g = objective(x), constraints(x)
            multipliers = np.where(q > 0, np.maximum((1 - TAU) * multipliers + beta * g, 0.0), 0.0)
        return x, multipliers, f

    def ours() -> Any:
        result = gdpa.solve(problem, x0, algorithm, stop=gdpa.MaxSteps(steps), record=0)
        return result.x_last, result.multipliers_last

    assert np.array_equal(bare()[0], ours()[0]), "the two loops must give the same iterates"
    bare_seconds, our_seconds = side_by_side(bare, ours, repetitions)
    return bare_seconds / steps, our_seconds / steps


def side_by_side(one: Callable[[], Any], other: Callable[[], Any], repetitions: int) -> tuple[float, float]:
    """Run both alternately and return the median seconds of each; the first round warms up and does not count."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repetitions + 1):
        for run, seconds in zip((one, other), times, strict=True):
            start = time.process_time()
            run()
            seconds.append(time.process_time() - start)
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, numpy {np.__version__}, gdpa {gdpa.__version__}; one thread")

    per_class = 300 if quick else PER_CLASS
    plain, ours = torch_ratio(3 if quick else 25, 2, per_class)
    print(
        f"(a) GDPA iteration / plain gradient step, n = {CLASSES * per_class:,}, d = {CLASSES * PIXELS}, m = 3, "
        f"float32: {ours / plain:.3f}   ({1e3 * ours:.2f} ms / {1e3 * plain:.2f} ms; target <= 1.05)"
    )
    bare, solved = numpy_overhead(3 if quick else 15, 500 if quick else 3_000)
    print(
        f"(b) solve over a bare loop, two variables, record=0: {1e6 * (solved - bare):.1f} microseconds per iteration"
        f"   ({1e6 * solved:.1f} - {1e6 * bare:.1f}; target <= 40)"
    )


if __name__ == "__main__":
    main()
