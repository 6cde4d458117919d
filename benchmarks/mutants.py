"""Mutation testing of the core: change one operator, comparison, constant or condition, and see whether a test fails.

    python -m benchmarks.mutants [--jobs 2] [--sample 0] [--files lagrangian kkt] [--seed 0] [--out results/mutants]

Every mutant of a file runs the tests named beside it in `TESTS` and the file's own examples, in a copy of the package
of its own. A mutant is killed if a test fails or the tests exceed their limit of time; a survivor is listed with its
line. Tests that fail without a mutant (a library is missing) are left out and counted. A record is written as soon as
its mutant is done, and a finished mutant is not run again.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.provenance import RESULTS, Study, told

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "gdpa"
#: Seconds after which the tests of a mutant count as failed: a mutant may loop for ever.
LIMIT = 60
#: The same for all these tests without a mutant.
LIMIT_WITHOUT = 600
#: A mutant of a formula is the same in every array library: NumPy's tests are enough, and JAX is slow to load.
NUMPY = ["-k", "not jax and not torch"]
#: The tests that must notice a change of a file or folder of the package, the quickest first.
TESTS = {
    "lagrangian.py": ["tests/algorithms/test_by_hand.py", "tests/test_lagrangian.py", *NUMPY],
    "kkt.py": ["tests/test_kkt.py", "tests/test_units.py", "tests/test_success.py", *NUMPY],
    "algorithms/gdpa.py": [
        "tests/algorithms/test_by_hand.py",
        "tests/algorithms/test_presets.py",
        "tests/algorithms/test_gdpa.py",
        *NUMPY,
    ],
    "algorithms/adaptive": [
        "tests/test_docs_adaptive.py::test_the_page_prints_the_rules",
        "tests/algorithms/test_adaptive_gdpa.py",
        "tests/algorithms/test_adaptive_choice.py",
        "tests/algorithms/test_adaptive_verdicts.py",
        "tests/algorithms/test_adaptive_units.py",
        "tests/algorithms/test_walls.py",
        *NUMPY,
    ],
    "torch/rules": ["tests/torch/test_rules.py", "tests/torch/test_state.py", "tests/torch/test_paper.py"],
}
#: Read instead of pyproject.toml: no option of a plug-in that a machine may lack, warnings are errors as there.
INI = """[pytest]
filterwarnings =
    error
    ignore::pytest.PytestWarning
markers =
    slow: takes more than a few seconds
"""
ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult}
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
REVERSED = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}


class Mutant(NamedTuple):
    """A changed file: its path in the package, the line, what was changed, and the new source."""

    path: str
    line: int
    change: str
    source: str

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
    for node in ast.walk(tree):
        if id(node) in skipped or not hasattr(node, "lineno"):
            continue
        for new in _changes(node):
            before, after = ast.unparse(node), ast.unparse(new)
            changed = ast.unparse(_Replace(node, new).visit(ast.parse(source)))
            short = before if len(before) <= 60 else before[:57] + "..."
            yield Mutant(path, node.lineno, f"{short} -> {after[:60]}", changed)


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


def is_killed(mutant: Mutant, tests: list[str], left_out: Iterable[str] = ()) -> bool:
    """Run the tests on a copy of the package with the mutant in it."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(PACKAGE, Path(folder) / "gdpa", ignore=shutil.ignore_patterns("__pycache__"))
        file = Path(folder) / "gdpa" / mutant.path
        file.write_text(mutant.source)
        words = [str(file), *tests, "-x", *(f"--{_way(name)}={name}" for name in left_out)]
        return _pytest(folder, words, LIMIT)[0] != 0


def _way(name: str) -> str:
    """Return the option that leaves a test out, or a whole file that cannot be read."""
    return "deselect" if "::" in name else "ignore"


