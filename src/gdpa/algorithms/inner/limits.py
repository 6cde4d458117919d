"""GDPA's update at the ends of its range of tau, shared by the two ablations."""

from __future__ import annotations

from dataclasses import dataclass

from gdpa.algorithms.base import State
from gdpa.algorithms.inner.descent import descend
from gdpa.algorithms.inner.subproblem import Subproblem
from gdpa.algorithms.method import check_positive
from gdpa.arrays import namespace
from gdpa.perturbed import dual_update, in_gate, pressure
from gdpa.problem import Evaluation, Problem
from gdpa.schedules import as_schedule
from gdpa.typing import Array, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState(State):
    """Adds the curvature estimate ``lipschitz``, used where no step is given."""

    lipschitz: Array


def limit_start(x0: Array, start: Evaluation, lipschitz: float) -> LimitState:
    """Return the state at ``x0`` with zero multipliers."""
    xp = namespace(x0)
    zeros, ones = xp.zeros_like(start.constraints), xp.ones_like(x0[..., 0])
    return LimitState(step=0, x=x0, multipliers=zeros, evaluation=start, probe=None, lipschitz=ones * lipschitz)


def limit_step(
    problem: Problem, state: LimitState, alpha: float | None, beta: float, tau: float, gate: bool = True
) -> LimitState:
    """Return the state after eq. (alg) of the paper with any tau in [0, 1]; alpha = None backtracks on F_beta.

    F_beta(x, lambda) depends on lambda through (1 - tau) lambda alone, so it is a `Subproblem` with these multipliers.
    """
    now = state.evaluation or problem.evaluate(state.x)
    lam, p = state.multipliers, problem.num_equalities
    F = Subproblem(problem, (1 - tau) * lam, beta)
    slope = F.slope(state.x, now)
    new = descend(F, state.x, slope, state.lipschitz, alpha)
    inside = in_gate(pressure(lam, now.constraints, beta, tau), p) if gate else None
    return LimitState(
        step=state.step + 1,
        x=new.x,
        multipliers=dual_update(lam, new.evaluation.constraints, beta, tau, inside, p),
        evaluation=new.evaluation,
        probe=slope.probe._replace(weight=1 / beta),
        lipschitz=new.lipschitz,
    )


def limit_schedules(
    alpha: float | Schedule | None, beta: float | Schedule, lipschitz: float
) -> tuple[Schedule | None, Schedule]:
    """Return GDPA's power schedules from numbers, leaving schedules and alpha = None as they are."""
    check_positive(lipschitz=lipschitz)
    step = None if alpha is None else as_schedule("alpha", alpha, -1 / 3)
    return step, as_schedule("beta", beta, 1 / 3)
