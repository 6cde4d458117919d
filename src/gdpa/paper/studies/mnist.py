"""The paper's Figures 1 and 2: Neyman-Pearson classification of MNIST, a network with loss budgets, and the claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from gdpa.paper.applications.budget_nets import budget_net
from gdpa.paper.applications.neyman_pearson import neyman_pearson
from gdpa.paper.base import Finding, Verdict, judge
from gdpa.paper.comparison import Case, Size, Study
from gdpa.paper.contestants import METHODS, UNTUNED
from gdpa.paper.data.images import Images
from gdpa.paper.records import Record
from gdpa.paper.sections import LEVELS, NOT_REACHED, best, chosen, costs_to, median, settings

#: The methods of the paper other than GDPA.
RIVALS = tuple(method for method in METHODS if method not in ("GDPA", UNTUNED))


def _classifier(data: Images, images: int | None, seed: int, start_variance: float = 1e-3, **options: Any) -> Case:
    """Return the case of Figure 1: noise and start are drawn from ``seed``."""
    double = neyman_pearson(data.train_x, data.train_y, images_per_class=images, seed=seed, **options)
    single = double.to(torch.float32)
    return Case(double, single.problem, single.start(seed, start_variance))


def _network(data: Images, images: int | None, seed: int, budget_per_image: bool = False, **options: Any) -> Case:
    """Return the case of Figure 2: the start is drawn from ``seed``."""
    double = budget_net(data.train_x, data.train_y, images_per_class=images, **options)
    if budget_per_image:
        double = double.with_thresholds(double.thresholds * torch.tensor(double.counts[1:]))
    single = double.to(torch.float32)
    return Case(double, single.problem, single.start(seed))


def _over(records: Sequence[Record]) -> str:
    """Name the number of seeds of medians, if there are several."""
    seeds = len({record.unit.seed for record in records})
    return f"Medians over {seeds} seeds. " if seeds > 1 else ""


def _show(seconds: float) -> str:
    return NOT_REACHED if math.isinf(seconds) else f"{seconds:.3g} s"


def _residual(value: float) -> str:
    return "none (it diverged)" if math.isinf(value) else f"{value:.2g}"


def _list(values: dict[str, float], show: Callable[[float], str]) -> str:
    return ", ".join(f"{method} {show(value)}" for method, value in values.items())


def _runs(records: Sequence[Record], methods: Sequence[str]) -> Iterator[tuple[str, dict[str, list[Record]]]]:
    """Yield each setting with the records of those of the methods that ran in it."""
    for setting in settings(records):
        yield setting, {method: runs for method in methods if (runs := chosen(records, setting, method))}


def faster(claim: str, records: Sequence[Record], factor: float) -> Verdict:
    """Judge whether GDPA is faster than every rival by ``factor``, at every level that any of them reached.

    If no method reached a level, a rival with a smaller residual contradicts the claim, and GDPA's being the
    smallest does not decide it.
    """
    found: list[Finding] = []
    for setting, runs in _runs(records, ("GDPA", *RIVALS)):
        if "GDPA" not in runs or len(runs) < 2:
            continue
        times = {level: {m: median(costs_to(some, level)) for m, some in runs.items()} for level in LEVELS}
        levels = [level for level in LEVELS if math.isfinite(min(times[level].values()))]
        if not levels:
            ends = {method: best(some) for method, some in runs.items()}
            winner = min(ends, key=lambda method: ends[method])
            words = f"is {_residual(ends[winner])} by {winner}"
            if winner != "GDPA":
                words += f", GDPA's is {_residual(ends['GDPA'])}"
            none = f"no method of the paper reaches a relative KKT residual of {LEVELS[0]:g}"
            found.append((None if winner == "GDPA" else False, f"{setting}: {none}; the smallest {words}."))
        for level in levels:
            ours = times[level]["GDPA"]
            rival = min(seconds for method, seconds in times[level].items() if method != "GDPA")
            sooner = ours * factor <= rival and math.isfinite(ours)
            found.append((sooner, f"{setting}, to {level:g}: {_list(times[level], _show)}."))
    parts = [
        f"{setting}: {', '.join(f'{_show(median(costs_to(runs[UNTUNED], level)))} to {level:g}' for level in LEVELS)}"
        for setting, runs in _runs(records, (UNTUNED,))
        if runs
    ]
    if parts:
        found.append((None, f"For comparison {UNTUNED}, which is ours, with its defaults. {'; '.join(parts)}."))
    return judge(claim, found, _over(records))


def sooner_feasible(claim: str, records: Sequence[Record], method: str) -> Verdict:
    """Judge whether ``method`` is the first of the paper's methods to a tenth of the start's violation."""
    found: list[Finding] = []
    for setting, runs in _runs([r for r in records if r.columns], ("GDPA", *RIVALS)):
        if method in runs:
            level = 0.1 * median([r.summary["start"]["feasibility"] for r in runs[method]])
            times = {name: median(costs_to(some, level, column="feasibility")) for name, some in runs.items()}
            first = min(times, key=lambda name: times[name])
            mark = None if math.isinf(times[first]) else first == method
            found.append((mark, f"{setting}: to a violation of {level:.2g}, {_list(times, _show)}."))
    return judge(claim, found, _over(records))


def worse(claim: str, records: Sequence[Record], losers: Sequence[str], winner: str) -> Verdict:
    """Judge whether each of ``losers`` ends with a larger best residual than ``winner``."""
    found: list[Finding] = []
    for setting, runs in _runs(records, (*losers, winner)):
        ends = {name: best(some) for name, some in runs.items()}
        if winner in ends and len(ends) > 1:
            found += [(ends[name] > ends[winner], "") for name in ends if name != winner]
            found.append((None, f"{setting}: {_list(ends, _residual)}."))
    return judge(claim, found, f"Smallest relative KKT residuals. {_over(records)}")


def regular(claim: str, records: Sequence[Record]) -> Verdict:
    """Judge whether ||J^T g_+|| / ||g_+|| stays above a hundredth of its first value in each of GDPA's runs."""
    found: list[Finding] = []
    for setting in dict.fromkeys(r.unit.setting for r in records):
        columns = [r.columns["regularity"] for r in chosen(records, setting, "GDPA") if r.columns]
        ends = [(float(c[0]), float(c.min())) for column in columns if len(c := column[np.isfinite(column)])]
        if ends:
            first, least = min(ends, key=lambda pair: pair[1] / pair[0])
            found.append((least >= 0.01 * first, f"{setting}: from {first:.2g} down to {least:.2g}."))
    which = "the seed in which it falls furthest" if len({r.unit.seed for r in records}) > 1 else "GDPA's run"
    return judge(claim, found, f"||J^T g_+|| / ||g_+|| along {which}. ")


