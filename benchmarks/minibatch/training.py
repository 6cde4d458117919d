"""One run: a task trained by a rule, and what came of it on the whole training set.

Adam with rate 3e-3, 2,000 steps, float32, one thread. Three models are judged: the last iterate, the exponential
average of the weights (0.995) and the average over the last fifth. The one handed back has the lowest objective among
those within 10 % of every limit, or the smallest violation if none is. The peers' weights are averaged and chosen in
the same way.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from benchmarks.minibatch import tasks
from benchmarks.minibatch.rules import RULES, Stepper
from gdpa.torch import calibration
from gdpa.torch.rules import feedback

STEPS, LR, DECAY, TOLERANCE = 2000, 3e-3, 0.995, 0.1
#: Steps on f alone before training under limits starts, in the change "pretrained".
PRETRAINING = 1000
#: Gradient descent with momentum 0.9 needs another rate than Adam; this one trains `SENSITIVITY_TASKS` without limits.
SGD_LR = 0.03


@dataclass(frozen=True)
class Change:
    """How a run differs from the one described above."""

    base: str = "Adam"
    lr: float = 1.0
    batch: float = 1.0
    rate: float = 1.0
    pretrained: bool = False
    f: float = 1.0
    g: float = 1.0
    eps: float = 1e-8
    constants: tuple[tuple[str, float], ...] = ()


NONE = "none"
SENSITIVITY = {
    "AdamW, decay 0.01": Change(base="AdamW"),
    "RMSprop": Change(base="RMSprop"),
    "SGD, momentum 0.9": Change(base="SGD"),
    "learning rate x 0.1": Change(lr=0.1),
    "learning rate x 10": Change(lr=10.0),
    "batch / 4": Change(batch=0.25),
    "batch x 4": Change(batch=4.0),
    "dual rate x 0.1": Change(rate=0.1),
    "dual rate x 10": Change(rate=10.0),
    "pretrained start": Change(pretrained=True),
}
#: Adam's eps has the unit of a gradient. It is this small in the runs that compare units.
SMALL_EPS = 1e-16
AS_IT_IS = "as it is"
UNITS = {
    f"{which} x {by:g}": Change(**{which: by}, eps=SMALL_EPS) for which in ("f", "g") for by in (1e-4, 0.01, 100.0, 1e4)
}
#: Each constant of our rule and of its calibration, about half and about twice as large. The module that has it is told
#: by its name.
CONSTANTS = {
    f"{name} {value:g}": Change(constants=((name, value),))
    for name, values in {
        "INTEGRAL": (0.01, 0.04), "PROPORTIONAL": (0.1, 1.0), "SMOOTHING": (0.05, 0.2), "LARGEST_DRIVE": (0.25, 1.0),
        "LARGEST_ERROR": (1.0, 10.0), "DEVIATIONS": (1.0, 4.0), "RAREST": (1.0, 100.0), "NEWEST_VARIANCE": (0.01, 0.05),
        "NEWEST_SQUARE": (0.005, 0.02), "LEAST_SQUARE": (1e-6, 1e-3), "BATCHES": (4, 16), "MOST_AT_ONCE": (16, 64),
        "MOST_IN_ALL": (256, 1024), "AGAIN_FROM": (16, 10**9), "AGAIN_BATCHES": (2, 8), "MOST_AGAIN": (4, 16),
    }.items()
    for value in values
}  # fmt: skip
CONSTANTS |= {f"dual rate {k:g}": Change(rate=k) for k in (0.03, 0.1, 0.3, 3.0, 10.0, 30.0)}
CHANGES = {NONE: Change(), AS_IT_IS: Change(eps=SMALL_EPS), **SENSITIVITY, **UNITS, **CONSTANTS}


class Run(NamedTuple):
    """What identifies a run, and its record."""

    task: str
    rule: str
    setting: str
    seed: int
    change: str = NONE


def train(run: Run, certify: bool = False) -> dict[str, Any]:
    """Run once and return the record."""
    with changed_constants(CHANGES[run.change]):
        return _record(run, certify)


@contextmanager
def changed_constants(change: Change) -> Iterator[None]:
    """Give constants of our rule other values for a while."""
    places = [(feedback if hasattr(feedback, name) else calibration, name) for name, _ in change.constants]
    kept = [getattr(module, name) for module, name in places]
    try:
        for (module, name), (_, value) in zip(places, change.constants, strict=True):
            setattr(module, name, value)
        yield
    finally:
        for (module, name), value in zip(places, kept, strict=True):
            setattr(module, name, value)


def _record(run: Run, certify: bool) -> dict[str, Any]:
    change, rule = CHANGES[run.change], RULES[run.rule]
    task = tasks.make(run.task)
    task = replace(task, batch_size=max(int(task.batch_size * change.batch), 1))
    torch.manual_seed(run.seed)
    net = task.network()
    if change.pretrained:
        _train_without_limits(task, net, run.seed)
    primal = optimizer(change, net)
    step = rule.stepper(replace(task, limits=change.g * task.limits), primal, run.setting, change.rate)
    start = time.process_time()
    try:
        models = _train(task, net, step, run.seed, change)
    except Exception as error:  # a rule that gives up has not met its limits; the others go on
        return {**run._asdict(), "error": f"{type(error).__name__}: {error}", "met": False}
    seconds = time.process_time() - start
    found = {key: judge(task, model) for key, model in models.items()}
    chosen = choose(found)
    record: dict[str, Any] = {
        **run._asdict(), "models": found, "chosen": chosen, **found[chosen],
        "met": found[chosen]["violation"] <= TOLERANCE, "seconds": round(seconds, 2),
    }  # fmt: skip
    return record | certificate(task, models[chosen]) if certify else record


def optimizer(change: Change, net: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the base optimizer of a change."""
    lr = change.lr * (SGD_LR if change.base == "SGD" else LR)
    if change.base == "SGD":
        return torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    adam = torch.optim.Adam if change.base == "Adam" else torch.optim.AdamW
    if change.base == "RMSprop":
        return torch.optim.RMSprop(net.parameters(), lr=lr)
    return adam(net.parameters(), lr=lr, eps=change.eps)


