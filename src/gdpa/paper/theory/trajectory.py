"""An observer that keeps every iterate, for the checks of `gdpa.theory`."""

from __future__ import annotations

import numpy as np

from gdpa.base.arrays import to_numpy
from gdpa.base.typing import Array, Vector
from gdpa.paper.theory.constants import regularity, regularity_from
from gdpa.run.progress import Progress


class Trajectory:
    """An observer that keeps what `gdpa.theory.check` needs of every iterate: x_r, lambda_r, f, g and sigma_r.

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
