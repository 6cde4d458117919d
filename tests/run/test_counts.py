"""The counters of a result are the calls that were made, and no user function is called twice at one point."""

import numpy as np
import pytest

import gdpa
from gdpa import GDPA, AdaptiveGDPA, Box, MaxSteps, get_method, method_names, solve
from gdpa.paper.applications.cmdp import TabularCMDP, as_problem, paper_instance, start_of

METHODS = {"adaptive": AdaptiveGDPA(), "pullback": AdaptiveGDPA(step="pullback"), "gdpa": GDPA(alpha=0.05, beta=2.0)}


class Counted:
    """A function that notes the points it is called at."""

    def __init__(self, function):
        self.function, self.points = function, []

    def __call__(self, x, *args):
        self.points.append(np.asarray(x, dtype=float).tobytes())
        return self.function(x, *args)

    @property
    def calls(self):
        return len(self.points)

    @property
    def twice(self):
        return len(self.points) - len(set(self.points))


def f(x):
    return (x[0] - 2) ** 2 + (x[1] - 1) ** 2 + x[0] * x[1] / 4


def df(x):
    return np.array([2 * (x[0] - 2) + x[1] / 4, 2 * (x[1] - 1) + x[0] / 4])


def g(x):
    return np.array([x[0] ** 2 - x[1], x[0] + x[1] - 2])


def dg(x):
    return np.array([[2 * x[0], -1.0], [1.0, 1.0]])


@pytest.mark.parametrize("domain", [gdpa.REALS, Box([0.0, 0.0], [0.9, 3.0])], ids=["reals", "box"])
@pytest.mark.parametrize("name", METHODS)
def test_from_functions(name, domain):
    own = [Counted(function) for function in (f, g, df, dg)]
    problem = gdpa.from_functions(own[0], own[1], gradient=own[2], jacobian=own[3], domain=domain)
    result = solve(problem, np.array([0.5, 2.0]), METHODS[name], tolerance=1e-6 if name != "gdpa" else 1e-2)
    assert result.success
    assert [function.twice for function in own] == [0, 0, 0, 0]
    assert own[0].calls == own[1].calls == result.calls.forwards
    assert max(own[2].calls, own[3].calls) <= result.calls.forwards


@pytest.mark.parametrize("name", sorted(set(method_names())))
def test_every_method_is_counted(name):
    own = Counted(f), Counted(lambda x: np.array([x[0] + x[1] - 2]))
    problem = gdpa.from_functions(
        *own, gradient=df, jacobian=lambda x: np.ones((1, 2)), num_equalities=1 if name == "proximal-admm" else 0
    )
    result = solve(problem, np.array([0.5, 1.5]), get_method(name)(), stop=MaxSteps(30))
    assert own[0].calls == own[1].calls == result.calls.forwards


@pytest.mark.parametrize("name", METHODS)
def test_from_torch(name):
    import torch

    points = []

    def function(x):
        points.append(x.detach().numpy().tobytes())
        return f(x), torch.stack([x[0] ** 2 - x[1], x[0] + x[1] - 2])

    problem = gdpa.from_torch(function)
    result = solve(problem, torch.tensor([0.5, 2.0], dtype=torch.float64), METHODS[name], tolerance=1e-2)
    assert result.success
    assert len(points) == len(set(points)) == result.calls.forwards


def test_from_jax():
    import jax.numpy as jnp

    calls = []

    def function(x):
        calls.append(x.shape)
        return f(x), jnp.stack([x[0] ** 2 - x[1], x[0] + x[1] - 2])

    # Without compilation JAX calls the function once for every forward pass, and not for a backward one.
    result = solve(gdpa.from_jax(function, jit=False), jnp.array([0.5, 2.0]), tolerance=1e-3)
    assert result.success
    assert len(calls) == result.calls.forwards


def test_minimize():
    own = {
        name: Counted(function)
        for name, function in {"f": f, "df": df, "c": lambda x: -g(x), "dc": lambda x: -dg(x)}.items()
    }
    constraints = {"type": "ineq", "fun": own["c"], "jac": own["dc"]}
    found = gdpa.minimize(own["f"], [0.5, 2.0], jac=own["df"], constraints=constraints, bounds=[(0, 0.9), (0, 3)])
    assert found.success
    assert {name: function.twice for name, function in own.items()} == dict.fromkeys(own, 0)
    assert (found.nfev, found.njev) == (own["f"].calls, own["df"].calls)
    assert (found.constr_nfev[0], found.constr_njev[0]) == (own["c"].calls, own["dc"].calls)


def test_minimize_with_differences():
    own = {"f": Counted(f), "c": Counted(lambda x: -g(x))}
    found = gdpa.minimize(own["f"], [0.5, 2.0], constraints={"type": "ineq", "fun": own["c"]})
    assert found.success
    assert {name: function.twice for name, function in own.items()} == {"f": 0, "c": 0}
    assert (found.nfev, found.constr_nfev[0]) == (own["f"].calls, own["c"].calls)


@pytest.mark.parametrize("parametrization", ["softmax", "direct"])
def test_a_policy_is_factorized_once(parametrization, monkeypatch):
    made, under = [], TabularCMDP.under

    def counted(self, policy):
        made.append(policy.tobytes())
        return under(self, policy)

    monkeypatch.setattr(TabularCMDP, "under", counted)
    cmdp = paper_instance(b=8.0)
    problem = as_problem(cmdp, parametrization, check=False)
    result = solve(problem, start_of(cmdp, parametrization), stop=MaxSteps(20))
    assert len(made) == result.calls.forwards
    assert len(made) == len(set(made))
