"""How fast is GDPA? The law g = tau lambda / beta_r and Theorem 1's r^(-1/3), measured on problems with known answers.

Each unit runs the paper's GDPA on one certified problem with one tau. Its alpha_0 and beta_0 come from a small declared
grid: the pair whose pilot run shows the smallest relative KKT residual towards its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gdpa.base.arrays import norm
from gdpa.core.certificate import absolute_residuals, violation
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.methods.gdpa import GDPA
from gdpa.oracles import library as problems
from gdpa.oracles.library import TestProblem
from gdpa.paper.base import Log, Section, Settings, Table, Unit, Verdict
from gdpa.paper.contestants import Clock
from gdpa.paper.figures import Chart, Panel, Series, look
from gdpa.paper.records import Record
from gdpa.run.progress import Progress
from gdpa.run.result import Result
from gdpa.run.solve import solve
from gdpa.run.stopping import MaxSteps

NAME = "rate"
title = "Rate: the violation GDPA leaves, and Theorem 1's r^(-1/3)"

TAUS = (0.1, 0.5, 0.9)
STEPS = 60_000
PILOT_STEPS = 2_500
#: The declared grid for (alpha_0, beta_0).
ALPHAS = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
BETAS = (0.1, 1.0, 10.0)
#: Steps between two looks at a run, and how many rows a decade of steps gets at most.
LOOK_EVERY, ROWS_PER_DECADE = 10, 12
#: A multiplier below this counts as zero: the law does not cover such a constraint.
ACTIVE = 1e-6
#: A run has settled, so that the law covers it, when its relative stationarity has fallen to this.
SETTLED = 1e-2
#: Largest distance of the law's ratio measured / predicted from 1, and of a slope from -1/3.
RATIO_TOLERANCE, SLOPE_TOLERANCE = 0.05, 0.05
#: The bias of the method, in the words of the report.
LAW = "An active constraint is left violated by tau lambda_i / beta_r."
RESIDUALS = ("stationarity", "feasibility", "slackness")
#: The color of the slope, which no curve has.
GUIDE = 6


def _active(problem: TestProblem) -> Any:
    """Return the places of the constraints with a positive multiplier at the recorded solution; none if it has none."""
    return np.flatnonzero(problem.multipliers > ACTIVE) if problem.multipliers is not None else np.zeros(0, int)


def units(settings: Settings) -> list[Unit]:
    """One unit per problem with an active inequality alone, tau and seed; seed 0 starts where the source says."""
    chosen = [problems.get(name) for name in problems.names("solvable")]
    steps = STEPS if settings.steps is None else settings.steps
    shared = {"steps": steps, "pilot_steps": min(PILOT_STEPS, steps), "budget": settings.budget}
    grid = {"alphas": list(ALPHAS), "betas": list(BETAS)}
    return [
        Unit(NAME, f"GDPA tau={tau}", problem.name, seed, {"tau": tau, **shared, **grid})
        for problem in chosen
        if problem.problem.num_equalities == 0 and len(_active(problem))
        for tau in TAUS
        for seed in range(settings.seeds)
    ]


def run(unit: Unit, log: Log) -> Mapping[str, Any]:
    """Choose the step sizes, run, and return the choice with the final numbers."""
    config, problem = unit.config, problems.get(unit.setting)
    x0 = problem.x0 + 0.1 * np.random.default_rng(unit.seed).standard_normal(problem.x0.shape) * (unit.seed > 0)
    rows = _active(problem)
    expected = np.asarray(problem.multipliers)[rows]

    pilots: list[dict[str, float]] = []
    grid = [{"alpha": alpha, "beta": beta} for beta in config["betas"] for alpha in config["alphas"]]
    for index, pair in enumerate(grid):
        log.progress(0.3 * index / len(grid), "choosing alpha_0 and beta_0")
        pilots.append({**pair, "kkt": _pilot(problem, x0, GDPA(**pair, tau=config["tau"]), config["pilot_steps"])})
    best = min(pilots, key=lambda pilot: pilot["kkt"])

    algorithm, clock = GDPA(alpha=best["alpha"], beta=best["beta"], tau=config["tau"]), Clock()
    last: dict[str, Any] = {}
    due = 1.0

    def measure(progress: Progress) -> None:
        nonlocal due
        state = progress.state
        if state.step < due and state.step != config["steps"]:
            return
        due = state.step * 10 ** (1 / ROWS_PER_DECADE)
        now, lam = state.evaluation, state.multipliers
        assert now is not None
        # After step r the state is (x_{r+1}, lambda_{r+1}), and lambda_{r+1} was computed with beta_r.
        beta = algorithm.beta(state.step)
        residuals = absolute_residuals(problem.problem.domain, state.x, now.pullback(lam), now.constraints, lam)
        g, predicted = now.constraints[rows], AugmentedLagrangian(expected, beta, config["tau"]).residual_violation()
        found = dict(zip(RESIDUALS, map(float, residuals), strict=True))
        settled = bool(progress.residuals.stationarity <= SETTLED)
        last.update(step=state.step, ratios=(g / predicted).tolist(), settled=settled, **found)
        sizes = {"measured": float(norm(violation(g))), "predicted": float(norm(predicted))}
        log.row(step=state.step, seconds=round(clock.seconds, 6), beta=beta, **sizes, **found)
        log.progress(0.3 + 0.7 * state.step / config["steps"], f"step {state.step}")

    stop = [MaxSteps(config["steps"]), clock.stop_at(config["budget"])]
    result = _solve(problem, x0, clock.watch(algorithm), config["steps"], stop, measure)
    return {
        **{name: best[name] for name in ("alpha", "beta")},
        "pilots": pilots,
        "status": result.status.name,
        "multipliers": np.asarray(result.multipliers_last)[rows].tolist(),
        "expected_multipliers": expected.tolist(),
        **last,
    }


def _solve(problem: TestProblem, x0: Any, method: Any, steps: int, stop: Any, watch: Any) -> Result:
    every = LOOK_EVERY if steps % LOOK_EVERY == 0 else 1
    with np.errstate(all="ignore"):
        return solve(problem.problem, x0, method, stop=stop, observers=[watch], record=0, check_every=every)


def _pilot(problem: TestProblem, x0: Any, method: GDPA, steps: int) -> float:
    """Return the largest relative KKT residual in the last fifth of a short run, infinity if it diverges.

    The largest, because a step too long makes the run circle round the solution rather than diverge.
    """
    seen: list[float] = []

    def watch(progress: Progress) -> None:
        if progress.step > 0.8 * steps:
            seen.append(progress.kkt)

    result = _solve(problem, x0, method, steps, MaxSteps(steps), watch)
    return max(seen) if result.steps == steps and np.isfinite(seen).all() else float("inf")


def slope(record: Record, name: str) -> float:
    """Return the log-log slope of a column over the last decade of steps, NaN if it cannot be fitted."""
    r, values = record.columns["step"], record.columns[name]
    keep = (r >= r[-1] / 10) & (values > 0) & np.isfinite(values)
    if keep.sum() < 3:
        return float("nan")
    return float(np.polyfit(np.log(r[keep]), np.log(values[keep]), 1)[0])


def section(records: Sequence[Record]) -> Section:
    """Figures, slopes and verdicts."""
    introduction = (
        "GDPA exactly as published, run on problems whose solutions and multipliers are recorded with their sources. "
        "At a fixed point of the dual update with fixed beta, lambda = (1 - tau) lambda + beta g, so an active "
        "constraint keeps the violation g_i = tau lambda_i / beta_r. The prediction below uses the recorded "
        "multipliers, not the run's own. alpha_0 and beta_0 were chosen per unit from a declared grid by the KKT "
        "residual of a pilot run; grid and choice are in the records. Slopes are fitted on the last decade of steps. "
        f"A run has settled when its relative stationarity is at most {SETTLED:g}; the law is about such runs."
    )
    head = (
        "problem", "tau", "seed", "alpha_0", "beta_0", "steps", "settled", "measured / predicted violation",
        "slope of stationarity", "slope of feasibility", "slope of slackness",
        "stationarity", "feasibility", "slackness",
    )  # fmt: skip
    table = [
        [
            *(r.unit.setting, r.unit.config["tau"], r.unit.seed, r.summary["alpha"], r.summary["beta"]),
            *(r.summary.get("step"), "yes" if r.summary.get("settled") else "no"),
            ", ".join(f"{ratio:.3f}" for ratio in r.summary.get("ratios", ())),
            *(round(slope(r, name), 3) for name in RESIDUALS),
            *(r.summary.get(name) for name in RESIDUALS),
        ]
        for r in records
    ]
    return Section(
        introduction,
        charts=(_violation_chart(records), _residuals_chart(records)),
        tables=(Table("Measured slopes and final residuals (absolute, as the paper's Definition 2)", head, table),),
        verdicts=_verdicts(records),
    )


def _violation_chart(records: Sequence[Record]) -> Chart:
    """Return one panel per problem: a line per tau for the prediction, points for the measurements."""

    def curves(record: Record) -> list[Series]:
        r, tau = record.columns, record.unit.config["tau"]
        kinds = (("predicted", "line"), ("measured", "points"))
        return [Series(f"{kind}, tau = {tau}", r["step"], r[kind], style, TAUS.index(tau)) for kind, style in kinds]

    panels = []
    for name in dict.fromkeys(record.unit.setting for record in records):
        drawn = [record for record in records if record.unit.setting == name and record.columns]
        series = [curve for record in drawn for curve in curves(record)]
        panels.append(Panel(name, "step r", "violation of active constraints", series))
    return Chart(
        "rate-violation",
        "The violation GDPA leaves: measured (points) on the predicted tau λ/β (lines)",
        "Lines: the norm of tau lambda*/beta_r over the active constraints, from the recorded multipliers. "
        "Points: the norm of the measured g_+ on the same constraints. Early steps are the transient before the run "
        "follows the law; steps at which the active constraints hold have no point on logarithmic axes. beta_0 was "
        "chosen run by run, so the lines need not be in the order of tau.",
        panels,
    )


def _residuals_chart(records: Sequence[Record]) -> Chart:
    """Return one panel per residual and tau with a curve per problem and the slope of Theorem 1."""
    settings = list(dict.fromkeys(record.unit.setting for record in records))
    panels = []
    for tau in dict.fromkeys(record.unit.config["tau"] for record in records):
        chosen = [r for r in records if r.unit.config["tau"] == tau and r.columns]
        for name in RESIDUALS:
            series = [
                Series(r.unit.setting, r.columns["step"], r.columns[name], *look(settings.index(r.unit.setting), GUIDE))
                for r in chosen
            ]
            if chosen:
                steps = chosen[0].columns["step"]
                ends = np.array([r.columns[name][-1] for r in chosen])
                top = float(np.max(ends[ends > 0], initial=1e-300))
                guide = 3 * top * (steps / steps[-1]) ** (-1 / 3)
                series.append(Series("slope r^(-1/3)", steps, guide, "dashed", GUIDE))
            panels.append(Panel(f"{name}, tau = {tau}", "step r", name, series))
    return Chart(
        "rate-residuals",
        "Residuals of Definition 2 along the run, and the slope of Theorem 1",
        "Absolute residuals at (x_r, lambda_r), the method's own multipliers. A curve parallel to the dashed line "
        "falls like r^(-1/3), a steeper one falls faster.",
        panels,
        columns=len(RESIDUALS),
    )


def _verdicts(records: Sequence[Record]) -> list[Verdict]:
    settled = [record for record in records if record.summary.get("settled")]
    if not settled:
        return [Verdict(LAW, None, "No run has settled.", ours=True)]
    ratios = np.array([ratio for record in settled for ratio in record.summary["ratios"]])
    near = np.abs(ratios - 1) <= RATIO_TOLERANCE
    others = [f"{r.unit.setting} (tau = {r.unit.config['tau']})" for r in records if r not in settled]
    words = (
        f"{len(settled)} of {len(records)} runs have settled. At their last step {near.sum()} of {len(near)} active "
        f"constraints have a violation within {RATIO_TOLERANCE:.0%} of the prediction; the ratios run from "
        f"{ratios.min():.3f} to {ratios.max():.3f}, median {np.median(ratios):.3f}."
    )
    if others:
        words += f" Not settled within their steps, and left out of all verdicts: {', '.join(others)}."
    verdicts = [Verdict(LAW, _mostly(near), words, ours=True)]
    for name in RESIDUALS:
        slopes = np.array([slope(record, name) for record in settled])
        fits = slopes <= -1 / 3 + SLOPE_TOLERANCE
        words = (
            f"Slopes of the settled runs go from {np.nanmin(slopes):.3f} to {np.nanmax(slopes):.3f}, median "
            f"{np.nanmedian(slopes):.3f}; {fits.sum()} of {len(fits)} runs fall at least as fast."
        )
        verdicts.append(Verdict(f"Theorem 1: {name} falls at least as fast as r^(-1/3).", _mostly(fits), words))
    slopes = np.array([slope(record, "feasibility") for record in settled])
    slow = np.abs(slopes + 1 / 3) <= SLOPE_TOLERANCE
    words = (
        f"{slow.sum()} of {len(slow)} settled runs have a slope within {SLOPE_TOLERANCE} of -1/3: one more digit of "
        "feasibility costs about a thousand times the iterations. This is the law above seen along the run, and the "
        "reason for AdaptiveGDPA."
    )
    claim = "Ours: with an active constraint, feasibility falls no faster than r^(-1/3)."
    return [*verdicts, Verdict(claim, _mostly(slow), words, ours=True)]


def _mostly(marks: Any) -> bool | None:
    """True if nine in ten marks hold, False if at most half do, None in between."""
    share = float(np.mean(marks))
    return True if share >= 0.9 else False if share <= 0.5 else None
