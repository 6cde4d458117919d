"""Every recorded answer against its own problem, and against solvers that do not know it."""

import math
import subprocess
import sys

import numpy as np
import pytest

from gdpa import Ball, Box, Simplex, problems
from gdpa.core.certificate import absolute_residuals
from tests.libraries import contains, scipy_minimize

SOLVABLE = problems.names("solvable")


def derivatives(function, x, h=1e-6):
    columns = [(function(x + h * e) - function(x - h * e)) / (2 * h) for e in np.eye(len(x))]
    return np.stack(columns, axis=-1)


def test_the_collection_is_what_the_methods_are_tested_on():
    assert len(SOLVABLE) >= 15
    wanted = {f"HS{n}" for n in (10, 11, 12, 22, 29, 43, 65, 76, 100, 113)} | {"disc-product", "disc-square"}
    assert wanted <= set(SOLVABLE)
    assert len(problems.names("infeasible")) >= 1
    assert len(problems.names("unbounded")) >= 1
    assert set(problems.names()) == set(SOLVABLE) | set(problems.names("infeasible")) | set(problems.names("unbounded"))
    kinds = {type(problems.get(name).problem.domain) for name in SOLVABLE}
    assert {Box, Ball, Simplex} <= kinds
    assert any(problems.get(name).problem.num_equalities for name in SOLVABLE)


@pytest.mark.parametrize("name", problems.names())
def test_a_problem_knows_its_name_source_and_a_start_in_the_set(name):
    own = problems.get(name)
    assert own.name == name
    assert len(own.source) > 10
    own.problem.domain.check_dimension(len(own.x0))
    if own.name != "HS65":  # the book starts it outside its box
        assert contains(own.problem.domain, own.x0)
    assert (own.solution is None) == (own.multipliers is None) == (own.kind != "solvable")


@pytest.mark.parametrize("name", SOLVABLE)
def test_the_recorded_point_is_a_kkt_point(name):
    own = problems.get(name)
    x, lam, p = own.solution, own.multipliers, own.problem.num_equalities
    assert lam is not None
    now = own.problem.evaluate(x)
    assert contains(own.problem.domain, x, 1e-12)
    assert (lam[: len(lam) - p] >= 0).all()
    residuals = absolute_residuals(own.problem.domain, x, now.pullback(lam), now.constraints, lam, p)
    assert max(residuals) < 1e-12 * (1 + np.abs(lam).sum()) * (1 + np.abs(now.pullback(0 * lam)).max())
    assert max(residuals) < 1e-8


@pytest.mark.parametrize("name", problems.names())
def test_derivatives_agree_with_central_differences(name):
    own = problems.get(name)
    m = len(own.problem.evaluate(own.x0).constraints)
    for seed in range(3):
        x = own.x0 + np.random.default_rng(seed).normal(size=len(own.x0))
        now = own.problem.evaluate(x)
        gradient = derivatives(lambda y: own.problem.evaluate(y).objective, x)
        J = derivatives(lambda y: own.problem.evaluate(y).constraints, x)
        scale = 1 + np.abs(gradient).max() + np.abs(J).max()
        assert now.pullback(np.zeros(m)) == pytest.approx(gradient, abs=1e-6 * scale)
        assert now.jacobian() == pytest.approx(J, abs=1e-6 * scale)


def bounds_of(own):
    domain, d = own.problem.domain, len(own.x0)
    if isinstance(domain, Box):
        return np.broadcast_to(domain.lower, d), np.broadcast_to(domain.upper, d)
    return np.full(d, 0.0 if isinstance(domain, Simplex) else -np.inf), np.full(d, np.inf)


