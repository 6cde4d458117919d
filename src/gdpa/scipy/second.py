"""Second derivatives of SciPy's constraint objects: ``hess`` of the user, or differences of gradients."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from gdpa.base.typing import Vector
from gdpa.core.problem import Evaluation
from gdpa.numerics.sparse.matrix import FEW_COLUMNS, FEW_ROWS, SparseMatrix, is_sparse, read
from gdpa.oracles.hessian import HessianDifferences
from gdpa.scipy.blocks import LinearBlock
from gdpa.scipy.canonical import Canonical


def add_second_derivatives(canonical: Canonical, hess: Any, sparsity: Any) -> None:
    """Let the problem know its Hessian if it is large and sparse; warn about a ``hess`` that is of no use.

    The Hessian is exact if ``hess`` and those of all nonlinear constraints are given, and by differences of gradients
    if ``sparsity`` is given or the Jacobian of the constraints is sparse.

    Args:
        canonical: the problem.
        hess: the Hessian of the objective, ``hess(x, *args)``; None if it is not given.
        sparsity: which second derivatives of the Lagrangian may be nonzero; None if it is not known.
    """
    free = canonical.frame.free
    large = canonical.x0.shape[0] > FEW_COLUMNS
    if hess is not None and not (large and callable(hess) and is_sparse(_objective(canonical, hess, canonical.x0))):
        text = "gdpa.minimize does not use Hessian information (hess) unless it is a sparse array of more than"
        warnings.warn(f"{text} {FEW_COLUMNS} free variables", RuntimeWarning, stacklevel=3)
        hess = None
    if not large:
        return
    nonlinear = [block for block in canonical.blocks[1:] if not isinstance(block, LinearBlock)]
    if hess is not None and all(callable(block.hess) for block in nonlinear):
        canonical.hessian = lambda x, now: _with_exact(canonical, hess, x, now)
    elif sparsity is not None or len(canonical.index) > FEW_ROWS:
        if sparsity is not None and not free.all():
            sparsity = read(sparsity, "hess_sparsity").csr[free][:, free]
        plain = canonical.problem.evaluate
        differences = HessianDifferences(plain, canonical.domain, sparsity)
        canonical.hessian = differences.added


def _objective(canonical: Canonical, hess: Any, x: Vector) -> Any:
    return hess(canonical.frame.full(x), *canonical.blocks[0].args)


def _with_exact(canonical: Canonical, hess: Any, x: Vector, now: Evaluation) -> Evaluation:
    """Return the oracle call with the sum of the users' Hessians."""
    full, free = canonical.frame.full(x), canonical.frame.free

    def hessian(w: Vector, objective: float = 1.0) -> SparseMatrix:
        d = full.shape[0]
        total = objective * read(_objective(canonical, hess, x), "hess", (d, d)).csr
        for block, v in zip(canonical.blocks[1:], canonical.split(w), strict=True):
            if not isinstance(block, LinearBlock):
                raw = block.hess(full, v, *block.args)
                total = total + read(raw, f"the hess of {block.name}", (d, d)).csr
        return read(total if free.all() else total[np.flatnonzero(free)][:, np.flatnonzero(free)], "hess")

    f, g, pullback = now
    return Evaluation(f, g, pullback, now.jacobian, now.passes, hessian, 1, now.is_sparse)
