"""The constraints at a certified point as a table, for print and for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from gdpa.base.arrays import to_numpy
from gdpa.base.text import number
from gdpa.core.certificate import Certificate, violation

#: A longer table shows this many rows, the most important ones.
MOST_ROWS = 12
#: A longer name is cut.
LONGEST_NAME = 40
HEAD = ("constraint", "value", "violation", "multiplier", "")


class Row(NamedTuple):
    """One constraint at a certified point.

    Attributes:
        place: i, counted from 0.
        name: its name, or ``g[i]``.
        value: g_i.
        violation: [g_i]_+, or |g_i| for an equality.
        multiplier: lambda_i.
        mark: "violated" beyond the tolerance, "active" at its limit to the tolerance, "not finite", or "".

    A value that the problem's precision cannot distinguish from zero is 0.
    """

    place: int
    name: str
    value: float
    violation: float
    multiplier: float
    mark: str


def constraint_rows(certificate: Certificate, tolerance: float) -> tuple[Row, ...]:
    """Return one row for each constraint: violated ones first, then active ones, the worst of each first.

    A constraint is violated or active in its own unit, as the certificate judges it (`gdpa.core.units.Units`). A batch
    has no rows.

    >>> from gdpa import certify, problems
    >>> disc = problems.get("disc-product")
    >>> (row,) = constraint_rows(certify(disc.problem, disc.solution), 1e-6)
    >>> row.name, round(row.multiplier, 6), row.mark
    ('g[0]', 0.5, 'active')
    """
    g, multipliers = to_numpy(certificate.constraints), to_numpy(certificate.multipliers)
    if g.ndim != 1:
        return ()
    units = [to_numpy(weight) for weight in certificate.units]
    _, c, a, rounding, pushes = units
    eps = float(np.finfo(g.dtype).eps)
    value = np.where(np.abs(g) <= rounding, 0.0, g)
    multiplier = np.where(np.abs(pushes * multipliers) <= eps, 0.0, multipliers)
    excess = violation(value, certificate.num_equalities)
    finite = np.isfinite(g) & np.isfinite(multipliers)
    violated = finite & ~(c * excess <= tolerance)
    active = finite & ~violated & (a * np.abs(value) <= tolerance)
    mark = np.select([~finite, violated, active], ["not finite", "violated", "active"], "")
    importance = np.where(violated, -c * excess, np.where(active, -np.abs(pushes * multiplier), a * np.abs(value)))
    order = np.lexsort((importance, np.select([~finite, violated, active], [0, 1, 2], 3)))
    columns = (value.tolist(), excess.tolist(), multiplier.tolist(), mark.tolist())
    rows = [Row(i, certificate.constraint_name(i), *row) for i, row in enumerate(zip(*columns, strict=True))]
    return tuple(rows[i] for i in order)


def most_violated(certificate: Certificate, tolerance: float, count: int = 3) -> str:
    """Return the names and violations of the most violated constraints as half a sentence; "" if none is violated."""
    rows = [row for row in constraint_rows(certificate, tolerance) if row.mark == "violated"]
    named = [f"{row.name} by {number(row.violation, 3)}" for row in rows[:count]]
    more = [f"and {len(rows) - count} more"] if len(rows) > count else []
    return ", ".join(named + more)


def text_table(rows: Sequence[Row]) -> list[str]:
    r"""Return the lines of the table, the rows in their own order unless there are more than `MOST_ROWS`.

    >>> print("\n".join(text_table([Row(0, "disc", 0.0, 0.0, 0.5, "active")])))
    constraint  value  violation  multiplier
    disc            0          0         0.5  active
    """
    if not rows:
        return []
    cells = [HEAD, *(_cells(row) for row in _shown(rows))]
    wide = [max(len(line[k]) for line in cells) for k in range(len(HEAD))]
    lines = []
    for name, *numbers, mark in cells:
        right = (text.rjust(width) for text, width in zip(numbers, wide[1:], strict=False))
        lines.append("  ".join((name.ljust(wide[0]), *right, mark)).rstrip())
    return lines + ([f"... and {len(rows) - MOST_ROWS} more"] if len(rows) > MOST_ROWS else [])


def html_table(rows: Sequence[Row]) -> str:
    """Return the table as HTML that needs nothing else."""
    if not rows:
        return ""
    head = "".join(f"<th>{cell}</th>" for cell in HEAD)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(row)) + "</tr>" for row in _shown(rows)
    )
    more = f"<p>... and {len(rows) - MOST_ROWS} more</p>" if len(rows) > MOST_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _shown(rows: Sequence[Row]) -> Sequence[Row]:
    return rows[:MOST_ROWS] if len(rows) > MOST_ROWS else sorted(rows)


def _cells(row: Row) -> tuple[str, ...]:
    name = row.name if len(row.name) <= LONGEST_NAME else row.name[: LONGEST_NAME - 3] + "..."
    return name, *(number(value, 4) for value in row[2:5]), row.mark
