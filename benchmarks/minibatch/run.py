"""Train every task by every rule and append one record per run.

    python -m benchmarks.minibatch.run --suite defaults    # every task, every library's defaults, 5 seeds
    python -m benchmarks.minibatch.run --suite tuning      # four settings each, seed 0
    python -m benchmarks.minibatch.run --suite units       # f or g times 0.01 and 100, seed 0
    python -m benchmarks.minibatch.table                   # the tables, from the records

Adam with learning rate 3e-3, 4,000 steps (calibration batches count among them), float32, one thread: enough for every
task to reach its limits, which 2,000 steps at 1e-3 were not (tried with seed 0). On
the whole training set three models are judged: the last iterate, the exponential average of the weights (0.995) and the
average over the last fifth; the one handed back is the lowest objective among those within 10 % of every limit, or the
smallest violation where none is. The peers' weights are averaged and chosen from in the same way.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import gdpa
from benchmarks.minibatch import tasks
from benchmarks.minibatch.rules import RULES
from benchmarks.provenance import Study
from gdpa.backends.torch import from_module

STEPS, LR, DECAY, TOLERANCE = 4000, 3e-3, 0.995, 0.1
#: The entries that say which run a record is of.
KEY = ("task", "rule", "setting", "seed", "f_scale", "g_scale")


def judge(task: tasks.Task, net: torch.nn.Module) -> dict[str, float]:
    """f and the largest violation relative to its limit, on the whole training set."""
    with torch.no_grad():
        f, g, _ = task.values(net, task.data)
    return {"objective": f.item(), "violation": (g / task.limits).max().item()}


def kkt(task: tasks.Task, net: torch.nn.Module) -> dict[str, float]:
    """KKT residuals on the whole training set, with the best multipliers there are."""

    def values(call: Any) -> tuple[torch.Tensor, torch.Tensor]:
        wrapped = _Call(call, net)
        f, g, _ = task.values(wrapped, task.data)
        return f.double(), (g / task.limits).double()

    problem = from_module(net, values)
    found = gdpa.certify(problem.problem, problem.x0)
    return {"stationarity": float(found.residuals.stationarity), "relative_stationarity": float(found.relative[0])}


class _Call(torch.nn.Module):
    """A functional call of a network that still shows its parameters' values."""

    def __init__(self, call: Any, net: torch.nn.Module) -> None:
        super().__init__()
        self._call, self._net = [call], [net]

    def forward(self, x: torch.Tensor) -> Any:
        return self._call[0](x)

    def parameters(self, recurse: bool = True) -> Any:
        return self._net[0].parameters()


def train(
    name: str, rule: str, setting: str, seed: int, f_scale: float = 1.0, g_scale: float = 1.0, certify: bool = False
) -> dict[str, Any]:
    """Run once and return the record."""
    task = tasks.make(name)
    torch.manual_seed(seed)
    net = task.network()
    primal = torch.optim.Adam(net.parameters(), lr=LR)
    step = RULES[rule][setting](task, net, primal)
    average, tail, tail_from = copy.deepcopy(net), copy.deepcopy(net), int(0.8 * STEPS)
    params = [list(n.parameters()) for n in (net, average, tail)]
    batches = task.batches(seed)
    start = time.process_time()
    for i in range(STEPS):
        batch = next(batches)

        def values(batch: tasks.Batch = batch) -> tasks.Values:
            f, g, counts = task.values(net, batch)
            return tasks.Values(f * f_scale, g * g_scale, counts)

        step(values)
        with torch.no_grad():
            torch._foreach_lerp_(params[1], params[0], 1 - DECAY if i else 1.0)
            if i >= tail_from:
                torch._foreach_lerp_(params[2], params[0], 1 / (i - tail_from + 1))
    seconds = time.process_time() - start
    models = {"last": net, "average": average, "tail": tail}
    found = {key: judge(task, model) for key, model in models.items()}
    inside = [key for key, row in found.items() if row["violation"] <= TOLERANCE]
    chosen = (
        min(inside, key=lambda k: found[k]["objective"])
        if inside
        else min(found, key=lambda k: _worst(found[k]["violation"]))
    )
    record = {
        "task": name, "rule": rule, "setting": setting, "seed": seed, "f_scale": f_scale, "g_scale": g_scale,
        "models": found, "chosen": chosen, **found[chosen], "met": bool(inside), "seconds": round(seconds, 2),
    }  # fmt: skip
    if certify:
        record |= kkt(task, models[chosen])
    return record


def _worst(violation: float) -> float:
    return violation if violation == violation else float("inf")


def suite(which: str, seeds: int) -> list[dict[str, Any]]:
    """The runs of a suite, as arguments of `train`."""
    default = {rule: next(iter(settings)) for rule, settings in RULES.items()}
    if which == "defaults":
        return [
            {"name": t, "rule": r, "setting": s, "seed": seed, "certify": seed == 0}
            for seed in range(seeds) for t in tasks.NAMES for r, s in default.items()
        ]  # fmt: skip
    if which == "tuning":
        return [
            {"name": t, "rule": r, "setting": s, "seed": 0}
            for t in tasks.NAMES for r, settings in RULES.items() for s in list(settings)[1:]
        ]  # fmt: skip
    scales = [(1.0, 100.0), (1.0, 0.01), (100.0, 1.0), (0.01, 1.0)]
    return [
        {"name": t, "rule": r, "setting": s, "seed": 0, "f_scale": f, "g_scale": g}
        for t in ("budget-0.3", "adult", "compas", "digits") for f, g in scales for r, s in default.items()
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=["defaults", "tuning", "units"], required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="*", help="only these")
    parser.add_argument("--rules", nargs="*", help="only these")
    parser.add_argument("--out", type=Path, default=None, help="default: results/minibatch")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", gdpa.torch.NonFiniteWarning)  # type: ignore[attr-defined]
    study = Study("benchmarks.minibatch.run", "minibatch", KEY, args.suite, args.out)
    done = set(map(study.key, study.rows()))
    for run in suite(args.suite, args.seeds):
        if (args.tasks and run["name"] not in args.tasks) or (args.rules and run["rule"] not in args.rules):
            continue
        if study.key({"f_scale": 1.0, "g_scale": 1.0, **run, "task": run["name"]}) in done:
            continue
        record = study.add(train(**run))
        print(f"{record['task']:<26} {record['rule']:<18} {record['setting']:<9} seed {record['seed']} "
              f"f {record['objective']:.4f} violation {record['violation']:+.3f} ({record['chosen']}) "
              f"{record['seconds']:.1f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
