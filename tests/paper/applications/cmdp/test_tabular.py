"""Exact evaluation against power iteration, simulation, finite differences and automatic differentiation."""

from __future__ import annotations

import numpy as np
import pytest

from gdpa import GDPA, MaxSteps, solve
from gdpa.paper.applications import cmdp as cmdp_module
from gdpa.paper.applications.cmdp import (
    TabularCMDP,
    as_problem,
    paper_instance,
    policy_of,
    random_instance,
    start_of,
)


@pytest.fixture
def cmdp() -> TabularCMDP:
    """A small process with two utilities and an uneven start."""
    base = random_instance(seed=3, num_states=5, num_actions=3, thresholds=[2.5, 2.5], discount=0.8)
    return TabularCMDP(
        base.transitions, base.rewards, base.utilities, base.thresholds, 0.8, start=[0.5, 0.3, 0.2, 0.0, 0.0]
    )


def random_policy(cmdp: TabularCMDP, seed: int, *lead: int) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(cmdp.num_actions), size=(*lead, cmdp.num_states))


def test_values_and_visits_match_power_iteration(cmdp):
    policy = random_policy(cmdp, 0)
    P_pi = np.einsum("sa,sat->st", policy, cmdp.transitions)
    distribution, visits = np.array(cmdp.start), np.zeros(5)
    for t in range(400):  # 0.8^400 is below rounding
        visits += 0.8**t * distribution
        distribution = distribution @ P_pi
    evaluation = cmdp.under(policy)
    np.testing.assert_allclose(evaluation.visits, visits, rtol=1e-12)
    reward, utilities = evaluation.returns()
    np.testing.assert_allclose(reward, np.sum(visits[:, None] * policy * cmdp.rewards), rtol=1e-12)
    expected = [np.sum(visits[:, None] * policy * u) for u in cmdp.utilities]
    np.testing.assert_allclose(utilities, expected, rtol=1e-12)


def test_occupancy_sums_to_one_and_flows_balance(cmdp):
    policy = random_policy(cmdp, 1)
    x = 0.2 * cmdp.under(policy).visits[:, None] * policy
    assert x.sum() == pytest.approx(1.0, abs=1e-12)
    inflow = 0.2 * cmdp.start + 0.8 * np.einsum("sa,sat->t", x, cmdp.transitions)
    np.testing.assert_allclose(x.sum(-1), inflow, atol=1e-14)


def test_action_values_satisfy_bellman_equation(cmdp):
    policy = random_policy(cmdp, 2)
    weights = np.array([1.0, 0.5, -2.0])
    Q, V = cmdp.under(policy).action_values(weights)
    signal = cmdp.rewards + 0.5 * cmdp.utilities[0] - 2.0 * cmdp.utilities[1]
    np.testing.assert_allclose(Q, signal + 0.8 * cmdp.transitions @ V, rtol=1e-12)
    np.testing.assert_allclose(V, (policy * Q).sum(-1), rtol=1e-12)


def test_values_match_simulation(cmdp):
    policy, rng = random_policy(cmdp, 3), np.random.default_rng(0)
    n, horizon = 20_000, 60  # 0.8^60 / 0.2 < 1e-5

    def draw(probabilities):
        return (probabilities.cumsum(-1) < rng.uniform(size=(n, 1))).sum(-1).clip(max=probabilities.shape[-1] - 1)

    s, total = draw(np.broadcast_to(cmdp.start, (n, 5))), np.zeros((n, 3))
    signals = np.concatenate([cmdp.rewards[None], cmdp.utilities])
    for t in range(horizon):
        a = draw(policy[s])
        total += 0.8**t * signals[:, s, a].T
        s = draw(cmdp.transitions[s, a])
    reward, utilities = cmdp.returns(policy)
    error = np.abs(total.mean(0) - [reward, *utilities])
    assert (error < 4 * total.std(0) / np.sqrt(n) + 1e-4).all()


