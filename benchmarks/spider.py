"""The SPIDER exact penalty on Figure 1's problem, beside the race of the full-batch methods.

    python -m benchmarks.spider          write the records to results/spider/, and the table
    python -m benchmarks.spider --draw   make the table again, from these records and those of the race

Its authors report up to 466 times fewer passes than switching subgradients and proximal-point methods on this problem.
Data, starts, seeds, judge and the count of passes are the race's: a batch is that share of a pass, and so is its second
evaluation at the last point. Constants are the winner of twelve, as in the race, each with half of the passes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from benchmarks.provenance import RESULTS, Study, markdown, told
from gdpa.paper.comparison import GOAL, HELD_OUT, ROWS_PER_DECADE
from gdpa.paper.contestants import certify_from
from gdpa.paper.data.images import load
from gdpa.paper.records import NAME, RecordFile, Row
from gdpa.paper.sections import NOT_REACHED, median
from gdpa.paper.studies.mnist import MNPC
from gdpa.paper.studies.race import IMAGES, LEVELS, PROBLEMS, RIVALS
from gdpa.torch.rules import SpiderPenalty

STUDY = Study("benchmarks.spider", "spider", ("seed", "constants"))
LABEL, SEEDS, PASSES = "SPIDER penalty", 5, PROBLEMS["mnpc"].passes
#: Images of a class in a batch, and steps between two full evaluations of g.
BATCH, PERIOD = 10, 10
#: Steps shorter than the race's: a batch's gradient is noisy, and in trials of 250 passes 0.03 did better than 0.1.
GRID = [
    {"lr": lr, "penalty": penalty, "smoothing": 0.1, "period": PERIOD}
    for lr, penalty in product((0.001, 0.003, 0.01, 0.03), (1.0, 3.0, 10.0))
]
#: The methods of the race that the table repeats.
BESIDE = ("adaptive-gdpa", "gdpa", *RIVALS)


def run(data: Any, constants: dict[str, Any], seed: int, passes: float) -> Row:
    """Return the passes to each level, None if it is not reached, and the smallest error of one run."""
    case = MNPC.case(data, IMAGES, seed, reduction="mean")
    whole, exact = case.judge.to(torch.float32), case.judge.problem
    certify, none = certify_from(exact, case.x0.double()), torch.zeros(len(whole.constrained), dtype=torch.float64)
    x, p = torch.nn.Parameter(case.x0.clone()), whole.classes.index(whole.prioritized)
    first = torch.tensor(whole.counts).cumsum(0) - torch.tensor(whole.counts)
    draws = torch.Generator().manual_seed(seed)

    def closure(part: Any) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
        def compute() -> tuple[torch.Tensor, torch.Tensor]:
            losses = part.losses(x)
            f = losses[p] + part.regularizer / 2 * x.square().sum()
            return f, losses[part.constrained] - part.thresholds

        return compute

    method, share, spent, due = SpiderPenalty([x], **constants), BATCH / IMAGES, 0.0, 1.0
    least, reached = math.inf, dict.fromkeys(LEVELS, math.inf)
    while spent < passes and least > GOAL:
        chosen = torch.cat([at + torch.randperm(IMAGES, generator=draws)[:BATCH] for at in first])
        part = replace(whole, samples=whole.samples[chosen], counts=(BATCH,) * len(whole.counts))
        spent += 2 * share + (1 if method.steps % PERIOD == 0 else share)
        method.step(closure(part), large=closure(whole))
        if method.steps >= due or spent >= passes:
            due = method.steps * 10 ** (1 / ROWS_PER_DECADE)
            point = x.detach().double()
            error = float(certify(point, none, exact.evaluate(point)).relative.worst)
            if not math.isfinite(error):
                break
            least = min(least, error)
            reached = {level: min(at, spent) if least <= level else at for level, at in reached.items()}
    costs = [round(at, 1) if math.isfinite(at) else None for at in reached.values()]
    return {"seed": seed, "constants": constants, "passes": costs, "error": float(f"{least:.3g}")}


def measure() -> list[Row]:
    """Return a record for each point of the grid, best first, then one for each seed."""
    data = load("mnist")
    tried = sorted((run(data, constants, HELD_OUT, PASSES / 2) for constants in GRID), key=_rank)
    return [*tried, *(run(data, tried[0]["constants"], seed, PASSES) for seed in range(SEEDS))]


def _rank(row: Row) -> list[float]:
    return [*(_number(cost) for cost in reversed(row["passes"])), row["error"]]


def _number(cost: float | None) -> float:
    return math.inf if cost is None else cost


def raced() -> dict[str, list[list[float]]]:
    """Return for each method beside it the passes to each level of every seed, and the smallest errors, of the race."""
    found = {}
    for row in RecordFile(RESULTS / "race" / NAME).rows():
        if row.get("setting") == "tuned, mnpc" and row["method"] in BESIDE:
            lines = list(zip(*(row["columns"][name] for name in ("seed", "passes", "error")), strict=True))
            seeds = range(row["config"]["seeds"])
            costs = [
                [min((n for s, n, e in lines if s == seed and e <= level), default=math.inf) for seed in seeds]
                for level in LEVELS
            ]
            found[row["method"]] = [*costs, [min(e for s, _, e in lines if s == seed) for seed in seeds]]
    return found


def table(rows: list[Row]) -> str:
    """Return the passes of SPIDER and of the methods of the race, and the verdict, in Markdown."""
    own = [row for row in rows if row["seed"] != HELD_OUT]
    columns = [[_number(row["passes"][i]) for row in own] for i in range(len(LEVELS))]
    found = {LABEL: [*columns, [row["error"] for row in own]], **raced()}

    def cell(values: Sequence[float]) -> str:
        middle = median(list(values))
        return f"{middle:.4g}" if math.isfinite(middle) else NOT_REACHED

    lines = [[name, *(cell(values) for values in some[:-1]), f"{median(some[-1]):.2g}"] for name, some in found.items()]
    head = ["method", *(f"passes to {level:g}" for level in LEVELS), "smallest error"]
    words = []
    for i, level in enumerate(LEVELS):
        ours = median(found[LABEL][i])
        factors = [f"{median(found[rival][i]) / ours:.2g} ({rival})" for rival in RIVALS if rival in found]
        if math.isfinite(ours):
            words.append(f"To {level:g}, passes of a rival over those of {LABEL}: {', '.join(factors)}.")
    constants = ", ".join(f"{name} {value:g}" for name, value in own[0]["constants"].items())
    note = f"{LABEL}: {constants}; batches of {BATCH} of {IMAGES} images of a digit. Medians over {len(own)} seeds."
    return "\n\n".join([markdown(head, lines), " ".join([*words, note]), told(own)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="make the table from the saved records, compute nothing")
    if not parser.parse_args().draw:
        torch.set_num_threads(1)
        STUDY.replace(measure())
    text = table(STUDY.rows())
    STUDY.write(text)
    print(text)


if __name__ == "__main__":
    main()
