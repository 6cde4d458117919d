"""Tables of the study, from its records alone: ``python -m benchmarks.minibatch.table``.

A run *met* its limits if its model lies within 10 % of every one on the whole training set.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.minibatch import tasks, training
from benchmarks.minibatch.rules import OURS, RULES
from benchmarks.minibatch.training import NONE, Run
from benchmarks.provenance import Study, markdown, told
from gdpa.paper.records import Row as Record

Records = dict[Run, Record]
Pair = tuple[str, str]

#: The file of the tables.
TABLES = "tables.md"
#: The packages of the peers.
PEERS = ("cooper-optim", "humancompatible-train")
#: An objective within 2 % of the lowest counts as lowest.
NEAR = 0.02
#: Seeds that the settings of the peers are chosen on; the tables leave them out.
TUNING_SEEDS = (100, 101)
#: The tasks and seeds that chose our rule and its constants. The tasks are scored on other seeds; the other seven tasks
#: had no part in it.
DEVELOPMENT_TASKS = ("budget-0.1", "adult-recall", "digits", "finetune-kl", "groups-loss", "saturated", "kept-task")
DEVELOPMENT_SEEDS = (200, 201)
_NOT_SCORED = (*TUNING_SEEDS, *DEVELOPMENT_SEEDS)


def study(out: Path | None = None) -> Study:
    """Return the records of the study: one for each `Run`, in ``out`` or in ``results/minibatch``."""
    return Study("benchmarks.minibatch.run", "minibatch", Run._fields, out=out)


def by_run(rows: Iterable[Record]) -> Records:
    """Return the records by what they are of, without those of tasks, settings and changes that are no more."""
    found = {Run(*(row[name] for name in Run._fields)): row for row in rows}
    return {run: row for run, row in found.items() if _known(run)}


def _known(run: Run) -> bool:
    rule = RULES.get(run.rule)
    known = run.task in tasks.NAMES and run.change in training.CHANGES
    return known and rule is not None and run.setting in rule.settings


def line(record: Record) -> str:
    """Return one run in words, for the progress display."""
    name = " ".join(str(record[k]) for k in ("task", "rule", "setting") if record[k] != NONE)
    change = "" if record["change"] == NONE else f" [{record['change']}]"
    if "error" in record:
        return f"{name} seed {record['seed']}{change}: raised {record['error']}"
    what = f"f {record['objective']:.4f}, violation {100 * record['violation']:+.1f} % ({record['chosen']})"
    return f"{name} seed {record['seed']}{change}: {what}, {record['seconds']:.1f} s"


def mean_objective(records: Iterable[Record]) -> float | None:
    """Return the mean objective among the runs that met their limits; None if no run did."""
    found = [r["objective"] for r in records if r["met"]]
    return statistics.fmean(found) if found else None


def best_settings(records: Records) -> dict[Pair, str]:
    """Return the best of a rule's settings on `TUNING_SEEDS`, by task and rule: the most runs within the limits, then
    the lowest mean objective of those runs, then the smallest violation; the default if equal."""
    chosen: dict[Pair, str] = {}
    for task in tasks.NAMES:
        for name, rule in RULES.items():
            runs = {s: [records.get(Run(task, name, s, seed)) for seed in TUNING_SEEDS] for s in rule.settings}
            known = {s: [r for r in found if r is not None] for s, found in runs.items()}
            if len(rule.settings) == 1:
                chosen[task, name] = rule.default
            elif all(len(found) == len(TUNING_SEEDS) for found in known.values()):
                chosen[task, name] = min(known, key=lambda s: _order(known[s]))
    return chosen


def _order(records: list[Record]) -> tuple[int, float, float]:
    objective = mean_objective(records)
    worst = max(float(r.get("violation", "inf")) for r in records)
    return sum(not r["met"] for r in records), float("inf") if objective is None else objective, worst


Chooser = Callable[[str, str], str]


def _by_pair(records: Records, setting: Chooser, change: str = NONE) -> dict[Pair, list[Record]]:
    pairs: dict[Pair, list[Record]] = {}
    for run, record in records.items():
        if run.change == change and run.seed not in _NOT_SCORED and run.setting == setting(run.task, run.rule):
            pairs.setdefault((run.task, run.rule), []).append(record)
    return pairs


def cell(records: list[Record], lowest: float | None) -> str:
    """Return mean objective among met runs, marked if it is lowest or near, worst violation and met runs."""
    if not records:
        return "-"
    raised = sum("error" in r for r in records)
    met = f"{sum(r['met'] for r in records)}/{len(records)}" + (f", {raised} raised" if raised else "")
    worst = max((r["violation"] for r in records if "error" not in r), default=None)
    out = "" if worst is None else f", {100 * max(worst, 0.0):.1f} %"
    f = mean_objective(records)
    if f is None:
        return f"({met}{out})"
    shown = f"{f:.4f}" if f >= 0.1 else f"{f:.2g}"
    return (f"**{shown}**" if is_near(f, lowest) else shown) + f" ({met}{out})"


def is_near(f: float | None, lowest: float | None) -> bool:
    """Tell whether ``f`` is the lowest objective or within 2 % of it."""
    return f is not None and lowest is not None and f <= lowest + NEAR * abs(lowest)


def comparison(pairs: dict[Pair, list[Record]]) -> str:
    """Return the table of one choice of settings: a row per task, then the sums.

    Rules are compared on tasks that every rule has run on the same seeds; other tasks are shown and left out of bold
    and sums, which missing runs would distort.
    """
    rules = [name for name in RULES if any(rule == name for _, rule in pairs)]
    seen = [t for t in tasks.NAMES if any(task == t for task, _ in pairs)]
    complete = [t for t in seen if len({_seeds(pairs.get((t, rule), [])) for rule in rules}) == 1]
    rows, near = [], dict.fromkeys(rules, 0)
    for task in seen:
        means = {rule: mean_objective(pairs.get((task, rule), [])) for rule in rules}
        known = [f for f in means.values() if f is not None and task in complete]
        lowest = min(known, default=None)
        for rule in rules:
            near[rule] += is_near(means[rule], lowest)
        rows.append([task, *(cell(pairs.get((task, rule), []), lowest) for rule in rules)])
    total = {rule: [r for task in complete for r in pairs[task, rule]] for rule in rules}
    rows.append(["met", *(share(total[rule]) for rule in rules)])
    rows.append([f"lowest, or within {100 * NEAR:g} %", *(f"{near[rule]} of {len(complete)} tasks" for rule in rules)])
    text = markdown(["task", *rules], rows)
    if len(complete) < len(tasks.NAMES):
        missing = ", ".join(t for t in tasks.NAMES if t not in complete)
        text += f"\n\nNot complete: bold and the last two rows leave out {missing}, for which runs are missing."
    return text


def _seeds(records: list[Record]) -> frozenset[int]:
    return frozenset(r["seed"] for r in records)


def share(records: list[Record]) -> str:
    """Return how many of the runs met their limits."""
    if not records:
        return "-"
    met = sum(r["met"] for r in records)
    return f"{met} of {len(records)} ({100 * met / len(records):.0f} %)"


def sensitivity(records: Records) -> str:
    """Return the share of met runs under every change."""
    pick = {run: r for run, r in records.items() if run.change in training.SENSITIVITY}
    rules = [name for name in RULES if any(run.rule == name for run in pick)]

    def row(title: str, changes: Iterable[str]) -> list[str]:
        wanted = set(changes)
        found = {rule: [r for run, r in pick.items() if run.rule == rule and run.change in wanted] for rule in rules}
        return [title, *(share(found[rule]) for rule in rules)]

    rows = [row(change, [change]) for change in training.SENSITIVITY]
    return markdown(["change", *rules], [*rows, row("all", training.SENSITIVITY)])


def units(records: Records) -> str:
    """Return objective and violation of seed 0 in each unit, and by how much the objective moved at most."""
    pick = {run for run in records if run.change in training.UNITS}
    rows = []
    for task in tasks.NAMES:
        for rule in RULES:
            if not any((run.task, run.rule) == (task, rule) for run in pick):
                continue
            setting = RULES[rule].default
            found = [
                records.get(Run(task, rule, setting, 0, change)) for change in (training.AS_IT_IS, *training.UNITS)
            ]
            rows.append([task, rule, *(_plain(r) for r in found), moved(found)])
    return markdown(["task", "rule", training.AS_IT_IS, *training.UNITS, "f moves by"], rows)


def moved(records: list[Record | None]) -> str:
    """Return by how much the objective differs at most from the first record's, relative to it."""
    known = [r for r in records if r is not None]
    if len(known) < 2 or known[0] is not records[0] or any("error" in r for r in known):
        return "-"
    base = known[0]["objective"]
    return f"{100 * max(abs(r['objective'] - base) for r in known) / abs(base):.2g} %"


