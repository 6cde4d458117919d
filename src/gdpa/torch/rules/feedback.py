"""The library's own rule for sampled data: proportional-integral feedback in units of limit, noise and gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from gdpa.lagrangian import AugmentedLagrangian
from gdpa.torch.rules.base import Dual, Number, Rule, Scalar, Vector, functions

# Every constant of the rule; see docs/torch.md for the runs that chose them.

#: Share of the unit u by which an error of one moves the multiplier in a step.
INTEGRAL = 0.01
#: The same for a change of the smoothed error. 0.3 / 0.01: the rule looks 30 steps ahead.
PROPORTIONAL = 0.3
#: Share of the newest error in the smoothed error.
SMOOTHING = 0.1
#: Errors are cut at this size, so that a start far off does not wind the multiplier up.
LARGEST_ERROR = 3.0
#: An error of one is at least this many standard deviations of the batch values.
DEVIATIONS = 2.0
#: Share of the newest batch in the running variance of the batch values.
NEWEST_VARIANCE = 0.02
#: Share of the newest batch in the running square of g.
NEWEST_SQUARE = 0.002
#: The running square never counts as less than this share of its largest value.
LEAST_SQUARE = 1e-3
#: The first "largest square": keeps 0 / 0 from arising for a constraint that is exactly 0 in every batch so far.
TINY = 1e-300

_SQUARED_DEVIATIONS = DEVIATIONS**2


@dataclass(frozen=True)
class Feedback(Rule):
    r"""Velocity-form PI control of each multiplier, with errors and steps that have no units.

    .. math::
        S_i &= \max(c_i,\ 2 \sigma_i), \qquad e_i = \operatorname{clip}(g_i / S_i, -3, 3) \\
        \xi_i &\leftarrow 0.9\, \xi_i + 0.1\, e_i \\
        u_i &= (\rho_i + |\lambda_i|) / 2 \\
        \lambda_i &\leftarrow [\lambda_i + k\, u_i\, (0.01\, e_i + 0.3\, \Delta\xi_i)]_+, \qquad w_i = \lambda_i
            \text{ from before the batch}

    :math:`c_i` is the size of the limit (`Limits` gives it) or the running root mean square of g, whichever is smaller,
    :math:`\sigma_i` the standard deviation of the batch values, estimated from differences of successive batches, and
    :math:`\rho_i` the ratio of gradient norms of f and :math:`g_i`, measured in the first batches that violate the
    constraint. Before it is measured, :math:`\lambda_i = 0`. The step grows with the multiplier, so a wrong
    :math:`\rho_i` costs steps and not feasibility. The weights do not depend on the batch whose gradient they
    multiply, so rectified noise does not add up over many constraints.

    PI control of multipliers is Sohrabi et al., "On PI controllers for updating Lagrange multipliers in constrained
    optimization", ICML 2024; the calibration and the units are ours.

    Args:
        dual_rate: k. It multiplies both gains.
    """

    dual_rate: float = 1.0
    name: ClassVar[str] = "feedback"
    lagged: ClassVar[bool] = True
    vectors: ClassVar[dict[str, Vector]] = {
        "multipliers": Vector(),
        "smoothed": Vector(0.0, -LARGEST_ERROR, LARGEST_ERROR),
        "last": Vector(0.0, -math.inf),
        "variance": Vector(),
        "square": Vector(),
        "largest_square": Vector(TINY),
        "seen": Vector(),
    }
    given: ClassVar[tuple[str, ...]] = ("ratio", "limit")

    def scalars(self) -> dict[str, Scalar]:
        return {"dual_rate": Scalar(float(self.dual_rate), open_low=True)}

    def begin(self, dual: Dual) -> tuple[Any, dict[str, Any]]:
        return dual["dual_rate"], {}

    def update(
        self, state: tuple[Number, ...], given: tuple[Number, ...], g: Number, shared: Any, num_equalities: int
    ) -> tuple[tuple[Number, ...], Number]:
        multipliers, smoothed, last, variance, square, largest_square, seen = state
        (ratio, limit), k, xp = given, shared, functions(g)
        # S, the size of one unit of error. Running means are plain means until their shares are reached.
        jump = (seen > 0) * (0.5 * (g - last) ** 2)
        seen = seen + 1.0
        variance = variance + xp.at_least(1 / seen, NEWEST_VARIANCE) * (jump - variance)
        square = square + xp.at_least(1 / seen, NEWEST_SQUARE) * (g * g - square)
        largest_square = xp.maximum(largest_square, square)
        size = xp.minimum(xp.maximum(square, LEAST_SQUARE * largest_square), limit * limit)
        unit = xp.sqrt(xp.maximum(size, _SQUARED_DEVIATIONS * variance))
        # The controller.
        error = xp.clip(g / unit, -LARGEST_ERROR, LARGEST_ERROR)
        change = SMOOTHING * (error - smoothed)
        step = 0.5 * k * (ratio + abs(multipliers))
        law = AugmentedLagrangian(multipliers, step, 0.0, num_equalities)
        moved = law.ascend(INTEGRAL * error + PROPORTIONAL * change)
        return (moved, smoothed + change, g, variance, square, largest_square, seen), multipliers
