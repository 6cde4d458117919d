"""Modules import only from lower floors; files stay short; importing the library stays light."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gdpa

ROOT = Path(gdpa.__file__).parent
ARCHITECTURE = Path(__file__).parent.parent / "docs" / "architecture.md"

# From the ground up. A module imports from lower floors and from those named before it on its own floor; imports for
# type checkers count.
FLOORS = (
    (
        *("version", "_typing", "_checks", "_extras", "_files", "signals", "storage", "_receipt"),
        *("_arrays", "_text", "_differences"),
    ),
    (
        *("numerics", "sets", "_grouped_differences", "_problem", "_hessian", "_detach", "units", "slack", "schedules"),
        "lagrangian",
    ),
    (
        *("_multipliers", "_derivative_check", "kkt", "constants", "_oracle"),
        *("backends", "problems", "_tables", "_result", "_state", "_run", "_progress", "stopping"),
    ),
    (
        *("algorithms", "methods", "_caution", "_observers"),
        *("_messages", "_conclude", "_placement", "_multistart", "_trajectory", "theory"),
    ),
    ("checkpoints", "_saving", "feasible", "_solve", "_verify"),
    ("_blocks", "_canonical", "_second", "_options", "_minimize", "comparison", "torch"),
    ("sklearn", "applications"),
    ("experiments",),
    ("cli", "__main__"),
)
PLACE = {module: (level, place) for level, modules in enumerate(FLOORS) for place, module in enumerate(modules)}
#: From this floor on, modules are users of the library and may import gdpa itself.
USERS = 6
HEAVY = {"torch", "scipy", "jax", "matplotlib", "plotly", "sklearn", "gymnasium", "rich", "typer", "pandas"}
#: Modules made for one library import it at the top; a user loads them by name.
AT_HOME = {
    "backends/torch.py": {"torch"},
    "backends/torch_capture.py": {"torch"},
    "backends/torch_device.py": {"torch"},
    "backends/torch_rows.py": {"torch"},
    "backends/jax.py": {"jax"},
    "torch": {"torch"},
}
#: What algorithms have in common: the protocol, their table entries, inner solvers; and helpers named _...
SHARED = {"base", "method", "inner"}
FILES = sorted(ROOT.rglob("*.py"))
PACKAGES = {path.parent.name for path in ROOT.glob("*/__init__.py")}


#: Imports inside a package that close a cycle. Each runs inside a function or for type checkers only.
KNOWN_CYCLES = {
    ("experiments/base", "experiments/records"),  # the protocol of an experiment names the records it reads
    ("experiments/base", "experiments/figures"),  # and the charts of its section
    ("experiments/figures/chart", "experiments/figures/static"),  # a chart draws itself
    ("applications/cmdp/tabular", "applications/cmdp/environments"),  # a constructor from an environment
    ("torch/state", "torch/core"),  # a type only: the state of an optimizer, whose file is long enough
}
#: Public names that are also modules; to be empty once these modules are private.
SHADOWING = set()


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def module_of(path):
    """Return the top-level module or package of a file."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def type_checking(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def imports(path, at_the_top=False):
    """Yield (module, names) of every import; ``at_the_top``: of those that run when the file is imported."""
    pending = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: relative import; write the module out"
            yield node.module, tuple(alias.name for alias in node.names)
        for child in ast.iter_child_nodes(node):
            later = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) or type_checking(child)
            if not (at_the_top and later):
                pending.append(child)


def files_imported(path):
    """Yield the parts of every dotted name of the library that a file imports, without the leading gdpa.

    ``from gdpa.sets import Box`` is ("sets", "Box"), ``import gdpa.kkt`` is ("kkt", ""), ``import gdpa`` is ("",).
    """
    for module, names in imports(path):
        if module.split(".")[0] == "gdpa":
            yield from ((*module.split(".")[1:], name) for name in names or ("",))


def modules_imported(path):
    """Yield the top-level modules of the library that a file imports; "" is gdpa itself."""
    for parts in files_imported(path):
        yield parts[0] if len(parts) > 1 or parts[0] in PACKAGES else ""


