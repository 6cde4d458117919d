"""One HTML file that opens offline: interactive curves, tables, verdicts, and the command behind each figure."""

from __future__ import annotations

from html import escape
from pathlib import Path
from string import Template
from typing import Any

from gdpa.experiments import EXPERIMENTS, get
from gdpa.experiments.base import OutputError, Section, Table, UsageError, Verdict
from gdpa.experiments.figures.chart import Chart, save
from gdpa.experiments.figures.interactive import to_html
from gdpa.experiments.markdown import WORDS, show, to_markdown
from gdpa.experiments.provenance import commit_named, versions_named
from gdpa.experiments.records import Folder, Record

STYLE = """
body { font-family: system-ui, sans-serif; color: #222; max-width: 76rem; margin: 2rem auto; padding: 0 1.5rem;
       line-height: 1.5; }
h1 { margin-bottom: 0; } h2 { margin-top: 3rem; border-bottom: 2px solid #0072B2; } .lead, .caption { color: #555; }
code { background: #f3f3f3; padding: 0.1em 0.35em; border-radius: 3px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.9rem; margin: 0.5rem 0 1rem; }
th, td { padding: 0.25rem 0.7rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { background: #f7f7f7; white-space: normal; }
.verdict { border-left: 6px solid #999; padding: 0.4rem 1rem; margin: 0.8rem 0; background: #fafafa; }
.holds { border-color: #009E73; } .fails { border-color: #D55E00; } .verdict b { display: block; }
figure { margin: 1.5rem 0; } figcaption { font-size: 0.92rem; }
"""

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>gdpa: report</title>
<style>$style</style>
<script>$plotly</script>
</head>
<body>
<h1>gdpa: report</h1>
<p class="lead">Drawn from the records in this folder; <code>gdpa report $folder</code> draws it again.</p>
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
    from plotly.offline import get_plotlyjs

    present = [name for name in EXPERIMENTS if name in folder.experiments()]
    if not present:
        raise UsageError(f"{folder.path} holds no records; fill it with: gdpa reproduce all --out {folder.path}")
    sections = [_experiment(folder, name) for name in present]
    page = PAGE.substitute(
        style=STYLE, plotly=get_plotlyjs(), folder=escape(str(folder.path)), sections="\n".join(sections)
    )
    return folder.write_text("report.html", page)


def _experiment(folder: Folder, name: str) -> str:
    experiment, run, records = get(name), folder.run(name), folder.read(name)
    section = experiment.section(records)
    missing = len(run["units"]) - len(records)
    parts = [f'<section id="{name}"><h2>{escape(experiment.TITLE)}</h2>', f"<p>{escape(section.introduction)}</p>"]
    if missing:
        parts.append(
            f"<p><b>Incomplete:</b> {missing} of {len(run['units'])} units have no record yet; "
            "the command below runs them.</p>"
        )
    parts.append(f"<p>Command: <code>{escape(run['command'])}</code></p>")
    parts += [_chart(folder, name, chart) for chart in section.charts if chart.panels]
    parts += [_table(table) for table in section.tables if table.rows]
    parts += _verdicts(section)
    origin = _origin(records)
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
        f"<figure><h3>{escape(chart.title)}</h3>{to_html(chart)}"
        f'<figcaption class="caption">{escape(chart.caption)} Files: {files}.</figcaption></figure>'
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    rows = "\n".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return (
        f'<h3>{escape(table.caption)}</h3><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(value: Any) -> str:
    """Format a table's cell.

    >>> _cell(0.00012345), _cell(None), _cell("a < b"), _cell(10.0)
    ('1.23e-04', '', 'a &lt; b', '10')
    """
    return escape(show(value))


def _verdicts(section: Section) -> list[str]:
    if not section.verdicts:
        return []
    return ["<h3>Verdict</h3>", *(_verdict(verdict) for verdict in section.verdicts)]


def _verdict(verdict: Verdict) -> str:
    kind = {True: "holds", False: "fails", None: ""}[verdict.holds]
    head = f"{WORDS[verdict.holds]}: {verdict.claim}"
    return f'<div class="verdict {kind}"><b>{escape(head)}</b>{escape(verdict.words)}</div>'


def _origin(records: list[Record]) -> str:
    """Say where the records were made."""
    if not records:
        return ""
    commits = sorted({commit_named(record.about) for record in records})
    about = records[-1].about
    seconds = sum(record.about["seconds"] for record in records)
    machine = f"{about['machine']['system']}, {about['machine']['cores']} cores"
    return (
        f"{len(records)} units, {seconds:.0f} s in all; commit {', '.join(commits)}; {versions_named(about)}; "
        f"{machine}; last record {about['time']}."
    )
