"""What choosing between AdaptiveGDPA's two steps is worth where every row of the Jacobian is a backward pass.

    python -m benchmarks.choice

Prints, and keeps in results/choice/, the forward and backward passes to relative KKT residuals of 1e-2 and 1e-6, with
each step alone and with the choice ("auto"), within 12,000 passes. Counts are the same on every machine. Two families:

- ``program M / T``: min sum c_j (x_j - t_j)^2/2 + cos x_j under M constraints 2 a_i'x + 0.3 sin 3 a_i'x + b_i'x^2 <=
  r_i in 200 variables; T of them have r_i = 1 and the others 30.
- ``network M / T``: the shared network of `benchmarks.large` (d = 3061), the limits of all but T groups raised by 3.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.large import cases
from benchmarks.provenance import Study, cells
from gdpa import AdaptiveGDPA, Evaluation, KKTBelow, Problem, Status, solve

LEVELS = (1e-2, 1e-6)
PASSES = 12_000
STEPS = ("pullback", "jacobian", "auto")


def program(m: int, tight: int, d: int = 200) -> tuple[Problem, Any]:
    """Return a problem without a cheap Jacobian, and its start."""
    rng = np.random.default_rng([0, m, d])
    t = 2 * rng.standard_normal(d)
    A, B = rng.standard_normal((m, d)) / np.sqrt(d), rng.random((m, d)) / (2 * np.sqrt(d))
    c, r = np.exp(rng.uniform(-2, 2, d)), np.where(np.arange(m) < tight, 1.0, 30.0)

    def evaluate(x: Any) -> Evaluation:
        u = A @ x

        def pullback(w: Any, objective: Any = 1.0) -> Any:
            return objective * (c * (x - t) - np.sin(x)) + 2 * (w @ B) * x + (w * (2 + 0.9 * np.cos(3 * u))) @ A

        f = np.asarray(c @ (x - t) ** 2 / 2 + np.cos(x).sum())
        return Evaluation(f, B @ x**2 + 2 * u + 0.3 * np.sin(3 * u) - r, pullback)

    return Problem(evaluate, num_constraints=m), np.zeros(d)


def network(m: int, tight: int) -> tuple[Problem, Any]:
    """Return the shared network with few tight limits, and its start."""
    case = cases.load(f"shared-{m}")
    more = torch.where(torch.arange(m) < tight, 0.0, 3.0)

    def evaluate(x: Any) -> Evaluation:
        point = case.at(x)
        return Evaluation(point.f, point.g - more, point.pullback)

    return Problem(evaluate, num_constraints=m), case.x0


CASES: list[tuple[str, Callable[[int, int], tuple[Problem, Any]], int, int]] = [
    *(("program", program, m, tight) for m, tight in ((50, 5), (50, 30), (300, 5), (300, 20), (1000, 20), (300, 150))),
    *(("network", network, m, tight) for m, tight in ((50, 50), (100, 10), (300, 10), (300, 40))),
]


def spent(progress: Any) -> Status | None:
    """Stop rule: the passes are used up."""
    return Status.MAX_ORACLE_CALLS if progress.forwards + progress.backwards >= PASSES else None


def passes(problem: Problem, x0: Any, step: str) -> list[str]:
    """Return how many passes each level took."""
    stop = (KKTBelow(LEVELS[-1]), spent)
    history = solve(problem, x0, AdaptiveGDPA(step=step), stop=stop, tolerance=LEVELS[-1], record=1).history
    made = history["forwards"] + history["backwards"]
    met = [np.flatnonzero((history["kkt"] <= level) & (made <= PASSES)) for level in LEVELS]
    return [f"{made[rows[0]]:.0f}" if len(rows) else "not reached" for rows in met]


def main() -> None:
    torch.set_num_threads(1)
    study = Study("benchmarks.choice", "choice", ("constraints / tight",))
    for name, make, m, tight in CASES:
        found = {step: passes(*make(m, tight), step) for step in STEPS}
        counts = {f"{step}, {level:g}": found[step][i] for i, level in enumerate(LEVELS) for step in STEPS}
        study.add({"constraints / tight": f"{name} {m} / {tight}", **counts})
        print(f"{name} {m} / {tight}: {counts}", file=sys.stderr, flush=True)
    study.tidy()
    text = cells(study.rows())
    study.write(text)
    print(text)


if __name__ == "__main__":
    main()
