"""The paper's Figures 1 and 2: Neyman-Pearson classification of MNIST, and a network with loss budgets."""

from __future__ import annotations

from typing import Any

import torch

from gdpa.paper.applications.budget_nets import budget_net
from gdpa.paper.applications.neyman_pearson import neyman_pearson
from gdpa.paper.claims import faster, regular, sooner_feasible, worse
from gdpa.paper.comparison import Case, Size, Study
from gdpa.paper.data.images import Images


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
