"""A classifier whose decisions stay within named limits: one deterministic model, multipliers as prices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_consistent_length

from gdpa.base.status import Status
from gdpa.base.typing import Vector
from gdpa.run.result import Result
from gdpa.sklearn.calibration import ROUNDING
from gdpa.sklearn.estimator import LimitedClassifier, check_number
from gdpa.sklearn.frontier import Frontier, FrontierPoint
from gdpa.sklearn.limits import Limit, Rows, rows_of
from gdpa.sklearn.oracle import RateProblem, SoftDecision, cells_of, logistic

#: How often the smooth problem is corrected by the decisions; what is close to a bound, and what is far beyond it,
#: in shares of the bound.
ROUNDS, CLOSE, FAR = 10, 0.05, 0.5


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
        limits: a list of `demographic_parity`, `equalized_odds`, `equal_opportunity`, `recall_at_least`,
            `false_positive_rate_at_most`; None or an empty list trains without limits.
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
        frontier_: what `frontier` returned last.
        coefs_, intercepts_: W and b of every layer.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.

    Example:
        >>> from gdpa.sklearn import ConstrainedClassifier, demographic_parity
        >>> rng = np.random.default_rng(0)
        >>> groups = rng.integers(0, 2, 2000)
        >>> X = rng.standard_normal((2000, 3))
        >>> X[:, 0] += groups  # the second group scores higher
        >>> y = (X.sum(axis=1) + rng.standard_normal(2000) > 1).astype(int)
        >>> model = ConstrainedClassifier([demographic_parity(0.05)]).fit(X, y, groups=groups)
        >>> gap = model.predict(X)[groups == 1].mean() - model.predict(X)[groups == 0].mean()
        >>> bool(gap <= 0.1), model.unmet_
        (True, [])

    References:
        A. Agarwal, A. Beygelzimer, M. Dudik, J. Langford and H. Wallach, "A reductions approach to fair
        classification", ICML 2018, for the limits as linear functions of rates; their method returns a randomized
        mixture of models.
    """

    def __init__(
        self,
        limits: Sequence[Limit] | None = None,
        *,
        hidden: Sequence[int] = (),
        regularizer: float = 1e-4,
        temperature: float = 1.0,
        tol: float = 1e-4,
        max_iter: int = 2000,
        random_state: Any = None,
    ) -> None:
        self.limits = limits
        self.hidden = hidden
        self.regularizer = regularizer
        self.temperature = temperature
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> ConstrainedClassifier:
        """Train on X of shape (n, features), dense or sparse, and two labels y.

        Args:
            X, y: the training data.
            groups: the group of each sample, for limits that speak of groups. Within a pipeline or a grid search, ask
                for it by ``set_fit_request(groups=True)``.
            sample_weight: weights of the samples, in the loss and in every rate.
        """
        data = self._data(X, y, groups, sample_weight)
        start = data.rates.network.start(check_random_state(self.random_state))
        found = self._solved(data, start)
        self._keep(data.rates.network, found.result, found.steps)
        self.groups_ = data.groups
        self.multipliers_ = dict(zip(data.rows.names, found.result.multipliers.tolist(), strict=True))
        self.excesses_ = dict(zip(data.rows.names, found.excess.tolist(), strict=True))
        self.unmet_ = [name for name, excess in self.excesses_.items() if excess > ROUNDING]
        self._warn(found.result)
        return self

    def decision_function(self, X: Any) -> Vector:
        """Return the score of each sample; the decision is positive if it is above 0."""
        return self._scores(X)[:, 0]

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
        limits: list[Any] = list(self.limits or ())
        if not 0 <= which < len(limits):
            raise ValueError(f"which must be the place of one of the {len(limits)} limits, got {which!r}")
        limit = limits[which]
        rising = limit.sense == "at least"
        values = sorted({float(bound) for bound in bounds}, reverse=not rising)
        points, start = [], None
        for value in values:
            own = replace(limit, bound=value)
            model = clone(self).set_params(limits=[*limits[:which], own, *limits[which + 1 :]])
            data = model._data(X, y, groups, sample_weight)
            network = data.rates.network
            start = network.start(check_random_state(self.random_state)) if start is None else start
            found = model._solved(data, start)
            start = found.result.x
            own_names = set(rows_of([own], data.groups, data.cells, data.rates.cells.masses).names)
            price = sum(
                p for name, p in zip(data.rows.names, found.result.multipliers, strict=True) if name in own_names
            )
            points.append(
                FrontierPoint(
                    limit=value,
                    error=found.error,
                    objective=float(found.result.objective),
                    slope=float(price if rising else -price),
                    met=bool(np.all(found.excess <= ROUNDING)),
                    steps=found.steps,
                )
            )
        label = f"{limit.sense} in {' and '.join(limit.rates)}" if limit.sense == "parity" else f"{limit.rates[0]}"
        self.frontier_ = Frontier(tuple(sorted(points)), f"bound on {label}", "training error")
        return self.frontier_

    def _data(self, X: Any, y: Any, groups: Any, sample_weight: Any) -> _Data:
        """Check the input and state the smooth problem."""
        limits: list[Any] = list(self.limits or ())
        for limit in limits:
            if not isinstance(limit, Limit):
                text = f"limits must hold limits such as demographic_parity(0.02), got {limit!r}"
                raise ValueError(text)  # noqa: TRY004 - scikit-learn's error for a parameter
        check_number("temperature", self.temperature, 0, np.inf)
        X, targets, weights, kept = self._begin(X, y, sample_weight)
        if len(self.classes_) > 2:
            kind = type_of_target(y)
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        group, labels = self._grouped(limits, groups, y, kept)
        pairs, cell = np.unique(2 * group + targets, return_inverse=True)
        place = pairs // 2, pairs % 2
        cells = cells_of(X, targets, weights, cell, len(pairs))
        rows = rows_of(limits, labels, place, cells.masses)
        rates = RateProblem(
            network=self._network(1),
            cells=cells,
            loss=logistic,
            rate=SoftDecision(float(self.temperature)),
            objective=cells.masses,
            combination=rows.matrix,
            bounds=rows.bounds,
            regularizer=self.regularizer,
            names=rows.names,
        )
        return _Data(rates, rows, labels, place)

    def _grouped(self, limits: Sequence[Limit], groups: Any, y: Any, kept: Vector) -> tuple[Vector, list[Any]]:
        """Return the place of each sample's group among the labels of the groups, and these labels."""
        if groups is None:
            if any(limit.needs_groups for limit in limits):
                raise ValueError("groups is missing: a limit refers to groups; call fit(X, y, groups=...)")
            return np.zeros(len(kept), int), ["all"]
        groups = column_or_1d(np.asarray(groups))
        check_consistent_length(y, groups)
        labels, group = np.unique(groups[kept], return_inverse=True)
        return group, labels.tolist()

    def _solved(self, data: _Data, x0: Vector) -> _Found:
        """Solve the smooth problem and correct it by the decisions, until these meet the limits closely."""
        rates, bounds, steps = data.rates, data.rows.bounds, 0
        temperature = float(self.temperature)
        correction, margin = np.zeros(len(bounds)), np.zeros(len(bounds))
        best: _Found | None = None
        for _ in range(ROUNDS if len(bounds) else 1):
            result = self._solve(replace(rates, bounds=bounds - correction - margin), x0)
            x0, steps = result.x, steps + result.steps
            excess, error, gap = _decisions(rates, bounds, x0)
            found = _Found(result, excess, error, steps)
            best = found if best is None or found.rank < best.rank else best
            # A limit with a price should be met closely: slack there is paid for.
            slack = (result.multipliers > 0) & (excess < -CLOSE * np.abs(bounds))
            if found.rank[0] <= ROUNDING and not slack.any():
                break
            if result.status is Status.LOCALLY_INFEASIBLE and not correction.any():
                break  # the limits contradict each other
            if np.any(excess > FAR * np.abs(bounds)):  # small weights met the smooth limits alone: follow closer
                temperature /= 2
                rates = replace(rates, rate=SoftDecision(temperature))
                correction, margin = np.zeros(len(bounds)), np.zeros(len(bounds))
                continue
            correction = (correction + gap) / 2 if correction.any() else gap
            margin = margin + np.where(excess < CLOSE * np.abs(bounds), np.maximum(excess, 0.0), 0.0)
        assert best is not None
        return best._replace(steps=steps)


def _decisions(rates: RateProblem, bounds: Vector, x: Vector) -> tuple[Vector, float, Vector]:
    """Return by how much the decisions exceed each limit, their error, and how far they exceed their stand-ins."""
    cells = rates.cells
    scores = rates.network.scores(x, cells.X)
    positive = scores[:, 0] > 0
    decided, smooth = cells.means(positive.astype(float)), cells.means(rates.rate(scores, cells.targets)[0])
    error = float(cells.masses @ cells.means((positive != cells.targets).astype(float)))
    return rates.combination @ decided - bounds, error, rates.combination @ (decided - smooth)


class _Data(NamedTuple):
    """The smooth problem, the limits as rows, the labels of the groups, and the group and target of each cell."""

    rates: RateProblem
    rows: Rows
    groups: list[Any]
    cells: tuple[Vector, Vector]


class _Found(NamedTuple):
    """A solution of the smooth problem and what its decisions do."""

    result: Result
    excess: Vector
    error: float
    steps: int

    @property
    def rank(self) -> tuple[float, float]:
        """Less is better: first the largest excess above 0, then the objective."""
        return max(float(self.excess.max(initial=0.0)), ROUNDING), float(self.result.objective)
