"""Convert records of before 0.1.0 under ``results/`` to one ``records.jsonl`` for each study.

    python -m benchmarks.convert_records [STUDY ...]

A study without files of the old kinds is left alone. Old records say less of their origin. What they lack is looked
up in the git history and marked by a note: the versions are those that constraints.txt pins at the record's commit,
and a record without a commit gets the one that added its line.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.provenance import RESULTS, ROOT
from gdpa.paper.records.file import NAME, RecordFile, Row, unseal
from gdpa.paper.records.folder import Folder
from gdpa.paper.records.provenance import DIRTY, LIBRARIES

POINTS = ("last", "average")
PINNED = "Versions are those pinned at the commit."
ADDED = "The commit is the one that added the records."
#: Runs on a copy without history noted its base; their tables named the commit of the tree.
TREE = {"success": "89dae67b5487", "units": "89dae67b5487"}


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout  # fmt: skip


@cache
def pinned(commit: str) -> dict[str, str]:
    """Return the versions that constraints.txt pins at a commit."""
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", git("show", f"{commit}:constraints.txt"), re.M))
    return {name: pins[name] for name in LIBRARIES if name in pins}


def complete(about: Row | None, study: str, added: str, command: str) -> Row:
    """Return an origin with every entry of the present format."""
    if about is None:
        return {
            "commit": added, "dirty": False, "versions": pinned(added), "machine": {}, "command": command,
            "note": f"{ADDED} {PINNED}",
        }  # fmt: skip
    commit = str(TREE.get(study, about["commit"]))
    row = {**about, "commit": commit.removesuffix(DIRTY), "dirty": about.get("dirty", commit.endswith(DIRTY))}
    if "versions" in about:
        return row
    return {**row, "versions": pinned(row["commit"]), "note": PINNED}


@cache
def line_commits(path: Path) -> list[str]:
    """Return for each line of a tracked file the commit that added it."""
    text = git("blame", "--porcelain", str(path.relative_to(ROOT)))
    return [found[:12] for found in re.findall(r"^([0-9a-f]{40}) \d+ \d+", text, re.M)]


def json_lines(study: str, name: str, part: str | None, command: str) -> Iterator[Row]:
    path = RESULTS / study / name
    for line, added in zip(path.read_text().splitlines(), line_commits(path), strict=True):
        row = json.loads(line)
        yield {**({"part": part} if part else {}), **row, "about": complete(row.get("about"), study, added, command)}


def csv_rows(path: Path) -> Iterator[tuple[Row, str]]:
    with open(path, newline="") as file:
        for row, added in zip(csv.DictReader(file), line_commits(path)[1:], strict=True):
            yield dict(row), added


def command_of(table: Path) -> str:
    found = re.match(r"Command: `([^`]+)`", table.read_text())
    assert found is not None, table
    return found[1].strip()


def number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def columns_of(path: Path) -> dict[str, list[Any]]:
    with open(path, newline="") as file:
        head, *rows = list(csv.reader(file)) or [[]]
    return {name: [number(row[i]) for row in rows] for i, name in enumerate(head)}


def experiment(study: str) -> Iterator[Row]:
    """Convert ``run.json`` and a CSV and a JSON file for each unit."""
    folder = RESULTS / study
    run = json.loads((folder / "run.json").read_text())
    yield {"plan": run}
    for name in run["units"]:
        stem = folder / "records" / name
        if not stem.with_name(f"{name}.json").exists():
            continue
        row = json.loads(stem.with_name(f"{name}.json").read_text())
        about = row.pop("about")
        yield {**row, "columns": columns_of(stem.with_name(f"{name}.csv")), "about": complete(about, study, "", "")}


def rows_json(study: str) -> Iterator[Row]:
    for row in json.loads((RESULTS / study / "rows.json").read_text()):
        yield {**row, "about": complete(row["about"], study, "", "")}


def plain_lines(study: str) -> Iterator[Row]:
    yield from json_lines(study, NAME, None, "")


def large(study: str) -> Iterator[Row]:
    tune, run = (RESULTS / study / "commands.txt").read_text().splitlines()[:2]
    rows = json_lines(study, NAME, "run", run)
    yield from {(row["case"], row["solver"]): row for row in rows}.values()
    yield from json_lines(study, "tuning.jsonl", "tuning", tune)


def minibatch(study: str) -> Iterator[Row]:
    for suite in ("defaults", "units", "tuning"):
        if (RESULTS / study / f"{suite}.jsonl").exists():
            command = f"python -m benchmarks.minibatch.run --suite {suite}"
            yield from json_lines(study, f"{suite}.jsonl", suite, command)


def noise(study: str) -> Iterator[Row]:
    folder = RESULTS / study
    command = command_of(folder / "deterministic.md")
    for row, added in csv_rows(folder / "deterministic.csv"):
        yield {"part": "deterministic", **row, "about": complete(None, study, added, command)}
    for seed, part, name in ((0, "noise", "noise-runs.csv"), (1, "noise-seed-1", "noise-runs-seed-1.csv")):
        command = command_of(folder / f"{part}.md")
        shares = {row["setting"]: row for row, _ in csv_rows(folder / f"{part}.csv")}
        runs = list(csv_rows(folder / name))
        for row, added in runs:
            last, average = (residual(row, p, [r for r, _ in runs], shares[row["setting"]]) for p in POINTS)
            yield {
                "part": part, "setting": row["setting"], "sigma": float(row["sigma"]), "problem": row["problem"],
                "seed": seed, "last": last, "average": average,
                "about": complete(None, study, added, command),
            }  # fmt: skip


def residual(run: Row, point: str, runs: list[Row], shares: Row) -> float:
    """Return a residual of a noisy run, kept to three digits; 0.1 means just above it if the table's share says so."""
    value = float(run[f"KKT {point}"])
    if value != 0.1:
        return value
    alike = [float(r[f"KKT {point}"]) for r in runs if (r["setting"], r["sigma"]) == (run["setting"], run["sigma"])]
    counted = shares[f"sigma {float(run['sigma']):g}, {point}"]
    within = f"{100 * sum(v <= 0.1 for v in alike) / len(alike):.0f} %"
    return value if within == counted else math.nextafter(0.1, 1.0)


