"""Python calls and source files of the library on three walks: how far a reader has to follow one request.

1. ``minimize``: `gdpa.minimize` with ``maxiter=1`` on the projection of (2, 0) on the unit disc, jac given.
2. ``sqp step``: an accepted update of `AdaptiveGDPA` in its SQP phase, in `gdpa.solve` on HS43 (4 variables, 3
   constraints); the median one.
3. ``training step``: lagrangian, zero_grad, backward and step of `gdpa.torch.constrain` with 2 limits; the median one.

A call is a Python function, generator or comprehension of ``src/gdpa`` that is entered. Imports and first calls do not
count. With ``--files`` the calls of each file are listed.

    python -m benchmarks.walk [--files]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import gdpa

SOURCE = str(Path(gdpa.__file__).parent)
#: Walk -> (calls, files): at d52b689, and the goal.
BEFORE = {"minimize": (838, 43), "sqp step": (216, 24), "training step": (89, 16)}
GOAL = {"minimize": (450, 25), "sqp step": (140, 16), "training step": (45, 12)}


def count_calls(walk: Callable[[], object]) -> Counter[str]:
    """Return the number of calls made by ``walk``, by source file."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            calls[frame.f_code.co_filename[len(SOURCE) + 1 :]] += 1

    sys.setprofile(note)
    try:
        walk()
    finally:
        sys.setprofile(None)
    return calls


def minimize_once() -> object:
    """Make one step of `gdpa.minimize` on the disc."""
    return gdpa.minimize(
        lambda x: (x[0] - 2) ** 2 + x[1] ** 2,
        [0.5, 0.5],
        jac=lambda x: np.array([2 * (x[0] - 2), 2 * x[1]]),
        constraints={"type": "ineq", "fun": lambda x: 1 - x @ x, "jac": lambda x: -2 * x},
        options={"maxiter": 1},
    )


@dataclass(frozen=True)
class Walked(gdpa.AdaptiveGDPA):
    """AdaptiveGDPA that counts the calls of its accepted updates in the SQP phase."""

    seen: list[Counter[str]] = field(default_factory=list)

    def update(self, problem: gdpa.Problem, state: Any) -> Any:
        update = super().update
        found: list[Any] = []
        calls = count_calls(lambda: found.append(update(problem, state)))
        in_sqp = all("sqp" in type(one.phase).__name__.lower() for one in (state, *found))
        if in_sqp and state.step > 0 and (found[0].x != state.x).any():
            self.seen.append(calls)
        return found[0]


def train_once() -> Callable[[], Any]:
    """Return a training step of a small network under two limits."""
    import torch

    import gdpa.torch

    torch.manual_seed(0)
    net, x, y = torch.nn.Linear(8, 2), torch.randn(16, 8), torch.randn(16, 2)
    limits = gdpa.torch.Limits(mean=gdpa.torch.at_most(0.1), size=gdpa.torch.at_most(0.5))
    optimizer = gdpa.torch.constrain(torch.optim.AdamW(net.parameters()), limits)

    def step() -> None:
        out = net(x)
        values = {"mean": out.mean(), "size": out.square().mean()}
        loss = optimizer.lagrangian((out - y).square().mean(), values)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in range(20):  # the first batches calibrate
        step()
    return step


#: The matrices, linear terms and constants of f, g_1, g_2 and g_3 of HS43: x'Qx + c'x + r with diagonal Q.
HS43 = (
    np.array([[1.0, 1, 2, 1], [1, 1, 1, 1], [1, 2, 1, 2], [2, 1, 1, 0]]),
    np.array([[-5.0, -5, -21, 7], [1, -1, 1, -1], [-1, 0, 0, -1], [2, -1, 0, -1]]),
    np.array([0.0, -8, -10, -5]),
)


def sqp_steps() -> list[Counter[str]]:
    """Return the calls of each accepted update in the SQP phase on HS43, given by NumPy functions."""
    (q, *Q), (c, *C), (_, *r) = HS43
    problem = gdpa.from_functions(
        lambda x: (q * x + c) @ x,
        lambda x: (Q * x + C) @ x + r,
        gradient=lambda x: 2 * q * x + c,
        jacobian=lambda x: 2 * np.array(Q) * x + C,
    )
    method = Walked()
    gdpa.solve(problem, np.zeros(4), method)
    return method.seen


def walks() -> dict[str, Counter[str]]:
    """Return the calls of each walk by file."""
    minimize_once()
    step = train_once()
    return {
        "minimize": count_calls(minimize_once),
        "sqp step": _median(sqp_steps()),
        "training step": _median([count_calls(step) for _ in range(10)]),
    }


def _median(found: list[Counter[str]]) -> Counter[str]:
    return sorted(found, key=Counter.total)[len(found) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="list the calls of each file")
    options = parser.parse_args()
    print(f"{'walk':<14}  calls  files   at d52b689     goal")
    for name, calls in walks().items():
        before, goal = (f"{row[name][0]}, {row[name][1]}" for row in (BEFORE, GOAL))
        print(f"{name:<14}  {calls.total():5}  {len(calls):5}  {before:>11}  {goal:>7}")
        for file, count in calls.most_common() if options.files else ():
            print(f"    {count:4}  {file}")


if __name__ == "__main__":
    main()
