"""Hundreds of limits in a training run: cost of a step, distance to a full-batch solve, groups absent from batches.

1. ``cost``: CPU time of a step with 306 limits as one vector, by name, and without limits.
2. ``rates``: 200 groups of 40 samples, a logistic model with a bias for each group, the mean score of every group at
   most 0.35, four samples of each group in a batch, 3,000 steps of Adam. The full-batch solve is SciPy's SLSQP.
3. ``bare``: the same with 306 groups and a bare vector g, without ``sizes=``, for 16 seeds: does a run collapse?
4. ``groups``: 500 groups of 20 samples, the mean squared error of each at most 0.06, batches of 256 (60 % of the groups
   absent), 6,000 steps, with and without ``sizes=``. The largest of the 500 violations is noise of the last
   steps, with and without sizes.

    python -m benchmarks.many_limits [cost] [rates] [bare] [groups] [--seeds 3]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

import gdpa.torch
from gdpa.torch import Limits, at_most

RATE_LIMIT, GROUPS, SAMPLES, FEATURES, PER_BATCH = 0.35, 200, 40, 8, 4
ERROR_LIMIT, MANY, FEW_SAMPLES, BATCH = 0.06, 500, 20, 256
COST_LIMITS, BARE_SEEDS = 306, 16


class Biased(torch.nn.Module):
    """A linear model with a bias for each group."""

    def __init__(self, features: int, groups: int) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(features))
        self.b = torch.nn.Parameter(torch.zeros(groups))


def rates_data(groups: int = GROUPS) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(groups, SAMPLES, FEATURES, generator=rng)
    shift = torch.linspace(-1.5, 1.5, groups)[torch.randperm(groups, generator=rng)]
    score = 2 * x @ (torch.randn(FEATURES, generator=rng) / FEATURES**0.5) + shift[:, None]
    return x, (torch.rand(groups, SAMPLES, generator=rng) < torch.sigmoid(score)).float()


def rates_losses(net: Any, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    x, y = batch
    score = x @ net.w + net.b[:, None]
    return cross_entropy(score, y), {"rate": torch.sigmoid(score).mean(1)}


def solve_rates(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the least full-batch loss under the limits, by SLSQP."""
    x, y = x.double(), y.double()

    def values(z: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        point = torch.tensor(z, requires_grad=True)
        score = x @ point[:FEATURES] + point[FEATURES:, None]
        return point, cross_entropy(score, y), torch.sigmoid(score)

    def objective(z: Any) -> tuple[float, Any]:
        point, f, _ = values(z)
        return f.item(), torch.autograd.grad(f, point)[0].numpy()

    def jacobian(z: Any) -> Any:
        slope = values(z)[2].detach()
        slope = slope * (1 - slope)
        return -torch.cat([(slope[..., None] * x).mean(1), torch.diag(slope.mean(1))], 1).numpy()

    limits: Any = {"type": "ineq", "fun": lambda z: RATE_LIMIT - values(z)[2].detach().mean(1).numpy(), "jac": jacobian}
    options: Any = {"maxiter": 500, "ftol": 1e-10}
    found = minimize(
        objective, np.zeros(FEATURES + len(x)), jac=True, method="SLSQP", constraints=limits, options=options
    )
    assert found.success, found.message
    return float(found.fun)


def train_rates(seed: int, groups: int = GROUPS, bare: bool = False, steps: int = 3000) -> dict[str, float]:
    """Train with the defaults; return loss and largest violation (a share of the limit) of the weights kept."""
    x, y = rates_data(groups)
    torch.manual_seed(seed)
    net = Biased(FEATURES, groups)
    limits: Any = groups if bare else Limits(rate=at_most(RATE_LIMIT, size=groups))
    opt = gdpa.torch.constrain(torch.optim.Adam(net.parameters(), lr=0.02), limits)
    rows = torch.arange(groups)[:, None]

    def losses(net: Any, batch: Any) -> tuple[torch.Tensor, Any]:
        f, values = rates_losses(net, batch)
        return f, values["rate"] - RATE_LIMIT if bare else values

    for step in range(steps):
        part = step % (SAMPLES // PER_BATCH)
        if part == 0:
            order = torch.rand(groups, SAMPLES).argsort(1)
        index = order[:, PER_BATCH * part : PER_BATCH * (part + 1)]
        opt.zero_grad()
        opt.lagrangian(*losses(net, (x[rows, index], y[rows, index]))).backward()
        opt.step()
    kept = opt.finish(net, [(x, y)], losses).certificate
    return {"objective": kept.objective, "violation": kept.violation / (RATE_LIMIT if bare else 1.0)}


def groups_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(MANY, FEW_SAMPLES, 5, generator=rng)
    level = x @ torch.randn(5, generator=rng) + torch.randn(MANY, generator=rng)[:, None]
    y = level + 0.15 * torch.randn(MANY, FEW_SAMPLES, generator=rng)
    return x.flatten(0, 1), y.flatten(), torch.arange(MANY).repeat_interleave(FEW_SAMPLES)


def train_groups(seed: int, sized: bool, steps: int = 6000) -> dict[str, float]:
    """Train the smallest outputs under limits on errors; return loss and largest violation, a share of the limit."""
    x, y, group = groups_data()

    def losses(net: Any, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = x[index] @ net.w + net.b[group[index]]
        zero = torch.zeros(MANY)
        total = zero.index_add(0, group[index], (out - y[index]).square())
        count = zero.index_add(0, group[index], torch.ones(len(index)))
        return out.square().mean(), total / count - ERROR_LIMIT

    torch.manual_seed(seed)
    net = Biased(5, MANY)
    base = torch.optim.Adam(net.parameters(), lr=0.01)
    names = [f"group {i}" for i in range(MANY)]
    opt = gdpa.torch.constrain(base, names, nan="absent", sizes=ERROR_LIMIT if sized else None)
    for index in _epochs(len(y), steps):
        opt.zero_grad()
        opt.lagrangian(*losses(net, index)).backward()
        opt.step()
    kept = opt.finish(net, [torch.arange(len(y))], losses).certificate
    return {"objective": kept.objective, "violation": kept.violation / ERROR_LIMIT}


def _epochs(samples: int, steps: int) -> Iterator[torch.Tensor]:
    parts = samples // BATCH
    for step in range(steps):
        if step % parts == 0:
            order = torch.randperm(samples)
        yield order[BATCH * (step % parts) : BATCH * (step % parts + 1)]


def step_costs(repeats: int = 7, steps: int = 100) -> dict[str, float]:
    """Return microseconds of CPU time of a step, the least of several repeats, after calibration."""
    x = torch.randn(4 * COST_LIMITS, 64)
    y = torch.randn(4 * COST_LIMITS)

    def stepper(form: str) -> Callable[[], None]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
        base: Any = torch.optim.Adam(net.parameters(), lr=1e-4)
        names = [f"g{i}" for i in range(COST_LIMITS)]
        limit = at_most(0.5)
        limits = Limits(g=at_most(0.5, size=COST_LIMITS)) if form == "vector" else Limits(dict.fromkeys(names, limit))
        opt = base if form == "plain" else gdpa.torch.constrain(base, limits)

        def step() -> None:
            opt.zero_grad()
            error = (net(x).squeeze(1) - y).square()
            loss = error.mean()
            if form != "plain":
                means = error.view(COST_LIMITS, 4).mean(1)
                values = {"g": means} if form == "vector" else dict(zip(names, means.unbind(), strict=True))
                loss = opt.lagrangian(loss, values)
            loss.backward()
            opt.step()

        return step

    makers = {form: stepper(form) for form in ("plain", "vector", "by name")}
    for step in makers.values():
        for _ in range(140):  # beyond the batches that calibrate
            step()
    best = dict.fromkeys(makers, float("inf"))
    for _ in range(repeats):
        for form, step in makers.items():
            start = time.process_time()
            for _ in range(steps):
                step()
            best[form] = min(best[form], (time.process_time() - start) / steps * 1e6)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["cost", "rates", "bare", "groups"])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if "cost" in options.parts:
        cost = step_costs()
        for form, us in cost.items():
            print(f"{COST_LIMITS} limits, {form}: {us:.0f} us a step, {us / cost['plain']:.2f} times the plain step")
    for part, groups, seeds in (("rates", GROUPS, options.seeds), ("bare", COST_LIMITS, BARE_SEEDS)):
        if part not in options.parts:
            continue
        least = solve_rates(*rates_data(groups))
        for seed in range(seeds):
            found = train_rates(seed, groups, part == "bare")
            print(
                f"{part}, seed {seed}: loss {100 * (found['objective'] / least - 1):+.2f} % of the full-batch solve, "
                f"largest violation {100 * found['violation']:.2f} % of the limit",
                flush=True,
            )
    if "groups" in options.parts:
        for sized in (True, False):
            for seed in range(options.seeds):
                found = train_groups(seed, sized)
                text = "with sizes" if sized else "without sizes"
                print(
                    f"groups, {text}, seed {seed}: loss {found['objective']:.4f}, "
                    f"largest violation {100 * found['violation']:.1f} % of the limit",
                    flush=True,
                )


if __name__ == "__main__":
    main()
