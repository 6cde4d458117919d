"""CONTRIBUTING's recipe for a method, followed to the letter in a copy of the repository: three files and no other."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
METHOD = Path("src/gdpa/methods/baselines/switching_gradient.py")
REGISTRY = Path("src/gdpa/methods/registry.py")
TABLE = Path("tests/methods/test_conformance.py")


def blocks():
    """The four blocks of Python of the section: the method, two lines of the registry and the row."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add a method\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.S)


def insert_after(file, before, block):
    text = file.read_text()
    assert text.count(before) == 1, before
    file.write_text(text.replace(before, before + block))


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A copy of the repository with the three files of the recipe."""
    copy = tmp_path_factory.mktemp("repository")
    for name in ("src", "tests", "docs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    method, name, typed, row = blocks()
    (copy / METHOD).write_text(method)
    insert_after(copy / REGISTRY, '    "linearized-alm": "gdpa.methods.gdpa:LinearizedALM",\n', name)
    imported = "    from gdpa.methods.baselines.proximal_admm import ProximalADMM as ProximalADMM\n"
    insert_after(copy / REGISTRY, imported, typed)
    insert_after(copy / TABLE, "TABLE = {\n", row)
    return copy


def run(repository, *command):
    env = {**os.environ, "PYTHONPATH": f"{repository / 'src'}{os.pathsep}{repository / 'docs'}"}
    ended = subprocess.run(
        [sys.executable, *command], cwd=repository, env=env, capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_method_passes_the_tests_of_all_methods(repository):
    tests = [str(TABLE), "tests/methods/test_registry.py", "tests/test_one_place.py", "tests/test_architecture.py"]
    chosen = "switching or row or registry or written_once"
    out = run(repository, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, *tests)
    assert out.count(".") > 30
    run(repository, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--doctest-modules", str(METHOD))


USE = """
import gdpa
own = gdpa.problems.get("HS22")
print(gdpa.SwitchingGradient.__module__)
print(gdpa.solve(own, algorithm="switching-gradient", tolerance=1e-2).success)
found = gdpa.minimize(lambda x: x @ x, [2.0, 2.0], constraints={"type": "ineq", "fun": lambda x: x[0] - 1},
                      method="switching-gradient", options={"alpha": 0.1}, tol=1e-2)
print(found.success, type(found.result.algorithm).__name__)
(row,) = gdpa.compare(own.problem, own.x0, ["switching-gradient"], passes=4000, tolerance=1e-2)
print(row.result.success, row.passes_to(1e-2) < 4000)
"""


def test_every_api_knows_the_method(repository):
    found = run(repository, "-c", USE).splitlines()
    assert found == ["gdpa.methods.baselines.switching_gradient", "True", "True SwitchingGradient", "True True"]


def test_the_pages_know_the_method(repository):
    pytest.importorskip("markdown")
    out = run(repository, "-c", "import registry; print(registry.entries()); print(registry.table1())")
    assert "::: gdpa.methods.baselines.switching_gradient.SwitchingGradient" in out
    assert "| Switching gradient (Polyak, 1967) | `switching-gradient` | primal |" in out


def test_the_recipe_touches_three_files(repository):
    changed = [
        path.relative_to(repository)
        for folder in ("src", "tests", "docs")
        for path in (repository / folder).rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and (
            not (ROOT / path.relative_to(repository)).exists()
            or path.read_bytes() != (ROOT / path.relative_to(repository)).read_bytes()
        )
    ]
    assert sorted(changed) == sorted([METHOD, REGISTRY, TABLE])


def test_the_printed_method_is_formatted_and_typed(repository):
    run(repository, "-m", "ruff", "check", str(METHOD), str(REGISTRY))
    run(repository, "-m", "ruff", "format", "--check", str(METHOD))
