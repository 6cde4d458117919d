"""Large problems on one device: the method's own time for a step, the time of the oracle, and the memory.

The minimum of a chained quartic under 3 smooth constraints, by torch, with x0 on the device; `gdpa.solve` to 1e-6 in
float64 and 1e-4 in float32.

    python -m benchmarks.large_device [--device cuda] [--sizes 10000 1000000 ...] [--profile] [--count] [--save]

On the CPU, times are of the processor. With ``--count`` each run is repeated to count, on any device, the numbers a
variable that are alive at the peak and how often a step waits for a device. With ``--save`` the figures are kept in
results/cuda.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from typing import Any

import torch

import gdpa
from benchmarks.cuda import keep
from benchmarks.provenance import Study
from benchmarks.storages import Storages

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}


def chained(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean of a chained quartic, and three constraints that are active or nearly so at its minimum."""
    step = x[1:] - x[:-1]
    f = (x**4).mean() / 4 + (step**2).mean() + ((x - 1) ** 2).mean()
    third = x.shape[-1] // 3
    parts = [x[:third], x[third : 2 * third], x[2 * third :]]
    limits = (0.3, 0.4, 2.0)
    return f, torch.stack([(part**2).mean() - limit for part, limit in zip(parts, limits, strict=True)])


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(d: int, dtype: torch.dtype, device: str, memory: int) -> dict[str, Any]:
    x0 = torch.linspace(0.0, 2.0, d, dtype=dtype, device=device)
    problem = gdpa.from_torch(chained, num_constraints=3)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    spent, clock = [0.0], time.perf_counter if device == "cuda" else time.process_time

    def timed(call: Any) -> Any:
        def wrapped(*arguments: Any) -> Any:
            synchronize(device)
            begin = clock()
            found = call(*arguments)
            synchronize(device)
            spent[0] += clock() - begin
            return found

        return wrapped

    def evaluate(x: Any) -> Any:
        now = timed(problem.evaluate)(x)
        whole = None if now.whole is None else timed(now.whole)
        return gdpa.Evaluation(now.objective, now.constraints, timed(now.pullback), whole, now.passes)

    counted = gdpa.Problem(evaluate, num_constraints=3)
    begin = clock()
    method = gdpa.AdaptiveGDPA(memory=memory)
    result = gdpa.solve(counted, x0, method, tolerance=TOLERANCE[dtype], record=0)
    synchronize(device)
    seconds = clock() - begin
    own = 1e3 * (seconds - spent[0]) / max(result.steps, 1)
    oracle = 1e3 * spent[0] / max(result.steps, 1)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    found = {"steps": result.steps, "success": result.success, "own ms": own, "oracle ms": oracle}
    return {**found, "numbers a variable": peak / d / x0.element_size()}


def count(d: int, dtype: torch.dtype, device: str, memory: int) -> dict[str, float]:
    """Return the numbers a variable that are alive at the peak, and how often a step waits for the device."""
    x0 = torch.linspace(0.0, 2.0, d, dtype=dtype, device=device)
    problem, method = gdpa.from_torch(chained, num_constraints=3), gdpa.AdaptiveGDPA(memory=memory)
    with Storages(least=d * x0.element_size() // 2) as seen:
        result = gdpa.solve(problem, x0, method, tolerance=TOLERANCE[dtype], record=0)
    numbers = seen.peak / d / x0.element_size()
    return {"numbers a variable": numbers, "waits a step": seen.waits / max(result.steps, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--dtypes", nargs="+", default=["float64", "float32"])
    parser.add_argument("--memory", type=int, default=20, help="pairs of the quasi-Newton matrix")
    parser.add_argument("--profile", action="store_true", help="print where the time of the last size goes")
    parser.add_argument("--count", action="store_true", help="count numbers a variable and waits for the device")
    parser.add_argument("--save", action="store_true", help="keep the figures in results/cuda")
    given = parser.parse_args()
    head = (
        "d",
        "dtype",
        "steps",
        "certified",
        "own ms a step",
        "oracle ms a step",
        "own / oracle",
        "numbers a variable",
        "waits a step",
    )
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    rows = []
    for name in given.dtypes:
        measure(10_000, getattr(torch, name), given.device, given.memory)  # loads the kernels
    for d in given.sizes:
        for name in given.dtypes:
            with cProfile.Profile() as profile:
                found = measure(d, getattr(torch, name), given.device, given.memory)
            if given.count:
                found |= count(d, getattr(torch, name), given.device, given.memory)
            own, oracle, numbers = found["own ms"], found["oracle ms"], found["numbers a variable"]
            cells = [f"{d:,}", name, found["steps"], found["success"], f"{own:.1f}", f"{oracle:.1f}"]
            cells += [f"{own / oracle:.1f}", f"{numbers:.0f}" if numbers else "-"]
            cells += [f"{found['waits a step']:.0f}" if given.count else "-"]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
            figure = f"a step of AdaptiveGDPA with {d:,} variables, {name}, {given.memory} pairs"
            rows.append({"figure": figure, **{key.replace(" ", "_"): value for key, value in found.items()}})
    if given.save:
        keep(Study("benchmarks.large_device", "cuda", part=f"large-{given.memory}"), rows)
    if given.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(18)


if __name__ == "__main__":
    main()
