"""Judging a trained model on whole data: values, violations, the KKT conditions; the choice of the model to keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gdpa.base.arrays import machine_eps
from gdpa.base.sets import REALS, ConvexSet, Product
from gdpa.core.certificate import Certificate, certificate_at
from gdpa.core.problem import Evaluation, Problem
from gdpa.core.units import ReferencePoint
from gdpa.torch import compat
from gdpa.torch.confidence import NewData, estimate, judge
from gdpa.torch.limits import Constraints, Roster
from gdpa.torch.report import Report, Snapshot
from gdpa.torch.terms import Term, has_terms, proxy

if TYPE_CHECKING:
    from gdpa.torch.constrained import ConstrainedOptimizer

#: The answer of ``losses(model, batch)``: (f, g), or (f, g, counts), or (f, g, counts, samples).
Losses = Callable[[torch.nn.Module, Any], tuple[Any, ...]]


@dataclass(frozen=True)
class ModelCertificate:
    """The findings of `certify` on the whole data.

    Attributes:
        report: value, limit and violation of every constraint; ``print`` it.
        certificate: the KKT conditions with the best multipliers found, see `gdpa.Certificate`; None if not asked for.
        samples: how many samples were seen.
        new_data: statements about every limit on new data, from held-out data; None if not requested.
    """

    report: Report
    certificate: Certificate | None
    samples: int
    new_data: NewData | None = None

    @property
    def feasible(self) -> bool:
        """Whether every constraint holds on the whole data, to the tolerance given."""
        return self.report.feasible

    @property
    def objective(self) -> float:
        """f on the whole data."""
        return self.report.snapshot.objective

    @property
    def violation(self) -> float:
        """The largest violation on the whole data."""
        return max((row.violation for row in self.report.snapshot.rows), default=0.0)  # infinite if not known

    def __str__(self) -> str:
        kkt = "" if self.certificate is None else f"\nKKT residuals  {self.certificate}"
        return f"{self.report}{kkt}" + ("" if self.new_data is None else f"\n{self.new_data}")


def certify(
    model: torch.nn.Module,
    loader: Iterable[Any],
    losses: Losses,
    *,
    constraints: Constraints | None = None,
    equalities: Sequence[str | int] = (),
    optimizer: ConstrainedOptimizer | None = None,
    combine: Callable[[torch.Tensor], tuple[Any, Any]] | None = None,
    tolerance: float = 0.0,
    stationarity: bool = True,
    confidence: float | None = None,
) -> ModelCertificate:
    """Evaluate objective, constraints and KKT residuals of ``model`` on all of ``loader``.

    With ``confidence=0.95``, and a ``loader`` of data that neither training nor the choice of the model has seen, it
    also states for every limit whether it holds on new data: see `gdpa.torch.NewData`.

    Args:
        model: evaluated in ``eval`` mode and left in the mode it was in.
        loader: batches; iterated once for values and once per gradient.
        losses: ``losses(model, batch)`` returns (f, g) as for `lagrangian`, or (f, g, counts) if the g_i are
            means of different numbers of samples, or (f, g, counts, samples). Means are weighted by these counts, by
            default the length of the batch.
        constraints, equalities: as given to the optimizer; by default taken from ``optimizer``.
        optimizer: brings its constraints, equalities, multipliers, and the sets X of its parameter groups.
        combine: for constraints that are not means: ``losses`` then returns (means, counts) of any statistics, and
            ``combine`` makes (f, g) of their means over the whole data (the difference of two group means, say).
        tolerance: the violation that still counts as met: a share of the size of the limit if that is known (`Limits`,
            or the optimizer's ``sizes=``), else in units of g.
        stationarity: also compute the KKT residuals, which takes backward passes over the data: one for the
            optimizer's multipliers, and m + 1 to fit better ones if m times the parameters is not too large.
        confidence: the probability, over the draw of the held-out data, that every statement on new data is true;
            ``losses`` must then return a dict of `gdpa.torch.terms`. The samples must be independent of each other.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> net, data = torch.nn.Linear(2, 1, bias=False), torch.randn(100, 2)
        >>> def losses(net, x):
        ...     return net(x).square().mean(), {"mean": net(x).mean() - 1}
        >>> found = certify(net, data.split(32), losses, constraints=["mean"])
        >>> found.feasible, found.samples
        (True, 100)
    """
    if constraints is not None:
        roster = Roster(constraints, equalities)
    elif optimizer is None or len(tuple(equalities)):
        raise TypeError("give constraints= or optimizer=, which brings its own constraints and equalities")
    else:
        roster = optimizer._roster
    if roster.limits is not None:
        roster = Roster(roster.limits.judged())
    whole = _Whole(model, loader, losses, combine, roster)
    training = model.training
    model.eval()
    try:
        means = whole.means()
        with torch.enable_grad():
            f, g = whole.split(means.detach().requires_grad_())
        lam = None if optimizer is None else optimizer.dual_state.entries["multipliers"].to(g)
        certificate = None
        if stationarity:
            groups, domains = ([], []) if optimizer is None else (optimizer.param_groups, optimizer._domains)
            domain = _product_of_sets(groups, domains, whole.params)
            problem = Problem(whole.evaluate, roster.size, roster.num_equalities, domain)
            point = whole.point()
            point = domain.snap(point, machine_eps(point) ** 0.5)
            now = problem.evaluate(point)
            reference = ReferencePoint(point, torch.ones_like(point), now.constraints)  # gradients count as at least 1
            certificate = certificate_at(problem, point, reference, now, lam)
    finally:
        model.train(training)
    shown = lam if certificate is None else certificate.multipliers
    shown = torch.zeros_like(g) if shown is None else shown
    steps = 0 if optimizer is None else optimizer.dual_steps
    snapshot = Snapshot.of(roster, shown, steps, (f.detach(), g.detach()), unknown=math.inf)
    new = None
    if confidence is not None:
        limits = roster.table.limits if roster.table else {}
        new = judge(estimate(model, loader, losses), limits, confidence, tolerance)
    report = Report(snapshot, 0, tolerance, (), f"{whole.samples} samples")
    return ModelCertificate(report, certificate, whole.samples, new)


def choose(
    models: Mapping[str, torch.nn.Module], loader: Iterable[Any], losses: Losses, **kwargs: Any
) -> tuple[str, torch.nn.Module, dict[str, ModelCertificate]]:
    """Judge several models (last iterate, averages) on the whole data and return (name, model, all certificates).

    The lowest objective among the feasible ones wins; if none is feasible, the smallest violation. Other arguments: as
    for `certify`.
    """
    if not models:
        raise ValueError("models is empty; give e.g. {'last': model, 'average': average.module}")
    kwargs.setdefault("stationarity", False)
    found = {name: certify(model, loader, losses, **kwargs) for name, model in models.items()}
    name = best(found)
    return name, models[name], found


def best(found: Mapping[str, ModelCertificate]) -> str:
    """Return the name of the lowest objective among the feasible ones, or else of the smallest violation."""

    def rank(name: str) -> tuple[bool, bool, float]:
        one = found[name]
        return not math.isfinite(one.objective), not one.feasible, one.objective if one.feasible else one.violation

    return min(found, key=rank)


def _product_of_sets(
    groups: Sequence[dict[str, Any]], domains: Sequence[ConvexSet | None], params: Sequence[torch.Tensor]
) -> ConvexSet:
    """Return the set of the vector of ``params``; ``domains`` are the sets of the parameter groups."""
    sets = {id(p): domain for group, domain in zip(groups, domains, strict=True) if domain for p in group["params"]}
    blocks: list[tuple[int, ConvexSet]] = []
    for p in params:
        if p.numel():
            domain, row = sets.get(id(p)), p.shape[-1] if p.ndim else 1
            blocks += [(p.numel(), REALS)] if domain is None else [(row, domain)] * (p.numel() // row)
    return Product(blocks) if any(id(p) in sets for p in params) else REALS


class _Whole:
    """f and g of a model over a whole data set, as functions of means that batches add up to."""

    def __init__(self, model: Any, loader: Any, losses: Any, combine: Any, roster: Roster) -> None:
        self.model, self.loader, self.losses, self.combine, self.roster = model, loader, losses, combine, roster
        self.params = [p for p in model.parameters() if p.requires_grad]
        if not self.params:
            raise ValueError("model has no parameter that requires a gradient; nothing to certify")
        self.samples = 0
        self._counts: torch.Tensor | None = None
        self._layout: dict[str, tuple[int, list[float]]] | None = None  # of terms: place of the first, factors

    def point(self) -> torch.Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.params]).double()

    def batch(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Return (statistics, counts, samples) of one batch; by default the statistics are f and g themselves."""
        size = _length(batch)
        if self.combine is not None:
            values, counts = self.losses(self.model, batch)
            return values, torch.as_tensor(counts, dtype=torch.float64, device=values.device), size
        f, g, *rest = self.losses(self.model, batch)
        if has_terms(g):
            parts, numbers, self._layout = [f], [size], {}
            for name, value in g.items():
                term = value if isinstance(value, Term) else Term((), (value, value))
                self._layout[name] = (len(parts), [a for a, _ in term.means])
                parts.append(proxy(torch.as_tensor(term.fixed[0]), term.fixed[1]))
                parts += [proxy(mean.surrogate, mean.true) for _, mean in term.means]
                numbers += [size, *(int(mean.count) for _, mean in term.means)]
            flat = torch.stack([part.reshape(()).to(f) for part in parts])
            return flat, torch.tensor(numbers, dtype=torch.float64, device=flat.device), size
        vector = self.roster.vector(g, differentiable=False)
        samples = int(rest[1]) if len(rest) > 1 else size
        counts = torch.full((len(vector) + 1,), samples, dtype=torch.float64, device=vector.device)
        if rest and rest[0] is not None:
            counts[1:] = self.roster.count_tensor(rest[0], counts[1:])
        return torch.cat([f.reshape(1).to(vector), vector]), counts, samples

    @torch.no_grad()
    def means(self) -> torch.Tensor:
        total: Any = 0.0
        counted: Any = 0.0
        self.samples = 0
        for batch in self.loader:
            values, counts, samples = self.batch(batch)
            values = torch.where(torch.isfinite(values), values.double(), math.nan)  # -inf would satisfy any limit
            total = total + torch.where(counts > 0, values, torch.zeros_like(counts)) * counts
            counted = counted + counts
            self.samples += samples
        if self.samples == 0:
            raise ValueError("loader has no samples; nothing to certify (an iterator that is used up?)")
        if not bool((counted > 0).all()):
            index = int(torch.nonzero(counted == 0)[0])
            name = f"statistic {index}" if self.combine is not None else self.named(index)
            raise ValueError(f"{name} has no sample in the whole loader")
        self._counts = counted
        mean: torch.Tensor = total / counted
        return mean

    def named(self, index: int) -> str:
        if self._layout is None:
            return self.roster.name(index - 1)
        return next(name for name, (at, factors) in self._layout.items() if at <= index <= at + len(factors))

    def split(self, means: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self._layout is not None:
            terms = self._layout.items()
            g = {n: means[at] + sum(a * means[at + 1 + j] for j, a in enumerate(factors)) for n, (at, factors) in terms}
            return means[0], self.roster.vector(g)
        if self.combine is None:
            return means[0], means[1:]
        f, g = self.combine(means)
        return f, self.roster.vector(g)

    def evaluate(self, x: Any) -> Evaluation:
        means = self.means().requires_grad_()
        with torch.enable_grad():
            f, g = self.split(means)

        def pullback(w: torch.Tensor, objective: Any = 1.0) -> torch.Tensor:
            ones = torch.as_tensor(objective, dtype=f.dtype, device=f.device).expand_as(f)
            (slope,) = torch.autograd.grad([f, g], means, [ones, w.to(g)], retain_graph=True)
            assert self._counts is not None
            slope = slope / self._counts
            total = [torch.zeros_like(p) for p in self.params]
            with torch.enable_grad():
                for batch in self.loader:
                    values, counts, _ = self.batch(batch)
                    safe = torch.where(counts > 0, values.double(), torch.zeros_like(counts))
                    grads = torch.autograd.grad(torch.dot(safe, slope * counts), self.params, allow_unused=True)
                    total = [t if g is None else t + g for t, g in zip(total, grads, strict=True)]
            return torch.cat([t.reshape(-1) for t in total]).double()

        return Evaluation(f.detach(), g.detach(), pullback)


def _length(batch: Any) -> int:
    first = batch
    while isinstance(first, (tuple, list, Mapping)):
        if not first:
            raise ValueError("losses must return its counts and samples if a batch has no length")
        first = next(iter(first.values())) if isinstance(first, Mapping) else first[0]
    return len(first)


if TYPE_CHECKING:
    from gdpa.torch.constrained import ConstrainedOptimizer

#: Share of the size of a limit by which it may be violated and still counts as met.
TOLERANCE = 0.01
#: Decay of the exponential average a step: it looks back about 200 steps. Measured on seven tasks (last, tail average,
#: .995): docs/torch.md.
DECAY = 0.995
#: The average takes in every tenth iterate: a tenth of the cost, and iterates closer than that hardly differ.
EVERY = 10
_KEY = "average"


def average_(groups: list[dict[str, Any]], state: Any, step: int) -> None:
    """Take the iterate into the average, kept in the optimizer's state, if it is due; step 0 does not count."""
    averages, params = [], []
    for p in (p for group in groups for p in group["params"]):
        # A parameter without gradient has not moved, and an entry of ours could pass for the base's state.
        if p.grad is None and _KEY not in state.get(p, ()):
            continue
        entry = state[p]
        if _KEY not in entry:
            entry[_KEY] = p.detach().clone(memory_format=torch.preserve_format)
        elif step > 0 and step % EVERY == 0:
            averages.append(entry[_KEY])
            params.append(p)
    if averages:
        weight = max(1 - DECAY**EVERY, 2 / (step // EVERY + 1))
        compat.call_without_gradients(compat.multi_tensor_lerp_, averages, params, weight)


@torch.no_grad()
def copy_(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy the second of each pair into the first."""
    for p, value in pairs:
        p.copy_(value)


@dataclass(frozen=True)
class Finished:
    """The choice of `ConstrainedOptimizer.finish`; ``print`` it.

    Attributes:
        chosen: "last" or "average", whose weights are now in the model.
        certificates: the certificate of each on the whole data.
    """

    chosen: str
    certificates: dict[str, ModelCertificate]

    @property
    def certificate(self) -> ModelCertificate:
        """The certificate of the weights that were loaded."""
        return self.certificates[self.chosen]

    def __str__(self) -> str:
        lines = []
        for name, found in self.certificates.items():
            met = "limits met" if found.feasible else f"largest violation {found.violation:.3g}"
            loaded = "  <- loaded" if name == self.chosen else ""
            lines.append(f"{name} weights: objective {found.objective:.6g}, {met}{loaded}")
        return "\n".join([*lines, str(self.certificate)])


def finish(
    optimizer: ConstrainedOptimizer,
    model: torch.nn.Module,
    loader: Iterable[Any],
    losses: Losses,
    *,
    tolerance: float | None = None,
    **kwargs: Any,
) -> Finished:
    """Judge the last and the averaged weights on all of ``loader`` and load the better ones into ``model``.

    The lowest objective among those that meet every constraint to ``tolerance`` wins; if none does, the smallest
    violation. Running statistics (batch norm) of the averaged weights are measured again on ``loader``.

    Args:
        optimizer, model: the optimizer that trained the model, and the model.
        loader, losses: as for `certify`; the loader is gone through several times.
        tolerance: the violation that still counts as met, a share of the size of the limit; by default 1 %. Of a g
            whose size is not known (no `Limits`, no ``sizes=``) it is in units of g, and by default 0.
        kwargs: further arguments of `certify`; ``stationarity=True`` adds the KKT residuals.
    """
    groups, state = optimizer.param_groups, optimizer.state
    if tolerance is None:
        tolerance = TOLERANCE if all(math.isfinite(size) for size in optimizer._roster.user_sizes) else 0.0
    kwargs.setdefault("stationarity", False)
    found = {"last": certify(model, loader, losses, optimizer=optimizer, tolerance=tolerance, **kwargs)}
    params = (p for group in groups for p in group["params"] if optimizer._averages and _KEY in state.get(p, ()))
    pairs = [(p, state[p][_KEY]) for p in params]
    if not pairs:
        return Finished("last", found)
    own = {id(p) for p in model.parameters()}
    if not any(id(p) in own for p, _ in pairs):
        raise ValueError("model holds none of the optimizer's parameters; give the model that was trained")
    kept = [(value, value.detach().clone()) for value in (*(p for p, _ in pairs), *model.buffers())]
    chosen = "last"
    try:
        copy_(pairs)
        _measure_statistics(model, loader, losses)
        found["average"] = certify(model, loader, losses, optimizer=optimizer, tolerance=tolerance, **kwargs)
        chosen = best(found)
    finally:  # also if the loader raises or the user interrupts it
        if chosen == "last":
            copy_(kept)
    return Finished(chosen, found)


@torch.no_grad()
def _measure_statistics(model: torch.nn.Module, loader: Iterable[Any], losses: Losses) -> None:
    """Measure running means and variances of batch norm layers for the weights now in the model."""
    kind = torch.nn.modules.batchnorm._BatchNorm
    layers = [layer for layer in model.modules() if isinstance(layer, kind) and layer.track_running_stats]
    if not layers:
        return
    momenta, training = [layer.momentum for layer in layers], model.training
    try:
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # a plain mean over the batches
        model.train()
        for batch in loader:
            losses(model, batch)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        model.train(training)
