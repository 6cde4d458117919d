"""Damaged records: each is named, none is read, none ends the command that reads the file with a traceback.

The file is that of `gdpa reproduce rate`, and the reader is `gdpa report`. One line of the file is damaged at a time.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from unittest.mock import patch

from benchmarks.faults.line import Line, Row, total
from gdpa.paper.records import NAME, SEAL, seal

#: The line that is damaged, by its index: the first is the plan, the others are units.
LINE_INDEX = 2
Damage = Callable[[bytes, random.Random], bytes]


def flipped(line: bytes, rng: random.Random) -> bytes:
    """Flip one bit."""
    at = rng.randrange(len(line))
    changed = bytes([line[at] ^ 1 << rng.randrange(8)])
    return line[:at] + changed + line[at + 1 :]


def cut(line: bytes, rng: random.Random) -> bytes:
    """Lose the end of the line."""
    return line[: rng.randrange(1, len(line))]


def renumbered(line: bytes, rng: random.Random) -> bytes:
    """Change one digit of a number."""
    digits = [found.start() for found in re.finditer(rb"(?<=\d)\d(?=[\d,\]}])", line[: line.index(b'"about"')])]
    at = rng.choice(digits)
    return line[:at] + bytes([48 + (line[at] - 47) % 10]) + line[at + 1 :]


def edited(change: Callable[[dict[str, Any]], Any], sealed: bool) -> Damage:
    """Change an entry; ``sealed`` also makes the hash of the line fit, as a careful forger would."""

    def damage(line: bytes, rng: random.Random) -> bytes:
        row = json.loads(line)
        change(row)
        return seal(row) if sealed else json.dumps(row).encode()

    return damage


def written(text: bytes) -> Damage:
    """Other content instead of the line."""
    return lambda line, rng: text


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda row: row.pop(name)


def put(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda row: row.__setitem__(name, value)


def longer(row: dict[str, Any]) -> None:
    next(iter(row["columns"].values())).append(0.0)


def ragged(row: dict[str, Any]) -> None:
    name = next(iter(row["columns"]))
    row["columns"][name] = [[1.0], [2.0, 3.0]]


KINDS: dict[str, Damage] = {
    **{f"bit flipped {i}": flipped for i in range(10)},
    **{f"line cut {i}": cut for i in range(6)},
    **{f"digit changed {i}": renumbered for i in range(8)},
    "method changed": edited(put("method", "DampedGDPA"), False),
    "seed changed": edited(put("seed", 1), False),
    "summary changed": edited(put("summary", {"steps": 1}), False),
    "hash removed": edited(without(SEAL), False),
    "hash of nothing": edited(put(SEAL, ""), False),
    "hash is a number": edited(put(SEAL, 7), False),
    "configuration that does not fit its hash": edited(put("config", {"alpha": 1.0}), True),
    "setting that does not fit its hash": edited(put("setting", "disc-square"), True),
    **{f"no {name}": edited(without(name), True) for name in ("summary", "columns", "about", "hash")},
    "columns are a list": edited(put("columns", [1.0]), True),
    "summary is text": edited(put("summary", "fine"), True),
    "configuration is text": edited(put("config", "alpha"), True),
    "a column is longer": edited(longer, True),
    "a column is ragged": edited(ragged, True),
    "a list": written(b"[1, 2]"),
    "a number": written(b"3"),
    "an empty object": written(b"{}"),
    "another program's page": written(b"<html>502 Bad Gateway</html>"),
    "zero bytes": lambda line, rng: bytes(len(line)),
    "no UTF-8": lambda line, rng: line[:50] + b"\xff\xfe" + line[50:],
    "nested deeply": written(b"[" * 100_000),
    "a number of 5,000 digits": lambda line, rng: line[:-1] + b', "n": ' + b"9" * 5000 + b"}",
    "two records in one line": lambda line, rng: line + line,
}


@cache
def whole() -> Path:
    """Return a folder with the records of four units."""
    from gdpa.paper.base import Settings
    from gdpa.paper.records import Folder
    from gdpa.paper.runner import run_units
    from gdpa.paper.studies import rate

    path = Path(mkdtemp(prefix="gdpa-records-"))
    units = [unit for unit in rate.units(Settings(steps=10)) if unit.setting == "disc-product"]
    folder = Folder(path, "gdpa reproduce rate")
    folder.begin("rate", units)
    run_units(folder, units, lambda event: None)
    return path


def run(case: str, folder: Path) -> Row:
    from typer.testing import CliRunner

    from gdpa.paper.cli import app
    from gdpa.paper.records import Folder

    shutil.copytree(whole(), folder / "out")
    before = {record.unit.name: record for record in Folder(folder / "out").read("rate")}
    path = folder / "out" / "rate" / NAME
    lines = path.read_bytes().splitlines()
    damaged = KINDS[case](lines[LINE_INDEX], random.Random(case))
    assert damaged != lines[LINE_INDEX]
    lost = json.loads(lines[LINE_INDEX])
    lines[LINE_INDEX] = damaged
    path.write_bytes(b"\n".join(lines) + b"\n")

    with patch("gdpa.paper.report._picture", lambda folder, name, chart: ("", [])):  # figures take long
        done = CliRunner().invoke(app, ["report", str(folder / "out")])
    said = done.output + done.stderr
    traceback = done.exit_code not in (0, 1, 2, 3, 4) or "Traceback" in said or not _quiet(done.exception)
    after = {record.unit.name: record for record in Folder(folder / "out", complain=lambda text: None).read("rate")}
    name = next(name for name, record in before.items() if record.unit.hash == lost["hash"])
    others = set(before) - {name}
    named, accepted = f"{NAME}, line {LINE_INDEX + 1}: " in said, name in after
    intact = all(after[one].summary == before[one].summary for one in others)
    good = named and intact and not traceback and not accepted
    note = "" if good else said[:300]
    return {"named": named, "traceback": traceback, "accepted": accepted, "ok": good, "note": note}


def _quiet(exception: BaseException | None) -> bool:
    return exception is None or isinstance(exception, SystemExit)


def found(rows: list[Row]) -> str:
    return (
        f"{total(rows, 'named')} of {len(rows)} named, {total(rows, 'traceback')} tracebacks, "
        f"{total(rows, 'accepted')} accepted"
    )


LINE = Line(
    "damaged records",
    "50 named, 0 tracebacks, 0 accepted",
    lambda short: list(KINDS)[:: 8 if short else 1],
    run,
    found,
)
