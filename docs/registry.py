"""Tables for the pages, made from the registry of methods, so that a new method needs no line in them.

A line ``[[methods]]`` becomes one ``:::`` entry per method, a line ``[[table 1]]`` the table of the methods' cards, and
a line ``[[conformance]]`` the problems that each method takes. ``python docs/registry.py`` prints both tables.
"""

from __future__ import annotations

import dataclasses
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from gdpa import (
    REALS,
    Algorithm,
    Ball,
    Box,
    Evaluation,
    MaxSteps,
    Problem,
    Simplex,
    UnsupportedProblemError,
    get_method,
    load_run,
    method_names,
    save_run,
    solve,
)
from gdpa.methods.method import MethodCard

STEPS = 4
START = np.full(2, 0.25)
SETS = {"box": Box(0.0, 2.0), "ball": Ball(2.0), "simplex": Simplex()}


def entries() -> str:
    """Return the reference of every method, in the order of the registry."""
    classes = [get_method(name) for name in method_names()]
    return "\n\n".join(f"::: {cls.__module__}.{cls.__name__}" for cls in classes)


def table1() -> str:
    """Return the paper's Table 1 as a Markdown table, made from the classes, and below it the methods it leaves out."""
    head = ("method", "name here", "framework", "constraint", "type", "loops", "complexity (Table 1)",
            "its own paper claims")  # fmt: skip
    lines = [head, ("---",) * len(head)]
    rows = [(name, getattr(get_method(name), "card", MethodCard())) for name in method_names()]
    for name, row in sorted(rows, key=lambda pair: not pair[1].in_table1):
        complexity = row.complexity if row.in_table1 else "not in Table 1"
        claim = row.own_claim or ("the same" if row.in_table1 else "no rate")
        kind = (row.framework, row.constraint, row.constraint_type, row.loops)
        lines.append((row.name or get_method(name).__name__, f"`{name}`", *kind, complexity, claim))
    return _markdown(lines)


def conformance() -> str:
    """Return a Markdown table of what each method takes, found by taking a few steps with it."""
    head = ("method", "batches", "resumes", "float32", "torch", "JAX", "sets besides the whole space", "inequalities",
            "equalities")  # fmt: skip
    rows = []
    for name in method_names():
        method: Any = get_method(name)()
        inequalities = _takes(method, _problem())
        plain = _problem() if inequalities else _problem(num_equalities=1)
        sets = [label for label, domain in SETS.items() if _takes(method, dataclasses.replace(plain, domain=domain))]
        answers = (
            _takes(method, plain, np.full((3, 2), 0.25)),
            _resumes(method, plain),
            _takes(method, plain, START.astype(np.float32)),
            _takes(method, plain, import_module("torch").full((2,), 0.25)),
            _takes(method, plain, import_module("jax.numpy").full((2,), 0.25)),
            "any" if len(sets) == len(SETS) else ", ".join(sets) or "refused",
            inequalities,
            _takes(method, _problem(num_equalities=1)),
        )
        cells = (answer if isinstance(answer, str) else "yes" if answer else "refused" for answer in answers)
        rows.append((f"`{name}`", *cells))
    return _markdown([head, ("---",) * len(head), *rows])


def _problem(num_equalities: int = 0, domain: Any = REALS) -> Problem:
    """Minimize |x - 1|^2 / 2 over x_0 + x_1 <= 1 (or = 1), in any array library and for batches."""

    def evaluate(x: Any) -> Evaluation:
        def pullback(w: Any, objective: float = 1.0) -> Any:
            return objective * (x - 1) + w

        return Evaluation(((x - 1) ** 2).sum(-1) / 2, x[..., :1] + x[..., 1:] - 1, pullback)

    return Problem(evaluate, num_constraints=1, num_equalities=num_equalities, domain=domain)


def _takes(method: Algorithm[Any], problem: Problem, x0: Any = START) -> bool:
    """Return whether the method takes the problem and keeps the library, shape and dtype of the start."""
    try:
        state = method.init(problem, x0)
    except UnsupportedProblemError:
        return False
    for _ in range(STEPS):
        state = method.update(problem, state)
    if (type(state.x), state.x.shape, state.x.dtype) != (type(x0), x0.shape, x0.dtype):
        raise AssertionError(f"{method} turns {x0!r} into {state.x!r}")
    return True


def _resumes(method: Algorithm[Any], problem: Problem) -> str:
    """Return whether a run that is saved, loaded and continued ends at the same bits as a straight one."""
    straight = solve(problem, START, method, stop=MaxSteps(2 * STEPS))
    with tempfile.TemporaryDirectory() as folder:
        save_run(Path(folder) / "run", solve(problem, START, method, stop=MaxSteps(STEPS)).run)
        continued = solve(problem, run=load_run(Path(folder) / "run"), stop=MaxSteps(2 * STEPS))
    same = np.array_equal(straight.x, continued.x) and np.array_equal(straight.multipliers, continued.multipliers)
    return "yes" if same else "no"


def _markdown(lines: list[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


PLACES = {"[[methods]]": entries, "[[table 1]]": table1, "[[conformance]]": conformance}


if __name__ == "__main__":
    print(f"{table1()}\n\n{conformance()}")
