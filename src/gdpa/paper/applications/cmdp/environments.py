"""Tabular CMDPs from Gymnasium's toy-text environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gdpa.paper.applications.cmdp.tabular import TabularCMDP

Cost = Callable[[int, int, int, float, bool], float]


def from_gymnasium(
    env: Any,
    costs: Mapping[str, Cost],
    budgets: Mapping[str, float],
    discount: float = 0.99,
    start: Any = None,
) -> TabularCMDP:
    """Return the CMDP of a Gymnasium environment that publishes its transitions as ``env.unwrapped.P``.

    ``max V_r`` subject to ``V_cost <= budget`` for each cost, discounted. Each cost is the utility -cost with
    the threshold -budget.

    Every transition that ends the episode leads to one absorbing state without rewards and costs, the last state of
    the CMDP: tables such as Taxi's go on describing moves from states where the episode is over.

    Args:
        env: FrozenLake, CliffWalking, Taxi, or any other with ``P[s][a] = [(probability, s', reward, done), ...]``.
        costs: name -> cost(s, a, s', reward, done) of a transition.
        budgets: name -> largest discounted cost allowed.
        discount: gamma in [0, 1).
        start: distribution of the first state; default ``env.unwrapped.initial_state_distrib``.

    Example:
        >>> import gymnasium
        >>> env = gymnasium.make("FrozenLake-v1", map_name="8x8")
        >>> hole = {"holes": lambda s, a, s_next, reward, done: float(done and reward == 0)}
        >>> cmdp = from_gymnasium(env, hole, {"holes": 0.1})
        >>> cmdp.num_states, cmdp.num_actions, cmdp.thresholds.tolist()
        (65, 4, [-0.1])
    """
    inner = getattr(env, "unwrapped", env)
    table = getattr(inner, "P", None)
    if table is None:
        raise TypeError(
            f"env must publish its transitions as env.unwrapped.P, got {env!r}; build a TabularCMDP by hand"
        )
    if set(costs) != set(budgets) or not costs:
        raise ValueError(f"costs and budgets must name the same costs, got {sorted(costs)} and {sorted(budgets)}")
    S, A = len(table), len(table[0])
    P = np.zeros((S + 1, A, S + 1))
    rewards = np.zeros((S + 1, A))
    utilities = np.zeros((len(costs), S + 1, A))
    P[S, :, S] = 1.0
    for s in range(S):
        for a in range(A):
            for probability, s_next, reward, done in table[s][a]:
                P[s, a, S if done else s_next] += probability
                rewards[s, a] += probability * reward
                for i, cost in enumerate(costs.values()):
                    utilities[i, s, a] -= probability * cost(s, a, int(s_next), float(reward), bool(done))
    if start is None:
        start = getattr(inner, "initial_state_distrib", None)
        if start is None:
            raise ValueError("start is missing: the environment does not publish initial_state_distrib; pass it")
    thresholds = [-budgets[name] for name in costs]
    return TabularCMDP(P, rewards, utilities, thresholds, discount, np.append(start, 0.0), tuple(costs))
