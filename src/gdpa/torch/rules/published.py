"""Rules without our units, most by other authors as they publish or run them: no calibration, their own constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gdpa.base.arrays import positive_part
from gdpa.base.checks import check_count, check_positive, check_share
from gdpa.core.lagrangian import AugmentedLagrangian, ascended, in_gate, shifted
from gdpa.torch.rules.base import LARGEST, Entries, Entry, Number, Row, Rule, functions


def barrier_slope(t: Number) -> Number:
    """Return phi'(t) of the quadratic-logarithmic penalty: 1 + t if t >= -1/2, else -1/(4 t).

    >>> barrier_slope(1.0), barrier_slope(-1.0)
    (2.0, 0.25)
    """
    xp = functions(t)
    return xp.where(t >= -0.5, 1.0 + t, 1.0 / xp.at_least(-4.0 * t, 2.0))  # -4 t is used for t < -1/2 alone


@dataclass(frozen=True)
class Paper(Rule):
    r"""Perturbed ascent, eq. (alg): :math:`\beta_r = \beta r^{1/3}`, :math:`\tau` fixed.

    .. math::
        [\lambda_r]_i &= [(1-\tau)\lambda_{r-1} + \beta_{r-1} g(x_r)]_{i,+} \text{ if } i \in S_{r-1},
            \text{ else } 0 \\
        w &= [q_r]_+, \quad q_r = (1-\tau)\lambda_r + \beta_r g(x_r), \quad S_r = \{i : [q_r]_i > 0\}

    Songtao Lu, "A Single-Loop Gradient Descent and Perturbed Ascent Algorithm for Nonconvex Functional Constrained
    Optimization", ICML 2022.
    """

    beta: Any = 1.0
    tau: Any = 0.1
    beta_power: float = 1 / 3
    name: ClassVar[str] = "paper"
    vectors: ClassVar[dict[str, Entry]] = {"multipliers": Entry(), "gate": Entry(False, 0, 1)}

    def scalars(self) -> dict[str, Entry]:
        return {
            "beta": Entry(self.beta, open_low=True),
            "beta_power": Entry(self.beta_power, -LARGEST),
            "beta_r": Entry(0.0),
            "tau": Entry(self.tau, 0.0, 1.0, open_low=True),
        }

    def begin(self, dual: Entries) -> tuple[Any, Entries]:
        done, beta, tau = dual["dual_steps"], dual["beta"], dual["tau"]
        if type(done) is int:  # numbers on the host; else all of them stay on the device
            beta, tau = float(beta), float(tau)
        beta = beta * (done + 1) ** dual["beta_power"]
        return (done, dual["beta_r"], beta, tau), {"beta_r": beta}

    def update(self, state: Row, given: Row, g: Number, shared: Any, num_equalities: int) -> tuple[Row, Number]:
        multipliers, gate = state
        done, beta_before, beta, tau = shared
        if type(done) is not int:  # a tensor on the device
            moved = ascended(multipliers, beta_before, tau, g, num_equalities, gate)
            multipliers = functions(g).where(done > 0, moved, multipliers)
        elif done:
            multipliers = ascended(multipliers, beta_before, tau, g, num_equalities, gate)
        q = shifted(multipliers, beta, tau, g)
        return (multipliers, in_gate(q, num_equalities)), positive_part(q, num_equalities)


@dataclass(frozen=True)
class NuPI(Rule):
    r"""The nu-PI controller of Sohrabi et al., "On PI controllers for updating Lagrange multipliers", ICML 2024.

    .. math::
        \xi_t &= \nu\, \xi_{t-1} + (1 - \nu)\, g_t, \qquad \xi_{-1} = 0 \\
        \lambda_{t+1} &= [\lambda_t + k\, (\kappa_i\, g_t + \kappa_p\, (\xi_t - \xi_{t-1}))]_+, \qquad w = \lambda_{t+1}

    ``integral`` and ``proportional`` are kappa_i and kappa_p; the defaults follow Cooper's tutorials (dual rate 0.01,
    Kp = 10 times it, nu = 0.9).
    """

    dual_rate: float = 1.0
    integral: float = 0.01
    proportional: float = 0.1
    nu: float = 0.9
    name: ClassVar[str] = "nupi"
    vectors: ClassVar[dict[str, Entry]] = {"multipliers": Entry(), "smoothed": Entry(0.0, -LARGEST)}

    def update(self, state: Row, given: Row, g: Number, shared: Any, num_equalities: int) -> tuple[Row, Number]:
        multipliers, smoothed = state
        change = (1 - self.nu) * (g - smoothed)
        drive = self.integral * g + self.proportional * change
        moved = AugmentedLagrangian(multipliers, shared, 0.0, num_equalities).ascend(drive)
        return (moved, smoothed + change), moved


@dataclass(frozen=True)
class SPBM(Rule):
    r"""The stochastic penalty-barrier method as humancompatible-train 0.4.2 runs it.

    With :math:`\varphi'` of `barrier_slope`, and :math:`\lambda, p` in the weight from before the batch,

    .. math::
        w &= \lambda\, \varphi'(g/p), \qquad
            \lambda \leftarrow \mathrm{clip}(\gamma_e \lambda + (1-\gamma_e)\, w,\; 10^{-9},\; 100) \\
        p &\leftarrow \mathrm{clip}\bigl(K_e\, p + (1-K_e)\, p / (\varphi'(g) + 10^{-8}),\; 0.1,\; 1\bigr) \\
        \gamma_e &= 1 - 1/(\sqrt e + 1/(1-\gamma_0)), \qquad K_e \text{ likewise}

    e counts epochs. Multipliers are positive throughout; it has no equalities. Its authors add the gradient
    mu (x - z) of a Moreau term to the primal step, with z moved by beta (x - z).

    Args:
        dual_rate: multiplies 1 - gamma_e, which stays below 1.
        gamma, mix: gamma_0 and K_0.
        epoch_length: batches in an epoch; None leaves gamma and K as they start.

    References:
        A. Bosak et al., "Stochastic Penalty-Barrier Methods for Constrained Machine Learning", arXiv 2605.18618.
        A. Ben-Tal, M. Zibulevsky, "Penalty/barrier multiplier methods for convex programming problems", SIAM J. Optim.
        1997.
    """

    dual_rate: float = 1.0
    gamma: float = 0.1
    mix: float = 0.1
    epoch_length: int | None = None
    name: ClassVar[str] = "spbm"
    signed: ClassVar[bool] = False
    vectors: ClassVar[dict[str, Entry]] = {"multipliers": Entry(1e-9, 0.0, 100.0), "penalties": Entry(1.0, 0.1, 1.0)}

    def __post_init__(self) -> None:
        check_share(gamma=self.gamma, mix=self.mix)
        if self.epoch_length is not None:
            check_count(1, epoch_length=self.epoch_length)

    def begin(self, dual: Entries) -> tuple[Any, Entries]:
        root = 0.0 if self.epoch_length is None else (dual["dual_steps"] // self.epoch_length) ** 0.5
        moves = (1 / (root + 1 / (1 - start)) for start in (self.gamma, self.mix))
        return (dual["dual_rate"], *moves), {}

    def update(self, state: Row, given: Row, g: Number, shared: Any, num_equalities: int) -> tuple[Row, Number]:
        (multipliers, p), (rate, move, mix), xp = state, shared, functions(g)
        w = multipliers * barrier_slope(g / p)
        gain = min(rate * move, 1.0) if type(move) is float else move.mul(rate).clamp(0.0, 1.0)
        moved = xp.at_most(xp.at_least(multipliers + gain * (w - multipliers), 1e-9), 100.0)
        wanted = p / (barrier_slope(g) + 1e-8)
        return (moved, xp.at_most(xp.at_least(p + mix * (wanted - p), 0.1), 1.0)), w


@dataclass(frozen=True)
class PenaltyBarrier(Rule):
    r"""A penalty-barrier method of our own, simpler than `SPBM`: its penalty falls by a fixed factor.

    With :math:`\varphi'` of `barrier_slope`,

    .. math::
        w_i &= \lambda_i\, \varphi'(g_i / p_i) \text{ with } \lambda, p \text{ from before the batch} \\
        \lambda_i &\leftarrow \gamma \lambda_i + (1-\gamma)\, w_i, \qquad p_i \leftarrow \max(K p_i, p_{\min})

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
    vectors: ClassVar[dict[str, Entry]] = {"multipliers": Entry(1e-2), "penalties": Entry(1.0)}

    def begin(self, dual: Entries) -> tuple[Any, Entries]:
        return min(0.1 * dual["dual_rate"], 1.0), {}

    def update(self, state: Row, given: Row, g: Number, shared: Any, num_equalities: int) -> tuple[Row, Number]:
        (multipliers, penalties), xp = state, functions(g)
        w = multipliers * barrier_slope(g / penalties)
        shrunk = xp.at_least(self.shrink * penalties, self.least_penalty)
        return (multipliers + shared * (w - multipliers), shrunk), w


@dataclass(frozen=True)
class SSLALM(Rule):
    r"""The dual side of SSL-ALM as humancompatible-train 0.4.2 runs it: the augmented Lagrangian with gain eta/rho.

    .. math::
        \lambda \leftarrow \mathrm{clip}\bigl(\lambda + \tfrac{\eta}{\rho}([\lambda + \rho g]_+ - \lambda),\; B\bigr),
            \qquad w = [\lambda + \rho g]_+ \text{ with the new } \lambda

    The smoothed primal step (see `SPBM`) is not part of the rule. In the paper J and g of the penalty come from
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

    def begin(self, dual: Entries) -> tuple[Any, Entries]:
        return self.step * dual["dual_rate"] / self.penalty, {}

    def update(self, state: Row, given: Row, g: Number, shared: Any, num_equalities: int) -> tuple[Row, Number]:
        (multipliers,) = state
        moved = AugmentedLagrangian(multipliers, self.penalty, 0.0, num_equalities).damped(g, shared)
        moved = functions(g).clip(moved, self.bound)
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
        K. Liu, J. Hu, Z. Qu, "Residual-Controlled Multiplier Learning for Stochastic Constrained Decision-Making",
        arXiv 2606.07088; we had its abstract alone, the form is our reading.
    """

    dual_rate: float = 1.0
    penalty: float = 1.0
    gain: float = 0.1
    name: ClassVar[str] = "rcml"

    def __post_init__(self) -> None:
        check_positive(penalty=self.penalty, gain=self.gain)

    def begin(self, dual: Entries) -> tuple[Any, Entries]:
        return min(self.gain * dual["dual_rate"], 1.0), {}

    def update(self, state: Row, given: Row, g: Number, shared: Any, num_equalities: int) -> tuple[Row, Number]:
        (memory,) = state
        w = AugmentedLagrangian(memory, self.penalty, 0.0, num_equalities).weights(g)
        return (memory + shared * (w - memory),), w


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

    def update(self, state: Row, given: Row, g: Number, shared: Any, num_equalities: int) -> tuple[Row, Number]:
        (multipliers,) = state
        w = AugmentedLagrangian(multipliers, self.penalty, 0.0, num_equalities).weights(g)
        return (AugmentedLagrangian(multipliers, self.step * shared, 0.0, num_equalities).ascend(g),), w
