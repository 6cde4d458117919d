"""Ground truth: the linear program over occupancy measures, solved by HiGHS."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from gdpa.base.typing import Vector
from gdpa.paper.applications.cmdp.tabular import TabularCMDP

#: How far below a threshold the best policy may stay for the threshold still to count as attainable.
FEASIBILITY_TOLERANCE = 1e-7


class InfeasibleThresholdError(ValueError):
    """No policy meets the thresholds."""


@dataclass(frozen=True, eq=False)
class Optimum:
    """The best policy of a CMDP.

    Attributes:
        reward: V_r of the optimal policy.
        utilities: V_u of the optimal policy, shape (m,).
        multipliers: lambda >= 0 of ``b - V_u <= 0``, shape (m,): raising b_i by epsilon costs lambda_i epsilon.
        policy: the optimal policy, shape (S, A); uniform in states it never visits.
        occupancy: its normalized state-action occupancy, shape (S, A).
    """

    reward: float
    utilities: Vector
    multipliers: Vector
    policy: Vector = field(repr=False)
    occupancy: Vector = field(repr=False)


def solve_linear_program(cmdp: TabularCMDP, *, constrained: bool = True) -> Optimum:
    r"""Return the optimum over all policies from the occupancies x(s, a) >= 0.

    .. math::
        \max_x \tfrac{1}{1-\gamma}\langle x, r\rangle \quad \text{s.t.}\quad
        \textstyle\sum_a x(s',a) - \gamma \sum_{s,a} x(s,a) P(s'|s,a) = (1-\gamma)\rho(s'), \quad
        \tfrac{1}{1-\gamma}\langle x, u_i\rangle \ge b_i

    The policy is x(s, a) / sum_a x(s, a), the multipliers are the marginals of the last rows, which
    ``constrained=False`` leaves out.

    Raises:
        InfeasibleThresholdError: a threshold is out of reach.

    Example:
        >>> from gdpa.paper.applications.cmdp import paper_instance
        >>> round(solve_linear_program(paper_instance(b=6.0)).reward, 4)
        9.1451
        >>> round(solve_linear_program(paper_instance(b=6.0), constrained=False).reward, 4)
        9.2276
    """
    outcome = _maximize(cmdp, cmdp.rewards, cmdp.thresholds if constrained else None)
    if outcome is None:
        check_thresholds(cmdp, cmdp.thresholds)
        raise RuntimeError("the linear program and the check of its thresholds disagree; thresholds sit on the edge")
    x, multipliers = outcome
    total = x.sum(-1, keepdims=True)
    policy = np.where(total > 0, x / np.where(total > 0, total, 1), 1 / cmdp.num_actions)
    reward, utilities = cmdp.returns(policy)
    return Optimum(float(reward), utilities, multipliers, policy, x)


def max_utility(cmdp: TabularCMDP, index: int = 0) -> float:
    """Return the largest attainable value of utility ``index``: the highest threshold that can be met.

    >>> from gdpa.paper.applications.cmdp import paper_instance
    >>> round(max_utility(paper_instance()), 4)
    9.0285
    """
    outcome = _maximize(cmdp, cmdp.utilities[index], None)
    assert outcome is not None  # without thresholds every policy is feasible
    return float((outcome[0] * cmdp.utilities[index]).sum() / (1 - cmdp.discount))


def check_thresholds(cmdp: TabularCMDP, thresholds: Any) -> None:
    """Raise `InfeasibleThresholdError` unless every row of ``thresholds`` (..., m) can be met by one policy."""
    m = cmdp.num_constraints
    rows = np.asarray(thresholds, dtype=float).reshape(-1, m)
    for i in range(m):
        best, asked = max_utility(cmdp, i), float(rows[:, i].max())
        if asked > best + FEASIBILITY_TOLERANCE * (1 + abs(best)):
            name = cmdp.names[i] if cmdp.names is not None else f"utility {i}"
            raise InfeasibleThresholdError(
                f"thresholds asks {asked:.6g} of {name}, but the best policy for it reaches {best:.6g}; lower it"
            )
    if m > 1:  # each alone can be met: now all at once
        for row in rows:
            if _maximize(cmdp, np.zeros_like(cmdp.rewards), row) is None:
                raise InfeasibleThresholdError(
                    f"thresholds {row.tolist()} can each be met but not by one policy together; lower at least one"
                )


def _maximize(cmdp: TabularCMDP, signal: Vector, thresholds: Vector | None) -> tuple[Vector, Vector] | None:
    """Return (occupancy, multipliers) of the best policy for a signal, or None if the thresholds exclude all."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    S, A = cmdp.num_states, cmdp.num_actions
    scale = 1 / (1 - cmdp.discount)
    balance = np.repeat(np.eye(S), A, axis=1) - cmdp.discount * cmdp.transitions.reshape(S * A, S).T
    m = 0 if thresholds is None else cmdp.num_constraints
    answer = linprog(
        -scale * signal.reshape(-1),
        A_ub=-scale * cmdp.utilities.reshape(m, -1) if m else None,
        b_ub=-thresholds if m and thresholds is not None else None,
        A_eq=cast(Any, csr_array(balance)),  # the stubs know dense matrices only
        b_eq=(1 - cmdp.discount) * cmdp.start,
        bounds=(0, None),
        method="highs",
    )
    if answer.status == 2:
        return None
    if answer.status != 0:
        raise RuntimeError(f"HiGHS could not solve the linear program: {answer.message}")
    multipliers = -np.asarray(answer.ineqlin.marginals, dtype=float) if m else np.zeros(cmdp.num_constraints)
    return np.maximum(np.asarray(answer.x), 0).reshape(S, A), multipliers
