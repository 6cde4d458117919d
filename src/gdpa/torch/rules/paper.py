"""The paper's recursion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gdpa.base.arrays import positive_part
from gdpa.core.lagrangian import ascended, in_gate, shifted
from gdpa.torch.rules.base import LARGEST, Dual, Number, Rule, Scalar, Vector, functions


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
    vectors: ClassVar[dict[str, Vector]] = {"multipliers": Vector(), "gate": Vector(False, 0, 1)}

    def scalars(self) -> dict[str, Scalar]:
        return {
            "beta": Scalar(self.beta, open_low=True),
            "beta_power": Scalar(self.beta_power, -LARGEST),
            "beta_r": Scalar(0.0),
            "tau": Scalar(self.tau, 0.0, 1.0, open_low=True),
        }

    def begin(self, dual: Dual) -> tuple[Any, dict[str, Any]]:
        done, beta, tau = dual["dual_steps"], dual["beta"], dual["tau"]
        if type(done) is int:  # numbers on the host; else all of them stay on the device
            beta, tau = float(beta), float(tau)
        beta = beta * (done + 1) ** dual["beta_power"]
        return (done, dual["beta_r"], beta, tau), {"beta_r": beta}

    def update(
        self, state: tuple[Number, ...], given: tuple[Number, ...], g: Number, shared: Any, num_equalities: int
    ) -> tuple[tuple[Number, ...], Number]:
        multipliers, gate = state
        done, beta_before, beta, tau = shared
        if type(done) is not int:  # a tensor on the device
            moved = ascended(multipliers, beta_before, tau, g, num_equalities, gate)
            multipliers = functions(g).where(done > 0, moved, multipliers)
        elif done:
            multipliers = ascended(multipliers, beta_before, tau, g, num_equalities, gate)
        q = shifted(multipliers, beta, tau, g)
        return (multipliers, in_gate(q, num_equalities)), positive_part(q, num_equalities)
