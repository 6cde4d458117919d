"""On a CUDA device: what a constrained step costs under a captured graph, and that CUDA agrees with the CPU.

    python -m benchmarks.cuda

Both sides of a ratio run interleaved in one process: the same network, the same batch, the same captured graph, once
with fixed weights on the constraints and once with GDPA's. Prints one line per figure; records and table go to
results/cuda/, beside those of benchmarks.cuda_solve.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import gdpa
import gdpa.torch
from benchmarks.cuda_report import table
from benchmarks.provenance import Study

#: Batches that `calibrate` reads before a step is captured.
CALIBRATION = 8


def keep(study: Study, rows: list[dict[str, Any]]) -> None:
    """Keep the figures of one part and write its table."""
    full = study.replace([{**row, "machine": torch.cuda.get_device_name()} for row in rows])
    study.write(table(full), f"{study.part}.md")


def network(width: int) -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(784, width), torch.nn.Tanh(), torch.nn.Linear(width, width), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 10)).cuda()


def losses(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    each = torch.nn.functional.cross_entropy(net(x), y, reduction="none").reshape(3, -1).mean(1)
    return each[0], each[1:] - 1.0


def captured(step: Callable[[], None]) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def race(runs: dict[str, Callable[[], None]], rounds: int, block: int) -> dict[str, float]:
    """Median milliseconds of one call of each, by turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(block):
                run()
            stop.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(stop) / block)
    return {name: statistics.median(values) for name, values in times.items()}


