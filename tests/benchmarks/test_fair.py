"""The benchmarks of the estimators: measures by hand, and tables that are functions of the saved records."""

import numpy as np
import pytest

from benchmarks import fair_adult, neyman_pearson, np_calibration


def test_distances_by_hand():
    positive = np.array([1.0, 0.0, 0.5, 0.5])
    y, groups = np.array([1, 1, 0, 0]), np.array(["a", "b", "a", "b"])
    assert fair_adult.distances("demographic parity", positive, y, groups) == 0.25  # 0.75 and 0.25 around 0.5
    assert fair_adult.distances("equalized odds", positive, y, groups) == 0.5  # recall 1 and 0 around 0.5


@pytest.mark.parametrize("benchmark", [fair_adult, neyman_pearson, np_calibration])
def test_a_saved_table_is_drawn_from_the_saved_records(benchmark):
    assert benchmark.table(benchmark.STUDY.rows()) + "\n" == (benchmark.STUDY.folder / "table.md").read_text()


def test_the_saved_records_keep_their_promises():
    """Limits hold on training data; with calibration at most a share delta of the repetitions violates."""
    for row in fair_adult.STUDY.rows():
        assert row["unmet"] == []
        assert row["train above"] <= (1e-12 if row["method"].startswith("gdpa") else 1)
    for row in neyman_pearson.STUDY.rows():
        if row.get("fit") == "limits on the error":
            pairs = zip(row["classes"], row["train errors"], strict=True)
            assert max(error for label, error in pairs if label != row["priority"]) <= row["threshold"] + 1e-12
    for row in np_calibration.STUDY.rows():
        assert row["repetitions"] == 200
        assert not row["calibrated"] or row["violations"] <= row["delta"] * row["repetitions"]


def test_figures_are_drawn_from_the_saved_records():
    import matplotlib.pyplot as plt

    rows = neyman_pearson.STUDY.rows()
    assert len(neyman_pearson.draw_confusions(rows).axes) == 6
    assert len(neyman_pearson.draw_frontiers(rows).axes) == 2
    plt.close("all")


def test_the_error_of_a_linear_classifier_by_the_normal_distribution():
    """The exact error of a fitted classifier agrees with that on many fresh samples."""
    setting = np_calibration.SETTINGS[0]
    rng = np.random.default_rng(0)
    means = np.array(setting.source)
    X = np.concatenate([rng.standard_normal((200, 3)) + mean for mean in means])
    y = np.repeat([0, 1], 200)
    model = np_calibration.NeymanPearsonClassifier(thresholds=0.1).fit(X, y)
    exact = np_calibration.errors_on_new_data(setting, model, [], rng)
    fresh = [np.mean(model.predict(rng.standard_normal((200_000, 3)) + mean) != j) for j, mean in enumerate(means)]
    np.testing.assert_allclose(exact, fresh, atol=0.005)
