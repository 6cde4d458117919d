"""The tables of the banded problems, from the records alone."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.banded.solvers import SOLVERS
from benchmarks.provenance import told

Row = dict[str, Any]


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if "seconds" not in row:
        return "not in time"
    text = f"{_number(row['seconds'])} s, {row['steps']}"
    return text if row["solved"] else f"{text}, missed ({row['worst']:.0e})"


def _exponent(rows: list[Row], value: str) -> float:
    """Return the exponent of growth between the smallest and the largest n, by least squares in logarithms."""
    points = [(math.log(row["n"]), math.log(max(_value(row, value), 1e-9))) for row in rows]
    mean_n, mean_v = (sum(p[i] for p in points) / len(points) for i in (0, 1))
    return sum((a - mean_n) * (b - mean_v) for a, b in points) / sum((a - mean_n) ** 2 for a, _ in points)


def _value(row: Row, value: str) -> float:
    return float(row["seconds"]) / max(row["steps"], 1) if value == "seconds a step" else float(row[value])


def tables(rows: list[Row]) -> dict[str, str]:
    """Return the table of seconds and steps, with growth and the ratio to IPOPT."""
    found = {(row["family"], row["n"], row["solver"]): row for row in rows}
    families = list(dict.fromkeys(row["family"] for row in rows))
    sizes = sorted({row["n"] for row in rows})
    lines = [f"| family | n | {' | '.join(SOLVERS)} | gdpa over IPOPT, limited memory | MB of gdpa |"]
    lines.append("|---" * (len(SOLVERS) + 4) + "|")
    for family in families:
        for n in sizes:
            cells = [found.get((family, n, solver)) for solver in SOLVERS]
            ours, peer = cells[0], cells[2]
            ratio = (
                ours["seconds"] / peer["seconds"] if ours and peer and "seconds" in ours and "seconds" in peer else None
            )
            megabytes = f"{ours['megabytes']:.0f}" if ours and "megabytes" in ours else ""
            texts = [_cell(cell) for cell in cells]
            lines.append(
                f"| {family} | {n:,} | {' | '.join(texts)} | {'' if ratio is None else f'{ratio:.2f}'} | {megabytes} |"
            )
    growth = ["| family | seconds a step grow by | megabytes grow by |", "|---|---|---|"]
    for family in families:
        large = [
            row for (f, n, s), row in found.items() if f == family and s == "gdpa" and n >= 1000 and "seconds" in row
        ]
        if len({row["n"] for row in large}) > 1:
            steps, memory = (_exponent(large, value) for value in ("seconds a step", "megabytes"))
            growth.append(f"| {family} | n^{steps:.2f} | n^{memory:.2f} |")
    origin = told(rows)
    return {name: "\n".join([*part, "", origin]) for name, part in (("table.md", lines), ("growth.md", growth))}
