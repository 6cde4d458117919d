"""The front of the package: what it lists, what it loads late, and what it says when a library is missing."""

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
        f"{what} needs {library}, which is not installed; install it with: "
        f"pip install {library} (or pip install -e '.[{extra}]' in a checkout of gdpa)"
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
