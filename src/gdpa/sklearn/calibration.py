"""Decision cuts: how much better the prioritized class must score before it is predicted.

The rule. Let c be the best of the constrained classes by score. The prediction is the prioritized class p if
s_p - s_c > t_c, and c otherwise. A sample of class j is an error if and only if its *excess*

    T = s_p - s_j  if j is the best constrained class,   infinity otherwise

is above t_j. The error of class j depends on t_j alone and falls with it, so every class has a cut of its own.
"""

from __future__ import annotations

import math

import numpy as np

from gdpa.base.typing import Vector

#: Excesses that differ by less than this, relative to 1 + |excess|, are taken as equal: more than rounding does.
NUDGE = 1e-6
#: Rounding allowed in sums of weights.
ROUNDING = 1e-12


def excesses(scores: Vector, label: int, priority: int) -> Vector:
    """Return T for samples of class ``label``."""
    rivals = scores.copy()
    rivals[:, priority] = -np.inf
    best = rivals.argmax(axis=1) == label
    return np.where(best, scores[:, priority] - scores[:, label], np.inf)


def apply_cuts(scores: Vector, priority: int, cuts: Vector) -> Vector:
    """Return decision values whose largest entry is the prediction of the rule: s_p - t_c instead of s_p."""
    values = scores.copy()
    values[:, priority] = -np.inf
    values[:, priority] = scores[:, priority] - cuts[values.argmax(axis=1)]
    return values


def training_cut(excess: Vector, weights: Vector, limit: float) -> float:
    """Return the smallest cut with a weighted error of at most ``limit``; if none has, one that adds no error."""
    order = np.argsort(excess, kind="stable")
    ordered, sums = excess[order], np.cumsum(weights[order])
    above = sums[-1] - sums[_ends(ordered) - 1]  # the weight above each excess
    allowed = np.flatnonzero(above <= limit * sums[-1] + ROUNDING)
    return _cut_above(ordered, int(allowed[0]))


def held_out_cut(excess: Vector, limit: float, delta: float) -> tuple[float, bool]:
    r"""Return the cut for which P(error > limit) <= delta, whatever the distribution: an order statistic of T.

    With n excesses of samples that the scores were not fitted to, the cut is the k-th smallest, k the smallest with

    .. math:: \sum_{i=k}^n \binom{n}{i} (1 - \text{limit})^i \text{limit}^{n-i} \le \delta .

    Return, too, whether it holds: if T_(k) is infinite, confusions among the constrained classes take up the limit, and
    no cut gives the guarantee.

    References:
        X. Tong, Y. Feng and J. J. Li, "Neyman-Pearson classification algorithms and NP receiver operating
        characteristics", Science Advances 4 (2018), Proposition 1.

    >>> cut, holds = held_out_cut(np.arange(59.0), 0.05, 0.05)  # 59 samples are just enough: k = 59
    >>> round(cut, 3), holds
    (58.0, True)
    """
    from scipy.special import betainc

    n = len(excess)
    k = np.arange(1, n + 1)
    violation = betainc(k, n - k + 1, 1 - limit)  # P(Binomial(n, 1 - limit) >= k)
    valid = np.flatnonzero(violation <= delta)
    if not valid.size:
        raise ValueError(f"{n} held-out samples are too few, {samples_needed(limit, delta)} are needed")
    ordered = np.sort(excess)
    place = int(valid[0])
    return _cut_above(ordered, place), bool(np.isfinite(ordered[place]))


def samples_needed(limit: float, delta: float) -> int:
    """Return the fewest held-out samples for which a valid order statistic exists: (1 - limit)^n <= delta."""
    return math.ceil(math.log(delta) / math.log1p(-limit))


def _ends(ordered: Vector) -> Vector:
    """Return where the excesses begin that exceed each by more than rounding."""
    return np.asarray(np.searchsorted(ordered, ordered + NUDGE * (1 + np.abs(ordered)), side="right"))


def _cut_above(ordered: Vector, place: int) -> float:
    """Return a number between the excess at ``place`` and the next, clear of both: rounding then decides nothing."""
    ordered = ordered[np.isfinite(ordered)]
    if not len(ordered):
        return 0.0
    place = min(place, len(ordered) - 1)  # no cut decides about an infinite excess
    low, end = float(ordered[place]), int(_ends(ordered)[place])
    return (low + float(ordered[end])) / 2 if end < len(ordered) else low + NUDGE * (1 + abs(low))
