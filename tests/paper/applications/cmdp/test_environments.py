"""Gymnasium's tables: read correctly, and solved under a budget to the linear program's value."""

from __future__ import annotations

import types

import numpy as np
import pytest

from gdpa import GDPA, AdaptiveGDPA, KKTBelow, MaxSteps, solve
from gdpa.paper.applications.cmdp import (
    NaturalPolicyGradient,
    TabularCMDP,
    as_problem,
    policy_of,
    solve_linear_program,
    start_of,
)

gymnasium = pytest.importorskip("gymnasium")


def latest(name: str):
    """Versions of the toy environments differ between releases of Gymnasium; their tables do not."""
    versions = [spec.version for spec in gymnasium.registry.values() if spec.name == name and spec.version is not None]
    return f"{name}-v{max(versions)}"


def frozen_lake(budget: float) -> TabularCMDP:
    env = gymnasium.make(latest("FrozenLake"), map_name="8x8")
    hole = {"holes": lambda s, a, s_next, reward, done: float(done and reward == 0)}
    return TabularCMDP.from_gymnasium(env, hole, {"holes": budget}, discount=0.99)


def cliff_walking(budget: float, exploring: bool) -> TabularCMDP:
    env = gymnasium.make(latest("CliffWalking"))
    edge = {"edge": lambda s, a, s_next, reward, done: float(24 <= s_next < 36)}  # the row above the cliff
    start = np.append(np.full(37, 1 / 37), np.zeros(11)) if exploring else None
    return TabularCMDP.from_gymnasium(env, edge, {"edge": budget}, discount=0.95, start=start)


def test_frozen_lake_is_read_with_one_absorbing_state():
    cmdp = frozen_lake(0.1)
    assert (cmdp.num_states, cmdp.num_actions) == (65, 4)
    assert cmdp.names == ("holes",)
    np.testing.assert_array_equal(cmdp.transitions[64, :, 64], 1.0)
    assert not cmdp.rewards[64].any()
    assert not cmdp.utilities[:, 64].any()
    # State 62 is left of the goal, below the hole at 54, in the bottom row: stepping right on ice reaches the goal,
    # slips up into the hole, or stays, each with probability 1/3.
    assert cmdp.rewards[62, 2] == pytest.approx(1 / 3)
    assert cmdp.transitions[62, 2, [62, 64]] == pytest.approx([1 / 3, 2 / 3])
    assert cmdp.utilities[0, 62, 2] == pytest.approx(-1 / 3)
    # State 11 is above the hole at 19 and has no other hole beside it: going down falls in with probability 1/3.
    assert cmdp.utilities[0, 11, 1] == pytest.approx(-1 / 3)
    assert cmdp.utilities[0, 11, 3] == 0.0


def test_values_match_rollouts_of_the_environment():
    env = gymnasium.make(latest("FrozenLake"), map_name="4x4")
    hole = {"holes": lambda s, a, s_next, reward, done: float(done and reward == 0)}
    cmdp = TabularCMDP.from_gymnasium(env, hole, {"holes": 1.0}, discount=0.9)
    rng, totals = np.random.default_rng(0), []
    env.reset(seed=0)
    for _ in range(1500):
        env.reset()
        cost, factor, done = 0.0, 1.0, False
        while not done and factor > 1e-5:
            _, reward, done, _, _ = env.step(int(rng.integers(4)))
            cost += factor * float(done and reward == 0)
            factor *= 0.9
        totals.append(cost)
    value = -cmdp.returns(np.full((17, 4), 1 / 4))[1][0]
    assert np.mean(totals) == pytest.approx(value, abs=4 * np.std(totals) / np.sqrt(len(totals)))


def test_taxi_ends_where_the_episode_ends():
    cmdp = TabularCMDP.from_gymnasium(
        gymnasium.make(latest("Taxi")),
        {"illegal": lambda s, a, s_next, reward, done: float(reward == -10)},
        {"illegal": 0.0},
        discount=0.95,
    )
    assert cmdp.num_states == 501
    optimum = solve_linear_program(cmdp)
    assert 0 < optimum.reward < 20  # one delivery pays 20; a table that went on after it would pay again and again
    assert optimum.utilities[0] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("make", "method", "close"),
    [
        (lambda: frozen_lake(0.02), GDPA(alpha=100.0, beta=10.0, tau=0.1), 5e-4),
        (lambda: cliff_walking(2.0, exploring=True), GDPA(alpha=1.0, beta=1.0, tau=0.1), 2e-3),
    ],
    ids=["FrozenLake", "CliffWalking"],
)
def test_both_are_solved_to_the_linear_programs_value(make, method, close):
    cmdp = make()
    optimum, problem = solve_linear_program(cmdp), as_problem(cmdp, "direct")
    assert optimum.multipliers[0] > 0.1  # the budget binds
    x = solve(problem, start_of(cmdp, "direct"), method, stop=MaxSteps(3000), check_every=50).x_last
    reward, utilities = cmdp.returns(policy_of(cmdp, x, "direct"))
    assert reward == pytest.approx(optimum.reward, rel=1e-3)
    assert utilities[0] == pytest.approx(cmdp.thresholds[0], abs=close)