def cmdp(study: str) -> Iterator[Row]:
    for part in ("gradient", "instances", "instances-summary", "environments"):
        command = command_of(RESULTS / study / f"{part}.md")
        for row, added in csv_rows(RESULTS / study / f"{part}.csv"):
            yield {"part": part, **row, "about": complete(None, study, added, command)}


def choice(study: str) -> Iterator[Row]:
    path = RESULTS / study / "table.md"
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in path.read_text().splitlines()]
    for cells, added in list(zip(lines, line_commits(path), strict=True))[2:]:
        about = complete(None, study, added, "python -m benchmarks.choice")
        yield {**dict(zip(lines[0], cells, strict=True)), "about": about}


def cartpole(study: str) -> Iterator[Row]:
    folder = RESULTS / study
    command = "python examples/safe_cartpole.py --updates 400 --seeds 3"
    for row, added in csv_rows(folder / "evaluation.csv"):
        method, seed = row.pop("method"), int(row.pop("seed"))
        yield {
            "method": method, "seed": seed, "evaluation": {key: float(value) for key, value in row.items()},
            "columns": columns_of(folder / f"{method.replace(' ', '-')}_{seed}.csv"),
            "about": complete(None, study, added, command),
        }  # fmt: skip


def certificate(study: str) -> Iterator[Row]:
    about = complete(json.loads((RESULTS / study / "about.json").read_text()), study, "", "")
    for picture in ("disc", "steep"):
        columns = {
            name: list(map(float, values)) for name, values in columns_of(RESULTS / study / f"{picture}.csv").items()
        }
        yield {"picture": picture, "columns": columns, "about": about}


def cuda(study: str) -> Iterator[Row]:
    command = (RESULTS / study / "command.txt").read_text().strip()
    machine, *rows = json_lines(study, "cuda.jsonl", None, command)
    for row in rows:
        about = {**row["about"], "versions": {**row["about"]["versions"], "torch": machine["torch"]}}
        about["note"] = f"{ADDED} Versions but torch's are those pinned at the commit."
        yield {**row, "device": machine["device"], "about": about}


def torch_step(study: str) -> Iterator[Row]:
    path = RESULTS / "torch_step.json"
    row = json.loads(path.read_text())
    added = git("log", "-1", "--format=%h", "--abbrev=12", "--", str(path.relative_to(ROOT))).strip()
    about = complete(None, study, added, "python benchmarks/torch_step.py --json results/torch_step.json")
    versions = {"python": row.pop("python"), **about["versions"], "torch": row.pop("torch")}
    about.update(versions=versions, machine={"processor": row.pop("machine")})
    yield {**row, "about": about}


CONVERTERS: dict[str, tuple[Callable[[str], Iterator[Row]], str]] = {
    **dict.fromkeys(("mnpc", "budget", "energy", "rate"), (experiment, "run.json")),
    **dict.fromkeys(("fair_adult", "np_calibration", "neyman_pearson"), (rows_json, "rows.json")),
    **dict.fromkeys(("nonlinear", "success", "units", "front"), (plain_lines, NAME)),
    "large": (large, "tuning.jsonl"),
    "minibatch": (minibatch, "defaults.jsonl"),
    "noise": (noise, "noise-runs.csv"),
    "cmdp": (cmdp, "instances.csv"),
    "choice": (choice, "table.md"),
    "cartpole": (cartpole, "evaluation.csv"),
    "certificate": (certificate, "about.json"),
    "cuda": (cuda, "cuda.jsonl"),
    "torch_step": (torch_step, "../torch_step.json"),
}


def is_old(study: str) -> bool:
    """Tell whether the study has files of the old kinds."""
    marker = RESULTS / study / CONVERTERS[study][1]
    if study == "torch_step":
        return (RESULTS / "torch_step.json").exists()
    if not marker.exists():
        return False
    if study == "choice":
        return not (RESULTS / study / NAME).exists()
    if marker.name != NAME:
        return True
    try:
        unseal(marker.read_bytes().splitlines()[0])
    except ValueError:
        return True
    return False


def convert(study: str) -> None:
    """Write records.jsonl, read it back, and remove what it replaces."""
    rows = list(CONVERTERS[study][0](study))
    target = RESULTS / study / NAME
    if not any("plan" in row for row in rows) or not target.exists():
        RecordFile(target).replace(rows)
    else:  # an experiment that was run before and after
        RecordFile(target).replace([*rows, *RecordFile(target).rows()])
    complaints: list[str] = []
    file = Folder(RESULTS, complain=complaints.append).file(study)
    assert len(file.rows()) >= len(rows), complaints
    assert not complaints, complaints
    for path in target.parent.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.suffix != ".md" and path.name != NAME:
            path.unlink()
    if study == "torch_step":
        (RESULTS / "torch_step.json").unlink()
    print(f"{study}: {len(rows)} records, {target.stat().st_size / 1e3:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", metavar="STUDY", help="default: all")
    for study in parser.parse_args().studies or CONVERTERS:
        if is_old(study):
            convert(study)


if __name__ == "__main__":
    main()
