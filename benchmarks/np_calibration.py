"""Does the guarantee of NeymanPearsonClassifier hold on new data? Gaussian classes, whose true errors are known.

    python -m benchmarks.np_calibration                   200 repetitions; saves results/np_calibration/
    python -m benchmarks.np_calibration --repetitions 20  a quick look; saves nothing

A repetition draws training data, fits, and computes the true error of every class: by the normal distribution for two
classes (the classifier is linear), from 100,000 fresh samples per class for three. It violates if the error of any
constrained class exceeds its threshold. With calibration the share of violations may be delta at most.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from benchmarks.provenance import Study, told
from gdpa.sklearn import NeymanPearsonClassifier

STUDY = Study("benchmarks.np_calibration", "np_calibration")
FRESH = 100_000


class Setting(NamedTuple):
    """A distribution and what is asked of the classifier."""

    name: str
    means: tuple[tuple[float, ...], ...]
    samples: int
    threshold: float
    delta: float


SETTINGS = (
    Setting("two classes, 400 samples each", ((0.0, 0.0, 0.0), (1.5, 1.0, 0.0)), 400, 0.1, 0.1),
    Setting("two classes, 1000 samples each", ((0.0, 0.0, 0.0), (1.5, 1.0, 0.0)), 1000, 0.05, 0.05),
    Setting("three classes, 1000 samples each", ((0.0, 0.0), (4.0, 0.0), (2.0, 2.5)), 1000, 0.1, 0.1),
)


def true_errors(setting: Setting, model: NeymanPearsonClassifier, rng: np.random.Generator) -> list[float]:
    """Return the error of every class on new data."""
    means = np.array(setting.means)
    if len(means) == 2:  # the decision value is linear: its gradient and offset, from values at 0 and the unit vectors
        points = np.vstack([np.zeros(means.shape[1]), np.eye(means.shape[1])])
        offset, *slopes = model.decision_function(points)
        w = np.array(slopes) - offset
        at = (means @ w + offset) / np.linalg.norm(w)
        upper = [0.5 * math.erfc(-z / math.sqrt(2)) for z in at]  # P(decision value > 0)
        return [upper[0], 1 - upper[1]]
    return [
        float(np.mean(model.predict(rng.standard_normal((FRESH, means.shape[1])) + mean) != j))
        for j, mean in enumerate(means)
    ]


def repetition(task: tuple[int, bool, int]) -> tuple[list[float], bool]:
    """Draw, fit and measure once; return the true errors, and whether the fit named an unmet threshold."""
    place, calibrated, seed = task
    setting = SETTINGS[place]
    rng = np.random.default_rng([seed, place])
    means = np.array(setting.means)
    X = np.concatenate([rng.standard_normal((setting.samples, means.shape[1])) + mean for mean in means])
    y = np.repeat(np.arange(len(means)), setting.samples)
    model = NeymanPearsonClassifier(
        thresholds=setting.threshold,
        delta=setting.delta,
        calibration="order-statistic" if calibrated else None,
        random_state=seed,
    ).fit(X, y)
    return true_errors(setting, model, rng), bool(model.unmet_)


def simulate(repetitions: int, jobs: int, settings: Sequence[int] = range(len(SETTINGS))) -> list[dict[str, Any]]:
    """Return one record per setting, with and without calibration."""
    rows = []
    for place in settings:
        setting = SETTINGS[place]
        for calibrated in (False, True):
            tasks = [(place, calibrated, seed) for seed in range(repetitions)]
            if jobs == 1:
                found = list(map(repetition, tasks))
            else:
                with ProcessPoolExecutor(jobs) as pool:
                    found = list(pool.map(repetition, tasks, chunksize=max(1, repetitions // (4 * jobs))))
            errors = np.array([error for error, _ in found])
            rows.append(
                {
                    "setting": setting.name,
                    "threshold": setting.threshold,
                    "delta": setting.delta,
                    "calibrated": calibrated,
                    "repetitions": repetitions,
                    "violations": int(np.any(errors[:, :-1] > setting.threshold, axis=1).sum()),
                    "worst mean error": float(errors[:, :-1].mean(axis=0).max()),
                    "priority error": float(errors[:, -1].mean()),
                    "unmet": sum(unmet for _, unmet in found),
                }
            )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return the records as a Markdown table."""
    head = ("data", "threshold", "delta", "calibration", "repetitions that violate", "largest mean error", "priority")
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for r in rows:
        share = f"{r['violations']} of {r['repetitions']} ({100 * r['violations'] / r['repetitions']:.1f} %)"
        cells = [r["setting"], f"{r['threshold']:g}", f"{r['delta']:g}", "yes" if r["calibrated"] else "no", share]
        cells += [f"{r['worst mean error']:.4f}", f"{r['priority error']:.4f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", told(rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    rows = simulate(arguments.repetitions, arguments.jobs)
    text = table([{**row, "about": STUDY.origin} for row in rows])
    print(text)
    if arguments.repetitions >= 200:
        STUDY.replace(rows)
        STUDY.write(text)


if __name__ == "__main__":
    main()
