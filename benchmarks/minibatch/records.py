"""The records of the study: one line of JSON per run, appended when the run ends."""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.minibatch.training import Run
from benchmarks.provenance import origin
from gdpa.experiments.records import versions

Record = dict[str, Any]


def about() -> dict[str, Any]:
    """Return where this invocation's records come from: command, commit, machine, versions of what takes part."""
    found = {k: v for k, v in versions().items() if k in ("gdpa", "python", "torch")}
    for name in ("cooper-optim", "humancompatible-train"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {**origin("benchmarks.minibatch.run"), "versions": found}


def read(path: Path) -> dict[Run, Record]:
    """Return the records by run; a later record of a run replaces an earlier one.

    A last line without its end is left by a killed process: it is cut off the file.
    """
    if not path.exists():
        return {}
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if len(whole) < len(text):
        os.truncate(path, len(whole.encode()))
    rows = [json.loads(line) for line in whole.splitlines()]
    return {Run(*(row[name] for name in Run._fields)): row for row in rows}


def append(path: Path, record: Record) -> None:
    """Append the record as one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
