"""Run the comparison, or draw its tables and figures from the records alone.

    python -m benchmarks.large tune                  the paper's methods' constants, on smaller cases and another seed
    python -m benchmarks.large run                   what is missing of the whole study
    python -m benchmarks.large run --cases mnpc-1000 disjoint-30 --solvers AdaptiveGDPA IPOPT --seconds 20
    python -m benchmarks.large report                tables and figures again

Records are written as each run ends, so an interrupted study goes on where it stopped.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # before NumPy is loaded
    os.environ[_name] = "1"

import argparse  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from benchmarks.large import report, tuning  # noqa: E402
from benchmarks.large.solvers import PAPER, SOLVERS  # noqa: E402
from benchmarks.large.study import unit  # noqa: E402
from benchmarks.provenance import origin  # noqa: E402

CASES = ("mnpc", *(f"{family}-{m}" for family in ("disjoint", "shared") for m in (3, 30, 300)))
FAMILIES = tuple(tuning.PILOTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("tune", "run", "report"))
    parser.add_argument("--out", type=Path, default=Path("results/large"))
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--solvers", nargs="*", default=list(SOLVERS), choices=list(SOLVERS))
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=FAMILIES, help="of tune")
    parser.add_argument("--seconds", type=float, default=120.0, help="CPU seconds for one solver on one case")
    parser.add_argument("--again", action="store_true", help="run finished pairs again; the last record counts")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.command == "tune":
        for family in options.families:
            for method in (s for s in options.solvers if s in PAPER):
                tuning.tune(options.out / "tuning.jsonl", family, method)
                print(f"{family} {method}: {tuning.tuned(options.out / 'tuning.jsonl', family, method)}", flush=True)
        return
    if options.command == "run":
        _run(options)
    rows = report.read(options.out / "records.jsonl")
    text = report.tables(rows)
    (options.out / "table.md").write_text(text + "\n")
    report.figures(rows, options.out)
    print(text)


def _run(options: argparse.Namespace) -> None:
    path = options.out / "records.jsonl"
    done = {(r["case"], r["solver"]) for r in report.read(path)}
    place = origin("benchmarks.large")
    for case in options.cases:
        for solver in options.solvers:
            if (case, solver) in done and not options.again:
                continue
            constants = None
            if solver in PAPER:
                constants = tuning.tuned(options.out / "tuning.jsonl", case.partition("-")[0], solver)
                if constants is None:
                    print(f"{case} {solver}: left out, no constants; run tune first", file=sys.stderr)
                    continue
            row = unit(case, solver, options.seconds, constants) | {"about": place}
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(report.line(row), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
