"""A classifier whose decisions stay within named limits: one deterministic model, multipliers as prices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_consistent_length

from gdpa.base.checks import check_positive, is_number
from gdpa.base.status import Status
from gdpa.base.typing import Vector
from gdpa.core.problem import Problem
from gdpa.run.result import Result
from gdpa.sklearn.calibration import ROUNDING
from gdpa.sklearn.estimator import Fitted, Frontier, LimitedClassifier
from gdpa.sklearn.oracle import Matrix, Network, RateProblem, logistic, soft_decision

#: How often the smooth problem is solved, corrected by the decisions each time.
#: An excess over a bound is close, or far, below and above these shares of the bound.
ROUNDS, CLOSE, FAR = 10, 0.05, 0.5
#: The rates that a limit can bound: name -> the targets over whose samples the share of positive decisions is taken.
RATES = {"selection rate": (0, 1), "recall": (1,), "false positive rate": (0,)}


@dataclass(frozen=True)
class Limit:
    """One limit on rates of positive decisions; make one by the functions of this module.

    Attributes:
        rates: names in `RATES`.
        sense: "at most" or "at least" the bound, or "parity": each group's rate within the bound of the rate of all.
        bound: strictly between 0 and 1.
        groups: "all" (the data as a whole), "each" (one limit per group), or the labels of some groups.
    """

    rates: tuple[str, ...]
    sense: Literal["at most", "at least", "parity"]
    bound: float
    groups: str | tuple[Any, ...] = "all"

    def __post_init__(self) -> None:
        if not (is_number(self.bound) and 0 < self.bound < 1):
            raise ValueError(f"the bound of a limit must lie strictly between 0 and 1, got {self.bound!r}")
        if isinstance(self.groups, str) and self.groups not in ("all", "each"):
            raise ValueError(f"groups must be 'all', 'each' or a list of labels, got {self.groups!r}")


def demographic_parity(bound: float) -> Limit:
    """Every group's selection rate P(positive | group) is within ``bound`` of the selection rate of all."""
    return Limit(("selection rate",), "parity", bound, "each")


def equalized_odds(bound: float) -> Limit:
    """Every group's recall and every group's false positive rate are within ``bound`` of the rates of all."""
    return Limit(("recall", "false positive rate"), "parity", bound, "each")


def equal_opportunity(bound: float) -> Limit:
    """Every group's recall is within ``bound`` of the recall of all."""
    return Limit(("recall",), "parity", bound, "each")


def recall_at_least(bound: float, groups: str | Sequence[Any] = "all") -> Limit:
    """The recall P(positive | y = 1) is at least ``bound``, over all the data, in "each" group, or in those named."""
    return Limit(("recall",), "at least", bound, groups if isinstance(groups, str) else tuple(groups))


def false_positive_rate_at_most(bound: float, groups: str | Sequence[Any] = "all") -> Limit:
    """The false positive rate P(positive | y = 0) is at most ``bound``, over all data, in "each" group or some."""
    return Limit(("false positive rate",), "at most", bound, groups if isinstance(groups, str) else tuple(groups))


def rows_of(
    limits: Sequence[Limit], labels: Sequence[Any], group: Vector, target: Vector, masses: Vector
) -> dict[str, Any]:
    """Return names, C and bounds of ``limits``; ``labels`` are of groups, ``masses`` of cells (group, target)."""
    found: dict[str, tuple[Vector, float]] = {}

    def rate(name: str, place: int | None) -> Vector:
        inside = np.isin(target, RATES[name]) & ((group == place) if place is not None else True)
        if not inside.any():
            who = "the data" if place is None else f"the group {labels[place]!r}"
            raise ValueError(f"{who} has no samples of class {RATES[name][0]}, so its {name} has no meaning")
        row: Vector = np.where(inside, masses, 0.0)
        return np.asarray(row / row.sum())

    for limit in limits:
        for name in limit.rates:
            for place in _places(limit, labels):
                row, who = rate(name, place), "all" if place is None else str(labels[place])
                if limit.sense == "parity":
                    row = row - rate(name, None)
                    found[f"{name} of {who} - all <= {limit.bound:g}"] = row, limit.bound
                    found[f"all - {name} of {who} <= {limit.bound:g}"] = -row, limit.bound
                elif limit.sense == "at least":
                    found[f"{name} of {who} >= {limit.bound:g}"] = -row, -limit.bound
                else:
                    found[f"{name} of {who} <= {limit.bound:g}"] = row, limit.bound
    matrix = np.array([row for row, _ in found.values()]).reshape(len(found), len(masses))
    bounds = np.array([bound for _, bound in found.values()])
    return {"names": tuple(found), "combination": matrix, "bounds": bounds}


