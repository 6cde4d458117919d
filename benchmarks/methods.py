"""Every method with its tuned constants on every certified problem: how many it solves, and at what price.

    python -m benchmarks.methods [--passes 20000]

Prints the Markdown table of docs/methods.md. A problem counts as solved at a tolerance where the certificate
recomputed at the returned point meets it and the multipliers are within 5 % of the recorded ones.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np

from gdpa import GDA, HiBSA, IALMLi, IALMSahin, SmoothedGDA, compare, method_names, problems
from gdpa.core.problem import row_by_row
from gdpa.core.slack import add_slacks
from gdpa.run.compare import tuned

TOLERANCES = (1e-2, 1e-3)
#: Beside the tuned presets: the plain Lagrangian for the min-max methods, explicit slacks for the IALMs.
VARIANTS: dict[str, Any] = {
    "gda, plain Lagrangian": GDA(augmentation=0.0),
    "hibsa, plain Lagrangian": HiBSA(augmentation=0.0),
    "smoothed-gda, plain Lagrangian": SmoothedGDA(augmentation=0.0),
    "ialm-sahin, explicit slacks": IALMSahin(slack=True),
    "ialm-li, explicit slacks": IALMLi(slack=True),
}


def run(label: str, algorithm: Any, passes: int, slacks: bool = False) -> str:
    taken, solved = 0, dict.fromkeys(TOLERANCES, 0)
    price: list[int] = []
    for name in problems.names("solvable"):
        known = problems.get(name)
        assert known.multipliers is not None
        own = row_by_row(known.problem)  # every row is a pass, for whoever asks for it
        form, z0 = add_slacks(own, known.x0)
        problem, x0 = (form.problem, z0) if slacks else (own, known.x0)
        (row,) = compare(problem, x0, [(label, algorithm)], passes=passes, tolerance=min(TOLERANCES))
        if row.result is None:
            continue
        taken += 1
        error = np.abs(row.result.multipliers - known.multipliers).max() / np.abs(known.multipliers).max()
        for tolerance in TOLERANCES:
            if row.result.certificate.holds(tolerance) and error <= 0.05:
                solved[tolerance] += 1
        if solved[TOLERANCES[-1]] > len(price):
            price.append(row.result.forwards + row.result.backwards)
    middle = f"{statistics.median(price):.0f}" if price else "-"
    return f"| {label} | {taken} | {solved[TOLERANCES[0]]} | {solved[TOLERANCES[1]]} | {middle} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=20_000, help="forward and backward passes per run")
    passes = parser.parse_args().passes
    print("| method | problems it takes | solved to 1e-2 | solved to 1e-3 | median passes of the latter |")
    print("|---|---|---|---|---|")
    for name in method_names():
        print(run(name, tuned(name), passes), flush=True)
    print(run("proximal-admm, slack form", tuned("proximal-admm"), passes, slacks=True), flush=True)
    for label, algorithm in VARIANTS.items():
        print(run(label, algorithm, passes), flush=True)


if __name__ == "__main__":
    main()
