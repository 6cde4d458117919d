"""The model of stabilized SQP as one small quadratic program, solved by the C library daqp if it is installed."""

from __future__ import annotations

import functools
import importlib
from typing import Any, NamedTuple

import numpy as np

from gdpa.base.arrays import all_finite
from gdpa.numerics.dense import Matrix
from gdpa.numerics.qp import WORKING_SET

#: daqp's tolerance on the constraints. Its own 1e-6 would hide the last digits of a step near a solution.
PRIMAL_TOLERANCE = 1e-14


@functools.cache
def _library() -> Any:
    """Return daqp, or None if it is not installed.

    D. Arnstrom, A. Bemporad and D. Axehill, "A dual active-set solver for embedded quadratic programming using
    recursive LDL^T updates", IEEE Transactions on Automatic Control 67 (2022).
    """
    try:
        library = importlib.import_module("daqp")
    except ImportError:
        return None
    return library if hasattr(library, "solve") else None  # a folder of that name is no library


class _Program(NamedTuple):
    """The parts of a program that depend on its size alone."""

    H: Matrix
    f: Matrix
    A: Matrix
    lower: Matrix
    upper: Matrix


@functools.lru_cache(maxsize=16)
def _empty_program(d: int, m: int) -> _Program:
    """Return the program of d variables and m constraints before B, c, J, r and bounds are written into it."""
    none = np.full(d + 2 * m, np.inf)
    return _Program(np.eye(d + m), np.zeros(d + m), np.zeros((m, d + m)), -none, none)


def elastic_qp(
    B: Matrix,
    c: Matrix,
    J: Matrix,
    r: Matrix,
    beta: float,
    num_equalities: int,
    bounds: tuple[Matrix, Matrix] | None,
) -> tuple[Matrix, Matrix] | None:
    """Return p and l of `gdpa.numerics.model.model_step`, or None if there is no solver for this size, or it fails.

    With v = sqrt(beta) [r + J p]_+ the model is a strictly convex program with linear constraints::

        min  c'p + p'Bp/2 + v'v/2   subject to   J p - v / sqrt(beta) <= -r  (= for equalities),  lower <= p <= upper

    >>> elastic_qp(np.eye(1), np.array([-2.0]), np.eye(1), np.array([-0.5]), 1e6, 0, None) is None or True
    True
    """
    library = _library()
    m, d = J.shape
    n = d + m
    if library is None or max(d, m) > WORKING_SET:
        return None
    program = _empty_program(d, m)
    H, f, A, lower, upper = program.H.copy(), program.f.copy(), program.A.copy(), program.lower, program.upper.copy()
    H[:d, :d], f[:d], upper[n:], A[:, :d] = B, c, -r, J
    A.ravel()[d :: n + 1] = -(beta**-0.5)
    if num_equalities or bounds is not None:
        lower = lower.copy()
    if num_equalities:
        lower[-num_equalities:] = upper[-num_equalities:]
    if bounds is not None:
        lower[:d], upper[:d] = bounds
    try:
        solution, _, flag, info = library.solve(H, f, A, upper, lower, primal_tol=PRIMAL_TOLERANCE, eps_prox=0.0)
    except ValueError:  # not finite
        return None
    if flag != 1 or not all_finite(solution):
        return None
    p, multipliers = solution[:d], info["lam"]
    if bounds is not None:  # a bound that pushes is met to the last bit: near it is no KKT point
        lower, upper, push = lower[:d], upper[:d], multipliers[:d]
        p = np.where(push < 0, lower, np.where(push > 0, upper, np.minimum(np.maximum(p, lower), upper)))
    return p, multipliers[n:]
