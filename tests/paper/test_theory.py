"""The proof's conditions against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gdpa import GDPA, Box, Constant, MaxSteps, from_functions, problems, solve
from gdpa.base.schedules import Theoretical
from gdpa.paper.theory import (
    Constants,
    Trajectory,
    c2_bracket,
    check,
    estimate_constants,
    multiplier_bound,
    regularity,
    tau_bound,
    vartheta,
)

UNIT = Constants(L_f=1, L_g=1, L_J=0, U_J=1, M=10, G=9, sigma=1)


def half_space():
    """min |x - (3, 1)|^2 / 2 subject to x0 <= 1: every constant is exact and UNIT but M and G."""
    center = np.array([3.0, 1.0])
    return from_functions(
        lambda x: (x - center) @ (x - center) / 2,
        lambda x: x[:1] - 1,
        gradient=lambda x: x - center,
        jacobian=lambda x: np.array([[1.0, 0.0]]),
    )


def follow(algorithm, steps, x0=(2.0, 0.0), problem=None):
    trajectory = Trajectory()
    solve(problem or half_space(), np.array(x0), algorithm, stop=MaxSteps(steps), observers=[trajectory])
    return trajectory


def test_tau_bound_by_hand():
    assert tau_bound(UNIT) == pytest.approx(1 - 1 / math.sqrt(67))
    # sigma = 3, U_J = 4: 66 * 16 + 9 = 1065
    assert tau_bound(Constants(1, 1, 1, 4, 1, 1, 3)) == pytest.approx(1 - 3 / math.sqrt(1065))
    assert tau_bound(Constants(1, 1, 1, 4, 1, 1, 0)) == 1.0  # no regularity, no tau
    assert math.isnan(tau_bound(Constants(1, 1, 1, 4, 1, 1, float("nan"))))


def test_c2_bracket_by_hand():
    # tau = .9: 1/tau + 2/(1 - tau) = 10/9 + 20 = 190/9; times 80/9 is 15200/81; plus 10.
    assert c2_bracket(0.9, 1) == pytest.approx(10 + 15200 / 81)
    assert c2_bracket(0.6, 1) == pytest.approx(10 + (40 / 3) * (5 / 3 + 5))
    assert c2_bracket(0.1, 1) == pytest.approx(10 + 80 * (10 + 20 / 9))
    assert [round(c2_bracket(tau, 1)) for tau in (0.9, 0.6, 0.1)] == [198, 99, 988]
    # Adding up the lemmas: 6 + 4 = 10 over gamma (1 - tau), times 4: 10 + 40/.09.
    assert c2_bracket(0.9, 1, summed=True) == pytest.approx(10 + 40 / 0.09)


def test_summed_bracket_adds_up_the_two_lemmas():
    """The coefficients of |x_{r+1} - x_r|^2 in (descentlemma), (diffiter) and P_{r+1}, added with a constant beta."""
    beta, tau, v = 2.0, 0.75, 1.3
    gamma = tau / beta
    lemma_des = 3 * beta / 2
    lemma_recur = 6 * v / (gamma * (1 - tau))
    potential = beta + 4 * v / (gamma * (1 - tau))
    assert c2_bracket(tau, v, summed=True) * beta / 4 == pytest.approx(lemma_des + lemma_recur + potential)


def test_vartheta_takes_the_best_theta():
    # eta = (1 + theta') (1 - tau)^2 = 1 - tau at theta' = tau / (1 - tau)
    assert vartheta(0.1) == pytest.approx(0.9 * 1.005 / 0.4)
    assert vartheta(0.5) == 1.0
    tau = 0.3
    grid = np.linspace(1e-3, 1 / (1 - tau) ** 2 - 1 - 1e-3, 20_000)
    eta = np.maximum((1 - tau) ** 2, (1 + grid) * (1 - tau) ** 2)
    assert np.min((1 + 1 / grid) / (1 - eta)) == pytest.approx(1 / tau**2, rel=1e-6)
    assert multiplier_bound(1.0, tau, 1.0) ** 2 == pytest.approx(1 / tau**2)


def test_conditions_and_when_they_begin():
    # c1: r^(1/3) / .5 >= 1.9 + r^(1/3), so r^(1/3) >= 1.9, r >= 6.86.
    constants = Constants(L_f=1.9, L_g=1, L_J=0, U_J=1, M=1, G=1, sigma=1)
    report = check(GDPA(alpha=0.5, beta=1.0, tau=0.9), constants, 1000)
    assert report.conditions["c1"].since == 7
    assert report.conditions["c1"].holds.sum() == 1000 - 6
    assert report.conditions["c2"].since is None
    # c3: alpha = 1, beta_0 = 2: 64 * 13 / .01 / 2 = 41600 <= (r - 1)^(4/3), r - 1 >= 41600^(3/4) = 2912.8...
    report = check(GDPA(alpha=Constant(1.0), beta=2.0, tau=0.9), UNIT, 5000)
    assert report.conditions["c3"].since == 1 + math.ceil(41600**0.75)
    assert report.conditions["c4"].since == 1
    # c5: 2 * .1 * (.5 + 1) * 3 / .9 = 1, below sqrt(2)
    assert report.conditions["c5"].required[0] == pytest.approx(math.sqrt(2))
    wide = Constants(L_f=1, L_g=1, L_J=0, U_J=1, M=10, G=900, sigma=1)
    assert check(GDPA(beta=2.0, tau=0.9), wide, 10).conditions["c5"].required[0] == pytest.approx(10.0)
    assert check(GDPA(beta=2.0, tau=0.1), UNIT, 10).satisfied[-1] != "c4"


def test_c1_uses_the_multipliers_of_the_run_or_their_bound():
    bent = Constants(L_f=1, L_g=1, L_J=2, U_J=1, M=10, G=9, sigma=1)
    algorithm = GDPA(alpha=0.01, beta=1.5, tau=0.9)
    trajectory = follow(algorithm, 50)
    met = check(algorithm, bent, trajectory).conditions["c1"]
    bound = check(algorithm, bent, 50).conditions["c1"]
    assert met.required[0] == pytest.approx(1 + 0.1 * 0.0 * 2 + 1.5)  # lambda_1 = 0
    # step 1: q = 1.5 * 1; x_2 = 2 - .01 (-1 + 1.5) = 1.995; lambda_2 = 1.5 * .995
    assert met.required[1] == pytest.approx(1 + 0.1 * (1.5 * 0.995) * 2 + 1.5 * 2 ** (1 / 3))
    assert bound.required[1] == pytest.approx(1 + 0.1 * (1.5 * 2 ** (1 / 3) * 3 / 0.9) * 2 + 1.5 * 2 ** (1 / 3))
    lengths = np.linalg.norm(trajectory.multipliers, axis=-1)
    betas = np.array([algorithm.beta(r) for r in range(1, 52)])
    assert np.all(lengths <= multiplier_bound(betas, 0.9, float(np.max(trajectory.constraints) ** 2)) + 1e-12)


def test_sigma_along_a_run_and_at_the_boundary():
    trajectory = follow(
        GDPA(alpha=0.05, beta=1.0, tau=0.5), 400, problem=problems.get("disc-product").problem, x0=(0.5, 0.6)
    )
    infeasible = trajectory.constraints[:, 0] > 0
    assert infeasible.any()
    assert not infeasible.all()
    assert np.isnan(trajectory.sigma[~infeasible]).all()
    np.testing.assert_allclose(trajectory.sigma[infeasible], 2 * np.linalg.norm(trajectory.x[infeasible], axis=-1))
    report = check(GDPA(alpha=0.05, beta=1.0, tau=0.5), UNIT, trajectory)
    assert report.sigma == trajectory.sigma[infeasible].min()
    # In a box: J^T g_+ = g (1, 1); at x0 = 0 the first coordinate is held by the bound, so only the second counts.
    box = from_functions(
        lambda x: 0.0,
        lambda x: np.array([x[0] + x[1] - 0.5]),
        gradient=np.zeros_like,
        jacobian=lambda x: np.ones((1, 2)),
        domain=Box(0.0, 1.0),
    )
    assert regularity(box, np.array([0.0, 1.0])) == pytest.approx(1.0)
    assert regularity(box, np.array([0.5, 1.0])) == pytest.approx(math.sqrt(2))


def test_potential_by_hand():
    """P_3 of eq. (defp) on the half space, each term written out."""
    algorithm = GDPA(alpha=0.01, beta=1.5, tau=0.9)
    trajectory = follow(algorithm, 4)
    b = {r: 1.5 * r ** (1 / 3) for r in range(1, 6)}
    x, y = trajectory.x, trajectory.multipliers[:, 0]
    g = x[:, 0] - 1
    f = ((x - [3.0, 1.0]) ** 2).sum(axis=1) / 2
    tau, v = 0.9, 1.0
    expected = f[2] + b[3] / 2 * max(g[2] + 0.1 * y[2] / b[3], 0) ** 2 - (0.1 * y[2]) ** 2 / (2 * b[3])
    expected += (0.1 / (2 * b[2]) + 2 * v * 0.1 / (b[1] * tau)) * (y[2] - y[1]) ** 2
    expected -= 0.1 * (tau / b[2]) / 2 * y[2] ** 2
    expected -= 2 * v / b[2] * (b[2] / b[1] - 1) * y[2] ** 2
    expected += (b[2] + 4 * v * b[2] / (tau * 0.1)) * ((x[2] - x[1]) ** 2).sum()
    report = check(algorithm, UNIT, trajectory)
    assert report.potential.shape == (3,)  # r = 3, 4, 5
    assert report.descent.shape == (2,)
    assert report.potential[0] == pytest.approx(expected, rel=1e-12)


def test_potential_decreases_with_constant_steps():
    # 1/alpha = 700 > 454.4 beta: (c1), (c2) as printed and as summed hold, and no beta grows.
    algorithm = GDPA(alpha=Constant(1 / 700), beta=Constant(1.5), tau=0.9)
    report = check(algorithm, UNIT, follow(algorithm, 3000))
    assert {"c1", "c2", "c2 summed", "c4"} <= set(report.satisfied)
    assert np.all(np.diff(report.potential) < 0)
    assert report.descent.min() >= 0


def test_descent_inequality_under_the_theory_schedule_and_its_failure():
    algorithm = GDPA(alpha=Theoretical(0.5, 1.0, 345.0), beta=1.5, tau=0.9)
    report = check(algorithm, UNIT, follow(algorithm, 1500))
    assert {"c1", "c2", "c2 summed", "c4", "c5"} <= set(report.satisfied)
    assert report.conditions["c3"].since is None  # it begins after tens of millions of steps
    assert report.descent.min() >= 0
    assert "failed at 0 of 1498" in str(report)
    # A step far beyond (c1) and (c2) breaks it: the inequality is no tautology.
    wild = GDPA(alpha=Constant(1.7), beta=Constant(1.5), tau=0.9)
    report = check(wild, UNIT, follow(wild, 50))
    assert not {"c1", "c2"} & set(report.satisfied)
    assert report.descent.min() < 0


def test_estimates_are_exact_on_quadratics_and_optimistic_elsewhere():
    points = np.random.default_rng(0).uniform(-2, 2, size=(40, 2))
    found = estimate_constants(half_space(), points)
    assert found.estimated
    assert (found.L_f, found.U_J, found.L_J, found.sigma) == pytest.approx((1.0, 1.0, 0.0, 1.0))
    assert found.L_g <= 1.0
    assert pytest.approx(max(np.linalg.norm(points - [3, 1], axis=1))) == found.M
    assert pytest.approx((points[:, 0].max() - 1) ** 2) == found.G
    wave = from_functions(
        lambda x: np.sin(3 * x[0]),
        lambda x: np.sin(x) - 2,
        gradient=lambda x: 3 * np.cos(3 * x),
        jacobian=lambda x: np.diag(np.cos(x)),
    )
    found = estimate_constants(wave, points[:, :1])
    assert 0.8 * 9 < found.L_f <= 9
    assert 0.8 < found.L_g <= 1
    assert 0.8 < found.L_J <= 1
    assert math.isnan(found.sigma)  # every point is feasible
    report = check(GDPA(tau=0.9), found, 10)
    assert "unknown" in str(report.conditions["c4"])
    assert "optimistic" in str(report)
    assert not {"c4", "c5"} & set(report.satisfied)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Constants(1, 1, 1, 1, 1, -1, 1), ValueError, "G must be a finite number of at least 0, got -1"),
        (lambda: Constants(float("nan"), 1, 1, 1, 1, 1, 1), ValueError, "L_f must be"),
        (lambda: Constants(1, 1, 1, 1, 1, 1, 2), ValueError, "sigma=2 exceeds U_J=1"),
        (lambda: estimate_constants(half_space(), [[0.0, 1.0]]), ValueError, "at least two points"),
        (lambda: check(object(), UNIT, 10), TypeError, "algorithm must be a GDPA"),
        (lambda: check(GDPA(), UNIT, 1), ValueError, "at least 2 steps, got 1"),
        (lambda: check(GDPA(), UNIT, Trajectory()), ValueError, "the trajectory has 0 points"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_trajectory_wants_a_whole_run_of_one_problem():
    problem, x0 = half_space(), np.array([2.0, 0.0])
    first = solve(problem, x0, GDPA(), stop=MaxSteps(3))
    with pytest.raises(ValueError, match="from its first step"):
        solve(problem, run=first.run, stop=MaxSteps(6), observers=[Trajectory()])
    with pytest.raises(ValueError, match="every step"):
        solve(problem, x0, GDPA(), stop=MaxSteps(6), observers=[trajectory := Trajectory(), trajectory])
    equality = from_functions(
        lambda x: x @ x, lambda x: x[:1], gradient=lambda x: 2 * x, jacobian=lambda x: np.eye(1, 2), num_equalities=1
    )
    with pytest.raises(ValueError, match="inequality constraints only"):
        solve(equality, x0, GDPA(), stop=MaxSteps(3), observers=[Trajectory()])


def test_the_constants_of_the_experiments_are_outside_the_theory():
    report = check(GDPA(alpha=0.1, beta=1e-4, tau=0.1), UNIT, 1000)
    assert "c4" not in report.satisfied
    assert "c5" not in report.satisfied
