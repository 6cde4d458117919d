"""How little AdaptiveGDPA's own choices and the problem's units matter: the Hock-Schittkowski set, setting by setting.

For each of the 66 inequality-only problems the forward passes until (x, lambda), as the method itself has it, is
KKT to 1e-2, 1e-4 and 1e-6::

    max( ||x - P_X(x - grad L)||_inf / max(1, ||grad f||_inf),  max g_+,  max_i |min(-g_i, lambda_i)| ) <= tolerance

measured in the units of the setting, within 1,000 forwards. ``single`` runs in float32 on torch and asks for a
certificate at 1e-3 wherever float64 has one at 1e-6.

    python -m benchmarks.adaptive_robustness [--settings default beta=1 ...] [--jobs N]
"""

from __future__ import annotations

import argparse
import statistics
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from benchmarks.nonlinear import suite
from gdpa import REALS, AdaptiveGDPA, Box, Evaluation, KKTBelow, MaxOracleCalls, Problem, Status, solve

LEVELS = (1e-2, 1e-4, 1e-6)
FORWARDS = 1000
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "beta=1": {"beta": 1.0},
    "beta=100": {"beta": 100.0},
    "f / 1000": {"unit": 1e-3},
    "f * 1000": {"unit": 1e3},
    "g_0 / 1000": {"constraint": 1e-3},
    "g_0 * 1000": {"constraint": 1e3},
    "pullback": {"step": "pullback"},
    "single": {"single": True},
}


def problem_of(name: str, unit: float = 1.0, constraint: float = 1.0) -> tuple[Problem, Any]:
    """Return the problem in other units, and its start."""
    case = suite.load(name)
    units = np.ones(case.m)
    units[0] = constraint

    def evaluate(x: Any) -> Evaluation:
        f, g = case.values(x)
        cache: dict[str, Any] = {}

        def pullback(w: Any, objective: Any = 1.0) -> Any:
            if not cache:
                cache.update(grad=unit * case.gradient(x), J=units[:, None] * case.jacobian(x))
            return objective * cache["grad"] + w @ cache["J"]

        return Evaluation(np.asarray(unit * f), units * g, pullback)

    bounded = np.isfinite(case.lower).any() or np.isfinite(case.upper).any()
    return Problem(evaluate, domain=Box(case.lower, case.upper) if bounded else REALS), case.x0


class Watch:
    """Notes the forwards at which each level is first met; ends the run at the tightest."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.hits = problem, dict[float, int]()

    def __call__(self, progress: Any) -> None:
        probe, now = progress.state.probe, progress.state.evaluation
        if probe is None:
            return
        grad_f = now.pullback(np.zeros_like(probe.constraints))
        mapping = probe.x - self.problem.domain.project(probe.x - probe.gradient)
        slack = np.minimum(-probe.constraints, probe.multipliers)
        kkt = max(
            np.abs(mapping).max() / max(1.0, np.abs(grad_f).max()),
            np.max(probe.constraints, initial=0.0),
            np.abs(slack).max(),
        )
        for level in LEVELS:
            if kkt <= level:
                self.hits.setdefault(level, progress.forwards)
        if LEVELS[-1] in self.hits:
            raise StopIteration


def in_single(problem: Problem) -> Problem:
    """Return the problem as torch's float32 sees it."""
    import torch

    def single(a: Any) -> Any:
        return torch.as_tensor(np.asarray(a), dtype=torch.float32)

    def evaluate(x: Any) -> Evaluation:
        f, g, pullback = problem.evaluate(x.numpy().astype(float))
        return Evaluation(
            single(f), single(g), lambda w, objective=1.0: single(pullback(w.numpy().astype(float), float(objective)))
        )

    return Problem(evaluate, domain=problem.domain)


def run(task: tuple[str, dict[str, Any]]) -> tuple[str, dict[float, int], Status]:
    """Run one problem in one setting."""
    name, setting = task
    options = {key: setting[key] for key in ("beta", "step") if key in setting}
    problem, x0 = problem_of(name, **{key: setting[key] for key in ("unit", "constraint") if key in setting})
    limit = MaxOracleCalls(FORWARDS)
    if setting.get("single"):
        import torch

        torch.set_num_threads(1)
        double = solve(problem, x0, AdaptiveGDPA(), tolerance=1e-6, stop=[KKTBelow(1e-6), limit], record=0)
        start = torch.as_tensor(x0, dtype=torch.float32)
        single = solve(
            in_single(problem), start, AdaptiveGDPA(), tolerance=1e-3, stop=[KKTBelow(1e-3), limit], record=0
        )
        return name, {1e-6: double.forwards} if double.success else {}, single.status
    watch = Watch(problem)
    with np.errstate(all="ignore"):
        result = solve(problem, x0, AdaptiveGDPA(**options), stop=limit, observers=[watch], record=0)
    return name, watch.hits, result.status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    names = [name for name in suite.names() if suite.is_development(name)]
    print(f"{len(names)} problems, {FORWARDS} forwards: solved (median forwards) at {', '.join(map(str, LEVELS))}")
    with ProcessPoolExecutor(options.jobs) as pool:
        for label in options.settings:
            rows = list(pool.map(run, [(name, SETTINGS[label]) for name in names]))
            if SETTINGS[label].get("single"):
                double = [row for row in rows if row[1]]
                missed = [row[0] for row in double if row[2] is not Status.CONVERGED]
                reached = f"{len(double) - len(missed)} of the {len(double)}"
                print(f"{label:<12} 1e-3 on {reached} where float64 has 1e-6 {missed or ''}")
                continue
            cells = []
            for level in LEVELS:
                counts = [row[1].get(level, np.inf) for row in rows]
                cells.append(f"{sum(np.isfinite(counts)):>3} ({statistics.median(counts):g})")
            missed = [row[0] for row in rows if 1e-4 not in row[1]]
            print(f"{label:<12} {'   '.join(cells)}   not at 1e-4: {', '.join(missed) or 'none'}", flush=True)


if __name__ == "__main__":
    main()
