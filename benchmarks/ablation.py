"""What each rule of AdaptiveGDPA is worth: it is halved, doubled and switched off on development problems.

    python -m benchmarks.ablation [--jobs N] [--rules NAME ...] [--variants half double off] [--out FOLDER]

For each variant of each rule: how many problems are solved (a KKT certificate at 1e-6, 1e-2 for networks, or the right
verdict), which are lost and gained, and the geometric mean of the ratio of forward and backward passes on the problems
that both variants solve. Everything is counted, nothing is timed, so the table is the same on every machine.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is loaded: processes, not threads

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.ablation_cases import Case, all_cases
from benchmarks.provenance import Study, markdown, told
from gdpa import AdaptiveGDPA, KKTBelow, MaxOracleCalls, MaxSteps, solve
from gdpa.methods.adaptive import Rules

#: Parameters of the method, and what switches them off.
PARAMETERS = {"beta": None, "memory": 1}
#: Constants of the numerics: module, name, and what switches it off. Three have no row: `pairs.SPARE` and
#: `sparse.DENSE_LIMIT` decide on memory, and `model.SMALL` on time, not on a step.
NUMERICS = (
    ("lbfgs", "POWELL", None),
    ("lbfgs", "FLAT", 0.0),
    ("lbfgs", "SHRINKING", 1.0),
    ("qp", "ROUNDS", 1),
    ("model", "PRIMAL_TOLERANCE", None),
    ("qp", "WORKING_SET", 10**9),
)
#: The same of the sparse algebra, which the sparse problems alone can tell.
SPARSE = (
    ("sparse", "FEW_COLUMNS", 10**9),
    ("sparse", "FEW_ROWS", 0),
    ("sparse", "FULL", 0.0),
    ("sparse_kkt", "WIDEST_BAND", 0),
    ("sparse_kkt", "LONGEST", 0),
    ("sparse_program", "PREDICTED", 0.0),
    ("sparse_program", "STIFFER", 1.0),
    ("sparse_model", "ROUNDS", 0),
    ("sparse_model", "FLOOR", 0.0),
    ("sparse_model", "FIRST_SHIFT", None),
    ("sparse_model", "GROWTH", None),
    ("sparse_model", "CLEARLY", 1.0),
    ("sparse_model", "LEAST", 0.0),
    ("sparse_model", "SIGNLESS", 0.0),
    ("sparse_interior", "ITERATIONS", None),
    ("sparse_interior", "ACCURACY", None),
    ("sparse_interior", "PRODUCTS", None),
    ("sparse_interior", "KEPT", None),
    ("sparse_interior", "MARGIN", None),
    ("sparse_interior", "SHARE", None),
    ("sparse_interior", "LEAST_GRADIENT", 0.0),
)
#: Where the constants of these names are, in `gdpa.numerics`.
PLACES = {
    "small_qp": "qp",
    "sparse": "sparse.matrix",
    "sparse_kkt": "sparse.factor",
    "sparse_program": "sparse.program",
    "sparse_model": "sparse.model",
    "sparse_interior": "sparse.interior",
}
#: Factors of a loop that ends for factors above 1 alone: their exponent is halved and doubled.
FACTORS = ("sparse_model.GROWTH",)
#: Runs that one task of a process makes.
CHUNK = 40


class Variant(NamedTuple):
    """One rule with another value; no rule is the method as it is."""

    rule: str = ""
    kind: str = "default"
    value: Any = None

    @property
    def is_sparse(self) -> bool:
        """Whether only sparse problems can tell it from the method as it is."""
        return self.rule.startswith("sparse")


def constant_of(place: str, name: str) -> Any:
    """Return a constant of `gdpa.numerics`."""
    return getattr(import_module(f"gdpa.numerics.{PLACES.get(place, place)}"), name)


def variants() -> list[Variant]:
    """Return all variants of all rules."""
    found = [Variant()]
    named: list[tuple[str, Any, Any]] = [(rule.name, rule.default, rule.metadata["off"]) for rule in fields(Rules)]
    named += [(name, getattr(AdaptiveGDPA, name), off) for name, off in PARAMETERS.items()]
    for module, name, off in NUMERICS + SPARSE:
        named.append((f"{module}.{name}", constant_of(module, name), off))
    for name, value, off in named:
        whole = isinstance(value, int)
        half, double = max(1, value // 2) if whole else value / 2, 2 * value
        if name in FACTORS:
            half, double = value**0.5, value**2
        found += [Variant(name, "half", half), Variant(name, "double", double)]
        if off is not None:
            found.append(Variant(name, "off", off))
    return found


@contextmanager
def method(variant: Variant) -> Iterator[AdaptiveGDPA]:
    """Give the method with the variant in force."""
    name, value = variant.rule, variant.value
    if not name:
        yield AdaptiveGDPA()
    elif name in PARAMETERS:
        yield replace(AdaptiveGDPA(), **{name: value})
    elif "." not in name:
        yield AdaptiveGDPA(rules=replace(Rules(), **{name: value}))
    else:
        place, constant = name.split(".")
        before = constant_of(place, constant)
        users = [  # the module itself, and those that import the constant from it
            module for path, module in sys.modules.items()
            if path.startswith("gdpa.") and vars(module).get(constant) is before
        ]  # fmt: skip
        for module in users:
            setattr(module, constant, value)
        try:
            yield AdaptiveGDPA()
        finally:
            for module in users:
                setattr(module, constant, before)


@lru_cache
def cases() -> list[Case]:
    """Return the problems, built once in each process."""
    return all_cases()


def passes(case: Case, algorithm: AdaptiveGDPA) -> int:
    """Return the passes of a run, or -1 if its result is wrong (never 0)."""
    problem, x0 = case.make()
    stop = (KKTBelow(case.tolerance), MaxOracleCalls(case.forwards), MaxSteps(2 * case.forwards))
    try:
        with np.errstate(all="ignore"):
            result = solve(
                problem, x0, replace(algorithm, step=case.step), stop=stop, tolerance=case.tolerance, record=0
            )
    except (ArithmeticError, ValueError, np.linalg.LinAlgError):  # a variant may break the method
        return -1
    return result.forwards + result.backwards if case.is_right(result) else -1


def run(task: tuple[Variant, int]) -> list[int]:
    """Return the passes of a chunk of the problems under one variant."""
    variant, start = task
    try:
        import torch

        torch.set_num_threads(1)
    except ImportError:
        pass
    with method(variant) as algorithm:
        return [
            passes(case, algorithm) if case.is_sparse or not variant.is_sparse else 0
            for case in cases()[start : start + CHUNK]
        ]


def row(variant: Variant, counts: list[int], base: list[int], names: list[str]) -> dict[str, Any]:
    """Return the record of one variant."""
    pairs = list(zip(names, base, counts, strict=True))
    both = [np.log(new / old) for _, old, new in pairs if old > 0 and new > 0]
    return {
        "rule": variant.rule,
        "variant": variant.kind,
        "value": None if variant.value is None else float(variant.value),
        "solved": sum(count > 0 for count in counts),
        "passes": round(float(np.exp(np.mean(both))), 4),
        "lost": [name for name, old, new in pairs if old > 0 > new],
        "gained": [name for name, old, new in pairs if new > 0 > old],
        "missed": [name for name, _, new in pairs if new < 0] if not variant.rule else None,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the records as a table, with what made them."""
    (base,) = (r for r in rows if r["variant"] == "default")
    lines = []
    for r in rows:
        if r is not base:
            lost = ", ".join(r["lost"][:3]) + (f" and {len(r['lost']) - 3} more" if len(r["lost"]) > 3 else "")
            change = f"-{len(r['lost'])} +{len(r['gained'])}"
            lines.append(
                (r["rule"], r["variant"], f"{r['value']:g}", change, f"{100 * (r['passes'] - 1):+.1f} %", lost)
            )
    head = ("rule", "variant", "value", "solved", "passes", "lost")
    missed = f"The method as it is solves {base['solved']} problems and misses: {'; '.join(base['missed'])}."
    return f"{missed}\n\n{markdown(head, lines)}\n\n{told(rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--rules", nargs="*", help="the rules to vary; default all")
    parser.add_argument("--variants", nargs="*", default=["half", "double", "off"])
    parser.add_argument("--out", type=Path, help="a folder instead of results/ablation")
    options = parser.parse_args()
    wanted = [
        v for v in variants()
        if not v.rule or (v.kind in options.variants and (options.rules is None or v.rule in options.rules))
    ]  # fmt: skip
    names = [case.name for case in cases()]
    tasks = [(variant, start) for variant in wanted for start in range(0, len(names), CHUNK)]
    study = Study("benchmarks.ablation", "ablation", ("rule", "variant"), out=options.out)
    base: list[int] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        chunks = pool.map(run, tasks)
        for variant in wanted:
            counts = [count for _ in range(0, len(names), CHUNK) for count in next(chunks)]
            base = base or counts
            counts = [count or same for count, same in zip(counts, base, strict=True)]
            found = study.add(row(variant, counts, base, names))
            change = f"-{len(found['lost'])} +{len(found['gained'])} passes {found['passes']:.3f}"
            print(f"{variant.rule:<22} {variant.kind:<8} {change}  {found['lost'][:4]}", file=sys.stderr, flush=True)
    order = [(variant.rule, variant.kind) for variant in variants()]
    study.keep(sorted((r for r in study.rows() if study.key(r) in order), key=lambda r: order.index(study.key(r))))
    text = table(study.rows())
    study.write(text)
    print(text)


if __name__ == "__main__":
    main()
