"""Run the campaign on the present code, print the table, and end with 1 if a case is not as asked."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from benchmarks.faults.line import Row
from benchmarks.faults.report import KEY, LINES, table
from benchmarks.provenance import RESULTS, Study


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("lines", nargs="*", metavar="LINE", help=f"default: all of {', '.join(LINES)}")
    parser.add_argument("--short", action="store_true", help="a few cases of each line; nothing is kept without --out")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time, of lines whose cases are processes")
    parser.add_argument("--out", type=Path, default=None, help="default: results/faults")
    args = parser.parse_args(words)
    unknown = [name for name in args.lines if name not in LINES]
    if unknown:
        parser.error(f"no line is called {unknown[0]!r}; there are {', '.join(LINES)}")
    with tempfile.TemporaryDirectory(prefix="gdpa-faults-") as scratch:
        out = args.out or (Path(scratch) if args.short else RESULTS / "faults")
        rows, text = campaign(Study("benchmarks.faults", "faults", KEY, out=out), args.lines, args.short, args.jobs)
    print(text)
    wrong = [f"{row['line']} {row['case']}" for row in rows if not row["ok"]]
    print(
        f"{len(rows) - len(wrong)} of {len(rows)} cases as asked" + "".join(f"\nNOT as asked: {name}" for name in wrong)
    )
    return 1 if wrong else 0


def campaign(study: Study, names: Sequence[str], short: bool, jobs: int) -> tuple[list[Row], str]:
    """Run the cases that have no record of this commit; return the records of all cases asked for, and the table."""
    wanted = {(name, case) for name in names or LINES for case in LINES[name].cases(short)}
    done = {study.key(row) for row in study.rows() if is_of_this_code(study, row)}
    for name in names or LINES:
        cases = [case for case in LINES[name].cases(short) if (name, case) not in done]
        for number, row in enumerate(outcomes(name, cases, jobs if LINES[name].parallel else 1), 1):
            study.add(row)
            word = "as asked" if row["ok"] else f"NOT as asked: {row.get('note', '')}"
            print(f"{name} {number}/{len(cases)} {row['case']}: {word} ({row['seconds']} s)", flush=True)
    rows = [row for row in study.rows() if study.key(row) in wanted]
    text = table(rows)
    study.write(text)
    return rows, text


def is_of_this_code(study: Study, row: Row) -> bool:
    """Return whether a record was made at the present commit, without changes."""
    made, now = row["about"], study.origin
    return bool(now["commit"]) and made["commit"] == now["commit"] and not (made["dirty"] or now["dirty"])


def outcomes(name: str, cases: list[str], jobs: int) -> Iterator[Row]:
    """Yield the records of cases as they end; one at a time in this thread, because some catch its output."""
    if jobs == 1:
        yield from (run_case(name, case) for case in cases)
        return
    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(run_case, name, case) for case in cases]):
            yield future.result()


def run_case(name: str, case: str) -> dict[str, object]:
    """Run one case in a folder of its own; an exception of the case is a failure with its text."""
    clock = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gdpa-faults-") as folder:
        try:
            found = LINES[name].run(case, Path(folder))
        except Exception:
            found = {"ok": False, "note": traceback.format_exc(limit=3)}
    return {"line": name, "case": case, **found, "seconds": round(time.monotonic() - clock, 2)}


if __name__ == "__main__":
    sys.exit(main())
