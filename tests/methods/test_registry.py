"""The registry of methods: names, instances and methods of one's own."""

import ast
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import OptimizeWarning

import gdpa
from gdpa import GDPA, PDD, MaxSteps, problems, solve
from gdpa.methods import registry as table


@pytest.fixture
def registry(monkeypatch):
    """The registry, put back after the test."""
    monkeypatch.setattr(table, "METHODS", dict(table.METHODS))


@dataclass(frozen=True)
class PlainDescent(gdpa.Method):
    """Gradient descent on f alone."""

    alpha: float = 0.1
    memory: tuple[int, ...] = field(default_factory=tuple)

    def update(self, problem, state):
        now = state.evaluation or problem.evaluate(state.x)
        x = problem.domain.project(state.x - self.alpha * now.pullback(state.multipliers))
        return replace(state, step=state.step + 1, x=x, evaluation=problem.evaluate(x))


def test_a_name_and_an_instance_run_alike():
    hs = problems.get("HS12")
    by_name = solve(hs.problem, hs.x0, "PDD", stop=MaxSteps(30))
    by_instance = solve(hs.problem, hs.x0, PDD(), stop=MaxSteps(30))
    assert by_name.algorithm == PDD()
    assert np.array_equal(by_name.x_last, by_instance.x_last)


def test_minimize_takes_a_method_and_options_override_its_fields():
    calls = {"fun": lambda x: (x[0] - 2) ** 2 + x[1] ** 2, "x0": [0.5, 0.5], "jac": lambda x: 2 * (x - [2, 0])}
    calls["constraints"] = {"type": "ineq", "fun": lambda x: 1 - x @ x, "jac": lambda x: -2 * x}
    named = gdpa.minimize(**calls, method="gdpa", options={"tau": 0.05, "maxiter": 50})
    given = gdpa.minimize(**calls, method=GDPA(tau=0.05), options={"maxiter": 50})
    changed = gdpa.minimize(**calls, method=GDPA(tau=0.5), options={"maxiter": 50, "tau": 0.05})
    assert np.array_equal(named.x, given.x)
    assert np.array_equal(named.x, changed.x)
    assert given.result.algorithm == GDPA(tau=0.05)


def test_minimize_takes_whatever_has_init_and_update():
    method = GDPA()
    plain = SimpleNamespace(init=method.init, update=method.update)
    found = gdpa.minimize(lambda x: x @ x, [1.0], method=plain, options={"maxiter": 5})
    assert found.nit == 5
    with pytest.warns(OptimizeWarning, match="ignores the unknown options 'tau'"):
        gdpa.minimize(lambda x: x @ x, [1.0], method=plain, options={"maxiter": 5, "tau": 0.1})


def test_a_registered_method_is_known_everywhere(registry, tmp_path):
    assert gdpa.register("plain-descent", PlainDescent) is PlainDescent
    assert "plain-descent" in gdpa.method_names()
    assert gdpa.get_method("Plain-Descent") is PlainDescent
    assert gdpa.PlainDescent is PlainDescent
    assert "PlainDescent" in dir(gdpa)
    assert gdpa.minimize(lambda x: x @ x, [1.0], method="plain-descent", options={"alpha": 0.25}).success
    hs = problems.get("HS12")
    rows = gdpa.compare(
        hs.problem, hs.x0, ["plain-descent", PlainDescent(0.01), ("slow", PlainDescent(0.001))], passes=100
    )
    assert [row.name for row in rows] == ["plain-descent", "PlainDescent", "slow"]
    first = solve(hs.problem, hs.x0, "plain-descent", stop=MaxSteps(5))
    gdpa.save_run(tmp_path / "run", first.run)
    assert gdpa.load_run(tmp_path / "run").algorithm == PlainDescent()
    gdpa.register("plain-descent", PlainDescent)  # a second time, as a notebook does


def test_a_state_needs_no_probe():
    x = np.ones(2)
    assert gdpa.State(step=0, x=x, multipliers=x, evaluation=None).probe is None


def test_register_decorates(registry):
    @gdpa.register("decorated")
    @dataclass(frozen=True)
    class Decorated(PlainDescent):
        beta: float = 1.0

    assert gdpa.get_method("decorated") is Decorated


@dataclass(frozen=True)
class NoDefault(PlainDescent):
    beta: float = field(kw_only=True)


BAD = [
    ("GDPA-2", PlainDescent, ValueError, "name must be a word in lower case, got 'GDPA-2'"),
    ("", PlainDescent, ValueError, "name must be a word in lower case, got ''"),
    ("gdpa", PlainDescent, ValueError, "the name 'gdpa' is taken by <class .*GDPA"),
    ("plain", int, TypeError, "cls must be a frozen dataclass .*; it lacks init and update"),
    ("instance", PlainDescent(), TypeError, "cls must be a frozen dataclass with init and update, got PlainDescent"),
    (
        "no-default",
        NoDefault,
        TypeError,
        "NoDefault.beta needs a default, so that 'no-default' can be made by",
    ),
]


@pytest.mark.parametrize(("name", "cls", "kind", "message"), BAD, ids=[row[0] or "empty" for row in BAD])
def test_register_refuses(registry, name, cls, kind, message):
    before = gdpa.method_names()
    with pytest.raises(kind, match=message):
        gdpa.register(name, cls)
    assert gdpa.method_names() == before


def test_a_method_without_a_probe_ends_by_a_certificate():
    """PlainDescent yields no Lagrangian gradient; certificates are attempted all the same, and compare counts them."""
    problem = gdpa.from_functions(
        lambda x: x @ x, lambda x: x[:1] - 5, gradient=lambda x: 2 * x, jacobian=lambda x: np.array([[1.0, 0.0]])
    )
    result = solve(problem, np.ones(2), PlainDescent(), tolerance=1e-4)
    assert result.success
    assert result.steps < 200
    start = SimpleNamespace(problem=problem, x0=np.ones(2))  # a problem that brings its start, as from_module returns
    (row,) = gdpa.compare(start, methods=[PlainDescent()], tolerance=1e-4)
    assert row.passes_to(1e-4) == row.result.forwards + row.result.backwards


def test_the_registry_and_the_typed_imports_name_the_same_classes():
    source = ast.parse(Path(table.__file__).read_text())
    (block,) = [node for node in source.body if isinstance(node, ast.If)]
    typed = {getattr(import_module(line.module), line.names[0].asname) for line in block.body}
    assert typed == {gdpa.get_method(name) for name in gdpa.method_names()}
