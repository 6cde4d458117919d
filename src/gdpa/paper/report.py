"""The report, one HTML file that opens offline: the claims with our verdicts, then experiments with curves and tables.

The tables and verdicts of an experiment are also written as Markdown, for the documentation to include.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import plotly

from gdpa.paper import EXPERIMENTS, figures, get
from gdpa.paper.base import OutputError, Section, UsageError
from gdpa.paper.figures import Chart, save, to_html
from gdpa.paper.provenance import commit_named, versions_named
from gdpa.paper.records import Folder, Record

STYLE = """
body { font-family: system-ui, sans-serif; color: #222; max-width: 76rem; margin: 2rem auto; padding: 0 1.5rem;
       line-height: 1.5; }
h1 { margin-bottom: 0; } h2 { margin-top: 3rem; border-bottom: 2px solid #0072B2; } .lead, .caption { color: #555; }
code { background: #f3f3f3; padding: 0.1em 0.35em; border-radius: 3px; }
a { color: #0072B2; } nav ul { columns: 22rem; padding-left: 1.2rem; } nav ul ul { columns: auto; font-size: 0.92rem; }
nav li { break-inside: avoid; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.82rem; margin: 0.5rem 0 1rem; }
th, td { padding: 0.25rem 0.5rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top; }
td { font-variant-numeric: tabular-nums; } th { background: #f7f7f7; }
th:first-child, td:first-child, .claims th, .claims td { text-align: left; }
.claims { font-size: 0.95rem; } .claims td:last-child { white-space: nowrap; font-weight: 600; }
td.holds { color: #00785A; } td.fails { color: #B34700; }
.verdict { border-left: 6px solid #999; padding: 0.4rem 1rem; margin: 0.8rem 0; background: #fafafa; }
.verdict.holds { border-color: #009E73; } .verdict.fails { border-color: #D55E00; } .verdict b { display: block; }
figure { margin: 1.5rem 0; } figcaption { font-size: 0.92rem; }
"""

WORDS = {True: "Holds", False: "Does not hold", None: "Not clear-cut"}
#: The class of a verdict in the style sheet.
KINDS = {True: "holds", False: "fails", None: ""}

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>gdpa: report</title>
<style>$style</style>
$head
</head>
<body>
<h1>gdpa: report</h1>
<p class="lead">Drawn from the records in this folder; <code>gdpa report $folder</code> draws it again.</p>
$claims
<nav><h2>Contents</h2>$contents</nav>
$sections
</body>
</html>
""")


def write_report(folder: Folder) -> Path:
    """Draw every figure of the folder as PNG and SVG, write ``report.html``, and return its path.

    Beside the figures of an experiment, ``NAME/summary.md`` holds its tables and verdicts for the documentation.

    Raises:
        UsageError: if the folder holds no records.
    """
    present = [name for name in EXPERIMENTS if name in folder.experiments()]
    if not present:
        raise UsageError(f"{folder.path} holds no records; fill it with: gdpa reproduce all --out {folder.path}")
    found = {name: folder.read(name) for name in present}
    sections = {name: get(name).section(records) for name, records in found.items()}
    library = (files(plotly) / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    page = PAGE.substitute(
        style=STYLE,
        head=f"<style>{figures.STYLE}</style>\n<script>{library}</script>\n<script>{figures.SCRIPT}</script>",
        folder=escape(str(folder.path)),
        claims=_claims(sections),
        contents=_contents(sections),
        sections="\n".join(_experiment(folder, name, found[name], section) for name, section in sections.items()),
    )
    return folder.write_text("report.html", page)


def _claims(sections: Mapping[str, Section]) -> str:
    """Return the claims of the paper and our own with the verdicts on them."""
    parts = []
    for title, ours in (("The paper's claims", False), ("Claims of this library", True)):
        rows = [
            f'<tr><td>{escape(verdict.claim)}</td><td><a href="#{name}">{escape(get(name).title)}</a></td>'
            f'<td class="{KINDS[verdict.holds]}">{WORDS[verdict.holds]}</td></tr>'
            for name, section in sections.items()
            for verdict in section.verdicts
            if verdict.ours == ours
        ]
        if rows:
            parts.append(f"<h2>{title}</h2>{_html_table(('claim', 'experiment', 'verdict'), rows, ' class=claims')}")
    return "\n".join(parts)


def _html_table(head: Sequence[str], rows: Sequence[str], attributes: str = "") -> str:
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    return (
        f'<div class="scroll"><table{attributes}><thead><tr>{cells}</tr></thead>'
        f"<tbody>{chr(10).join(rows)}</tbody></table></div>"
    )


def _contents(sections: Mapping[str, Section]) -> str:
    """Return a list of links to the experiments, their figures and their tables."""
    items = []
    for name, section in sections.items():
        parts = [chart.title for chart in section.charts if chart.panels]
        parts += [table.caption for table in section.tables if table.rows]
        parts += ["Verdict"] if section.verdicts else []
        links = "".join(f'<li><a href="#{_anchor(name, part)}">{escape(part)}</a></li>' for part in parts)
        items.append(f'<li><a href="#{name}">{escape(get(name).title)}</a><ul>{links}</ul></li>')
    return f"<ul>{''.join(items)}</ul>"


def _anchor(experiment: str, title: str) -> str:
    """Return the id of a heading.

    >>> _anchor("rate", "Slopes, by tau (first seed)")
    'rate-slopes-by-tau-first-seed'
    """
    return "-".join([experiment, *re.findall(r"[a-z0-9]+", title.lower())])


def _heading(experiment: str, title: str) -> str:
    return f'<h3 id="{_anchor(experiment, title)}">{escape(title)}</h3>'


def _experiment(folder: Folder, name: str, records: list[Record], section: Section) -> str:
    run, origin = folder.run(name), _origin(records)
    missing, total = len(run["units"]) - len(records), len(run["units"])
    parts = [f'<section id="{name}"><h2>{escape(get(name).title)}</h2>', f"<p>{escape(section.introduction)}</p>"]
    if missing:
        parts.append(
            f"<p><b>Incomplete:</b> {missing} of {total} units have no record yet; the command below runs them.</p>"
        )
    parts.append(f"<p>Command: <code>{escape(run['command'])}</code></p>")
    parts += [_chart(folder, name, chart) for chart in section.charts if chart.panels]
    for table in section.tables:
        if table.rows:
            rows = [f"<tr>{''.join(f'<td>{escape(show(cell))}</td>' for cell in row)}</tr>" for row in table.rows]
            parts.append(_heading(name, table.caption) + _html_table(table.head, rows))
    parts += [_heading(name, "Verdict")] if section.verdicts else []
    for verdict in section.verdicts:
        head = escape(f"{WORDS[verdict.holds]}: {verdict.claim}")
        parts.append(f'<div class="verdict {KINDS[verdict.holds]}"><b>{head}</b>{escape(verdict.words)}</div>')
    parts += [f'<p class="caption">{escape(origin)}</p>', "</section>"]
    folder.write_text(Path(name) / "summary.md", to_markdown(section, run["command"], origin))
    return "\n".join(parts)


def summary(folder: Folder, name: str) -> str:
    """Return an experiment's tables and verdicts as Markdown."""
    records = folder.read(name)
    return to_markdown(get(name).section(records), folder.run(name)["command"], _origin(records))


def _chart(folder: Folder, name: str, chart: Chart) -> str:
    try:
        paths = save(chart, folder.path / name / "figures")
    except OSError as error:
        raise OutputError(f"cannot write the figure {chart.name}: {error.strerror}; choose another folder") from error
    files = ", ".join(f"<code>{escape(str(path.relative_to(folder.path)))}</code>" for path in paths)
    return (
        f"<figure>{_heading(name, chart.title)}{to_html(chart)}"
        f'<figcaption class="caption">{escape(chart.caption)} Files: {files}.</figcaption></figure>'
    )


def _origin(records: list[Record]) -> str:
    """Name the commits, versions and the machine of the records."""
    if not records:
        return ""
    commits, about = sorted({commit_named(record.about) for record in records}), records[-1].about
    seconds = sum(record.about["seconds"] for record in records)
    machine = f"{about['machine']['system']}, {about['machine']['cores']} cores"
    return (
        f"{len(records)} units, {seconds:.0f} s in all; commit {', '.join(commits)}; {versions_named(about)}; "
        f"{machine}; last record {about['time']}."
    )


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


def escape_markdown(text: str) -> str:
    """Return the text on one line and without HTML: text that looks like a tag or an entity is shown as it is written.

    >>> escape_markdown("<script>alert(1)</script> for x < 1 &amp; g <= 0")
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

    >>> from gdpa.paper.base import Table
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
    blocks = [escape_markdown(section.introduction), f"Command: {code(command)}. {escape_markdown(origin)}".rstrip()]
    for table in section.tables:
        if table.rows:
            cells = [
                [escape_markdown(show(cell)).replace("|", "\\|") for cell in row] for row in (table.head, *table.rows)
            ]
            head, *rows = [f"| {' | '.join(row)} |" for row in cells]
            lines = "\n".join([head, "|" + "---|" * len(table.head), *rows])
            blocks += [f"**{escape_markdown(table.caption)}**", lines]
    for verdict in section.verdicts:
        claim = escape_markdown(f"{WORDS[verdict.holds]}: {verdict.claim}")
        blocks.append(f"**{claim}** {escape_markdown(verdict.words)}")
    return "\n\n".join(blocks) + "\n"
