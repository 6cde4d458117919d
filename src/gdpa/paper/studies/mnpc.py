"""Figure 1 of the paper: multi-class Neyman-Pearson classification of MNIST."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gdpa.paper.applications.neyman_pearson import neyman_pearson
from gdpa.paper.base import Section, Verdict
from gdpa.paper.claims import faster, regular
from gdpa.paper.comparison import Case, Size, Study
from gdpa.paper.data.images import load
from gdpa.paper.records.folder import Record
from gdpa.paper.sections import compare

NAME = "mnpc"
TITLE = "Figure 1: Neyman-Pearson classification of MNIST"

INTRODUCTION = (
    "A linear classifier of the digits 1, 2, 3 and 4 from images with unit Gaussian noise: the loss of digit 1 is "
    "minimized while the pairwise sigmoid loss of every other digit is held to 0.1. d = 3136, m = 3."
)


def case(options: Mapping[str, Any], images: int | None, seed: int, say: Callable[[str], None]) -> Case:
    """Return the problem: noise and start are drawn from ``seed``."""
    options = dict(options)
    variance = options.pop("start_variance", 1e-3)
    data = load("mnist", progress=say)
    double = neyman_pearson(data.train_x, data.train_y, images_per_class=images, seed=seed, **options)
    single = double.to(torch.float32)
    return Case(
        single.problem,
        double.problem,
        single.start(seed, variance),
        double.classes,
        double.losses,
        lambda x: double.confusion(x, data.test_x, data.test_y),
    )


STUDY = Study(
    name=NAME,
    printed_as="mnpc",
    readings={"averaged": {"reduction": "mean"}, "summed": {"reduction": "sum"}},
    variants={
        "averaged, plain norm": {"reduction": "mean", "norm": "plain"},
        "summed, plain norm": {"reduction": "sum", "norm": "plain"},
        "summed, start of deviation 1e-3": {"reduction": "sum", "start_variance": 1e-6},
        "summed, no noise": {"reduction": "sum", "noise": 0.0},
    },
    steps=(0.01, 0.03, 0.1, 0.3, 1.0),
    penalties=(0.003, 0.03, 0.3, 3.0, 30.0),
    tolerances=(0.3, 0.1, 0.03, 0.01, 0.003),
    size=Size(images=None, budget=20.0, pilot_images=500, pilot_calls=400),
    case=case,
)


units, run = STUDY.units, STUDY.run


def section(records: Sequence[Record]) -> Section:
    """Return Figure 1, its tables and the verdicts on the paper's claims."""
    return compare(NAME, "Figure 1", INTRODUCTION, records, verdicts)


def verdicts(records: Sequence[Record]) -> list[Verdict]:
    """Judge what the paper says about this experiment."""
    return [
        faster(
            "GDPA converges orders of magnitude faster than IALM, IQRC and IPPP in computing time.",
            records,
            factor=10.0,
        ),
        regular("The regularity condition holds in this problem because the sigmoid is monotone.", records),
    ]
