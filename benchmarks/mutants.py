"""Mutation testing of the core: change one operator, comparison, constant or condition, and see whether a test fails.

    python -m benchmarks.mutants [--jobs 2] [--sample 0] [--files lagrangian certificate] [--seed 0] [--out FOLDER]

The tests of a file are those named beside it in `TESTS` and the file's own examples. They run once without a mutant;
that tells which of them execute a line, and how long each takes. A mutant then runs in a copy of the package of its
own the tests that execute its line, the quickest first, and all of them if the line is executed at import. It is killed
if a test fails or exceeds its limit of time; a survivor is listed with its line. Tests that fail without a mutant (a
library is missing) are left out and counted. A record is written as soon as its mutant is done, and a finished mutant
is not run again; with --again a survivor is, after tests were added or without a --budget.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import math
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.mutant_runs import PACKAGE, Measured, killer, measured

#: A mutant of a formula is the same in every array library: NumPy's tests are enough, and JAX is slow to load.
NUMPY = ["-k", "not jax and not torch"]
#: The tests that must notice a change of a file or folder of the package, the quickest first.
TESTS = {
    "core/lagrangian.py": ["tests/methods/test_by_hand.py", "tests/core/test_lagrangian.py", *NUMPY],
    "core/certificate.py": [
        "tests/core/test_certificate.py",
        "tests/core/test_units.py",
        "tests/run/test_success.py",
        *NUMPY,
    ],
    "methods/gdpa.py": [
        "tests/methods/test_by_hand.py",
        "tests/methods/test_presets.py",
        "tests/methods/test_gdpa.py",
        *NUMPY,
    ],
    "methods/adaptive": [
        "tests/test_docs_adaptive.py::test_the_page_prints_the_rules",
        "tests/methods/test_adaptive_by_hand.py",
        "tests/methods/test_adaptive_decisions.py",
        "tests/methods/test_adaptive_gdpa.py",
        "tests/methods/test_adaptive_choice.py",
        "tests/methods/test_adaptive_verdicts.py",
        "tests/methods/test_adaptive_units.py",
        *NUMPY,
    ],
    "torch/rules": ["tests/torch/test_rules.py", "tests/torch/test_state.py", "tests/torch/test_paper.py"],
}
#: Survivors that no test can kill, and why: they compute the same.
EQUIVALENT = {
    (
        "core/lagrangian.py",
        "0.0 if xp is np else xp.zeros_like(updated) -> 0.0",
    ): "array libraries take the number as well",
    ("core/certificate.py", "r + finite -> r - finite"): "`finite` is 0 or NaN",
    **{
        ("core/certificate.py", f"0 * now.objective + total(0 * g){change}"): "a sum of numbers that are 0 or NaN"
        for change in (
            " -> 0 * now.objective - total(0 * g)",
            " + total(0 * gradient) -> 0 * now.objective + total(0 * g) - total(0 * gradient)",
        )
    },
    (
        "methods/adaptive/sqp_step.py",
        "g.shape[-1] - problem.num_equalities -> g.shape[-1] + problem.num_equalities",
    ): "the slackness of an equality is at most its violation",
    (
        "torch/rules/damped.py",
        "0.0 -> 1.0",
    ): "`size` is 0 there",  # before it moved to feedback.py, which has other zeros
    ("torch/rules/feedback.py", "1.0 + 0.0 * size -> 1.0 - 0.0 * size"): "`size` is 0 there",
    ("torch/rules/published.py", "t >= -0.5 -> t > -0.5"): "both branches give 1/2 there",
}
#: Where the files of older records are now.
MOVED = {
    "lagrangian.py": "core/lagrangian.py",
    "kkt.py": "core/certificate.py",
    "algorithms/adaptive/sqp_step.py": "methods/adaptive/sqp_step.py",
    "torch/rules/damped.py": "torch/rules/feedback.py",
    "torch/rules/peers.py": "torch/rules/published.py",
}
ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult}
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
REVERSED = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}


class Mutant(NamedTuple):
    """A changed file.

    Args:
        path: the file, relative to the package.
        line: where the change is.
        change: what was changed.
        source: the new text.
        statement: the lines of the statement that was changed, without its body.
        at_import: whether the statement is executed at import, so that every test may notice the change.
    """

    path: str
    line: int
    change: str
    source: str
    statement: range
    at_import: bool

    @property
    def key(self) -> str:
        return hashlib.sha256(f"{self.path}\n{self.source}".encode()).hexdigest()[:16]


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """Yield every mutant of a module.

    >>> source = "def f(a):\\n    return a + 1 if a < 0 else -a\\n"
    >>> [m.change for m in mutants_of("m.py", source)]  # doctest: +NORMALIZE_WHITESPACE
    ['a + 1 if a < 0 else -a -> a + 1', 'a < 0 -> a <= 0', 'a < 0 -> a > 0', 'a + 1 -> a - 1', '-a -> a', '0 -> 1',
     '1 -> 2']
    """
    tree = ast.parse(source)
    skipped = {id(n) for f in ast.walk(tree) for n in _not_executed(f)}
    statements = {id(node): (lines, at_import) for node, lines, at_import in _statements(tree)}
    for node in ast.walk(tree):
        if id(node) in skipped or not hasattr(node, "lineno"):
            continue
        for new in _changes(node):
            before, after = ast.unparse(node), ast.unparse(new)
            changed = ast.unparse(_Replace(node, new).visit(ast.parse(source)))
            short = before if len(before) <= 60 else before[:57] + "..."
            yield Mutant(path, node.lineno, f"{short} -> {after[:60]}", changed, *statements[id(node)])


def _statements(
    node: ast.AST, lines: range = range(0), at_import: bool = True
) -> Iterator[tuple[ast.AST, range, bool]]:
    """Yield each node under ``node`` with the lines of its statement and whether that is executed at import."""
    for child in ast.iter_child_nodes(node):
        own, early = lines, at_import
        if isinstance(child, ast.stmt):
            own, early = _header(child), at_import and not isinstance(node, ast.FunctionDef)
        yield child, own, early
        yield from _statements(child, own, early)


def _header(statement: ast.stmt) -> range:
    """Return the lines of a statement without those of its body."""
    body = getattr(statement, "body", None)
    end = max(statement.lineno + 1, body[0].lineno) if body else (statement.end_lineno or statement.lineno) + 1
    first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
    return range(first, end)


def _not_executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of ``node`` that no test can notice: annotations, docstrings, messages of errors."""
    parts: list[ast.AST | None] = []
    if isinstance(node, (ast.FunctionDef, ast.arg)):
        parts.append(node.returns if isinstance(node, ast.FunctionDef) else node.annotation)
    if isinstance(node, ast.AnnAssign):
        parts.append(node.annotation)
    if isinstance(node, (ast.Raise, ast.JoinedStr)):
        parts.append(node)
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        parts.append(node)
    for part in parts:
        if part is not None:
            yield from ast.walk(part)


