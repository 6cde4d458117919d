"""What one GDPA iteration costs on mNPC: against a plain gradient step, and against two bare matrix products.

All images of digits 1, 2, 3 and 4 (24,673 x 784). The three are timed in turns, so that all see the same machine, and
the best time of each counts: load only adds. With several threads wait for an idle machine: a product whose threads
wait for each other suffers from load much more than its neighbors, and the pullback makes one product per class.

    python benchmarks/mnpc_cost.py [--dtype float64] [--repeats 60] [--images-per-class N] [--threads N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from gdpa import GDPA
from gdpa.paper.applications.neyman_pearson import NeymanPearson, neyman_pearson
from gdpa.paper.data.images import load

LIMITS = {"plain gradient step": 1.05, "two bare products": 1.5}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--images-per-class", type=int, default=None)
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    images = load("mnist")
    dtype = getattr(torch, args.dtype)
    study = neyman_pearson(images.train_x, images.train_y, images_per_class=args.images_per_class, dtype=dtype)
    best = measure(study, args.repeats)
    print(f"mNPC, {len(study.samples)} x {study.dimension}, {args.dtype}, {torch.get_num_threads()} thread(s)")
    for name, seconds in best.items():
        print(f"  {name:<22}{1e3 * seconds:9.2f} ms")
    for name, limit in LIMITS.items():
        ratio = best["GDPA iteration"] / best[name]
        verdict = "within" if ratio <= limit else "ABOVE"
        print(f"  one GDPA iteration = {ratio:.3f} of {name:<22}({verdict} the limit {limit})")
    return 0


def measure(study: NeymanPearson, repeats: int) -> dict[str, float]:
    """Return the least seconds of each."""
    problem, x = study.problem, study.start()
    algorithm = GDPA(alpha=0.01, beta=1.0)
    holder: dict[str, Any] = {"state": algorithm.init(problem, x), "x": x, "now": problem.evaluate(x)}
    w = torch.ones(len(study.classes) - 1, dtype=x.dtype)
    X, W = study.samples, x.reshape(len(study.classes), -1)
    D = torch.randn(len(X), len(study.classes), dtype=x.dtype)

    def gdpa() -> None:
        holder["state"] = algorithm.update(problem, holder["state"])

    def plain() -> None:
        holder["x"] = holder["x"] - 1e-3 * holder["now"].pullback(w)
        holder["now"] = problem.evaluate(holder["x"])

    def bare() -> None:
        _ = X @ W.T
        _ = D.T @ X

    jobs = [("GDPA iteration", gdpa), ("plain gradient step", plain), ("two bare products", bare)]
    best: dict[str, float] = {}
    for k in range(repeats + 5):
        shift = k % len(jobs)  # nobody always runs in the caches the same neighbor left
        for name, work in jobs[shift:] + jobs[:shift]:
            seconds = timed(work)
            if k >= 5:  # the first turns warm the caches
                best[name] = min(seconds, best.get(name, seconds))
    return best


def timed(work: Callable[[], None]) -> float:
    clock = time.perf_counter()
    work()
    return time.perf_counter() - clock


if __name__ == "__main__":
    raise SystemExit(main())
