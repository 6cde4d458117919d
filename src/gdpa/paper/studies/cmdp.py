"""The paper's third experiment (Figure 3): a random constrained Markov decision process with thresholds 6, 7 and 8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.methods.base import State
from gdpa.paper.applications import cmdp as tabular
from gdpa.paper.base import Log, Section, Settings, Table, Unit, Verdict
from gdpa.paper.contestants import Clock, build, warm_up
from gdpa.paper.figures import Chart, Panel, Series
from gdpa.paper.records import Record
from gdpa.run.progress import Progress
from gdpa.run.solve import solve
from gdpa.run.stopping import KKTBelow, MaxSteps, StopRule

NAME = "cmdp"
title = "Constrained Markov decision process (Figure 3)"

THRESHOLDS = (6.0, 7.0, 8.0)
STEPS = 1000
#: The paper's constants: its alpha_0 = 1000 multiplies a gradient without the factor 1/(1 - gamma).
PRINTED = {"alpha": 100.0, "beta": 0.5, "tau": 0.1}
PAPER, PLAIN, NATURAL, ADAPTIVE = "GDPA", "policy gradient", "natural primal-dual", "AdaptiveGDPA"
#: Rows are kept at every step up to this one, then at every tenth.
DENSE = 100
#: Bounds for the runs: relative gap of the reward, distance of the utility from b, relative error of the law.
GAP, CLOSE, LAW = 5e-3, 0.03, 0.05
#: And for AdaptiveGDPA, in both.
EXACT = 1e-5


def units(settings: Settings) -> list[Unit]:
    """GDPA, the natural primal-dual method and AdaptiveGDPA for every threshold; plain policy gradient once."""
    shared = {"steps": STEPS if settings.steps is None else settings.steps, "budget": settings.budget}
    choices: dict[str, dict[str, Any]] = {
        PAPER: {"constants": PRINTED},
        PLAIN: {"method": "gdpa", "constants": {"alpha": PRINTED["alpha"]}},  # the constraint is met, lambda stays 0
        NATURAL: {},  # Ding et al.'s steps follow from |A|, gamma and the number of steps
        ADAPTIVE: {"parametrization": "direct", "tolerance": 1e-8},
    }
    if settings.method is not None:
        choices[settings.label] = settings.choice
    return [
        Unit(NAME, method, "no threshold" if b is None else f"b={b:g}", seed, {"b": b, **shared, **choice})
        for method, choice in choices.items()
        for b in ((None,) if method == PLAIN else THRESHOLDS)
        for seed in range(settings.seeds)
    ]


def run(unit: Unit, log: Log) -> Mapping[str, Any]:
    """Run one method and return its last point beside the linear program's optimum."""
    config, steps, b = unit.config, unit.config["steps"], unit.config["b"]
    cmdp = tabular.paper_instance(b=0.0 if b is None else b)
    optimum = tabular.solve_linear_program(cmdp, constrained=b is not None)
    parametrization, tolerance = config.get("parametrization", "softmax"), config.get("tolerance", 1e-4)
    problem, x0 = tabular.as_problem(cmdp, parametrization), tabular.start_of(cmdp, parametrization, unit.seed)
    method: Any
    if unit.method == NATURAL:
        eta2 = 2 * (1 - cmdp.discount) / float(np.sqrt(steps))
        method = tabular.NaturalPolicyGradient(cmdp, eta1=2 * float(np.log(cmdp.num_actions)), eta2=eta2)
    else:
        method = build(config.get("method", unit.method), config.get("constants", {}))
    warm_up(method, problem, x0)
    clock = Clock()
    last: dict[str, float] = {}

    def note(state: State) -> None:
        if state.step == last.get("step"):
            return
        now = state.evaluation or problem.evaluate(state.x)
        last.update(
            step=state.step,
            seconds=round(clock.seconds, 6),
            reward=-float(now.objective),
            utility=float(cmdp.thresholds[0] - now.constraints[0]),
            multiplier=float(state.multipliers[0]),
        )
        log.row(**last)
        log.progress(state.step / steps, f"step {state.step}")

    def measure(progress: Progress) -> None:
        if progress.step <= DENSE or progress.step % 10 == 0:
            note(progress.state)

    stop: list[StopRule] = [KKTBelow(tolerance)] if unit.method == ADAPTIVE else []
    stop += [MaxSteps(steps), clock.stop_at(config["budget"])]
    result = solve(problem, x0, clock.watch(method), stop=stop, tolerance=tolerance, observers=[measure], record=0)
    note(result.state)
    if unit.method == PAPER:
        law = AugmentedLagrangian(result.multipliers_last, method.beta(result.steps), method.tau)
        last["predicted"] = float(law.residual_violation()[0])
    return {
        **last,
        "status": result.status.name,
        "optimum": optimum.reward,
        "optimal_utility": float(optimum.utilities[0]),
        "optimal_multiplier": float(optimum.multipliers[0]),
    }


