"""Random processes: the paper's instance and its relatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdpa.paper.applications.cmdp.tabular import TabularCMDP


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