def _changes(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        yield ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        for table in (COMPARISONS, REVERSED):
            if type(node.ops[0]) in table:
                yield ast.Compare(node.left, [table[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield node.body
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, float):
        yield ast.Constant(node.value * 2 or 1.0)


class _Replace(ast.NodeTransformer):
    """Replaces the node at the place of ``old`` (line, column, kind) in another parse of the same source."""

    def __init__(self, old: ast.AST, new: ast.expr) -> None:
        self._place, self._new = _place(old), new

    def visit(self, node: ast.AST) -> ast.AST:
        if hasattr(node, "lineno") and _place(node) == self._place:
            return ast.copy_location(copy.deepcopy(self._new), node)
        return self.generic_visit(node)


def _place(node: ast.AST) -> tuple[object, ...]:
    return (type(node), *(getattr(node, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")))


def chosen(names: list[str], sample: int, seed: int) -> dict[str, list[Mutant]]:
    """Return ``sample`` mutants of each file (0 takes all), by the entry of `TESTS`."""
    found: dict[str, list[Mutant]] = {}
    for place in TESTS:
        for name in files_of(place):
            if names and not any(word in name for word in names):
                continue
            mutants = list(mutants_of(name, (PACKAGE / name).read_text()))
            if sample and len(mutants) > sample:
                mutants = random.Random(f"{seed} {name}").sample(mutants, sample)
            found.setdefault(place, []).extend(mutants)
    return found


def files_of(place: str) -> list[str]:
    """Return the files of an entry of `TESTS`, relative to the package."""
    path = PACKAGE / place
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [file.relative_to(PACKAGE).as_posix() for file in files]


def judged(mutant: Mutant, tests: Measured, kills: Counter[str], budget: float = math.inf) -> str | None:
    """Return the test that kills a mutant, None if it survives those that may notice it.

    Tests that have killed many mutants in little time come first, then the quickest. Those beyond the budget, a sum of
    times without a mutant, are left out: a mutant that only they would kill counts as a survivor.
    """
    names = list(tests.seconds) if mutant.at_import else tests.executing(mutant.path, mutant.statement)
    if not names:
        return None
    names.sort(key=lambda name: (-kills[name] / tests.seconds[name], tests.seconds[name]))
    spent = accumulate(tests.seconds[name] for name in names)
    few = {name: tests.seconds[name] for name, sum_so_far in zip(names, spent, strict=True) if sum_so_far <= budget}
    found = killer(mutant.path, mutant.source, few or {names[0]: tests.seconds[names[0]]})
    if found in tests.seconds:
        kills[found] += 1
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Return the share of killed mutants of each file and the survivors, in Markdown."""
    from benchmarks.provenance import markdown, told

    rows = sorted(rows, key=lambda row: (row["path"], row["line"], row["change"]))
    body = []
    for name in [*dict.fromkeys(str(row["path"]) for row in rows), "all"]:
        some = [row for row in rows if name in ("all", row["path"])]
        killed = sum(bool(row["killed"]) for row in some)
        body.append((name, len(some), killed, f"{killed / len(some):.1%}"))
    alive = [row for row in rows if not row["killed"]]
    listed = [
        f"- `{row['path']}:{row['line']}` `{row['change']}`" + (f" (equivalent: {why})" if why else "")
        for row in alive
        for path in [row["path"]]
        for why in [EQUIVALENT.get((path, row["change"])) or EQUIVALENT.get((MOVED.get(path, ""), row["change"]))]
    ]
    parts = [markdown(["file", "mutants", "killed", "share"], body), "Survivors", "\n".join(listed), told(rows)]
    return "\n\n".join(parts).rstrip()


def main() -> None:
    from benchmarks.provenance import RESULTS, Study  # here, for a forked process imports this module and no gdpa

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "mutants", help="folder for records.jsonl and table.md")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tested at a time")
    parser.add_argument("--sample", type=int, default=0, help="mutants drawn from each file; 0 takes all")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--files", nargs="*", default=[], help="only files whose path contains one of these words")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds of tests for a mutant; default: all")
    parser.add_argument("--again", action="store_true", help="run the survivors again")
    args = parser.parse_args()
    study = Study("benchmarks.mutants", "mutants", key=("key",), out=args.out)
    done = {row["key"] for row in study.rows() if row["killed"] or not args.again}
    for place, mutants in chosen(args.files, args.sample, args.seed).items():
        due = [mutant for mutant in mutants if mutant.key not in done]
        if not due:
            continue
        clock = time.monotonic()
        tests = measured(TESTS[place], files_of(place))
        print(
            f"{place}: {len(tests.seconds)} tests without a mutant took {time.monotonic() - clock:.0f} s, "
            f"{len(tests.left_out)} are left out; {len(due)} mutants",
            flush=True,
        )
        kills: Counter[str] = Counter()
        random.Random(args.seed).shuffle(due)  # an interrupted run is a fair sample
        with ThreadPoolExecutor(args.jobs) as pool:
            running = {pool.submit(judged, mutant, tests, kills, args.budget): mutant for mutant in due}
            for number, future in enumerate(as_completed(running), 1):
                mutant, by = running[future], future.result()
                found = {"key": mutant.key, "path": mutant.path, "line": mutant.line, "change": mutant.change}
                study.add({**found, "killed": by is not None, "by": by, "left out": len(tests.left_out)})
                word = "SURVIVED" if by is None else "killed"
                print(f"{number}/{len(due)} {word} {mutant.path}:{mutant.line} {mutant.change} {by or ''}", flush=True)
    keys = {mutant.key for mutants in chosen([], 0, 0).values() for mutant in mutants}
    study.keep([row for row in study.rows() if row["key"] in keys])  # not those of another source
    text = table(study.rows())
    study.write(text)
    print(text)


if __name__ == "__main__":
    main()
