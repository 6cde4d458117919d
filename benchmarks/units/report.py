"""The table, from the saved records alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

from benchmarks.provenance import told
from benchmarks.units.runs import MAXITER, NEAR, OWN, RANDOM, SINGLE

ONE = "f 1e-8..1e8, g 1e-8..1e8, x 1e-6..1e6, one at a time"
#: What gdpa is to hold: the least share of right answers (other KKT points count); no false success; few denied.
GOALS = {ONE: 0.95, RANDOM: 0.90, OWN: 0.85}
MOST_DENIED = 0.02


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table in Markdown: one line for each change, one column for each solver.

    >>> print(table([{"solver": "gdpa", "problem": "p", "change": "none", "verdict": "right"}]).splitlines()[4])
    | none | 1 of 1, 0, 0 |
    """
    solvers = list(dict.fromkeys(r["solver"] for r in rows))
    problems = len({r["problem"] for r in rows})
    lines = [
        f"{problems} problems. In each cell: success and x within {100 * NEAR:g} % of the solution, of all runs; "
        "**success and x wrong**; the solution, but no success. Behind `+`: success at another KKT point. "
        f"Default tolerances, exact gradients, maxiter={MAXITER} for all.",
        "",
        f"| change | {' | '.join(solvers)} |",
        "|---" * (1 + len(solvers)) + "|",
    ]
    groups = {name: (name,) for name in SINGLE} | {ONE: tuple(SINGLE), RANDOM: (RANDOM,), OWN: (OWN,)}
    count = {
        (name, solver): Counter(r["verdict"] for r in rows if r["solver"] == solver and r["change"] in members)
        for name, members in groups.items()
        for solver in solvers
    }
    for name in groups:
        if any(count[name, solver] for solver in solvers):
            lines.append(f"| {name} | {' | '.join(_cell(count[name, solver]) for solver in solvers)} |")
    if "gdpa" in solvers:
        lines += ["", "gdpa against its goals:", ""]
        lines += [_goal(name, count[name, "gdpa"], least) for name, least in GOALS.items() if count[name, "gdpa"]]
    origin = told(rows)
    return "\n".join([*lines, "", origin] if origin else lines)


def _cell(verdicts: Counter[str]) -> str:
    wrong = f"**{verdicts['false']}**" if verdicts["false"] else "0"
    other = f" + {verdicts['other']}" if verdicts["other"] else ""
    return f"{verdicts['right']} of {verdicts.total()}, {wrong}, {verdicts['denied']}{other}"


def _goal(name: str, verdicts: Counter[str], least: float) -> str:
    n = verdicts.total()
    met = (
        verdicts["false"] == 0
        and verdicts["right"] + verdicts["other"] >= least * n
        and verdicts["denied"] <= MOST_DENIED * n
    )
    return (
        f"- {name}: right {100 * (verdicts['right'] + verdicts['other']) / n:.1f} % (at least {100 * least:g}), "
        f"false {verdicts['false']} (0), denied {100 * verdicts['denied'] / n:.1f} % (at most {100 * MOST_DENIED:g}): "
        f"{'met' if met else 'not met'}"
    )
