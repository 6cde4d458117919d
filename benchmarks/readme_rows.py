"""The rows of the README's table of results, from the records in ``results/`` alone.

    python -m benchmarks.readme_rows                  write the rows of the saved records into README.md
    python -m benchmarks.readme_rows --commands       print the commands that measure them, and what they take
    python -m benchmarks.readme_rows --run --jobs 16  run these commands at one clean commit, then write the rows

``--run`` refuses a changed source tree: all rows then name one commit.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.provenance import RESULTS, ROOT, Study, markdown
from gdpa.base.writing import write_whole
from gdpa.paper.provenance import about, commit_named
from gdpa.paper.records import Row

README = ROOT / "README.md"
BEGIN, END = "<!-- rows: made by python -m benchmarks.readme_rows -->\n", "\n<!-- end of rows -->"
HEAD = ("measured", "result", "command, commit")
#: Solvers of the first row; the figure of the README shows more.
SHOWN = ("AdaptiveGDPA", "SLSQP", "IPOPT")
#: Solvers of `benchmarks.nonlinear` that need a package of the extra "bench".
PEERS = {"IPOPT": "ipyopt", "NLopt MMA": "nlopt", "NLopt CCSAQ": "nlopt", "NLopt AUGLAG": "nlopt"}
#: Seconds that a command may take. The longest, Figures 1 and 2, computes for 4,600 CPU seconds.
LONGEST = 7200.0


@dataclass(frozen=True)
class Command:
    """A command that measures rows, and the CPU seconds that it took on one core."""

    words: tuple[str, ...]
    cpu_seconds: int

    def __str__(self) -> str:
        return " ".join(f'"{word}"' if " " in word else word for word in self.words)


def commands(jobs: int) -> list[Command]:
    """Return the commands that measure every row and both panels of the figure."""
    from benchmarks.nonlinear.solvers import SOLVERS

    present = [name for name in SOLVERS if name not in PEERS or find_spec(PEERS[name])]
    python, count = ("python", "-m"), ("--jobs", str(jobs))
    seeds = ("--seeds", "5", "--preset", "both")
    return [
        Command((*python, "benchmarks.nonlinear", "--again", *count, "--solvers", *present), 8400),
        Command((*python, "benchmarks.units", "--again", *count), 600),
        Command((*python, "gdpa", "reproduce", "mnpc", "budget", *seeds, *count, "--fresh", "--out", "results"), 4600),
        Command((*python, "benchmarks.front_page"), 60),
    ]


def nonlinear(results: Path) -> list[Sequence[str]]:
    """Return the rows of the nonlinear problems: solved problems, and claims of success."""
    rows = Study("", "nonlinear", ("solver", "problem"), out=results / "nonlinear").rows()
    by_solver = {name: [row for row in rows if row["solver"] == name] for name in SHOWN}
    problems = len(by_solver[SHOWN[0]])
    solved = [
        f"{name} {' and '.join(str(sum(level in row['hits'] for row in runs)) for level in ('0.0001', '1e-06'))}"
        for name, runs in by_solver.items()
    ]
    claims = [row["claim"] for row in by_solver[SHOWN[0]]]
    said = [claim for claim in claims if claim["success"]]
    wrong = sum(not claim["confirmed"] for claim in said)
    return [
        (
            f"{problems} S2MPJ problems, solved at 1e-4 and at 1e-6",
            ", ".join(solved),
            f"`python -m benchmarks.nonlinear`, {_commits(by_solver)}",
        ),
        (
            "claims of `success` at 1e-6 on the same problems, checked by separate code",
            f"{len(said)} claims, {wrong or 'none'} wrong",
            f"the same, {_commits({SHOWN[0]: by_solver[SHOWN[0]]})}",
        ),
    ]


def units(results: Path) -> list[Sequence[str]]:
    """Return the row of problems in other units."""
    rows = [row for row in Study("", "units", out=results / "units").rows() if row["change"] != "none"]
    count = {name: Counter(row["verdict"] for row in rows if row["solver"] == name) for name in _solvers(rows)}
    ours = count.pop("gdpa")
    others = [f"{name} {c['right']} and {c['false']}" for name, c in count.items()]
    problems = len({row["problem"] for row in rows})
    return [
        (
            f"{problems} problems with known solutions, {ours.total()} runs in other units: right, and false successes",
            f"gdpa {ours['right']} and {ours['false']}; {', '.join(others)}",
            f"`python -m benchmarks.units`, {_commits({'': rows})}",
        )
    ]


def figures(results: Path) -> list[Sequence[str]]:
    """Return the rows of the paper's Figures 1 and 2."""
    from gdpa.paper.contestants import METHODS, UNTUNED
    from gdpa.paper.records import Folder
    from gdpa.paper.sections import chosen, costs_to, median

    found: list[Sequence[str]] = []
    for figure, name in ((1, "mnpc"), (2, "budget")):
        records = Folder(results).read(name)
        seconds = {
            method: [median(costs_to(chosen(records, "tuned", method), level)) for level in (1e-1, 1e-2)]
            for method in METHODS
        }
        rivals = [method for method in METHODS if method not in (UNTUNED, "GDPA")]
        shown = [UNTUNED, "GDPA", min(rivals, key=lambda method: seconds[method])]
        found.append(
            (
                f"the paper's Figure {figure}, tuned constants, seconds to a KKT residual of 0.1 and 0.01",
                "; ".join(f"{method} {' and '.join(map(_seconds, seconds[method]))}" for method in shown),
                f"`gdpa reproduce {name} --seeds 5 --preset both`, "
                f"{_commits({'': [{'about': record.about} for record in records]})}",
            )
        )
    return found


