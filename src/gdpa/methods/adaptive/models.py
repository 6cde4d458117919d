"""The model of F_beta that an SQP step minimizes, dense or sparse.

References:
    S. J. Wright, "Superlinear convergence of a stabilized SQP method to a degenerate solution", Computational
    Optimization and Applications 11 (1998).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gdpa.base.arrays import dot, matmul
from gdpa.base.typing import Array
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.methods.adaptive.rules import Rules
from gdpa.methods.adaptive.scaling import ScaledProblem
from gdpa.methods.adaptive.state import AdaptiveState, largest_violation
from gdpa.numerics.lbfgs import LBFGS
from gdpa.numerics.model import ModelStep, model_step
from gdpa.numerics.qp import WORKING_SET
from gdpa.numerics.sparse.matrix import filled, is_sparse
from gdpa.numerics.sparse.model import sparse_model_step
from gdpa.numerics.sparse.program import STIFFER, Quadratic


@dataclass(frozen=True)
class Model:
    """The model at x, for any lambda and beta.

    Attributes:
        c, J, g: grad f', J' and g'.
        bounds: how far each coordinate may move down and up; None for the whole space.
    """

    c: Array
    J: Array
    g: Array
    bounds: tuple[Array, Array] | None

    def minimize(self, F: AugmentedLagrangian, near: ModelStep | None = None, interior: bool = True) -> ModelStep:
        """Return the minimizer of the model.

        Args:
            F: lambda and beta.
            near: the minimizer with a smaller beta, as a first guess.
            interior: without it the step is NaN if it takes an interior-point method.
        """
        raise NotImplementedError

    def bend(self, step: ModelStep) -> float:
        """Return p'Bp of a step p that minimizes the model of some penalty."""
        raise NotImplementedError

    def stiffest(self, F: AugmentedLagrangian, rules: Rules) -> float:
        """Return the beta of a stiff model."""
        return rules.largest_beta

    @property
    def fits_multipliers(self) -> bool:
        """Whether the best multipliers for x are quickly found: more than a working set holds take too long."""
        return False

    def step(self, F: AugmentedLagrangian, rules: Rules) -> ModelStep:
        """Return the step of the model, near the constraints a stiff one if F_beta is to fall along it, too."""
        return self.choose(F, self.stiff(F, rules), rules)

    def stiff(self, F: AugmentedLagrangian, rules: Rules) -> ModelStep | None:
        """Return the step with beta_max in place of beta, whatever beta is; None if x is not near the constraints.

        The weight 1 / beta of the multipliers in the model's dual makes them converge linearly. With beta_max in place
        of beta they converge as in SQP (Wright 1998: superlinear convergence asks for a weight that vanishes).
        """
        beta = self.stiffest(F, rules)
        if largest_violation(self.g, F.num_equalities) < rules.near and F.beta < beta:
            return self.minimize(F.stiffened(np.inf, beta), interior=False)
        return None

    def choose(
        self, F: AugmentedLagrangian, stiff: ModelStep | None, rules: Rules, near: ModelStep | None = None
    ) -> ModelStep:
        """Return the stiff step if F_beta is to fall along it, the model's own step otherwise.

        A step along which the model of F_beta rises would be cut short, and the multipliers would stay wrong. With
        beta_max a slope down is enough: the multipliers of a sparse model are taken whole however short the step is.
        """
        if stiff is None or F.beta >= self.stiffest(F, rules):
            return self.minimize(F, near)
        change = dot(self.gradient(F), stiff.direction) if F.beta >= rules.largest_beta else self.change(F, stiff)
        return stiff if change < 0 else self.minimize(F, near)  # the change along a step that is NaN is not below 0

    def gradient(self, F: AugmentedLagrangian) -> Array:
        """Return the gradient of F_beta at x, which is also the gradient of its model at p = 0."""
        return self.c + matmul(F.weights(self.g), self.J)

    def change(self, F: AugmentedLagrangian, step: ModelStep) -> float:
        """Return the change of the model of F_beta along a step p: grad f'p + p'Bp/2 is added to f, and Jp to g."""
        p = step.direction
        f = dot(self.c, p) + self.bend(step) / 2
        return f + float(F.value(0.0, self.g + matmul(self.J, p)) - F.value(0.0, self.g))


@dataclass(frozen=True)
class DenseModel(Model):
    """The model with a dense Jacobian and a limited-memory BFGS matrix."""

    B: LBFGS

    def minimize(self, F: AugmentedLagrangian, near: ModelStep | None = None, interior: bool = True) -> ModelStep:
        r, p = F.shifted(self.g) / F.beta, F.num_equalities
        return model_step(self.B, self.c, self.J, r, F.beta, p, self.bounds)

    def bend(self, step: ModelStep) -> float:
        p = step.direction
        if self.bounds is None:  # Bp + grad f + J'l = 0
            return -dot(self.c + matmul(step.multipliers, self.J), p)
        return dot(p, self.B.product(p))

    @property
    def fits_multipliers(self) -> bool:
        return bool(self.g.shape[-1] <= WORKING_SET)


@dataclass(frozen=True)
class SparseModel(Model):
    """The model with a sparse Jacobian and a sparse matrix with a low rank.

    The multipliers of a long chain converge slowly with beta_max, too, so its stiff model has a beta that is `STIFFER`
    times larger then.
    """

    B: Quadratic

    def minimize(self, F: AugmentedLagrangian, near: ModelStep | None = None, interior: bool = True) -> ModelStep:
        r, p = F.shifted(self.g) / F.beta, F.num_equalities
        return sparse_model_step(self.B, self.c, self.J, r, F.beta, p, self.bounds, interior, near)

    def bend(self, step: ModelStep) -> float:
        return dot(step.direction, self.B.product(step.direction))

    def stiffest(self, F: AugmentedLagrangian, rules: Rules) -> float:
        return STIFFER * F.beta if F.beta >= rules.largest_beta else rules.largest_beta


def model_at(problem: ScaledProblem, state: AdaptiveState, c: Array, J: Array, g: Array) -> Model:
    """Return the model at the x of the state; a row of zeros was not evaluated and takes no part in it."""
    bounds = problem.step_bounds(state.z)
    if is_sparse(J) or state.hessian is not None:
        J = J if is_sparse(J) else filled(J)
        return SparseModel(c, J, g, bounds, Quadratic.of(state.curvature, state.hessian, len(c)))
    return DenseModel(c, J, g, bounds, state.curvature)
