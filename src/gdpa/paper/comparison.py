"""The shape of the paper's Figures 1 and 2: several methods on one problem, judged alike, against the clock.

The methods compute in single precision, each on its own clock of processor time. The judge works in double precision
on the same data, off the clock: the best multipliers for the method's point, and the residuals with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from gdpa.base.arrays import norm
from gdpa.base.status import Status
from gdpa.base.typing import Array
from gdpa.core.certificate import Certificate, violation
from gdpa.core.problem import Problem
from gdpa.methods.baselines.switching import IQRCState
from gdpa.paper.base import Log, Section, Settings, Unit, Verdict
from gdpa.paper.contestants import METHODS, SEARCH, UNTUNED, Clock, build, certify_from, grid, printed, search, warm_up
from gdpa.paper.data.images import Images, load
from gdpa.paper.records import Record
from gdpa.paper.sections import charts, tables
from gdpa.paper.theory import regularity
from gdpa.run.progress import Progress
from gdpa.run.result import Result
from gdpa.run.solve import solve
from gdpa.run.stopping import MaxSteps, StopRule


class Size(NamedTuple):
    """The amount of work: images of a class (None: all), seconds per method, images and passes per grid point."""

    images: int | None
    budget: float
    pilot_images: int
    pilot_calls: int


#: One seed is a quick look; several seeds are a study, whose size each experiment states.
QUICK = Size(500, 3.0, 200, 100)
#: The seed of the runs that choose constants; no study reaches it.
HELD_OUT = 10_000
#: A run ends when the judge finds relative residuals this small.
GOAL = 1e-4
ROWS_PER_DECADE = 12
#: Of the seconds in records: processor time. Records without it have wall-clock seconds.
CLOCK = "processor"
#: Images of a class in the warm-up, which is on no method's clock.
WARM_UP_IMAGES = 2
HOW = (
    " Every method starts at the same point on the same data. Settings: 'printed' uses the constants of the paper's "
    "appendix, with losses averaged or summed over the images of a class; 'tuned' gives every method the same number "
    "of grid points on a held-out seed, GDPA too, with averaged losses. AdaptiveGDPA is ours and runs with its "
    "defaults everywhere. Methods compute in single precision; the judge certifies their points in double precision, "
    "off their clocks."
)


class Case(NamedTuple):
    """The application or problem of the judge (double precision), the problem of the methods, and the start."""

    judge: Any
    problem: Problem
    x0: Any


class Outcome(NamedTuple):
    """A run that was judged: its summary, a row for each certificate, and the last certificate."""

    summary: dict[str, Any]
    rows: list[dict[str, Any]]
    certificate: Certificate | None


def contest(
    method: Any, case: Case, small: Case, budget: float, stop: Sequence[StopRule], log: Log, goal: float = GOAL
) -> Outcome:
    """Run a method on its own clock and judge it at geometrically spaced steps, off the clock, down to ``goal``.

    Before, it takes a few steps on the ``small`` case, so that imports and first allocations are on nobody's clock.
    """
    clock = Clock()
    warm_up(method, small.problem, small.x0)
    exact: Problem = getattr(case.judge, "problem", case.judge)
    start = _double(case.x0)
    at_start, certify = exact.evaluate(start), certify_from(exact, start)
    rows: list[dict[str, Any]] = []
    last: Certificate | None = None
    due, best = 1.0, math.inf

    def judge(run: Progress | Result) -> None:
        """Add the row of this step, if it is finite and not yet there."""
        nonlocal best, last
        state = run.state
        # IQRC would return its last outer iterate now, the others their iterate.
        x = _double(state.center if isinstance(state, IQRCState) else state.x)
        if (rows and state.step == rows[-1]["step"]) or not math.isfinite(float(norm(x))):
            return
        now = exact.evaluate(x)
        certificate = certify(x, _double(state.multipliers), now)
        worst = float(certificate.relative.worst)
        if math.isfinite(worst):
            best, last = min(best, worst), certificate
            costs = {"step": state.step, "forwards": run.forwards, "backwards": run.backwards}
            more = {"seconds": round(clock.seconds, 6), **_numbers_of(certificate)}
            rows.append({**costs, **more, "regularity": regularity(exact, x, now)})

    def watch(progress: Progress) -> None:
        nonlocal due
        log.progress(clock.seconds / budget, f"step {progress.step}, best KKT {best:.1e}")
        if progress.step >= due:
            due = progress.step * 10 ** (1 / ROWS_PER_DECADE)
            judge(progress)
            if best <= goal:
                raise StopIteration

    rules = [clock.stop_at(budget), *stop]
    result = solve(case.problem, case.x0, clock.watch(method), stop=rules, observers=[watch], record=0)
    judge(result)
    status = result.status
    if status is Status.CONVERGED:  # in single precision, which may be short of the judge's goal
        status = Status.MAX_TIME if clock.seconds >= budget else Status.MAX_STEPS
    summary = {
        "status": "GOAL" if best <= goal else status.name,
        "steps": result.steps,
        "forwards": result.forwards,
        "backwards": result.backwards,
        "seconds": round(clock.seconds, 4),
        "best_kkt": best if math.isfinite(best) else None,
        "start": {
            "objective": float(at_start.objective),
            "feasibility": float(norm(violation(at_start.constraints, exact.num_equalities))),
        },
    }
    return Outcome(summary, rows, last)


def _numbers_of(certificate: Certificate) -> dict[str, float]:
    residuals = {name: float(value) for name, value in certificate.residuals._asdict().items()}
    return {"objective": float(certificate.objective), **residuals, "kkt": float(certificate.relative.worst)}


def _double(array: Array) -> Array:
    return array.double() if isinstance(array, torch.Tensor) else array


@dataclass(frozen=True)
class Study:
    """One of the two experiments; its title begins with the paper's figure.

    ``printed_as`` is its name in the methods' ``printed_constants``. ``readings`` maps a setting to options of the
    problem; ``variants`` are further readings, tried with GDPA and seed 0 alone. ``axes`` are the step lengths,
    penalties and tolerances of `gdpa.paper.contestants.grid`, ``size`` is for several seeds. ``case`` makes the `Case`
    from data, images per class, a seed and those options; ``judge`` gives the verdicts on the records.
    """

    name: str
    title: str
    introduction: str
    printed_as: str
    readings: Mapping[str, Mapping[str, Any]]
    variants: Mapping[str, Mapping[str, Any]]
    axes: tuple[Sequence[float], Sequence[float], Sequence[float]]
    size: Size
    case: Callable[..., Case]
    judge: Callable[[Sequence[Record]], Sequence[Verdict]]

    def units(self, settings: Settings) -> list[Unit]:
        """Every method in every reading with the printed constants, then every method tuned, for every seed.

        A method's grid is searched once, in a unit of its own that comes first.
        """
        size = QUICK if settings.seeds == 1 else self.size
        budget = settings.budget or size.budget
        shared = {"images": size.images, "budget": budget, "steps": settings.steps, "clock": CLOCK}
        pilot = {"calls": size.pilot_calls, "images": size.pilot_images}
        main = next(iter(self.readings.values()))
        readings = {} if settings.preset == "tuned" else {f"printed, {name}": p for name, p in self.readings.items()}
        variants = {} if settings.preset == "tuned" else {f"printed, {name}": p for name, p in self.variants.items()}
        tuned = {} if settings.preset == "printed" else {"tuned": main}
        searches = {
            method: Unit(self.name, method, SEARCH, HELD_OUT, {"problem": dict(main), "grid": points, **pilot})
            for method in METHODS
            if tuned and (points := grid(method, *self.axes))
        }
        units = list(searches.values())

        def add(
            method: str, setting: str, problem: Mapping[str, Any], choice: Mapping[str, Any], after: Unit | None = None
        ) -> None:
            config = {"problem": dict(problem), **shared, **choice}
            seeds = 1 if setting in variants else settings.seeds  # variants are asides
            units.extend(Unit(self.name, method, setting, seed, config, after) for seed in range(seeds))

        for setting, problem in {**readings, **variants}.items():
            for method in METHODS if setting in readings else ("GDPA",):
                add(method, setting, problem, {"constants": printed(method, self.printed_as)})
        for setting, problem in tuned.items():
            for method, unit in searches.items():
                add(method, setting, problem, {"constants_of": unit.name}, unit)
            add(UNTUNED, setting, problem, {"constants": {}})
        if settings.method is not None:
            for setting, problem in {**readings, **tuned}.items():
                add(settings.label, setting, problem, settings.choice)
        return units

    def run(self, unit: Unit, log: Log) -> Mapping[str, Any]:
        """Search a grid; or run, judge, and describe the last point."""
        config = unit.config
        log.progress(0.0, "preparing the data")
        data = load("mnist", progress=lambda line: log.progress(0.0, line))
        case = self.case(data, config["images"], unit.seed, **config["problem"])
        if unit.setting == SEARCH:
            found = search(unit.method, config["grid"], case.problem, case.x0, config["calls"], log.progress)
            for rank, point in enumerate(found, 1):
                log.row(rank=rank, kkt=math.nan if point["kkt"] is None else point["kkt"])
            return {"points": found}
        constants = config["constants"] if unit.after is None else log.summary(unit.after)["points"][0]["constants"]
        method = build(config.get("method", unit.method), constants)
        small = self.case(data, WARM_UP_IMAGES, unit.seed, **config["problem"])
        stop = [] if config["steps"] is None else [MaxSteps(config["steps"])]
        outcome = contest(method, case, small, config["budget"], stop, log)
        for row in outcome.rows:
            log.row(**row)
        return {"constants": dict(constants), **outcome.summary, **_describe(case.judge, outcome.certificate, data)}

    def section(self, records: Sequence[Record]) -> Section:
        """Return the figure, its tables and the verdicts on the paper's claims."""
        searches = [record for record in records if record.unit.setting == SEARCH]
        runs = [record for record in records if record.unit.setting != SEARCH]
        if not runs:
            return Section(self.introduction, (), (), ())
        images, budget = (runs[0].unit.config[name] for name in ("images", "budget"))
        size = "All images of these digits" if images is None else f"{images} images per digit"
        seeds = len({record.unit.seed for record in runs})
        amount = f"{size}, {seeds} seed{'s' if seeds > 1 else ''}, {budget:g} seconds per method."
        return Section(
            f"{self.introduction} {amount}{HOW}",
            charts=charts(self.name, self.title.partition(":")[0], runs),
            tables=tables(runs, searches),
            verdicts=self.judge(runs),
        )


def _describe(application: Any, certificate: Certificate | None, data: Images) -> dict[str, Any]:
    """Return losses, multipliers and the confusion table at the last finite point."""
    classes = list(application.classes)
    if certificate is None:
        return {"final": None, "classes": classes}
    return {
        "final": _numbers_of(certificate),
        "classes": classes,
        "multipliers": certificate.multipliers.tolist(),
        "losses": application.losses(certificate.x).tolist(),
        "confusion": application.confusion(certificate.x, data.test_x, data.test_y).tolist(),
    }
