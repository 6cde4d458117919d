"""Baselines of the policy-gradient literature, as methods for `gdpa.solve`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gdpa.base.checks import check_limit
from gdpa.base.schedules import StepSize
from gdpa.core.problem import Problem
from gdpa.methods.base import Probe, State
from gdpa.methods.method import Method
from gdpa.paper.applications.cmdp.parametrization import policy_of
from gdpa.paper.applications.cmdp.tabular import TabularCMDP


@dataclass(frozen=True)
class PolicyGradient(Method):
    """Plain policy gradient: GDPA's step without the constraints, the paper's baseline of Figure 3.

    ``x_{r+1} = P_X(x_r - alpha_r grad f(x_r))`` with ``alpha_r = alpha_0 r^(-1/3)``; the multipliers stay zero.

    Args:
        alpha: alpha_0, or any schedule r -> alpha_r.

    >>> from gdpa import MaxSteps, solve
    >>> from gdpa.paper.applications.cmdp import as_problem, paper_instance, policy_of, start_of
    >>> cmdp = paper_instance(b=6.0)
    >>> x = solve(as_problem(cmdp), start_of(cmdp), PolicyGradient(alpha=100.0), stop=MaxSteps(100)).x_last
    >>> bool(cmdp.returns(policy_of(cmdp, x))[1][0] < 6)
    True
    """

    alpha: StepSize = StepSize(0.1, exponent=-1 / 3)

    def update(self, problem: Problem, state: State) -> State:
        now = state.evaluation or problem.evaluate(state.x)
        gradient = now.pullback(state.multipliers)
        x = problem.domain.project(state.x - self.alpha(state.step + 1) * gradient)
        probe = Probe(state.x, state.multipliers, now.objective, now.constraints, gradient, evaluation=now)
        evaluation = problem.evaluate(x)
        return State(step=state.step + 1, x=x, multipliers=state.multipliers, evaluation=evaluation, probe=probe)


@dataclass(frozen=True)
class NaturalPolicyGradient(Method):
    r"""Natural policy gradient primal-dual for softmax policies (Ding et al. 2020).

    .. math::
        \theta_{t+1} &= \theta_t + \tfrac{\eta_1}{1-\gamma} A_L(\theta_t, \lambda_t),
            \qquad A_L = A_r + \textstyle\sum_i \lambda_i A_{u_i} \\
        \lambda_{t+1} &= P_{[0, \Lambda]}\bigl(\lambda_t - \eta_2 (V_u(\theta_t) - b)\bigr)

    The advantage A_L is the softmax policy's gradient preconditioned by the pseudo-inverse of its Fisher matrix.
    Only for problems of `as_problem` in the softmax parametrization.

    Args:
        cmdp: the process whose advantages make the step.
        eta1: the primal step; Ding et al. take 2 log|A|.
        eta2: the dual step; Ding et al. take 2 (1 - gamma) / sqrt(T) for T steps.
        bound: Lambda; Ding et al. take 2 / ((1 - gamma) xi) for a policy with slack xi.

    References:
        Ding, Zhang, Basar, Jovanovic, "Natural Policy Gradient Primal-Dual Method for Constrained Markov Decision
        Processes", NeurIPS 2020. Their guarantee is for the average over the steps; the last iterate may swing.

    Example:
        >>> from gdpa import MaxSteps, solve
        >>> from gdpa.paper.applications.cmdp import as_problem, paper_instance, start_of
        >>> cmdp = paper_instance(b=8.0)
        >>> method = NaturalPolicyGradient(cmdp, eta1=1.0, eta2=0.1)
        >>> result = solve(as_problem(cmdp), start_of(cmdp), method, stop=MaxSteps(1000))
        >>> rewards = -result.history["objective"]
        >>> round(float(rewards.mean()), 1)  # the optimum is 8.29
        8.3
    """

    cmdp: TabularCMDP
    eta1: float
    eta2: float
    bound: float = math.inf

    retried: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_limit(eta1=self.eta1, eta2=self.eta2, bound=self.bound)

    def update(self, problem: Problem, state: State) -> State:
        cmdp, x, multipliers = self.cmdp, state.x, state.multipliers
        now = state.evaluation or problem.evaluate(x)
        gradient = now.pullback(multipliers)

        weights = np.concatenate([np.ones_like(multipliers[..., :1]), multipliers], axis=-1)
        Q, V = cmdp.under(policy_of(cmdp, x)).action_values(weights)
        advantage = (Q - V[..., None]).reshape(x.shape)
        x_next = x + self.eta1 / (1 - cmdp.discount) * advantage
        multipliers_next = np.clip(multipliers + self.eta2 * now.constraints, 0.0, self.bound)

        probe = Probe(x, multipliers, now.objective, now.constraints, gradient, evaluation=now)
        evaluation = problem.evaluate(x_next)
        return State(step=state.step + 1, x=x_next, multipliers=multipliers_next, evaluation=evaluation, probe=probe)
