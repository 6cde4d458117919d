"""Tables and profiles from the saved records alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.provenance import told

LEVELS = ("0.01", "0.0001", "1e-06")


def table(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Share solved at each level and the medians over the solved, one line a solver, in Markdown."""
    wanted = set(names)
    lines = [
        f"{len(names)} problems; a problem counts as solved when the judge sees a KKT point within the budget. "
        "Percentages are of the problems run.",
        "",
        "| solver | problems run | 1e-2 | 1e-4 | 1e-6 "
        "| median forwards at 1e-4 | median backwards at 1e-4 | median seconds at 1e-4 | ended by the clock |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for solver in dict.fromkeys(r["solver"] for r in rows):
        mine = [r for r in rows if r["solver"] == solver and r["problem"] in wanted]
        if not mine:
            continue
        shares = [sum(level in r["hits"] for r in mine) for level in LEVELS]
        hits = [r["hits"]["0.0001"] for r in mine if "0.0001" in r["hits"]]
        medians = [
            f"{np.median([h[key] for h in hits]):{form}}" if hits else "none"
            for key, form in (("forwards", ".0f"), ("backwards", ".0f"), ("seconds", ".3f"))
        ]
        cells = [str(len(mine)), *(f"{s} ({100 * s / len(mine):.1f} %)" for s in shares)]
        late = sum(LEVELS[-1] not in r["hits"] and r.get("seconds", 0.0) >= r["budget"]["seconds"] for r in mine)
        clocks = " or ".join(f"{s:g}" for s in sorted({r["budget"]["seconds"] for r in mine}))
        lines.append(f"| {solver} | {' | '.join([*cells, *medians])} | {late}, of {clocks} s |")
    claims = [r["claim"] for r in rows if r["problem"] in wanted and "claim" in r]
    if claims:
        said = [c for c in claims if c["success"]]
        wrong, loose = (sum(not c[key] for c in said) for key in ("confirmed", "strict"))
        lines += [
            "",
            f"Asked for a certificate at 1e-6, AdaptiveGDPA said success on {len(said)} of {len(claims)} problems. The "
            f"same measure computed anew, apart from the library, disagreed on {wrong} of them; the judge's own rule "
            f"at 1e-4, for which every constraint with a multiplier has to be active to 1e-4, on {loose}.",
        ]
    if len({str(r["about"]["machine"]) for r in rows if "about" in r}) > 1:
        lines += ["", "The solvers ran on several machines, listed below: seconds compare on one machine only."]
    origin = told([r for r in rows if r["problem"] in wanted])
    return "\n".join([*lines, "", origin] if origin else lines)


def figures(rows: list[dict[str, Any]], names: list[str], out: Path) -> None:
    """Data profiles (share solved against forwards) and Dolan-More profiles (against the best solver), per level."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    wanted = set(names)
    run = Counter(r["solver"] for r in rows if r["problem"] in wanted)
    solvers = [solver for solver, count in run.items() if count == len(names)]  # the others' curves would say nothing
    cost = {
        (r["solver"], r["problem"], level): r["hits"][level]["forwards"]
        for r in rows
        if r["problem"] in wanted
        for level in LEVELS
        if level in r["hits"]
    }
    fig, axes = plt.subplots(2, 3, figsize=(15, 8.5), sharey=True, layout="constrained")
    colors = plt.get_cmap("tab20")
    for column, level in enumerate(LEVELS):
        best = {p: min((cost[s, p, level] for s in solvers if (s, p, level) in cost), default=np.inf) for p in names}
        for i, solver in enumerate(solvers):
            own = np.array([cost.get((solver, p, level), np.inf) for p in names])
            ratio = own / np.array([best[p] if np.isfinite(best[p]) else 1.0 for p in names])
            width = 2.6 if solver == "AdaptiveGDPA" else 1.3
            for row, values, top in ((0, own, 1000.0), (1, ratio, 1000.0)):
                x = np.concatenate([[1.0], np.sort(values[np.isfinite(values)]), [top]])
                y = np.concatenate([[0.0], np.arange(1, np.isfinite(values).sum() + 1), [np.isfinite(values).sum()]])
                axes[row, column].step(
                    x, y / len(names), where="post", label=solver, color=colors(i % 20), linewidth=width
                )
        axes[0, column].set(title=f"KKT {float(level):g}", xscale="log", xlabel="forwards", ylim=(0, 1))
        axes[1, column].set(xscale="log", xlabel="forwards / best solver's", ylim=(0, 1))
    for row in axes:
        row[0].set_ylabel("share solved")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    fig.savefig(out / "profiles.png", dpi=130)
    plt.close(fig)
