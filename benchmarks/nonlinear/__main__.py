"""Run the comparison and print the table: ``python -m benchmarks.nonlinear``."""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # before NumPy is loaded
    os.environ[_name] = "1"

import argparse  # noqa: E402
import sys  # noqa: E402
from concurrent.futures import ThreadPoolExecutor, as_completed  # noqa: E402
from pathlib import Path  # noqa: E402

from benchmarks.nonlinear import equalities, report, suite  # noqa: E402
from benchmarks.nonlinear.solvers import SOLVERS, unit  # noqa: E402
from benchmarks.provenance import Study  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None, help="default: results/nonlinear")
    parser.add_argument("--solvers", nargs="*", choices=[*SOLVERS, "gdpa"])
    parser.add_argument(
        "--set",
        choices=("hs", "all", "fresh", "equalities"),
        default="all",
        help="hs: the development set; equalities: 218 problems, gdpa.minimize and SLSQP",
    )
    parser.add_argument("--problems", nargs="*", help="names instead of a set")
    parser.add_argument("--forwards", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0, help="CPU seconds for one solver on one problem")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="run finished pairs again")
    options = parser.parse_args()
    known = equalities.SOLVERS if options.set == "equalities" else SOLVERS
    if unknown := set(options.solvers or ()) - set(known):
        parser.error(f"--set {options.set} has no solver {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if options.set == "equalities":
        run_equalities(options)
        return
    names = options.problems or [
        name for name in suite.names() if options.set == "all" or suite.is_development(name) == (options.set == "hs")
    ]
    study = Study("benchmarks.nonlinear", "nonlinear", ("solver", "problem"), out=options.out)
    rows = {study.key(row): row for row in study.rows()}
    tasks = [
        (name, solver)
        for solver in options.solvers or SOLVERS
        for name in names
        if options.again or (solver, name) not in rows
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        running = [pool.submit(unit, *task, options.forwards, options.seconds) for task in tasks]
        try:
            for done, future in enumerate(as_completed(running), 1):
                row = study.add(future.result())
                rows[study.key(row)] = row
                if sys.stderr.isatty():
                    sys.stderr.write(f"\r{done}/{len(tasks)} {row['solver']:>14} {row['problem']:<12}")
        finally:  # Ctrl-C: what runs is finished and lost, what waits is not begun
            pool.shutdown(wait=False, cancel_futures=True)
    ordered = sorted(rows.values(), key=lambda row: list(SOLVERS).index(row["solver"]))
    text = report.table(ordered, names)
    study.tidy()
    study.write(text)
    print(text)
    report.figures(ordered, names, study.folder)


def run_equalities(options: argparse.Namespace) -> None:
    """Run the problems with equalities and print their table."""
    names = options.problems or [row["name"] for row in suite.with_equalities()]
    study = Study("benchmarks.nonlinear", "equalities", ("solver", "problem"), out=options.out)
    rows = {study.key(row): row for row in study.rows()}
    for solver in options.solvers or equalities.SOLVERS:
        for done, name in enumerate(names, 1):
            if options.again or (solver, name) not in rows:
                row = study.add(equalities.run(name, solver, options.forwards, options.seconds))
                rows[study.key(row)] = row
                sys.stderr.write(f"{done}/{len(names)} {solver} {name} {row['solved']} {row['nfev']}\n")
    text = equalities.table([row for row in rows.values() if row["problem"] in set(names)])
    study.tidy()
    study.write(text)
    print(text)


if __name__ == "__main__":
    main()
