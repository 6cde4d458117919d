"""AdaptiveGDPA and GDPA in `gdpa.solve` on a CUDA device, on mNPC as a user writes it with `gdpa.from_torch`.

    python -m benchmarks.cuda_solve [--capture {auto,never}]

All MNIST images of the digits 1 to 4 with unit noise (24,673 x 784, d = 3136, m = 3): seconds and passes to a relative
KKT residual of 1e-5 in float64 and of 1e-3 in float32, and an iteration of GDPA beside a plain gradient step. Then the
figures that chose `placement.MOST_VARIABLES` and `torch_capture.ONE_LAUNCH`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import gdpa
from benchmarks.cuda import keep
from benchmarks.provenance import Study
from gdpa.oracles.torch_capture import CapturedOracle
from gdpa.paper.data.images import load as load_images
from gdpa.run import placement

CLASSES, PIXELS, LIMIT = (1, 2, 3, 4), 784, 0.1
Tensor = torch.Tensor


def mnpc(dtype: torch.dtype) -> tuple[Callable[[Tensor], tuple[Tensor, Tensor]], Tensor]:
    """Return the function x -> (f, g) and a start, on the device."""
    data, random = load_images("mnist"), torch.Generator().manual_seed(0)
    samples = []
    for label in CLASSES:
        images = torch.as_tensor(data.train_x[data.train_y == label]).reshape(-1, PIXELS).double() / 255
        samples.append((images + torch.randn(images.shape, generator=random, dtype=torch.float64)).to("cuda", dtype))

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        W = x.reshape(len(CLASSES), PIXELS)
        losses = []
        for j, xi in enumerate(samples):
            scores = xi @ W.T
            losses.append((torch.sigmoid(scores - scores[:, j : j + 1]).sum(1) - 0.5).mean())
        return losses[0] + x @ x / 2, torch.stack(losses[1:]) - LIMIT

    start = torch.randn(len(CLASSES) * PIXELS, generator=random, dtype=torch.float64) * 1e-3**0.5
    return function, start.to("cuda", dtype)


def on_the_device(progress: Any) -> None:
    """An observer: with one, `gdpa.solve` keeps the vectors of the method on the device of x0."""


def to_tolerance(dtype: torch.dtype, tolerance: float, capture: bool | None, device: bool = False) -> dict[str, Any]:
    """Solve three times (the first run loads kernels) and return the figures of the faster of the others."""
    function, start = mnpc(dtype)
    observers = (on_the_device,) if device else ()
    times = []
    for _ in range(3):
        problem = gdpa.from_torch(function, capture=capture)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        result = gdpa.solve(problem, start, tolerance=tolerance, record=0, observers=observers)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    seconds = min(times[1:])
    where = ", vectors kept on the device" if device else ""
    return {"figure": f"mNPC to {tolerance:g}, {named(dtype)}{where}", "seconds": seconds,
            "success": result.success, "steps": result.steps, "forwards": result.forwards,
            "backwards": result.backwards, "worst": float(result.certificate.relative.worst),
            "ms_a_step": 1e3 * seconds / result.steps}  # fmt: skip


def named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def step_by_size(d: int) -> dict[str, Any]:
    """Return milliseconds of a step of AdaptiveGDPA on a chain of d variables, its vectors on the host and not."""
    start = 0.5 + 0.1 * torch.randn(d, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cuda()

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        f = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum() / d
        return f, torch.stack([x @ x / d - 0.5, x[: d // 2].mean() - 0.6, -x.mean()])

    row: dict[str, Any] = {"figure": f"milliseconds of a step with {d:,} variables"}
    for name, observers in (("host", ()), ("device", (on_the_device,))):
        problem, stop, best = gdpa.from_torch(function), gdpa.MaxSteps(30), float("inf")
        for _ in range(2):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            with mock.patch.object(placement, "MOST_VARIABLES", d):
                result = gdpa.solve(problem, start, stop=stop, record=0, observers=observers)
            torch.cuda.synchronize()
            best = min(best, 1e3 * (time.perf_counter() - begin) / max(1, result.steps))
        row[f"vectors_on_the_{name}"] = best
    return row


def rows_over_a_pullback(m: int) -> dict[str, Any]:
    """Return how long all derivatives of a captured network with m constraints take, over one pullback."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64 * 512, 64, generator=generator).cuda()
    start = 0.1 * torch.randn(64 * 256 + 256, generator=generator).cuda()

    def function(z: Tensor) -> tuple[Tensor, Tensor]:
        W, v = z[: 64 * 256].reshape(64, 256), z[64 * 256 :]
        losses = torch.nn.functional.softplus(torch.tanh(x @ W) @ v)
        return losses.mean(), losses[: len(x) // m * m].reshape(m, -1).mean(1)

    oracle = CapturedOracle(function, start, gdpa.from_torch(function, capture=False).evaluate)
    w, times = torch.ones(m, device="cuda"), {}
    for name, run in (
        ("pullback_ms", lambda: oracle.evaluate(start).pullback(w)),
        ("rows_ms", lambda: oracle.evaluate(start).derivatives()),
    ):
        for number in range(60):
            if number == 10:
                torch.cuda.synchronize()
                begin = time.perf_counter()
            oracle._asked = False
            run()
        torch.cuda.synchronize()
        times[name] = 1e3 * (time.perf_counter() - begin) / 50
    return {"figure": f"values and all {m} rows over values and one pullback, captured", **times,
            "ratio": times["rows_ms"] / times["pullback_ms"]}  # fmt: skip


def gdpa_iteration(dtype: torch.dtype, capture: bool | None) -> dict[str, Any]:
    """Return the time of an iteration of GDPA in `solve` over a plain gradient step with fixed weights, both eager."""
    function, start = mnpc(dtype)
    problem = gdpa.from_torch(function, capture=capture)
    weights = torch.full((3,), 0.5, dtype=dtype, device="cuda")
    steps = 200

    def plain() -> None:
        x = start.clone()
        for _ in range(steps):
            x = x.requires_grad_(True)
            f, g = function(x)
            (gradient,) = torch.autograd.grad(f + weights @ g, x)
            x = x.detach() - 1e-3 * gradient

    def ours() -> None:
        gdpa.solve(problem, start, gdpa.GDPA(alpha=1e-3), stop=gdpa.MaxSteps(steps), check_every=steps, record=0)

    times: dict[str, list[float]] = {"plain": [], "ours": []}
    for _ in range(7):
        for name, run in (("plain", plain), ("ours", ours)):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            run()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - begin) / steps)
    best = {name: statistics.median(values[1:]) for name, values in times.items()}
    return {"figure": f"GDPA in solve over a plain step, {named(dtype)}",
            "plain_ms": 1e3 * best["plain"], "ours_ms": 1e3 * best["ours"],
            "ratio": best["ours"] / best["plain"]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=None, help="default: results/cuda")
    parser.add_argument("--capture", choices=["auto", "never"], default="auto", help="captured graphs or not")
    args = parser.parse_args()
    capture = None if args.capture == "auto" else False
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.cuda_solve needs a CUDA device; torch sees none")
    figures: list[Callable[[], dict[str, Any]]] = [
        partial(to_tolerance, torch.float64, 1e-5, capture),
        partial(to_tolerance, torch.float32, 1e-3, capture),
        partial(to_tolerance, torch.float64, 1e-5, capture, device=True),
        partial(to_tolerance, torch.float32, 1e-3, capture, device=True),
        partial(gdpa_iteration, torch.float64, capture),
        partial(gdpa_iteration, torch.float32, capture),
        *(partial(rows_over_a_pullback, m) for m in (4, 16, 64)),
        *(partial(step_by_size, d) for d in (1_000, 10_000, 100_000, 1_000_000)),
    ]
    rows = []
    for figure in figures:
        row = figure()
        rows.append(row)
        print(*(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), sep="  ", flush=True)
    keep(Study("benchmarks.cuda_solve", "cuda", part="solve", out=args.out), rows)


if __name__ == "__main__":
    main()