def test_the_adaptive_method_solves_both_to_high_accuracy():
    explored = cliff_walking(2.0, exploring=True)
    tasks = [(frozen_lake(0.02), None), (explored, None), (cliff_walking(4.0, exploring=False), explored)]
    for cmdp, before in tasks:
        x = start_of(cmdp, "direct")
        for stage in (before, cmdp):  # from its own start CliffWalking needs a policy that has explored
            if stage is not None:
                stop = [KKTBelow(1e-7), MaxSteps(5000)]
                x = solve(as_problem(stage, "direct"), x, AdaptiveGDPA(), stop=stop, tolerance=1e-7, record=0).x
        reward, utilities = cmdp.returns(policy_of(cmdp, x, "direct"))
        assert reward == pytest.approx(solve_linear_program(cmdp).reward, rel=1e-5)
        assert utilities[0] == pytest.approx(cmdp.thresholds[0], abs=1e-4)


def test_cliff_walking_from_its_own_start_needs_the_natural_gradient():
    cmdp = cliff_walking(4.0, exploring=False)
    optimum = solve_linear_program(cmdp)
    assert optimum.reward == pytest.approx(-10.4100, abs=5e-5)
    # Never reaching the goal is stationary: states that are not visited have no gradient.
    stuck = solve(as_problem(cmdp), start_of(cmdp), GDPA(alpha=10.0, beta=1.0), stop=MaxSteps(500), check_every=50)
    assert cmdp.returns(policy_of(cmdp, stuck.x_last))[0] == pytest.approx(-1 / (1 - 0.95), rel=1e-3)
    # The natural gradient does not weigh states by visits; its values average to the optimum.
    method = NaturalPolicyGradient(cmdp, eta1=0.05, eta2=0.001)
    history = solve(as_problem(cmdp), start_of(cmdp), method, stop=MaxSteps(3000)).history
    assert -history["objective"][2000:].mean() == pytest.approx(optimum.reward, rel=1e-3)


def test_cliff_walking_from_its_own_start_is_solved_from_a_policy_that_has_explored():
    explored, cmdp = cliff_walking(2.0, exploring=True), cliff_walking(4.0, exploring=False)
    method, stop = GDPA(alpha=1.0, beta=1.0, tau=0.1), MaxSteps(1000)
    x = solve(as_problem(explored, "direct"), start_of(explored, "direct"), method, stop=stop, check_every=50).x_last
    method = GDPA(alpha=0.1, beta=0.1, tau=0.1)
    x = solve(as_problem(cmdp, "direct"), x, method, stop=stop, check_every=50).x_last
    reward, utilities = cmdp.returns(policy_of(cmdp, x, "direct"))
    assert reward == pytest.approx(solve_linear_program(cmdp).reward, rel=1e-3)
    assert utilities[0] == pytest.approx(-4.0, abs=0.02)


def test_environments_without_a_table_are_refused():
    with pytest.raises(TypeError, match=r"env must publish its transitions as env\.unwrapped\.P"):
        TabularCMDP.from_gymnasium(gymnasium.make("CartPole-v1"), {"c": lambda *_: 0.0}, {"c": 1.0})


def test_costs_and_budgets_must_match():
    env = gymnasium.make(latest("FrozenLake"))
    for costs, budgets in (({"a": lambda *_: 0.0}, {"b": 1.0}), ({}, {})):
        with pytest.raises(ValueError, match="costs and budgets must name the same costs"):
            TabularCMDP.from_gymnasium(env, costs, budgets)


def test_start_is_asked_for_where_the_environment_has_none():
    env = types.SimpleNamespace(P={0: {0: [(1.0, 0, 1.0, False)]}})
    with pytest.raises(ValueError, match="start is missing"):
        TabularCMDP.from_gymnasium(env, {"c": lambda *_: 1.0}, {"c": 1.0})
    cmdp = TabularCMDP.from_gymnasium(env, {"c": lambda *_: 1.0}, {"c": 200.0}, discount=0.99, start=[1.0])
    assert cmdp.returns(np.ones((2, 1)))[0] == pytest.approx(100.0)
