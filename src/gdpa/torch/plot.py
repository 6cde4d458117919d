"""A picture of a training run: values against their limits, and multipliers, over steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdpa.base.extras import needed_by
from gdpa.torch.roster import Roster

#: Limits that a picture shows unless names are given: those with the largest violations and multipliers.
SHOWN = 4
#: Points that the smooth line averages.
SMOOTHED = 20


def plot_course(roster: Roster, course: tuple[Any, Any, Any], names: list[str] | None) -> Any:
    """Return a matplotlib figure with one panel for each limit and one for the multipliers.

    Args:
        roster: the constraints.
        course: steps, g and multipliers, one row a step, one column a constraint in the user's order.
        names: the constraints to show.
    """
    with needed_by("opt.plot()"):
        import matplotlib.pyplot as plt
    steps, g, lam = course
    known = [roster.user_name(i) for i in range(roster.size)]
    if names is None:
        recent = np.nan_to_num(g[-SMOOTHED:]).mean(axis=0).clip(0) + np.abs(lam[-1]) / (np.abs(lam[-1]).max() or 1.0)
        shown = sorted(np.argsort(-recent, kind="stable")[:SHOWN].tolist())
    elif unknown := [name for name in names if name not in known]:
        raise KeyError(f"names holds {unknown}, which are not constraints; there are {roster.describe()}")
    else:
        shown = [known.index(name) for name in names]
    figure, axes = plt.subplots(
        len(shown) + 1, 1, sharex=True, layout="constrained", figsize=(7, 1.6 * (len(shown) + 1) + 0.6)
    )
    for color, (i, panel) in enumerate(zip(shown, axes, strict=False)):
        values, limit = roster.to_value(i, g[:, i])
        here = ~np.isnan(values)
        width = min(SMOOTHED, max(int(here.sum()), 1))
        mean = np.convolve(values[here], np.ones(width) / width, mode="valid")
        panel.plot(steps[here], values[here], color=f"C{color}", alpha=0.3, linewidth=0.8)
        panel.plot(steps[here][width - 1 :], mean, color=f"C{color}", label="mean of recent batches")
        panel.axhline(limit, color="black", linestyle="--", linewidth=1, label=f"limit {limit:g}")
        panel.set(ylabel=known[i])
        panel.legend(loc="best", fontsize="small", ncols=2)
        axes[-1].plot(steps, lam[:, i], color=f"C{color}", label=known[i])
    axes[-1].set(xlabel="step", ylabel="multiplier")
    axes[-1].legend(loc="best", fontsize="small")
    return figure
