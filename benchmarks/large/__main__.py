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
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from benchmarks.large import report, tuning  # noqa: E402
from benchmarks.large.solvers import PAPER, SOLVERS  # noqa: E402
from benchmarks.large.study import unit  # noqa: E402
from benchmarks.provenance import Study  # noqa: E402

CASES = ("mnpc", *(f"{family}-{m}" for family in ("disjoint", "shared") for m in (3, 30, 300)))
FAMILIES = tuple(tuning.PILOTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("tune", "run", "report"))
    parser.add_argument("--out", type=Path, default=None, help="default: results/large")
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--solvers", nargs="*", default=list(SOLVERS), choices=list(SOLVERS))
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=FAMILIES, help="of tune")
    parser.add_argument("--seconds", type=float, default=120.0, help="CPU seconds for one solver on one case")
    parser.add_argument("--again", action="store_true", help="run finished pairs again; the last record counts")
    options = parser.parse_args()
    trials = Study("benchmarks.large", "large", ("family", "solver", "constants"), "tuning", options.out)
    if options.command == "tune":
        for family in options.families:
            for method in (s for s in options.solvers if s in PAPER):
                tuning.tune(trials, family, method)
                print(f"{family} {method}: {tuning.tuned(trials, family, method)}", flush=True)
        return
    study = Study("benchmarks.large", "large", ("case", "solver"), "run", options.out)
    if options.command == "run":
        _run(options, study, trials)
        study.tidy()
    rows = study.rows()
    text = report.tables(rows)
    study.write(text)
    report.figures(rows, study.folder)
    print(text)


def _run(options: argparse.Namespace, study: Study, trials: Study) -> None:
    done = set(map(study.key, study.rows()))
    for case in options.cases:
        for solver in options.solvers:
            if (case, solver) in done and not options.again:
                continue
            constants = None
            if solver in PAPER:
                constants = tuning.tuned(trials, case.partition("-")[0], solver)
                if constants is None:
                    print(f"{case} {solver}: left out, no constants; run tune first", file=sys.stderr)
                    continue
            row = study.add(unit(case, solver, options.seconds, constants))
            print(report.line(row), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
