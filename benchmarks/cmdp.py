"""Constrained Markov decision processes: the cost of an exact gradient, and twenty further random instances.

    python -m benchmarks.cmdp gradient                  one exact gradient beside one linear solve, |S| = 50, 200, 800
    python -m benchmarks.cmdp instances                 seeds 0 to 19, three thresholds each, every method
    python -m benchmarks.cmdp environments              FrozenLake 8x8 and CliffWalking with a budget

Tables are printed and saved under results/cmdp/, with what made them.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from benchmarks.provenance import Study, cells
from gdpa import GDPA, KKTBelow, MaxSteps, get_method, method_names, solve
from gdpa.paper.applications.cmdp import (
    NaturalPolicyGradient,
    TabularCMDP,
    as_problem,
    max_utility,
    policy_of,
    random_instance,
    solve_linear_program,
    start_of,
)

Parametrization = Literal["softmax", "direct"]
STEPS = 1000
ADAPTIVE_STEPS = 3000  # at most; it stops at a certificate of 1e-8
SEEDS = range(20)
LEVELS = (0.3, 0.6, 0.9)


def seconds(function: Callable[[], Any], number: int, repeats: int = 7) -> float:
    """Return the best mean time of ``number`` calls: what the code costs when nothing disturbs it."""
    best = np.inf
    for _ in range(repeats):
        clock = time.perf_counter()
        for _ in range(number):
            function()
        best = min(best, (time.perf_counter() - clock) / number)
    return best


def gradient(arguments: argparse.Namespace) -> None:
    """Time f, g and one weighted gradient together, beside np.linalg.solve of one system of the same size."""
    rows: list[list[Any]] = []
    for states, number in ((50, 1000), (200, 200), (800, 5)):
        cmdp = random_instance(seed=0, num_states=states)
        problem, x, w = as_problem(cmdp, check=False), start_of(cmdp, seed=0), np.ones(1)
        matrix, right = np.eye(states) - cmdp.discount * cmdp.transitions[:, 0], np.ones(states)
        ours = seconds(lambda: problem.evaluate(x).pullback(w), number)  # noqa: B023 - called at once
        one = seconds(lambda: np.linalg.solve(matrix, right), number)  # noqa: B023
        growth = "" if not rows else f"{np.log(ours / rows[-1][1]) / np.log(states / rows[-1][0]):.2f}"
        rows.append([states, ours, one, ours / one, growth])
    head = ["states", "gradient (s)", "one linear solve (s)", "ratio", "growth exponent"]
    save("gradient", head, [[s, f"{a:.2e}", f"{b:.2e}", f"{c:.2f}", d] for s, a, b, c, d in rows])


def contestants(cmdp: TabularCMDP) -> Iterable[tuple[str, Parametrization, Any]]:
    """Yield (name, parametrization, method)."""
    scale = 1 - cmdp.discount
    yield "GDPA, paper", "softmax", GDPA(alpha=1e3 * scale, beta=0.5, tau=0.1)
    yield "GDPA, direct", "direct", GDPA(alpha=10.0, beta=2.0, tau=0.1)
    eta1, eta2 = 2 * np.log(cmdp.num_actions), 2 * scale / np.sqrt(STEPS)
    yield "natural primal-dual", "softmax", NaturalPolicyGradient(cmdp, eta1=eta1, eta2=eta2)
    if "adaptive-gdpa" in method_names():
        yield "AdaptiveGDPA, direct", "direct", get_method("adaptive-gdpa")()


def compare(
    cmdp: TabularCMDP, setting: Sequence[Any], methods: Iterable[tuple[str, Parametrization, Any]], start: Any = None
) -> Iterable[list[Any]]:
    """Yield a row per method: where its returned point stands against the linear program.

    ``start`` is the policy to start from; default uniform.
    """
    optimum = solve_linear_program(cmdp)
    for name, parametrization, method in methods:
        adaptive = type(method).__name__ == "AdaptiveGDPA"
        result = solve(
            as_problem(cmdp, parametrization),
            start_of(cmdp, parametrization) if start is None else start.reshape(-1),
            method,
            stop=[KKTBelow(1e-8), MaxSteps(ADAPTIVE_STEPS)] if adaptive else MaxSteps(STEPS),
            tolerance=1e-8,
            record=0,
            check_every=1 if adaptive else 50,
        )
        x = result.x if adaptive else result.x_last
        multiplier = (result.multipliers if adaptive else result.multipliers_last)[0]
        reward, utilities = cmdp.returns(policy_of(cmdp, x, parametrization))
        gap = (optimum.reward - reward) / abs(optimum.reward)
        violation = cmdp.thresholds[0] - utilities[0]
        yield [
            *setting, f"{cmdp.thresholds[0]:.4f}", f"{optimum.reward:.6f}", f"{optimum.multipliers[0]:.4f}", name,
            f"{reward:.6f}", f"{gap:.1e}", f"{violation:.1e}", f"{multiplier:.4f}", result.steps,
            f"{result.seconds:.2f}",
        ]  # fmt: skip


HEAD = ["b", "optimum", "lambda*", "method", "reward", "gap", "violation", "multiplier", "steps", "seconds"]


def instances(arguments: argparse.Namespace) -> None:
    """Thresholds at 30, 60 and 90 % of the way from the unconstrained optimum's utility to the largest attainable."""
    rows: list[list[Any]] = []
    for seed in SEEDS:
        cmdp = random_instance(seed)
        low, high = solve_linear_program(cmdp, constrained=False).utilities[0], max_utility(cmdp)
        for level in LEVELS:
            asked = cmdp.with_thresholds([low + level * (high - low)])
            rows += compare(asked, [seed, f"{level:.0%}"], contestants(asked))
    save("instances", ["seed", "level", *HEAD], rows)
    summarize("instances-summary", rows, by=1)


