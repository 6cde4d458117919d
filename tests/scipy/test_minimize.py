"""SciPy's interface, against SciPy's own solvers and closed forms."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import scipy.optimize
from scipy.optimize import (
    Bounds,
    LinearConstraint,
    OptimizeResult,
    OptimizeWarning,
    rosen,
    rosen_der,
    rosen_hess,
)
from scipy.sparse import csr_array
from scipy.sparse.linalg import aslinearoperator

import gdpa.methods
from gdpa import Status, minimize
from gdpa.scipy.report import STATUS_CODES
from tests.libraries import NonlinearConstraint, scipy_minimize

# alpha beta ||J||^2 stays of order 1; the small tau makes the residual violation tau lambda / beta small early.
STEPS = {"alpha": 0.05, "beta": 5.0, "tau": 0.02, "maxiter": 20_000}
HS12_STEPS = {"alpha": 0.004, "beta": 1.0, "tau": 0.005, "maxiter": 20_000}


@dataclass
class Counted:
    """Remembers where it was called."""

    function: Any
    points: list[bytes] = field(default_factory=list)

    def __call__(self, x, *args):
        self.points.append(np.asarray(x).tobytes())
        return self.function(x, *args)

    @property
    def repeats(self) -> int:
        return len(self.points) - len(set(self.points))


def square(x):
    return float(x @ x)


def twice(x):
    return 2 * x


def hs12(x):
    return 0.5 * x[0] ** 2 + x[1] ** 2 - x[0] * x[1] - 7 * x[0] - 7 * x[1]


# name: (fun, x0, keywords, x*, v*): closed forms, from grad f + sum J^T v = 0 by hand.
CASES: dict[str, tuple[Any, Any, dict[str, Any], list[float], list[list[float]]]] = {
    "HS12, one upper side": (
        hs12,
        [0, 0],
        {"constraints": NonlinearConstraint(lambda x: 4 * x[0] ** 2 + x[1] ** 2, -np.inf, 25)},
        [2, 3],
        [[0.5]],
    ),
    "a dict, fun >= 0, is a lower side": (
        square,
        [3, 1],
        {"constraints": {"type": "ineq", "fun": lambda x: x[0] + x[1] - 2}},
        [1, 1],
        [[-2.0]],
    ),
    "two sides, the upper one active, and a bound": (
        lambda x: (x[0] - 3) ** 2 + (x[1] + 1) ** 2,
        [0, 1],
        {"constraints": LinearConstraint([1, 1], 1, 2), "bounds": [(None, None), (0, None)]},  # type: ignore[list-item]
        [2, 0],
        [[2.0], [0.0, -4.0]],
    ),
    "two sides, the lower one active": (
        square,
        [3, 1],
        {"constraints": NonlinearConstraint(lambda x: x[0] + x[1], 2, 4, jac=lambda x: csr_array([[1.0, 1.0]]))},
        [1, 1],
        [[-2.0]],
    ),
    "equality": (square, [0, 0], {"constraints": LinearConstraint([[1, 2]], 5, 5)}, [1, 2], [[-2.0]]),
    "equality in a dict": (
        square,
        [0, 0],
        {"constraints": [{"type": "eq", "fun": lambda x, s: s - x[0] - 2 * x[1], "args": (5,)}]},
        [1, 2],
        [[2.0]],
    ),
    "upper bound": (
        lambda x: (x[0] - 2) ** 2 + (x[1] - 0.5) ** 2,
        [0, 0],
        {"bounds": Bounds(-1, [1, 1])},
        [1, 0.5],
        [[2.0, 0.0]],
    ),
    # rows: free, equality x0 = 1, upper x1 <= 1 (active), two-sided x2 in [-1, 1] (inactive); then the plane x2 >= 0.
    "a mixed list": (
        lambda x: (x[0] - 3) ** 2 + (x[1] - 3) ** 2 + (x[2] - 0.5) ** 2,
        [0, 0, 0],
        {
            "constraints": [
                NonlinearConstraint(
                    lambda x: np.array([x[0], x[0], x[1], x[2]]), [-np.inf, 1, -np.inf, -1], [np.inf, 1, 1, 1]
                ),
                {"type": "ineq", "fun": lambda x: x[2]},
                LinearConstraint(csr_array([[0.0, 0.0, 1.0]]), -5, 5),
            ]
        },
        [1, 1, 0.5],
        [[0.0, 4.0, 4.0, 0.0], [0.0], [0.0]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_solution_and_v_as_trust_constr(name):
    fun, x0, keywords, x_star, v_star = CASES[name]
    options = HS12_STEPS if fun is hs12 else STEPS
    ours = minimize(fun, x0, method="gdpa", tol=2e-3, options=options, **keywords)
    assert ours.success, ours.message
    assert ours.status == 0
    theirs = _trust_constr(fun, x0, keywords)
    np.testing.assert_allclose(theirs.x, x_star, atol=5e-3)  # its stop rule does not look at slackness
    np.testing.assert_allclose(ours.x, x_star, atol=5e-3)
    assert len(ours.v) == len(theirs.v) == len(v_star)
    for mine, scipys, exact in zip(ours.v, theirs.v, v_star, strict=True):
        assert mine.shape == np.shape(scipys) == np.shape(exact)
        np.testing.assert_allclose(scipys, exact, atol=2e-2)
        np.testing.assert_allclose(mine, exact, atol=2e-2)
    for mine, scipys in zip(ours.constr, theirs.constr, strict=True):
        np.testing.assert_allclose(mine, scipys, atol=1e-2)
    assert ours.fun == fun(ours.x)
    assert ours.constr_violation == ours.maxcv <= 4e-3


def _trust_constr(fun, x0, keywords):
    options = {"sparse_jacobian": False, "barrier_tol": 1e-10, "xtol": 1e-12, "maxiter": 3000}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its quasi-Newton update warns on linear constraints
        if "bounds" not in keywords or "constraints" not in keywords:
            return scipy_minimize(fun, x0, method="trust-constr", options=options, **keywords)
        keywords = {**keywords}
        bounds = keywords["bounds"]
        return scipy_minimize(fun, x0, method="trust-constr", bounds=bounds, constraints=keywords["constraints"])


@pytest.mark.parametrize("name", CASES)
def test_the_default_method_needs_no_options(name):
    fun, x0, keywords, x_star, v_star = CASES[name]
    counted = Counted(fun)
    found = minimize(counted, x0, tol=1e-6, **keywords)
    assert found.success, found.message
    np.testing.assert_allclose(found.x, x_star, atol=1e-5)
    for mine, exact in zip(found.v, v_star, strict=True):
        np.testing.assert_allclose(mine, exact, atol=1e-4)
    assert counted.repeats == 0
    assert found.nfev == len(counted.points)


def test_signs_of_v_make_the_lagrangian_stationary():
    fun, x0, keywords, _, _ = CASES["two sides, the upper one active, and a bound"]
    found = minimize(fun, x0, method="gdpa", tol=1e-3, options=STEPS, **keywords)
    total = found.grad + np.ones((1, 2)).T @ found.v[0] + found.v[1]
    assert np.abs(total).max() == pytest.approx(found.optimality, abs=1e-12)
    assert found.optimality < 1e-2


def test_against_slsqp_with_exact_derivatives():
    constraint = {
        "type": "ineq",
        "fun": lambda x: 25 - 4 * x[0] ** 2 - x[1] ** 2,
        "jac": lambda x: [-8 * x[0], -2 * x[1]],
    }
    gradient = lambda x: np.array([x[0] - x[1] - 7, 2 * x[1] - x[0] - 7])  # noqa: E731
    theirs = scipy_minimize(hs12, [0, 0], jac=gradient, method="SLSQP", constraints=constraint)
    ours = minimize(hs12, [0, 0], jac=gradient, method="gdpa", constraints=constraint, tol=1e-3, options=HS12_STEPS)
    assert ours.fun == pytest.approx(theirs.fun, rel=1e-3)
    np.testing.assert_allclose(ours.x, theirs.x, atol=3e-3)
    np.testing.assert_allclose(ours.jac, theirs.jac, atol=2e-2)
    if "multipliers" in theirs:  # SciPy 1.16 and newer
        np.testing.assert_allclose(ours.multipliers, theirs.multipliers, atol=5e-3)


def test_multipliers_in_the_order_and_with_the_signs_of_slsqp():
    # Two-sided rows, equalities in two constraints, a dict; c grows in every variable, so the signs tell.
    constraints = [
        NonlinearConstraint(lambda x: [x[0] + x[1], x[1] + x[2], x[0]], [1, -np.inf, 0.2], [1, 0.5, 5]),
        {"type": "eq", "fun": lambda x: 2 * x[3] - 1},
        {"type": "ineq", "fun": lambda x: x[2] - 0.1},
        LinearConstraint([[0, 0, 0, 1], [0, 0, 1, 1]], [-1, 0.9], [9, 9]),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizeWarning)  # equalities and inequalities in one constraint
        theirs = scipy_minimize(
            lambda x: (x - [3, 2, -1, 4]) @ (x - [3, 2, -1, 4]), np.ones(4), constraints=constraints, method="SLSQP"
        )
    ours = minimize(lambda x: (x - [3, 2, -1, 4]) @ (x - [3, 2, -1, 4]), np.ones(4), constraints=constraints)
    assert theirs.success
    assert ours.success
    np.testing.assert_allclose(ours.x, theirs.x, atol=1e-5)
    if "multipliers" not in theirs:
        pytest.skip("SLSQP of a SciPy before 1.16 returns no multipliers")
    assert np.abs(theirs.multipliers).max() > 1
    assert theirs.multipliers.min() < -1
    np.testing.assert_allclose(ours.multipliers, theirs.multipliers, atol=1e-4)


@pytest.mark.parametrize("jac", [twice, True, None, False, "2-point", "3-point", "cs"])
def test_every_way_to_give_a_gradient_walks_the_same_path(jac):
    value = (lambda x: (x @ x, 2 * x)) if jac is True else (lambda x: x @ x)
    found = minimize(value, [3.0, 1.0], jac=jac, method="gdpa", options={"alpha": 0.1, "maxiter": 5})
    x = np.array([3.0, 1.0])
    for r in range(1, 6):
        x = x - 0.1 * r ** (-1 / 3) * 2 * x
    np.testing.assert_allclose(found.result.x_last, x, rtol=1e-14 if jac in (twice, True, "cs") else 1e-6)
    # 6 iterates, 5 gradients for the steps; the last gradient and two points near x are for the certificates.
    extra = {"2-point": 2, "3-point": 4, "cs": 2}.get(jac if isinstance(jac, str) else "2-point", 2)
    exact = callable(jac) or jac is True
    assert found.njev == 8
    assert found.nfev == 8 + (0 if exact else 8 * extra)


@pytest.mark.parametrize("through_scipy", [False, True])
@pytest.mark.parametrize("bounds", [None, [(0.5, None), (None, 0.5)]])
def test_user_functions_are_never_called_twice_at_one_point(through_scipy, bounds):
    fun, jac = Counted(lambda x: (x[0] - 2) ** 2 + (x[1] - 1) ** 2), Counted(lambda x: 2 * (x - np.array([2, 1])))
    con, con_jac = Counted(lambda x: [x @ x, x[0]]), Counted(lambda x: np.array([2 * x, [1, 0]]))
    constraint = NonlinearConstraint(con, -np.inf, [1, 0.9], jac=con_jac)
    run = (lambda *a, **k: scipy_minimize(*a, method=minimize, **k)) if through_scipy else minimize
    keywords = {} if through_scipy else {"method": "gdpa"}
    seen: list[float] = []
    options = {**STEPS, "maxiter": 400}
    if through_scipy:
        options["method"] = "gdpa"  # type: ignore[assignment]
    found = run(
        fun,
        [0, 0],
        jac=jac,
        bounds=bounds,
        constraints=constraint,
        tol=1e-3,
        options=options,
        callback=lambda intermediate_result: seen.append(intermediate_result.fun),
        **keywords,
    )
    assert len(seen) == found.nit > 50
    for counted in (fun, jac, con, con_jac):
        assert counted.repeats == 0
    assert found.nfev == len(fun.points)
    assert found.njev == len(jac.points)
    assert found.constr_nfev[0] == len(con.points)
    assert found.constr_njev[0] == len(con_jac.points)


def test_the_best_point_is_remembered_however_old_it_is():
    fun, jac = Counted(square), Counted(twice)
    # The first step lands near 0, then x <- -1.01 x walks away from it: x_2 stays the best.
    options = {"alpha": lambda r: 0.495 if r == 1 else 1.005, "maxiter": 200}
    found = minimize(fun, [0.5], jac=jac, method="gdpa", options=options)
    assert found.x.tolist() == pytest.approx([0.005])
    assert found.nit == 200
    assert fun.repeats == jac.repeats == 0


def test_differences_repeat_no_point_and_stay_inside_the_bounds():
    inside = Bounds([0, 0.5], [1, 0.5], keep_feasible=True)
    visited = []

    def fun(x):
        assert np.all((x >= [0, 0.5]) & (x <= [1, 0.5])), x
        visited.append(x.copy())
        return (x[0] - 2) ** 2 + np.sqrt(1 - x[0]) + x[1]

    for scheme in ("2-point", "3-point"):
        visited.clear()
        found = minimize(fun, [5, 5], jac=scheme, bounds=inside, method="gdpa", options={"alpha": 0.1, "maxiter": 30})
        assert len({x.tobytes() for x in visited}) == len(visited) == found.nfev
        assert found.x[0] == 1
        assert np.isnan(found.jac[1])  # fixed: finite differences have no room
        assert np.isnan(found.v[-1][1])


def test_jac_true_calls_the_function_once_a_point_also_through_scipy():
    options = {"maxiter": 10, "alpha": 0.1}
    for run, method, more in ((minimize, "gdpa", {}), (scipy_minimize, minimize, {"method": "gdpa"})):
        fun = Counted(lambda x, c: (float(x @ x) + c, 2 * x))
        found = run(fun, [1, 2], args=(3.0,), jac=True, method=method, options={**options, **more})
        assert fun.repeats == 0
        assert found.fun == pytest.approx(3.0, abs=1.0)
        assert found.nfev == found.njev == len(fun.points)


def test_args_reach_fun_and_jac():
    found = minimize(
        lambda x, a, b: a * x @ x + b,
        [1],
        args=(2.0, 7.0),
        jac=lambda x, a, b: 2 * a * x,
        method="gdpa",
        options={"alpha": 0.2, "maxiter": 100},
    )
    assert found.success
    assert found.fun == pytest.approx(7.0)
    assert minimize(lambda x, a: a * x @ x, 1, args=2.0, method="gdpa", options={"alpha": 0.2}).success


def test_callback_by_signature_gets_copies():
    states, points = [], []

    def by_name(intermediate_result):
        states.append(intermediate_result)
        intermediate_result.x[:] = np.nan

    def by_position(xk):
        points.append(xk.copy())
        xk[:] = np.nan

    limits = {"alpha": 0.1, "maxiter": 4}
    constraint = LinearConstraint([1, 1], 3, np.inf)  # type: ignore[list-item]
    for callback in (by_name, by_position):
        minimize(square, [3, 1], jac=twice, method="gdpa", callback=callback, options=limits, constraints=constraint)
    assert [s.nit for s in states] == [1, 2, 3, 4]
    assert isinstance(states[0], OptimizeResult)
    assert [s.fun for s in states] == [float(x @ x) for x in points]
    assert [s.constr_violation for s in states] == [max(0.0, 3 - x.sum()) for x in points]
    assert states[0].v[0].shape == (1,)


@pytest.mark.parametrize("through_scipy", [False, True])
def test_stop_iteration_ends_the_run(through_scipy):
    def stop(xk):
        steps.append(xk)
        if len(steps) == 3:
            raise StopIteration

    steps: list[Any] = []
    if through_scipy:
        found = scipy_minimize(square, [3, 1], callback=stop, method=minimize, options={"method": "gdpa"})
    else:
        found = minimize(square, [3, 1], callback=stop, method="gdpa")
    assert (found.nit, found.status, found.success) == (3, 99, False)
    assert found.fun < 10


def test_a_raising_callback_keeps_the_partial_result():
    def broken(xk):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine") as caught:
        minimize(square, [3, 1], callback=broken, method="gdpa")
    assert caught.value.partial_result.steps == 1


def test_limits_and_their_statuses(capsys):
    with pytest.warns(OptimizeWarning, match="Maximum number of iterations"):
        few = minimize(square, [3, 1], jac=twice, method="gdpa", options={"maxiter": 3, "disp": True})
    assert (few.nit, few.status, few.success) == (3, STATUS_CODES[Status.MAX_STEPS], False)
    shown = capsys.readouterr().out
    assert "step limit" in shown
    assert [line.split()[0] for line in shown.splitlines()[:4]] == ["step", "1", "2", "3"]
    assert minimize(square, [3, 1], jac=twice, options={"disp": "bar"}).success
    assert "relative KKT" in capsys.readouterr().err
    calls = minimize(square, [3, 1], method="gdpa", options={"maxfev": 20})
    assert calls.status == STATUS_CODES[Status.MAX_ORACLE_CALLS]
    assert calls.nfev == 20
    assert set(STATUS_CODES) == set(Status)
    assert len(set(STATUS_CODES.values())) == len(Status)
    rising = minimize(lambda x: -(x[0] ** 4), [2.0], jac=lambda x: -4 * x**3, method="gdpa", options={"alpha": 1.0})
    assert not rising.success
    assert rising.status in (STATUS_CODES[Status.DIVERGING], STATUS_CODES[Status.INVALID_NUMBER])


def test_no_step_at_all_is_a_result_too():
    for limit in ({"maxiter": 0}, {"maxfev": 1}):
        found = minimize(square, [3, 1], jac=twice, method="gdpa", options=limit)
        assert (found.nit, found.success) == (0, False)
        assert found.nfev <= 2  # the certificate evaluates a point near x0
        assert found.x.tolist() == [3.0, 1.0]


def test_x0_is_converted_and_left_alone():
    start = np.array([3, 1])
    found = minimize(square, start, jac=twice, method="gdpa", options={"maxiter": 2})
    assert start.tolist() == [3, 1]
    assert found.x.dtype == np.float64
    seen = []
    minimize(lambda x: seen.append(x) or x @ x, [3, 1], jac=twice, bounds=[(0, 1)] * 2, options={"maxiter": 1})  # type: ignore[func-returns-value]
    assert seen[0].tolist() == [1.0, 1.0]  # projected before the first call


def test_a_user_who_writes_into_x_does_no_harm():
    def rude(x):
        value = float(x @ x)
        x[:] = np.nan
        return value

    found = minimize(rude, [3.0, 1.0], jac=twice, method="gdpa", options={"alpha": 0.2})
    assert found.success


def test_default_method_and_registry(monkeypatch):
    assert gdpa.methods.default_method() in gdpa.methods.method_names()
    monkeypatch.setattr("gdpa.methods.registry.METHODS", {"gdpa": "gdpa.methods.gdpa:GDPA"})
    assert gdpa.methods.default_method() == "gdpa"
    assert type(minimize(square, [1.0], options={"maxiter": 1}).result.algorithm).__name__ == "GDPA"
    assert minimize(square, [1.0], method="GDPA", options={"maxiter": 1}).nit == 1


def test_every_registered_method_is_a_class_with_init_and_update():
    for name in gdpa.methods.method_names():
        method = gdpa.methods.get_method(name)
        assert callable(method.init)
        assert callable(method.update)


def never(x, *args):
    raise AssertionError("evaluated before the input was checked")


CON = NonlinearConstraint(never, 0, 1)
BAD_BEFORE: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"x0": [np.nan]}, ValueError, "x0 must be finite"),
    ({"x0": []}, ValueError, "x0 must be finite and not empty"),
    ({"x0": [[1.0]]}, ValueError, r"x0 must have one dimension, got shape \(1, 1\)"),
    ({"x0": [1j]}, TypeError, "x0 must be real numbers"),
    ({"x0": ["a"]}, TypeError, "x0 must be real numbers"),
    ({"fun": 3}, TypeError, "fun must be callable, got 3"),
    ({"jac": "4-point"}, ValueError, "the jac of fun must be callable, True, None or one of .*'4-point'"),
    ({"method": "newton"}, ValueError, "method 'newton' is unknown; there are .*gdpa"),
    (
        {"method": 3},
        TypeError,
        "method must be the name of a method or have init and update, .* got 3",
    ),
    ({"tol": -1}, ValueError, "tol must be a positive number, got -1"),
    ({"tol": "x"}, ValueError, "tol must be a positive number, got 'x'"),
    ({"callback": 3}, TypeError, "callback must be callable, got 3"),
    ({"options": 3}, TypeError, "options must be a dict, got 3"),
    ({"constraint": {"type": "ineq"}}, TypeError, "minimize has no argument 'constraint'; did you mean 'constraints'"),
    ({"method": "adaptve"}, ValueError, "method 'adaptve' is unknown; did you mean 'adaptive-gdpa'"),
    ({"constraints": np.sum}, TypeError, r"write {'type': 'ineq', 'fun': your function} for fun\(x\) >= 0"),
    ({"options": {"tau": 1.5}}, ValueError, r"tau must lie in \[0, 1\], got 1.5"),
    ({"options": {"alpha": 0.0}}, ValueError, "alpha|initial"),
    ({"options": {"maxiter": -1}}, ValueError, "maxiter must be a nonnegative number, got -1"),
    ({"options": {"maxfev": np.nan}}, ValueError, "maxfev must be a nonnegative number, got nan"),
    ({"options": {"maxiter": True}}, ValueError, "maxiter must be a nonnegative number, got True"),
    ({"options": {"eps": 0.0}}, ValueError, "eps must be a positive number, got 0.0"),
    ({"bounds": [(0, 1), (0, 1)]}, ValueError, "The number of bounds is not compatible with the length of `x0`."),
    ({"bounds": [0, 1]}, ValueError, "bounds must be a Bounds object or 1 pairs"),
    ({"bounds": [(0, 1, 2)]}, ValueError, "bounds must be"),
    ({"bounds": 3}, ValueError, "bounds must be a Bounds object or 1 pairs .*got 3"),
    ({"bounds": [(2, 1)]}, ValueError, "An upper bound is less than the corresponding lower .* index 0"),
    ({"bounds": Bounds([np.nan], [1])}, ValueError, "bounds .*NaN"),
    ({"bounds": Bounds([0, 0], [1, 1])}, ValueError, "bounds do not fit the 1 variables"),
    ({"constraints": 3}, TypeError, "constraints must be a SciPy constraint or a list"),
    ({"constraints": [CON, 3]}, TypeError, r"constraints\[1\] must be a NonlinearConstraint"),
    ({"constraints": Bounds(0, 1)}, TypeError, "constraints must be"),
    ({"constraints": [Bounds(0, 1)]}, TypeError, "bounds on x go to the argument bounds"),
    ({"constraints": {"type": "le", "fun": never}}, ValueError, "'type'.*must be 'ineq'.*got 'le'"),
    ({"constraints": {"type": "eq"}}, ValueError, "constraints has no 'fun'"),
    ({"constraints": {"type": "eq", "fun": 1}}, TypeError, r"constraints\['fun'\] must be callable, got 1"),
    ({"constraints": {"type": "eq", "fun": never, "jac": "best"}}, ValueError, r"the jac of constraints\['fun'\] must"),
    ({"constraints": NonlinearConstraint(never, 2, 1)}, ValueError, r"constraints.fun leaves no value: lb=2.0, ub=1.0"),
    ({"constraints": NonlinearConstraint(never, [0, 0], [1, 1, 1])}, ValueError, "do not fit each other"),
    ({"constraints": NonlinearConstraint(never, np.nan, 1)}, ValueError, "leaves no value: lb=nan"),
    ({"constraints": NonlinearConstraint(never, np.inf, np.inf)}, ValueError, "leaves no value: lb=inf"),
    (
        {"constraints": LinearConstraint([[1.0, 2.0]], 0, 1)},
        ValueError,
        "constraints.A must be a finite matrix with 1 col",
    ),
    ({"constraints": LinearConstraint([[np.nan]], 0, 1)}, ValueError, "constraints.A must be a finite matrix"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD_BEFORE)
def test_bad_input_is_refused_before_the_first_evaluation(change, error, message):
    keywords = {"fun": never, "x0": [1.0], "method": "gdpa", **change}
    with pytest.raises(error, match=message):
        minimize(**keywords)


BAD_AT_START: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"fun": lambda x: np.ones(2)}, ValueError, r"fun must return one number, got shape \(2,\)"),
    ({"fun": lambda x: "a"}, TypeError, "fun must return real numbers, got 'a'"),
    ({"fun": lambda x: None}, TypeError, "fun must return real numbers, got None"),
    ({"jac": True}, ValueError, r"fun must return \(value, gradient\) when jac=True"),
    ({"jac": lambda x: np.ones(3)}, ValueError, r"the jac of fun must have shape \(1, 1\), got \(3,\)"),
    (
        {"constraints": NonlinearConstraint(lambda x: np.ones((2, 2)), 0, 1)},
        ValueError,
        "constraints.fun must return a vec",
    ),
    (
        {"constraints": NonlinearConstraint(lambda x: x, [0, 0], 1)},
        ValueError,
        r"constraints.fun have shape \(2,\) for 1",
    ),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD_AT_START)
def test_bad_values_are_refused_at_the_start(change, error, message):
    keywords = {"fun": square, "x0": [1.0], "method": "gdpa", **change}
    with pytest.raises(error, match=message):
        minimize(**keywords)


def test_wrong_shapes_on_the_way_are_named():
    sizes = iter([2, 2, 3])
    changing = NonlinearConstraint(lambda x: np.zeros(next(sizes)), 0, 1, jac=lambda x: np.zeros((2, 1)))
    with pytest.raises(ValueError, match=r"constraints.fun must return 2 values, got shape \(3,\)"):
        minimize(square, [1.0], constraints=changing, method="gdpa")
    wrong = NonlinearConstraint(lambda x: x + 5, 0, 1, jac=lambda x: np.zeros((2, 1)))
    with pytest.raises(ValueError, match=r"the jac of constraints.fun must have shape \(1, 1\), got \(2, 1\)"):
        minimize(square, [1.0], constraints=wrong, method="gdpa")


def test_what_has_no_effect_is_said():
    once = {"method": "gdpa", "options": {"maxiter": 1}}
    constraint = NonlinearConstraint(lambda x: x, 0, 1, hess="2-point", keep_feasible=True)
    with pytest.warns(OptimizeWarning, match="keep_feasible, hess has no effect"):
        minimize(square, [1.0], constraints=constraint, **once)
    alone = NonlinearConstraint(lambda x: x, 0, 1, hess=lambda x, v: np.zeros((1, 1)))
    for keywords in ({"hess": "2-point"}, {"hess": lambda x: aslinearoperator(np.eye(1))}, {"constraints": alone}):
        with pytest.warns(RuntimeWarning, match=r"uses Hessian information \(hess\) only if"):
            minimize(square, [1.0], **keywords, **once)


@pytest.mark.parametrize("make", [np.asarray, csr_array], ids=["dense", "sparse"])
def test_second_derivatives_save_evaluations_of_a_small_problem(make):
    # Rosenbrock's function on the disc of radius sqrt(2), whose solution (1, 1) is on its boundary
    disc = (lambda x: x @ x, -np.inf, 2.0, lambda x: 2 * x[None])
    curved = NonlinearConstraint(*disc, hess=lambda x, v: make(2 * v[0] * np.eye(2)))
    plain = minimize(rosen, [-1.2, 1.0], jac=rosen_der, constraints=NonlinearConstraint(*disc))
    hessian = {"hess": lambda x: make(rosen_hess(x)), "constraints": curved}
    newton = minimize(rosen, [-1.2, 1.0], jac=rosen_der, **hessian)
    assert plain.success
    assert newton.success
    assert newton.x == pytest.approx([1.0, 1.0], abs=1e-5)
    assert newton.nfev < plain.nfev


def test_unconstrained_and_free_rows():
    free = minimize(
        square,
        [3.0],
        jac=twice,
        constraints=NonlinearConstraint(lambda x: x, -np.inf, np.inf),
        method="gdpa",
        options={"alpha": 0.2},
    )
    assert free.success
    assert free.multipliers.shape == (0,)
    assert free.v[0].tolist() == [0.0]
    assert free.constr_violation == 0.0
    assert minimize(square, [3.0], jac=twice, constraints=None, method="gdpa", options={"alpha": 0.2}).v == []


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 30])
def test_maxfev_is_never_passed(limit):
    fun = Counted(lambda x: float(np.sum((x - 1) ** 4)))
    found = minimize(fun, [3.0, 2.0, 5.0], options={"maxfev": limit}, bounds=[(0, 9)] * 3)
    assert found.nfev == len(fun.points) == limit
    assert (found.success, found.status) == (False, STATUS_CODES[Status.MAX_ORACLE_CALLS])
    assert found.fun == fun.function(found.x) <= fun.function(np.array([3.0, 2.0, 5.0]))


@pytest.mark.parametrize("keywords", [{}, {"jac": twice}, {"constraints": LinearConstraint([1.0, 0.0], 0, 1)}])  # type: ignore[list-item]
def test_a_start_without_a_finite_value_is_a_result_without_success(keywords):
    found = minimize(lambda x: np.nan, [1.0, 2.0], **keywords)
    assert (found.success, found.status, found.nit) == (False, STATUS_CODES[Status.INVALID_NUMBER], 0)
    assert found.x.tolist() == [1.0, 2.0]
    assert "fun is nan" in found.message
    found = minimize(square, [1.0], jac=lambda x: np.array([np.inf]))
    assert not found.success
    assert "the derivative of fun is not finite" in found.message
    found = minimize(square, [1.0], constraints={"type": "ineq", "fun": lambda x: np.inf})
    assert "constraints['fun'] is [inf]" in found.message


def test_options_by_scipys_names():
    found = minimize(square, [3.0], options={"ftol": 1e-3, "gtol": np.float32(1e-9), "maxfun": 200, "iprint": 2})
    assert found.result.tolerance == pytest.approx(1e-9)
    assert minimize(square, [3.0], tol=np.float32(1e-3), options={"ftol": 1e-9}).result.tolerance == np.float32(1e-3)
    assert minimize(square, [3.0], tol=1e-3, options={"catol": 1e-5}).result.tolerance == 1e-5
    assert minimize(square, [3.0]).result.tolerance == 1e-6
    with pytest.warns(OptimizeWarning, match="ignores the unknown options 'rhobeg'$"):
        minimize(square, [3.0], options={"rhobeg": 1.0, "workers": 2})
    assert minimize(lambda x: np.sum(x**4), [3.0, 1.0], options={"maxiter": 2.9}).nit == 2
    assert minimize(square, [3.0], options={"maxiter": np.inf, "maxfev": np.inf}).success


def test_steps_of_differences_by_scipys_names():
    def steps(**options):
        fun = Counted(square)
        minimize(fun, [2.0], options={"maxiter": 0, **options})
        first, second = (np.frombuffer(point)[0] for point in fun.points[:2])
        return second - first

    assert steps(eps=1e-5) == pytest.approx(1e-5, rel=1e-9)
    assert steps(finite_diff_rel_step=1e-4) == pytest.approx(2e-4, rel=1e-9)
    assert steps() == pytest.approx(2 * 1.5e-8, rel=0.1)


def test_without_a_tolerance_a_few_steps_more_give_more_digits():
    fun, x0, keywords, x_star, _ = CASES["equality in a dict"]
    plain, asked = minimize(fun, x0, **keywords), minimize(fun, x0, tol=1e-6, **keywords)
    assert plain.success
    assert asked.nit <= plain.nit <= asked.nit + 3
    np.testing.assert_allclose(plain.x, x_star, atol=1e-7)


def test_an_answer_is_feasible_to_rounding():
    fun, _, keywords, _, _ = CASES["HS12, one upper side"]
    keywords = {**keywords, "jac": lambda x: np.array([x[0] - x[1] - 7, 2 * x[1] - x[0] - 7])}
    for start in ([0.1, 0.2], [1.0, 1.0], [5.0, -3.0], [3.0, 3.0]):
        plain = minimize(fun, start, tol=1e-4, options={"feasible": False}, **keywords)
        exact = minimize(fun, start, tol=1e-4, **keywords)
        assert plain.success
        assert exact.success
        assert exact.maxcv <= min(plain.maxcv, 1e-13)
        assert ("Restored: the violation of" in exact.message) == (exact.maxcv < plain.maxcv)
        np.testing.assert_allclose(exact.x, plain.x, atol=1e-3)


def test_a_callback_of_two_arguments_gets_the_state_and_may_say_stop():
    seen = []

    def watch(x, state):
        seen.append((x.tolist(), state.x.tolist(), state.nit, state.niter))
        return len(seen) == 2

    found = minimize(lambda x: np.sum(x**4), [3.0, 1.0], callback=watch)
    assert [(nit, niter) for _, _, nit, niter in seen] == [(1, 1), (2, 2)]
    assert all(x == state for x, state, _, _ in seen)
    assert (found.nit, found.niter, found.nhev, found.status) == (2, 2, 0, 99)
    assert found.message.startswith("`callback` raised `StopIteration` or returned True. ")
    minimize(square, [3.0], callback=lambda xk, *rest, scale=1: seen.append(rest))
    assert seen[-1] == ()  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    "bounds", [[(0.5, 1), (None, 2)], [(np.array([0.5]), np.array([1])), (None, np.array(2.0))], Bounds(0.5, [1, 2])]
)
def test_bounds_in_every_form_of_scipy(bounds):
    assert minimize(square, [3, 1], bounds=bounds).x[0] == 0.5
    assert minimize(square, [3, 1], bounds=[(0.5, 1)]).x.tolist() == [0.5, 0.5]  # one pair for all
    assert minimize(square, [3, 1], bounds=()).success


def test_bounds_are_kept_to_the_last_bit():
    rng = np.random.default_rng(0)
    for _ in range(60):
        lower, start = rng.uniform(-2, 2, 2), rng.uniform(0, 1, 2)
        upper = lower + rng.uniform(0.1, 2, 2)

        def fun(x, lower=lower, upper=upper):
            assert np.all((lower <= x) & (x <= upper)), (x - lower, upper - x)
            return float(np.linalg.norm(x + 1))

        found = minimize(fun, lower + start * (upper - lower), bounds=Bounds(lower, upper), callback=fun)
        assert found.success, found.message
        np.testing.assert_allclose(found.x, np.clip(-1.0, lower, upper), atol=1e-3)


FIXED_BOUNDS = [(-2, 2), (2, 2), (0, 5), (-1, -1)]


def rosen_on(x):
    return scipy.optimize.rosen(np.array([x[0], 2.0, x[1], -1.0]))


@pytest.mark.parametrize("jac", [None, scipy.optimize.rosen_der, True])
@pytest.mark.parametrize("form", ["none", "nonlinear", "with jac", "linear", "dict"])
def test_fixed_variables_are_taken_out_and_put_back(jac, form):
    seen = []
    constraints, reduced = {
        "none": ((), ()),
        "nonlinear": (NonlinearConstraint(lambda x: x @ x, -np.inf, 6), ({"type": "ineq", "fun": lambda y: 1 - y @ y})),
        "with jac": (
            NonlinearConstraint(lambda x: x @ x, -np.inf, 6, jac=lambda x: 2 * x),
            {"type": "ineq", "fun": lambda y: 1 - y @ y},
        ),
        "linear": (LinearConstraint(np.ones(4), -np.inf, 1.5), LinearConstraint(np.ones(2), -np.inf, 0.5)),
        "dict": ({"type": "ineq", "fun": lambda x: 6 - x @ x}, {"type": "ineq", "fun": lambda y: 1 - y @ y}),
    }[form]

    def fun(x):
        seen.append(x.copy())
        value = scipy.optimize.rosen(x)
        return (value, scipy.optimize.rosen_der(x)) if jac is True else value

    found = minimize(
        fun, [0.5, 9.0, 0.5, 9.0], jac=jac, bounds=FIXED_BOUNDS, constraints=constraints, tol=1e-8, callback=seen.append
    )
    theirs = scipy_minimize(
        rosen_on, [0.5, 0.5], bounds=[(-2, 2), (0, 5)], constraints=reduced, method="SLSQP", options={"ftol": 1e-12}
    )
    assert found.success, found.message
    assert all(x[[1, 3]].tolist() == [2.0, -1.0] for x in seen)
    np.testing.assert_allclose(found.x[[0, 2]], theirs.x, atol=1e-4)
    assert found.fun == pytest.approx(theirs.fun, rel=1e-7)
    assert found.constr[-1].shape == found.v[-1].shape == found.jac.shape == (4,)
    if jac is None or form in ("nonlinear", "dict"):  # as in SciPy: differences know nothing of fixed variables
        assert np.isnan(found.jac[[1, 3]]).all()
        assert np.isnan(found.v[-1][[1, 3]]).all()
    else:
        gradient = scipy.optimize.rosen_der(found.x)
        np.testing.assert_allclose(found.jac, gradient)
        rows = {"none": np.zeros(4), "with jac": 2 * found.x, "linear": np.ones(4)}[form]
        weight = found.v[0] if form != "none" else 0.0
        np.testing.assert_allclose(gradient + weight * rows + found.v[-1], 0, atol=1e-4)


def test_every_variable_fixed():
    bounds, low = [(1, 1), (2, 2)], NonlinearConstraint(lambda x: np.sum(x), -np.inf, 0)  # type: ignore[return-value]
    fun = Counted(lambda x: float(np.sum(x)))
    found = minimize(fun, [5.0, 5.0], bounds=bounds)
    assert (found.success, found.nfev, found.fun, found.x.tolist()) == (True, 1, 3.0, [1.0, 2.0])
    assert found.message == "All independent variables were fixed by bounds."
    found = minimize(fun, [5.0, 5.0], bounds=bounds, constraints=low)
    assert (found.success, found.maxcv) == (False, 3.0)
    assert "maximum violation: 3.0" in found.message


def test_further_keys_of_a_dict_are_told():
    constraint = {"type": "ineq", "fun": lambda x: x[0] - 1, "name": "mine"}
    with pytest.warns(OptimizeWarning, match=r"the keys \['name'\] have no effect"):
        found = minimize(square, [3.0], constraints=constraint)
    assert found.x[0] == pytest.approx(1)


def test_lengths_of_the_variables_reach_the_run():
    found = minimize(square, [3.0, 1.0, 1.0], bounds=[(0, 9), (1, 1), (0, 9)], options={"x_scale": [10.0, 5.0, 2.0]})
    assert found.result.certificate.lengths.tolist() == [10.0, 2.0]


def test_a_warm_start_with_the_multipliers_of_the_result_succeeds_at_once():
    def fun(x):
        return (x[0] - 2) ** 2 + (x[1] - 1) ** 2 + (x[2] + 1) ** 2

    constraints = [
        {"type": "ineq", "fun": lambda x: 1 - x @ x, "jac": lambda x: -2 * x},
        {"type": "eq", "fun": lambda x: x[0] - x[1] - 0.2, "jac": lambda x: np.array([1.0, -1.0, 0.0])},
        NonlinearConstraint(lambda x: x, [-0.1, -5, -5], [5, 5, 5], jac=lambda x: np.eye(3)),
    ]
    call = {"jac": lambda x: 2 * (x - np.array([2.0, 1.0, -1.0])), "constraints": constraints}
    first = minimize(fun, [0.1, 0.2, 0.3], **call)
    again = minimize(fun, first.x, **call, options={"multipliers0": first.multipliers})
    assert first.success
    assert (again.success, again.nit) == (True, 0)
    np.testing.assert_allclose(again.multipliers, first.multipliers, atol=1e-6)
    with pytest.raises(ValueError, match=r"multipliers0 must have 8 entries, .* got shape \(2,\)"):
        minimize(fun, first.x, **call, options={"multipliers0": [1.0, 2.0]})


def test_a_warning_points_to_the_users_line_and_suggests_a_name():
    with pytest.warns(OptimizeWarning, match="unknown options 'alfa'; did you mean 'alpha'") as seen:
        minimize(square, [3.0], method="gdpa", options={"alfa": 0.1, "maxiter": 1})
    with pytest.warns(RuntimeWarning, match="hessp") as more:
        scipy_minimize(square, [3.0], method=minimize, hessp=lambda x, p: p)
    assert {seen[0].filename, more[0].filename} == {__file__}


def test_a_matrix_of_constraint_values_is_refused_with_a_remedy():
    matrix = {"type": "ineq", "fun": lambda x: np.ones((2, 2))}
    with pytest.raises(ValueError, match=r"must return a vector, got shape \(2, 2\); flatten it with \.ravel\(\)"):
        minimize(square, [3.0], constraints=matrix)


def test_a_result_prints_each_entry_once():
    text = repr(minimize(square, [3.0]))
    assert text.count("Relative residuals") == 1
    assert " nit:" in text
    assert "niter:" not in text


def test_n11_the_multiplier_of_an_equality_has_the_sign_that_its_entry_documents():
    equality = {"type": "eq", "fun": lambda x: x[0] + x[1] - 1, "jac": lambda x: np.ones((1, 2))}
    found = minimize(lambda x: x @ x, [3.0, 0.0], jac=lambda x: 2 * x, constraints=equality)
    grad, J = found.grad, np.ones((1, 2))
    np.testing.assert_allclose(grad + J.T @ found.v[0], 0, atol=1e-5)
    np.testing.assert_allclose(grad - J.T @ found.multipliers, 0, atol=1e-5)
    np.testing.assert_allclose(found.result.multipliers, found.v[0])


def test_b18_a_jacobian_that_is_not_finite_is_not_called_the_gradient():
    def jacobian(x):
        return np.array([[2 * x[0] if x[0] > 2.5 else np.nan]])

    inner = {"type": "ineq", "fun": lambda x: 1 - x @ x, "jac": lambda x: -jacobian(x)}
    found = minimize(square, [3.0], jac=lambda x: 2 * x, constraints=inner, method="gdpa", options={"alpha": 0.2})
    assert found.status == STATUS_CODES[Status.INVALID_NUMBER]
    assert "The Jacobian of the constraints is not finite" in found.message
