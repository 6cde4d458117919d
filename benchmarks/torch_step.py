"""What constraints cost per training step, side by side in one run.

    python -m benchmarks.torch_step [--rounds 100] [--save]      --save: keep the record in results/torch_step/

Everything is timed against the same graph with fixed weights, ``f + w . g``, and the same primal optimizer: the cost of
knowing g at all is not charged to anyone. All methods train the same network, and all are built several times, because
the place of their objects in memory moves a figure by some microseconds. They are timed in turn, in random order: ten
steps that are not timed (of the large network one), then ten that are, which hold one average of the weights. The
figure is the tenth percentile over these blocks of the CPU time of one thread, which other processes disturb least,
averaged over builds. `GDPA` has a primal step of its own, cheaper than that of torch's SGD; "fixed weights, GDPA's
primal step" is the row that tells the cost of its constraints alone. "Python calls" are the functions that a step
enters, the network's and torch's included. On the large network, "fixed weights, gradients read once" adds a sum over
each gradient: no test of all gradients can cost less. Cooper and humancompatible-train take part if they are installed.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import gdpa
import gdpa.torch

Step = Callable[[], None]

#: Steps that are timed together: the interval at which `constrain` averages the weights.
BLOCK = 10


class Task:
    """A two-layer network with a mean-square objective and two constraints on its outputs."""

    def __init__(self, widths: tuple[int, ...], batch: int = 64) -> None:
        torch.manual_seed(0)
        layers: list[torch.nn.Module] = []
        for a, b in itertools.pairwise(widths):
            layers += [torch.nn.Linear(a, b), torch.nn.Tanh()]
        self.net = torch.nn.Sequential(*layers[:-1])
        self.x, self.y = torch.randn(batch, widths[0]), torch.randn(batch, widths[-1])

    def values(self, absent: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.net(self.x)
        second = out[:0].mean() if absent else out.square().mean() - 0.5
        return (out - self.y).square().mean(), torch.stack([out.mean() - 0.1, second])

    def sgd(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.net.parameters(), lr=1e-3)


def fixed_weights(task: Task, opt: Any = None) -> Step:
    opt, w = opt or task.sgd(), torch.tensor([0.5, 0.5])

    def step() -> None:
        opt.zero_grad()
        f, g = task.values()
        (f + torch.dot(g, w)).backward()
        opt.step()

    return step


def gradients_read(task: Task) -> Step:
    """Fixed weights, and one pass over the gradients."""
    step, params = fixed_weights(task), list(task.net.parameters())

    def read() -> None:
        step()
        for p in params:
            if p.grad is not None:
                p.grad.sum()

    return read


def ours(task: Task, how: str = "plain", rule: str = "feedback") -> Step:
    """A step of `constrain` around SGD: plain, with counts, or with one of the groups absent (count 0, or NaN)."""
    opt = gdpa.torch.constrain(task.sgd(), ["a", "b"], rule=rule, nan="absent" if how == "nan" else "skip")
    if rule == "feedback":
        opt.calibrate(task.values() for _ in range(8))
    counts = {"plain": None, "nan": None, "counts": [64, 32], "absent": [64, 0]}[how]

    def step() -> None:
        opt.zero_grad()
        f, g = task.values(absent=how == "nan")
        opt.lagrangian(f, g, counts=counts).backward()
        opt.step()

    return step


def paper(task: Task) -> Step:
    opt = gdpa.torch.GDPA(task.net.parameters(), 2, lr=1e-3)

    def step() -> None:
        opt.zero_grad()
        f, g = task.values()
        opt.lagrangian(f, g).backward()
        opt.step()

    return step


def cooper_steps(task: Task, scheme: str, formulation: str) -> Step:
    import cooper

    class Problem(cooper.ConstrainedMinimizationProblem):
        def __init__(self) -> None:
            super().__init__()
            multiplier = cooper.multipliers.DenseMultiplier(num_constraints=2)
            extra = {}
            if formulation == "AugmentedLagrangian":
                extra["penalty_coefficient"] = cooper.penalty_coefficients.DensePenaltyCoefficient(init=torch.ones(2))
            self.g = cooper.Constraint(
                constraint_type=cooper.ConstraintType.INEQUALITY,
                formulation_type=getattr(cooper.formulations, formulation),
                multiplier=multiplier,
                **extra,
            )

        def compute_cmp_state(self) -> Any:
            f, g = task.values()
            return cooper.CMPState(loss=f, observed_constraints={self.g: cooper.ConstraintState(violation=g)})

    problem = Problem()
    dual = torch.optim.SGD(problem.dual_parameters(), lr=1e-2, maximize=True)
    opt = getattr(cooper.optim, scheme)(cmp=problem, primal_optimizers=task.sgd(), dual_optimizers=dual)
    return lambda: opt.roll()


def hct_steps(task: Task, name: str, **kwargs: Any) -> Step:
    from humancompatible.train import dual_optim

    dual, opt = getattr(dual_optim, name)(m=2, **kwargs), task.sgd()

    def step() -> None:
        opt.zero_grad()
        f, g = task.values()
        dual.forward_update(f, g).backward()
        opt.step()

    return step


METHODS: dict[str, Callable[[Task], Step]] = {
    "fixed weights": fixed_weights,
    "fixed weights again": fixed_weights,
    "fixed weights, GDPA's primal step": lambda task: fixed_weights(
        task, gdpa.torch.GDPA(task.net.parameters(), 0, lr=1e-3)
    ),
    "fixed weights, gradients read once": gradients_read,
    "gdpa GDPA (paper)": paper,
    "gdpa constrain(SGD)": ours,
    "gdpa constrain, counts": lambda task: ours(task, "counts"),
    "gdpa constrain, one group absent": lambda task: ours(task, "absent"),
    "gdpa constrain, one group NaN": lambda task: ours(task, "nan"),
    "gdpa constrain, rule spbm": lambda task: ours(task, rule="spbm"),
    "gdpa constrain, rule ssl-alm": lambda task: ours(task, rule="ssl-alm"),
    "hct PBM (SPBM)": lambda task: hct_steps(task, "PBM", epoch_length=100),
    "hct ALM": lambda task: hct_steps(task, "ALM", is_ineq=True),
    "hct ALM hpr (SSL-ALM)": lambda task: hct_steps(task, "ALM", is_ineq=True, penalty=1.0, augmentation="hpr"),
    "hct nuPI": lambda task: hct_steps(task, "nuPI", is_ineq=True),
    "Cooper Lagrangian, simultaneous": lambda task: cooper_steps(task, "SimultaneousOptimizer", "Lagrangian"),
    "Cooper Lagrangian, dual first": lambda task: cooper_steps(task, "AlternatingDualPrimalOptimizer", "Lagrangian"),
    "Cooper augmented, dual first": lambda task: cooper_steps(
        task, "AlternatingDualPrimalOptimizer", "AugmentedLagrangian"
    ),
}


def compare(
    widths: tuple[int, ...], rounds: int, builds: int, names: list[str], untimed: int = BLOCK
) -> dict[str, dict[str, float]]:
    """Time blocks of steps of ``builds`` instances of every method, ``rounds`` times, after ``untimed`` steps each."""
    made: list[tuple[str, int, Step, list[float]]] = []
    calls: dict[str, float] = {}
    order, missing = random.Random(0), {}
    for build in range(builds):
        task = Task(widths)
        for name in order.sample(names, len(names)):
            try:
                step = METHODS[name](task)
            except ImportError as error:
                missing[name] = str(error)
                continue
            for _ in range(BLOCK):
                step()
            calls[name] = calls_of(step)
            made.append((name, build, step, []))
    for _ in range(rounds):
        order.shuffle(made)
        for _, _, step, times in made:
            for _ in range(untimed):  # another method has run: its code and data are in the caches
                step()
            start = time.process_time()
            for _ in range(BLOCK):
                step()
            times.append((time.process_time() - start) / BLOCK * 1e6)
    for name, reason in missing.items():
        print(f"  {name}: not installed ({reason})")
    us = {(name, build): sorted(times)[len(times) // 10] for name, build, _, times in made}
    found = {}
    for name in names:
        if name in calls:
            pairs = [(us[name, build], us["fixed weights", build]) for build in range(builds)]
            over = [own - floor for own, floor in pairs]
            found[name] = {
                "us": statistics.mean(own for own, _ in pairs),
                "over_us": statistics.mean(over),
                "ratio": statistics.mean(own / floor for own, floor in pairs),
                "spread_us": max(over) - min(over),
                "calls": calls[name],
            }
    return found


def calls_of(step: Step) -> float:
    """Return how many Python functions a step enters, a figure that no other process disturbs."""
    counted = 0

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        for _ in range(BLOCK):
            step()
    finally:
        sys.setprofile(None)
    return counted / BLOCK


def many_constraints(m: int = 100_000, d: int = 1000) -> dict[str, float]:
    """The dual update of m constraints alone, and a whole step with g = A x - b."""
    torch.manual_seed(0)
    A, x = torch.randn(m, d) / d**0.5, torch.nn.Parameter(torch.zeros(d))
    opt = gdpa.torch.GDPA([x], m, lr=1e-4)
    times: dict[str, list[float]] = {"dual_ms": [], "lagrangian_ms": [], "step_ms": [], "floor_ms": []}
    w = torch.rand(m)
    for _ in range(15):
        opt.zero_grad()
        t0 = time.process_time()
        f, g = (x - 1).square().sum(), A @ x - 0.1
        t1 = time.process_time()
        loss = opt.lagrangian(f, g)
        t2 = time.process_time()
        loss.backward()
        opt.step()
        t3 = time.process_time()
        values = g.detach().double()
        t4 = time.process_time()
        opt.dual_state.advance(values, None)
        t5 = time.process_time()
        x.grad = None
        t6 = time.process_time()
        f, g = (x - 1).square().sum(), A @ x - 0.1
        (f + torch.dot(g, w)).backward()
        t7 = time.process_time()
        for key, value in zip(times, (t5 - t4, t2 - t1, t3 - t0, t7 - t6), strict=True):
            times[key].append(1e3 * value)
    return {key: statistics.median(value) for key, value in times.items()}


def few_present(m: int = 100_000, present: int = 1000, d: int = 50) -> dict[str, float]:
    """A step with m constraints of which one per cent has samples, beside the same graph with fixed weights."""
    torch.manual_seed(0)
    x, A = torch.nn.Parameter(torch.zeros(d)), torch.randn(m, d) / d**0.5
    opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=1e-4), m, average=False)
    opt.calibrate(((x - 1).square().sum(), A @ x + 0.1) for _ in range(1))
    w = torch.rand(m)
    times: dict[str, list[float]] = {"step_ms": [], "floor_ms": []}
    for _ in range(15):
        counts = torch.zeros(m)
        counts[torch.randperm(m)[:present]] = 1.0
        start = time.process_time()
        opt.zero_grad()
        opt.lagrangian((x - 1).square().sum(), A @ x - 0.1, counts=counts).backward()
        opt.step()
        middle = time.process_time()
        x.grad = None
        ((x - 1).square().sum() + torch.dot(A @ x - 0.1, w)).backward()
        end = time.process_time()
        times["step_ms"].append(1e3 * (middle - start))
        times["floor_ms"].append(1e3 * (end - middle))
    return {key: statistics.median(value) for key, value in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--large-rounds", type=int, default=10)
    parser.add_argument("--builds", type=int, default=4, help="instances of every method")
    parser.add_argument("--save", action="store_true", help="keep the record in results/torch_step/")
    args = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.processor() or platform.machine(),
        "rounds": args.rounds,
        "builds": args.builds,
    }
    print("two-layer network, batch 64, 2 constraints: CPU microseconds a step")
    small = [name for name in METHODS if name != "fixed weights, gradients read once"]
    record["small"] = compare((16, 32, 2), args.rounds, args.builds, small)
    show(record["small"])
    print("\n10 million parameters, batch 64")
    ours_large = ("gdpa GDPA (paper)", "gdpa constrain(SGD)")
    large = [name for name in METHODS if name.startswith("fixed") or name in ours_large]
    record["large"] = compare((1000, 2500, 2500, 500), args.large_rounds, args.builds, large, untimed=1)
    show(record["large"])
    print("\n100,000 constraints, 1,000 parameters")
    record["many"] = many_constraints()
    for key, value in record["many"].items():
        print(f"  {key:<14} {value:8.2f}")
    print("\n100,000 constraints, 1,000 of them present, 50 parameters")
    record["few_present"] = few_present()
    for key, value in record["few_present"].items():
        print(f"  {key:<14} {value:8.2f}")
    if args.save:
        from benchmarks.provenance import Study

        study = Study("benchmarks.torch_step", "torch_step")
        study.write(table(study.replace([record])))


def table(rows: list[dict[str, Any]]) -> str:
    """Return the record as Markdown tables."""
    from benchmarks.provenance import markdown, told

    (row,) = rows
    steps = [
        [name, f"{found['over_us']:+.0f}", f"{found['ratio']:.3f}", f"{found['us']:.0f}", f"{found['calls']:.0f}"]
        for name, found in row["small"].items()
    ]
    large = [[name, f"{found['ratio']:.3f}"] for name, found in row["large"].items() if name != "fixed weights"]
    many = [
        [what, f"{times['step_ms']:.1f}", f"{times['floor_ms']:.1f}"]
        for what, times in (("all of them present", row["many"]), ("1,000 of them present", row["few_present"]))
    ]
    parts = (
        markdown(
            ["two-layer network, 2 constraints", "us a step over fixed weights", "ratio", "us", "Python calls"],
            steps,
        ),
        markdown(["10 million parameters, 2 constraints", "ratio to fixed weights"], large),
        markdown(["100,000 constraints", "ms a step", "with fixed weights"], many),
        told(rows),
    )
    return "\n\n".join(parts)


def show(table: dict[str, dict[str, float]]) -> None:
    print(f"  {'':<34} {'us/step':>10} {'over fixed':>11} {'ratio':>7} {'spread':>7} {'calls':>6}")
    for name, row in table.items():
        print(
            f"  {name:<34} {row['us']:>10.1f} {row['over_us']:>+11.1f} {row['ratio']:>7.3f} {row['spread_us']:>7.1f} "
            f"{row['calls']:>6.0f}"
        )


if __name__ == "__main__":
    main()