@pytest.mark.parametrize("name", SOLVABLE)
def test_scipy_finds_the_recorded_point(name):
    own = problems.get(name)
    problem, p = own.problem, own.problem.num_equalities
    m = len(own.multipliers)

    def values(x):
        return problem.evaluate(x).constraints

    sides = [
        {"type": "ineq", "fun": lambda x: -values(x)[: m - p]},
        {"type": "eq", "fun": lambda x: values(x)[m - p :]},
    ]
    if isinstance(problem.domain, Simplex):
        sides.append({"type": "eq", "fun": lambda x: x.sum() - problem.domain.total})
    if isinstance(problem.domain, Ball):
        ball = problem.domain
        sides.append({"type": "ineq", "fun": lambda x: ball.radius**2 - ((x - ball.center) ** 2).sum()})
    found = scipy_minimize(
        lambda x: float(problem.evaluate(x).objective),
        problem.domain.project(own.x0),
        jac=lambda x: problem.evaluate(x).pullback(np.zeros(m)),
        bounds=list(zip(*bounds_of(own), strict=True)),
        constraints=sides if p else [s for s in sides if s["type"] == "ineq" or s is not sides[1]],
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert found.fun == pytest.approx(float(problem.evaluate(own.solution).objective), rel=1e-6, abs=1e-6)
    assert found.x == pytest.approx(own.solution, abs=2e-4)


def casadi_formulas():
    """Some problems once more, from the book, in IPOPT's own language."""
    casadi = pytest.importorskip("casadi")
    x = casadi.MX.sym("x", 10)
    a, b, c, d = x[0], x[1], x[2], x[3]
    return casadi, {
        "HS12": (2, x[:2], a**2 / 2 + b**2 - a * b - 7 * a - 7 * b, [4 * a**2 + b**2 - 25]),
        "HS43": (
            4,
            x[:4],
            a**2 + b**2 + 2 * c**2 + d**2 - 5 * a - 5 * b - 21 * c + 7 * d,
            [
                -(8 - a**2 - b**2 - c**2 - d**2 - a + b - c + d),
                -(10 - a**2 - 2 * b**2 - c**2 - 2 * d**2 + a + d),
                -(5 - 2 * a**2 - b**2 - c**2 - 2 * a + b + d),
            ],
        ),
        "HS71": (4, x[:4], a * d * (a + b + c) + c, [25 - a * b * c * d, a**2 + b**2 + c**2 + d**2 - 40]),
        "HS76": (
            4,
            x[:4],
            a**2 + b**2 / 2 + c**2 + d**2 / 2 - a * c + c * d - a - 3 * b + c - d,
            [a + 2 * b + c + d - 5, 3 * a + b + 2 * c - d - 4, 1.5 - b - 4 * c],
        ),
        "HS113": (
            10,
            x,
            a**2 + b**2 + a * b - 14 * a - 16 * b + (c - 10) ** 2 + 4 * (d - 5) ** 2 + (x[4] - 3) ** 2
            + 2 * (x[5] - 1) ** 2 + 5 * x[6] ** 2 + 7 * (x[7] - 11) ** 2 + 2 * (x[8] - 10) ** 2 + (x[9] - 7) ** 2 + 45,
            [
                -(105 - 4 * a - 5 * b + 3 * x[6] - 9 * x[7]),
                -(-10 * a + 8 * b + 17 * x[6] - 2 * x[7]),
                -(8 * a - 2 * b - 5 * x[8] + 2 * x[9] + 12),
                -(-3 * (a - 2) ** 2 - 4 * (b - 3) ** 2 - 2 * c**2 + 7 * d + 120),
                -(-5 * a**2 - 8 * b - (c - 6) ** 2 + 2 * d + 40),
                -(-0.5 * (a - 8) ** 2 - 2 * (b - 4) ** 2 - 3 * x[4] ** 2 + x[5] + 30),
                -(-(a**2) - 2 * (b - 2) ** 2 + 2 * a * b - 14 * x[4] + 6 * x[5]),
                -(3 * a - 6 * b - 12 * (x[8] - 8) ** 2 + 7 * x[9]),
            ],
        ),
    }, x  # fmt: skip


@pytest.mark.parametrize("name", ["HS12", "HS43", "HS71", "HS76", "HS113"])
def test_ipopt_finds_the_recorded_point_and_multipliers(name):
    casadi, formulas, x = casadi_formulas()
    d, _, f, g = formulas[name]
    own = problems.get(name)
    p, m = own.problem.num_equalities, len(own.multipliers)
    y = casadi.MX.sym("y", d)
    full = casadi.vertcat(y, casadi.MX.zeros(10 - d))
    f, g = casadi.substitute([f, casadi.vertcat(*g)], [x], [full])
    quiet = {"ipopt.print_level": 0, "print_time": 0, "ipopt.sb": "yes", "ipopt.tol": 1e-10}
    solver = casadi.nlpsol("s", "ipopt", {"x": y, "f": f, "g": g}, {**quiet, "ipopt.bound_relax_factor": 0})
    lower, upper = bounds_of(own)
    floor = [-math.inf] * (m - p) + [0.0] * p
    found = solver(x0=own.x0, lbx=lower, ubx=upper, lbg=floor, ubg=0)
    assert np.array(found["x"]).ravel() == pytest.approx(own.solution, abs=1e-6)
    assert np.array(found["lam_g"]).ravel() == pytest.approx(own.multipliers, abs=1e-5)


def test_the_infeasible_problem_has_no_feasible_point():
    own = problems.get("disjoint-discs")
    found = scipy_minimize(lambda x: own.problem.evaluate(x).constraints.max(), own.x0, method="Nelder-Mead")
    assert found.fun == pytest.approx(3.0, abs=1e-3)  # the origin is 2 from both centers: 4 - 1


def test_the_unbounded_problem_falls_along_feasible_points():
    own = problems.get("open-strip")
    for t in (1e2, 1e4, 1e8):
        now = own.problem.evaluate(np.array([t, t]))
        assert now.objective == -(t**2)
        assert (now.constraints <= 0).all()


def test_unknown_names_and_kinds_are_told_what_there_is():
    with pytest.raises(ValueError, match=r"no problem is called 'HS999'; there are disc-product, "):
        problems.get("HS999")
    with pytest.raises(ValueError, match=r"kind must be one of solvable, infeasible, unbounded, got 'hard'"):
        problems.names("hard")


def test_importing_the_library_does_not_build_the_problems():
    code = "import gdpa, sys; print('gdpa.oracles.library' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert out.stdout.strip() == "False"
