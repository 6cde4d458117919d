"""Problems with linear equality constraints and boxes, each with the arithmetic that certifies its answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gdpa import REALS, Box, ConvexSet, add_slacks, from_functions, problems


def _linear(
    name: str,
    f: Any,
    gradient: Any,
    A: Any,
    b: Any,
    x0: Any,
    solution: Any,
    multipliers: Any,
    domain: ConvexSet,
    why: str,
) -> problems.TestProblem:
    A, b = np.array(A, dtype=float), np.array(b, dtype=float)
    problem = from_functions(
        f, lambda x: A @ x - b, gradient=gradient, jacobian=lambda x: A, num_equalities=len(b), domain=domain
    )
    return problems.TestProblem(name, problem, *(np.array(v, dtype=float) for v in (x0, solution, multipliers)), why)  # type: ignore[call-arg]


def _constructed() -> problems.TestProblem:
    # f = x'Qx/2 + c'x with c = -(Q x* + A'y*) makes (x*, y*) a KKT point. Q is indefinite, but where A d = 0, that is
    # d1 = -d2 and d3 = d2 - d0, d'Qd = d0^2 + 5 d2^2 - (d2 - d0)^2 / 4 > 0.
    Q = np.diag([1.0, 2.0, 3.0, -0.25])
    A = np.array([[0.0, 1.0, 1.0, 0.0], [1.0, 0.0, -1.0, 1.0]])
    x, y = np.array([1.0, -1.0, 2.0, 0.5]), np.array([-2.0, 1.5])
    c = -(Q @ x + A.T @ y)
    return _linear(
        "indefinite-qp", lambda z: z @ Q @ z / 2 + c @ z, lambda z: Q @ z + c, A, A @ x, np.zeros(4), x, y, REALS,
        "constructed from (x*, y*)",
    )  # fmt: skip


def linear_problems() -> dict[str, problems.TestProblem]:
    """Return the problems by name."""
    hs76 = problems.get("HS76")
    form, z0 = add_slacks(hs76.problem, hs76.x0)
    slack = -hs76.problem.evaluate(hs76.solution).constraints
    lifted = replace(
        hs76, name="HS76-slack", problem=form.problem, x0=z0, solution=np.concatenate([hs76.solution, slack])
    )
    found = [
        _linear(
            "least-norm", lambda x: x @ x / 2, lambda x: x, [[1, 1]], [2], [3, -1], [1, 1], [-1], REALS,
            "x + y (1, 1) = 0 with x0 + x1 = 2",
        ),
        _linear(
            "product", lambda x: -x[0] * x[1], lambda x: -x[::-1], [[1, 1]], [2], [2, 0.5], [1, 1], [1],
            Box(0.0, 2.0), "-x1 + y = -x0 + y = 0 with x0 + x1 = 2; f is indefinite",
        ),
        _linear(
            "active-bound", lambda x: ((x[0] - 3) ** 2 + x[1] ** 2) / 2, lambda x: np.array([x[0] - 3, x[1]]),
            [[1, 1]], [1], [0.5, 2], [1, 0], [2], Box(0.0, 3.0), "1 - 3 + y = 0 and 0 + y > 0 at the lower bound of x1",
        ),
        _linear(
            "quartic", lambda x: x[0] ** 4 / 4 + x[1] ** 2 / 2, lambda x: np.array([x[0] ** 3, x[1]]),
            [[1, 2]], [5], [0, 0], [1, 2], [-1], REALS, "x0^3 + y = 0 and x1 + 2 y = 0 with x0 + 2 x1 = 5",
        ),
        _constructed(),
        lifted,
    ]  # fmt: skip
    return {problem.name: problem for problem in found}
