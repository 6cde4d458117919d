"""Banded problems from 100 to 100,000 variables: a hanging chain, an obstacle problem, optimal control.

Every solver has the same functions and first derivatives in NumPy, one thread and a process of its own. "Exact Hessian"
solvers have second derivatives, too; `gdpa` alone finds them by differences. An answer counts as solved if its
certificate holds at 1e-6. Seconds are processor time, compared in one run.

    python -m benchmarks.banded [--sizes 100 1000] [--families chain] [--solvers gdpa] [--limit 600] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import multiprocessing
from pathlib import Path

from benchmarks.banded.families import FAMILIES
from benchmarks.banded.report import tables
from benchmarks.banded.solvers import SOLVERS, run
from benchmarks.provenance import Study
from benchmarks.supervised import supervised

SIZES = (100, 1_000, 10_000, 100_000)


def main() -> None:
    """Run what is asked for, record it and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--solvers", nargs="*", default=list(SOLVERS), choices=SOLVERS)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds on the wall for one run")
    parser.add_argument("--out", type=Path, default=None, help="default: results/banded")
    chosen = parser.parse_args()
    study = Study("benchmarks.banded", "banded", key=("solver", "family", "n"), out=chosen.out)
    context = multiprocessing.get_context("spawn")
    for family in chosen.families:
        for n in chosen.sizes:
            for solver in chosen.solvers:
                row = supervised(context, run, (solver, family, n), chosen.limit)
                study.add({"solver": solver, "family": family, "n": n, **row})
                print(f"{family:9} {n:7} {solver:24} {row}", flush=True)
    for name, text in tables(study.rows()).items():
        print(text)
        study.write(text, name)


if __name__ == "__main__":
    main()
