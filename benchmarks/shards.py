"""Certified solves over shards: agreement with one process, overhead, time against workers, large files.

Three problems, each on 1, 2 and 4 shards and on three engines (this process, Ray, ranks of torchrun), against the same
problem in one piece: Neyman-Pearson classification with two limits, a logistic regression with limits on 12 groups, and
a network with two limits.

    python -m benchmarks.shards [agree | overhead | workers | large] [--draw] [--gigabytes G]

Each part prints a table; without a name, all of them run. The module starts ``torchrun`` by itself.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy and torch are loaded; workers inherit it

import numpy as np
import torch

import gdpa
from benchmarks.provenance import ROOT, Study, markdown, told
from gdpa import sharded
from gdpa.paper.records import Row
from gdpa.sharded.module import ModuleShard

ENGINES = ("local", "ray", "torch")
SHARDS = (1, 2, 4)
TOLERANCE = 1e-11
#: Parameters of the test of overhead: 1 MB of x in float64.
WIDE = 131_072
#: Rows of 31 numbers, engines and workers of the comparison of times.
ROWS = 100_000
RUNS = (("local", 1), *((engine, workers) for engine in ("ray", "torch") for workers in SHARDS))
NAMES = {"local": "one process", "ray": "actors of Ray", "torch": "ranks of torchrun"}
STUDY = Study("benchmarks.shards", "shards")
PICTURE = ROOT / "docs" / "assets" / "shards-workers.png"
#: Seconds after which a job of ranks is taken for lost.
LIMIT = 600


def logistic(score: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softplus(score) - y * score


def np_loss(net: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    """The pairwise sigmoid loss of three classes: the last is minimized, the others are limited."""
    scores = net(x)
    own = scores.gather(1, y[:, None])
    loss = torch.sigmoid(scores - own).sum(1) - 0.5
    members = torch.nn.functional.one_hot(y, 3).double()
    return loss, loss[:, None].expand(-1, 2), members[:, [2, 0, 1]]


def group_loss(net: Any, x: torch.Tensor, y: torch.Tensor, group: torch.Tensor) -> Any:
    """The logistic loss, with a limit on the share of missed positives of each of 12 groups."""
    score = net(x)[:, 0]
    members = torch.nn.functional.one_hot(group, 12).double() * y[:, None]
    return logistic(score, y), torch.sigmoid(-score)[:, None].expand(-1, 12), members


def network_loss(net: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    """The logistic loss of a network, with limits on the errors of both labels."""
    score = net(x)[:, 0]
    wrong = torch.stack([torch.sigmoid(score), torch.sigmoid(-score)], 1)
    return logistic(score, y), wrong, torch.stack([1 - y, y], 1)


class Case:
    """A module, its loss by rows, limits and data."""

    def __init__(self, module: torch.nn.Module, loss: Callable[..., Any], limits: list[float], *data: torch.Tensor):
        self.module, self.loss, self.limits, self.data = module.double(), loss, limits, data

    def in_shards(self, count: int, engine: Any) -> Any:
        options: dict[str, Any] = {"engine": engine, "chunk": 512, "regularizer": 1e-3}
        return sharded.from_module(self.module, self.loss, self.limits, self.data, count, **options)


class Wrapped(torch.nn.Module):
    """A module that hands its parameters to the loss, for the regularizer."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *batch: torch.Tensor) -> Any:
        return self.inner(*batch) if batch else torch.cat([p.reshape(-1) for p in self.inner.parameters()])


@functools.cache
def cases() -> dict[str, Case]:
    """Return the problems with 2,000 rows each."""
    torch.manual_seed(0)
    n = 2_000
    x = torch.randn(n, 10, dtype=torch.float64)
    y3 = (x[:, :3] + torch.randn(n, 3)).argmax(1)
    y = (x @ torch.randn(10, dtype=torch.float64) + torch.randn(n) > 0).double()
    group = torch.randint(12, (n,))
    net = torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    return {
        "mNPC": Case(torch.nn.Linear(10, 3), np_loss, [0.45, 0.45], x, y3),
        "12 groups": Case(torch.nn.Linear(10, 1), group_loss, [0.2] * 12, x, y, group),
        "network": Case(net, network_loss, [0.15, 0.15], x, y),
    }


class Wide:
    """Almost no work on many parameters, so that the time of a step is the engine's."""

    def sums(self, x: Any) -> Any:
        return np.array([x[0], x[1], 1.0])

    def pullback(self, x: Any, w: Any) -> Any:
        found = np.zeros_like(x)
        found[:2] = w[:2]
        return found


# Parts that every engine runs; under torchrun each rank runs them, and the first one prints the outcome.


def solve_case(engine: Any, name: str, count: int) -> dict[str, Any]:
    result = gdpa.solve(cases()[name].in_shards(count, engine), tolerance=TOLERANCE)
    return {"x": result.x.tolist(), "success": result.success, "steps": result.steps}