def _plain(record: Record | None) -> str:
    if record is None:
        return "-"
    if "error" in record:
        return "raised"
    f = record["objective"]
    return (f"{f:.4f}" if abs(f) >= 0.1 else f"{f:.2g}") + f" / {100 * max(record['violation'], 0.0):.3g} %"


def constants(records: Records) -> str:
    """Return what other values of our rule's constants do on the development tasks and seeds."""

    def runs(change: str) -> dict[tuple[str, int], Record]:
        found = {(r.task, r.seed): row for r, row in records.items() if r.rule == OURS and r.change == change}
        return {key: row for key, row in found.items() if key[1] in DEVELOPMENT_SEEDS}

    base, rows = runs(NONE), []
    for change in (NONE, *training.CONSTANTS):
        found = runs(change)
        both = [key for key, row in found.items() if row["met"] and base.get(key, {"met": False})["met"]]
        if both:
            logs = [math.log(found[key]["objective"] / base[key]["objective"]) for key in both]
            largest = max(both, key=lambda key: found[key]["objective"] / base[key]["objective"])
            worst = found[largest]["objective"] / base[largest]["objective"]
            means = f"{math.exp(statistics.fmean(logs)):.3f}", f"{worst:.2f} ({largest[0]})"
            rows.append([change, share(list(found.values())), *means])
    return markdown(["constant", "met", "f, relative, geometric mean", "largest"], rows)


