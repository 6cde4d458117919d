"""Tables of the minibatch study, from its records alone.

python -m benchmarks.minibatch.table [--records results/minibatch]
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.minibatch.run import KEY
from benchmarks.minibatch.tasks import NAMES, NEW
from benchmarks.provenance import Study, told

Record = dict[str, Any]


def cell(records: list[Record]) -> str:
    """Mean objective, worst violation in per cent of the limit, runs that met every limit."""
    if not records:
        return "-"
    f = statistics.mean(r["objective"] for r in records)
    worst = max(r["violation"] for r in records)
    return f"{f:.4f} / {100 * max(worst, 0.0):.1f} % ({sum(r['met'] for r in records)}/{len(records)})"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def defaults(records: list[Record]) -> str:
    by = defaultdict(list)
    for r in records:
        by[r["task"], r["rule"]].append(r)
    rules = list(dict.fromkeys(r["rule"] for r in records))
    rules.sort(key=lambda rule: rule != "gdpa")
    rows = [[t + (" (new)" if t in NEW else ""), *(cell(by[t, rule]) for rule in rules)] for t in NAMES]
    return markdown(["task", *rules], rows)


def certificates(records: list[Record]) -> str:
    seen = [r for r in records if "stationarity" in r]
    rules = sorted(dict.fromkeys(r["rule"] for r in seen), key=lambda rule: rule != "gdpa")
    by = {(r["task"], r["rule"]): f"{r['relative_stationarity']:.2g}" for r in seen}
    return markdown(["task", *rules], [[t, *(by.get((t, rule), "-") for rule in rules)] for t in NAMES])


def units(records: list[Record], base: list[Record]) -> str:
    by = {(r["task"], r["rule"], r["f_scale"], r["g_scale"]): r for r in records}
    by |= {(r["task"], r["rule"], 1.0, 1.0): r for r in base if r["seed"] == 0}
    scales = [(1.0, 1.0), (1.0, 100.0), (1.0, 0.01), (100.0, 1.0), (0.01, 1.0)]
    pairs = sorted(dict.fromkeys((r["task"], r["rule"]) for r in records), key=lambda p: (p[0], p[1] != "gdpa"))
    rows = []
    for task, rule in pairs:
        found = [by.get((task, rule, f, g)) for f, g in scales]
        texts = [f"{r['objective']:.4f} / {100 * max(r['violation'], 0.0):.1f} %" if r else "-" for r in found]
        rows.append([task, rule, *texts])
    return markdown(["task", "rule", "as it is", "g x 100", "g x 0.01", "f x 100", "f x 0.01"], rows)


def tuned(base: list[Record], tuning: list[Record]) -> str:
    by = defaultdict(list)
    for r in [*(r for r in base if r["seed"] == 0), *tuning]:
        by[r["task"], r["rule"]].append(r)
    rules = sorted(dict.fromkeys(rule for _, rule in by), key=lambda rule: rule != "gdpa")
    rows = []
    for task in NAMES:
        row = [task]
        for rule in rules:
            found = by[task, rule]
            met = [r for r in found if r["met"]]
            best = (
                min(met, key=lambda r: r["objective"])
                if met
                else min(found, key=lambda r: r["violation"], default=None)
            )
            text = (
                "-"
                if best is None
                else f"{best['objective']:.4f} / {100 * max(best['violation'], 0):.1f} % ({best['setting']})"
            )
            row.append(text)
        rows.append(row)
    return markdown(["task", *rules], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=None, help="default: results/minibatch")
    folder = parser.parse_args().records
    study, scaled, tuning = (
        Study("benchmarks.minibatch.run", "minibatch", KEY, suite, folder) for suite in ("defaults", "units", "tuning")
    )
    text = tables(study.rows(), scaled.rows(), tuning.rows())
    study.write(text, "tables.md")
    print(text)


def tables(base: list[Record], scaled: list[Record], tuning: list[Record]) -> str:
    """Return all tables of the study and what made their rows."""
    parts = [
        "Defaults: mean objective / worst violation in per cent of the limit (runs that met every limit within 10 %)",
        defaults(base),
        "Relative stationarity on the whole training set with the best multipliers there are, seed 0",
        certificates(base),
    ]
    if scaled:
        parts += ["Units: objective / violation when g or f is multiplied, seed 0", units(scaled, base)]
    if tuning:
        parts += ["Best of four settings each, seed 0", tuned(base, tuning)]
    return "\n\n".join([*parts, told([*base, *scaled, *tuning])])


if __name__ == "__main__":
    main()
