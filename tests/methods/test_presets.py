"""What the classes say of themselves: presets, Table 1, validation, and the bound of the min-max methods."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from gdpa import (
    FeasibleBelow,
    MaxSteps,
    Method,
    MethodCard,
    Status,
    from_functions,
    get_method,
    method_names,
    problems,
    solve,
)
from gdpa.methods.nested import FixedMomentum

METHODS = {name: get_method(name) for name in method_names() if issubclass(get_method(name), Method)}


def test_table_1_is_the_papers() -> None:
    """Framework, constraint, type, implementation and complexity, as the paper's Table 1 prints them."""
    printed = {
        "proximal-admm": ("inexact", "linear", "equality", "single-loop", "O(1/eps^2)"),
        "ialm-sahin": ("inexact", "ncvx", "equality", "double-loop", "O(1/eps^4)"),
        "ialm-li": ("inexact", "ncvx", "equality", "triple-loop", "O(1/eps^3)"),
        "ippp": ("penalty", "ncvx", "inequality", "triple-loop", "O(1/eps^3)"),
        "iqrc": ("primal", "ncvx", "inequality", "double-loop", "O(1/eps^3)"),
        "gdpa": ("primal-dual", "ncvx", "inequality", "single-loop", "O(1/eps^3)"),
    }
    assert {name: m.card[1:6] for name, m in METHODS.items() if m.card.in_table1} == printed


def test_printed_constants_are_the_appendix() -> None:
    mnpc = {name: METHODS[name].printed("mnpc") for name in ("gdpa", "ialm-sahin", "ialm-li", "ippp", "iqrc")}
    network = {name: METHODS[name].printed("network") for name in mnpc}
    # "initial step-sizes alpha_0 = 0.1, beta_0 = 1e-4, tau = 0.1"; "alpha_0 = 2e-4, beta_0 = 2e-4, tau = 0.1"
    assert [(m["gdpa"].alpha(1), m["gdpa"].beta(1), m["gdpa"].tau) for m in (mnpc, network)] == [
        (0.1, 1e-4, 0.1),
        (2e-4, 2e-4, 0.1),
    ]
    # "initial dual variable of IALM gamma_0 = 1e-2" and 1e-3; "initial penalty parameter of IPPP 1e-3" and 1e-4
    assert [(m["ialm-sahin"].sigma, m["ialm-li"].w, m["ippp"].beta) for m in (mnpc, network)] == [
        (1e-2, 1e-2, 1e-3),
        (1e-3, 1e-3, 1e-4),
    ]
    # "Nesterov's accelerated gradient descent with step-size 0.01 (1e-4) and momentum parameter 0.1"
    for m, step in ((mnpc, 0.01), (network, 1e-4)):
        for name in ("ialm-sahin", "ialm-li", "ippp"):
            assert m[name].inner == FixedMomentum(step, 0.1)
    # IQRC: "initial step-size gamma_0 = 0.1 (1e-4), the maximum number of the inner loop 30, tolerance 1 (0.01)"
    assert [(m["iqrc"].gamma, m["iqrc"].steps, m["iqrc"].growth, m["iqrc"].tolerance) for m in (mnpc, network)] == [
        (0.1, 30, 0, 1.0),
        (1e-4, 30, 0, 0.01),
    ]


def test_the_ablations_keep_their_tau_with_the_printed_constants_of_gdpa() -> None:
    found = [METHODS[name].printed("network") for name in ("penalty", "linearized-alm")]
    assert [(method.alpha(1), method.beta(1), method.tau) for method in found] == [(2e-4, 2e-4, 1), (2e-4, 2e-4, 0)]