def certificates(records: Records) -> str:
    """Return the relative stationarity of the certified runs."""
    found = {(run.task, run.rule): r for run, r in records.items() if "relative_stationarity" in r}
    rules = [rule for rule in RULES if any(name == rule for _, name in found)]
    rows = [
        [t, *(f"{found[t, rule]['relative_stationarity']:.2g}" if (t, rule) in found else "-" for rule in rules)]
        for t in tasks.NAMES if any(task == t for task, _ in found)
    ]  # fmt: skip
    return markdown(["task", *rules], rows)


def report(records: Records) -> str:
    """Return every table that there are records for."""
    chosen = best_settings(records)
    default = _by_pair(records, lambda _, rule: RULES[rule].default)
    best = _by_pair(records, lambda task, rule: chosen.get((task, rule), ""))
    parts = [
        "Defaults: mean objective among the runs that met every limit within 10 % (runs that met / runs, worst "
        f"violation of all runs). Bold: lowest, or within {100 * NEAR:g} % of it.\n\n" + comparison(default)
    ]
    if any(run.change == NONE and run.setting != RULES[run.rule].default for run in records):
        peers = [rule for rule in RULES if rule != OURS]
        settings = [
            [t, *(chosen.get((t, rule), "-") for rule in peers)] for t in tasks.NAMES if (t, peers[0]) in chosen
        ]
        parts.append(
            f"{OURS} with its default beside the best of each peer's four settings, chosen for each task on two other "
            "seeds\n\n"
            + comparison(best) + "\n\nThe settings chosen\n\n" + markdown(["task", *peers], settings)
        )  # fmt: skip
    if any(run.change in training.SENSITIVITY for run in records):
        parts.append("Sensitivity: runs that met every limit with defaults, under changes\n\n" + sensitivity(records))
    if any(run.change in training.UNITS for run in records):
        parts.append(
            "Units: objective / worst violation, seed 0, f or g multiplied, with Adam's eps of 1e-16\n\n"
            + units(records)
        )
    if any(run.change in training.CONSTANTS for run in records):
        parts.append(
            "Constants of our rule, on the tasks and seeds that chose them: runs that met every limit, and objective "
            "over that of the same run with the default\n\n" + constants(records)
        )
    if any("relative_stationarity" in r for r in records.values()):
        parts.append(
            "Relative stationarity on the whole training set with the best multipliers there are, seed 0\n\n"
            + certificates(records)
        )
    packages = dict.fromkeys(
        f"{name} {version}"
        for r in records.values()
        for name, version in r.get("about", {}).get("versions", {}).items()
        if name in PEERS
    )
    beside = f"Peers: {', '.join(packages)}.\n\n" if packages else ""
    return "\n\n".join([*parts, beside + told(list(records.values()))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=None, help="default: results/minibatch")
    found = study(parser.parse_args().records)
    text = report(by_run(found.rows()))
    found.write(text, TABLES)
    print(text)


if __name__ == "__main__":
    main()
