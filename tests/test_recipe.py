"""The five recipes of CONTRIBUTING.md, run as printed; and the method moved into a copy of the repository."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gdpa
from gdpa.base import stored
from gdpa.methods import registry

ROOT = Path(__file__).parent.parent
TITLES = ("A method", "A stop rule", "A dual rule", "An array backend", "An experiment")
METHOD = Path("src/gdpa/methods/baselines/switching_gradient.py")
REGISTRY = Path("src/gdpa/methods/registry.py")
TABLE = Path("tests/methods/test_conformance.py")
RACE = Path("src/gdpa/paper/studies/race.py")
#: Modules whose names are public: the package, and the modules that pages of the API document as a whole.
PUBLIC = {"gdpa", "gdpa.torch.rules", "gdpa.paper.base"}


def blocks(title):
    """The blocks of Python of a recipe; the first is its file."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition(f"### {title}\n")[2]
    return re.findall(r"```python\n(.*?)```", re.split(r"\n##+ ", section)[0], re.S)


def load(title, folder, monkeypatch):
    """Return the file of a recipe as a module."""
    name = title.lower().replace(" ", "_")
    path = folder / f"{name}.py"
    path.write_text(blocks(title)[0])
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("title", TITLES)
def test_a_recipe_imports_public_names_only(title):
    imported = re.findall(r"^(?:from|import) (gdpa[\w.]*)", blocks(title)[0], re.M)
    assert imported
    assert set(imported) <= PUBLIC


@pytest.fixture
def method(tmp_path, monkeypatch):
    """The module of the method; the registries are put back after the test."""
    for name in gdpa.method_names():  # a class that the test imports first would be put back, too
        gdpa.get_method(name)
    monkeypatch.setattr(registry, "METHODS", dict(registry.METHODS))
    monkeypatch.setattr(stored, "REGISTERED", dict(stored.REGISTERED))
    return load("A method", tmp_path, monkeypatch)


def test_the_method_solves_compares_and_continues(method, tmp_path):
    own = gdpa.problems.get("HS22")
    result = gdpa.solve(own, algorithm="switching-gradient", tolerance=1e-2)
    assert result.success
    assert np.abs(result.x - own.solution).max() < 0.05
    found = gdpa.minimize(
        lambda x: x @ x,
        [2.0, 2.0],
        jac=lambda x: 2 * x,
        constraints={"type": "ineq", "fun": lambda x: x[0] - 1, "jac": lambda x: np.array([1.0, 0.0])},
        method="switching-gradient",
        options={"alpha": 0.1},
        tol=1e-2,
    )
    assert found.success
    (row,) = gdpa.compare(own.problem, own.x0, ["switching-gradient"], passes=4000, tolerance=1e-2)
    assert row.passes_to(1e-2) < 4000
    half = gdpa.solve(own, algorithm=method.SwitchingGradient(), stop=gdpa.MaxSteps(50))
    gdpa.save_run(tmp_path / "run", half.run)
    again = gdpa.solve(own.problem, run=gdpa.load_run(tmp_path / "run"), stop=gdpa.MaxSteps(100))
    straight = gdpa.solve(own, algorithm=method.SwitchingGradient(), stop=gdpa.MaxSteps(100))
    assert again.x_last.tobytes() == straight.x_last.tobytes()


def test_one_step_of_the_method_by_hand(method):
    # At (2, 2) the larger constraint of x <= (1, 0) is the second, 2: the step is on it, of length 1/2.
    problem = gdpa.from_functions(
        lambda x: x @ x, lambda x: x - np.array([1.0, 0.0]), gradient=lambda x: 2 * x, jacobian=lambda x: np.eye(2)
    )
    algorithm = method.SwitchingGradient(alpha=gdpa.Constant(0.5))
    state = algorithm.update(problem, algorithm.init(problem, np.array([2.0, 2.0])))
    assert state.x.tolist() == [2.0, 1.5]
    assert state.probe is None


def test_the_stop_rule_stops_at_a_feasible_point(tmp_path, monkeypatch):
    rule = load("A stop rule", tmp_path, monkeypatch).GoodEnough(-0.9)
    disc = gdpa.problems.get("disc-product")  # min -x y over the disc, minimum -1
    result = gdpa.solve(disc, stop=[rule, gdpa.MaxSteps(1000)])
    assert result.status is gdpa.Status.STOPPED
    now = disc.problem.evaluate(result.x_last)
    assert float(now.objective) <= -0.9
    assert now.constraints.max() <= 1e-6