def step_cost(engine: Any, count: int) -> dict[str, Any]:
    problem = sharded.problem([Wide() for _ in range(count)], engine)
    times = []
    for repetition in range(40):
        x = np.full(WIDE, float(repetition))
        begin = time.perf_counter()
        problem.evaluate(x).pullback(np.zeros(1))
        times.append(time.perf_counter() - begin)
    return {"ms": 1e3 * float(np.median(times[5:])), "least": 1e3 * min(times[5:])}


def break_even(engine: Any, rows: int, count: int) -> dict[str, Any]:
    torch.manual_seed(0)
    x = torch.randn(rows, 31, dtype=torch.float64)
    y = (x[:, 0] + torch.randn(rows) > 0).double()
    net = torch.nn.Linear(31, 1, dtype=torch.float64)
    training = sharded.from_module(net, network_loss, [0.25, 0.25], (x, y), count, engine=engine)
    training.problem.evaluate(training.x0).gradient()  # the data arrives at the workers
    begin = time.perf_counter()
    result = gdpa.solve(training, tolerance=1e-5)
    return {"seconds": time.perf_counter() - begin, "success": result.success, "forwards": result.calls.forwards}


def resumed(engine: Any, at: int, folder: str) -> dict[str, Any]:
    """Kill the last rank once, at a step; after torchrun's restart the ranks continue from the checkpoint."""
    once = Path(folder, f"killed-{at}")

    def kill(progress: Any) -> None:
        if engine.rank == engine.world - 1 and progress.step == at and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    training = cases()["12 groups"].in_shards(2, engine)
    options: dict[str, Any] = {"checkpoint": Path(folder, f"run-{at}"), "every": 5, "resume": True}
    result = gdpa.solve(training, None, "GDPA", stop=gdpa.MaxSteps(30), observers=kill, **options)
    return {"x": result.x.tolist(), "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"])}


PARTS: dict[str, Callable[..., Any]] = {
    "solve": solve_case,
    "step": step_cost,
    "break-even": break_even,
    "resumed": resumed,
}


def ask(engine: str, part: str, *arguments: Any, ranks: int = 2, options: tuple[str, ...] = ()) -> Any:
    """Run a part on an engine and return its outcome."""
    if engine != "torch":
        return PARTS[part](engine, *arguments)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone", *options]
        command += ["-m", "benchmarks.shards", "--rank", json.dumps([part, arguments, str(out)])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        return json.loads(out.read_text())


def run_rank(request: str) -> None:
    part, arguments, out = json.loads(request)
    engine = sharded.Torch(timeout=60)
    outcome = PARTS[part](engine, *arguments)
    if engine.rank == 0:
        Path(out).write_text(json.dumps(outcome))


def print_table(title: str, head: list[str], rows: list[list[Any]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(str(cell) for cell in row)} |", flush=True)


def print_agreement() -> None:
    rows = []
    for name, case in cases().items():
        one = gdpa.solve(one_piece(case), tolerance=TOLERANCE)
        reference = one.x.numpy()
        for engine in ENGINES:
            differences, bits = [], []
            for count in SHARDS:
                found = ask(engine, "solve", name, count, ranks=count)
                assert found["success"]
                x = np.array(found["x"])
                differences.append(np.abs(x - reference).max() / np.abs(reference).max())
                local = np.array(solve_case("local", name, count)["x"])
                bits.append("same" if (x == local).all() else "other")
            rows.append([name, engine, *(f"{d:.1e}" for d in differences), ", ".join(bits)])
    head = ["problem", "engine", *(f"{count} shards" for count in SHARDS), "bits of the engine local"]
    print_table("Largest relative difference of x from one process", head, rows)


def one_piece(case: Case) -> Any:
    """Return the problem of a case without shards: all rows in one tensor, the regularizer added by hand."""
    bounds = torch.tensor(case.limits, dtype=torch.float64)

    def values(net: Any) -> Any:
        f, g, members = case.loss(net, *case.data)
        if members.shape[1] == g.shape[1]:
            members = torch.cat([torch.ones_like(members[:, :1]), members], 1)
        means = (torch.cat([f[:, None], g], 1) * members).sum(0) / members.sum(0)
        return means[0] + 5e-4 * (net() ** 2).sum(), means[1:] - bounds

    return gdpa.from_module(Wrapped(case.module), values)


def print_overhead() -> None:
    rows = []
    for engine in ENGINES:
        found = ask(engine, "step", 4, ranks=4)
        rows.append([engine, f"{found['ms']:.1f}", f"{found['least']:.1f}"])
    print_table("A step of 4 shards without work, 1 MB of x: values and a pullback", ["engine", "ms", "least ms"], rows)


def compare_workers(draw_only: bool) -> None:
    """Solve with 1, 2 and 4 workers of each engine, in turn, and draw the least seconds."""
    for _ in range(0 if draw_only else 3):
        for engine, workers in RUNS:
            found = ask(engine, "break-even", ROWS, workers, ranks=workers)
            assert found["success"]
            STUDY.add({"engine": engine, "workers": workers, **found})
    rows = STUDY.rows()
    text = workers_table(rows)
    STUDY.write(text)
    print(text)
    draw_workers(rows)


def least_seconds(rows: list[Row]) -> dict[tuple[str, int], float]:
    return {run: min(row["seconds"] for row in rows if (row["engine"], row["workers"]) == run) for run in RUNS}


def workers_table(rows: list[Row]) -> str:
    least = least_seconds(rows)
    body = [[NAMES[engine], workers, f"{seconds:.1f}"] for (engine, workers), seconds in least.items()]
    head = ["engine", "workers", f"least s of {len(rows) // len(RUNS)} solves"]
    return f"{markdown(head, body)}\n\n{told(rows)}".rstrip()


def draw_workers(rows: list[Row]) -> None:
    import matplotlib.pyplot as plt

    least = least_seconds(rows)
    figure, ax = plt.subplots(figsize=(5.2, 3.2), layout="constrained")
    ax.axhline(least["local", 1], color="0.5", linestyle="--", linewidth=1, label=NAMES["local"])
    for engine, mark in (("ray", "o-"), ("torch", "s-")):
        points = [(workers, seconds) for (name, workers), seconds in least.items() if name == engine]
        ax.plot(*zip(*points, strict=True), mark, label=NAMES[engine])
    ax.set(xlabel="workers", ylabel="seconds of a solve", xticks=SHARDS, ylim=(0, None))
    ax.legend(frameon=False)
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None})
    plt.close(figure)


