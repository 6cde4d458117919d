"""What both estimators share: checked input, the solver, warnings, predictions."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from gdpa.base.checks import check_count, is_count, is_number
from gdpa.base.typing import Vector
from gdpa.methods.adaptive import AdaptiveGDPA, Rules
from gdpa.run.result import Result
from gdpa.run.solve import solve
from gdpa.run.stopping import KKTBelow, MaxSteps
from gdpa.sklearn.network import Matrix, Network
from gdpa.sklearn.oracle import RateProblem

#: Differences of gradients round off half of the digits. Without them weighted and repeated samples give one model.
NO_DIFFERENCES = Rules(settled=math.inf)


class UnmetLimitWarning(ConvergenceWarning):  # type: ignore[misc]
    """The fitted model does not meet every limit; the message and the attribute ``unmet_`` name them."""


class LimitedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The base of the estimators: a network of scores, trained under limits by `AdaptiveGDPA`."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _begin(self, X: Any, y: Any, sample_weight: Any) -> tuple[Matrix, Vector, Vector, Vector]:
        """Check the input and set ``classes_``; samples of weight 0 are left out.

        Returns:
            X, the places of y in ``classes_``, the weights, and which samples were kept.
        """
        check_number("regularizer", self.regularizer, 0, math.inf, closed=True)
        check_number("tol", self.tol, 0, math.inf)
        check_count(1, max_iter=self.max_iter)
        hidden = tuple(self.hidden)
        if not all(is_count(width, 1) for width in hidden):
            raise ValueError(f"hidden must hold positive integers, the widths of hidden layers, got {self.hidden!r}")
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(y)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        kept = np.flatnonzero(weights > 0)
        self.classes_, targets = np.unique(y[kept], return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y must hold samples of at least two classes with positive weight, got one class: {self.classes_}"
            )
        return X[kept], targets, weights[kept], kept

    def _network(self, outputs: int) -> Network:
        return Network((self.n_features_in_, *map(int, self.hidden), outputs))

    def _solve(self, rates: RateProblem, x0: Vector) -> Result:
        stop = (KKTBelow(self.tol), MaxSteps(int(self.max_iter)))
        # One length for all weights: the sizes of single weights at a warm start tell nothing about units.
        return solve(
            rates.problem, x0, AdaptiveGDPA(rules=NO_DIFFERENCES), stop=stop, tolerance=self.tol, record=0, x_scale=1.0
        )

    def _keep(self, network: Network, result: Result, steps: int) -> None:
        """Set the attributes that describe the solution."""
        self.coefs_, self.intercepts_ = map(list, zip(*network.layers(result.x), strict=True))
        self.certificate_, self.n_iter_ = result.certificate, max(steps, 1)

    def _warn(self, result: Result) -> None:
        if self.unmet_:
            warnings.warn(
                f"limits not met: {', '.join(map(str, self.unmet_))}; "
                f"loosen them, lower regularizer, or allow a richer model by hidden. The solver said: {result.message}",
                UnmetLimitWarning,
                stacklevel=3,
            )
        elif not result.success:
            warnings.warn(result.message, ConvergenceWarning, stacklevel=3)

    def _scores(self, X: Any) -> Vector:
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        layers = zip(self.coefs_, self.intercepts_, strict=True)
        x = np.concatenate([part.ravel() for layer in layers for part in layer])
        return self._network(len(self.intercepts_[-1])).scores(x, X)

    def decision_function(self, X: Any) -> Vector:
        """Return the decision values: the largest is predicted; for two classes one value, positive for the second."""
        raise NotImplementedError

    def predict(self, X: Any) -> Any:
        """Return the predicted class of each sample."""
        values = self.decision_function(X)
        return self.classes_[(values > 0).astype(int) if values.ndim == 1 else values.argmax(axis=1)]

    def predict_proba(self, X: Any) -> Vector:
        """Return the softmax of the decision values. It ranks as they do, and is not calibrated."""
        from scipy.special import softmax

        values = self.decision_function(X)
        if values.ndim == 1:
            values = np.stack([np.zeros_like(values), values], axis=1)
        found: Vector = softmax(values, axis=1)
        return found


def check_number(name: str, value: Any, low: float, high: float, closed: bool = False) -> None:
    """Raise unless low < value < high, or value = low if ``closed``."""
    if not is_number(value) or not (low < value < high or (closed and value == low)):
        between = f"{'at least' if closed else 'above'} {low:g} and below {high:g}"
        raise ValueError(f"{name} must be a number {between}, got {value!r}")


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
