"""A tabular CMDP as a `Problem`: policies as points x, values and policy gradients as the oracle."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from gdpa.base.sets import REALS, Simplex
from gdpa.base.typing import Array, Vector
from gdpa.core.problem import Evaluation, Problem
from gdpa.paper.applications.cmdp.tabular import PolicyEvaluation, TabularCMDP

Parametrization = Literal["softmax", "direct"]


def as_problem(
    cmdp: TabularCMDP, parametrization: Parametrization = "softmax", *, thresholds: Any = None, check: bool = True
) -> Problem:
    r"""Return ``min -V_r(pi_x)`` subject to ``b - V_u(pi_x) <= 0`` for every method of the library.

    ``"softmax"``: x = theta in R^{SA}, pi(a|s) proportional to exp(theta[s, a]), X the whole space, and

    .. math:: \partial V_c / \partial\theta_{s,a} = \tfrac{1}{1-\gamma} d(s) \pi(a|s) (Q_c(s,a) - V_c(s))

    ``"direct"``: x = pi itself, X a simplex per state, and :math:`\partial V_c/\partial\pi(a|s) =
    \tfrac{1}{1-\gamma} d(s) Q_c(s,a)`, where d is the normalized discounted occupancy of the states.

    One forward factorizes I - gamma P_pi once and solves once; one backward solves once more with the same factors,
    for any number of utilities.

    Args:
        thresholds: b of shape (..., m) to use instead of ``cmdp.thresholds``. Leading axes are independent problems:
            with (K, m), x of shape (K, S*A) follows K thresholds side by side.
        check: first ask the linear program whether every threshold can be met.

    Raises:
        InfeasibleThresholdError: a threshold is out of reach of every policy.

    The paper's step alpha_0 = 1e3 multiplies a policy gradient without the factor 1/(1 - gamma), while its values carry
    it. The oracle here is consistent (the gradient is the derivative of the value), and the same iterates come
    from ``alpha = 1e3 * (1 - gamma)``, which is 100 for the paper's gamma = 0.9.

    Example:
        >>> from gdpa import GDPA, MaxSteps, solve
        >>> from gdpa.paper.applications.cmdp import paper_instance
        >>> cmdp = paper_instance(b=8.0)
        >>> result = solve(as_problem(cmdp), start_of(cmdp), GDPA(alpha=100.0, beta=0.5), stop=MaxSteps(300))
        >>> reward, utility = cmdp.returns(policy_of(cmdp, result.x_last))
        >>> round(float(reward), 1), round(float(utility[0]), 1)
        (8.3, 8.0)
    """
    if parametrization not in get_args(Parametrization):
        raise ValueError(f"parametrization must be one of {get_args(Parametrization)}, got {parametrization!r}")
    softmax = parametrization == "softmax"
    b = cmdp.thresholds if thresholds is None else np.asarray(thresholds, dtype=float)
    m = cmdp.num_constraints
    if b.shape[-1:] != (m,) or not np.isfinite(b).all():
        raise ValueError(f"thresholds must be finite, of shape (..., {m}): one per utility; got shape {b.shape}")
    if check:
        from gdpa.paper.applications.cmdp.linear_program import check_thresholds

        check_thresholds(cmdp, b)

    def gradient(now: PolicyEvaluation, weights: Vector) -> Vector:
        """The gradient of ``weights @ (V_r, V_u)``."""
        Q, V = now.action_values(weights)
        rows = now.visits[..., None] * (now.policy * (Q - V[..., None]) if softmax else Q)
        return rows.reshape(*rows.shape[:-2], -1)

    def evaluate(x: Array) -> Evaluation:
        now = cmdp.under(policy_of(cmdp, x, parametrization))
        reward, utilities = now.returns()

        def pullback(w: Array, objective: Any = 1.0) -> Array:
            weights = np.empty((*now.policy.shape[:-2], 1 + m))
            weights[..., 0], weights[..., 1:] = objective, w
            return -gradient(now, weights)

        def jacobian() -> Array:
            units = np.broadcast_to(-np.eye(1 + m)[1:], (*now.policy.shape[:-2], m, 1 + m))
            return np.stack([gradient(now, units[..., i, :]) for i in range(m)], axis=-2)

        return Evaluation(-reward, b - utilities, pullback, jacobian if m else None)

    return Problem(
        evaluate, num_constraints=m, domain=REALS if softmax else Simplex(rows=cmdp.num_states), names=cmdp.names
    )


def policy_of(cmdp: TabularCMDP, x: Array, parametrization: Parametrization = "softmax") -> Vector:
    """Return the policy of shape (..., S, A) that the point x of shape (..., S*A) stands for.

    >>> from gdpa.paper.applications.cmdp import random_instance
    >>> policy_of(random_instance(seed=0, num_states=2, num_actions=2), np.zeros(4)).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    rows = np.asarray(x).reshape(*x.shape[:-1], cmdp.num_states, cmdp.num_actions)
    if parametrization == "direct":
        return rows
    powers = np.exp(rows - np.maximum.reduce(rows, -1, keepdims=True))
    powers /= np.add.reduce(powers, -1, keepdims=True)
    return np.asarray(powers)


def start_of(cmdp: TabularCMDP, parametrization: Parametrization = "softmax", seed: int | None = None) -> Vector:
    """Return a start x0 of shape (S*A,): the uniform policy, or with ``seed`` a random one.

    With a seed and softmax, theta is uniform on [0, 1], as in the public code the paper's experiment follows.
    """
    size = cmdp.num_states * cmdp.num_actions
    theta = np.zeros(size) if seed is None else np.random.RandomState(seed).uniform(size=size)
    return theta if parametrization == "softmax" else policy_of(cmdp, theta).reshape(-1)
