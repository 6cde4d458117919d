"""NeymanPearsonClassifier on noisy MNIST digits and on UCI Adult: class errors, confusion matrices, the frontier.

    python -m benchmarks.neyman_pearson          run everything and save results/neyman_pearson/ and its figures
    python -m benchmarks.neyman_pearson figures  draw table and figures again from the saved records

MNIST: digits 1 to 4, first in priority the 1, Gaussian noise of standard deviation 1 on every pixel (in [0, 1]), as in
the paper's experiment; drawn anew for the test images. Adult: the incomes above 50,000 are the prioritized class.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from sklearn.metrics import confusion_matrix

from benchmarks.provenance import ROOT, Study, told
from gdpa.paper.data.adult import load_adult
from gdpa.paper.data.images import load
from gdpa.sklearn import Frontier, FrontierPoint, NeymanPearsonClassifier

STUDY = Study("benchmarks.neyman_pearson", "neyman_pearson")
ASSETS = ROOT / "docs" / "assets"
DIGITS, NOISE = (1, 2, 3, 4), 1.0
PRIORITY = 1
#: Data set -> threshold of every other class, regularizer, and the limits of the frontier.
TASKS: dict[str, tuple[float, float, tuple[float, ...]]] = {
    "MNIST": (0.2, 0.03, (0.1, 0.12, 0.15, 0.2, 0.25, 0.3)),
    "Adult": (0.1, 1e-3, (0.02, 0.05, 0.1, 0.15, 0.2, 0.3)),
}


def noisy_digits(images: Any, labels: Any, seed: int) -> tuple[Any, Any]:
    """Return the digits that take part as rows of pixels in [0, 1] with noise, and their labels."""
    kept = np.isin(labels, DIGITS)
    pixels = images[kept].reshape(int(kept.sum()), -1) / 255
    return pixels + NOISE * np.random.default_rng(seed).standard_normal(pixels.shape), labels[kept].astype(int)


def data(name: str) -> tuple[Any, Any, Any, Any]:
    """Return training and test data of one data set."""
    if name == "Adult":
        adult = load_adult()
        return adult.train_x, adult.train_y, adult.test_x, adult.test_y
    images = load("mnist")
    return (*noisy_digits(images.train_x, images.train_y, 0), *noisy_digits(images.test_x, images.test_y, 1))


def rows(name: str) -> list[dict[str, Any]]:
    """Fit with limits on the surrogate, on the error, and with calibration; then trace the frontier."""
    threshold, regularizer, limits = TASKS[name]
    common: dict[str, Any] = {"regularizer": regularizer, "random_state": 0}
    x, y, x_test, y_test = data(name)
    found: list[dict[str, Any]] = []
    fits: dict[str, dict[str, Any]] = {
        "limits on the surrogate": {"limit_on": "surrogate"},
        "limits on the error": {},
        "calibrated, delta 0.05": {"calibration": "order-statistic"},
    }
    for title, options in fits.items():
        clock = time.process_time()
        model = NeymanPearsonClassifier(PRIORITY, threshold, **common, **options).fit(x, y)
        seconds = time.process_time() - clock
        table = confusion_matrix(y_test, model.predict(x_test))
        found.append(
            {
                "data": name,
                "fit": title,
                "threshold": threshold,
                "priority": PRIORITY,
                "regularizer": regularizer,
                "classes": model.classes_.tolist(),
                "train errors": list(model.class_errors_.values()),
                "test errors": (1 - np.diag(table) / table.sum(axis=1)).tolist(),
                "confusion": table.tolist(),
                "multipliers": list(model.multipliers_.values()),
                "residuals": list(model.certificate_.relative),
                "unmet": model.unmet_,
                "steps": model.n_iter_,
                "CPU seconds": seconds,
            }
        )
        print({key: value for key, value in found[-1].items() if key != "confusion"}, flush=True)
    clock = time.process_time()
    points = NeymanPearsonClassifier(PRIORITY, threshold, **common).frontier(x, y, limits).points
    seconds = time.process_time() - clock
    found.append({"data": name, "frontier": [point._asdict() for point in points], "CPU seconds": seconds})
    print(found[-1], flush=True)
    return found


def table(records: list[dict[str, Any]]) -> str:
    """Return the fits as a Markdown table."""
    head = ("data", "fit", "threshold", "errors on training data", "errors on test data", "largest KKT residual")
    lines = [f"| {' | '.join((*head, 'CPU seconds'))} |", "|" + " --- |" * (len(head) + 1)]
    for r in records:
        if "frontier" not in r:
            errors = [
                ", ".join(f"{c}: {e:.4f}" for c, e in zip(r["classes"], r[part], strict=True))
                for part in ("train errors", "test errors")
            ]
            cells = [r["data"], r["fit"], f"{r['threshold']:g}", *errors, f"{max(r['residuals']):.1e}"]
            cells.append(f"{r['CPU seconds']:.1f}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", "The prioritized class is 1 in both.", "", told(records)])


def draw_confusions(records: list[dict[str, Any]]) -> Any:
    """Draw the confusion matrices of the test data, as shares of each true class."""
    import matplotlib.pyplot as plt

    fits = [r for r in records if "confusion" in r]
    figure, axes = plt.subplots(2, 3, figsize=(9, 6.4), layout="constrained")
    for ax, r in zip(axes.flat, fits, strict=True):
        shares = np.array(r["confusion"], dtype=float)
        shares /= shares.sum(axis=1, keepdims=True)
        ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for i, j in np.ndindex(*shares.shape):
            ax.text(j, i, f"{shares[i, j]:.3f}", ha="center", va="center", color="white" if shares[i, j] > 0.5 else "k")
        ticks = range(len(r["classes"]))
        ax.set_xticks(ticks, r["classes"])
        ax.set_yticks(ticks, r["classes"])
        ax.set(title=f"{r['data']}: {r['fit']}", xlabel="predicted", ylabel="true")
        ax.title.set_fontsize(10)
    return figure


def draw_frontiers(records: list[dict[str, Any]]) -> Any:
    """Draw the frontier of each data set."""
    import matplotlib.pyplot as plt

    curves = [r for r in records if "frontier" in r]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    for ax, r in zip(axes, curves, strict=True):
        points = tuple(FrontierPoint(**point) for point in r["frontier"])
        Frontier(points, "limit on the error of every other class", "error of class 1").plot(ax)
        ax.set_title(r["data"])
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("run", "figures"), default="run")
    if parser.parse_args().what == "run":
        records = [row for name in TASKS for row in rows(name)]
        STUDY.replace(records)
    records = STUDY.rows()
    text = table(records)
    print(text)
    STUDY.write(text)
    draw_confusions(records).savefig(ASSETS / "neyman-pearson-confusion.png", dpi=120)
    draw_frontiers(records).savefig(ASSETS / "neyman-pearson-frontier.png", dpi=120)


if __name__ == "__main__":
    main()
