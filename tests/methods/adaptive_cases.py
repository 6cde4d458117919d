"""Problems for the verdicts of AdaptiveGDPA: infeasible, unbounded, awkward but feasible, and with holes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gdpa import REALS, Ball, Box, ConvexSet, Problem, Simplex, from_torch


@dataclass(frozen=True)
class Case:
    """A problem by one torch formula x -> (f, list of g_i)."""

    name: str
    formula: Callable[[Any], tuple[Any, list[Any]]]
    x0: list[float]
    domain: ConvexSet = REALS
    equalities: int = 0
    culprit: str = field(default="")

    def problem(self) -> Problem:
        def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            f, g = self.formula(x)
            return f, torch.stack(g) if isinstance(g, list) else g

        return from_torch(function, domain=self.domain, num_equalities=self.equalities)

    def start(self) -> torch.Tensor:
        return torch.tensor(self.x0, dtype=torch.float64)


def _inconsistent(seed: int, m: int, d: int, gap: float) -> tuple[Any, Any]:
    """A x <= b with y >= 0, y'A = 0, y'b = -gap: Farkas' certificate that it has no solution."""
    rng = np.random.default_rng(seed)
    A, y, b = rng.normal(size=(m, d)), np.abs(rng.normal(size=m)), rng.normal(size=m)
    A[-1] = -(y[:-1] @ A[:-1]) / y[-1]
    b[-1] = (-gap - y[:-1] @ b[:-1]) / y[-1]
    return torch.as_tensor(A), torch.as_tensor(b)


def _polak6(x: Any) -> tuple[Any, list[Any]]:
    """POLAK6 of CUTEst, bounded by -44. Its constraints grow like x^32: one long step overflows F_beta."""
    y = x[0] - (x[3] + 1) ** 4
    z = x[1] - y**4
    a = y**2 + z**2 + 2 * x[2] ** 2 + x[3] ** 2 - 5 * y - 5 * z - 21 * x[2] + 7 * x[3] - x[4]
    more = [
        y**2 + z**2 + x[2] ** 2 + x[3] ** 2 + y - z + x[2] - x[3] - 8,
        y**2 + 2 * z**2 + x[2] ** 2 + 2 * x[3] ** 2 - y - x[3] - 10,
        y**2 + z**2 + x[2] ** 2 + 2 * y - z - x[3] - 5,
    ]
    return x[4], [a, *(a + 10 * b for b in more)]


A8, B8 = _inconsistent(0, 8, 5, 1.0)
A50, B50 = _inconsistent(1, 50, 10, 5.0)
CENTERS = torch.as_tensor(3 * np.random.default_rng(2).normal(size=(6, 4)))

INFEASIBLE = [
    Case("square plus one", lambda x: (x[0], [x[0] ** 2 + 1]), [3.0]),
    Case("opposite half-lines", lambda x: (x @ x, [x[0] + 1, 1 - x[0]]), [3.0, 1.0]),
    Case("two discs", lambda x: (x[0], [(x - 2) @ (x - 2) - 1, (x + 2) @ (x + 2) - 1]), [0.0, 3.0]),
    Case("beyond the box", lambda x: (x @ x, [5 - x[0] - x[1]]), [0.5, 0.5], Box(0.0, 1.0)),
    Case("cosh", lambda x: (x @ x, [torch.exp(x[0]) + torch.exp(-x[0]) - 1]), [1.0, 1.0]),
    Case("equality without root", lambda x: (x[0], [x[0] ** 2 + 1]), [2.0], equalities=1),
    Case("two parallel lines", lambda x: (x @ x, [x[0] + x[1] - 1, x[0] + x[1] - 2]), [0.0, 0.0], equalities=2),
    Case("disc and half-plane", lambda x: ((x[0] - 3) ** 2 + x[1] ** 2, [x @ x - 1, 3 - x[0] - x[1]]), [0.0, 0.0]),
    Case("ten dimensions", lambda x: (x @ x, [x @ x - 1, 5 - x.sum()]), [0.0] * 10),
    Case("sine", lambda x: (x[0] ** 2, [2 - torch.sin(x[0])]), [1.0]),
    Case("product in a box", lambda x: (x @ x, [1 - x[0] * x[1]]), [0.1, 0.2], Box(0.0, 0.5)),
    Case("log-sum-exp", lambda x: (x @ x, [torch.log(torch.exp(x).sum()) + 1]), [0.0] * 3, Box(-1.0, 1.0)),
    Case("outside the ball", lambda x: (x @ x, [2 - x[0]]), [0.0, 0.5], Ball(1.0)),
    Case("off the simplex", lambda x: (x @ x, [2 - x[0] - x[1]]), [0.2, 0.3, 0.5], Simplex()),
    Case("eight half-spaces", lambda x: (x @ x, A8 @ x - B8), [0.0] * 5),
    Case("six balls", lambda x: (x.sum(), torch.sum((x - CENTERS) ** 2, dim=1) - 1), [0.0] * 4),  # type: ignore[return-value]
    Case("fifty half-spaces", lambda x: (x @ x, A50 @ x - B50), [0.0] * 10),
    Case("large units", lambda x: (x[0], [1e4 * (x[0] ** 2 + 1)]), [3.0]),
    Case("small gap", lambda x: (x[0] ** 2 + x[1], [x @ x + 1e-2]), [1.0, 2.0]),
    Case("an objective that pulls", lambda x: (-x[0], [x @ x + 0.1]), [1.0, 1.0]),
    Case("ring", lambda x: (x[0], [x @ x - 1, 4 - x @ x]), [1.5, 0.5]),
    Case("a constant", lambda x: (x @ x, [1 + 0 * x[0]]), [1.0, 2.0]),
    Case("small units", lambda x: (x[0], [1e-3 * (x[0] ** 2 + 1)]), [3.0]),
]