class Watched(ModuleShard):
    """Writes the memory of its process, without mapped files, to a file at every pass over its rows."""

    log = ""

    def sums(self, x: Any) -> Any:
        found = super().sums(x)
        lines = Path("/proc/self/status").read_text().splitlines()
        (used,) = (line.split()[1] for line in lines if line.startswith("RssAnon"))
        with open(self.log, "a") as file:
            file.write(f"{os.getpid()} {used}\n")
        return found


def print_large(gigabytes: float) -> None:
    features, chunk = 64, 65_536
    rows = int(gigabytes * 1e9 / 4 / features)
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder, "x.npy"), Path(folder, "y.npy")
        shapes = (rows, features), (rows,)
        x, y = (np.lib.format.open_memmap(p, "w+", np.float32, s) for p, s in zip(paths, shapes, strict=True))
        rng = np.random.default_rng(0)
        for at in range(0, rows, chunk):
            part = rng.standard_normal((min(chunk, rows - at), features), dtype=np.float32)
            x[at : at + chunk] = part
            y[at : at + chunk] = part[:, 0] + rng.standard_normal(len(part), dtype=np.float32) > 0
        x.flush()
        del x, y
        net = torch.nn.Linear(features, 1)
        torch.nn.init.zeros_(net.weight)
        log = Path(folder, "memory")
        engine = sharded.Ray(timeout=1800)
        shards = [watched(net, part, str(log)) for part in sharded.rows.split(tuple(map(str, paths)), 2, chunk)]
        problem = sharded.problem(shards, engine, sharded.rate, limits=[0.25, 0.25])
        x0 = np.zeros(features + 1, dtype=np.float32)
        begin = time.perf_counter()
        result = gdpa.solve(problem, x0, tolerance=1e-4)
        seconds = time.perf_counter() - begin
        used: dict[str, list[int]] = {}
        for line in log.read_text().splitlines():
            process, kilobytes = line.split()
            used.setdefault(process, []).append(int(kilobytes))
    table = [
        [f"{gigabytes:g} GB, {rows:,} rows", result.success, result.calls.forwards, f"{seconds:.0f}", process]
        + [f"{values[i] / 1024:.0f}" for i in (0, -1)]
        for process, values in used.items()
    ]
    head = ["data", "certified at 1e-4", "evaluations", "s", "worker", "own MB first", "own MB last"]
    print_table("Rows in a file, two workers that read it in chunks", head, table)


def watched(net: torch.nn.Module, rows: Any, log: str) -> Any:
    shard = Watched(net, network_loss, 2, rows, None, "")
    shard.log = log
    return shard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parts: dict[str, Callable[[], None]] = {"agree": print_agreement, "overhead": print_overhead}
    parser.add_argument("parts", nargs="*", choices=[*parts, "workers", "large", []])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--draw", action="store_true", help="draw the saved records of workers, compute nothing")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        run_rank(given.rank)
        return
    parts["workers"] = lambda: compare_workers(given.draw)
    parts["large"] = lambda: print_large(given.gigabytes)
    for part in given.parts or parts:
        parts[part]()


if __name__ == "__main__":
    main()