def section(records: Sequence[Record]) -> Section:
    """Figure 3, the distance from the optimum, the table and the verdicts."""
    introduction = (
        "A random process with 50 states, 10 actions and gamma = 0.9, drawn as in the public code the paper builds on. "
        "The reward is to be maximized while the value of a second reward, the utility, must reach b. Values are "
        "not normalized by 1 - gamma: otherwise b = 6 would be out of reach. GDPA and policy gradient run with "
        "the paper's constants; the natural primal-dual method with its authors' step sizes; AdaptiveGDPA over the "
        "policies themselves (a simplex per state), the others over the parameters of softmax policies. The linear "
        "program over occupancy measures gives the optimum."
    )
    head = (
        "method", "threshold", "seed", "steps", "reward", "optimum", "gap", "utility", "violation", "multiplier",
        "optimal multiplier", "seconds",
    )  # fmt: skip
    added = dict.fromkeys(record.unit.method for record in records if "method" in record.unit.config)
    return Section(
        introduction,
        charts=(_rewards_chart(records, (PAPER, PLAIN, *added)), _distance_chart(records)),
        tables=(Table("Last iterates", head, [_table_row(record) for record in records]),),
        verdicts=_verdicts(records),
    )


def _gap(record: Record) -> float:
    """Return (optimum - reward) / optimum of the last iterate; negative if it violates the constraint."""
    return float((record.summary["optimum"] - record.summary["reward"]) / record.summary["optimum"])


def _missed(record: Record) -> float:
    return float(record.unit.config["b"] - record.summary["utility"])


def _table_row(record: Record) -> list[Any]:
    s, b = record.summary, record.unit.config["b"]
    return [
        record.unit.method, "none" if b is None else b, record.unit.seed, s["step"], s["reward"], s["optimum"],
        f"{_gap(record):.1e}", s["utility"], None if b is None else f"{_missed(record):.1e}", s["multiplier"],
        s["optimal_multiplier"], s["seconds"],
    ]  # fmt: skip


def _rewards_chart(records: Sequence[Record], shown: Sequence[str]) -> Chart:
    """Return Figure 3 for the methods ``shown``: both rewards of the first seed against iterations."""
    objective, constrained = [], []
    first = [record for record in records if record.unit.seed == 0 and record.unit.method in shown and record.columns]
    for color, record in enumerate(sorted(first, key=lambda record: shown.index(record.unit.method))):
        r, b = record.columns["step"], record.unit.config["b"]
        label = record.unit.method if b is None else f"{record.unit.method}, b = {b:g}"
        ends, optimum = [float(r[0]), float(r[-1])], record.summary["optimum"]
        objective.append(Series(label, r, record.columns["reward"], "line", color))
        objective.append(Series("optimum (linear program)", ends, [optimum, optimum], "dashed", color))
        constrained.append(Series(label, r, record.columns["utility"], "line", color))
        if b is not None:
            constrained.append(Series("threshold b", ends, [b, b], "dotted", color))
    return Chart(
        "cmdp-rewards",
        "Constrained Markov decision process: rewards along the run",
        "Left: the value of the reward. Right: the value of the constrained reward (utility), which must reach b. "
        "Dashed: the linear program's optimum, without the constraint for policy gradient; dotted: the threshold.",
        (
            Panel("objective reward", "iteration r", "V of the reward", objective, log_y=False),
            Panel("constrained reward", "iteration r", "V of the utility", constrained, log_y=False),
        ),
        columns=2,
    )


