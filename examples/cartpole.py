"""CartPole with two costs, and a chart of learning under budgets: for `safe_cartpole.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from gdpa.paper.figures import Chart, Panel, Series

#: The rows of one run by column: update, steps, return, "cost NAME", "multiplier NAME".
Columns = Mapping[str, Sequence[float]]


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


def learning_chart(runs: Mapping[str, Sequence[Columns]], budgets: Mapping[str, float]) -> Chart:
    """Return the chart of several methods; each line is the mean over a method's seeds, its band their range.

    Args:
        runs: method -> the runs of its seeds, of equal length.
        budgets: name -> limit.
    """

    def curves(column: str) -> list[Series]:
        series = []
        for color, (method, seeds) in enumerate(runs.items()):
            values = np.stack([np.asarray(run[column], dtype=float) for run in seeds])
            known = np.isfinite(values).all(0)  # no episode has ended in the first updates
            x, values = np.asarray(seeds[0]["steps"], dtype=float)[known] / 1000, values[:, known]
            series.append(Series(method, x, values.mean(0), "line", color, values.min(0), values.max(0)))
        return series

    def limited(name: str) -> list[Series]:
        series = curves(f"cost {name}")
        ends = [float(series[0].x[0]), float(series[0].x[-1])]
        return [*series, Series("limit", ends, [budgets[name]] * 2, "dotted", 6)]

    def panel(title: str, y_label: str, series: list[Series]) -> Panel:
        return Panel(title, "environment steps (thousands)", y_label, series, log_x=False, log_y=False)

    panels = [panel("return of an episode", "return", curves("return"))]
    panels += [panel(f"cost: {name}", "mean per step", limited(name)) for name in budgets]
    panels += [panel(f"multiplier: {name}", "multiplier", curves(f"multiplier {name}")) for name in budgets]
    return Chart(
        "learning-curves",
        "Learning under budgets",
        "Lines: means over seeds; bands: their range; dotted: the budgets. Costs are running means per step.",
        panels,
        columns=1 + len(budgets),
    )