@pytest.mark.parametrize("parametrization", ["softmax", "direct"])
def test_gradients_match_central_differences(cmdp, parametrization):
    problem = as_problem(cmdp, parametrization)
    x = start_of(cmdp, parametrization, seed=4)
    now, w, h = problem.evaluate(x), np.array([0.7, -0.2]), 1e-6

    def lagrangian(y):
        f, g, _ = problem.evaluate(y)
        return 1.5 * f + w @ g

    numeric = [(lagrangian(x + h * e) - lagrangian(x - h * e)) / (2 * h) for e in np.eye(x.size)]
    np.testing.assert_allclose(now.pullback(w, 1.5), numeric, atol=1e-7)
    J = now.jacobian()
    assert now.has_cheap_jacobian
    assert J.shape == (2, 15)
    np.testing.assert_allclose(J.T @ w, now.pullback(w, 0.0), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("parametrization", ["softmax", "direct"])
def test_gradients_match_automatic_differentiation(parametrization):
    torch = pytest.importorskip("torch")
    cmdp = paper_instance(b=7.0)
    x = start_of(cmdp, parametrization, seed=0)
    t = torch.tensor(x, requires_grad=True)
    rows = t.reshape(50, 10)
    policy = torch.softmax(rows, -1) if parametrization == "softmax" else rows
    P, r, u = (torch.tensor(np.array(a)) for a in (cmdp.transitions, cmdp.rewards, cmdp.utilities[0]))
    A = torch.eye(50, dtype=torch.float64) - 0.9 * torch.einsum("sa,sat->st", policy, P)
    f = -torch.linalg.solve(A, (policy * r).sum(-1)).mean()
    g = 7.0 - torch.linalg.solve(A, (policy * u).sum(-1)).mean()
    (f + 0.3 * g).backward()
    ours = as_problem(cmdp, parametrization).evaluate(x)
    assert float(ours.objective) == pytest.approx(f.item(), rel=1e-12)
    assert ours.constraints[0] == pytest.approx(g.item(), rel=1e-12)
    np.testing.assert_allclose(ours.pullback(np.array([0.3])), t.grad.numpy(), atol=1e-12)


def test_softmax_survives_huge_parameters(cmdp):
    theta = np.where(np.arange(15) % 3 == 0, 1e4, -1e4)
    deterministic = np.tile([1.0, 0.0, 0.0], (5, 1))
    np.testing.assert_array_equal(policy_of(cmdp, theta), deterministic)
    assert np.isfinite(as_problem(cmdp).evaluate(theta).pullback(np.ones(2))).all()


@pytest.mark.parametrize("parametrization", ["softmax", "direct"])
def test_batch_equals_loop(cmdp, parametrization):
    thresholds = np.array([[3.0, 2.0], [3.5, 2.5], [2.0, 2.0]])
    x = np.stack([start_of(cmdp, parametrization, seed=i) for i in range(3)])
    w, scale = np.arange(6.0).reshape(3, 2), np.array([1.0, 0.5, 0.0])
    batch = as_problem(cmdp, parametrization, thresholds=thresholds)
    together = batch.evaluate(x)
    for i in range(3):
        alone = as_problem(cmdp.with_thresholds(thresholds[i]), parametrization)
        now = alone.evaluate(x[i])
        np.testing.assert_allclose(together.objective[i], now.objective, rtol=1e-13)
        np.testing.assert_allclose(together.constraints[i], now.constraints, rtol=1e-12)
        np.testing.assert_allclose(together.pullback(w, scale)[i], now.pullback(w[i], scale[i]), rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(together.jacobian()[i], now.jacobian(), rtol=1e-11, atol=1e-13)


def test_a_batch_of_thresholds_is_solved_like_each_alone():
    cmdp = paper_instance()
    b = np.array([[6.0], [7.0], [8.0]])
    method, x0 = GDPA(alpha=100.0, beta=0.5, tau=0.1), start_of(cmdp, seed=0)
    together = solve(as_problem(cmdp, thresholds=b), np.tile(x0, (3, 1)), method, stop=MaxSteps(50))
    for i in range(3):
        alone = solve(as_problem(cmdp.with_thresholds(b[i])), x0, method, stop=MaxSteps(50))
        np.testing.assert_allclose(together.x_last[i], alone.x_last, atol=1e-8)
        np.testing.assert_allclose(together.multipliers_last[i], alone.multipliers_last, atol=1e-9)


def test_a_gradient_costs_one_factorization_and_two_triangular_solves(cmdp, monkeypatch):
    counts = {"dgetrf": 0, "dgetrs": 0}
    for name in counts:
        original = getattr(cmdp_module, name)

        def counted(*args, _name=name, _original=original, **kwargs):
            counts[_name] += 1
            return _original(*args, **kwargs)

        monkeypatch.setattr(cmdp_module, name, counted)
    as_problem(cmdp, check=False).evaluate(np.zeros(15)).pullback(np.ones(2))
    assert counts == {"dgetrf": 1, "dgetrs": 2}


def test_the_global_random_state_is_left_alone():
    np.random.seed(123)  # noqa: NPY002 - the point of the test
    before = np.random.get_state(legacy=False)["state"]["key"].copy()  # noqa: NPY002
    start_of(paper_instance(), seed=0)
    np.testing.assert_array_equal(np.random.get_state(legacy=False)["state"]["key"], before)  # noqa: NPY002


def test_paper_instance_draws_as_the_public_code_does():
    np.random.seed(10)  # noqa: NPY002 - the public code's own lines
    P = np.random.uniform(0, 1, size=(500, 50))  # noqa: NPY002
    r = np.random.uniform(0, 1, size=500)  # noqa: NPY002
    u = np.random.uniform(0, 1, size=500)  # noqa: NPY002
    cmdp = paper_instance()
    np.testing.assert_allclose(cmdp.transitions, (P / P.sum(1, keepdims=True)).reshape(50, 10, 50), rtol=1e-15)
    np.testing.assert_array_equal(cmdp.rewards.ravel(), r)
    np.testing.assert_array_equal(cmdp.utilities.ravel(), u)


def test_data_are_copied_and_read_only():
    rewards = np.ones((1, 2))
    cmdp = TabularCMDP([[[1.0], [1.0]]], rewards, [[[0.0, 1.0]]], [1.0], 0.5)
    rewards[:] = 7
    assert cmdp.rewards.tolist() == [[1.0, 1.0]]
    with pytest.raises(ValueError, match="read-only"):
        cmdp.rewards[0, 0] = 2.0


GOOD = {
    "transitions": np.full((2, 2, 2), 0.5),
    "rewards": np.ones((2, 2)),
    "utilities": np.ones((1, 2, 2)),
    "thresholds": np.ones(1),
    "discount": 0.9,
    "start": np.array([0.5, 0.5]),
}


def test_good_input_passes():
    assert TabularCMDP(**GOOD).num_constraints == 1
    assert TabularCMDP(**{**GOOD, "discount": 0.0, "start": None}).start.tolist() == [0.5, 0.5]
    assert TabularCMDP(**{**GOOD, "utilities": np.ones((0, 2, 2)), "thresholds": []}).num_constraints == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transitions": np.full((2, 2, 2), 0.6)}, r"transitions\[0, 0\] must sum to one, got 1.2; normalize it"),
        ({"transitions": [[[1.5, -0.5]] * 2] * 2}, r"transitions must be probabilities, got -0.5 at index \(0, 0, 1\)"),
        ({"transitions": np.ones((2, 2))}, r"transitions must have shape \(states, actions, states\), got \(2, 2\)"),
        ({"transitions": np.full((2, 2, 2), np.nan)}, r"transitions must be finite, got nan at index \(0, 0, 0\)"),
        ({"rewards": np.ones(2)}, r"rewards must have shape \(states, actions\) = \(2, 2\), got \(2,\)"),
        ({"rewards": np.full((2, 2), np.inf)}, "rewards must be finite, got inf"),
        ({"utilities": np.ones((2, 2))}, r"write a single utility as utility\[None\]"),
        ({"thresholds": np.ones(2)}, r"thresholds must have shape \(m,\) = \(1,\), got \(2,\)"),
        ({"thresholds": [np.nan]}, "thresholds must be finite"),
        ({"discount": 1.0}, r"discount must lie in \[0, 1\), got 1.0"),
        ({"discount": -0.1}, r"discount must lie in \[0, 1\), got -0.1"),
        ({"discount": float("nan")}, r"discount must lie in \[0, 1\), got nan"),
        ({"start": np.array([0.5, 0.6])}, "start must sum to one, got 1.1"),
        ({"start": np.array([1.0])}, r"start must have shape \(states,\) = \(2,\), got \(1,\)"),
        ({"names": ("a", "b")}, "names has 2 entries for 1 utilities"),
    ],
)
def test_bad_input_says_what_is_wrong(change, message):
    with pytest.raises(ValueError, match=message):
        TabularCMDP(**{**GOOD, **change})


def test_input_that_is_no_array_of_numbers():
    with pytest.raises(TypeError, match="rewards must be an array of numbers, got str"):
        TabularCMDP(**{**GOOD, "rewards": "high"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parametrization": "logit"}, "parametrization must be one of .*got 'logit'"),
        ({"thresholds": [1.0, 2.0]}, r"thresholds must be finite, of shape \(..., 1\)"),
        ({"thresholds": [np.inf]}, "thresholds must be finite"),
    ],
)
def test_bad_arguments_of_as_problem(arguments, message):
    with pytest.raises(ValueError, match=message):
        as_problem(TabularCMDP(**GOOD), **arguments)
