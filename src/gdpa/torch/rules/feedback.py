"""The library's own rules for sampled data; the default is feedback in units of limit, noise and gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gdpa.base.arrays import positive_part
from gdpa.base.checks import check_positive
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.torch.rules.base import LARGEST, Entries, Entry, Number, Numbers, Row, Rule, functions

# Every constant of the rule, chosen on seven tasks of `benchmarks.minibatch` and two seeds that are not scored.
# `python -m benchmarks.minibatch.run constants` halves and doubles each there; docs/benchmarks.md shows the results.

#: Share of the unit by which a smoothed error of one moves the integral in a step. At 0.01 a run of 1,000 steps from a
#: multiplier of zero may end before the limit is met, and the objectives are as at 0.02.
INTEGRAL = 0.02
#: Share of the unit that a smoothed error of one adds to the integral at once.
PROPORTIONAL = 0.3
#: Share of the newest error in the smoothed error.
SMOOTHING = 0.1
#: k times the smoothed error is cut at this size, so that a start far off does not wind the integral up.
LARGEST_DRIVE = 0.5
#: One batch's error is cut at this size: an outlier counts as much as a few batches. Noise stays below.
LARGEST_ERROR = 3.0
#: An error of one is at least this many standard deviations of the batch values.
DEVIATIONS = 2.0
#: A group that is absent from most batches counts as present in at least one of this many.
RAREST = 10.0
#: Share of the newest batch in the running variance of the batch values.
NEWEST_VARIANCE = 0.02
#: Share of the newest batch in the running square of g. Without sizes, 500 groups of `benchmarks.many_limits` are
#: violated by 15 % after 4,000 steps at 0.005 and 1e-4, by 3 % at 0.01 and 1e-5; with sizes nothing changes.
NEWEST_SQUARE = 0.01
#: The running square never counts as less than this share of its largest value.
LEAST_SQUARE = 1e-5
#: A smoothed error of noise alone stays below this number, three times its standard deviation. What goes beyond it acts
#: with full gain; ...
NOISE = 0.35
#: ... after this many recent changes of sign of the smoothed error the gains are half as large, ...
TURNS = 6.0
#: ... "recent" being this share of the count of the batch before. Of pure noise the count is about 14, ...
TURNS_KEPT = 0.99
#: ... and the gains are not below this share. `python -m benchmarks.many_limits` has the effect.
LEAST_GAIN = 0.3
#: k of `Damped` at ``dual_rate=1``. Of .1, .2 and .4 it has the lowest worst merit over seven tasks and 3 seeds.
GAIN = 0.1
#: The first "largest square": keeps 0 / 0 from arising for a constraint that is exactly 0 in every batch so far.
TINY = 1e-300


@dataclass(frozen=True)
class Feedback(Rule):
    r"""PI control of each multiplier, with errors and steps that have no units.

    .. math::
        S_i &= \max(c_i,\ 2 \sigma_i), \qquad e_i = \operatorname{clip}(g_i / S_i, -3, 3) \\
        \xi_i &\leftarrow 0.9\, \xi_i + 0.1\, e_i, \qquad
            \hat\xi_i = \operatorname{clip}(k\, [\xi_i]_{\kappa_i}, -0.5, 0.5) \\
        \ell_i &\leftarrow [\ell_i + 0.02\, q_i\, u_i\, \hat\xi_i]_+, \qquad u_i = (q_i + |\ell_i|) / 2 \\
        \lambda_i &= \rho_i\, [\ell_i + 0.3\, u_i\, \hat\xi_i]_+, \qquad w_i = \lambda_i
            \text{ from before the batch}

    :math:`c_i` is the size of the limit (`Limits` gives it) or the running root mean square of g, whichever is smaller,
    :math:`\sigma_i` the standard deviation of the batch values, from differences of successive batches,
    :math:`q_i \ge 1` one over the share of batches in which the group of constraint i is present, at most 10, and
    :math:`\rho_i` the ratio of gradient norms of f and :math:`g_i` (`gdpa.torch.calibration`), 0 before it is measured.
    :math:`[\xi]_\kappa = \xi - (1 - \kappa) \operatorname{clip}(\xi, -0.35, 0.35)` with
    :math:`\kappa_i = \max(0.3,\ 1 / (1 + n_i / 6))` and :math:`n_i` the recent changes of sign of :math:`\xi_i` lowers
    the gains of a constraint whose error is noise; the part beyond 0.35, which noise does not reach, acts in full. The
    step grows with the multiplier, so a wrong :math:`\rho_i` costs steps and not feasibility. The proportional part is
    added to the integral, not to the multiplier before, where noise times the growing step would add up to a drift.

    References:
        M. Sohrabi et al.: On PI controllers for updating Lagrange multipliers in constrained optimization. ICML 2024.
        H. Kesten: Accelerated stochastic approximation. Ann. Math. Statist. 29, 1958.

    Deviations from the source:
        The calibration and the units are ours.

    Args:
        dual_rate: k. It multiplies both gains; far from the limit, the cut bounds the speed of the multiplier.
    """

    dual_rate: float = 1.0
    name: ClassVar[str] = "feedback"
    lagged: ClassVar[bool] = True
    vectors: ClassVar[dict[str, Entry]] = {
        "multipliers": Entry(),
        "integral": Entry(0.0, -LARGEST),
        "smoothed": Entry(0.0, -LARGEST_ERROR, LARGEST_ERROR),
        "last": Entry(0.0, -LARGEST),
        "variance": Entry(),
        "square": Entry(),
        "largest_square": Entry(TINY),
        "seen": Entry(),
        "turns": Entry(),
    }
    given: ClassVar[tuple[str, ...]] = ("ratio", "limit")

    def begin(self, dual: Entries) -> tuple[Any, Entries]:
        return (dual["dual_rate"], dual["dual_steps"] + 1.0), {}

    def update(self, state: Row, given: Row, g: Number, shared: Any, num_equalities: int) -> tuple[Row, Number]:
        multipliers, integral, smoothed, last, variance, square, largest_square, seen, turns = state
        (ratio, limit), (k, steps), xp = given, shared, Numbers if type(g) is float else functions(g)
        maximum, at_least, clip = xp.maximum, xp.at_least, xp.clip
        # S, the size of one unit of error. Running means are plain means until their shares are reached.
        change = g - last
        jump = (seen > 0) * (0.5 * change * change)
        seen = seen + 1.0
        newest = 1 / seen
        variance = variance + at_least(newest, NEWEST_VARIANCE) * (jump - variance)
        square = square + at_least(newest, NEWEST_SQUARE) * (g * g - square)
        largest_square = maximum(largest_square, square)
        size = xp.minimum(maximum(square, LEAST_SQUARE * largest_square), limit * limit)
        unit = xp.sqrt(maximum(size, DEVIATIONS * DEVIATIONS * variance))
        # The controller.
        error = clip(g / unit, LARGEST_ERROR)
        before = smoothed
        smoothed = before + SMOOTHING * (error - before)
        turns = TURNS_KEPT * turns + (before * smoothed < 0)
        gain = at_least(TURNS / (TURNS + turns), LEAST_GAIN)
        drive = clip(k * (smoothed + (gain - 1.0) * clip(smoothed, NOISE)), LARGEST_DRIVE)
        rarity = xp.at_most(steps / seen, RAREST)  # at least 1: no group is seen more often than there are steps
        step = 0.5 * (ratio > 0) * (rarity + abs(integral))
        moved = integral + step * (INTEGRAL * rarity * drive)
        integral = positive_part(moved, num_equalities)
        ahead = integral + 0.5 * (rarity + abs(integral)) * (PROPORTIONAL * drive)
        ahead = positive_part(ahead, num_equalities)
        return (ratio * ahead, integral, smoothed, g, variance, square, largest_square, seen, turns), multipliers


@dataclass(frozen=True)
class Damped(Rule):
    r"""The augmented Lagrangian with tau = 0, a constant beta and a damped dual step.

    With :math:`\rho_i` the ratio of gradient norms of f and :math:`g_i` and :math:`G_i` the largest :math:`|g_i|` seen,

    .. math::
        \beta_i &= 0.1 k\, \rho_i / G_i \\
        \lambda_i &\leftarrow \lambda_i + \theta\,([\lambda_i + \beta_i g_i]_+ - \lambda_i), \qquad \theta = 0.1 \\
        w_i &= [\lambda_i + \beta_i g_i]_+

    Under noise a growing beta multiplies the noise, and a positive tau leaves constraints violated. G is the size of
    the first transient, not of the limit, so violations near the limit are integrated slowly.
    """

    dual_rate: float = 1.0
    damping: float = 0.1
    name: ClassVar[str] = "damped"
    vectors: ClassVar[dict[str, Entry]] = {"multipliers": Entry(), "size": Entry()}
    given: ClassVar[tuple[str, ...]] = ("ratio",)

    def __post_init__(self) -> None:
        check_positive(damping=self.damping)
        if self.damping > 1:
            raise ValueError(f"damping must lie in (0, 1], got {self.damping!r}")

    def scalars(self) -> dict[str, Entry]:
        return {**super().scalars(), "damping": Entry(float(self.damping), 0.0, 1.0, open_low=True)}

    def begin(self, dual: Entries) -> tuple[Any, Entries]:
        return (GAIN * dual["dual_rate"], dual["damping"]), {}

    def update(self, state: Row, given: Row, g: Number, shared: Any, num_equalities: int) -> tuple[Row, Number]:
        (multipliers, size), (ratio,), (rate, damping) = state, given, shared
        xp = functions(g)
        size = xp.where(ratio > 0, xp.maximum(size, xp.abs(g)), size)
        beta = rate * ratio / xp.where(size > 0, size, 1.0 + 0.0 * size)
        moved = AugmentedLagrangian(multipliers, beta, 0.0, num_equalities).damped(g, damping)
        return (moved, size), AugmentedLagrangian(moved, beta, 0.0, num_equalities).weights(g)
