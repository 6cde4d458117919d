"""A classifier whose decisions stay within named limits: one deterministic model, multipliers as prices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_consistent_length

from gdpa.base.checks import check_positive
from gdpa.base.status import Status
from gdpa.base.typing import Vector
from gdpa.run.result import Result
from gdpa.sklearn.calibration import ROUNDING
from gdpa.sklearn.estimator import Fitted, Frontier, LimitedClassifier
from gdpa.sklearn.limits import Limit, rows_of
from gdpa.sklearn.oracle import RateProblem, SoftDecision, cells_of, logistic

#: How often the smooth problem is solved, corrected by the decisions each time.
#: An excess over a bound is close, or far, below and above these shares of the bound.
ROUNDS, CLOSE, FAR = 10, 0.05, 0.5


@dataclass(eq=False, repr=False)
class ConstrainedClassifier(LimitedClassifier):
    r"""A binary classifier that minimizes the logistic loss while rates of its decisions stay within limits.

    With the score s of a sample, linear in the features or from a small network, and y = 1 the second class:

    .. math::
        \min\; \mathrm{mean}\, \log(1 + e^{\mp s}) + \tfrac{\text{regularizer}}{2} \sum \|W\|^2
        \quad\text{subject to}\quad \sum_c C_{kc}\, \mathrm{rate}_c \le b_k,

    where rate_c is the share of positive decisions 1[s > 0] in the cell c, the samples of one group and one class.
    Training uses :math:`\sigma(s/\text{temperature})` instead of 1[s > 0]. The gap between the two, measured at
    the solution, corrects the bounds, and the problem is solved again from there, until the *decisions* on the training
    data meet the limits. The model is deterministic, and needs no group to predict.

    Limits hold on the training data. On new data they hold up to sampling error.

    Args:
        limits: one of `demographic_parity`, `equalized_odds`, `equal_opportunity`, `recall_at_least`,
            `false_positive_rate_at_most`, or a list of them; None or an empty list trains without limits.
        hidden, regularizer, tol, max_iter, random_state: as in `NeymanPearsonClassifier`.
        temperature: see above. A low one follows decisions closely, and makes the problem less smooth. It is halved
            when decisions exceed a limit by far.

    Attributes:
        classes_: the two labels; the second is the positive one.
        multipliers_: the price of each limit, by its name: how fast the objective falls when the limit is loosened.
        excesses_: by how much the decisions on the training data exceed each limit; at most 0 if it is met.
        unmet_: the names of the limits that are not met; a warning names them, too.
        groups_: the labels of the groups.
        certificate_: the KKT conditions of the last smooth problem, recomputed at the solution (`gdpa.Certificate`).
        n_iter_: steps of the solver in all.
        frontier_: the last `frontier`.
        coefs_, intercepts_: W and b of every layer.
        coef_, intercept_: of a linear model, in the shapes of scikit-learn; a network has none.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.

    Example:
        >>> from gdpa.sklearn import ConstrainedClassifier, demographic_parity
        >>> rng = np.random.default_rng(0)
        >>> groups = rng.integers(0, 2, 2000)
        >>> X = rng.standard_normal((2000, 3))
        >>> X[:, 0] += groups  # the second group scores higher
        >>> y = (X.sum(axis=1) + rng.standard_normal(2000) > 1).astype(int)
        >>> model = ConstrainedClassifier(demographic_parity(0.05)).fit(X, y, groups=groups)
        >>> gap = model.predict(X)[groups == 1].mean() - model.predict(X)[groups == 0].mean()
        >>> bool(gap <= 0.1), model.unmet_
        (True, [])

    References:
        A. Agarwal, A. Beygelzimer, M. Dudik, J. Langford and H. Wallach, "A reductions approach to fair
        classification", ICML 2018, for the limits as linear functions of rates; their method returns a randomized
        mixture of models.
    """

    limits: Limit | Sequence[Limit] | None = None
    _: KW_ONLY
    regularizer: float = 1e-4
    temperature: float = 1.0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> ConstrainedClassifier:
        """Train on X of shape (n, features), dense or sparse, and two labels y.

        Args:
            X, y: the training data.
            groups: the group of each sample, for limits that refer to groups. Within a pipeline or a grid search, ask
                for it by ``set_fit_request(groups=True)``.
            sample_weight: weights of the samples, in the loss and in every rate.
        """
        limits = self._limits()
        rates = self._begin_with(limits, X, y, groups, sample_weight)(limits)
        found = self._fit_at(rates, None)
        self.excesses_ = dict(zip(rates.names, found.facts.tolist(), strict=True))
        self._keep(rates.network, found, rates.names)
        return self

    def frontier(
        self, X: Any, y: Any, bounds: Iterable[float], groups: Any = None, *, which: int = 0, sample_weight: Any = None
    ) -> Frontier:
        """Return the training error for every bound of one limit: which limit should I choose?

        The model is trained at each bound in turn, the loosest first, from the solution before. The estimator itself
        is left as it is, but for the attribute ``frontier_``.

        Args:
            X, y, groups, sample_weight: as in `fit`.
            bounds: the bounds to try.
            which: the place in ``limits`` of the limit that they replace.
        """
        limits = self._limits()
        if not 0 <= which < len(limits):
            raise ValueError(f"which must be the place of one of the {len(limits)} limits, got {which!r}")
        limit, model = limits[which], clone(self)
        limited = model._begin_with(limits, X, y, groups, sample_weight)
        rising = limit.sense == "at least"

        def fit_at(bound: float, x0: Any) -> Fitted:
            own = replace(limit, bound=bound)
            rates = limited([*limits[:which], own, *limits[which + 1 :]])
            found: Fitted = model._fit_at(rates, x0)
            price = float(found.result.multipliers[np.isin(rates.names, limited([own]).names)].sum())
            return found._replace(slope=price if rising else -price)

        label = f"parity in {' and '.join(limit.rates)}" if limit.sense == "parity" else limit.rates[0]
        return self._trace(bounds, rising, fit_at, f"bound on {label}", "training error")

    def _limits(self) -> list[Limit]:
        """Return the limits as a list; one alone needs none."""
        given: Any = () if self.limits is None else self.limits
        limits = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
        for limit in limits:
            if not isinstance(limit, Limit):
                text = f"limits must be a limit such as demographic_parity(0.02), or a list of them, got {limit!r}"
                raise ValueError(text)  # noqa: TRY004 - scikit-learn's error for a parameter
        return limits

    def _begin_with(
        self, limits: Sequence[Limit], X: Any, y: Any, groups: Any, sample_weight: Any
    ) -> Callable[[Sequence[Limit]], RateProblem]:
        """Check the input and return the smooth problem as a function of limits such as ``limits``."""
        check_positive(temperature=self.temperature)
        X, targets, weights, kept = self._begin(X, y, sample_weight)
        if len(self.classes_) > 2:
            kind = type_of_target(y)
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        if groups is not None:
            groups = column_or_1d(np.asarray(groups))
            check_consistent_length(y, groups)
            groups = groups[kept]
        elif any(limit.groups != "all" for limit in limits):
            raise ValueError("groups is missing: a limit refers to groups; call fit(X, y, groups=...)")
        labels, group = np.unique(np.full(len(kept), "all") if groups is None else groups, return_inverse=True)
        pairs, cell = np.unique(2 * group + targets, return_inverse=True)
        cells = cells_of(X, targets, weights, cell, len(pairs))
        self.groups_, temperature = labels.tolist(), SoftDecision(float(self.temperature))
        rates = RateProblem(self._network(1), cells, logistic, temperature, cells.masses, self.regularizer)
        return lambda own: replace(rates, **rows_of(own, self.groups_, pairs // 2, pairs % 2, cells.masses))

    def _fit_at(self, rates: RateProblem, x0: Any) -> Fitted:
        """Solve the smooth problem and correct it by the decisions, until these meet the limits closely."""
        bounds = rates.bounds
        correction = margin = np.zeros(len(bounds))

        def judge(now: RateProblem, result: Result) -> tuple[Any, RateProblem | None]:
            nonlocal correction, margin
            excess, _, gap = _decisions(replace(now, bounds=bounds), result.x)
            rank = max(float(excess.max(initial=0.0)), ROUNDING), float(result.objective)
            # A limit with a price should be met closely: slack there is paid for.
            slack = (result.multipliers > 0) & (excess < -CLOSE * np.abs(bounds))
            met = rank[0] <= ROUNDING and not slack.any()
            contradictory = result.status is Status.LOCALLY_INFEASIBLE and not correction.any()
            if met or contradictory:
                return rank, None
            if np.any(excess > FAR * np.abs(bounds)):  # small weights met the smooth limits alone: follow closer
                correction = margin = np.zeros(len(bounds))
                assert isinstance(now.rate, SoftDecision)
                now = replace(now, rate=SoftDecision(now.rate.temperature / 2))
            else:
                correction = (correction + gap) / 2 if correction.any() else gap
                margin = margin + np.where(excess < CLOSE * np.abs(bounds), np.maximum(excess, 0.0), 0.0)
            return rank, replace(now, bounds=bounds - correction - margin)

        x0 = rates.network.start(check_random_state(self.random_state)) if x0 is None else x0
        result, steps = self._train(rates, x0, judge, ROUNDS if len(bounds) else 1)
        excess, error, _ = _decisions(rates, result.x)
        return Fitted(result, steps, error, excess > ROUNDING, excess)

    def _decide(self, scores: Vector) -> Vector:
        return scores[:, 0]


def _decisions(rates: RateProblem, x: Vector) -> tuple[Vector, float, Vector]:
    """Return the excess of the decisions over each limit, their error, and their excess over their stand-ins."""
    cells = rates.cells
    scores = rates.network.scores(x, cells.X)
    positive = scores[:, 0] > 0
    decided, smooth = cells.means(positive.astype(float)), cells.means(rates.rate(scores, cells.targets)[0])
    error = float(cells.masses @ cells.means((positive != cells.targets).astype(float)))
    return rates.combination @ decided - rates.bounds, error, rates.combination @ (decided - smooth)
