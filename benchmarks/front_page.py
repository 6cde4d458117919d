"""The figure of the README: solvers on the nonlinear problems, and a training run with and without a limit.

    python -m benchmarks.front_page          train, write results/front/records.jsonl and draw docs/assets/front.png
    python -m benchmarks.front_page --draw   draw the saved records again

The left panel counts the runs of ``results/nonlinear/records.jsonl``. The right panel is the task of
``docs/five-minutes.md``: a linear model tells the digit 8 from the others, with and without a limit on its recall.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.provenance import ROOT, Study
from gdpa.paper.figures import Chart, Panel, Series, save

NONLINEAR = Study("benchmarks.nonlinear", "nonlinear", key=("problem", "solver"))
FRONT = Study("benchmarks.front_page", "front", key=("limited", "seed"))
SOLVERS = ("AdaptiveGDPA", "SLSQP", "IPOPT", "NLopt AUGLAG", "trust-constr")
LEVEL = "1e-06"
LIMIT, EPOCHS, BATCH, RATE, SEEDS = 0.9, 40, 128, 0.02, range(5)


def train(limited: bool, seed: int) -> dict[str, Any]:
    """Train one model and return its recall and its loss over all data after every epoch."""
    import torch
    from sklearn.datasets import load_digits
    from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy
    from torch.utils.data import DataLoader, TensorDataset

    import gdpa.torch
    from gdpa.torch import Limits, at_least

    torch.manual_seed(seed)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels == 8, dtype=torch.float32)
    net = torch.nn.Linear(64, 1)
    base = torch.optim.AdamW(net.parameters(), lr=RATE)
    opt: Any = gdpa.torch.constrain(base, Limits(recall=at_least(LIMIT)), nan="absent") if limited else base

    def values(x: Any, y: Any) -> tuple[Any, Any]:
        scores = net(x).squeeze(1)
        return cross_entropy(scores, y), scores[y == 1].sigmoid().mean()

    recalls, losses = [], []
    for _ in range(EPOCHS):
        for batch in DataLoader(TensorDataset(x, y), BATCH, shuffle=True):
            opt.zero_grad()
            f, recall = values(*batch)
            (opt.lagrangian(f, {"recall": recall}) if limited else f).backward()
            opt.step()
        with torch.no_grad():
            f, recall = values(x, y)
        recalls.append(recall.item())
        losses.append(f.item())
    return {"limited": limited, "seed": seed, "limit": LIMIT, "recall": recalls, "loss": losses}


def solved() -> Panel:
    """Return the share of problems solved against the evaluations that they took."""
    rows = NONLINEAR.rows()
    series = []
    for color, solver in enumerate(SOLVERS):
        runs = [row for row in rows if row["solver"] == solver]
        cost = np.sort([row["hits"][LEVEL]["forwards"] for row in runs if row["hits"].get(LEVEL)]).astype(float)
        share = 100 * np.arange(1, len(cost) + 1) / len(runs)
        series.append(Series(solver, np.append(cost, 1000.0), np.append(share, share[-1]), "line", color))
    title = f"{len(runs)} nonlinear problems, KKT residual {float(LEVEL):g}"
    return Panel(title, "evaluations of f and g", "problems solved in %", series, log_y=False)


def limits() -> Panel:
    """Return the recall of the trained models after every epoch, medians and ranges over seeds."""
    rows = FRONT.rows()
    series = []
    for color, (limited, label) in enumerate([(True, "AdamW with gdpa.torch"), (False, "AdamW alone")]):
        recalls = np.array([row["recall"] for row in rows if row["limited"] == limited])
        epochs = np.arange(1, recalls.shape[1] + 1)
        style = "dashed" if limited else "dotted"
        series.append(Series(label, epochs, np.median(recalls, 0), style, color, recalls.min(0), recalls.max(0)))
    series.append(Series(f"limit: at least {rows[0]['limit']:g}", [1, EPOCHS], [rows[0]["limit"]] * 2, "dashdot", 6))
    return Panel("training with a limit on the recall", "epoch", "recall", series, log_x=False, log_y=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="draw the saved records again")
    if not parser.parse_args().draw:
        FRONT.replace(train(limited, seed) for limited in (False, True) for seed in SEEDS)
    _, vector = save(Chart("front", "", "", [solved(), limits()], columns=2), ROOT / "docs" / "assets")
    vector.unlink()  # the pages show the PNG


if __name__ == "__main__":
    main()
