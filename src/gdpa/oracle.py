"""The oracle as the loop sees it: counted, and checked against what it promised."""

from __future__ import annotations

from dataclasses import replace

from gdpa.arrays import is_floating, namespace
from gdpa.problem import Evaluation, Problem
from gdpa.typing import Array


class CountingOracle:
    """Counts forwards and backwards of a problem and checks the shape of everything that comes back.

    >>> import numpy as np
    >>> problem = Problem(lambda x: Evaluation(x @ x, x[:1], lambda w, objective=1.0: 2 * objective * x))
    >>> oracle = CountingOracle(problem)
    >>> _ = oracle.problem.evaluate(np.ones(2)).pullback(np.zeros(1))
    >>> oracle.forwards, oracle.backwards
    (1, 1)
    """

    def __init__(self, problem: Problem) -> None:
        self.forwards = 0
        self.backwards = 0
        self._inner = problem
        self._length = problem.num_constraints
        jacobian = None if problem.jacobian is None else self._jacobian
        self.problem = replace(problem, evaluate=self._evaluate, jacobian=jacobian)

    def _evaluate(self, x: Array) -> Evaluation:
        self.forwards += 1
        f, g, pullback = self._inner.evaluate(x)
        if getattr(g, "shape", None) != (*x.shape[:-1], self._length) or getattr(f, "shape", None) != x.shape[:-1]:
            self._check_values(x, f, g)

        def counted(w: Array, objective: float | Array = 1.0) -> Array:
            self.backwards += 1
            gradient = pullback(w, objective)
            if gradient.shape != x.shape:
                raise ValueError(
                    f"the pullback returned shape {tuple(gradient.shape)} for x of shape {tuple(x.shape)}; "
                    "objective * grad f + J^T w must have the shape of x"
                )
            return gradient

        return Evaluation(f, g, counted)

    def _jacobian(self, x: Array) -> Array:
        assert self._inner.jacobian is not None
        self.backwards += 1  # the problem says J costs about one backward pass
        J = self._inner.jacobian(x)
        if self._length is not None and J.shape != (*x.shape[:-1], self._length, x.shape[-1]):
            raise ValueError(
                f"the jacobian has shape {tuple(J.shape)}, expected {(*x.shape[:-1], self._length, x.shape[-1])}: "
                "one row for each constraint, one column for each component of x"
            )
        return J

    def _check_values(self, x: Array, f: Array, g: Array) -> None:
        for name, value in (("objective", f), ("constraints", g)):
            if not is_floating(value):
                raise TypeError(
                    f"the {name} must be a floating-point array of the library of x ({namespace(x).__name__}), "
                    f"got {type(value).__name__} {value!r}"
                )
        if f.shape != x.shape[:-1]:
            raise ValueError(
                f"the objective has shape {tuple(f.shape)}, expected {tuple(x.shape[:-1])}: one number per problem"
            )
        if g.ndim != x.ndim or g.shape[:-1] != x.shape[:-1]:
            raise ValueError(
                f"the constraints have shape {tuple(g.shape)}, expected {(*x.shape[:-1], 'm')}: "
                "return a vector even for a single constraint"
            )
        if self._length is None:
            self._length = g.shape[-1]
            replace(self._inner, num_constraints=self._length)  # names and equalities must fit this length
        elif g.shape[-1] != self._length:
            raise ValueError(f"the constraints have length {g.shape[-1]}, expected {self._length}")
