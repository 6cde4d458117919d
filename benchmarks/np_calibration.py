"""Does the guarantee of NeymanPearsonClassifier hold on new data? Repeated draws of training data.

    python -m benchmarks.np_calibration                   200 repetitions; saves results/np_calibration/
    python -m benchmarks.np_calibration --repetitions 20  a quick look; saves nothing

A repetition draws training data, fits, and computes the error of every class on new data. It violates if the error of
any constrained class exceeds its threshold. With calibration the share of violations may be delta at most.

Gaussian classes: the error is true, by the normal distribution for two classes (the classifier is linear), from 100,000
fresh samples per class for three. Adult and noisy MNIST digits: 2,000 or 8,000 of all samples are drawn for training,
and the error is that on all the others; noise is drawn anew for every repetition. That error has a sampling error of
its own, about 0.002 on Adult and 0.005 on MNIST.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from benchmarks.neyman_pearson import DIGITS, NOISE, TASKS
from benchmarks.provenance import Study, told
from gdpa.paper.data.adult import load_adult
from gdpa.paper.data.images import load
from gdpa.sklearn import NeymanPearsonClassifier

STUDY = Study("benchmarks.np_calibration", "np_calibration")
FRESH = 100_000


class Setting(NamedTuple):
    """A distribution and what is asked of the classifier; the last class is the prioritized one.

    Attributes:
        name: what the table calls it.
        source: the means of Gaussian classes with unit variance, or the name of a data set to draw from.
        samples: training samples of each class, or of all classes if they are drawn from a data set.
        threshold, delta: of the classifier.
        regularizer: of the classifier; None for its default.
    """

    name: str
    source: tuple[tuple[float, ...], ...] | str
    samples: int
    threshold: float
    delta: float
    regularizer: float | None = None


SETTINGS = (
    Setting("two classes, 400 samples each", ((0.0, 0.0, 0.0), (1.5, 1.0, 0.0)), 400, 0.1, 0.1),
    Setting("two classes, 1000 samples each", ((0.0, 0.0, 0.0), (1.5, 1.0, 0.0)), 1000, 0.05, 0.05),
    Setting("three classes, 1000 samples each", ((0.0, 0.0), (4.0, 0.0), (2.0, 2.5)), 1000, 0.1, 0.1),
    Setting("Adult, 2,000 samples", "Adult", 2_000, TASKS["Adult"][0], 0.1, TASKS["Adult"][1]),
    Setting("MNIST 1 to 4 with noise, 8,000 samples", "MNIST", 8_000, TASKS["MNIST"][0], 0.1, TASKS["MNIST"][1]),
)


class Draw(NamedTuple):
    """Training samples, and the samples of each class to measure the error on (none for Gaussian classes)."""

    x: Any
    y: Any
    fresh: list[Any]


@functools.cache
def pool(name: str) -> tuple[Any, Any]:
    """Return all samples of a data set and their classes 0, 1, ..., the prioritized class last."""
    if name == "Adult":
        adult = load_adult()
        return np.concatenate([adult.train_x, adult.test_x]), np.concatenate([adult.train_y, adult.test_y])
    images = load("mnist")
    x, y = np.concatenate([images.train_x, images.test_x]), np.concatenate([images.train_y, images.test_y])
    kept = np.isin(y, DIGITS)
    return x[kept].reshape(int(kept.sum()), -1) / 255, (DIGITS[-1] - y[kept]).astype(int)  # 4, 3, 2, 1: the 1 is last


def draw(setting: Setting, rng: np.random.Generator) -> Draw:
    """Return the data of one repetition."""
    if isinstance(setting.source, str):
        x, y = pool(setting.source)
        noise = NOISE * rng.standard_normal(x.shape) if setting.source == "MNIST" else 0.0
        chosen = np.zeros(len(y), dtype=bool)
        chosen[rng.choice(len(y), setting.samples, replace=False)] = True
        x = x + noise
        return Draw(x[chosen], y[chosen], [x[~chosen & (y == j)] for j in np.unique(y)])
    means = np.array(setting.source)
    X = np.concatenate([rng.standard_normal((setting.samples, means.shape[1])) + mean for mean in means])
    return Draw(X, np.repeat(np.arange(len(means)), setting.samples), [])


def errors_on_new_data(
    setting: Setting, model: NeymanPearsonClassifier, fresh: list[Any], rng: np.random.Generator
) -> list[float]:
    """Return the error of every class on new data."""
    if fresh:
        return [float(np.mean(model.predict(x) != j)) for j, x in enumerate(fresh)]
    means = np.array(setting.source)
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
    """Draw, fit and measure once; return the errors on new data, and whether the fit named an unmet threshold."""
    place, calibrated, seed = task
    setting = SETTINGS[place]
    rng = np.random.default_rng([seed, place])
    x, y, fresh = draw(setting, rng)
    options: dict[str, Any] = {} if setting.regularizer is None else {"regularizer": setting.regularizer}
    model = NeymanPearsonClassifier(
        thresholds=setting.threshold,
        delta=setting.delta,
        calibration="order-statistic" if calibrated else None,
        random_state=seed,
        **options,
    ).fit(x, y)
    return errors_on_new_data(setting, model, fresh, rng), bool(model.unmet_)


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
