"""The paper's experiment: GDPA, plain policy gradient and the natural primal-dual method against the optimum."""

from __future__ import annotations

import numpy as np
import pytest

from gdpa import GDPA, KKTBelow, MaxSteps, get_method, solve
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.paper.applications.cmdp import (
    NaturalPolicyGradient,
    TabularCMDP,
    as_problem,
    paper_instance,
    policy_of,
    solve_linear_program,
    start_of,
)

#: alpha_0 = 1e3 on the gradient without 1/(1 - gamma), beta_0 = 1/2, tau = 0.1.
PAPER = GDPA(alpha=1e3 * (1 - 0.9), beta=0.5, tau=0.1)


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("b", [6.0, 7.0, 8.0])
def test_the_papers_constants_reach_the_optimum(b, seed):
    cmdp = paper_instance(b)
    optimum = solve_linear_program(cmdp)
    result = solve(as_problem(cmdp), start_of(cmdp, seed=seed), PAPER, stop=MaxSteps(1000), record=0)
    reward, utilities = cmdp.returns(policy_of(cmdp, result.x_last))
    assert reward == pytest.approx(optimum.reward, rel=5e-3)
    assert utilities[0] == pytest.approx(b, abs=0.03)
    # The multiplier has settled on its quasi-static value, so the violation is tau lambda / beta_r, r = 1000.
    predicted = AugmentedLagrangian(result.multipliers_last, 0.5 * 1000 ** (1 / 3), 0.1).residual_violation()
    assert b - utilities[0] == pytest.approx(predicted[0], rel=0.05)
    assert (result.forwards, result.backwards) == (1001, 1000)


@pytest.mark.parametrize("b", [6.0, 7.0, 8.0])
def test_the_adaptive_method_reaches_the_optimum_over_the_policies_themselves(b):
    cmdp = paper_instance(b)
    optimum = solve_linear_program(cmdp)
    method, stop = get_method("adaptive-gdpa")(), [KKTBelow(1e-7), MaxSteps(2000)]
    result = solve(as_problem(cmdp, "direct"), start_of(cmdp, "direct"), method, stop=stop, tolerance=1e-7)
    assert result.success
    reward, utilities = cmdp.returns(policy_of(cmdp, result.x, "direct"))
    assert reward == pytest.approx(optimum.reward, rel=1e-5)
    assert utilities[0] == pytest.approx(b, abs=1e-5)
    assert result.multipliers == pytest.approx(optimum.multipliers, rel=1e-4)


def test_policy_gradient_violates_every_threshold():
    """GDPA on a constraint that every policy meets."""
    cmdp = paper_instance(0.0)
    result = solve(as_problem(cmdp), start_of(cmdp), GDPA(alpha=100.0), stop=MaxSteps(1000), record=0)
    reward, utilities = cmdp.returns(policy_of(cmdp, result.x_last))
    assert reward == pytest.approx(9.2276, rel=2e-3)  # the unconstrained optimum
    assert utilities[0] < 6.0 - 0.5
    assert result.multipliers_last.tolist() == [0.0]


def test_natural_policy_gradient_by_hand():
    # lambda_0 = 0: A_r = Q - V = (1/2, -1/2), so theta_1 = eta1/(1 - gamma) A = 2 eta1 A; V_u = 1 < b = 1.5.
    cmdp = TabularCMDP([[[1.0], [1.0]]], [[1.0, 0.0]], [[[0.0, 1.0]]], [1.5], 0.5)
    method = NaturalPolicyGradient(cmdp, eta1=0.3, eta2=0.2)
    problem = as_problem(cmdp)
    state = method.update(problem, method.init(problem, np.zeros(2)))
    np.testing.assert_allclose(state.x, [0.3, -0.3], rtol=1e-14)
    np.testing.assert_allclose(state.multipliers, [0.1], rtol=1e-14)
    # Second step: A_u = -A_r, so the advantage of the Lagrangian is (1 - 0.1) A_r at the new policy.
    p = 1 / (1 + np.exp(-0.6))
    following = method.update(problem, state)
    np.testing.assert_allclose(following.x, [0.3 + 0.6 * 0.9 * (1 - p), -0.3 - 0.6 * 0.9 * p], rtol=1e-12)
    np.testing.assert_allclose(following.multipliers, [0.1 + 0.2 * (1.5 - 2 * (1 - p))], rtol=1e-12)


def test_natural_policy_gradient_respects_its_bound():
    cmdp = paper_instance(8.0)
    method = NaturalPolicyGradient(cmdp, eta1=0.1, eta2=1.0, bound=0.25)
    result = solve(as_problem(cmdp), start_of(cmdp), method, stop=MaxSteps(20))
    assert result.multipliers_last[0] == 0.25


@pytest.mark.parametrize("b", [6.0, 7.0, 8.0])
def test_natural_policy_gradient_averages_to_the_optimum(b):
    cmdp = paper_instance(b)
    T = 1000
    method = NaturalPolicyGradient(cmdp, eta1=2 * np.log(10), eta2=2 * 0.1 / np.sqrt(T))
    history = solve(as_problem(cmdp), start_of(cmdp), method, stop=MaxSteps(T)).history
    # Their Theorem 1 bounds the gap of the averaged value by a constant over sqrt(T); single values swing further.
    assert -history["objective"].mean() == pytest.approx(solve_linear_program(cmdp).reward, rel=2e-2)


@pytest.mark.parametrize("arguments", [{"eta1": 0.0}, {"eta2": -1.0}, {"bound": float("nan")}])
def test_natural_policy_gradient_checks_its_arguments(arguments):
    name = next(iter(arguments))
    with pytest.raises(ValueError, match=f"{name} must be a positive number"):
        NaturalPolicyGradient(paper_instance(), **{"eta1": 1.0, "eta2": 1.0, **arguments})