def test_the_dual_rule_by_hand_and_to_the_end(tmp_path, monkeypatch):
    import torch

    rule = load("A dual rule", tmp_path, monkeypatch).Ascent(rate=0.5)
    x = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.1), ["floor"], rule=rule)

    def step():
        opt.zero_grad()
        opt.lagrangian((x**2).sum(), {"floor": 1 - x[0]}).backward()
        opt.step()

    step()  # g = 1: lambda = 0.5, the gradient is -0.5
    assert opt.multipliers.tolist() == [0.5]
    assert x.item() == pytest.approx(0.05)
    step()  # g = 0.95 and a step of 0.5 / sqrt(2)
    assert opt.multipliers.tolist() == pytest.approx([0.5 + 0.95 * 0.5 / 2**0.5])
    for _ in range(400):
        step()
    assert x.item() == pytest.approx(1, abs=1e-2)  # min x^2 subject to x >= 1 has the multiplier 2
    assert opt.multipliers.item() == pytest.approx(2, abs=5e-2)


def test_the_array_backend_agrees_with_a_closed_form(tmp_path, monkeypatch):
    casadi = pytest.importorskip("casadi")
    backend = load("An array backend", tmp_path, monkeypatch)
    x = casadi.SX.sym("x", 2)
    problem = backend.from_casadi(x, -x[0] * x[1], casadi.vertcat(casadi.dot(x, x) - 2), domain=gdpa.Box(-5.0, 5.0))
    result = gdpa.solve(problem, np.array([0.5, 1.0]))
    assert result.success
    assert np.abs(result.x) == pytest.approx([1, 1], abs=1e-5)
    assert result.multipliers == pytest.approx([0.5], abs=1e-5)
    assert not gdpa.check_derivatives(problem, np.array([0.3, 0.7])).wrong


def test_the_experiment_runs_and_is_reported(tmp_path, monkeypatch):
    from gdpa.paper import EXPERIMENTS, get
    from gdpa.paper.base import Settings
    from gdpa.paper.records import Folder
    from gdpa.paper.runner import run_units

    load("An experiment", tmp_path, monkeypatch)
    monkeypatch.setitem(EXPERIMENTS, "steps", "an_experiment")
    study = get("steps")
    folder = Folder(tmp_path / "out", "gdpa reproduce steps")
    work = study.units(Settings())
    folder.begin("steps", work)
    assert run_units(folder, work, lambda event: None) == []
    section = study.section(list(folder.read("steps")))
    assert [row[0] for row in section.tables[0].rows] == ["adaptive-gdpa", "damped-gdpa"]
    assert section.verdicts[0].holds


def in_repository(method):
    """Return the method as a file of the repository: names from their modules, and one registration."""
    [line] = re.findall(r"^from gdpa import (.*)$", method, re.M)
    names = [*line.split(", "), *re.findall(r"gdpa\.(check_at_least|namespace|unit_vector)\b", method)]
    modules = {name: getattr(getattr(gdpa, name), "__module__", "") for name in names} | {"Array": "gdpa.base.typing"}
    lines = [f"from {module} import {name}" for name, module in modules.items()]
    method = re.sub(
        r"^from gdpa import .*$", "\n".join([*lines, "from gdpa.base.stored import stored"]), method, flags=re.M
    )
    method = method.replace("@gdpa.storage.register\n", "@stored\n").replace(
        '@gdpa.register("switching-gradient")\n', ""
    )
    method = re.sub(r"gdpa\.(check_at_least|namespace|unit_vector)\b", r"\1", method)
    return method.replace("import gdpa\n", "", 1).replace(">>> own", ">>> import gdpa\n    >>> own")


def insert_after(file, before, block):
    text = file.read_text()
    assert text.count(before) == 1, before
    file.write_text(text.replace(before, before + block))


@pytest.mark.campaign
def test_the_method_in_a_copy_of_the_repository_passes_the_tests_of_all_methods(tmp_path):
    for name in ("src", "tests", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    method, name, typed, row, grid = blocks("A method")
    (tmp_path / METHOD).write_text(in_repository(method))
    insert_after(tmp_path / REGISTRY, '    "gdpa": "gdpa.methods.gdpa:GDPA",\n', name)
    insert_after(tmp_path / REGISTRY, "    from gdpa.methods.gdpa import GDPA as GDPA\n", typed)
    insert_after(tmp_path / TABLE, "TABLE = {\n", row)
    insert_after(tmp_path / RACE, "GRIDS = {\n", grid)
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    tests = [str(TABLE), "tests/methods/test_registry.py", "tests/paper/test_race.py", "tests/test_architecture.py"]
    chosen = ["-k", "switching or row or registry or Switch or race", *tests, str(METHOD)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(".") > 20
