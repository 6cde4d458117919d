"""Check that every table which a page includes says what it is a measurement of: ``make check-results``.

    python -m benchmarks.check_results [--fast]       --fast: do not draw the tables again from their records

A table passes if its study is declared in `benchmarks.studies`, if it names a commit, a command and versions, if every
line of the study's records is undamaged, and if the records give the same table. For each table one line tells whether
the code that it measures has changed since: a reader should know, and the next release should measure it again.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from benchmarks.provenance import RESULTS, ROOT
from benchmarks.studies import STUDIES
from gdpa.paper.records import NAME, RecordFile

INCLUDE = re.compile(r"""^\s*-+8<-+\s+["'](?:results/)(?P<table>[^"']+\.md)["']""", re.M)
COMMIT = re.compile(r"\bcommit (?P<commit>[0-9a-f]{7,40})\b")
COMMAND = re.compile(r"`(?:python|gdpa) [^`]+`")
VERSIONS = re.compile(r"\bnumpy \d+\.\d+")
GIT_TIMEOUT = 60.0


def included(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the tables that pages include, as paths under ``results/``, each with the pages."""
    found: dict[str, list[str]] = {}
    for page in sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")]):
        for match in INCLUDE.finditer(page.read_text(encoding="utf-8")):
            found.setdefault(match["table"], []).append(page.relative_to(root).as_posix())
    return found


def faults(table: str, results: Path = RESULTS) -> Iterator[str]:
    """Yield what a table lacks."""
    path = results / table
    if path.parent.name not in STUDIES:
        yield "its study is not declared in benchmarks/studies.py"
    if not path.exists():
        yield "there is no such file"
        return
    text = path.read_text(encoding="utf-8")
    for what, pattern in (("commit", COMMIT), ("command", COMMAND), ("versions", VERSIONS)):
        if not pattern.search(text):
            yield f"it names no {what}"


def damage(study: str, results: Path = RESULTS) -> list[str]:
    """Return a sentence for each damaged line of a study's records, and one if there are none."""
    complaints: list[str] = []
    file = RecordFile(results / study / NAME, complaints.append)
    if not file.rows():
        complaints.append(f"{file.path}: there are no records")
    return complaints


def differences(study: str, results: Path = RESULTS) -> Iterator[str]:
    """Yield the tables of a study that its records do not give."""
    for name, text in STUDIES[study].draw(results).items():
        path = results / study / name
        if not path.exists() or path.read_text(encoding="utf-8").rstrip() != text.rstrip():
            yield f"{study}/{name}: its records give another table; write it by python -m benchmarks.studies {study}"


def age(commit: str, measures: tuple[str, ...], root: Path = ROOT) -> str:
    """Say whether the code that was measured at ``commit`` has changed since."""
    if not has_history(root):
        return f"measured at {commit}; there is no git history here that would tell what has changed since"
    if not _git(root, "cat-file", "-e", f"{commit}^{{commit}}"):
        return f"measured at {commit}, which is not in this history"
    log = ("log", "--no-merges", "--format=%h", f"{commit}..HEAD", "--", *measures)
    since = (_git(root, *log) or "").split()
    if not since:
        return f"measured at {commit}; the code it measures is the same"
    return f"measured at {commit}; the code it measures has changed since ({len(since)} commits, last {since[0]})"


@cache
def has_history(root: Path) -> bool:
    """Tell whether the source lies in a git repository with its history."""
    return (root / ".git").exists() and _git(root, "rev-parse", "--is-shallow-repository") == "false"


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git prints, or a space if that is nothing; None if it fails."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, timeout=GIT_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or " "


def check(fast: bool = False, root: Path = ROOT) -> int:
    """Print a line for each table and each fault; return the number of faults."""
    results, wrong = root / "results", 0
    tables = included(root)
    for table in tables:
        for fault in faults(table, results):
            print(f"FAULT results/{table} (in {', '.join(tables[table])}): {fault}")
            wrong += 1
    for study in STUDIES:
        if not (results / study).is_dir():
            continue
        found = damage(study, results)
        if not fast and not found:
            found += differences(study, results)
        for fault in found:
            print(f"FAULT {fault}")
        wrong += len(found)
    for table in tables:
        path = results / table
        commits = dict.fromkeys(COMMIT.findall(path.read_text(encoding="utf-8"))) if path.exists() else {}
        for commit in commits:
            if path.parent.name in STUDIES:
                print(f"results/{table}: {age(commit, STUDIES[path.parent.name].measures, root)}")
    unknown = {path.parent.name for path in results.glob(f"*/{NAME}")} - set(STUDIES)
    for study in sorted(unknown):
        print(f"FAULT results/{study}: the study is not declared in benchmarks/studies.py")
    wrong += len(unknown)
    print(f"== {len(tables)} tables in pages, {wrong} faults")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="do not draw the tables again from their records")
    sys.exit(1 if check(parser.parse_args().fast) else 0)


if __name__ == "__main__":
    main()
