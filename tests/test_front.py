"""The front of the package: what it lists, what it loads late, and what it says when a library is missing."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gdpa
from gdpa.base.extras import EXTRAS, needed_by

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def test_dir_lists_what_is_public_and_nothing_else():
    listed = [name for name in dir(gdpa) if not name.startswith("__")]
    assert set(gdpa.__all__) - {"__version__"} <= set(listed)
    assert {"torch", "problems", "sklearn", "applications", "theory", "storage"} <= set(listed)
    assert not {"Any", "annotations", "TYPE_CHECKING", "find_spec", "needed_by", "class_names"} & set(listed)
    assert "__version__" in dir(gdpa)
    for name in listed:
        assert getattr(gdpa, name) is not None, name


def run(code):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout.splitlines()


def test_parts_load_by_their_name_alone():
    code = "import gdpa; print(gdpa.problems.get('HS12').x0.shape, gdpa.theory.__name__, hasattr(gdpa, 'nothing'))"
    assert run(code) == ["(2,) gdpa.paper.theory False"]


def test_every_method_is_exported_by_its_class():
    for name in gdpa.method_names():
        cls = gdpa.get_method(name)
        assert getattr(gdpa, cls.__name__) is cls
        assert cls.__name__ in gdpa.__all__


USES = """
import gdpa
from dataclasses import dataclass

def rule(progress: gdpa.Progress) -> gdpa.Status | None:
    return gdpa.Status.STOPPED if progress.step > 2 else None

stop: gdpa.StopRule = rule
steps: float = gdpa.GDPA(alpha=gdpa.Constant(0.1), beta=2.0).alpha(3) + gdpa.Power(1.0, 0.5)(4)
method: gdpa.IPPP = gdpa.IPPP(beta=0.1)
own = gdpa.problems.get("HS12")
kkt: float = gdpa.solve(own.problem, own.x0, method, stop=[stop]).history["kkt"][-1]
gdpa.minimize(lambda x: x @ x, [1.0], method=gdpa.DampedGDPA())
gdpa.compare(own.problem, own.x0, ["gdpa", method])

@gdpa.register("typed")
@dataclass(frozen=True)
class Typed(gdpa.Method):
    alpha: gdpa.StepSize = gdpa.StepSize(0.1, exponent=0.0)

    def update(self, problem: gdpa.Problem, state: gdpa.State) -> gdpa.State:
        return state

Typed(alpha="fast")
gdpa.MaxSteps("many")
"""


def test_type_checkers_know_the_types_of_what_is_loaded_late(tmp_path):
    """mypy accepts the uses above under strict rules, and finds the two mistakes of the last lines."""
    pytest.importorskip("mypy")
    file = tmp_path / "uses.py"
    file.write_text(USES)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        f"--cache-dir={PROJECT.parent / '.mypy_cache'}",
        str(file),
    ]
    env = {**os.environ, "MYPYPATH": str(Path(gdpa.__file__).parent.parent)}
    found = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=300).stdout
    lines = [line for line in found.splitlines() if "uses.py" in line]
    assert [line.partition("error: ")[2].partition(" has")[0] for line in lines] == [
        'Argument "alpha" to "Typed"',
        'Argument 1 to "MaxSteps"',
    ], found


def test_torch_loads_by_its_name():
    pytest.importorskip("torch")
    assert gdpa.torch.GDPA.__module__.startswith("gdpa.torch")


ASKED = {
    "gdpa.from_torch": ("torch", "torch"),
    "gdpa.from_module": ("torch", "torch"),
    "gdpa.from_jax": ("jax", "jax"),
    "gdpa.torch": ("torch", "torch"),
    "result.plot()": ("matplotlib", "plot"),
}


def test_a_missing_library_is_named_with_its_extra():
    code = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "jax", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
import gdpa
own = gdpa.problems.get("HS12")
result = gdpa.solve(own.problem, own.x0)
for what in {list(ASKED)!r}:
    try:
        eval(what)
    except ImportError as error:
        print(error)
try:
    from gdpa import from_torch
except ImportError as error:
    print(error)
"""
    wanted = [
        f"{what} needs {library}, which is not installed; install it with: pip install 'gdpa[{extra}]'"
        for what, (library, extra) in ASKED.items()
    ]
    assert run(code) == [*wanted, wanted[0]]


def test_every_extra_exists_and_brings_its_library():
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    names = {"sklearn": "scikit-learn"}
    for library, extra in EXTRAS.items():
        assert any(entry.startswith(names.get(library, library)) for entry in extras[extra]), library


def test_other_missing_modules_are_left_alone():
    with pytest.raises(ModuleNotFoundError, match=r"^no such thing$"), needed_by("this"):
        raise ModuleNotFoundError("no such thing", name="gdpa.nothing")
