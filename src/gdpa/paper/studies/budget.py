"""Figure 2 of the paper: training a network on one digit of MNIST with loss budgets on five others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gdpa.paper.applications.budget_nets import budget_net
from gdpa.paper.base import Section, Verdict
from gdpa.paper.claims import faster, sooner_feasible, worse
from gdpa.paper.comparison import Case, Size, Study
from gdpa.paper.data.images import load
from gdpa.paper.records.folder import Record
from gdpa.paper.sections import compare

NAME = "budget"
TITLE = "Figure 2: a network with loss budgets on MNIST"

INTRODUCTION = (
    "A 784-30-10 sigmoid network with softmax cross-entropy: the loss on digit 1 is minimized while the loss on each "
    "of the digits 2, 3, 4, 5 and 6 is held to a budget of 1. d = 23860, m = 5."
)


def case(options: Mapping[str, Any], images: int | None, seed: int, say: Callable[[str], None]) -> Case:
    """Return the problem: the start is drawn from ``seed``."""
    options = dict(options)
    per_image = options.pop("budget_per_image", False)
    data = load("mnist", progress=say)
    double = budget_net(data.train_x, data.train_y, images_per_class=images, **options)
    if per_image:
        double = double.with_budgets(double.budgets * torch.tensor(double.counts[1:]))
    single = double.to(torch.float32)
    return Case(
        single.problem,
        double.problem,
        single.start(seed),
        double.classes,
        double.losses,
        lambda x: double.confusion(x, data.test_x, data.test_y),
    )


STUDY = Study(
    name=NAME,
    printed_as="network",
    readings={"averaged": {"reduction": "mean"}, "summed": {"reduction": "sum"}},
    variants={"summed, budget per image": {"reduction": "sum", "budget_per_image": True}},
    steps=(0.03, 0.1, 0.3, 1.0, 3.0),
    penalties=(0.003, 0.03, 0.3, 3.0, 30.0),
    tolerances=(0.3, 0.1, 0.03, 0.01, 0.003),
    size=Size(images=None, budget=30.0, pilot_images=200, pilot_calls=300),
    case=case,
)


units, run = STUDY.units, STUDY.run


def section(records: Sequence[Record]) -> Section:
    """Return Figure 2, its tables and the verdicts on the paper's claims."""
    return compare(NAME, "Figure 2", INTRODUCTION, records, verdicts)


def verdicts(records: Sequence[Record]) -> list[Verdict]:
    """Judge what the paper says about this experiment."""
    return [
        faster("GDPA converges faster than IALM, IQRC and IPPP in computing time.", records, factor=1.0),
        sooner_feasible("IQRC satisfies the constraints faster than the other methods.", records, "IQRC"),
        worse("IALM performs worse than IPPP.", records, ("IALM (Sahin)", "IALM (Li)"), "IPPP"),
    ]
