"""The shape of the paper's Figures 1 and 2: several methods on one problem, judged alike, against the clock.

The methods compute in single precision, each on its own clock of processor time. The judge is `certify` in double
precision on the same data, off the clock: the best multipliers for the method's point, whatever the method, and the
residuals with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from gdpa.base.arrays import norm
from gdpa.base.status import Status
from gdpa.core.certificate import Certificate, certify, violation
from gdpa.core.problem import Problem
from gdpa.core.units import start_at
from gdpa.methods.base import State
from gdpa.methods.baselines.iqrc import IQRCState
from gdpa.paper.base import Log, Settings, Unit
from gdpa.paper.clock import Clock, warm_up
from gdpa.paper.contestants import METHODS, UNTUNED, build, grid, printed, search
from gdpa.paper.theory.constants import regularity
from gdpa.run.progress import Progress
from gdpa.run.solve import solve
from gdpa.run.stopping import MaxSteps


class Size(NamedTuple):
    """How much work a run is.

    Attributes:
        images: of a class; None for all.
        budget: seconds of processor time per method, if the user gives none.
        pilot_images, pilot_calls: images of a class and forward passes for each point of a grid.
    """

    images: int | None
    budget: float
    pilot_images: int
    pilot_calls: int


#: One seed is a quick look; several seeds are a study, whose size each experiment states.
QUICK = Size(500, 3.0, 200, 100)
#: The seed of the runs that choose constants; no study reaches it.
HELD_OUT = 10_000
#: The setting of the units that choose them, one per method for all seeds.
SEARCH = "grid search"
#: A run ends when the judge finds relative residuals this small.
GOAL = 1e-4
ROWS_PER_DECADE = 12
#: Of the seconds in records: processor time. Records without it have wall-clock seconds.
CLOCK = "processor"
#: Images of a class in the warm-up, which is on no method's clock.
WARM_UP_IMAGES = 2


class Case(NamedTuple):
    """A problem with data: what methods see, what the judge sees, and what to report at the end.

    Attributes:
        problem: in single precision.
        judge: the same in double precision.
        x0: the start, in single precision.
        classes: the labels, the prioritized one first.
        losses: maps x (double) to the loss of every class.
        confusion: maps x (double) to the confusion table on the test set.
    """

    problem: Problem
    judge: Problem
    x0: torch.Tensor
    classes: Sequence[int]
    losses: Callable[[torch.Tensor], torch.Tensor]
    confusion: Callable[[torch.Tensor], Any]


@dataclass(frozen=True)
class Study:
    """What one of the two experiments is made of.

    Args:
        name: of the experiment.
        printed_as: its name in the methods' ``printed_constants``.
        readings: readings of the paper for all methods: name of the setting -> options of the problem.
        variants: further readings, tried with GDPA and seed 0 alone.
        steps, penalties, tolerances: the axes of the grids, see `gdpa.paper.contestants.grid`.
        size: of a run with several seeds.
        case: makes the `Case` from the options of the problem, the images per class (None for all), a seed and
            somewhere to say what goes on.
    """

    name: str
    printed_as: str
    readings: Mapping[str, Mapping[str, Any]]
    variants: Mapping[str, Mapping[str, Any]]
    steps: Sequence[float]
    penalties: Sequence[float]
    tolerances: Sequence[float]
    size: Size
    case: Callable[[Mapping[str, Any], int | None, int, Callable[[str], None]], Case]

    def units(self, settings: Settings) -> list[Unit]:
        """Every method in every reading with the printed constants, then every method tuned, for every seed.

        A method's grid is searched once, in a unit of its own that comes first.
        """
        size = QUICK if settings.seeds == 1 else self.size
        shared = {
            "images": size.images,
            "budget": settings.budget or size.budget,
            "steps": settings.steps,
            "clock": CLOCK,
        }
        pilot = {"calls": size.pilot_calls, "images": size.pilot_images}
        main = next(iter(self.readings.values()))
        searches = {
            method: Unit(self.name, method, SEARCH, HELD_OUT, {"problem": dict(main), "grid": points, **pilot})
            for method in METHODS
            if (points := grid(method, self.steps, self.penalties, self.tolerances))
        }
        units: list[Unit] = []

        def add(
            method: str, setting: str, problem: Mapping[str, Any], choice: Mapping[str, Any], after: Unit | None = None
        ) -> None:
            config = {"problem": dict(problem), **shared, **choice}
            # Variants are asides, tried with one seed.
            seeds = settings.seeds if problem in self.readings.values() else 1
            units.extend(Unit(self.name, method, setting, seed, config, after) for seed in range(seeds))

        if settings.preset != "printed":
            units += searches.values()
        if settings.preset != "tuned":
            for setting, problem in self.readings.items():
                for method in METHODS:
                    add(method, f"printed, {setting}", problem, {"constants": printed(method, self.printed_as)})
            for setting, problem in self.variants.items():
                add("GDPA", f"printed, {setting}", problem, {"constants": printed("GDPA", self.printed_as)})
        if settings.preset != "printed":
            for method, search_unit in searches.items():
                add(method, "tuned", main, {"constants_of": search_unit.name}, search_unit)
            add(UNTUNED, "tuned", main, {"constants": {}})
        if settings.method is not None:
            readings = {f"printed, {name}": problem for name, problem in self.readings.items()}
            readings = readings if settings.preset == "printed" else {**readings, "tuned": main}
            for setting, problem in readings.items():
                if settings.preset != "tuned" or setting == "tuned":
                    add(settings.label, setting, problem, settings.choice)
        return units

    def run(self, unit: Unit, log: Log) -> Mapping[str, Any]:
        """Search a grid; or run, judge, and describe the last point."""
        config = unit.config
        say = _Say(log)
        say("preparing the data")
        if unit.setting == SEARCH:
            return self._search(unit, log, say)
        constants = config["constants"] if unit.after is None else log.summary(unit.after)["points"][0]["constants"]
        method, clock = build(config.get("method", unit.method), constants), Clock()
        small = self.case(config["problem"], WARM_UP_IMAGES, unit.seed, say)
        warm_up(method, small.problem, small.x0)
        case = self.case(config["problem"], config["images"], unit.seed, say)
        judge = _Judge(case, log, clock, config["budget"])
        stop: list[Any] = [clock.stop_at(config["budget"])]
        if config["steps"] is not None:
            stop.append(MaxSteps(config["steps"]))
        result = solve(case.problem, case.x0, clock.watch(method), stop=stop, observers=[judge], record=0)
        judge.last(result.state, result.steps, result.forwards, result.backwards)
        return {
            "constants": dict(constants),
            "status": "GOAL" if judge.best <= GOAL else _ending(result.status, clock, config["budget"]),
            "steps": result.steps,
            "forwards": result.forwards,
            "backwards": result.backwards,
            "seconds": round(clock.seconds, 4),
            "best_kkt": judge.best if math.isfinite(judge.best) else None,
            "start": judge.start,
            **judge.describe(),
        }

    def _search(self, unit: Unit, log: Log, say: Callable[[str], None]) -> Mapping[str, Any]:
        config, total = unit.config, len(unit.config["grid"])
        case = self.case(config["problem"], config["images"], unit.seed, say)
        points = search(
            unit.method,
            config["grid"],
            case.problem,
            case.x0,
            config["calls"],
            lambda index: log.progress(index / total, f"{index} of {total} points tried"),
        )
        for rank, point in enumerate(points, 1):
            log.row(rank=rank, kkt=math.nan if point["kkt"] is None else point["kkt"])
        return {"points": points}


def _ending(status: Status, clock: Clock, budget: float) -> str:
    """Return why a run ended: a run that converged in single precision may be short of the judge's goal."""
    if status is Status.CONVERGED:
        return (Status.MAX_TIME if clock.seconds >= budget else Status.MAX_STEPS).name
    return status.name


