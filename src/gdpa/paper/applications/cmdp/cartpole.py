"""CartPole with two costs: leaving the middle of the track, and switching the direction of the force."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class CostlyCartPole(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole whose ``info["costs"]`` is (1 if ``|x| > margin``, 1 if the force changed its direction).

    The last force (-1, 1, or 0 at the start) is added to the observation: without it the second cost would depend on
    more than the state.

    >>> env = CostlyCartPole()
    >>> observation, info = env.reset(seed=0)
    >>> observation.shape, info["costs"].tolist()
    ((5,), [0.0, 0.0])
    >>> _ = env.step(0)
    >>> env.step(1)[4]["costs"].tolist()
    [0.0, 1.0]
    """

    COSTS = ("position", "switching")

    def __init__(self, env: Any = None, margin: float = 0.5) -> None:
        super().__init__(gymnasium.make("CartPole-v1") if env is None else env)
        self.margin, self._force = margin, 0.0
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        self._force = 0.0
        return self._with_force(observation), {**info, "costs": np.zeros(2)}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        force = 1.0 if action else -1.0
        costs = np.array([abs(observation[0]) > self.margin, self._force * force < 0], dtype=float)
        self._force = force
        return self._with_force(observation), reward, terminated, truncated, {**info, "costs": costs}

    def _with_force(self, observation: Any) -> Any:
        return np.append(observation, self._force).astype(np.float32)
