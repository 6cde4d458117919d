"""Where processes come from: the paper's instance and its relatives, and Gymnasium's toy-text environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gdpa.paper.applications.cmdp.tabular import TabularCMDP

Cost = Callable[[int, int, int, float, bool], float]


def paper_instance(b: float = 6.0) -> TabularCMDP:
    """Return the CMDP of the paper's Figure 3: 50 states, 10 actions, gamma 0.9, one utility with threshold b.

    The paper refers to the public code of Bhandari and Russo, whose instance is drawn from NumPy's legacy generator
    with seed 10; the utility is drawn right after the reward, as Ding et al. (2020) extend that code.

    >>> cmdp = paper_instance(b=6.0)
    >>> cmdp.num_states, cmdp.num_actions, cmdp.thresholds.tolist()
    (50, 10, [6.0])
    """
    return random_instance(seed=10, thresholds=[b])


def random_instance(
    seed: int, num_states: int = 50, num_actions: int = 10, thresholds: Any = (0.0,), discount: float = 0.9
) -> TabularCMDP:
    """Return a CMDP with uniform transitions (rows normalized), rewards and utilities in [0, 1], uniform start.

    Args:
        seed: of NumPy's legacy generator, on which the paper's instance rests; the global one is left alone.
        num_states: |S|.
        num_actions: |A|.
        thresholds: b, one per utility to draw; 0 constrains nothing.
        discount: gamma.

    >>> random_instance(seed=0, num_states=3, num_actions=2).transitions.sum(-1).round(12).tolist()
    [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    """
    generator = np.random.RandomState(seed)
    P = generator.uniform(size=(num_states * num_actions, num_states))
    P /= P.sum(axis=1, keepdims=True)
    rewards = generator.uniform(size=(num_states, num_actions))
    utilities = generator.uniform(size=(len(thresholds), num_states, num_actions))
    return TabularCMDP(
        P.reshape(num_states, num_actions, num_states), rewards, utilities, thresholds, discount=discount
    )


def from_gymnasium(
    env: Any, costs: Mapping[str, Cost], budgets: Mapping[str, float], discount: float = 0.99, start: Any = None
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