class _Say:
    """Progress in words alone."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def __call__(self, line: str) -> None:
        self._log.progress(0.0, line)


class _Judge:
    """An observer that certifies the method's point at geometrically spaced steps, off the method's clock."""

    def __init__(self, case: Case, log: Log, clock: Clock, budget: float) -> None:
        self._case, self._log, self._clock, self._budget = case, log, clock, budget
        start = case.judge.evaluate(case.x0.double())
        self._start = start_at(start, case.x0.double())
        #: f and ||g_+|| at the start.
        self.start = {
            "objective": float(start.objective),
            "feasibility": float(norm(violation(start.constraints, case.judge.num_equalities))),
        }
        self._due, self._done = 1.0, -1
        self._certificate: Certificate | None = None
        self.best = math.inf

    def __call__(self, progress: Progress) -> None:
        self._log.progress(self._clock.seconds / self._budget, f"step {progress.step}, best KKT {self.best:.1e}")
        if progress.step >= self._due:
            self._due = progress.step * 10 ** (1 / ROWS_PER_DECADE)
            self.last(progress.state, progress.step, progress.forwards, progress.backwards)
            if self.best <= GOAL:
                raise StopIteration

    def last(self, state: State, step: int, forwards: int, backwards: int) -> None:
        """Write the row of this step, if it is finite and not yet written."""
        # What IQRC would return now is its last outer iterate; the others return their iterate.
        x = (state.center if isinstance(state, IQRCState) else state.x).double()
        if step == self._done or not bool(torch.isfinite(x).all()):
            return
        certificate = certify(self._case.judge, x, state.multipliers.double(), start=self._start)
        worst = float(certificate.relative.worst)
        if not math.isfinite(worst):
            return
        self._done, self._certificate, self.best = step, certificate, min(self.best, worst)
        self._log.row(
            step=step,
            forwards=forwards,
            backwards=backwards,
            seconds=round(self._clock.seconds, 6),
            objective=float(certificate.objective),
            stationarity=float(certificate.residuals.stationarity),
            feasibility=float(certificate.residuals.feasibility),
            slackness=float(certificate.residuals.slackness),
            kkt=worst,
            regularity=regularity(self._case.judge, certificate.x),
        )

    def describe(self) -> dict[str, Any]:
        """Return losses, multipliers and the confusion table at the last finite point."""
        certificate, case = self._certificate, self._case
        if certificate is None:
            return {"final": None, "classes": list(case.classes)}
        return {
            "final": {
                "objective": float(certificate.objective),
                **{name: float(value) for name, value in certificate.residuals._asdict().items()},
                "kkt": float(certificate.relative.worst),
            },
            "classes": list(case.classes),
            "multipliers": certificate.multipliers.tolist(),
            "losses": case.losses(certificate.x).tolist(),
            "confusion": case.confusion(certificate.x).tolist(),
        }