PARTS: tuple[Callable[[Path], list[Sequence[str]]], ...] = (nonlinear, units, figures)


def table(results: Path = RESULTS) -> str:
    """Return the table of the README."""
    return markdown(HEAD, [row for part in PARTS for row in part(results)])


def inserted(readme: str, text: str) -> str:
    """Return the README with the table in its place.

    >>> inserted(f"a {BEGIN}old{END} b", "new") == f"a {BEGIN}new{END} b"
    True
    """
    before, found, rest = readme.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"README.md has no lines {BEGIN.strip()} and {END.strip()} around its table of results")
    return f"{before}{BEGIN}{text}{END}{after}"


def run(jobs: int) -> None:
    """Run every command at one clean commit."""
    if about("")["dirty"] is not False:
        sys.exit("the source differs from its commit, or has none; commit it first, so that every row names one commit")
    for command in commands(jobs):
        print(f"== {command}", flush=True)
        words = [sys.executable if word == "python" else word for word in command.words]
        subprocess.run(words, cwd=ROOT, check=True, timeout=LONGEST)
    subprocess.run([sys.executable, "-m", "benchmarks.studies"], cwd=ROOT, check=True, timeout=LONGEST)


def _solvers(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["solver"] for row in rows))


def _commits(groups: Mapping[str, Sequence[Row]]) -> str:
    """Name the commits of groups of records: one for all of them, or one for each.

    >>> _commits({"a": [{"about": {"commit": "1234567890"}}], "b": [{"about": {"commit": "1234567890"}}]})
    '1234567'
    """
    names = {
        group: " and ".join(dict.fromkeys(_short(commit_named(row["about"])) for row in rows))
        for group, rows in groups.items()
    }
    if len(set(names.values())) == 1:
        return next(iter(names.values()))
    return ", ".join(f"{group} {name}" for group, name in names.items())


def _short(commit: str) -> str:
    return re.sub(r"^([0-9a-f]{7})[0-9a-f]*", r"\1", commit)


def _seconds(value: float) -> str:
    return "not reached" if math.isinf(value) else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run the commands first")
    parser.add_argument("--commands", action="store_true", help="print the commands and do nothing")
    parser.add_argument("--jobs", type=int, default=1, help="processes of each command")
    options = parser.parse_args()
    if options.commands:
        for command in commands(options.jobs):
            print(f"{command.cpu_seconds:>6} CPU s, about {command.cpu_seconds / options.jobs / 60:.0f} min: {command}")
        return
    if options.run:
        run(options.jobs)
    write_whole(README, inserted(README.read_text(encoding="utf-8"), table()).encode())


if __name__ == "__main__":
    main()
