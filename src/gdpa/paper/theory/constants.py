"""The constants of the paper's assumptions, given or estimated from samples, and an observer that keeps iterates."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from gdpa.base.arrays import norm, positive_part, to_numpy
from gdpa.base.checks import is_number
from gdpa.base.typing import Array, Vector
from gdpa.core.certificate import violation
from gdpa.core.problem import Problem
from gdpa.run.progress import Progress


@dataclass(frozen=True)
class Constants:
    """The constants of the paper's assumptions 1 to 6, on the region of the iterates.

    Attributes:
        L_f: Lipschitz constant of grad f.
        L_g: Lipschitz constant of g.
        L_J: Lipschitz constant of J, in the spectral norm.
        U_J: bound of ||J||.
        M: bound of ||grad f||.
        G: bound of ||g_+||^2.
        sigma: of the regularity condition, sigma ||g_+|| <= dist(J^T g_+, -N_X); at most U_J. NaN if unknown.
        estimated: whether they come from samples; then every one errs on the optimistic side.

    >>> Constants(L_f=1, L_g=1, L_J=0, U_J=1, M=2, G=4, sigma=2)
    Traceback (most recent call last):
    ...
    ValueError: sigma=2 exceeds U_J=1, but ||J^T g_+|| <= U_J ||g_+|| always; check both
    """

    L_f: float
    L_g: float
    L_J: float
    U_J: float
    M: float
    G: float
    sigma: float
    estimated: bool = False

    def __post_init__(self) -> None:
        for field in fields(self)[:-1]:
            value = getattr(self, field.name)
            unknown = field.name == "sigma" and isinstance(value, float) and math.isnan(value)
            if not unknown and not (is_number(value) and math.isfinite(value) and value >= 0):
                raise ValueError(f"{field.name} must be a finite nonnegative number, got {value!r}")
        if self.sigma > self.U_J * (1 + 1e-9):
            raise ValueError(
                f"sigma={self.sigma!r} exceeds U_J={self.U_J!r}, but ||J^T g_+|| <= U_J ||g_+|| always; check both"
            )


def regularity(problem: Problem, x: Array) -> float:
    """Return sigma at x, ``dist(J^T g_+, -N_X(x)) / ||g_+||`` of eq. (re); NaN if x is feasible.

    >>> from gdpa import problems
    >>> disc = problems.get("disc-product").problem                        # g = |x|^2 - 2, so J^T g_+ / g_+ = 2 x
    >>> regularity(disc, np.array([3.0, 4.0])), regularity(disc, np.zeros(2))
    (10.0, nan)
    """
    now = problem.evaluate(x)
    return regularity_from(problem, x, now.constraints, now.pullback)


def regularity_from(problem: Problem, x: Array, constraints: Array, pullback: Any) -> float:
    """Return `regularity` from an oracle call already made (one backward pass)."""
    violated = positive_part(constraints, problem.num_equalities)
    size = float(norm(violated))
    if not size > 0:
        return float("nan")
    return float(norm(problem.domain.tangent(x, -pullback(violated, objective=0.0)))) / size


def estimate_constants(problem: Problem, points: Any) -> Constants:
    """Return constants measured at sample points; ``estimated`` is set on them.

    Each is optimistic: a Lipschitz constant or a bound found on samples is a *lower* bound of the true one, and sigma,
    the smallest `regularity` seen, an *upper* bound. A condition that fails with them fails; one that
    holds with them may still fail. All pairs of points are compared; m + 1 backward passes each.

    >>> from gdpa import problems
    >>> found = estimate_constants(problems.get("disc-product").problem, [[2.0, 0.0], [0.0, 1.0], [1.0, 2.0]])
    >>> found.L_f, found.L_J, found.U_J, found.G, found.estimated   # f is quadratic, J = 2 x
    (1.0, 2.0, 4.47213595499958, 9.0, True)
    """
    xs = np.asarray(points, dtype=float)
    if xs.ndim != 2 or xs.shape[0] < 2:
        raise ValueError(f"points must be at least two points, as rows of shape (n, d); got shape {xs.shape}")
    evaluations = [problem.evaluate(x) for x in xs]
    values = np.array([to_numpy(e.constraints) for e in evaluations])
    gradients = np.array([to_numpy(e.gradient()) for e in evaluations])
    jacobians = np.array([to_numpy(e.jacobian()) for e in evaluations])
    i, j = np.triu_indices(len(xs), k=1)
    distance = np.linalg.norm(xs[i] - xs[j], axis=-1)
    apart = distance > 0
    i, j, distance = i[apart], j[apart], distance[apart]

    def steepest(a: Vector) -> float:
        return float(np.max(_sizes(a[i] - a[j]) / distance, initial=0.0))

    sigmas = [regularity_from(problem, x, e.constraints, e.pullback) for x, e in zip(xs, evaluations, strict=True)]
    known = [s for s in sigmas if not math.isnan(s)]
    return Constants(
        L_f=steepest(gradients),
        L_g=steepest(values),
        L_J=steepest(jacobians),
        U_J=float(np.max(_sizes(jacobians))),
        M=float(np.max(_sizes(gradients))),
        G=float(np.max(_sizes(violation(values, problem.num_equalities)) ** 2)),
        sigma=min(known) if known else float("nan"),
        estimated=True,
    )


def _sizes(a: Vector) -> Vector:
    """Euclidean norms of vectors, spectral norms of matrices; one per leading index."""
    if a.shape[-1] == 0 or a.shape[1] == 0:
        return np.zeros(a.shape[0])
    sizes: Vector = np.linalg.norm(a, axis=-1) if a.ndim == 2 else np.linalg.norm(a, ord=2, axis=(-2, -1))
    return sizes


class Trajectory:
    """An observer that keeps the numbers of every iterate for `gdpa.theory.check`: x_r, lambda_r, f, g and sigma_r.

    One backward pass per infeasible iterate, off the method's account. For small problems: it keeps everything.

    >>> from gdpa import GDPA, MaxSteps, problems, solve
    >>> disc, trajectory = problems.get("disc-product"), Trajectory()
    >>> _ = solve(disc.problem, disc.x0, GDPA(), stop=MaxSteps(10), observers=[trajectory])
    >>> len(trajectory), trajectory.x.shape, trajectory.multipliers[0].tolist()
    (11, (11, 2), [0.0])
    """

    def __init__(self) -> None:
        self._rows: list[tuple[Vector, Vector, float, Vector, float]] = []

    def __call__(self, progress: Progress) -> None:
        state = progress.state
        now, problem = state.evaluation, progress.problem
        if state.x.ndim != 1 or problem.num_equalities:
            raise ValueError("a Trajectory follows one problem (x of one axis) with inequality constraints only")
        if now is None or len(self._rows) not in (0, state.step):
            raise ValueError("a Trajectory needs every step and its oracle call; use solve(..., check_every=1)")
        if not self._rows:
            probe = state.probe
            if probe is None or state.step != 1:
                raise ValueError("a Trajectory must watch a run from its first step")
            # x_1, with lambda_1 = 0 as the method starts.
            sigma = regularity(problem, probe.x)
            self._add(probe.x, 0 * probe.multipliers, probe.objective, probe.constraints, sigma)
        sigma = regularity_from(problem, state.x, now.constraints, now.pullback)
        self._add(state.x, state.multipliers, now.objective, now.constraints, sigma)

    def _add(self, x: Array, multipliers: Array, objective: Array, constraints: Array, sigma: float) -> None:
        host = [np.array(to_numpy(a), dtype=float) for a in (x, multipliers, constraints)]
        self._rows.append((host[0], host[1], float(objective), host[2], sigma))

    def __len__(self) -> int:
        return len(self._rows)

    def _column(self, k: int) -> Vector:
        return np.array([row[k] for row in self._rows])

    @property
    def x(self) -> Vector:
        """x_1, x_2, ... as rows."""
        return self._column(0)

    @property
    def multipliers(self) -> Vector:
        """lambda_1, lambda_2, ... as rows."""
        return self._column(1)

    @property
    def objective(self) -> Vector:
        """f(x_r)."""
        return self._column(2)

    @property
    def constraints(self) -> Vector:
        """g(x_r) as rows."""
        return self._column(3)

    @property
    def sigma(self) -> Vector:
        """sigma_r; NaN if x_r is feasible."""
        return self._column(4)
