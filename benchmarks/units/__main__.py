"""Run the study and print the table: ``python -m benchmarks.units`` (all of it), or with ``--quick`` (a sample)."""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # before NumPy is loaded
    os.environ[_name] = "1"

import argparse  # noqa: E402
import multiprocessing  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from concurrent.futures import ProcessPoolExecutor, as_completed  # noqa: E402
from pathlib import Path  # noqa: E402

from benchmarks.provenance import Study  # noqa: E402
from benchmarks.units.problems import CASES  # noqa: E402
from benchmarks.units.report import table  # noqa: E402
from benchmarks.units.runs import OWN, RANDOM, SOLVERS, changes, run  # noqa: E402

#: What --quick runs: every fifth problem, the changes that fooled solvers most, one draw of each random row.
QUICK = ("none", "f 1e-8", "g 1e-8", "x 1e-6", RANDOM, OWN)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None, help="default: results/units")
    parser.add_argument("--solvers", nargs="*", default=list(SOLVERS), choices=SOLVERS)
    parser.add_argument("--quick", action="store_true", help="a sample of the runs; prints, writes nothing")
    parser.add_argument("--again", action="store_true", help="run finished runs again")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    study = Study("benchmarks.units", "units", ("solver", "problem", "change", "draw"), out=options.out)
    rows = {} if options.quick else {study.key(row): row for row in study.rows()}
    tasks = [
        (index, solver, row, draw, units)
        for solver in options.solvers
        for index in range(0, len(CASES), 5 if options.quick else 1)
        for row, draw, units in changes(index, options.seed)
        if not options.quick or (row in QUICK and draw == 0)
    ]
    if not options.again:
        tasks = [t for t in tasks if (t[1], CASES[t[0]].name, t[2], t[3]) not in rows]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, spawn, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        running = [pool.submit(run, *task) for task in tasks]
        try:
            for done, future in enumerate(as_completed(running), 1):
                row = future.result()
                rows[study.key(row)] = row | {"about": study.origin} if options.quick else study.add(row)
                if sys.stderr.isatty() or done % 50 == 0 or done == len(tasks):
                    end = "\r" if sys.stderr.isatty() else "\n"
                    sys.stderr.write(f"{done}/{len(tasks)} {row['solver']:>12} {row['problem']:<40}{end}")
        except KeyboardInterrupt:
            sys.stderr.write("\ninterrupted; finished runs are kept, the same command goes on from here\n")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    ordered = sorted(rows.values(), key=lambda r: SOLVERS.index(r["solver"]))
    text = table(ordered)
    if not options.quick:
        study.tidy()
        study.write(text)
    print(text)


if __name__ == "__main__":
    main()
