"""Run the campaign, record each case at once, and print the table."""

from __future__ import annotations

import argparse
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from benchmarks.faults.report import KEY, LINES, table
from benchmarks.provenance import Study


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("lines", nargs="*", metavar="LINE", help=f"default: all of {', '.join(LINES)}")
    parser.add_argument("--short", action="store_true", help="a few cases of each line")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time, of lines whose cases are processes")
    parser.add_argument("--out", type=Path, default=None, help="default: results/faults")
    args = parser.parse_args()
    unknown = [name for name in args.lines if name not in LINES]
    if unknown:
        parser.error(f"no line is called {unknown[0]!r}; there are {', '.join(LINES)}")
    study = Study("benchmarks.faults", "faults", KEY, out=args.out)
    for name in args.lines or LINES:
        done = {row["case"] for row in study.rows() if row["line"] == name}
        cases = [case for case in LINES[name].cases(args.short) if case not in done]
        with ThreadPoolExecutor(args.jobs if LINES[name].parallel else 1) as pool:
            running = [pool.submit(run_case, name, case) for case in cases]
            for number, future in enumerate(as_completed(running), 1):
                row = future.result()
                study.add(row)
                word = "as asked" if row["ok"] else f"NOT as asked: {row.get('note', '')}"
                print(f"{name} {number}/{len(cases)} {row['case']}: {word} ({row['seconds']} s)", flush=True)
    text = table(study.rows())
    study.write(text)
    print(text)


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
    main()
