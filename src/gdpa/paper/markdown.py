"""A section of the report as Markdown, for the documentation to include: its numbers then come from records."""

from __future__ import annotations

import math
import re
from typing import Any

from gdpa.paper.base import Section, Table, Verdict

WORDS = {True: "Holds", False: "Does not hold", None: "Not clear-cut"}


def show(value: Any) -> str:
    """Return a table's cell as text.

    >>> show(0.00012345), show(None), show("a < b"), show(10.0), show(float("nan"))
    ('1.23e-04', '', 'a < b', '10', '–')
    """
    if value is None:
        return ""
    if isinstance(value, float):
        if not math.isfinite(value):
            return "–"
        return f"{value:.2e}" if value and (abs(value) < 1e-3 or abs(value) >= 1e5) else f"{value:.4g}"
    return str(value)


def escape(text: str) -> str:
    """Return the text on one line and without HTML: what looks like a tag or an entity is shown as it is written.

    >>> escape("<script>alert(1)</script> for x < 1 &amp; g <= 0")
    '&lt;script>alert(1)&lt;/script> for x < 1 &amp;amp; g <= 0'
    """
    text = re.sub(r"&(?=#?\w+;)", "&amp;", " ".join(text.split()))
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def code(text: str) -> str:
    """Return the text as inline code, whatever backticks are in it.

    >>> code("gdpa report out"), code("a `b` c")
    ('`gdpa report out`', '`` a `b` c ``')
    """
    text = " ".join(text.split())
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if len(fence) > 1 else f"`{text}`"


def to_markdown(section: Section, command: str, origin: str) -> str:
    """Return the section's words, tables and verdicts, with the command that makes them.

    >>> print(to_markdown(Section("Two runs.", (), (Table("T", ("a", "b"), ((1, 0.5),)),), ()), "gdpa x", "Linux"))
    Two runs.
    <BLANKLINE>
    Command: `gdpa x`. Linux
    <BLANKLINE>
    **T**
    <BLANKLINE>
    | a | b |
    |---|---|
    | 1 | 0.5 |
    <BLANKLINE>
    """
    blocks = [escape(section.introduction), f"Command: {code(command)}. {escape(origin)}".rstrip()]
    for table in section.tables:
        if table.rows:
            blocks += [f"**{escape(table.caption)}**", _table(table)]
    blocks += [_verdict(verdict) for verdict in section.verdicts]
    return "\n\n".join(blocks) + "\n"


def _table(table: Table) -> str:
    rows = [table.head, ["---"] * len(table.head), *table.rows]
    cells = [[escape(show(cell)).replace("|", "\\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    lines[1] = "|" + "---|" * len(table.head)
    return "\n".join(lines)


def _verdict(verdict: Verdict) -> str:
    return f"**{WORDS[verdict.holds]}: {escape(verdict.claim)}** {escape(verdict.words)}"