def test_presets_that_are_not_there_say_so() -> None:
    with pytest.raises(ValueError, match=re.escape("prints no constants for PDD; use PDD.tuned()")):
        METHODS["pdd"].printed("mnpc")
    with pytest.raises(ValueError, match="experiment must be one of 'mnpc', 'network', got 'cmdp'"):
        METHODS["ippp"].printed("cmdp")


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("ialm-sahin", {"beta": 0.0}, "beta must be a positive finite number, got 0.0"),
    ("ialm-sahin", {"growth": 1.0}, "growth must exceed 1, got 1.0"),
    ("ialm-li", {"rho": -1.0}, "rho must be a positive finite number, got -1.0"),
    ("ippp", {"gamma": float("nan")}, "gamma must be a positive finite number, got nan"),
    ("iqrc", {"mu": 0.0}, "mu must be a positive finite number, got 0.0"),
    ("iqrc", {"tolerance": -1.0}, "tolerance must be a finite number of at least 0, got -1.0"),
    ("proximal-admm", {"beta": 2.0}, "beta must be at most 1, got 2.0"),
    ("proximal-admm", {"step": -1.0}, "step must be a positive finite number, got -1.0"),
    ("pdd", {"c": 1.0}, "c must lie strictly between 0 and 1, got 1.0"),
    ("gda", {"bound": -1.0}, "bound must be a positive finite number, got -1.0"),
    ("gda", {"augmentation": -1.0}, "augmentation must be a finite number of at least 0, got -1.0"),
    ("gda", {"alpha": True}, "must be a positive finite number, got True"),
    ("hibsa", {"gamma": -1.0}, "gamma must be a finite number of at least 0, got -1.0"),
    ("hibsa", {"b": 0.0}, "b must be a positive finite number, got 0.0"),
    ("smoothed-gda", {"beta": 0.0}, "beta must lie in \\(0, 1\\], got 0.0"),
    ("penalty", {"beta": -1.0}, "beta must be a positive finite number, got -1.0"),
    ("linearized-alm", {"lipschitz": 0.0}, "lipschitz must be a positive finite number, got 0.0"),
]


@pytest.mark.parametrize(("name", "arguments", "message"), BAD)
def test_bad_arguments_are_named(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        METHODS[name](**arguments)


@pytest.mark.parametrize("name", ["gda", "hibsa", "smoothed-gda"])
def test_a_multiplier_on_the_bound_is_told(name: str) -> None:
    """HS12's multiplier is 1/2: with B = 1/4 the methods minimize f + B [g]_+, infeasibly, and say so."""
    known = problems.get("HS12")
    method = METHODS[name](bound=0.25, augmentation=0.0, **({"gamma": 0.0} if name == "hibsa" else {}))
    result = solve(known.problem, known.x0, method, stop=MaxSteps(3000), record=0)
    assert result.state.at_bound.tolist() == [True]
    now = known.problem.evaluate(result.state.x)
    assert now.constraints[0] > 1
    np.testing.assert_allclose(now.pullback(np.array([0.25])), 0, atol=1e-3)
    free = solve(known.problem, known.x0, METHODS[name].tuned(), stop=MaxSteps(300), record=0)
    assert free.state.at_bound.tolist() == [False]


def test_hibsa_without_perturbation_is_allowed() -> None:
    known = problems.get("disc-square")
    result = solve(known.problem, known.x0, METHODS["hibsa"](gamma=0.0), tolerance=1e-6, record=0)
    assert result.success  # no bias left


def test_the_loop_serves_states_without_an_oracle_call() -> None:
    """A fixed inner step keeps none at x: the stop rule, the scale and the failure report make do."""
    known = problems.get("disc-product")
    method = METHODS["ippp"].printed("mnpc")
    result = solve(known.problem, np.array([0.5, 0.4]), method, stop=(FeasibleBelow(1e-6), MaxSteps(50)))
    assert result.status is Status.FEASIBLE
    assert result.state.evaluation is None

    calls = []

    def objective(x: Any) -> Any:
        calls.append(1)
        if len(calls) > 8:
            raise RuntimeError("the user's own")
        return x @ x

    broken = from_functions(
        objective, lambda x: x[:1] - 1, gradient=lambda x: 2 * x, jacobian=lambda x: np.array([[1.0, 0.0]])
    )
    with pytest.raises(RuntimeError, match="the user's own") as raised:
        solve(broken, np.ones(2), method)
    assert not raised.value.partial_result.success  # type: ignore[attr-defined]


def test_rows_are_rows() -> None:
    for method in METHODS.values():
        assert isinstance(method.card, MethodCard)
        assert method.card.loops in ("single-loop", "double-loop", "triple-loop")
