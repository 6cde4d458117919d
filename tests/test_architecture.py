"""Importing the library stays light, methods have no clock, and no public name hides a module.

import-linter checks the direction of imports, see `[tool.importlinter]` in pyproject.toml.
"""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gdpa

ROOT = Path(gdpa.__file__).parent
REPOSITORY = Path(__file__).parent.parent

HEAVY = {"torch", "scipy", "jax", "matplotlib", "jinja2", "sklearn", "gymnasium", "rich", "typer", "pandas", "ray"}
#: Modules made for one library import it at the top; a user loads them by name.
AT_HOME = {
    "oracles/torch.py": {"torch"},
    "oracles/torch_capture.py": {"torch"},
    "oracles/jax.py": {"jax"},
    "scipy/report.py": {"scipy"},
    "sharded/module.py": {"torch"},
    "sharded/ray.py": {"ray"},
    "sharded/torch.py": {"torch"},
    "torch": {"torch"},
    "sklearn": {"sklearn"},
    "paper": HEAVY,
}


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def folder_of(path):
    """Return the folder of the package that a file lies in."""
    return path.relative_to(ROOT).parts[0]


def type_checking(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def imports(path, at_the_top=False):
    """Yield the modules that a file imports; ``at_the_top``: only when the file itself is imported."""
    pending = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: relative import; write the module out"
            yield node.module
        for child in ast.iter_child_nodes(node):
            later = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) or type_checking(child)
            if not (at_the_top and later):
                pending.append(child)


def test_the_root_holds_no_module_but_the_entry():
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py", "version.py"}


def python_files(folder=""):
    return sorted((ROOT / folder).rglob("*.py"))


def test_a_folder_imports_no_name_of_the_root():
    """The root imports every folder, so ``import gdpa`` inside one would point upwards; import-linter ignores it."""
    for path in python_files():
        if folder_of(path) not in ("paper", "__init__.py"):
            assert "gdpa" not in imports(path), f"{name_of(path)} imports gdpa; name the module instead"


def test_no_public_name_shadows_its_module():
    """After ``import gdpa.solve as s``, s would be a function."""
    shadows = {name for name in gdpa.__all__ if (ROOT / f"{name}.py").exists() or (ROOT / name).is_dir()}
    assert not shadows, f"rename the modules of these names: {sorted(shadows)}"


def test_the_documented_folders_are_the_layers():
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    rows = [re.findall(r"`(\w+)/`", line.split("|")[1]) for line in page.splitlines() if line.startswith("| `")]
    assert rows == [re.findall(r"\w+", layer) for layer in reversed(layers)]


def test_a_method_has_no_clock_and_prints_nothing():
    for path in python_files("methods"):
        assert not {module.split(".")[0] for module in imports(path)} & {"time", "logging", "matplotlib"}, path
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert not any(isinstance(call, ast.Name) and call.id in ("print", "input") for call in calls), path


def test_heavy_libraries_are_imported_when_needed():
    for path in python_files():
        allowed = AT_HOME.get(name_of(path), AT_HOME.get(folder_of(path), set()))
        heavy = {module.split(".")[0] for module in imports(path, at_the_top=True)} & HEAVY
        assert heavy <= allowed, f"{name_of(path)} imports {sorted(heavy - allowed)} at the top"


@pytest.mark.parametrize("then", ["", "; gdpa.solve; gdpa.Box; gdpa.GDPA()"])
def test_importing_the_library_loads_numpy_alone(then):
    heavy = sorted({*HEAVY, "gdpa.paper"})
    code = f"import gdpa, sys{then}; print([m for m in {heavy!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert out.stdout.strip() == "[]"


USE = """
import gdpa
gdpa.minimize(lambda x: x @ x, [1.0, 2.0], constraints={"type": "ineq", "fun": lambda x: x[0] - 1})
import gdpa.torch
import sys
print([m for m in sys.modules if m.startswith("gdpa.paper")])
"""


def test_minimize_and_constrain_do_not_load_the_paper():
    out = subprocess.run([sys.executable, "-c", USE], capture_output=True, text=True, check=True, timeout=300)
    assert out.stdout.strip() == "[]"


def test_every_public_name_is_there():
    assert len(set(gdpa.__all__)) == len(gdpa.__all__)
    for name in gdpa.__all__:
        assert getattr(gdpa, name) is not None, name


def test_the_rules_would_notice(tmp_path, monkeypatch):
    """The checks above can fail: a module that breaks each of them is caught."""
    here = sys.modules[__name__]
    monkeypatch.setattr(here, "ROOT", tmp_path)
    bad = tmp_path / "methods" / "bad.py"
    bad.parent.mkdir()
    bad.write_text("import torch\nimport time\ndef f():\n    from gdpa import solve\n")
    for check in (
        test_a_folder_imports_no_name_of_the_root,
        test_a_method_has_no_clock_and_prints_nothing,
        test_heavy_libraries_are_imported_when_needed,
    ):
        with pytest.raises(AssertionError):
            check()
    (tmp_path / "certify.py").write_text("")
    with pytest.raises(AssertionError, match=r"\['certify'\]"):
        test_no_public_name_shadows_its_module()
    with pytest.raises(AssertionError):
        test_the_root_holds_no_module_but_the_entry()


def uses_private_names(path):
    """Return whether a file imports an underscored name of the library, or takes one from a module of it."""
    text = path.read_text(encoding="utf-8")
    if not re.search(r"[\s.]_[a-zA-Z]", text):
        return False
    nodes = list(ast.walk(ast.parse(text)))
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and str(node.module).startswith("gdpa")]
    names = [alias for node in froms for alias in node.names]
    modules = {alias.asname or alias.name for alias in names}
    taken = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    return any(alias.name.startswith("_") for alias in names) or any(
        node.value.id in modules and re.match(r"_[a-zA-Z]", node.attr) for node in taken
    )


def test_few_tests_enter_by_private_names():
    entering = [path.name for path in sorted((REPOSITORY / "tests").rglob("*.py")) if uses_private_names(path)]
    assert len(entering) <= 10, entering
