"""The step of phase 2 if the Jacobian is sparse."""

from __future__ import annotations

from gdpa._typing import Array
from gdpa.algorithms.adaptive.state import largest_violation
from gdpa.lagrangian import AugmentedLagrangian
from gdpa.numerics.model import ModelStep
from gdpa.numerics.sparse import SparseMatrix
from gdpa.numerics.sparse_model import settled_step, sparse_model_step
from gdpa.numerics.sparse_program import Quadratic

#: If a sparse step leaves more than LINEAR of a violation below NEAR, it is tried with STIFFER times the penalty.
LINEAR, NEAR, STIFFER = 1e-3, 1e-4, 1e4


def sparse_step(
    B: Quadratic, F: AugmentedLagrangian, c: Array, J: SparseMatrix, g: Array, bounds: tuple[Array, Array] | None
) -> ModelStep:
    """Return the model's step for a sparse J, with a stiffer penalty than F_beta's if that descends on F_beta, too.

    A weak penalty regularizes the multipliers, and they converge linearly; those of a long chain very slowly.
    """
    p = F.num_equalities
    step = sparse_model_step(B, c, J, F.shifted(g) / F.beta, F.beta, p, bounds)
    before, left = largest_violation(g, p), largest_violation(g + J @ step.direction, p)
    if left <= LINEAR * before or before > NEAR:
        return step
    stiff = F._replace(beta=STIFFER * F.beta)
    other = settled_step(B, c, J, stiff.shifted(g) / stiff.beta, stiff.beta, p, bounds)
    descends = other is not None and float((c + F.weights(g) @ J) @ other.direction) < 0
    return other if other is not None and descends else step
