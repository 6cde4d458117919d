"""ConstrainedClassifier: limits by group on training data, known answers, metadata routing, bad input."""

import pickle
import warnings

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_selection import SelectFromModel
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gdpa.sklearn import (
    ConstrainedClassifier,
    Limit,
    UnmetLimitWarning,
    demographic_parity,
    equal_opportunity,
    equalized_odds,
    false_positive_rate_at_most,
    recall_at_least,
)


def people(n=1500, seed=0):
    """Two groups; the second has a higher first feature, which helps to tell the classes apart."""
    rng = np.random.default_rng(seed)
    groups = np.where(rng.uniform(size=n) < 0.4, "a", "b")
    X = rng.standard_normal((n, 3))
    X[:, 0] += 1.0 * (groups == "b")
    y = (X[:, 0] + 1.5 * X[:, 1] + rng.standard_normal(n) > 1).astype(int)
    return X, y, groups


def rate(decisions, inside):
    return decisions[inside].mean()


def distance(decisions, groups, inside):
    return max(abs(rate(decisions, inside & (groups == g)) - rate(decisions, inside)) for g in np.unique(groups))


@pytest.mark.parametrize("bound", [0.05, 0.02])
def test_parity_of_the_decisions(bound):
    X, y, groups = people()
    free = ConstrainedClassifier().fit(X, y).predict(X)
    every = np.ones(len(y), bool)
    assert distance(free, groups, every) > 0.08
    model = ConstrainedClassifier([demographic_parity(bound)]).fit(X, y, groups=groups)
    decisions = model.predict(X)
    assert distance(decisions, groups, every) <= bound + 1e-12
    assert max(model.excesses_.values()) == pytest.approx(distance(decisions, groups, every) - bound)
    assert (decisions != y).mean() < (free != y).mean() + 0.08
    assert model.unmet_ == []
    assert model.groups_ == ["a", "b"]
    assert max(model.multipliers_.values()) > 0


def test_equalized_odds_and_equal_opportunity_of_the_decisions():
    X, y, groups = people()
    decisions = ConstrainedClassifier([equalized_odds(0.03)]).fit(X, y, groups=groups).predict(X)
    assert distance(decisions, groups, y == 0) <= 0.03 + 1e-12
    assert distance(decisions, groups, y == 1) <= 0.03 + 1e-12
    decisions = ConstrainedClassifier([equal_opportunity(0.02)]).fit(X, y, groups=groups).predict(X)
    assert distance(decisions, groups, y == 1) <= 0.02 + 1e-12


def test_recall_and_false_positive_limits():
    X, y, groups = people()
    limits = [recall_at_least(0.85, groups="each"), false_positive_rate_at_most(0.25, groups=["b"])]
    model = ConstrainedClassifier(limits).fit(X, y, groups=groups)
    decisions = model.predict(X)
    assert rate(decisions, (y == 1) & (groups == "a")) >= 0.85
    assert rate(decisions, (y == 1) & (groups == "b")) >= 0.85
    assert rate(decisions, (y == 0) & (groups == "b")) <= 0.25
    assert list(model.multipliers_) == [
        "recall of a >= 0.85",
        "recall of b >= 0.85",
        "false positive rate of b <= 0.25",
    ]
    assert rate(ConstrainedClassifier([recall_at_least(0.9)]).fit(X, y).predict(X), y == 1) >= 0.9


def test_without_limits_it_is_logistic_regression():
    X, y, _ = people(n=300)
    weights = np.random.default_rng(1).uniform(0.5, 2, len(y))
    model = ConstrainedClassifier(regularizer=0.01, tol=1e-9).fit(X, y, sample_weight=weights)
    other = LogisticRegression(C=1 / (0.01 * weights.sum()), tol=1e-10).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(model.coefs_[0][:, 0], other.coef_[0], rtol=1e-4)
    np.testing.assert_allclose(model.intercepts_[0], other.intercept_, rtol=1e-4)
    np.testing.assert_allclose(model.predict_proba(X), other.predict_proba(X), rtol=1e-4)
    assert model.multipliers_ == {}


def test_limits_against_each_other_are_named():
    X, y, _ = people(n=300)
    limits = [recall_at_least(0.95), false_positive_rate_at_most(0.02)]
    with pytest.warns(UnmetLimitWarning, match="limits not met: "):
        model = ConstrainedClassifier(limits).fit(X, y)
    assert model.unmet_
    assert set(model.unmet_) <= set(model.excesses_)
    assert all(model.excesses_[name] > 0 for name in model.unmet_)