def _pytest(folder: str, words: list[str], limit: float) -> tuple[int, str]:
    """Run pytest with the package in ``folder`` and return its exit code and output; -1 after ``limit`` seconds."""
    (Path(folder) / "pytest.ini").write_text(INI)
    plain = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", "--doctest-modules"]
    command = [sys.executable, "-m", "pytest", "-c", f"{folder}/pytest.ini", "--rootdir", str(ROOT), *plain, *words]
    paths = os.pathsep.join([folder, str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return -1, ""
    return ended.returncode, ended.stdout


def failing(tests: list[str]) -> tuple[str, ...]:
    """Return the tests that fail here without a mutant."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(PACKAGE, Path(folder) / "gdpa", ignore=shutil.ignore_patterns("__pycache__"))
        code, out = _pytest(folder, [*tests, "-rfE"], LIMIT_WITHOUT)
    if code == -1:
        raise RuntimeError(f"the tests {', '.join(tests)} take more than {LIMIT_WITHOUT} s without a mutant")
    return tuple(dict.fromkeys(re.findall(r"^(?:FAILED|ERROR) (\S+?)(?: - .*)?$", out, re.M)))


def chosen(names: list[str], sample: int, seed: int) -> list[tuple[Mutant, list[str]]]:
    """Return ``sample`` mutants of each file (0 takes all), with their tests."""
    found = []
    for place, tests in TESTS.items():
        path = PACKAGE / place
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.is_file() else []
        for file in files:
            name = file.relative_to(PACKAGE).as_posix()
            if names and not any(word in name for word in names):
                continue
            mutants = list(mutants_of(name, file.read_text()))
            if sample and len(mutants) > sample:
                mutants = random.Random(f"{seed} {name}").sample(mutants, sample)
            found += [(mutant, tests) for mutant in mutants]
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Return the share of killed mutants of each file and the survivors, in Markdown."""
    lines = ["| file | mutants | killed | share |", "|---|---|---|---|"]
    rows = sorted(rows, key=lambda row: (row["path"], row["line"], row["change"]))
    for name in [*dict.fromkeys(str(row["path"]) for row in rows), "all"]:
        some = [row for row in rows if name in ("all", row["path"])]
        killed = sum(bool(row["killed"]) for row in some)
        lines.append(f"| {name} | {len(some)} | {killed} | {killed / len(some):.1%} |")
    alive = [row for row in rows if not row["killed"]]
    lines += ["", "Survivors", "", *(f"- `{r['path']}:{r['line']}` `{r['change']}`" for r in alive)]
    return "\n".join([*lines, "", told(rows)]).rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "mutants", help="folder for records.jsonl and table.md")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tested at a time")
    parser.add_argument("--sample", type=int, default=0, help="mutants drawn from each file; 0 takes all")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--files", nargs="*", default=[], help="only files whose path contains one of these words")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no mutant after this time")
    args = parser.parse_args()
    study = Study("benchmarks.mutants", "mutants", key=("key",), out=args.out)
    everything = chosen(args.files, args.sample, args.seed)
    done = {row["key"] for row in study.rows()}
    due = [(mutant, tests) for mutant, tests in everything if mutant.key not in done]
    sets = {tuple(tests): tests for _, tests in due}
    with ThreadPoolExecutor(args.jobs) as pool:
        left_out = dict(zip(sets, pool.map(failing, sets.values()), strict=True))
    for files, names in left_out.items():
        print(f"{', '.join(files)}: {len(names)} tests fail without a mutant and are left out", flush=True)
    end = time.monotonic() + args.seconds

    def judge(mutant: Mutant, tests: list[str]) -> bool | None:
        return is_killed(mutant, tests, left_out[tuple(tests)]) if time.monotonic() < end else None

    random.Random(args.seed).shuffle(due)  # an interrupted run is a fair sample
    with ThreadPoolExecutor(args.jobs) as pool:
        running = {pool.submit(judge, *pair): pair for pair in due}
        for number, future in enumerate(as_completed(running), 1):
            (mutant, tests), killed = running[future], future.result()
            if killed is None:
                continue
            found = {"key": mutant.key, "path": mutant.path, "line": mutant.line, "change": mutant.change}
            study.add({**found, "killed": killed, "left out": len(left_out[tuple(tests)])})
            word = "killed" if killed else "SURVIVED"
            print(f"{number}/{len(due)} {word} {mutant.path}:{mutant.line} {mutant.change}", flush=True)
    keys = {mutant.key for mutant, _ in chosen([], 0, 0)}
    study.file.replace(row for row in study.file.rows() if row["key"] in keys)  # not those of another source
    text = table(study.rows())
    study.write(text)
    print(text)


if __name__ == "__main__":
    main()
