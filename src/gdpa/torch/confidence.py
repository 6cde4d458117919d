"""From held-out samples to new data: confidence bounds for every limit, all of them at once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from gdpa.torch.limits import Limit, Limits
from gdpa.torch.terms import Mean, Term, has_terms

#: Searches for a number of samples give up beyond this factor.
MOST = 1e9


def clopper_pearson(successes: float, samples: float, level: float) -> float:
    """Return the upper bound U of a probability p with ``P(p > U) <= level``, from independent 0/1 outcomes.

    C. Clopper, E. Pearson: The use of confidence or fiducial limits illustrated in the case of the binomial. Biometrika
    26, 1934.

    >>> round(clopper_pearson(0, 59, 0.05), 4)  # 1 - 0.05^(1/59)
    0.0495
    """
    from scipy.special import betainccinv

    return 1.0 if successes >= samples else float(betainccinv(successes + 1, samples - successes, level))


def empirical_bernstein(mean: float, variance: float, samples: float, length: float, level: float) -> float:
    """Return the upper bound U of an expectation mu with ``P(mu > U) <= level``, from values in a range of ``length``.

    ``U = mean + sqrt(2 V L / n) + 7 length L / (3 (n - 1))`` with L = log(2 / level) and V the sample variance.
    A. Maurer, M. Pontil: Empirical Bernstein bounds and sample variance penalization. COLT 2009, theorem 4.

    >>> round(empirical_bernstein(0.2, 0.01, 1000, 1.0, 0.05), 4)
    0.2172
    """
    if samples < 2:
        return math.inf
    log = math.log(2 / level)
    return mean + math.sqrt(2 * variance * log / samples) + 7 * length * log / (3 * (samples - 1))


@dataclass(frozen=True)
class Statistic:
    """A summary of the outcomes of one `Mean`: their number, mean and variance."""

    samples: float
    mean: float
    variance: float
    bounds: tuple[float, float] | None
    binary: bool

    def upper(self, level: float, sign: float = 1.0) -> float:
        """Return the upper bound, at ``level``, of ``sign`` times the expectation."""
        if self.samples == 0 or self.bounds is None:
            return math.inf
        low, high = self.bounds
        mean = sign * self.mean
        if self.binary:
            share = self.mean if sign > 0 else 1 - self.mean
            bound = clopper_pearson(share * self.samples, self.samples, level)
            return bound if sign > 0 else bound - 1
        bound = empirical_bernstein(mean, self.variance, self.samples, high - low, level)
        return min(bound, high if sign > 0 else -low)


@dataclass(frozen=True)
class Estimate:
    """A value ``c + sum_j a_j mean_j`` with the statistics of its means."""

    fixed: float
    parts: tuple[tuple[float, Statistic], ...]

    @property
    def value(self) -> float:
        return self.fixed + sum(a * s.mean for a, s in self.parts)

    @property
    def samples(self) -> float:
        """The samples of the smallest group; infinite if the value does not depend on data."""
        return min((s.samples for _, s in self.parts), default=math.inf)

    def upper(self, level: float, sign: float = 1.0) -> float:
        """Return the upper bound of ``sign`` times the value on new data; each mean has an equal share of ``level``."""
        share = level / max(len(self.parts), 1)
        return sign * self.fixed + sum(
            abs(a) * s.upper(share, math.copysign(1.0, a) * sign) for a, s in self.parts if a != 0
        )

    def deviation(self) -> float:
        """Return the standard error of the value."""
        return math.sqrt(sum(a**2 * s.variance / max(s.samples, 1) for a, s in self.parts))

    def resized(self, factor: float) -> Estimate:
        """Return the statement for ``factor`` times the samples with the same means and variances."""
        return replace(self, parts=tuple((a, replace(s, samples=s.samples * factor)) for a, s in self.parts))


@dataclass(frozen=True)
class Statement:
    """A confidence statement about one limit on new data.

    Attributes:
        value, samples: on the held-out data; the samples of the smallest group involved.
        lower, upper: bounds of the value on new data, infinite on a side that has no limit.
        shown: whether the limit holds for every value between them; if not, ``reason`` has the reason in words.
        needed: about as many samples would show it if the value stayed; None if no number would.
    """

    name: str
    limit: Limit
    value: float
    samples: float
    lower: float
    upper: float
    shown: bool
    needed: int | None
    reason: str

    def __str__(self) -> str:
        sides = [f"at least {self.lower:.4g}"] if math.isfinite(self.lower) else []
        sides += [f"at most {self.upper:.4g}"] if math.isfinite(self.upper) else []
        seen = "" if math.isinf(self.samples) else f" on {self.samples:.0f} samples"
        bound = f", {' and '.join(sides)} on new data" if sides else ""
        verdict = "holds" if self.shown else f"not shown: {self.reason}"
        return f"{self.name} {self.limit}: {self.value:.4g}{seen}{bound}; {verdict}"


@dataclass(frozen=True)
class NewData:
    """The statements of all limits. The probability that any of them is false is at most ``1 - confidence``."""

    confidence: float
    statements: tuple[Statement, ...]

    @property
    def shown(self) -> bool:
        """Whether every limit is shown to hold on new data."""
        return all(one.shown for one in self.statements)

    def __getitem__(self, name: str) -> Statement:
        return {one.name: one for one in self.statements}[name]

    def __str__(self) -> str:
        head = f"Every limit holds on new data, with probability at least {self.confidence:g}:"
        if open_ := sum(not one.shown for one in self.statements):
            total = len(self.statements)
            head = f"Not shown for {open_} of {total} limits on new data, at confidence {self.confidence:g}:"
        return "\n".join([head, *(f"  {one}" for one in self.statements)])


def judge(
    estimates: Mapping[str, Estimate], limits: Mapping[str, Limit], confidence: float, tolerance: float = 0.0
) -> NewData:
    """Return the statement on every limit; the level is split evenly over all one-sided bounds (Bonferroni)."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence!r}; 0.95 is usual")
    level = (1 - confidence) / _count_bounds(estimates, limits)
    found = (_state(name, estimates[name], limit, level, tolerance) for name, limit in limits.items())
    return NewData(confidence, tuple(found))


