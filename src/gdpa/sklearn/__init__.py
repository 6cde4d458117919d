"""Classifiers for scikit-learn whose errors and rates stay within limits, trained by `gdpa.solve`.

Needs scikit-learn, the extra ``sklearn``: ``pip install -e '.[sklearn]'`` in a checkout.
"""

from gdpa.base.extras import needed_by

with needed_by("gdpa.sklearn"):
    import sklearn as _sklearn  # noqa: F401

from gdpa.sklearn.constrained import (
    ConstrainedClassifier,
    Limit,
    demographic_parity,
    equal_opportunity,
    equalized_odds,
    false_positive_rate_at_most,
    recall_at_least,
)
from gdpa.sklearn.estimator import Frontier, FrontierPoint, UnmetLimitWarning
from gdpa.sklearn.neyman_pearson import NeymanPearsonClassifier

__all__ = [
    "NeymanPearsonClassifier", "ConstrainedClassifier", "Limit", "demographic_parity", "equalized_odds",
    "equal_opportunity", "recall_at_least", "false_positive_rate_at_most", "Frontier", "FrontierPoint",
    "UnmetLimitWarning",
]  # fmt: skip