READINGS = {"averaged": {"reduction": "mean"}, "summed": {"reduction": "sum"}}
PENALTIES, TOLERANCES = (0.003, 0.03, 0.3, 3.0, 30.0), (0.3, 0.1, 0.03, 0.01, 0.003)

MNPC = Study(
    name="mnpc",
    title="Figure 1: Neyman-Pearson classification of MNIST",
    introduction="A linear classifier of the digits 1, 2, 3 and 4 from images with unit Gaussian noise: the loss of "
    "digit 1 is minimized while the pairwise sigmoid loss of every other digit is held to 0.1. d = 3136, m = 3.",
    printed_as="mnpc",
    readings=READINGS,
    variants={
        "averaged, plain norm": {"reduction": "mean", "norm": "plain"},
        "summed, plain norm": {"reduction": "sum", "norm": "plain"},
        "summed, start of deviation 1e-3": {"reduction": "sum", "start_variance": 1e-6},
        "summed, no noise": {"reduction": "sum", "noise": 0.0},
    },
    axes=((0.01, 0.03, 0.1, 0.3, 1.0), PENALTIES, TOLERANCES),
    size=Size(images=None, budget=20.0, pilot_images=500, pilot_calls=400),
    case=_classifier,
    judge=lambda records: [
        faster(
            "GDPA converges orders of magnitude faster than IALM, IQRC and IPPP in computing time.",
            records,
            factor=10.0,
        ),
        regular("The regularity condition holds in this problem because the sigmoid is monotone.", records),
    ],
)

BUDGET = Study(
    name="budget",
    title="Figure 2: a network with loss budgets on MNIST",
    introduction="A 784-30-10 sigmoid network with softmax cross-entropy: the loss on digit 1 is minimized while the "
    "loss on each of the digits 2, 3, 4, 5 and 6 is held to a budget of 1. d = 23860, m = 5.",
    printed_as="network",
    readings=READINGS,
    variants={"summed, budget per image": {"reduction": "sum", "budget_per_image": True}},
    axes=((0.03, 0.1, 0.3, 1.0, 3.0), PENALTIES, TOLERANCES),
    size=Size(images=None, budget=30.0, pilot_images=200, pilot_calls=300),
    case=_network,
    judge=lambda records: [
        faster("GDPA converges faster than IALM, IQRC and IPPP in computing time.", records, factor=1.0),
        sooner_feasible("IQRC satisfies the constraints faster than the other methods.", records, "IQRC"),
        worse("IALM performs worse than IPPP.", records, ("IALM (Sahin)", "IALM (Li)"), "IPPP"),
    ],
)