def test_groups_are_routed():
    X, y, groups = people(n=400)
    weights = np.ones(len(y))
    with sklearn.config_context(enable_metadata_routing=True):
        own = ConstrainedClassifier([demographic_parity(0.05)]).set_fit_request(groups=True, sample_weight=True)
        pipeline = make_pipeline(StandardScaler(), own)
        own.set_score_request(sample_weight=True)
        pipeline[0].set_fit_request(sample_weight=False)
        pipeline.set_score_request(sample_weight=True)  # for scikit-learn 1.6
        pipeline.fit(X, y, groups=groups, sample_weight=weights)
        assert pipeline[-1].groups_ == ["a", "b"]
        grid = {"constrainedclassifier__limits": [[demographic_parity(e)] for e in (0.1, 0.03)]}
        search = GridSearchCV(pipeline, grid, cv=2).fit(X, y, groups=groups, sample_weight=weights)
        assert search.best_estimator_[-1].unmet_ == []
        scores = cross_validate(pipeline, X, y, cv=2, params={"groups": groups, "sample_weight": weights})
        assert np.isfinite(scores["test_score"]).all()
    model = pickle.loads(pickle.dumps(search.best_estimator_[-1]))
    assert clone(model).limits == model.limits


def test_frontier():
    X, y, groups = people(n=600)
    model = ConstrainedClassifier([demographic_parity(0.05), recall_at_least(0.5)])
    curve = model.frontier(X, y, [0.1, 0.02, 0.05], groups)
    assert [point.limit for point in curve.points] == [0.02, 0.05, 0.1]
    assert all(point.met for point in curve.points)
    assert curve.points[0].objective > curve.points[-1].objective
    assert curve.points[0].slope < 0
    rising = model.frontier(X, y, [0.6, 0.8], groups, which=1)
    assert rising.points[1].slope >= 0
    assert "recall" in rising.limit_label
    with pytest.raises(ValueError, match="which must be the place of one of the 2 limits, got 2"):
        model.frontier(X, y, [0.5], groups, which=2)


def test_bad_limits():
    with pytest.raises(ValueError, match="strictly between 0 and 1, got 0"):
        demographic_parity(0)
    with pytest.raises(ValueError, match="strictly between 0 and 1, got 'a tenth'"):
        equalized_odds("a tenth")
    with pytest.raises(ValueError, match="groups must be 'all', 'each' or a list of labels, got 'women'"):
        recall_at_least(0.5, "women")
    assert recall_at_least(0.5, ["a"]) == Limit(("recall",), "at least", 0.5, ("a",))


@pytest.mark.parametrize(
    ("options", "groups", "message"),
    [
        ({"limits": [0.1]}, None, "limits must be a limit such as demographic_parity.*got 0.1"),
        ({"limits": [demographic_parity(0.1)]}, None, "groups is missing"),
        ({"limits": [demographic_parity(0.1)]}, ["a", "b"], "inconsistent numbers of samples"),
        ({"limits": [recall_at_least(0.5, ["c"])]}, "right", "names the groups .'c'., which are not in groups"),
        ({"temperature": 0}, None, "temperature must be a positive finite number"),
    ],
)
def test_bad_parameters(options, groups, message):
    X, y, right = people(n=50)
    groups = right if isinstance(groups, str) else groups
    with pytest.raises(ValueError, match=message):
        ConstrainedClassifier(**options).fit(X, y, groups=groups)


def test_bad_data():
    X, y, groups = people(n=50)
    with pytest.raises(ValueError, match="Only binary classification is supported"):
        ConstrainedClassifier().fit(X, np.arange(50) % 3)
    with pytest.raises(ValueError, match="one class"):
        ConstrainedClassifier().fit(X, np.ones(50))
    with pytest.raises(ValueError, match="contains NaN"):
        ConstrainedClassifier().fit(np.full_like(X, np.nan), y)
    with pytest.raises(ValueError, match="the group 'a' has no samples of class 1, so its recall has no meaning"):
        ConstrainedClassifier([equalized_odds(0.1)]).fit(X, np.where(groups == "a", 0, y), groups=groups)


def test_n13_one_limit_needs_no_list():
    X, y, _ = people(n=300)
    alone, listed = (ConstrainedClassifier(limits) for limits in (recall_at_least(0.9), [recall_at_least(0.9)]))
    np.testing.assert_array_equal(alone.fit(X, y).predict(X), listed.fit(X, y).predict(X))
    assert clone(alone).limits == recall_at_least(0.9)
    assert alone.frontier(X, y, [0.8]).points == listed.frontier(X, y, [0.8]).points


def test_n14_linear_models_have_coef_and_intercept():
    X, y, _ = people(n=300)
    model = ConstrainedClassifier(recall_at_least(0.9))
    with pytest.raises(AttributeError, match="has no coef_: the model is not fitted"):
        model.coef_  # noqa: B018
    model.fit(X, y)
    assert model.coef_.shape == (1, 3)
    np.testing.assert_allclose(model.decision_function(X), (X @ model.coef_.T + model.intercept_)[:, 0])
    assert SelectFromModel(model, prefit=True).transform(X).shape[1] < 3
    network = ConstrainedClassifier(hidden=(2,), max_iter=5, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(X, y)
    with pytest.raises(AttributeError, match="has no intercept_: the model has hidden layers; use intercepts_"):
        network.intercept_  # noqa: B018