UNBOUNDED = [
    Case("linear", lambda x: (-x[0], [x[1] - 1]), [0.0, 0.0]),
    Case("concave", lambda x: (-x @ x, [x[0] - 1]), [0.0, 0.5]),
    Case("exponential", lambda x: (-torch.exp(x[0]), [x[1] ** 2 - 1]), [0.0, 0.5]),
    Case("cubic", lambda x: (x[0] ** 3, [x[0] + x[1] - 1]), [-1.0, 0.0]),
    Case("product", lambda x: (x[0] * x[1], [-x[0]]), [1.0, 0.0]),
    Case("power", lambda x: (-(x[0] ** 1.5), [x[1] ** 2 - 1]), [1.0, 0.0], Box([1e-3, -5.0], [np.inf, 5.0])),
    Case("square root", lambda x: (-torch.sqrt(1 + x @ x), [x[0] - 3]), [1.0, 1.0]),
    Case("half-line", lambda x: (-x[0], [x[1] - x[0]]), [1.0, 0.5], Box(0.0, np.inf)),
    Case("along an equality", lambda x: (-x[0], [x[0] - x[1]]), [1.0, 2.0], equalities=1),
    Case("no constraint", lambda x: (x[0] - x[1], 0 * x[:0]), [1.0, 2.0]),
    Case("cone", lambda x: (-x[0] - x[1], [x[0] - 2 * x[1], x[1] - 2 * x[0]]), [1.0, 1.0]),
]

#: Feasible, but without a constraint qualification, with traps, or with an objective that outruns a weak penalty.
AWKWARD = [
    Case("a double root", lambda x: (x[0] + x[1] ** 2, [x[0] ** 2]), [1.0, 1.0]),
    Case("a triple root", lambda x: (x[0] + x[1] ** 2, [x[0] ** 3]), [1.0, 1.0], equalities=1),
    Case("a fourfold root", lambda x: (x[1] ** 2 - x[0], [x[0] ** 4]), [1.0, 1.0]),
    Case("start between two sides", lambda x: (x @ x, [1 - x[0] ** 2]), [0.0, 1.0]),
    Case(
        "touching discs",
        lambda x: (x[1], [(x[0] - 2) ** 2 + (x[1] - 1) ** 2 - 1, x[0] ** 2 + (x[1] - 1) ** 2 - 1]),
        [1.5, 3],
    ),
    Case("one equality twice", lambda x: (x @ x, [x[0] + x[1] - 1, 2 * x[0] + 2 * x[1] - 2]), [0.0, 0.0], equalities=2),
    Case("cusp", lambda x: (x[0], [x[1] - 1 - (x[0] - 1) ** 3, 1 - x[1]]), [2.0, 2.0]),
    Case("a quartic that pulls", lambda x: (-(x[0] ** 4), [x[0] ** 2 - 1]), [0.5]),
    Case("an exponential that pulls", lambda x: (-torch.exp(x[0]), [x[0] - 3]), [0.0]),
    Case("a tiny disc", lambda x: (x[0] + x[1], [(x - 3) @ (x - 3) - 1e-6]), [-5.0, 8.0]),
    Case("far away", lambda x: (x @ x, [1e4 - x[0]]), [0.0, 0.0]),
    Case("POLAK6", _polak6, [0.0] * 5),
]

#: Functions with holes: NaN or infinity where a first step would go.
HOLES = [
    Case("logarithm", lambda x: (x[0] - torch.log(x[0]), [x[0] - 0.5]), [0.01]),
    Case("square root", lambda x: (x @ x, [1 - torch.sqrt(x[0]) - x[1]]), [1.0, 1.0]),
    Case("logarithms in constraints", lambda x: (x.sum(), [-torch.log(x[0]), -torch.log(x[1]) - 1]), [5.0, 5.0]),
    Case("entropy", lambda x: ((x * torch.log(x)).sum(), [x.sum() - 1]), [0.3, 0.3, 0.3], Box(0.0, 1.0)),
]

#: Descent ends at a hole: the culprit must be named.
WALLS = [
    Case("constraint", lambda x: (x[0], [-1 - 0 * torch.sqrt(x[0])]), [1.0], culprit="The constraint g[0] is nan"),
    Case("objective", lambda x: (x[0] + 0 * torch.sqrt(x[0]), [x[1] - 1]), [1.0, 0.5], culprit="The objective is nan"),
]


def walk(method, problem, x0, updates):
    """The states of a run, the first included."""
    states = [method.init(problem, x0)]
    for _ in range(updates):
        states.append(method.update(problem, states[-1]))
    return states
