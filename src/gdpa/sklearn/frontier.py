"""The cost of a limit: the error on one side of a trade-off against the limit on the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class FrontierPoint(NamedTuple):
    """The model trained at one limit.

    Attributes:
        limit: the limit.
        error: the cost of the limit, a 0/1 error on the training data.
        objective: the training objective at the solution.
        slope: the slope of ``objective`` against the limit by the multipliers: the price of the limit.
        met: whether every limit holds on the training data.
        steps: steps of the solver from the solution at the limit before.
    """

    limit: float
    error: float
    objective: float
    slope: float
    met: bool
    steps: int


@dataclass(frozen=True)
class Frontier:
    """Models along a range of limits, the tightest first.

    Attributes:
        points: one per limit.
        limit_label, error_label: the labels of the axes of a plot.
    """

    points: tuple[FrontierPoint, ...]
    limit_label: str = "limit"
    error_label: str = "error"

    def plot(self, axes: Any = None) -> Any:
        """Draw error and objective against the limit on a matplotlib ``Axes`` (a new one by default) and return it.

        The short lines have the slopes that the multipliers give the objective. Hollow points miss a limit.
        """
        if axes is None:
            import matplotlib.pyplot as plt

            _, axes = plt.subplots()
        limits = [point.limit for point in self.points]
        width = (max(limits) - min(limits)) / (3 * len(limits)) if len(limits) > 1 else 0.1 * limits[0]
        for color, label, values in (
            ("C0", self.error_label, [point.error for point in self.points]),
            ("C1", "training objective", [point.objective for point in self.points]),
        ):
            axes.plot(limits, values, color=color, linewidth=1, label=label)
            for point, value in zip(self.points, values, strict=True):
                axes.plot(point.limit, value, "o", color=color, markerfacecolor=color if point.met else "white")
        for place, point in enumerate(self.points):
            ends = (point.limit - width, point.limit + width)
            line = [point.objective + point.slope * (end - point.limit) for end in ends]
            axes.plot(ends, line, "k-", linewidth=1.5, label="_" if place else "slope by the multipliers")
        axes.set(xlabel=self.limit_label, ylim=(0, None))
        axes.legend()
        return axes