def _places(limit: Limit, labels: Sequence[Any]) -> list[int | None]:
    if limit.groups == "all":
        return [None]
    if limit.groups == "each":
        return list(range(len(labels)))
    missing = [label for label in limit.groups if label not in labels]
    if missing:
        raise ValueError(f"a limit names the groups {missing}, which are not in groups; there are {list(labels)}")
    return [list(labels).index(label) for label in limit.groups]


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
        hidden, regularizer, tol, max_iter, random_state, engine, shards: as in `NeymanPearsonClassifier`.
        temperature: see above. A low one follows decisions closely, and makes the problem less smooth. It is halved
            when decisions exceed a limit by far.

    Attributes:
        classes_: the two labels; the second is the positive one.
        multipliers_: the price of each limit, by its name: how fast the objective falls when the limit is loosened.
        excesses_: by how much the decisions on the training data exceed each limit; at most 0 if it is met.
        unmet_: the names of the limits that are not met; a warning names them, too.
        groups_: the labels of the groups.
        certificate_: the KKT conditions of the last smooth problem, recomputed at the solution (`gdpa.Certificate`).
        n_iter_, frontier_, coefs_, intercepts_, coef_, intercept_: as in `NeymanPearsonClassifier`.
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
        task = self._task(X, y, groups, sample_weight)
        return self._keep(task.network, self._fit_at(task, task.rows(self._limits())))

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
        task = model._task(X, y, groups, sample_weight)
        rising = limit.sense == "at least"

        def fit_at(bound: float, x0: Any) -> Fitted:
            own = replace(limit, bound=bound)
            found: Fitted = model._fit_at(task, task.rows([*limits[:which], own, *limits[which + 1 :]]), x0)
            price = float(found.result.multipliers[np.isin(found.names, task.rows([own])["names"])].sum())
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

    def _task(self, X: Any, y: Any, groups: Any, sample_weight: Any) -> _Task:
        """Check the input."""
        check_positive(temperature=self.temperature)
        X, targets, weights, kept = self._begin(X, y, sample_weight)
        if len(self.classes_) > 2:
            kind = type_of_target(y)
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        if groups is not None:
            groups = column_or_1d(np.asarray(groups))
            check_consistent_length(y, groups)
            groups = groups[kept]
        elif any(limit.groups != "all" for limit in self._limits()):
            raise ValueError("groups is missing: a limit refers to groups; call fit(X, y, groups=...)")
        names, group = np.unique(np.full(len(kept), "all") if groups is None else groups, return_inverse=True)
        pairs, cell = np.unique(2 * group + targets, return_inverse=True)
        self.groups_, masses = names.tolist(), np.bincount(cell, weights) / weights.sum()
        rows = partial(rows_of, labels=self.groups_, group=pairs // 2, target=pairs % 2, masses=masses)
        network, samples = self._network(1), (X, targets, weights, cell)
        means = self._means(network, (logistic, partial(soft_decision, temperature=float(self.temperature))), samples)
        return _Task(network, samples, means, masses, rows)

    def _fit_at(self, task: _Task, rows: dict[str, Any], x0: Any = None) -> Fitted:
        """Solve the smooth problem and correct it by the decisions, until these meet the limits closely."""
        temperature, combination, bounds = float(self.temperature), rows["combination"], rows["bounds"]
        correction = margin = np.zeros(len(bounds))

        def judge(now: RateProblem, result: Result) -> tuple[Any, RateProblem | None]:
            nonlocal temperature, correction, margin
            decided = combination @ task.decide(result.x)[0]
            excess, gap = decided - bounds, decided - (result.constraints + now.bounds)
            rank = max(float(excess.max(initial=0.0)), ROUNDING), float(result.objective)
            # A limit with a price should be met closely: slack there is paid for.
            slack = (result.multipliers > 0) & (excess < -CLOSE * np.abs(bounds))
            met = rank[0] <= ROUNDING and not slack.any()
            contradictory = result.status is Status.LOCALLY_INFEASIBLE and not correction.any()
            if met or contradictory:
                return rank, None
            if np.any(excess > FAR * np.abs(bounds)):  # small weights met the smooth limits alone: follow closer
                correction = margin = np.zeros(len(bounds))
                temperature /= 2
                decision = partial(soft_decision, temperature=temperature)
                now = replace(now, means=self._means(task.network, (logistic, decision), task.samples))
            else:
                correction = (correction + gap) / 2 if correction.any() else gap
                margin = margin + np.where(excess < CLOSE * np.abs(bounds), np.maximum(excess, 0.0), 0.0)
            return rank, replace(now, bounds=bounds - correction - margin)

        x0 = task.network.start(check_random_state(self.random_state)) if x0 is None else x0
        rates = RateProblem(task.means, task.masses, **rows)
        result, steps = self._train(rates, x0, judge, ROUNDS if len(bounds) else 1)
        decided, error = task.decide(result.x)
        excess = combination @ decided - bounds
        own = {"excesses_": dict(zip(rows["names"], excess.tolist(), strict=True))}
        return Fitted(result, steps, error, excess > ROUNDING, rows["names"], own)

    def _decide(self, scores: Vector) -> Vector:
        return scores[:, 0]


class _Task(NamedTuple):
    """Checked training data: (X, targets, weights, cells), their means, the cells' shares, and rows of limits."""

    network: Network
    samples: tuple[Matrix, Vector, Vector, Vector]
    means: Problem
    masses: Vector
    rows: Callable[[Sequence[Limit]], dict[str, Any]]

    def decide(self, x: Vector) -> tuple[Vector, float]:
        """Return the rates of positive decisions in the cells, and the error."""
        X, targets, weights, cell = self.samples
        positive = self.network.scores(x, X)[:, 0] > 0
        rates = np.bincount(cell, weights * positive) / np.bincount(cell, weights)
        return rates, float(weights @ (positive != targets) / weights.sum())
