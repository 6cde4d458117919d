"""Rules of other authors as they publish or run them, without our units: no calibration, their own constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from gdpa.base.checks import check_at_least, check_count, check_positive
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.torch.rules.base import Dual, Number, Rule, Scalar, Vector, functions


def barrier_slope(t: Number) -> Number:
    """Return phi'(t) of the quadratic-logarithmic penalty: 1 + t if t >= -1/2, else -1/(4 t).

    >>> barrier_slope(1.0), barrier_slope(-1.0)
    (2.0, 0.25)
    """
    xp = functions(t)
    return xp.where(t >= -0.5, 1.0 + t, 1.0 / xp.at_least(-4.0 * t, 2.0))  # -4 t is used for t < -1/2 alone


@dataclass(frozen=True)
class SPBM(Rule):
    r"""The stochastic penalty-barrier method as humancompatible-train 0.4.2 runs it.

    With :math:`\varphi'` of `barrier_slope`, and :math:`\lambda, p` in the weight from before the batch,

    .. math::
        w &= \lambda\, \varphi'(g/p), \qquad
            \lambda \leftarrow \mathrm{clip}(\gamma_e \lambda + (1-\gamma_e)\, w,\; 10^{-9},\; 100) \\
        p &\leftarrow \mathrm{clip}\bigl(K_e\, p + (1-K_e)\, p / (\varphi'(g) + 10^{-8}),\; 0.1,\; 1\bigr) \\
        \gamma_e &= 1 - 1/(\sqrt e + 1/(1-\gamma_0)), \qquad K_e \text{ likewise}

    e counts epochs. Multipliers are positive throughout; it has no equalities. Its authors add a Moreau term to the
    primal step: `add_moreau_term`.

    Args:
        dual_rate: multiplies 1 - gamma_e, which stays below 1.
        gamma, mix: gamma_0 and K_0.
        epoch_length: batches in an epoch; None leaves gamma and K as they start.

    References:
        arXiv 2605.18618. A. Ben-Tal, M. Zibulevsky, "Penalty/barrier multiplier methods for convex programming
        problems", SIAM J. Optim. 1997.
    """

    dual_rate: float = 1.0
    gamma: float = 0.1
    mix: float = 0.1
    epoch_length: int | None = None
    name: ClassVar[str] = "spbm"
    signed: ClassVar[bool] = False
    vectors: ClassVar[dict[str, Vector]] = {
        "multipliers": Vector(1e-9, 0.0, 100.0),
        "penalties": Vector(1.0, 0.1, 1.0),
    }

    def __post_init__(self) -> None:
        for name in ("gamma", "mix"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)!r}")
        if self.epoch_length is not None:
            check_count(1, epoch_length=self.epoch_length)

    def scalars(self) -> dict[str, Scalar]:
        return {"dual_rate": Scalar(float(self.dual_rate), open_low=True)}

    def begin(self, dual: Dual) -> tuple[Any, dict[str, Any]]:
        root = 0.0 if self.epoch_length is None else (dual["dual_steps"] // self.epoch_length) ** 0.5
        moves = (1 / (root + 1 / (1 - start)) for start in (self.gamma, self.mix))
        return (dual["dual_rate"], *moves), {}

    def update(
        self, state: tuple[Number, ...], given: tuple[Number, ...], g: Number, shared: Any, num_equalities: int
    ) -> tuple[tuple[Number, ...], Number]:
        (multipliers, p), (rate, move, mix), xp = state, shared, functions(g)
        w = multipliers * barrier_slope(g / p)
        gain = min(rate * move, 1.0) if type(move) is float else xp.clip(rate * move, 0.0, 1.0)
        moved = xp.clip(multipliers + gain * (w - multipliers), 1e-9, 100.0)
        wanted = p / (barrier_slope(g) + 1e-8)
        return (moved, xp.clip(p + mix * (wanted - p), 0.1, 1.0)), w


@dataclass(frozen=True)
class SSLALM(Rule):
    r"""The dual side of SSL-ALM as humancompatible-train 0.4.2 runs it: the augmented Lagrangian with gain eta/rho.

    .. math::
        \lambda \leftarrow \mathrm{clip}\bigl(\lambda + \tfrac{\eta}{\rho}([\lambda + \rho g]_+ - \lambda),\; B\bigr),
            \qquad w = [\lambda + \rho g]_+ \text{ with the new } \lambda

    The smoothed primal step of the method is `add_moreau_term`. In the paper J and g of the penalty come from
    independent samples: `TwoSample` does that.

    Args:
        dual_rate: multiplies eta.
        step, penalty, bound: eta, rho and B.

    References:
        R. Huang, J. Zhang, A. Alacaoglu, "Stochastic smoothed primal-dual algorithms for nonconvex optimization with
        linear inequality constraints", arXiv 2504.07607.
    """

    dual_rate: float = 1.0
    step: float = 0.05
    penalty: float = 1.0
    bound: float = 100.0
    name: ClassVar[str] = "ssl-alm"

    def __post_init__(self) -> None:
        check_positive(step=self.step, penalty=self.penalty, bound=self.bound)

    def scalars(self) -> dict[str, Scalar]:
        return {"dual_rate": Scalar(float(self.dual_rate), open_low=True)}

    def begin(self, dual: Dual) -> tuple[Any, dict[str, Any]]:
        return self.step * dual["dual_rate"] / self.penalty, {}

    def update(
        self, state: tuple[Number, ...], given: tuple[Number, ...], g: Number, shared: Any, num_equalities: int
    ) -> tuple[tuple[Number, ...], Number]:
        (multipliers,) = state
        moved = AugmentedLagrangian(multipliers, self.penalty, 0.0, num_equalities).damped(g, shared)
        moved = functions(g).clip(moved, -self.bound, self.bound)
        return (moved,), AugmentedLagrangian(moved, self.penalty, 0.0, num_equalities).weights(g)


@dataclass(frozen=True)
class RCML(Rule):
    r"""Pressure and memory with a constant gain, the family of docs/theory.md: a low-pass against minibatch noise.

    .. math::
        w = [\mu + \kappa g]_+, \qquad \mu \leftarrow \mu + \eta (w - \mu)

    `Damped` is this rule in units of the gradients, with the weight of the new memory.

    Args:
        dual_rate: multiplies eta, which stays below 1.
        penalty, gain: kappa and eta.

    References:
        RCML ("pressure, memory, residual"), arXiv 2606.07088; we had its abstract alone, the form is our reading.
    """

    dual_rate: float = 1.0
    penalty: float = 1.0
    gain: float = 0.1
    name: ClassVar[str] = "rcml"

    def __post_init__(self) -> None:
        check_positive(penalty=self.penalty, gain=self.gain)

    def scalars(self) -> dict[str, Scalar]:
        return {"dual_rate": Scalar(float(self.dual_rate), open_low=True)}

    def begin(self, dual: Dual) -> tuple[Any, dict[str, Any]]:
        return min(self.gain * dual["dual_rate"], 1.0), {}

    def update(
        self, state: tuple[Number, ...], given: tuple[Number, ...], g: Number, shared: Any, num_equalities: int
    ) -> tuple[tuple[Number, ...], Number]:
        (memory,) = state
        w = AugmentedLagrangian(memory, self.penalty, 0.0, num_equalities).weights(g)
        return (memory + shared * (w - memory),), w


def add_moreau_term(base: torch.optim.Optimizer, mu: float = 2.0, beta: float = 0.5) -> torch.optim.Optimizer:
    r"""Have ``base`` add :math:`\mu (x - z)` to the gradient before each step, then move z by :math:`\beta (x - z)`.

    z starts at x. SPBM and SSL-ALM smooth their primal step so. It is a hook: z is not part of ``state_dict``.

    Args:
        base: the optimizer to give to `constrain`.
        mu, beta: the weight of the term and the step of its center.

    Example:
        >>> x = torch.nn.Parameter(torch.ones(1))
        >>> base = add_moreau_term(torch.optim.SGD([x], lr=0.5))
        >>> for _ in range(2):
        ...     x.grad = torch.ones(1)
        ...     base.step()
        >>> x.item()  # 1 - (1 + 0)/2 = 0.5, then z = 1: 0.5 - (1 + 2 (0.5 - 1))/2
        0.5
    """
    check_at_least(0, mu=mu, beta=beta)
    centers = [[p.detach().clone() for p in group["params"]] for group in base.param_groups]

    @torch.no_grad()
    def smooth(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group, kept in zip(optimizer.param_groups, centers, strict=True):
            for p, z in zip(group["params"], kept, strict=True):
                if p.grad is not None:
                    p.grad.add_(p - z, alpha=mu)
                    z.add_(p - z, alpha=beta)

    base.register_step_pre_hook(smooth)
    return base
