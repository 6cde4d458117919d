"""The base of both estimators: checked input, repeated training, the frontier of a trade-off, predictions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from gdpa.base.checks import check_at_least, check_count, check_positive, is_count
from gdpa.base.typing import Vector
from gdpa.core.problem import Problem
from gdpa.methods.adaptive import AdaptiveGDPA
from gdpa.run.result import Result
from gdpa.run.solve import solve
from gdpa.run.stopping import KKTBelow, MaxSteps
from gdpa.sklearn.oracle import Loss, Matrix, Network, RateProblem, cell_means

Judge = Callable[[RateProblem, Result], tuple[Any, RateProblem | None]]
"""Ranks a solution (less is better) and returns the corrected problem to solve next, None to stop."""


class UnmetLimitWarning(ConvergenceWarning):  # type: ignore[misc]
    """The fitted model does not meet every limit; the message and the attribute ``unmet_`` name them."""


class FrontierPoint(NamedTuple):
    """The model trained at one limit.

    Attributes:
        limit: the limit.
        error: the cost of the limit, a 0/1 error on the training data.
        objective: the training objective at the solution.
        slope: the slope of ``objective`` against the limit by the multipliers: the price of the limit.
        met: whether every limit holds on the training data.
        steps: steps of the solver from the solution at the limit before.
    """

    limit: float
    error: float
    objective: float
    slope: float
    met: bool
    steps: int


@dataclass(frozen=True)
class Frontier:
    """Models along a range of limits, the tightest first, and the labels of the axes of a plot."""

    points: tuple[FrontierPoint, ...]
    limit_label: str = "limit"
    error_label: str = "error"

    def plot(self, axes: Any = None) -> Any:
        """Draw error and objective against the limit on a matplotlib ``Axes`` (a new one by default) and return it.

        The short lines have the slopes that the multipliers give the objective. Hollow points miss a limit.
        """
        if axes is None:
            import matplotlib.pyplot as plt

            _, axes = plt.subplots()
        limits = [point.limit for point in self.points]
        width = (max(limits) - min(limits)) / (3 * len(limits)) if len(limits) > 1 else 0.1 * limits[0]
        for color, label, values in (
            ("C0", self.error_label, [point.error for point in self.points]),
            ("C1", "training objective", [point.objective for point in self.points]),
        ):
            axes.plot(limits, values, color=color, linewidth=1, label=label)
            for point, value in zip(self.points, values, strict=True):
                axes.plot(point.limit, value, "o", color=color, markerfacecolor=color if point.met else "white")
        for place, point in enumerate(self.points):
            ends = (point.limit - width, point.limit + width)
            line = [point.objective + point.slope * (end - point.limit) for end in ends]
            axes.plot(ends, line, "k-", linewidth=1.5, label="_" if place else "slope by the multipliers")
        axes.set(xlabel=self.limit_label, ylim=(0, None))
        axes.legend()
        return axes


class Fitted(NamedTuple):
    """A model trained under limits of some ``names``: ``own`` are its attributes, the rest as in `FrontierPoint`."""

    result: Result
    steps: int
    error: float
    unmet: Vector
    names: Sequence[Any]
    own: dict[str, Any]
    slope: float = 0.0


@dataclass(eq=False, repr=False)
class LimitedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A network of scores, trained under limits by `AdaptiveGDPA`; its parameters are fields of a dataclass."""

    _: KW_ONLY
    hidden: Sequence[int] = ()
    regularizer: float = 1e-3
    tol: float = 1e-4
    max_iter: int = 2000
    random_state: Any = None
    engine: Any = None
    shards: int = 8
    _decide: ClassVar[Callable[[Any, Vector], Vector]]  #: decision values of scores

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _begin(self, X: Any, y: Any, sample_weight: Any) -> tuple[Matrix, Vector, Vector, Vector]:
        """Check the input, set ``classes_``; return X, the places of y there, and the weights that are positive."""
        check_at_least(0, regularizer=self.regularizer)
        check_positive(tol=self.tol)
        check_count(1, max_iter=self.max_iter, shards=self.shards)
        if not all(is_count(width, 1) for width in tuple(self.hidden)):
            raise ValueError(f"hidden must hold positive integers, the widths of hidden layers, got {self.hidden!r}")
        given = X
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(y)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        kept = np.flatnonzero(weights > 0)
        self.classes_, targets = np.unique(y[kept], return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y must hold samples of at least two classes with positive weight, got one class: {self.classes_}"
            )
        # X may be larger than memory, mapped from a file that workers read.
        X = given if isinstance(given, np.memmap) and given.shape == X.shape and given.dtype == X.dtype else X
        return X if len(kept) == len(weights) else X[kept], targets, weights[kept], kept

    def _network(self, outputs: int) -> Network:
        return Network((self.n_features_in_, *map(int, self.hidden), outputs))

    def _means(self, network: Network, losses: Sequence[Loss], samples: Sequence[Matrix]) -> Problem:
        return cell_means(network, losses, samples, self.regularizer, self.engine, self.shards)

    def _train(self, rates: RateProblem, x0: Vector, judge: Judge, rounds: int) -> tuple[Result, int]:
        """Solve the smooth problem, correct it as ``judge`` finds, and repeat; return the best and all steps."""
        stop = (KKTBelow(self.tol), MaxSteps(int(self.max_iter)))
        method = AdaptiveGDPA()
        ranked: list[tuple[Any, Result]] = []
        following: RateProblem | None = rates
        while following is not None and len(ranked) < rounds:
            # One length for all weights: the sizes of single weights at a warm start are not units.
            result = solve(following.problem, x0, method, stop=stop, tolerance=self.tol, record=0, x_scale=1.0)
            x0 = result.x
            rank, following = judge(following, result)
            ranked.append((rank, result))
        return min(ranked, key=lambda pair: pair[0])[1], sum(result.steps for _, result in ranked)

    def _trace(
        self, limits: Iterable[float], rising: bool, fit_at: Callable[[float, Any], Fitted], *labels: str
    ) -> Frontier:
        """Train at each limit, the loosest first, from the solution before; keep and return the frontier."""
        points, x = [], None
        for limit in sorted({float(limit) for limit in limits}, reverse=not rising):
            found = fit_at(limit, x)
            x, objective, met = found.result.x, float(found.result.objective), not found.unmet.any()
            points.append(FrontierPoint(limit, found.error, objective, found.slope, met, found.steps))
        self.frontier_ = Frontier(tuple(sorted(points)), *labels)
        return self.frontier_

    def _keep(self, network: Network, found: Fitted) -> Self:
        """Set the attributes that describe the solution, warn of unmet limits, and return the estimator."""
        result, names = found.result, found.names
        for name, value in found.own.items():
            setattr(self, name, value)
        self.coefs_, self.intercepts_ = map(list, zip(*network.layers(result.x), strict=True))
        self.certificate_, self.n_iter_ = result.certificate, max(found.steps, 1)
        self.multipliers_ = dict(zip(names, result.multipliers.tolist(), strict=True))
        self.unmet_ = [name for name, over in zip(names, found.unmet, strict=True) if over]
        if self.unmet_:
            warnings.warn(
                f"limits not met: {', '.join(map(str, self.unmet_))}; loosen them, lower regularizer, or allow a "
                f"richer model by hidden. The solver said: {result.status.value}",
                UnmetLimitWarning,
                stacklevel=3,
            )
        elif not result.success:
            warnings.warn(result.message, ConvergenceWarning, stacklevel=3)
        return self

    @property
    def coef_(self) -> Vector:
        """The weights of a linear model, as scikit-learn has them: one row for two classes, else one for each."""
        W = self._linear("coef_", "coefs_")
        return W.T if W.shape[1] != 2 else (W[:, 1] - W[:, 0])[None]

    @property
    def intercept_(self) -> Vector:
        """The offsets of a linear model; for two classes they contain the cut."""
        b = self._linear("intercept_", "intercepts_")
        return b if len(b) != 2 else self._decide(b[None])

    def _linear(self, name: str, layers: str) -> Vector:
        found = vars(self).get(layers)
        if found is None or len(found) > 1:
            state = "is not fitted" if found is None else f"has hidden layers; use {layers}"
            raise AttributeError(f"{type(self).__name__} has no {name}: the model {state}")
        return np.asarray(found[0])

    def decision_function(self, X: Any) -> Vector:
        """Return the decision values: the largest is predicted; for two classes one value, positive for the second."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        layers = zip(self.coefs_, self.intercepts_, strict=True)
        x = np.concatenate([part.ravel() for layer in layers for part in layer])
        return self._decide(self._network(len(self.intercepts_[-1])).scores(x, X))

    def predict(self, X: Any) -> Any:
        """Return the predicted class of each sample."""
        values = self.decision_function(X)
        return self.classes_[(values > 0).astype(int) if values.ndim == 1 else values.argmax(axis=1)]

    def predict_proba(self, X: Any) -> Vector:
        """Return the softmax of the decision values. It ranks as they do, and is not calibrated."""
        from scipy.special import softmax

        values = self.decision_function(X)
        both = np.stack([np.zeros_like(values), values], axis=1) if values.ndim == 1 else values
        return np.asarray(softmax(both, axis=1))