def calibrate(opt: Any, net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Measure the gradient ratios first, since a captured step cannot; the paper's method has none."""
    if hasattr(opt, "calibrate"):
        opt.calibrate(losses(net, x, y) for _ in range(CALIBRATION))


def adamw(fused: bool, parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, capturable=True, fused=fused)


def captured_steps(width: int, batch: int) -> list[dict[str, Any]]:
    x = torch.randn(batch, 784, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    y = torch.randint(10, (batch,), device="cuda", generator=torch.Generator("cuda").manual_seed(2))
    fixed = torch.full((2,), 0.5, device="cuda")
    runs: dict[str, Callable[[], None]] = {}
    kinds: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
        "GDPA over SGD": (lambda p: torch.optim.SGD(p, lr=1e-3), lambda p: gdpa.torch.GDPA(p, 2, capturable=True)),
        **{
            f"GDPA({name}) over {name}": (
                partial(adamw, fused),
                lambda p, fused=fused: gdpa.torch.constrain(adamw(fused, p), 2, capturable=True),
            )
            for name, fused in (("fused AdamW", True), ("AdamW", False))
        },
    }
    size = sum(p.numel() for p in network(width).parameters())
    rows = []
    for name, (plain_of, ours_of) in kinds.items():
        plain_net, our_net = network(width), network(width)
        plain, ours = plain_of(plain_net.parameters()), ours_of(our_net.parameters())

        def plain_step(net: Any = plain_net, opt: Any = plain) -> None:
            opt.zero_grad(set_to_none=False)
            f, g = losses(net, x, y)
            (f + fixed @ g).backward()
            opt.step()

        def our_step(net: Any = our_net, opt: Any = ours) -> None:
            opt.zero_grad(set_to_none=False)
            opt.lagrangian(*losses(net, x, y)).backward()
            opt.step()

        calibrate(ours, our_net, x, y)
        runs = {"plain": captured(plain_step), "ours": captured(our_step)}
        times = race(runs, rounds=30, block=50)
        rows.append({"figure": f"captured graph, {name}", "parameters": size, "batch": batch,
                     "plain_ms": times["plain"], "ours_ms": times["ours"],
                     "ratio": times["ours"] / times["plain"]})  # fmt: skip
    return rows


def gaps(nets: list[torch.nn.Sequential], opts: list[Any]) -> dict[str, float]:
    torch.cuda.synchronize()
    pairs = zip(nets[0].parameters(), nets[1].parameters(), strict=True)
    gap = max(float((a - b).detach().abs().max()) for a, b in pairs)
    return {"largest gap in x": gap, "in multipliers": float((opts[0].multipliers - opts[1].multipliers).abs().max())}


def captured_equals_eager(kind: str, make: Callable[[Any, bool], Any]) -> list[dict[str, Any]]:
    """The same 40 steps replayed, eager, and eager with the numbers on the host; then a batch that is not finite."""
    x, y = torch.randn(96, 784, device="cuda"), torch.randint(10, (96,), device="cuda")
    nets = [network(64), network(64), network(64)]
    opts = [make(net.parameters(), capturable) for net, capturable in zip(nets, (True, True, False), strict=True)]
    for net, opt in zip(nets, opts, strict=True):
        calibrate(opt, net, x, y)

    def step(net: Any, opt: Any) -> None:
        opt.zero_grad(set_to_none=False)
        opt.lagrangian(*losses(net, x, y)).backward()
        opt.step()

    replay = captured(lambda: step(nets[0], opts[0]))  # 3 warm-up steps; capturing itself runs nothing
    for _ in range(37):
        replay()
    for net, opt in zip(nets[1:], opts[1:], strict=True):
        for _ in range(40):
            step(net, opt)
    rows = [
        {"figure": f"{kind}: captured graph against eager, 40 steps", **gaps(nets, opts)},
        {"figure": f"{kind}: captured graph against not capturable, 40 steps", **gaps(nets[::2], opts[::2])},
    ]
    kept, good = nets[1], x.clone()
    kept.load_state_dict(nets[0].state_dict())
    x.fill_(torch.nan)
    replay()
    rows.append({"figure": f"{kind}: what a replay with NaN in the data moves", **gaps(nets, opts)})
    x.copy_(good)
    replay()
    rows.append({"figure": f"{kind}: what the next one moves", **gaps(nets, opts)})
    return rows


def solve_agrees(samples: int) -> list[dict[str, Any]]:
    """A problem of 4 x 784 unknowns solved on both devices; and an iteration of GDPA over a plain gradient step."""
    generator = torch.Generator().manual_seed(0)
    means = 0.1 * torch.randn(4, 784, generator=generator, dtype=torch.float64)
    data = [torch.randn(samples, 784, generator=generator, dtype=torch.float64) + mean for mean in means]

    def make(device: str, dtype: torch.dtype) -> Any:
        local = [d.to(device, dtype) for d in data]

        def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            W = x.reshape(4, 784)
            loss = []
            for j, d in enumerate(local):
                z = d @ W.T
                loss.append(torch.sigmoid(z - z[:, j : j + 1]).mean(0).sum() - 0.5)
            return loss[0] + 0.5 * x @ x, torch.stack(loss[1:]) - 0.3

        return gdpa.from_torch(function), torch.zeros(3136, device=device, dtype=dtype)

    rows = []
    reference = None
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float64), ("cuda", torch.float32)):
        problem, x0 = make(device, dtype)
        tolerance = 1e-6 if dtype is torch.float64 else 1e-3
        start = time.perf_counter()
        result = gdpa.solve(problem, x0, tolerance=tolerance)
        seconds = time.perf_counter() - start
        point = result.x.double().cpu()
        reference = point if reference is None else reference
        rows.append({"figure": f"AdaptiveGDPA on {device} {str(dtype).removeprefix('torch.')}",
                     "success": result.success, "forwards": result.forwards, "seconds": seconds,
                     "gap to the CPU's x": float((point - reference).abs().max())})  # fmt: skip
    problem, x0 = make("cuda", torch.float32)
    algorithm = gdpa.GDPA(alpha=0.01, beta=1.0)
    states = [algorithm.init(problem, x0)]
    weights = torch.ones(3, device="cuda")
    points = [x0]

    def plain() -> None:
        points[0] = points[0] - 0.001 * problem.evaluate(points[0]).pullback(weights)

    def ours() -> None:
        states[0] = algorithm.update(problem, states[0])

    times = race({"plain": plain, "ours": ours}, rounds=20, block=20)
    rows.append({"figure": "GDPA iteration over a plain gradient step (eager)", "plain_ms": times["plain"],
                 "ours_ms": times["ours"], "ratio": times["ours"] / times["plain"]})  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=2800, help="2800: about 10 million parameters")
    parser.add_argument("--batch", type=int, default=3072)
    parser.add_argument("--samples", type=int, default=6000, help="per class")
    parser.add_argument("--out", type=Path, default=None, help="default: results/cuda")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device is available; these figures need one")
    study = Study("benchmarks.cuda", "cuda", part="training", out=options.out)
    rows: list[dict[str, Any]] = []
    kinds: dict[str, Callable[[Any, bool], Any]] = {
        "GDPA": lambda p, capturable: gdpa.torch.GDPA(p, 2, lr=0.002, capturable=capturable),
        "GDPA(AdamW fused)": lambda p, capturable: gdpa.torch.constrain(
            torch.optim.AdamW(p, lr=1e-3, fused=True, capturable=True), 2, capturable=capturable
        ),
    }
    for part in (lambda: captured_steps(options.width, options.batch),
                 *(lambda kind=kind: captured_equals_eager(kind, kinds[kind]) for kind in kinds),
                 lambda: solve_agrees(options.samples)):  # fmt: skip
        for row in part():
            rows.append(row)
            print(json.dumps(row), flush=True)
    keep(study, rows)


if __name__ == "__main__":
    main()
