"""The model of F_beta that an SQP step minimizes, dense or sparse.

References:
    S. J. Wright, "Superlinear convergence of a stabilized SQP method to a degenerate solution", Computational
    Optimization and Applications 11 (1998).
"""

from __future__ import annotations

from typing import NamedTuple

import array_api_compat
import numpy as np

from gdpa.base.arrays import dot, every, from_numpy, matmul, namespace, to_numpy
from gdpa.base.typing import Array
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.core.problem import Problem
from gdpa.methods.adaptive.rules import Rules
from gdpa.methods.adaptive.state import AdaptiveState, largest_violation, step_bounds
from gdpa.numerics.dense import Matrix, to_float64
from gdpa.numerics.lbfgs import LBFGS
from gdpa.numerics.model import ModelStep, model_step
from gdpa.numerics.sparse.matrix import SparseMatrix
from gdpa.numerics.sparse.model import sparse_model_step
from gdpa.numerics.sparse.program import STIFFER, Quadratic


class Model(NamedTuple):
    """The model at x, for any lambda and beta.

    Attributes:
        curvature: B, in the form that the algebra of the step takes.
        c, J, g: grad f', J' and g'.
        bounds: how far each coordinate may move down and up; None for the whole space.
        evaluated: which rows of J were evaluated; None if all were. The others are zero and no part of the model.
    """

    curvature: LBFGS | Quadratic
    c: Array
    J: Array
    g: Array
    bounds: tuple[Array, Array] | None
    evaluated: Matrix | None

    @classmethod
    def at(cls, problem: Problem, state: AdaptiveState, c: Array, J: Array, g: Array, sizes: Array) -> Model:
        """Return the model at the x of the state; ``sizes`` are the largest components of the rows of J."""
        evaluated = to_numpy(sizes) != 0
        evaluated[len(evaluated) - problem.num_equalities :] = True
        part = None if isinstance(J, SparseMatrix) or every(evaluated) else evaluated
        B = Quadratic.of(state.curvature, len(c)) if isinstance(J, SparseMatrix) else state.curvature
        return cls(B, c, J, g, step_bounds(problem.domain, state.x), part)

    def step(self, F: AugmentedLagrangian, rules: Rules) -> ModelStep:
        """Return the step of the model, near the constraints that of a stiff one if F_beta is to fall along it, too."""
        return self.chosen(F, self.stiff(F, rules), rules)

    def stiff(self, F: AugmentedLagrangian, rules: Rules) -> ModelStep | None:
        """Return the step with beta_max in place of beta, whatever beta is; None if x is not near the constraints.

        The weight 1 / beta of the multipliers in the model's dual makes them converge linearly. With beta_max in place
        of beta they converge as those of SQP do (Wright 1998: superlinear convergence asks for a weight that vanishes).
        The multipliers of a long chain converge slowly with beta_max, too, so a sparse model with that has `STIFFER`
        times its beta.
        """
        beta = rules.largest_beta
        if F.beta >= beta and isinstance(self.curvature, Quadratic):
            beta = STIFFER * F.beta
        if largest_violation(self.g, F.num_equalities) < rules.near and F.beta < beta:
            return self._minimized(F._replace(beta=beta), interior=False)
        return None

    def chosen(
        self, F: AugmentedLagrangian, stiff: ModelStep | None, rules: Rules, near: ModelStep | None = None
    ) -> ModelStep:
        """Return the stiff step if F_beta is to fall along it, the model's own step otherwise.

        A step along which the model of F_beta rises would be cut short, and the multipliers would stay wrong. With
        beta_max a slope down is enough: the multipliers of a sparse model are taken whole however short the step is.
        A sparse model begins at ``near``, its step with a smaller beta.
        """
        stiffest = F.beta >= rules.largest_beta
        if stiff is None or (stiffest and not isinstance(self.curvature, Quadratic)):
            return self._minimized(F, near)
        change = dot(self.gradient(F), stiff.direction) if stiffest else self.change(F, stiff)
        return stiff if change < 0 else self._minimized(F, near)  # the change along a step that is NaN is not below 0

    def gradient(self, F: AugmentedLagrangian) -> Array:
        """Return the gradient of F_beta at x, which is also that of its model at p = 0."""
        return self.c + matmul(F.weights(self.g), self.J)

    def change(self, F: AugmentedLagrangian, step: ModelStep) -> float:
        """Return the change of the model of F_beta along a step p: grad f'p + p'Bp/2 is added to f, and Jp to g.

        The step minimizes a model of another penalty. Without bounds, Bp + grad f + J'l = 0 there gives p'Bp, unless
        B of a sparse model was shifted.
        """
        p = step.direction
        if self.bounds is None and not isinstance(self.curvature, Quadratic):
            curvature = -dot(self.c + matmul(step.multipliers, self.J), p)
        else:
            curvature = dot(p, self.curvature.product(p))
        f = dot(self.c, p) + curvature / 2
        return f + float(F.value(0.0, self.g + matmul(self.J, p)) - F.value(0.0, self.g))

    def _minimized(self, F: AugmentedLagrangian, near: ModelStep | None = None, interior: bool = True) -> ModelStep:
        """Return the minimizer of the model. A constraint without a row has the multiplier beta [r]_+.

        Without ``interior`` it is NaN if the model is sparse and takes an interior-point method.
        """
        r, p = F.shifted(self.g) / F.beta, F.num_equalities
        if isinstance(self.curvature, Quadratic):
            return sparse_model_step(self.curvature, self.c, self.J, r, F.beta, p, self.bounds, interior, near)
        if self.evaluated is None:
            return model_step(self.curvature, self.c, self.J, r, F.beta, p, self.bounds)
        xp = namespace(self.J)
        index = xp.asarray(np.flatnonzero(self.evaluated), device=array_api_compat.device(self.J))
        rows, offsets = xp.take(self.J, index, axis=0), xp.take(r, index, axis=0)
        step = model_step(self.curvature, self.c, rows, offsets, F.beta, p, self.bounds)
        multipliers = F.beta * np.maximum(to_float64(r), 0.0)
        multipliers[self.evaluated] = to_float64(step.multipliers)
        return ModelStep(step.direction, from_numpy(multipliers, self.c))