def _train(
    task: tasks.Task, net: torch.nn.Module, step: Stepper, seed: int, change: Change
) -> dict[str, torch.nn.Module]:
    average, tail, tail_from = copy.deepcopy(net), copy.deepcopy(net), int(0.8 * STEPS)
    params = [list(n.parameters()) for n in (net, average, tail)]
    batches = task.batches(seed)
    for i in range(STEPS):
        batch = next(batches)

        def forward(batch: tasks.Batch = batch) -> tasks.Values:
            f, g, counts = task.values(net, batch)
            return tasks.Values(f * change.f, g * change.g, counts)

        step(forward)
        with torch.no_grad():
            torch._foreach_lerp_(params[1], params[0], 1 - DECAY if i else 1.0)
            if i >= tail_from:
                torch._foreach_lerp_(params[2], params[0], 1 / (i - tail_from + 1))
    return {"last": net, "average": average, "tail": tail}


def _train_without_limits(task: tasks.Task, net: torch.nn.Module, seed: int) -> None:
    opt, batches = torch.optim.Adam(net.parameters(), lr=LR), task.batches(1000 + seed)
    for _ in range(PRETRAINING):
        opt.zero_grad()
        task.values(net, next(batches)).f.backward()
        opt.step()


def judge(task: tasks.Task, net: torch.nn.Module) -> dict[str, float]:
    """Return f and the largest violation relative to its limit, on the whole training set."""
    with torch.no_grad():
        f, g, _ = task.values(net, task.data)
    worst = (g / task.limits).max().item()
    return {"objective": f.item(), "violation": math.inf if math.isnan(worst) else worst}


def choose(found: dict[str, dict[str, float]]) -> str:
    """Return the model of the lowest objective among those within the tolerance, else that of the smallest violation.

    >>> choose({"last": {"objective": 1.0, "violation": 0.2}, "tail": {"objective": 2.0, "violation": 0.05}})
    'tail'
    >>> choose({"last": {"objective": 1.0, "violation": 0.2}, "tail": {"objective": 2.0, "violation": 0.3}})
    'last'
    """
    inside = [key for key, row in found.items() if row["violation"] <= TOLERANCE]
    if inside:
        return min(inside, key=lambda key: found[key]["objective"])
    return min(found, key=lambda key: found[key]["violation"])


def certificate(task: tasks.Task, net: torch.nn.Module) -> dict[str, float]:
    """Return the KKT residuals on the whole training set, with the best multipliers there are."""
    import gdpa
    from gdpa import from_module

    def values(call: Any) -> tuple[torch.Tensor, torch.Tensor]:
        f, g, _ = task.values(_Call(call, net), task.data)
        return f.double(), (g / task.limits).double()

    problem = from_module(net, values)
    found = gdpa.certify(problem.problem, problem.x0)
    return {"stationarity": float(found.residuals.stationarity), "relative_stationarity": float(found.relative[0])}


class _Call(torch.nn.Module):
    """A functional call of a network that still shows its parameters' values."""

    def __init__(self, call: Any, net: torch.nn.Module) -> None:
        super().__init__()
        self._call, self._net = [call], [net]

    def forward(self, *x: torch.Tensor) -> Any:
        return self._call[0](*x)

    def parameters(self, recurse: bool = True) -> Any:
        return self._net[0].parameters()