def _count_bounds(estimates: Mapping[str, Estimate], limits: Mapping[str, Limit]) -> int:
    """Count the one-sided bounds that data must show."""
    ends = (end for name, limit in limits.items() if estimates[name].parts for end in (limit.lower, limit.upper))
    return max(sum(map(math.isfinite, ends)), 1)


def _state(name: str, estimate: Estimate, limit: Limit, level: float, tolerance: float) -> Statement:
    slack = tolerance * limit.scale

    def interval(estimate: Estimate) -> tuple[float, float]:
        lower = -estimate.upper(level, -1.0) if math.isfinite(limit.lower) else -math.inf
        return lower, estimate.upper(level) if math.isfinite(limit.upper) else math.inf

    def shown(estimate: Estimate) -> bool:
        lower, upper = interval(estimate)
        return limit.lower - slack <= lower and upper <= limit.upper + slack

    holds, needed, reason = shown(estimate), None, ""
    if holds:
        pass
    elif estimate.samples == 0:
        reason = "no sample of its group is in the data"
    elif any(s.bounds is None for _, s in estimate.parts):
        reason = "its values have no bounds; declare them, e.g. terms.mean(values, bounds=(0, 5))"
    elif limit.is_equality and tolerance == 0:
        reason = "no data show an equality exactly; use between(...), or give tolerance="
    elif not limit.lower - slack < estimate.value < limit.upper + slack:
        reason = "the data violate it"
    elif (factor := _first(lambda factor: shown(estimate.resized(factor)))) is None:
        reason = "too close to the limit for any number of samples"
    else:
        needed = math.ceil(factor * estimate.samples)
        reason = f"need about {needed} samples"
    return Statement(name, limit, estimate.value, estimate.samples, *interval(estimate), holds, needed, reason)


def _first(shown: Callable[[float], bool]) -> float | None:
    """Return the smallest factor, to 1 in 1000, from which on ``shown`` is true."""
    low = high = 1.0
    while not shown(high):
        low, high = high, 2 * high
        if high > MOST:
            return None
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if shown(middle) else (middle, high)
    return high


@torch.no_grad()
def estimate(model: torch.nn.Module, loader: Iterable[Any], terms: Any) -> dict[str, Estimate]:
    """Return the estimates of all terms over a whole loader, by name, with the model in ``eval`` mode."""
    training, seen, sums = model.training, {}, defaultdict[Any, Any](float)
    model.eval()
    try:
        for batch in loader:
            seen = terms(model, batch)[1]
            plain = [name for name, value in seen.items() if not isinstance(value, Term)] if has_terms(seen) else ["g"]
            if plain:
                raise TypeError(
                    f"statements on new data need the values of single samples, but {plain} are means; return e.g. "
                    "gdpa.torch.terms.mean(values, bounds=(0, 1)) or another of gdpa.torch.terms for each name"
                )
            for name, term in seen.items():
                for j, (_, mean) in enumerate(term.means):
                    sums[name, j] = sums[name, j] + _sums(name, mean)
    finally:
        model.train(training)
    found = {}
    for name, term in seen.items():
        parts = ((a, _statistic(mean, *sums[name, j].tolist())) for j, (a, mean) in enumerate(term.means))
        found[name] = Estimate(float(term.fixed[1]), tuple(parts))
    return found


