"""Fair classification of UCI Adult at equal limits: gdpa beside fairlearn, all in one run.

    python -m benchmarks.fair_adult          run everything and save results/fair_adult/
    python -m benchmarks.fair_adult table    print the table again from the saved records

Groups are the two sexes, which are not among the 89 features. Every method gets the same features, and logistic
regression as its model. A limit eps bounds the distance of each group's rate from the rate of all: the selection rate
for demographic parity, recall and false positive rate for equalized odds. ExponentiatedGradient takes the same eps as
``difference_bound``. The ``tol`` of ThresholdOptimizer bounds the distance between two groups, which is eps divided by
the share of the larger group; for equalized odds it has no ``tol`` and makes the rates equal.

ExponentiatedGradient and ThresholdOptimizer decide at random. Their errors and rates are exact expectations over that
randomness, not one draw of it. "Above the limit" is max(0, largest distance - eps).
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np

from benchmarks.provenance import Study, told
from gdpa.paper.data.adult import Adult, load_adult
from gdpa.sklearn import ConstrainedClassifier, demographic_parity, equalized_odds

STUDY = Study("benchmarks.fair_adult", "fair_adult", ("notion", "bound", "method"))
BOUNDS = (0.05, 0.02)
NOTIONS = ("demographic parity", "equalized odds")
METHODS = ("no limits", "gdpa ConstrainedClassifier", "ExponentiatedGradient", "ThresholdOptimizer")


def distances(notion: str, positive: Any, y: Any, groups: Any) -> float:
    """Return the largest distance of a group's rate from the rate of all.

    Args:
        notion: one of `NOTIONS`.
        positive: the probability of a positive decision for each sample.
        y, groups: its class and its group.

    >>> distances("demographic parity", np.array([1.0, 0.0]), np.array([1, 1]), np.array(["a", "b"]))
    0.5
    """
    parts = [np.ones(len(y), bool)] if notion == "demographic parity" else [y == 0, y == 1]
    return max(
        abs(float(positive[part & (groups == g)].mean() - positive[part].mean()))
        for part in parts
        for g in np.unique(groups)
    )


def base() -> Any:
    """Return the model that fairlearn's methods train again and again."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=1.0, max_iter=2000)


def fitted(method: str, notion: str, bound: float, data: Adult) -> tuple[Any, str, list[str]]:
    """Fit one method; return a function (X, groups) -> P(positive), what it consists of, and the limits it names."""
    x, y, sex = data.train_x, data.train_y, data.train_sex
    if method in ("no limits", "gdpa ConstrainedClassifier"):
        limit = demographic_parity(bound) if notion == "demographic parity" else equalized_odds(bound)
        model = ConstrainedClassifier([limit] if method != "no limits" else None).fit(x, y, groups=sex)
        return lambda X, groups: model.predict(X).astype(float), "one model", model.unmet_
    from fairlearn.postprocessing import ThresholdOptimizer
    from fairlearn.reductions import DemographicParity, EqualizedOdds, ExponentiatedGradient

    if method == "ExponentiatedGradient":
        moment = DemographicParity if notion == "demographic parity" else EqualizedOdds
        mixture = ExponentiatedGradient(base(), moment(difference_bound=bound))
        mixture.fit(x, y, sensitive_features=sex)
        count = int((mixture.weights_ > 0).sum())
        return lambda X, groups: mixture._pmf_predict(X)[:, 1], f"a random choice of {count} models", []
    names = {"demographic parity": "demographic_parity", "equalized odds": "equalized_odds"}
    share = max(np.mean(sex == group) for group in np.unique(sex))
    cut = ThresholdOptimizer(
        estimator=base(),
        constraints=names[notion],
        predict_method="predict_proba",
        tol=bound / share if notion == "demographic parity" else None,
    )
    cut.fit(x, y, sensitive_features=sex)
    return (
        lambda X, groups: cut._pmf_predict(X, sensitive_features=groups)[:, 1],
        "one model, random cuts by group; needs the group to predict",
        [],
    )


def row(method: str, notion: str, bound: float, data: Adult) -> dict[str, Any]:
    """Run one method and measure it on both parts of the data."""
    clock = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of fairlearn about pandas
        decide, kind, unmet = fitted(method, notion, bound, data)
    seconds = time.process_time() - clock
    found: dict[str, Any] = {"method": method, "notion": notion, "bound": bound, "CPU seconds": seconds, "kind": kind}
    for part, x, y, sex in (
        ("train", data.train_x, data.train_y, data.train_sex),
        ("test", data.test_x, data.test_y, data.test_sex),
    ):
        positive = decide(x, sex)
        found[f"{part} error"] = float(np.where(y == 1, 1 - positive, positive).mean())
        found[f"{part} above"] = max(0.0, distances(notion, positive, y, sex) - bound)
    return found | {"unmet": unmet}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the records as a Markdown table."""
    head = ("limit", "method", "error, train", "above the limit, train", "error, test", "above the limit, test")
    lines = [f"| {' | '.join((*head, 'CPU seconds', 'what predicts'))} |", "|" + " --- |" * 8]
    for r in rows:
        cells = [f"{r['notion']} {r['bound']:g}", r["method"], f"{r['train error']:.4f}", f"{r['train above']:.4f}"]
        cells += [f"{r['test error']:.4f}", f"{r['test above']:.4f}", f"{r['CPU seconds']:.1f}", r["kind"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", told(rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("run", "table"), default="run")
    if parser.parse_args().what == "run":
        data = load_adult()
        for notion in NOTIONS:
            for bound in BOUNDS:
                for method in METHODS:
                    found = row(method, notion, bound, data)
                    STUDY.add(found)
                    print(found, flush=True)
        STUDY.tidy()
    text = table(STUDY.rows())
    print(text)
    STUDY.write(text)


if __name__ == "__main__":
    main()
