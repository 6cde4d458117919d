"""Classifiers for scikit-learn whose errors and rates stay within limits, trained by `gdpa.solve`.

Needs the extra ``sklearn``: ``pip install gdpa[sklearn]``.
"""

try:
    import sklearn as _sklearn  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("gdpa.sklearn needs scikit-learn; install it by pip install 'gdpa[sklearn]'") from error

from gdpa.sklearn._estimator import UnmetLimitWarning
from gdpa.sklearn._frontier import Frontier, FrontierPoint
from gdpa.sklearn._neyman_pearson import NeymanPearsonClassifier

__all__ = ["NeymanPearsonClassifier", "Frontier", "FrontierPoint", "UnmetLimitWarning"]