def _sums(name: str, mean: Mean) -> torch.Tensor:
    """Return number, sum and sum of squares of the outcomes, the latter two from the low bound if there is one."""
    values, (low, high) = mean.outcomes.double(), mean.bounds or (-math.inf, math.inf)
    outside = values[mean.inside & ((values < low) | (values > high))]
    if outside.numel():
        raise ValueError(f"a value of {name!r} is {outside[0]:g}, outside its bounds ({low:g}, {high:g}); widen them")
    values = torch.where(mean.inside, values - (low if mean.bounds else 0.0), torch.zeros_like(values))
    return torch.stack([mean.inside.sum().double(), values.sum(), values.square().sum()])


def _statistic(mean: Mean, n: float, total: float, squares: float) -> Statistic:
    average, low = total / n if n else math.nan, mean.bounds[0] if mean.bounds else 0.0
    variance = max(squares - n * average**2, 0.0) / (n - 1) if n > 1 else 0.0
    return Statistic(n, average + low, variance, mean.bounds, mean.outcomes.dtype is torch.bool)


def tighten(
    limits: Limits,
    model: torch.nn.Module,
    loader: Iterable[Any],
    terms: Any,
    *,
    share: float = 1.0,
    confidence: float = 0.95,
    power: float = 0.9,
) -> Limits:
    """Return limits for training, tight enough that held-out data will probably show the given ones.

    A model that just meets a limit cannot be shown to meet it. For a single 0/1 rate the margin leads to the largest
    rate p such that ``n`` outcomes show the limit with probability ``power``, which depends on the limit and n alone;
    for other terms it is the width of the bound plus the quantile of the standard error, at the variance of the given
    model. The margin covers the sampling of the held-out data, not overfitting.

    Args:
        limits: the limits that must hold on new data.
        model, loader, terms: as for `gdpa.torch.certify`; the loader brings the sizes of the groups and the variances:
            training data, or held-out data (whose values do not enter the margin of a 0/1 rate).
        share: samples of the held-out data divided by samples of the loader.
        confidence, power: of the statement to come, and the probability that a model exactly at the tightened limits
            earns it.

    References:
        P. Thomas et al.: Preventing undesirable behavior of intelligent machines. Science 366, 2019.
    """
    from scipy.stats import norm

    if not (share > 0 and 0 < power < 1):
        raise ValueError(f"share must be positive and power between 0 and 1, got {share!r} and {power!r}")
    found = {name: one.resized(share) for name, one in estimate(model, loader, terms).items()}
    bounds = _count_bounds(found, limits.limits)
    level, miss = (1 - confidence) / bounds, (1 - power) / bounds
    tight = {}
    for name, limit in limits.limits.items():
        one = found[name]
        if limit.is_equality or not one.parts:
            tight[name] = limit
            continue
        sides = [(sign, bound) for sign, bound in ((1.0, limit.upper), (-1.0, -limit.lower)) if math.isfinite(bound)]
        if len(one.parts) == 1 and one.parts[0][1].binary:
            margins = [_rate_margin(name, one, sign, bound, level, miss) for sign, bound in sides]
        else:
            slack = float(norm.ppf(1 - miss)) * one.deviation()
            margins = [one.upper(level, sign) - sign * one.value + slack for sign, _ in sides]
        tight[name] = limit.tightened(max(margins), name)
    return Limits(tight)


def _rate_margin(name: str, one: Estimate, sign: float, bound: float, level: float, miss: float) -> float:
    """Return the margin of ``sign * (c + a rate) <= bound`` that n outcomes need."""
    from scipy.stats import beta, binom

    a, statistic = one.parts[0]
    n = int(statistic.samples)
    at = (bound - sign * one.fixed) / abs(a)  # of the rate, or of minus the rate
    share = at if sign * a > 0 else 1 + at  # the same for the rate of the outcomes that count against the limit
    k = int(binom.ppf(level, n, min(max(share, 0.0), 1.0))) + 1
    while k >= 0 and clopper_pearson(k, n, level) > share:
        k -= 1
    if k < 0:
        most = math.ceil(math.log(level) / math.log1p(-share)) if 0 < share < 1 else math.inf
        raise ValueError(
            f"{n} held-out samples of {name!r} cannot show its limit at this confidence; at least {most} are needed"
        )
    return abs(a) * (share - float(beta.ppf(miss, k + 1, n - k)))
