"""One formula, one place: a search for formulas, validators and idioms that are written a second time."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import gdpa

ROOT = Path(gdpa.__file__).parent


@dataclass(frozen=True)
class Formula:
    """A formula, the regular expression that finds it in a line of code, and the one module that may hold it.

    ``known`` are modules whose match is no copy; each has its reason beside it.
    """

    pattern: str
    place: str
    instead: str
    examples: tuple[str, ...]
    known: frozenset[str] = frozenset()


def formula(pattern, place, instead, *examples, known=()):
    return Formula(pattern, place, instead, examples, frozenset(known))


FORMULAS = {
    "[lambda + beta g]_+": formula(
        r"positive_part\((?:\([^()]*\) \* )?[^()]*\+[^()]*\*",
        "core/lagrangian.py",
        "AugmentedLagrangian.weights",
        "w = positive_part(lam + beta * g, p)",
        "w = positive_part((1 - tau) * lam + beta * g)",
    ),
    "max(g, -lambda/beta)": formula(
        r"\bmax(?:imum)?\([^()]*, -[^(),]*/ ",
        "core/lagrangian.py",
        "AugmentedLagrangian.complementarity",
        "c = np.maximum(g, -lam / beta)",
        "c = max(g, -lam / beta)",
    ),
    "damped dual step": formula(
        r"\+ (?:\w+\.)?(?:theta|damping)\w* \* \(.*- (?:\w+\.)?(?:lam|multipliers)\w*\)",
        "core/lagrangian.py",
        "AugmentedLagrangian.damped",
        "lam = lam + theta * (w - lam)",
        "new = state.multipliers + self.theta * (F.weights(g) - state.multipliers)",
    ),
    "sign of a shifted multiplier": formula(
        r"\bq\w* > 0(?:\.0)?\b",
        "core/lagrangian.py",
        "AugmentedLagrangian.gate or weights",
        "inside = q > 0",
        "w = q if equality or q > 0 else 0.0",
    ),
    "norm of [g]_+": formula(
        r"norm\(positive_part\(|abs\(positive_part\(|maximum\((?:\w+\.)*(?:g|constraints), 0",
        "core/certificate.py",
        "kkt.violation",
        "v = norm(positive_part(g, p))",
        "v = np.maximum(now.constraints, 0.0)",
    ),
    "gradient mapping": formula(
        r"([\w.]+) - [\w.]*project\(\1 - ",
        "core/certificate.py",
        "kkt.gradient_mapping",
        "d = x - domain.project(x - gradient)",
        "s = max_norm(state.x - problem.domain.project(state.x - state.gradient))",
    ),
    "unit vector of a row of J": formula(
        r"arange\(.*\) == ",
        "core/problem.py",
        "problem.unit_vector",
        "e = xp.astype(xp.arange(m) == i, g.dtype)",
    ),
    "power schedule": formula(
        r"\* \w+ \*\* \(?-?(?:\w+\.)*\w*(?:exponent|power)\b",
        "base/schedules.py",
        "schedules.Power",
        "beta = self.beta0 * r ** self.beta_power",
        "alpha = lr * step ** lr_power",
    ),
    "a number that is no bool": formula(
        r"isinstance\([\w.]+, \(int, float\)\)|isinstance\([\w.]+, bool\) or \(?not isinstance\([\w.]+, int\b",
        "base/checks.py",
        "gdpa.base.checks",
        "if not isinstance(tau, (int, float)):\n    pass",
        "if isinstance(n, bool) or not isinstance(n, int):\n    pass",
        known=("core/lagrangian.py",),  # distinguishes a number from an array in every step; it checks no argument
    ),
    "largest of a batch": formula(
        r"if isinstance\((\w+), float\) else float\(",
        "base/arrays.py",
        "arrays.largest",
        "worst = value if isinstance(value, float) else float(value.max())",
    ),
    "the type of a NumPy array": formula(
        r"^\w+(?:: TypeAlias)? = np\.ndarray\[Any, np\.dtype\[Any\]\]",
        "base/typing.py",
        "typing.Vector",
        "Vector = np.ndarray[Any, np.dtype[Any]]",
    ),
    "a file written whole or not at all": formula(
        r"\bos\.replace\(",
        "base/writing.py",
        "files.write_whole",
        "os.replace(temporary, target)",
    ),
    "the first state of a method": formula(
        r"State\(step=0, x=",
        "methods/method.py",
        "Method.first_state",
        "return IPPPState(step=0, x=x0, multipliers=zeros, evaluation=start, probe=None)",
    ),
}


def code_lines(source):
    """Return the statements of a source, one on a line, without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_text(line)] or [ast.Pass()]
    return ast.unparse(tree).splitlines()


def _is_text(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def copies(name, sources):
    """Return "file: line" of every copy of a formula outside its place."""
    wanted = FORMULAS[name]
    allowed = {wanted.place, *wanted.known}
    return [
        f"{file}: {line.strip()}"
        for file, lines in sources.items()
        if file not in allowed
        for line in lines
        if re.search(wanted.pattern, line.strip())
    ]


@pytest.fixture(scope="module")
def sources():
    return {path.relative_to(ROOT).as_posix(): code_lines(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_is_written_once(sources, name):
    found = copies(name, sources)
    assert not found, f"{name} is in {FORMULAS[name].place}; use {FORMULAS[name].instead}: {found}"


def test_every_place_exists_and_every_exception_is_needed(sources):
    for name, wanted in FORMULAS.items():
        assert wanted.place in sources
        for file in wanted.known:
            lines = [line for line in sources[file] if re.search(wanted.pattern, line.strip())]
            assert lines, f"{file} no longer matches {name!r}: remove it from known"


@pytest.mark.parametrize(("name", "example"), [(name, e) for name, f in FORMULAS.items() for e in f.examples])
def test_a_second_copy_is_noticed(name, example):
    """Each search finds a made-up copy, written over several lines, and not the same words in a docstring."""
    function = "def f():\n" + "".join(f"    {line}\n" for line in example.splitlines())
    spread = function.replace(", ", ",\n        ") if "(" in example else function
    assert copies(name, {"new.py": code_lines(spread)})
    quoted = f'"""{example}"""\n# {example.splitlines()[0]}\n'
    assert not copies(name, {"new.py": code_lines(quoted)})