def summarize(name: str, rows: Sequence[Sequence[Any]], by: int) -> None:
    """Save median and worst |gap| and violation per method and column ``by``."""
    column = {title: index - len(HEAD) for index, title in enumerate(HEAD)}
    table = []
    for method in dict.fromkeys(row[column["method"]] for row in rows):
        for key in dict.fromkeys(row[by] for row in rows):
            group = [row for row in rows if row[column["method"]] == method and row[by] == key]
            gaps = np.abs([float(row[column["gap"]]) for row in group])
            violations = np.maximum([float(row[column["violation"]]) for row in group], 0.0)
            both = np.maximum(gaps, violations)
            table.append(
                [method, key, len(group), f"{np.median(gaps):.1e}", f"{gaps.max():.1e}", f"{np.median(violations):.1e}",
                 f"{violations.max():.1e}", *(int((both <= limit).sum()) for limit in (1e-2, 1e-3, 1e-5))]
            )  # fmt: skip
    head = ["method", "level", "runs", "median abs gap", "worst abs gap", "median violation", "worst violation"]
    save(name, [*head, "both within 1e-2", "1e-3", "1e-5"], table)


def environments(arguments: argparse.Namespace) -> None:
    """FrozenLake's holes and CliffWalking's edge under a budget; CliffWalking also from exploring starts."""
    import gymnasium

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lake, cliff = gymnasium.make("FrozenLake-v1", map_name="8x8"), gymnasium.make("CliffWalking-v1")
    hole = {"holes": lambda s, a, s_next, reward, done: float(done and reward == 0)}
    edge = {"edge": lambda s, a, s_next, reward, done: float(24 <= s_next < 36)}
    exploring = np.append(np.full(37, 1 / 37), np.zeros(11))
    problems = {
        "FrozenLake 8x8, holes <= 0.02": TabularCMDP.from_gymnasium(lake, hole, {"holes": 0.02}, discount=0.99),
        "CliffWalking, exploring starts, edge <= 2": TabularCMDP.from_gymnasium(
            cliff, edge, {"edge": 2.0}, discount=0.95, start=exploring
        ),
        "CliffWalking, own start, edge <= 4": TabularCMDP.from_gymnasium(cliff, edge, {"edge": 4.0}, discount=0.95),
    }
    lake_name, exploring_name, own_name = problems
    by_hand = {lake_name: GDPA(100.0, 10.0, 0.1), exploring_name: GDPA(1.0, 1.0, 0.1), own_name: GDPA(0.1, 0.1, 0.1)}
    rows: list[list[Any]] = []
    for name, cmdp in problems.items():
        tuned: tuple[str, Parametrization, Any] = ("GDPA, direct, steps chosen by hand", "direct", by_hand[name])
        rows += compare(cmdp, [name], [*contestants(cmdp), tuned])
    # From its own start CliffWalking visits few states, and policies there have no gradient: start from a policy that
    # was learned with exploring starts.
    explored = problems[exploring_name]
    x = solve(
        as_problem(explored, "direct"), start_of(explored, "direct"), by_hand[exploring_name], stop=MaxSteps(STEPS)
    ).x_last
    cmdp, policy = problems[own_name], policy_of(explored, x, "direct")
    direct = [method for method in [*contestants(cmdp), tuned] if method[1] == "direct"]
    rows += compare(cmdp, [f"{own_name}, from the policy of exploring starts"], direct, start=policy)
    save("environments", ["environment", *HEAD], rows)


def save(name: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table and keep it: its rows in results/cmdp/records.jsonl, all of it in NAME.md."""
    study = Study("benchmarks.cmdp", "cmdp", part=name)
    study.replace(dict(zip(head, row, strict=True)) for row in rows)
    text = cells(study.rows())
    print(text)
    study.write(text, f"{name}.md")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("gradient", "instances", "environments"))
    arguments = parser.parse_args()
    {"gradient": gradient, "instances": instances, "environments": environments}[arguments.table](arguments)


if __name__ == "__main__":
    main()
