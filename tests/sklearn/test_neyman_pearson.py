"""NeymanPearsonClassifier: thresholds on training data, known answers, the tools of scikit-learn, bad input."""

import pickle
import warnings

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize_scalar
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gdpa.sklearn import NeymanPearsonClassifier, UnmetLimitWarning


def gaussians(n=400, means=((0.0, 0.0), (2.0, 1.0)), seed=0):
    rng = np.random.default_rng(seed)
    X = np.concatenate([rng.standard_normal((n, len(mean))) + mean for mean in np.array(means)])
    return X, np.repeat(np.arange(len(means)), n)


def errors(model, X, y):
    table = confusion_matrix(y, model.predict(X))
    return 1 - np.diag(table) / table.sum(axis=1)


@pytest.mark.parametrize("threshold", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("hidden", [(), (4,)])
def test_two_classes_meet_their_threshold_and_use_it_up(threshold, hidden):
    X, y = gaussians()
    model = NeymanPearsonClassifier(1, {0: threshold}, hidden=hidden, random_state=0).fit(X, y)
    own = errors(model, X, y)
    np.testing.assert_allclose([model.class_errors_[0], model.class_errors_[1]], own)
    assert threshold - 2 / 400 <= own[0] <= threshold + 1e-12
    assert model.unmet_ == []
    assert model.certificate_.holds(model.tol)
    assert model.n_iter_ >= 1


def test_the_error_is_that_of_the_likelihood_ratio_test():
    """Neyman and Pearson's lemma: for two Gaussians of equal covariance the best test is linear, along the means."""
    from scipy.stats import norm

    X, y = gaussians(n=20_000)
    model = NeymanPearsonClassifier(1, {0: 0.05}).fit(X, y)
    best = norm.cdf(norm.ppf(0.95) - np.sqrt(5.0))  # the means lie sqrt(5) apart
    assert model.class_errors_[1] == pytest.approx(best, abs=0.01)


def test_digits_with_noise_meet_every_threshold():
    X, y = load_digits(return_X_y=True)
    X = X / 16 + 0.3 * np.random.default_rng(0).standard_normal(X.shape)
    kept = np.isin(y, (1, 2, 3, 4))
    thresholds = {2: 0.02, 3: 0.05, 4: 0.01}
    model = NeymanPearsonClassifier(1, thresholds).fit(X[kept], y[kept])
    own = dict(zip((1, 2, 3, 4), errors(model, X[kept], y[kept]), strict=True))
    assert model.unmet_ == []
    assert all(own[label] <= limit + 1e-12 for label, limit in thresholds.items())
    assert own[1] < 0.1


def test_surrogate_limits_hold_and_the_multiplier_is_the_price():
    """The slope of the optimal objective against the limit is minus the multiplier: by central differences."""
    X, y = gaussians(means=((0.0, 0.0), (1.5, 1.0), (-1.5, 1.5)), n=100)

    def fitted(limit):
        options = {"limit_on": "surrogate", "tol": 1e-9, "regularizer": 0.01}
        return NeymanPearsonClassifier(2, {0: limit, 1: 0.2}, **options).fit(X, y)

    model = fitted(0.25)
    assert model.certificate_.holds(1e-9)
    np.testing.assert_allclose(model.certificate_.constraints, 0, atol=1e-8)
    step = 1e-4
    slope = (fitted(0.25 + step).certificate_.objective - fitted(0.25 - step).certificate_.objective) / (2 * step)
    assert model.multipliers_[0] == pytest.approx(-slope, rel=1e-4)
    assert model.cuts_ == {0: 0.0, 1: 0.0, 2: 0.0}


def test_one_feature_against_a_scalar_search():
    """One feature, two classes, no penalty to speak of: the surrogate problem in two variables, by a nested search."""
    X, y = gaussians(means=((0.0,), (1.5,)), n=200)
    model = NeymanPearsonClassifier(1, {0: 0.2}, limit_on="surrogate", regularizer=0.05, tol=1e-8).fit(X, y)

    def loss(slope, offset, label):  # s_1 - s_0 = slope x + offset
        z = (slope * X[y == label, 0] + offset) * (1 if label == 0 else -1)
        return np.mean(1 / (1 + np.exp(-z)))

    def value(slope):  # the largest offset that class 0 allows; the least norm of W splits the slope evenly
        low, high = -50.0, 50.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if loss(slope, middle, 0) <= 0.2 else (low, middle)
        return loss(slope, low, 1) + 0.05 / 2 * slope**2 / 2

    best = minimize_scalar(value, bounds=(0.1, 10), method="bounded", options={"xatol": 1e-8})
    assert model.certificate_.objective == pytest.approx(best.fun, abs=1e-6)


def test_calibration_is_named_where_it_cannot_hold():
    X, y = gaussians(means=((0.0, 0.0), (0.1, 0.0), (5.0, 5.0)), n=400)  # classes 0 and 1 are nearly the same
    with pytest.warns(UnmetLimitWarning, match="limits not met"):
        model = NeymanPearsonClassifier(2, 0.1, calibration="order-statistic", random_state=0).fit(X, y)
    assert set(model.unmet_) <= {0, 1}
    assert model.unmet_


def test_calibration_holds_samples_of_the_constrained_class_out():
    X, y = gaussians()
    model = NeymanPearsonClassifier(1, {0: 0.1}, calibration="order-statistic", random_state=0).fit(X, y)
    plain = NeymanPearsonClassifier(1, {0: 0.1}).fit(X, y)
    assert model.class_errors_[0] < plain.class_errors_[0]  # room for what a sample does not show
    with pytest.raises(ValueError, match="class 0 has 10 samples to hold out, but its threshold"):
        model.fit(np.r_[X[:20], X[400:]], np.r_[y[:20], y[400:]])
    with pytest.raises(ValueError, match="sample_weight must be constant with calibration"):
        model.fit(X, y, sample_weight=1.0 + y)


def test_the_guarantee_by_simulation():
    """A share of at most delta of the fits may exceed the threshold on new data; here the true error is exact."""
    from benchmarks.np_calibration import simulate

    plain, calibrated = simulate(40, jobs=1, settings=[0])
    assert calibrated["violations"] <= 0.1 * 40 + 3 * np.sqrt(40 * 0.1 * 0.9)  # delta, and three standard errors
    assert plain["violations"] > 10  # without calibration about half the fits violate


def test_frontier():
    X, y = gaussians(means=((0.0, 0.0), (3.0, 1.0), (1.5, 2.0)), n=150)
    model = NeymanPearsonClassifier(2, 0.2)
    curve = model.frontier(X, y, [0.3, 0.1, 0.2])
    assert model.frontier_ is curve
    assert [point.limit for point in curve.points] == [0.1, 0.2, 0.3]
    assert all(point.met for point in curve.points)
    own = [point.error for point in curve.points]
    assert own == sorted(own, reverse=True)  # a looser limit costs the priority less
    assert all(point.slope <= 0 for point in curve.points)
    model.fit(X, y)
    assert model.class_errors_[2] == pytest.approx(curve.points[1].error, abs=0.02)  # from another start
    assert curve.plot().get_legend() is not None
    single = model.frontier(X, y, [0.25], label=0)
    assert "class 0" in single.limit_label
    with pytest.raises(ValueError, match="label must be one of the constrained classes, got 2"):
        model.frontier(X, y, [0.25], label=2)


def test_the_tools_of_scikit_learn():
    X, y = gaussians(n=150)
    labels = np.array(["no", "yes"])[y]
    pipeline = make_pipeline(StandardScaler(), NeymanPearsonClassifier("yes", {"no": 0.1})).set_output(
        transform="default"
    )
    search = GridSearchCV(pipeline, {"neymanpearsonclassifier__regularizer": [1e-3, 1e-1]}, cv=StratifiedKFold(3))
    search.fit(X, labels)
    model = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(model.predict(X), search.predict(X))
    assert model[-1].certificate_.holds(model[-1].tol)
    copy = clone(model[-1])
    assert copy.get_params() == model[-1].get_params()
    assert not hasattr(copy, "classes_")
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)
    assert model.score(X, labels) > 0.8


