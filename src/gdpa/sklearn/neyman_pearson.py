"""Neyman-Pearson classification as an estimator: one class first, the others within their thresholds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from gdpa.base.checks import check_inside
from gdpa.base.status import Status
from gdpa.base.typing import Vector
from gdpa.core.problem import Problem
from gdpa.run.result import Result
from gdpa.sklearn.calibration import ROUNDING, apply_cuts, excesses, held_out_cut, samples_needed, training_cut
from gdpa.sklearn.estimator import Fitted, Frontier, LimitedClassifier
from gdpa.sklearn.oracle import Matrix, Network, RateProblem, pairwise_sigmoid

#: How often the surrogate limits are tightened for the sake of the 0/1 error, and by how much more than in proportion.
ROUNDS, TIGHTEN = 5, 0.9


@dataclass(eq=False, repr=False)
class NeymanPearsonClassifier(LimitedClassifier):
    r"""A classifier that does best on one class while the error of every other class stays within its threshold.

    With scores :math:`s_i` that are linear in the features (or come from a small network), the loss of class j over
    its samples :math:`D_j` is :math:`L_j = \mathrm{mean}_{D_j} \sum_{i \ne j} \sigma(s_i - s_j)`, and the training
    problem, with p the prioritized class, is

    .. math::
        \min\; L_p + \tfrac{\text{regularizer}}{2} \sum \|W\|^2
        \quad\text{subject to}\quad L_j \le r_j,\; j \ne p .

    With ``limit_on="error"`` the thresholds bound the 0/1 errors instead: the prioritized class is predicted if its
    score exceeds the best other class c by more than a cut :math:`t_c`, the smallest that keeps class c within
    its threshold on the training data. If the other classes are confused with each other too often for any cut, the
    surrogate limits are tightened and the model is trained again.

    **A guarantee on new data** needs ``calibration="order-statistic"``. A share of every constrained class is held
    out of the training, and each cut is an order statistic of the held-out samples, such that

        P(the error of any constrained class on new data exceeds its threshold) <= delta,

    whatever the distribution, over the draw of the held-out samples. With one constrained class this is the umbrella
    algorithm of Tong, Feng and Li. With K of them each gets delta/K (a union bound), which is conservative.

    Args:
        priority: the class to do best on; default: the last one in sorted order.
        thresholds: r_j, strictly between 0 and 1: one number for all other classes, or a dictionary that names each.
        limit_on: "error" for limits on the 0/1 errors, "surrogate" for limits on L_j (these may exceed the 0/1 error).
        calibration: None or "order-statistic"; the latter needs ``limit_on="error"`` and unweighted samples.
        delta: see above.
        calibration_fraction: the share of every constrained class that is held out.
        hidden: widths of hidden layers; none makes a linear classifier.
        regularizer: the weight of the penalty on W.
        tol: the relative KKT tolerance of the solver.
        max_iter: the most steps of each run of the solver.
        random_state: of the held-out split and of the first weights of a network.
        engine: None trains in this process. "local", "ray", "torch" or an engine of `gdpa.sharded` trains with the
            samples in ``shards`` parts, each in its worker. If X is a float64 array mapped by
            ``numpy.load(path, mmap_mode="r")``, no process holds all of it: workers read their rows in chunks.
        shards: how many parts.

    Attributes:
        classes_: the labels.
        priority_, thresholds_: ``priority`` and ``thresholds``, resolved.
        class_errors_: the 0/1 error of every class on the training data (held-out samples included).
        unmet_: the classes whose threshold is not met; a warning names them, too.
        multipliers_: the price of each constrained class: how fast L_p falls when its surrogate limit is raised.
        cuts_: t_c by class.
        certificate_: the KKT conditions of the training problem, recomputed at the solution (`gdpa.Certificate`).
        n_iter_: steps of the solver in all.
        frontier_: the last `frontier`.
        coefs_, intercepts_: W and b of every layer.
        coef_, intercept_: of a linear model, in the shapes of scikit-learn; a network has none. For two classes
            they come from `decision_function`, the cut included; for more, of the scores before the cuts.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> X, y = make_classification(2000, n_informative=4, flip_y=0.1, random_state=0)
        >>> model = NeymanPearsonClassifier(priority=1, thresholds={0: 0.05}).fit(X, y)
        >>> model.class_errors_[0] <= 0.05, model.unmet_, model.certificate_.holds(1e-4)
        (True, [], True)

    References:
        The problem is from section 5 of Lu, ICML 2022. X. Tong, Y. Feng and J. J. Li, "Neyman-Pearson classification
        algorithms and NP receiver operating characteristics", Science Advances 4 (2018).
    """

    priority: Any = None
    thresholds: float | Mapping[Any, float] = 0.1
    _: KW_ONLY
    limit_on: Literal["error", "surrogate"] = "error"
    calibration: Literal["order-statistic"] | None = None
    delta: float = 0.05
    calibration_fraction: float = 0.5

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> NeymanPearsonClassifier:
        """Train on X of shape (n, features), dense or sparse, and labels y of shape (n,).

        Args:
            X, y: the training data.
            sample_weight: weights of the samples within the mean of their class; only ratios within a class count.
        """
        task = self._task(X, y, sample_weight)
        return self._keep(task.network, self._fit_at(task, task.limits))

    def _decide(self, scores: Vector) -> Vector:
        labels = self.classes_.tolist()
        values = apply_cuts(scores, labels.index(self.priority_), np.array([self.cuts_[label] for label in labels]))
        return values[:, 1] - values[:, 0] if len(labels) == 2 else values

    def frontier(
        self, X: Any, y: Any, limits: Iterable[float], *, label: Any = None, sample_weight: Any = None
    ) -> Frontier:
        """Return the error of the prioritized class for every one of ``limits``: which limit should I choose?

        The model is trained at each limit in turn, the loosest first, from the solution before. Nothing is held out,
        and the estimator itself is left as it is, but for the attribute ``frontier_``.

        Args:
            X, y, sample_weight: as in `fit`.
            limits: thresholds to try.
            label: the class whose threshold they are; default: every constrained class gets the same one.
        """
        model = clone(self).set_params(calibration=None)
        task = model._task(X, y, sample_weight)
        vary = np.ones(len(task.others), bool) if label is None else model.classes_[task.others] == label
        if not vary.any():
            raise ValueError(f"label must be one of the constrained classes, got {label!r}")

        def fit_at(limit: float, x0: Any) -> Fitted:
            check_inside(0, 1, limits=limit)
            found: Fitted = model._fit_at(task, np.where(vary, limit, task.limits), x0)
            return found._replace(slope=-float(found.result.multipliers[vary].sum()))

        name = "all other classes" if label is None else f"class {label}"
        return self._trace(limits, False, fit_at, f"limit on the error of {name}", "error of the priority")

    def _task(self, X: Any, y: Any, sample_weight: Any) -> _Task:
        """Check the input, choose the samples to hold out, and start the shards."""
        X, targets, weights, _ = self._begin(X, y, sample_weight)
        priority, others, limits = self._resolve()
        rng = check_random_state(self.random_state)
        held = self._held_out(others, limits, targets, weights, rng)
        network = self._network(len(self.classes_))
        trained = [part[~held] if held.any() else part for part in (X, targets, weights, targets)]
        means = self._means(network, (pairwise_sigmoid,), trained)
        return _Task(priority, others, limits, network, (X, targets, weights), held, means, network.start(rng))

    def _resolve(self) -> tuple[int, Vector, Vector]:
        """Return the places of the prioritized class and of the others in ``classes_``, and the thresholds of these."""
        for name, choices in (("limit_on", ("error", "surrogate")), ("calibration", (None, "order-statistic"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {getattr(self, name)!r}")
        labels = self.classes_.tolist()
        if self.priority is not None and self.priority not in labels:
            raise ValueError(f"priority must be one of the classes {labels} of y, got {self.priority!r}")
        priority = labels[-1] if self.priority is None else self.priority
        constrained = [label for label in labels if label != priority]
        given = self.thresholds
        named = dict(given) if isinstance(given, Mapping) else dict.fromkeys(constrained, given)
        for label, value in named.items():
            if label not in labels:
                raise ValueError(f"thresholds names the class {label!r}, which is not in y; its classes are {labels}")
            if label == priority:
                raise ValueError(f"thresholds names the prioritized class {label!r}; it is minimized, not limited")
            check_inside(0, 1, **{f"the threshold of class {label!r}": value})
        if missing := [label for label in constrained if label not in named]:
            raise ValueError(f"thresholds must name every class but the prioritized one; {missing} are missing")
        others = np.flatnonzero(np.isin(self.classes_, constrained))
        return labels.index(priority), others, np.array([float(named[label]) for label in constrained])

    def _held_out(self, others: Vector, limits: Vector, targets: Vector, weights: Vector, rng: Any) -> Vector:
        """Mark the samples that calibration holds out of the training."""
        held = np.zeros(len(targets), bool)
        if self.calibration is None:
            return held
        if self.limit_on != "error":
            raise ValueError(f"calibration bounds 0/1 errors and needs limit_on='error', got {self.limit_on!r}")
        check_inside(0, 1, delta=self.delta, calibration_fraction=self.calibration_fraction)
        if np.any(weights != weights[0]):
            raise ValueError("sample_weight must be constant with calibration: its guarantee counts samples alike")
        for j, limit in zip(others, limits, strict=True):
            members = rng.permutation(np.flatnonzero(targets == j))
            count = min(math.ceil(self.calibration_fraction * len(members)), len(members) - 1)
            needed = samples_needed(limit, self.delta / len(others))
            if count < needed:
                raise ValueError(
                    f"class {self.classes_[j]} has {count} samples to hold out, but its threshold {limit:g} with "
                    f"delta={self.delta:g} needs {needed}; give more samples, or raise calibration_fraction, the "
                    "threshold or delta"
                )
            held[members[:count]] = True
        return held

    def _fit_at(self, task: _Task, limits: Vector, x0: Any = None) -> Fitted:
        """Train; tighten the limits while confusions that no cut can undo exceed them; choose the cuts."""
        (X, targets, weights), others = task.samples, task.others
        in_class = [~task.held & (targets == j) for j in others]

        def excess(x: Vector) -> list[Vector]:
            """Return the excesses of the trained samples of each constrained class."""
            scores = task.network.scores(x, X)
            return [excesses(scores[own], j, task.priority) for j, own in zip(others, in_class, strict=True)]

        def judge(now: RateProblem, result: Result) -> tuple[Any, RateProblem | None]:
            pairs = zip(excess(result.x), in_class, strict=True)
            stuck = np.array([weights[own] @ np.isinf(T) / weights[own].sum() for T, own in pairs])
            over = float(np.maximum(stuck - limits, 0).sum())
            if over <= ROUNDING or result.status is Status.LOCALLY_INFEASIBLE:  # tighter limits do not help
                return over, None
            shrink = np.where(stuck > limits, TIGHTEN * limits / np.maximum(stuck, limits), 1.0)
            return over, replace(now, bounds=now.bounds * shrink)

        labels, unit = self.classes_.tolist(), np.eye(len(self.classes_))
        constrained = [labels[j] for j in others]
        names = tuple(f"class {label}" for label in constrained)
        rates = RateProblem(task.means, unit[task.priority], unit[others], limits, names)
        rounds = ROUNDS if self.limit_on == "error" else 1
        result, steps = self._train(rates, task.start if x0 is None else x0, judge, rounds)
        scores, cuts = task.network.scores(result.x, X), np.zeros(len(labels))
        unsure = np.zeros(len(others), bool)  # the classes for which no cut gives the guarantee
        if self.calibration is not None:
            for i, (j, limit) in enumerate(zip(others, limits, strict=True)):
                T = excesses(scores[task.held & (targets == j)], j, task.priority)
                cuts[j], found = held_out_cut(T, limit, self.delta / len(others))
                unsure[i] = not found
        elif self.limit_on == "error":
            pairs = zip(excess(result.x), in_class, limits, strict=True)
            cuts[others] = [training_cut(T, weights[own], limit) for T, own, limit in pairs]
        wrong = apply_cuts(scores, task.priority, cuts).argmax(axis=1) != targets
        errors = np.bincount(targets, weights * wrong) / np.bincount(targets, weights)
        if self.limit_on == "surrogate":
            unmet = result.constraints > self.tol
        else:
            unmet = unsure if self.calibration else errors[others] > limits + ROUNDING
        own = {
            "priority_": labels[task.priority],
            "thresholds_": dict(zip(constrained, limits.tolist(), strict=True)),
            "cuts_": dict(zip(labels, cuts.tolist(), strict=True)),
            "class_errors_": dict(zip(labels, errors.tolist(), strict=True)),
        }
        return Fitted(result, steps, float(errors[task.priority]), unmet, constrained, own)


class _Task(NamedTuple):
    """The places of the prioritized class and of the others in ``classes_``, their limits, and the training data.

    ``samples`` are (X, targets, weights), ``held`` marks those that only calibration sees.
    """

    priority: int
    others: Vector
    limits: Vector
    network: Network
    samples: tuple[Matrix, Vector, Vector]
    held: Vector
    means: Problem
    start: Vector