def _distance_chart(records: Sequence[Record]) -> Chart:
    """Return relative distance from the optimum and violation of every method, one column of panels per threshold."""
    limited = [record for record in records if record.unit.config["b"] is not None]
    methods = list(dict.fromkeys(record.unit.method for record in limited))
    above, below = [], []
    for b in sorted({record.unit.config["b"] for record in limited}):
        gaps, violations = [], []
        for record in limited:
            if record.unit.config["b"] == b and record.unit.seed == 0 and record.columns:
                r, optimum, label = record.columns["step"], record.summary["optimum"], record.unit.method
                gap, missed = np.abs(record.columns["reward"] - optimum) / abs(optimum), b - record.columns["utility"]
                gaps.append(Series(label, r, gap, "line", methods.index(label)))
                violations.append(Series(label, r, np.maximum(missed, 0.0), "line", methods.index(label)))
        above.append(Panel(f"b = {b:g}", "iteration r", "|reward - optimum| / optimum", gaps))
        below.append(Panel(f"b = {b:g}", "iteration r", "violation [b - utility]_+", violations))
    return Chart(
        "cmdp-distance",
        "Distance from the linear program's optimum and violation of the threshold",
        "Iterations at which the constraint holds have no point in the lower row. GDPA settles on the line "
        "tau lambda / beta_r; the natural primal-dual method swings around the threshold.",
        (*above, *below),
        columns=max(1, len(above)),
    )


def _verdicts(records: Sequence[Record]) -> list[Verdict]:
    paper, adaptive, plain = ([r for r in records if r.unit.method == method] for method in (PAPER, ADAPTIVE, PLAIN))
    verdicts = []
    if paper:
        gap, missed = max(abs(_gap(r)) for r in paper), max(abs(_missed(r)) for r in paper)
        words = (
            f"Largest gap of the reward {gap:.2%}, largest distance of the utility from b {missed:.3f}, "
            f"over {len(paper)} runs (asked: {GAP:.1%} and {CLOSE})."
        )
        claim = "GDPA with the paper's constants reaches the optimum for every threshold."
        verdicts.append(Verdict(claim, gap <= GAP and missed <= CLOSE, words))
        ratios = [_missed(r) / r.summary["predicted"] for r in paper if r.summary["predicted"] > 0]
        close = bool(ratios) and max(abs(ratio - 1) for ratio in ratios) <= LAW
        words = "Measured over predicted: " + ", ".join(f"{ratio:.3f}" for ratio in ratios) + "."
        verdicts.append(Verdict("The threshold is left missed by tau lambda / beta_r.", close, words, ours=True))
    if adaptive:
        worst = max(max(abs(_gap(r)), abs(_missed(r))) for r in adaptive)
        words = (
            f"Largest gap or violation {worst:.1e} over {len(adaptive)} runs, after at most "
            f"{max(record.summary['step'] for record in adaptive)} steps."
        )
        claim = f"Ours: AdaptiveGDPA over the policies themselves reaches the optimum to {EXACT:.0e}."
        verdicts.append(Verdict(claim, worst <= EXACT, words, ours=True))
    if utilities := [record.summary["utility"] for record in plain]:
        words = f"Its utility ends at {', '.join(f'{u:.3f}' for u in utilities)}."
        claim = "Plain policy gradient misses all three thresholds."
        verdicts.append(Verdict(claim, max(utilities) < min(THRESHOLDS), words))
    return verdicts
