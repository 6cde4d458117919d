"""The model of F_beta that an SQP step minimizes, dense or sparse."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import array_api_compat
import numpy as np

from gdpa._arrays import from_numpy, namespace, to_numpy
from gdpa._problem import Problem
from gdpa._typing import Array
from gdpa.algorithms.adaptive.state import AdaptiveState, largest_violation, step_bounds
from gdpa.lagrangian import AugmentedLagrangian
from gdpa.numerics.dense import Matrix, to_float64
from gdpa.numerics.lbfgs import LBFGS
from gdpa.numerics.model import ModelStep, model_step
from gdpa.numerics.sparse import SparseMatrix
from gdpa.numerics.sparse_model import stiffened_step
from gdpa.numerics.sparse_program import Quadratic


class Model(NamedTuple):
    """The model at x, for any lambda and beta.

    Attributes:
        curvature: B.
        c, J, g: grad f', J' and g'.
        bounds: how far each coordinate may move down and up; None for the whole space.
        evaluated: which rows of J were evaluated; None if all were. The others are zero and no part of the model.
    """

    curvature: LBFGS
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
        some = None if isinstance(J, SparseMatrix) or evaluated.all() else evaluated
        return cls(state.curvature, c, J, g, step_bounds(problem.domain, state.x), some)

    def step(self, F: AugmentedLagrangian) -> ModelStep:
        """Return the model's step. A constraint without a row has the multiplier beta [r]_+."""
        r, p = F.shifted(self.g) / F.beta, F.num_equalities
        if isinstance(self.J, SparseMatrix):
            B, gradient = Quadratic.of(self.curvature, len(self.c)), self.c + F.weights(self.g) @ self.J
            violation = partial(largest_violation, num_equalities=p)
            return stiffened_step(B, self.c, self.J, self.g, r, F.beta, gradient, violation, p, self.bounds)
        if self.evaluated is None:
            return model_step(self.curvature, self.c, self.J, r, F.beta, p, self.bounds)
        xp = namespace(self.J)
        index = xp.asarray(np.flatnonzero(self.evaluated), device=array_api_compat.device(self.J))
        rows, offsets = xp.take(self.J, index, axis=0), xp.take(r, index, axis=0)
        step = model_step(self.curvature, self.c, rows, offsets, F.beta, p, self.bounds)
        multipliers = F.beta * np.maximum(to_float64(r), 0.0)
        multipliers[self.evaluated] = to_float64(step.multipliers)
        return ModelStep(step.direction, from_numpy(multipliers, self.c))
