"""Rooms import only from lower floors; files stay short; importing the library stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gdpa

ROOT = Path(gdpa.__file__).parent

# From the ground up. A room may import the rooms of lower floors and those named before it on its own floor.
FLOORS = (
    ("version", "typing", "checks", "extras", "files", "storage", "receipt", "arrays", "text", "differences"),
    ("numerics", "sets", "problem", "detach", "units", "slack", "schedules", "lagrangian", "perturbed"),
    (
        *("multipliers", "derivative_check", "kkt", "constants", "oracle"),
        *("backends", "problems", "tables", "result", "state", "run", "progress", "stopping"),
    ),
    (
        *("algorithms", "methods", "caution", "observers"),
        *("messages", "conclude", "multistart", "trajectory", "theory"),
    ),
    ("checkpoints", "saving", "feasible", "solve", "verify"),
    ("blocks", "canonical", "options", "minimize", "frontier", "compare", "torch"),
    ("sklearn", "applications"),
    ("experiments",),
    ("cli", "__main__"),
)
PLACE = {room: (level, place) for level, rooms in enumerate(FLOORS) for place, room in enumerate(rooms)}
#: From this floor on, rooms are users of the library and may come in by its front door.
USERS = 6
HEAVY = {"torch", "scipy", "jax", "matplotlib", "plotly", "sklearn", "gymnasium", "rich", "typer", "pandas"}
#: Rooms made for one library import it at the top; a user loads them by name.
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


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def room_of(path):
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def type_checking(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def imports(path, top_level_only=False):
    """Yield (module, names) of every import that runs; those for type checkers do not."""
    pending = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: relative import; write the module out"
            yield node.module, tuple(alias.name for alias in node.names)
        for child in ast.iter_child_nodes(node):
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            if not type_checking(child) and not (top_level_only and inside):
                pending.append(child)


def rooms_imported(path):
    """Yield the rooms of the library that a file imports; "" is the front door."""
    for module, names in imports(path):
        if module == "gdpa":
            yield from (name if name in PLACE and (ROOT / name).exists() else "" for name in names or ("",))
            continue
        if module.startswith("gdpa."):
            yield module.split(".")[1]


def test_every_room_has_a_floor():
    rooms = {room_of(path) for path in FILES} - {"__init__"}
    assert rooms <= set(PLACE), f"give these a floor in FLOORS: {sorted(rooms - set(PLACE))}"


@pytest.mark.parametrize("path", [p for p in FILES if p != ROOT / "__init__.py"], ids=name_of)
def test_imports_point_downwards(path):
    room = room_of(path)
    for other in rooms_imported(path):
        if other == room:
            continue
        if not other:
            assert PLACE[room][0] >= USERS, f"{name_of(path)} imports the front door; name the room instead"
            continue
        assert PLACE[other] < PLACE[room], f"{name_of(path)} ({PLACE[room]}) imports {other} ({PLACE[other]})"


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
    limit = 200 if room_of(path) == "algorithms" else 400
    assert len(path.read_text().splitlines()) <= limit


@pytest.mark.parametrize("path", [p for p in FILES if PLACE.get(room_of(p), (0,))[0] < USERS], ids=name_of)
def test_heavy_libraries_are_imported_when_needed(path):
    allowed = AT_HOME.get(name_of(path), AT_HOME.get(room_of(path), set()))
    heavy = {module.split(".")[0] for module, _ in imports(path, top_level_only=True)} & HEAVY
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
    """The checks above can fail: a room that breaks each of them is caught."""
    bad = tmp_path / "algorithms" / "bad.py"
    bad.parent.mkdir()
    bad.write_text(
        "import torch\nimport time\nfrom gdpa.algorithms.gdpa import GDPA\ndef f():\n    from gdpa.solve import solve\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
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
