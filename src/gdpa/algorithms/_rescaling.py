"""New units on the way, where the gradients have left the size they had at the start."""

from __future__ import annotations

from dataclasses import replace

from gdpa.algorithms._adaptive_state import AdaptiveState, Watch
from gdpa.algorithms._scaling import scaling_from
from gdpa.arrays import max_norm, namespace
from gdpa.typing import Array

#: Units are renewed where a gradient has become larger or smaller than at the last time by this factor.
DRIFT = 10.0


def renew(state: AdaptiveState, c: Array, J: Array) -> tuple[AdaptiveState, Array, Array]:
    """Return the state, grad f' and J' in the units that suit x, where those at hand are off by more than `DRIFT`.

    The problem stays the same, so do x and the multipliers in its own units; F_beta weighs its parts anew. With
    ratios a of f's unit and b_i of those of g: lambda' <- a lambda'/b, y <- a y, and the values kept alike.

    Args:
        state: at x.
        c: grad f' there.
        J: the scaled Jacobian; rows of zeros were not evaluated.
    """
    xp = namespace(c)
    scaling, merit, memory = state.scaling, state.merit, state.memory
    units = scaling.constraints
    values = state.window.objectives[-1] / scaling.objective, state.window.constraints[-1] / units
    here = scaling_from(values, c / scaling.objective, J / units[:, None], enlarge=False)
    # A gradient that vanishes on the way, at a double root or on a plateau, enlarges its function up to its own units.
    a = min(here.objective, max(scaling.objective, 1.0)) / scaling.objective if float(max_norm(c)) > 0 else 1.0
    a = a if not 1 / DRIFT <= a <= DRIFT else 1.0
    b = xp.minimum(here.constraints, xp.maximum(units, xp.ones_like(units))) / units
    b = xp.where(((b < 1 / DRIFT) | (b > DRIFT)) & (max_norm(J) > 0), b, xp.ones_like(b))
    if a == 1.0 and not bool(xp.any(b != 1)):
        return state, c, J
    window = state.window
    state = replace(
        state,
        scaling=scaling._replace(objective=a * scaling.objective, constraints=b * units),
        merit=merit._replace(multipliers=a * merit.multipliers / b),
        memory=memory._replace(changes=tuple(a * y for y in memory.changes), sigma=a * memory.sigma),
        window=window._replace(objectives=a * window.objectives, constraints=b * window.constraints),
        watch=Watch(patience=state.watch.patience),
    )
    return state, a * c, b[:, None] * J
