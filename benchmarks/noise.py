"""What each option of the fixed-step method does, with and without noise, beside the paper's schedule.

    python -m benchmarks.noise deterministic   share of certified problems at relative KKT 1e-3 within 10,000 steps
    python -m benchmarks.noise noise           share with true relative KKT <= 0.1 after 3,000 steps

The noisy oracle adds N(0, sigma^2) to every component of grad f, J and g, in the problem's own units, drawn anew at
each forward pass from a seeded generator. Points are judged on the problem without noise, with the best multipliers
for them (`gdpa.certify`), in the units `gdpa.core.units` reads off the start. In the noisy table every method is
judged at its last iterate and at its tail average, the mean of x_r with weights r^8, which `DampedGDPA` keeps itself
and the benchmark keeps for the others. A run that leaves the finite numbers has failed.

The settings are declared in SETTINGS and are the same for every problem. Tables are printed and saved under
results/noise/, with what made them.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.provenance import Study, cells, markdown, told
from gdpa import GDPA, DampedGDPA, Evaluation, Problem, certify, problems
from gdpa.paper.records import Row

PROBLEMS = problems.names("solvable")
SIGMAS = (0.0, 0.1, 1.0)
TAIL = 8.0

#: The paper's schedule at two tau, the recursion with constant beta, and its options one by one and together. With
#: momentum the step is a tenth, so that the step in the long run is the same.
PLAIN = DampedGDPA(alpha=0.03, beta=3.0, theta=1.0, momentum=0.0, smoothing=0.0)
DAMPED = replace(PLAIN, theta=0.03)
SETTINGS: dict[str, Any] = {
    "paper, 0.01, 1, tau 0.1": GDPA(alpha=0.01, beta=1.0, tau=0.1),
    "paper, 0.01, 1, tau 0.01": GDPA(alpha=0.01, beta=1.0, tau=0.01),
    "constant beta, undamped": PLAIN,
    "unscaled, damped": replace(DAMPED, scaled=False),
    "damped": DAMPED,
    "damped, tau 0.1": replace(DAMPED, tau=0.1),
    "damped, momentum": replace(DAMPED, alpha=0.003, momentum=0.9),
    "damped, smoothed": DampedGDPA(),  # the defaults: DAMPED with smoothing 0.9
    "damped, momentum, smoothed": replace(DAMPED, alpha=0.003, momentum=0.9, smoothing=0.9),
    "damped, beta 1": replace(DAMPED, beta=1.0),
    "damped, beta 1, smoothed": replace(DAMPED, beta=1.0, smoothing=0.9),
}


def noisy(problem: Problem, sigma: float, seed: int) -> Problem:
    """Return ``problem`` with N(0, sigma^2) added to every component of grad f, J and g.

    One draw per forward pass: the pullbacks of one evaluation share it, as those of a minibatch would. The values of g
    have a draw of their own, independent of J's. The same seed and the same calls give the same numbers.

    >>> own = get("HS12").problem
    >>> x = np.ones(2)
    >>> one, other = (noisy(own, 0.1, seed=3).evaluate(x) for _ in range(2))
    >>> (one.constraints == other.constraints).item(), (one.constraints == own.evaluate(x).constraints).item()
    (True, False)
    """
    rng = np.random.default_rng(seed)

    def evaluate(x: Any) -> Evaluation:
        f, g, pullback = problem.evaluate(x)
        m, d = g.shape[-1], x.shape[-1]
        draw = sigma * rng.standard_normal(m + d + m * d)
        value, slope, J = draw[:m], draw[m : m + d], draw[m + d :].reshape(m, d)

        def noisy_pullback(w: Any, objective: Any = 1.0) -> Any:
            return pullback(w, objective) + objective * slope + w @ J

        return Evaluation(f, g + value, noisy_pullback)

    return replace(problem, evaluate=evaluate)


def judge(own: problems.TestProblem, x: Any) -> float:
    """Return the relative KKT residual of x on the problem without noise; infinity for a point that ran away."""
    if not np.isfinite(x).all() or np.abs(x).max() > 1e8:
        return float("inf")
    return float(certify(own.problem, x).relative.worst)


def noise(arguments: argparse.Namespace) -> None:
    """Tabulate the shares at 0.1 after noisy steps, at the last point and at the tail average."""
    steps, seed = arguments.steps, arguments.seed
    tasks = [(title, sigma, name, steps, seed) for title in SETTINGS for sigma in SIGMAS for name in PROBLEMS]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        found = dict(zip(tasks, pool.map(end, tasks, chunksize=len(PROBLEMS)), strict=True))
    study = Study("benchmarks.noise", "noise", part=noise_part(seed))
    runs = [
        {
            "setting": title,
            "sigma": sigma,
            "problem": name,
            "seed": seed,
            "last": float(last),
            "average": float(average),
        }
        for (title, sigma, name, _, _), (last, average) in found.items()
    ]
    study.replace(runs)
    text = noise_table(study.rows())
    print(text)
    study.write(text, f"{study.part}.md")


def noise_part(seed: int) -> str:
    """Return the name of the part of the study with this seed of the noise."""
    return f"noise-seed-{seed}" if seed else "noise"


def noise_table(runs: list[Row]) -> str:
    """Return the shares of problems at 0.1 for each setting, from the records of its runs."""
    found: dict[tuple[str, float], list[Row]] = {}
    for run in runs:
        found.setdefault((run["setting"], run["sigma"]), []).append(run)
    points, sigmas = ("last", "average"), list(dict.fromkeys(run["sigma"] for run in runs))
    rows = []
    for title in dict.fromkeys(run["setting"] for run in runs):
        groups = [(found[title, sigma], point) for sigma in sigmas for point in points]
        shares = [sum(run[point] <= 0.1 for run in group) / len(group) for group, point in groups]
        rows.append([title, *(f"{100 * share:.0f} %" for share in shares)])
    head = ["setting", *(f"sigma {sigma:g}, {point}" for sigma in sigmas for point in points)]
    return f"{markdown(head, rows)}\n\n{told(runs)}".rstrip()


@np.errstate(all="ignore")  # a diverging run overflows before it is noticed
def end(task: tuple[str, float, str, int, int]) -> tuple[float, float]:
    """Return the true residuals of the last point and of the tail average of one run."""
    title, sigma, name, steps, seed = task
    own, method = problems.get(name), SETTINGS[title]
    problem = noisy(own.problem, sigma, seed) if sigma else own.problem
    state = method.init(problem, own.x0)
    average, total = own.x0, 0.0
    for r in range(1, steps + 1):
        state = method.update(problem, state)
        weight = float(r**TAIL)
        total += weight
        average = average + (weight / total) * (state.probe.x - average)
        if r % 100 == 0 and not np.isfinite(state.x).all():
            break
    return judge(own, state.x), judge(own, average)


def deterministic(arguments: argparse.Namespace) -> None:
    """Tabulate how many problems reach 1e-3 without noise, asked every 100 steps, and the median number of steps."""
    tasks = [(title, name) for title in SETTINGS for name in PROBLEMS]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        found = dict(zip(tasks, pool.map(steps_to, tasks, chunksize=len(PROBLEMS)), strict=True))
    rows = []
    for title in SETTINGS:
        steps = [found[title, name][0] for name in PROBLEMS]
        missed = [name for name in PROBLEMS if not np.isfinite(found[title, name][0])]
        elsewhere = [name for name in PROBLEMS if name not in missed and not found[title, name][1]]
        solved = len(PROBLEMS) - len(missed)
        share = f"{100 * solved / len(PROBLEMS):.0f} %"
        count, median = f"{solved}/{len(PROBLEMS)}", f"{np.median(steps):.0f}"
        rows.append([title, count, share, median, ", ".join(missed), ", ".join(elsewhere)])
    head = ["setting", "at 1e-3", "share", "median steps", "not reached", "reached at another KKT point"]
    study = Study("benchmarks.noise", "noise", part="deterministic")
    study.replace(dict(zip(head, row, strict=True)) for row in rows)
    text = cells(study.rows())
    print(text)
    study.write(text, "deterministic.md")


@np.errstate(all="ignore")
def steps_to(task: tuple[str, str], tolerance: float = 1e-3, limit: int = 10_000) -> tuple[float, bool]:
    """Return after how many steps the last point is certified (infinity if never), and whether f there is as recorded.

    A problem may have KKT points other than its recorded answer, a maximum of f among them. f counts as recorded
    within 1e-2 (1 + |f*|).
    """
    title, name = task
    own, method = problems.get(name), SETTINGS[title]
    state = method.init(own.problem, own.x0)
    for r in range(1, limit + 1):
        state = method.update(own.problem, state)
        if r % 100 == 0:
            residual = judge(own, state.x)
            if residual <= tolerance:
                f, best = (float(own.problem.evaluate(x).objective) for x in (state.x, own.solution))
                return r, abs(f - best) <= 1e-2 * (1 + abs(best))
            if residual == float("inf"):
                break
    return float("inf"), False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("deterministic", "noise"))
    parser.add_argument("--steps", type=int, default=3000, help="steps of a noisy run")
    parser.add_argument("--seed", type=int, default=0, help="seed of the noise")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    {"deterministic": deterministic, "noise": noise}[arguments.table](arguments)


if __name__ == "__main__":
    main()