def test_n14_coef_of_two_classes_holds_the_cut_and_of_more_gives_the_scores():
    X, y = gaussians(n=50)
    for priority in (0, 1):
        model = NeymanPearsonClassifier(priority, 0.1).fit(X, y)
        np.testing.assert_allclose(model.decision_function(X), (X @ model.coef_.T + model.intercept_)[:, 0])
    X, y = gaussians(n=50, means=((0.0, 0.0), (4.0, 1.0), (-4.0, 3.0)))
    model = NeymanPearsonClassifier(2, 0.1, limit_on="surrogate").fit(X, y)  # no cuts
    np.testing.assert_allclose(model.decision_function(X), X @ model.coef_.T + model.intercept_)


def test_columns_of_data_frames_keep_their_names():
    pandas = pytest.importorskip("pandas")
    X, y = gaussians(n=50)
    frame = pandas.DataFrame(X, columns=["height", "weight"])
    pipeline = make_pipeline(StandardScaler(), NeymanPearsonClassifier()).set_output(transform="pandas").fit(frame, y)
    assert pipeline[-1].feature_names_in_.tolist() == ["height", "weight"]
    with pytest.raises(ValueError, match="feature names should match"):
        pipeline[-1].predict(frame.rename(columns={"height": "size"}))


def test_sparse_data_is_fitted_alike():
    X, y = gaussians(n=100)
    X[np.abs(X) < 0.5] = 0
    dense, thin = (NeymanPearsonClassifier().fit(data, y) for data in (X, sparse.csr_array(X)))
    np.testing.assert_allclose(dense.decision_function(X), thin.decision_function(sparse.csr_array(X)), rtol=1e-6)