def test_every_module_has_a_floor_and_every_name_is_a_module():
    there = {module_of(path) for path in ROOT.rglob("*.py")} - {"__init__"}
    assert there <= set(PLACE), f"give these a floor in FLOORS: {sorted(there - set(PLACE))}"
    assert set(PLACE) <= there, f"FLOORS names modules that do not exist: {sorted(set(PLACE) - there)}"


@pytest.mark.parametrize("path", [p for p in FILES if p != ROOT / "__init__.py"], ids=name_of)
def test_imports_point_downwards(path):
    module = module_of(path)
    for other in modules_imported(path):
        if other == module:
            continue
        if other not in PLACE:
            assert PLACE[module][0] >= USERS, f"{name_of(path)} imports gdpa; name the module instead"
            continue
        assert PLACE[other] < PLACE[module], f"{name_of(path)} ({PLACE[module]}) imports {other} ({PLACE[other]})"


def packages():
    return sorted({path.parent for path in ROOT.rglob("*.py")} - {ROOT})


def edges(package):
    """Return the imports among the modules of a package, as pairs (importing module, imported module)."""
    prefix, found = package.relative_to(ROOT).parts, set()
    for path in package.rglob("*.py"):
        own = path.relative_to(package).parts[0].removesuffix(".py")
        for parts in files_imported(path):
            other = parts[len(prefix)] if parts[: len(prefix)] == prefix and len(parts) > len(prefix) else own
            if not (package / other).is_dir() and not (package / f"{other}.py").exists():
                other = "__init__"  # a name of the package itself
            if other != own:
                found.add(tuple("/".join((*prefix, name)) for name in (own, other)))
    return found


@pytest.mark.parametrize("package", packages(), ids=name_of)
def test_modules_of_a_package_have_floors(package):
    """Imports among the modules of a package form no cycle, so that every one of them has a floor."""
    below = {}
    for own, other in edges(package) - KNOWN_CYCLES:
        below.setdefault(own, set()).add(other)
    left = set(below)
    while free := {name for name in left if not below[name] & left}:
        left -= free
    names = sorted(name.rpartition("/")[2] for name in left)
    assert not left, f"{name_of(package)}: a cycle of imports among {names}"


def test_every_known_cycle_is_still_one():
    """An exception that closes no cycle any more is removed."""
    there = set().union(*(edges(package) for package in packages()))
    for own, other in KNOWN_CYCLES:
        reached, size = {other}, 0
        while len(reached) > size:
            size = len(reached)
            reached |= {b for a, b in there - KNOWN_CYCLES if a in reached}
        assert (own, other) in there, f"{own} imports {other} no longer: remove it from KNOWN_CYCLES"
        assert own in reached, f"{other} no longer needs {own}: remove the pair from KNOWN_CYCLES"


def test_no_public_name_shadows_its_module():
    """After ``import gdpa._solve as s``, s would be a function."""
    shadows = {name for name in gdpa.__all__ if (ROOT / f"{name}.py").exists() or (ROOT / name).is_dir()}
    assert shadows <= SHADOWING, f"rename the modules of these names: {sorted(shadows - SHADOWING)}"


def test_the_documented_floors_are_these():
    rows = [line.split("|") for line in ARCHITECTURE.read_text().splitlines() if re.match(r"\| \d+ \|", line)]
    assert [re.findall(r"`(\w+)/?`", row[2]) for row in rows] == [list(floor) for floor in FLOORS]


@pytest.mark.parametrize("path", sorted((ROOT / "algorithms").glob("*.py")), ids=name_of)
def test_an_algorithm_knows_no_sibling(path):
    if path.name == "__init__.py":
        return
    for module, _ in imports(path):
        parts = module.split(".")
        if parts[:2] == ["gdpa", "algorithms"] and len(parts) > 2:
            helper = parts[2] in SHARED or parts[2].startswith("_")
            assert helper, f"{path.name} imports {module}; share code through a helper named _..."


