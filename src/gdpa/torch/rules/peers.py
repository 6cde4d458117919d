"""Rules of other authors, for comparison inside one optimizer. They have no calibration: their gains have units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.torch.rules.base import LARGEST, Dual, Number, Rule, Scalar, Vector, functions
from gdpa.torch.rules.published import barrier_slope


@dataclass(frozen=True)
class NuPI(Rule):
    r"""The nu-PI controller of Sohrabi et al., "On PI controllers for updating Lagrange multipliers", ICML 2024.

    .. math::
        \xi_t &= \nu\, \xi_{t-1} + (1 - \nu)\, g_t, \qquad \xi_{-1} = 0 \\
        \lambda_{t+1} &= [\lambda_t + k\, (\kappa_i\, g_t + \kappa_p\, (\xi_t - \xi_{t-1}))]_+, \qquad w = \lambda_{t+1}

    Args:
        dual_rate: k, which multiplies both gains.
        integral, proportional, nu: kappa_i, kappa_p and nu; the defaults follow Cooper's tutorials (dual rate
            0.01, Kp = 10 times it, nu = 0.9).
    """

    dual_rate: float = 1.0
    integral: float = 0.01
    proportional: float = 0.1
    nu: float = 0.9
    name: ClassVar[str] = "nupi"
    vectors: ClassVar[dict[str, Vector]] = {"multipliers": Vector(), "smoothed": Vector(0.0, -LARGEST)}

    def scalars(self) -> dict[str, Scalar]:
        return {"dual_rate": Scalar(float(self.dual_rate), open_low=True)}

    def begin(self, dual: Dual) -> tuple[Any, dict[str, Any]]:
        return dual["dual_rate"], {}

    def update(
        self, state: tuple[Number, ...], given: tuple[Number, ...], g: Number, shared: Any, num_equalities: int
    ) -> tuple[tuple[Number, ...], Number]:
        multipliers, smoothed = state
        change = (1 - self.nu) * (g - smoothed)
        drive = self.integral * g + self.proportional * change
        moved = AugmentedLagrangian(multipliers, shared, 0.0, num_equalities).ascend(drive)
        return (moved, smoothed + change), moved


@dataclass(frozen=True)
class PenaltyBarrier(Rule):
    r"""A penalty-barrier method of our own, simpler than `SPBM`: its penalty falls by a fixed factor.

    With :math:`\varphi'` of `gdpa.torch.rules.published.barrier_slope`,

    .. math::
        w_i &= \lambda_i\, \varphi'(g_i / p_i) \text{ with } \lambda, p \text{ from before the batch} \\
        \lambda_i &\leftarrow \gamma \lambda_i + (1-\gamma)\, w_i, \qquad p_i \leftarrow \max(K p_i, p_{\min})

    Ben-Tal and Zibulevsky, "Penalty/barrier multiplier methods for convex programming problems", SIAM J. Optim. 1997.
    Multipliers are positive throughout. It has no equalities.

    Args:
        dual_rate: 1 - gamma is 0.1 times it, at most 1.
        shrink, least_penalty: the factor K of a step, and the smallest p. The first p is 1, the first multipliers 0.01.
    """

    dual_rate: float = 1.0
    shrink: float = 0.999
    least_penalty: float = 0.1
    name: ClassVar[str] = "penalty-barrier"
    signed: ClassVar[bool] = False
    vectors: ClassVar[dict[str, Vector]] = {"multipliers": Vector(1e-2), "penalties": Vector(1.0)}

    def scalars(self) -> dict[str, Scalar]:
        return {"dual_rate": Scalar(float(self.dual_rate), open_low=True)}

    def begin(self, dual: Dual) -> tuple[Any, dict[str, Any]]:
        return min(0.1 * dual["dual_rate"], 1.0), {}

    def update(
        self, state: tuple[Number, ...], given: tuple[Number, ...], g: Number, shared: Any, num_equalities: int
    ) -> tuple[tuple[Number, ...], Number]:
        (multipliers, penalties), xp = state, functions(g)
        w = multipliers * barrier_slope(g / penalties)
        shrunk = xp.at_least(self.shrink * penalties, self.least_penalty)
        return (multipliers + shared * (w - multipliers), shrunk), w


@dataclass(frozen=True)
class TwoSample(Rule):
    r"""SSL-ALM's two samples: an augmented Lagrangian whose weights come from a second, independent sample.

    .. math::
        w_i = [\lambda_i + \rho\, g_i(\zeta')]_+, \qquad
        \lambda_i \leftarrow [\lambda_i + k\, \eta\, g_i(\zeta')]_+

    while :math:`\nabla g_i` is taken on :math:`\zeta`: ``opt.lagrangian(f, g, true=g_of_second_sample)``. Weight and
    gradient are then independent and the gradient of the augmented Lagrangian is unbiased if the weight is positive.
    Huang, Zhang and Alacaoglu, "Stochastic smoothed primal-dual algorithms for nonconvex optimization with linear
    inequality constraints", 2025. The method's proximal term in x is not part of the rule.
    """

    dual_rate: float = 1.0
    step: float = 0.01
    penalty: float = 1.0
    name: ClassVar[str] = "two-sample"

    def scalars(self) -> dict[str, Scalar]:
        return {"dual_rate": Scalar(float(self.dual_rate), open_low=True)}

    def begin(self, dual: Dual) -> tuple[Any, dict[str, Any]]:
        return self.step * dual["dual_rate"], {}

    def update(
        self, state: tuple[Number, ...], given: tuple[Number, ...], g: Number, shared: Any, num_equalities: int
    ) -> tuple[tuple[Number, ...], Number]:
        (multipliers,) = state
        w = AugmentedLagrangian(multipliers, self.penalty, 0.0, num_equalities).weights(g)
        return (AugmentedLagrangian(multipliers, shared, 0.0, num_equalities).ascend(g),), w
