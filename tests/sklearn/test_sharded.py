"""The estimators with their samples in shards, against the same training in one process."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.datasets import make_classification

from gdpa.sklearn import ConstrainedClassifier, NeymanPearsonClassifier, demographic_parity

X, Y = make_classification(600, 6, n_informative=4, n_classes=3, flip_y=0.1, random_state=0)
SHARDS = {"engine": "local", "shards": 3}
WEIGHTS = np.random.default_rng(0).uniform(0.5, 2.0, len(Y))


def fitted(data=X, **options):
    return NeymanPearsonClassifier(1, 0.3, tol=1e-8, limit_on="surrogate", **options).fit(data, Y, WEIGHTS)


@pytest.mark.parametrize("hidden", [(), (3,)])
def test_shards_train_the_same_model(hidden):
    options = {"hidden": hidden, "random_state": 0, "regularizer": 0.01}
    one, parts = fitted(**options), fitted(engine="local", shards=3, **options)
    assert parts.certificate_.holds(1e-7)
    assert parts.certificate_.objective == pytest.approx(one.certificate_.objective, rel=1e-5)
    if not hidden:
        np.testing.assert_allclose(parts.coefs_[0], one.coefs_[0], rtol=1e-3, atol=1e-4)
        assert parts.class_errors_ == one.class_errors_


def test_mapped_files_and_sparse_matrices(tmp_path):
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    plain = fitted(engine="local", shards=2)
    for data in (mapped, scipy.sparse.csr_array(X)):
        np.testing.assert_allclose(fitted(data, engine="local", shards=2).coefs_[0], plain.coefs_[0], rtol=1e-6)


def test_limits_on_errors_and_a_frontier_go_through_shards():
    model = NeymanPearsonClassifier(1, 0.3, engine="local", shards=2)
    one = NeymanPearsonClassifier(1, 0.3)
    assert model.fit(X, Y).class_errors_ == pytest.approx(one.fit(X, Y).class_errors_, abs=0.02)
    errors = [[point.error for point in each.frontier(X, Y, [0.25, 0.3]).points] for each in (model, one)]
    np.testing.assert_allclose(errors[0], errors[1], atol=0.02)


def test_limits_by_group_go_through_shards():
    groups, y = np.arange(len(Y)) % 2, Y > 0
    one, parts = (ConstrainedClassifier([demographic_parity(0.02)], tol=1e-8, **o) for o in ({}, SHARDS))
    for model in (one, parts):
        model.fit(X, y, groups=groups)
        assert model.unmet_ == []
    np.testing.assert_allclose(parts.coef_, one.coef_, rtol=1e-5, atol=1e-6)
    errors = [[point.error for point in each.frontier(X, y, [0.02, 0.1], groups).points] for each in (one, parts)]
    np.testing.assert_allclose(errors[0], errors[1], atol=1e-2)