@pytest.mark.parametrize("path", sorted((ROOT / "algorithms").rglob("*.py")), ids=name_of)
def test_an_algorithm_has_no_clock_and_prints_nothing(path):
    assert not {module.split(".")[0] for module, _ in imports(path)} & {"time", "logging", "matplotlib"}
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert not any(isinstance(call, ast.Name) and call.id in ("print", "input") for call in calls)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_stay_short(path):
    limit = 200 if module_of(path) == "algorithms" else 400
    assert len(path.read_text().splitlines()) <= limit


@pytest.mark.parametrize("path", [p for p in FILES if PLACE.get(module_of(p), (0,))[0] < USERS], ids=name_of)
def test_heavy_libraries_are_imported_when_needed(path):
    allowed = AT_HOME.get(name_of(path), AT_HOME.get(module_of(path), set()))
    heavy = {module.split(".")[0] for module, _ in imports(path, at_the_top=True)} & HEAVY
    assert heavy <= allowed, f"{name_of(path)} imports {sorted(heavy - allowed)} at the top"


@pytest.mark.parametrize("then", ["", "; gdpa.solve; gdpa.Box; gdpa.GDPA()"])
def test_importing_the_library_loads_numpy_alone(then):
    heavy = sorted(HEAVY)
    code = f"import gdpa, sys{then}; print([m for m in {heavy!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert out.stdout.strip() == "[]"


def test_every_public_name_is_there():
    assert len(set(gdpa.__all__)) == len(gdpa.__all__)
    for name in gdpa.__all__:
        assert getattr(gdpa, name) is not None, name


def test_the_rules_would_notice(tmp_path, monkeypatch):
    """The checks above can fail: a module that breaks each of them is caught."""
    here = sys.modules[__name__]
    monkeypatch.setattr(here, "ROOT", tmp_path)
    bad = tmp_path / "algorithms" / "bad.py"
    bad.parent.mkdir()
    upward = "def f():\n    from gdpa._solve import solve\n"
    bad.write_text(f"import torch\nimport time\nfrom gdpa.algorithms.gdpa import GDPA\n{upward}")
    for check in (
        test_imports_point_downwards,
        test_an_algorithm_knows_no_sibling,
        test_an_algorithm_has_no_clock_and_prints_nothing,
        test_heavy_libraries_are_imported_when_needed,
    ):
        with pytest.raises(AssertionError):
            check(bad)
    bad.write_text("\n" * 201)
    with pytest.raises(AssertionError):
        test_files_stay_short(bad)


@pytest.mark.parametrize("floor", ["stopping", "algorithms"])
def test_the_rules_would_notice_an_upward_import_for_type_checkers(tmp_path, monkeypatch, floor):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    bad = tmp_path / f"{floor}.py"
    bad.write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gdpa._solve import solve\n")
    with pytest.raises(AssertionError, match="imports _solve"):
        test_imports_point_downwards(bad)


def test_the_rules_would_notice_a_floor_without_a_module(tmp_path, monkeypatch):
    here = sys.modules[__name__]
    monkeypatch.setattr(here, "PLACE", {**PLACE, "frontier": (5, 9)})
    with pytest.raises(AssertionError, match=r"modules that do not exist: \['frontier'\]"):
        test_every_module_has_a_floor_and_every_name_is_a_module()


def test_the_rules_would_notice_a_cycle_inside_a_package(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    package = tmp_path / "torch" / "parts"
    package.mkdir(parents=True)
    (package / "one.py").write_text("from gdpa.torch.parts import two\n")
    (package / "two.py").write_text("def f():\n    from gdpa.torch.parts.three import g\n")
    (package / "three.py").write_text("if TYPE_CHECKING:\n    from gdpa.torch.parts.one import h\n")
    with pytest.raises(AssertionError, match=r"a cycle of imports among \['one', 'three', 'two'\]"):
        test_modules_of_a_package_have_floors(package)
    (package / "three.py").write_text("import numpy\n")
    test_modules_of_a_package_have_floors(package)


def test_the_rules_would_notice_a_shadowed_module(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "certify.py").write_text("")
    with pytest.raises(AssertionError, match=r"\['certify'\]"):
        test_no_public_name_shadows_its_module()
