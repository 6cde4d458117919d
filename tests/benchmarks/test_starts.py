"""The table of benchmarks.starts, and its model of a policy against a policy that was evaluated by hand."""

import numpy as np

from benchmarks.starts import _policy_values, table


def test_the_table_counts_false_claims_and_slow_restarts():
    rows = [
        {"part": "far", "problem": "disc", "case": "1e2", "verdict": "other", "nfev": 9},
        {"part": "far", "problem": "disc", "case": "1e4", "verdict": "false", "nfev": 9},
        {"part": "solution", "problem": "HS1", "case": "x", "success": True, "nfev": 3},
        {"part": "policies", "problem": "20 states", "case": "0.5", "gap": 1e-4, "status": 4, "nfev": 9},
    ]
    text = table(rows)
    assert "| 1 of 2 right (1 at another KKT point), **1 false** |" in text
    assert "x | 1 of 1 succeed, 0 within 2 evaluations |" in text
    assert "median gap 1e-04, largest 1e-04, 1 called infeasible" in text


def test_one_state_and_two_actions_have_the_value_of_their_mean_reward():
    T, reward = np.ones((2, 1)), np.array([1.0, 0.0])
    value = _policy_values(T, (reward,), np.ones(1), 0.5)
    theta = np.array([np.log(3.0), 0.0])  # the first action with probability 3/4
    ((at, slope),) = value(theta)
    assert at == 0.75 / (1 - 0.5)
    np.testing.assert_allclose(slope, np.array([1.0, -1.0]) * 0.75 * 0.25 / (1 - 0.5))
