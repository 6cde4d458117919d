"""The report, one HTML file that opens offline: the claims with our verdicts, then experiments with curves and tables.

The tables and verdicts of an experiment are also written as Markdown, for the documentation to include. The page itself
is the template ``report.html`` beside this file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gdpa.paper import EXPERIMENTS, get
from gdpa.paper.base import OutputError, Section, UsageError
from gdpa.paper.figures import Chart, save, to_svg, without_declaration
from gdpa.paper.provenance import commit_named, versions_named
from gdpa.paper.records import Folder, Record

WORDS = {True: "Holds", False: "Does not hold", None: "Not clear-cut"}
#: The class of a verdict in the style sheet.
KINDS = {True: "holds", False: "fails", None: ""}


class Part(NamedTuple):
    """An experiment in the report, with the last command and how many of its units have no record yet.

    ``pictures`` holds each chart that has panels, with its SVG and the names of its files.
    """

    name: str
    title: str
    section: Section
    pictures: Sequence[tuple[Chart, Markup, list[str]]]
    command: str
    missing: int
    total: int
    origin: str


def write_report(folder: Folder) -> Path:
    """Draw every figure of the folder as PNG and SVG, write ``report.html``, and return its path.

    Beside the figures of an experiment, ``NAME/summary.md`` holds its tables and verdicts for the documentation.

    Raises:
        UsageError: if the folder holds no records.
    """
    present = [name for name in EXPERIMENTS if name in folder.experiments()]
    if not present:
        raise UsageError(f"{folder.path} holds no records; fill it with: gdpa reproduce all --out {folder.path}")
    parts = [_part(folder, name) for name in present]
    verdicts = [(part, verdict) for part in parts for verdict in part.section.verdicts]
    claims = {
        "The paper's claims": [(part, verdict) for part, verdict in verdicts if not verdict.ours],
        "Claims of this library": [(part, verdict) for part, verdict in verdicts if verdict.ours],
    }
    pages = Environment(loader=PackageLoader("gdpa.paper", ""), autoescape=True, undefined=StrictUndefined)
    pages.globals.update(words=WORDS, kinds=KINDS, anchor=anchor, show=show)
    page = pages.get_template("report.html").render(folder=folder.path, claims=claims.items(), parts=parts)
    return folder.write_text("report.html", page)


def anchor(experiment: str, title: str) -> str:
    """Return the id of a heading."""
    return "-".join([experiment, *re.findall(r"[a-z0-9]+", title.lower())])


def _part(folder: Folder, name: str) -> Part:
    """Return an experiment's part of the report, and write its figures and its summary."""
    run, records, experiment = folder.run(name), folder.read(name), get(name)
    section, origin, total = experiment.section(records), _origin(records), len(run["units"])
    folder.write_text(Path(name) / "summary.md", to_markdown(section, run["command"], origin))
    pictures = [(chart, *_picture(folder, name, chart)) for chart in section.charts if chart.panels]
    return Part(name, experiment.title, section, pictures, run["command"], total - len(records), total, origin)


def _picture(folder: Folder, name: str, chart: Chart) -> tuple[Markup, list[str]]:
    """Draw a chart; return its SVG for wide and for narrow pages and the names of its files."""
    try:
        paths = save(chart, folder.path / name / "figures")
    except OSError as error:
        raise OutputError(f"cannot write the figure {chart.name}: {error.strerror}; choose another folder") from error
    shown = without_declaration("".join(path.read_text("utf-8") for path in paths if path.suffix == ".svg"))
    if min(chart.columns, len(chart.panels)) == 1:
        shown = f'<div class="single">{shown}</div>'
    else:
        narrow = without_declaration(to_svg(replace(chart, name=f"{chart.name}-narrow", title="", columns=1)))
        shown = f'<div class="wide">{shown}</div><div class="narrow">{narrow}</div>'
    return Markup(shown), [str(path.relative_to(folder.path)) for path in paths]


def summary(folder: Folder, name: str) -> str:
    """Return an experiment's tables and verdicts as Markdown."""
    records = folder.read(name)
    return to_markdown(get(name).section(records), folder.run(name)["command"], _origin(records))


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
    """Return the section's words, tables and verdicts, with the command that makes them."""
    blocks = [escape_markdown(section.introduction), f"Command: {code(command)}. {escape_markdown(origin)}".rstrip()]

    def line(row: Sequence[Any]) -> str:
        cells = [escape_markdown(show(cell)).replace("|", "\\|") for cell in row]
        return f"| {' | '.join(cells)} |"

    for table in section.tables:
        if table.rows:
            lines = [line(table.head), "|" + "---|" * len(table.head), *map(line, table.rows)]
            blocks += [f"**{escape_markdown(table.caption)}**", "\n".join(lines)]
    for verdict in section.verdicts:
        blocks.append(escape_markdown(f"**{WORDS[verdict.holds]}: {verdict.claim}** {verdict.words}"))
    return "\n\n".join(blocks) + "\n"
