"""The linear program against enumeration, closed forms, duality and the library's own certificate."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from gdpa import certify
from gdpa.paper.applications.cmdp import (
    InfeasibleThresholdError,
    TabularCMDP,
    as_problem,
    max_utility,
    paper_instance,
    random_instance,
    solve_linear_program,
)

#: Two actions in one state: action 0 earns reward 1, action 1 utility 1; gamma 0.5, so values lie in [0, 2].
TRADE = TabularCMDP([[[1.0], [1.0]]], [[1.0, 0.0]], [[[0.0, 1.0]]], [0.5], 0.5)


def test_trade_off_in_closed_form():
    optimum = solve_linear_program(TRADE)
    assert optimum.reward == pytest.approx(1.5)
    np.testing.assert_allclose(optimum.policy, [[0.75, 0.25]], atol=1e-12)
    np.testing.assert_allclose(optimum.multipliers, [1.0])
    np.testing.assert_allclose(optimum.utilities, [0.5])


def test_unconstrained_optimum_matches_enumeration():
    cmdp = random_instance(seed=1, num_states=4, num_actions=3)
    policies = [np.eye(3)[list(actions)] for actions in product(range(3), repeat=4)]
    rewards, utilities = zip(*(cmdp.returns(policy) for policy in policies), strict=True)
    assert solve_linear_program(cmdp, constrained=False).reward == pytest.approx(max(rewards), rel=1e-10)
    assert max_utility(cmdp) == pytest.approx(max(u[0] for u in utilities), rel=1e-10)


@pytest.mark.parametrize(("b", "reward", "multiplier"), [(6, 9.1451, 0.1599), (7, 8.9058, 0.3296), (8, 8.2915, 0.9298)])
def test_paper_instance(b, reward, multiplier):
    cmdp = paper_instance(b)
    optimum = solve_linear_program(cmdp)
    assert optimum.reward == pytest.approx(reward, abs=5e-5)
    assert optimum.multipliers[0] == pytest.approx(multiplier, abs=5e-5)
    assert optimum.utilities[0] == pytest.approx(b, abs=1e-8)


def test_paper_instance_without_constraint():
    optimum = solve_linear_program(paper_instance(), constrained=False)
    assert optimum.reward == pytest.approx(9.2276, abs=5e-5)
    assert optimum.utilities[0] == pytest.approx(5.095, abs=5e-4)
    assert max_utility(paper_instance()) == pytest.approx(9.0285, abs=5e-5)


def test_multiplier_is_the_price_of_the_threshold():
    h, b = 1e-4, 7.0
    high, low = (solve_linear_program(paper_instance(b + sign * h)).reward for sign in (1, -1))
    assert solve_linear_program(paper_instance(b)).multipliers[0] == pytest.approx((low - high) / (2 * h), rel=1e-6)


@pytest.mark.parametrize("b", [6.0, 7.0, 8.0])
def test_optimum_is_certified_in_the_direct_parametrization(b):
    cmdp = paper_instance(b)
    optimum = solve_linear_program(cmdp)
    certificate = certify(as_problem(cmdp, "direct"), optimum.policy.ravel())
    assert certificate.holds(1e-8)
    np.testing.assert_allclose(certificate.multipliers, optimum.multipliers, rtol=1e-6)


def test_several_utilities():
    cmdp = random_instance(seed=2, num_states=10, num_actions=4, thresholds=[5.5, 6.0])
    optimum = solve_linear_program(cmdp)
    assert (optimum.utilities >= cmdp.thresholds - 1e-8).all()
    assert certify(as_problem(cmdp, "direct"), optimum.policy.ravel()).holds(1e-8)


def test_states_never_visited_get_the_uniform_policy():
    P = np.zeros((2, 2, 2))
    P[:, :, 0] = 1.0
    cmdp = TabularCMDP(P, [[1.0, 0.0]] * 2, np.zeros((0, 2, 2)), [], 0.5, start=[1.0, 0.0])
    np.testing.assert_allclose(solve_linear_program(cmdp).policy, [[1.0, 0.0], [0.5, 0.5]])


def test_unreachable_threshold_is_said_before_any_iteration():
    cmdp = TRADE.with_thresholds([2.5])
    message = "thresholds asks 2.5 of utility 0, but the best policy for it reaches 2; lower it"
    for call in (solve_linear_program, as_problem):
        with pytest.raises(InfeasibleThresholdError, match=message):
            call(cmdp)
    with pytest.raises(InfeasibleThresholdError, match=message):
        as_problem(TRADE, thresholds=[[0.5], [2.5]])
    as_problem(cmdp, check=False)  # on demand, without asking


def test_the_highest_attainable_threshold_passes():
    as_problem(TRADE.with_thresholds([max_utility(TRADE)]))


def test_thresholds_that_exclude_each_other():
    both = TabularCMDP([[[1.0], [1.0]]], [[0.0, 0.0]], [[[0.0, 1.0]], [[1.0, 0.0]]], [1.5, 1.5], 0.5)
    with pytest.raises(InfeasibleThresholdError, match=r"\[1.5, 1.5\] can each be met but not by one policy"):
        solve_linear_program(both)
    assert solve_linear_program(both.with_thresholds([1.0, 1.0])).policy.round(9).tolist() == [[0.5, 0.5]]