def test_a_run_cut_short_says_so():
    X, y = gaussians(n=50)
    with pytest.warns(ConvergenceWarning, match="step limit"):
        model = NeymanPearsonClassifier(max_iter=1).fit(X, y)
    assert model.n_iter_ == 1


X, Y = gaussians(n=10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thresholds": {7: 0.1}}, "thresholds names the class 7, which is not in y; its classes are .0, 1."),
        ({"thresholds": {1: 0.1}}, "thresholds names the prioritized class 1"),
        ({"thresholds": {}}, "thresholds must name every class but the prioritized one; .0. are missing"),
        ({"thresholds": 0.0}, "the threshold of class 0 must lie strictly between 0 and 1, got 0.0"),
        ({"thresholds": {0: 1.0}}, "the threshold of class 0 must lie .* 1, got 1.0"),
        ({"thresholds": "small"}, "the threshold of class 0 must lie .*, got 'small'"),
        ({"priority": 3}, "priority must be one of the classes .0, 1. of y, got 3"),
        ({"limit_on": "loss"}, "limit_on must be one of 'error', 'surrogate', got 'loss'"),
        ({"calibration": True}, "calibration must be one of None, 'order-statistic', got True"),
        ({"calibration": "order-statistic", "limit_on": "surrogate"}, "calibration .* needs limit_on='error'"),
        ({"calibration": "order-statistic", "delta": 0}, "delta must lie strictly between 0 and 1, got 0"),
        ({"calibration": "order-statistic", "calibration_fraction": 1}, "calibration_fraction must lie strictly"),
        ({"hidden": (0,)}, "hidden must hold positive integers"),
        ({"regularizer": -1}, "regularizer must be a finite number of at least 0"),
        ({"tol": 0}, "tol must be a positive finite number"),
        ({"max_iter": 0}, "max_iter must be an integer of at least 1, got 0"),
    ],
)
def test_bad_parameters(options, message):
    with pytest.raises(ValueError, match=message):
        NeymanPearsonClassifier(**options).fit(X, Y)


def test_bad_data():
    model = NeymanPearsonClassifier()
    with pytest.raises(ValueError, match="one class"):
        model.fit(X, np.zeros(len(X)))
    with pytest.raises(ValueError, match="contains NaN"):
        model.fit(np.where(X[0, 0] == X, np.nan, X), Y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X, Y[1:])
    with pytest.raises(ValueError, match="Negative values"):
        model.fit(X, Y, sample_weight=-np.ones(len(X)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, Y)
