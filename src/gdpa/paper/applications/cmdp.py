"""Constrained Markov decision processes with known transitions, solved exactly.

    max_pi V_r(pi)   subject to   V_u_i(pi) >= b_i,        V_c(pi) = E[ sum_t gamma^t c(s_t, a_t) ]

`as_problem` states one for every method of the library, and `solve_linear_program` is its ground truth.

>>> optimum = solve_linear_program(paper_instance(b=8.0))
>>> round(optimum.reward, 4), optimum.multipliers.round(4).tolist()
(8.2915, [0.9298])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np
from scipy.linalg.lapack import dgetrf, dgetrs
from scipy.optimize import linprog
from scipy.sparse import csr_array

from gdpa.base.checks import check_limit, check_share
from gdpa.base.sets import REALS, Simplex
from gdpa.base.typing import Array, Vector
from gdpa.core.problem import Evaluation, Problem
from gdpa.methods.base import Probe, State
from gdpa.methods.method import Method

__all__ = [
    "InfeasibleThresholdError", "NaturalPolicyGradient", "Optimum", "TabularCMDP", "as_problem", "max_utility",
    "paper_instance", "policy_of", "random_instance", "solve_linear_program", "start_of",
]  # fmt: skip

#: The cost of a transition: cost(s, a, s', reward, done).
Cost = Callable[[int, int, int, float, bool], float]
Parametrization = Literal["softmax", "direct"]
#: How far a row of probabilities may be from summing to one.
ROW_TOLERANCE = 1e-8
#: How far below a threshold the best policy may stay for the threshold still to count as attainable.
FEASIBILITY_TOLERANCE = 1e-7


@dataclass(frozen=True, eq=False, repr=False)
class TabularCMDP:
    r"""``max V_r(pi)`` subject to ``V_{u_i}(pi) >= b_i``: rewards to collect, utilities to keep above thresholds.

    .. math:: V_c(\pi) = E\Bigl[\sum_{t\ge 0} \gamma^t c(s_t, a_t)\Bigr] = \rho^T (I-\gamma P_\pi)^{-1} c_\pi

    Values are *not* normalized by 1 - gamma. A cost with a budget is the utility -cost with the threshold -budget.

    Args:
        transitions: P of shape (S, A, S); P[s, a] is the distribution of the next state.
        rewards: r of shape (S, A).
        utilities: u of shape (m, S, A).
        thresholds: b of shape (m,).
        discount: gamma in [0, 1).
        start: rho of shape (S,), the distribution of the first state; default uniform.
        names: one name per utility, for messages and reports.

    Example:
        One state, two actions: action 0 earns reward, action 1 utility.

        >>> cmdp = TabularCMDP(
        ...     transitions=[[[1.0], [1.0]]], rewards=[[1.0, 0.0]], utilities=[[[0.0, 1.0]]], thresholds=[2.0],
        ...     discount=0.9)
        >>> reward, utilities = cmdp.returns(np.array([[0.75, 0.25]]))
        >>> round(float(reward), 9), utilities.round(9).tolist()
        (7.5, [2.5])
    """

    transitions: Any
    rewards: Any
    utilities: Any
    thresholds: Any
    discount: float
    start: Any = None
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        P = _finite("transitions", self.transitions)
        if P.ndim != 3 or P.shape[0] != P.shape[2] or 0 in P.shape:
            raise ValueError(f"transitions must have shape (states, actions, states), got {P.shape}")
        S, A = P.shape[:2]
        rho = np.full(S, 1 / S) if self.start is None else self.start
        u = _finite("utilities", self.utilities)
        m = len(u) if u.ndim else 0
        for name, value, axes, shape in (
            ("transitions", P, "(states, actions, states)", (S, A, S)),
            ("rewards", self.rewards, "(states, actions)", (S, A)),
            ("utilities", u, "(m, states, actions)", (m, S, A)),
            ("thresholds", self.thresholds, "(m,)", (m,)),
            ("start", rho, "(states,)", (S,)),
        ):
            array = _finite(name, value)
            if array.shape != shape:
                hint = "; write a single utility as utility[None]" if name == "utilities" else ""
                raise ValueError(f"{name} must have shape {axes} = {shape}, got {array.shape}{hint}")
            if name in ("transitions", "start"):
                _check_distributions(name, array)
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        check_share(discount=self.discount)  # at 1 the sum of rewards need not converge
        if self.names is not None and len(self.names) != m:
            raise ValueError(f"names has {len(self.names)} entries for {m} utilities; give one name each")

    @classmethod
    def from_gymnasium(
        cls,
        env: Any,
        costs: Mapping[str, Cost],
        budgets: Mapping[str, float],
        discount: float = 0.99,
        start: Any = None,
    ) -> TabularCMDP:
        """Return ``max V_r`` subject to ``V_cost <= budget`` for each cost in a Gymnasium environment.

        Every transition that ends the episode leads to one absorbing state without rewards and costs, the last state of
        the CMDP: tables such as Taxi's go on describing moves from states where the episode is over.

        Args:
            env: FrozenLake, CliffWalking, Taxi, or any other with ``P[s][a] = [(probability, s', reward, done), ...]``.
            costs: name -> cost(s, a, s', reward, done) of a transition.
            budgets: name -> largest discounted cost allowed.
            discount: gamma in [0, 1).
            start: distribution of the first state; default ``env.unwrapped.initial_state_distrib``.

        Example:
            >>> import gymnasium
            >>> env = gymnasium.make("FrozenLake-v1", map_name="8x8")
            >>> hole = {"holes": lambda s, a, s_next, reward, done: float(done and reward == 0)}
            >>> cmdp = TabularCMDP.from_gymnasium(env, hole, {"holes": 0.1})
            >>> cmdp.num_states, cmdp.num_actions, cmdp.thresholds.tolist()
            (65, 4, [-0.1])
        """
        inner = getattr(env, "unwrapped", env)
        table = getattr(inner, "P", None)
        if table is None:
            raise TypeError(
                f"env must publish its transitions as env.unwrapped.P, got {env!r}; build a TabularCMDP by hand"
            )
        if set(costs) != set(budgets) or not costs:
            raise ValueError(f"costs and budgets must name the same costs, got {sorted(costs)} and {sorted(budgets)}")
        S, A = len(table), len(table[0])
        P = np.zeros((S + 1, A, S + 1))
        rewards = np.zeros((S + 1, A))
        utilities = np.zeros((len(costs), S + 1, A))
        P[S, :, S] = 1.0
        for s, a in np.ndindex(S, A):
            for probability, s_next, reward, done in table[s][a]:
                P[s, a, S if done else s_next] += probability
                rewards[s, a] += probability * reward
                for i, cost in enumerate(costs.values()):
                    utilities[i, s, a] -= probability * cost(s, a, int(s_next), float(reward), bool(done))
        start = getattr(inner, "initial_state_distrib", None) if start is None else start
        if start is None:
            raise ValueError("start is missing: the environment does not publish initial_state_distrib; pass it")
        thresholds = [-budgets[name] for name in costs]
        return cls(P, rewards, utilities, thresholds, discount, np.append(start, 0.0), tuple(costs))

    def __repr__(self) -> str:
        return (
            f"TabularCMDP({self.num_states} states, {self.num_actions} actions, discount={self.discount}, "
            f"thresholds={self.thresholds.tolist()})"
        )

    @cached_property
    def signals(self) -> Vector:
        """Rewards and utilities as rows of one matrix (1 + m, S * A)."""
        return np.concatenate([self.rewards[None], self.utilities]).reshape(1 + len(self.utilities), -1)

    @property
    def num_states(self) -> int:
        return int(self.transitions.shape[0])

    @property
    def num_actions(self) -> int:
        return int(self.transitions.shape[1])

    @property
    def num_constraints(self) -> int:
        return int(self.utilities.shape[0])

    def with_thresholds(self, thresholds: Any) -> TabularCMDP:
        """Return the same process with other thresholds."""
        return replace(self, thresholds=thresholds)

    def under(self, policy: Vector) -> PolicyEvaluation:
        """Return the exact evaluation of ``policy`` of shape (..., S, A); one factorization serves every question."""
        return PolicyEvaluation(self, np.asarray(policy, dtype=float))

    def returns(self, policy: Vector) -> tuple[Vector, Vector]:
        """Return V_r of shape (...) and V_u of shape (..., m) of ``policy``."""
        return self.under(policy).returns()


class PolicyEvaluation:
    """The exact evaluation of one policy (or a batch of them, along leading axes).

    I - gamma P_pi is factorized once. One transposed solve gives the visits, hence every value; one solve gives
    the advantages of any combination of rewards and utilities, hence any weighted policy gradient.
    """

    def __init__(self, cmdp: TabularCMDP, policy: Vector) -> None:
        self.cmdp, self.policy = cmdp, policy
        S = cmdp.num_states
        matrices = np.matmul(policy[..., None, :], cmdp.transitions).reshape(-1, S * S)  # P_pi, then I - gamma P_pi
        matrices *= -cmdp.discount
        matrices[:, :: S + 1] += 1.0
        # I - gamma P_pi is diagonally dominant by 1 - gamma > 0, hence never singular. Its transpose is the one that
        # has LAPACK's layout, so that one is factorized, in place.
        self._factors = [dgetrf(matrix.reshape(S, S).T, overwrite_a=True)[:2] for matrix in matrices]
        start = cmdp.start if policy.ndim == 2 else np.broadcast_to(cmdp.start, policy.shape[:-1])
        #: sum_t gamma^t P(s_t = s), shape (..., S): the normalized occupancy divided by 1 - gamma.
        self.visits = self._solve(start, transposed=True)

    def _solve(self, right: Vector, transposed: bool = False) -> Vector:
        trans = 0 if transposed else 1  # factors of the transpose
        if right.ndim == 1:
            return np.asarray(dgetrs(*self._factors[0], right, trans)[0])
        rows = right.reshape(len(self._factors), -1)
        solved = [dgetrs(*factors, row, trans)[0] for factors, row in zip(self._factors, rows, strict=True)]
        return np.reshape(solved, right.shape)

    def returns(self) -> tuple[Vector, Vector]:
        """Return V_r of shape (...) and V_u of shape (..., m), from ``V_c = sum_{s,a} visits(s) pi(a|s) c(s, a)``."""
        pairs = self.visits[..., None] * self.policy
        values = pairs.reshape(*pairs.shape[:-2], -1) @ self.cmdp.signals.T
        return values[..., 0], values[..., 1:]

    def action_values(self, weights: Vector) -> tuple[Vector, Vector]:
        """Return Q of shape (..., S, A) and V of shape (..., S) of the signal ``weights @ (r, u_1, ..., u_m)``."""
        P = self.cmdp.transitions
        signal = (weights @ self.cmdp.signals).reshape(self.policy.shape)
        V = self._solve((self.policy * signal).sum(-1))
        signal += self.cmdp.discount * (V @ P.reshape(-1, P.shape[-1]).T).reshape(self.policy.shape)
        return signal, V


def _finite(name: str, value: Any) -> Vector:
    try:
        array = np.array(value, dtype=float)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be an array of numbers, got {type(value).__name__}: {error}") from None
    if (where := _first(~np.isfinite(array))) is not None:
        raise ValueError(f"{name} must be finite, got {array[where]} at index {where}")
    return array


def _first(marks: Any) -> tuple[int, ...] | None:
    """Return the index of the first True, if there is one; the index of a scalar is ()."""
    return next((tuple(map(int, where)) for where in np.argwhere(marks)), None)


def _check_distributions(name: str, rows: Vector) -> None:
    if (where := _first(rows < 0)) is not None:
        raise ValueError(f"{name} must be probabilities, got {rows[where]} at index {where}")
    if (where := _first(np.abs(rows.sum(-1) - 1) > ROW_TOLERANCE)) is not None:
        row = f"{name}[{', '.join(map(str, where))}]" if where else name
        raise ValueError(f"{row} must sum to one, got {rows[where].sum():.12g}; normalize it")


def paper_instance(b: float = 6.0) -> TabularCMDP:
    """Return the CMDP of the paper's Figure 3: 50 states, 10 actions, gamma 0.9, one utility with threshold b.

    The paper refers to the public code of Bhandari and Russo, whose instance is drawn from NumPy's legacy generator
    with seed 10; the utility is drawn right after the reward, as Ding et al. (2020) extend that code.

    >>> cmdp = paper_instance(b=6.0)
    >>> cmdp.num_states, cmdp.num_actions, cmdp.thresholds.tolist()
    (50, 10, [6.0])
    """
    return random_instance(seed=10, thresholds=[b])


def random_instance(
    seed: int, num_states: int = 50, num_actions: int = 10, thresholds: Any = (0.0,), discount: float = 0.9
) -> TabularCMDP:
    """Return a CMDP with uniform transitions (rows normalized), rewards and utilities in [0, 1], uniform start.

    NumPy's legacy generator draws them, as in the paper's instance; one utility per threshold, where 0 constrains
    nothing.

    >>> random_instance(seed=0, num_states=3, num_actions=2).transitions.sum(-1).round(12).tolist()
    [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    """
    generator = np.random.RandomState(seed)
    P = generator.uniform(size=(num_states, num_actions, num_states))
    P /= P.sum(axis=-1, keepdims=True)
    rewards = generator.uniform(size=(num_states, num_actions))
    utilities = generator.uniform(size=(len(thresholds), num_states, num_actions))
    return TabularCMDP(P, rewards, utilities, thresholds, discount)


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
    policy = np.divide(x, total, out=np.full_like(x, 1 / cmdp.num_actions), where=total > 0)
    reward, utilities = cmdp.returns(policy)
    return Optimum(float(reward), utilities, multipliers, policy, x)


def max_utility(cmdp: TabularCMDP, index: int = 0) -> float:
    """Return the largest attainable value of utility ``index``: the highest threshold that can be met.

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
    for i, asked in enumerate(rows.max(axis=0, initial=-math.inf)):
        best = max_utility(cmdp, i)
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
    S, A = cmdp.num_states, cmdp.num_actions
    scale = 1 / (1 - cmdp.discount)
    balance = np.repeat(np.eye(S), A, axis=1) - cmdp.discount * cmdp.transitions.reshape(S * A, S).T
    limited = thresholds is not None and cmdp.num_constraints > 0
    answer = linprog(
        -scale * signal.reshape(-1),
        A_ub=-scale * cmdp.utilities.reshape(-1, S * A) if limited else None,
        b_ub=-np.asarray(thresholds) if limited else None,
        A_eq=cast(Any, csr_array(balance)),  # the stubs know dense matrices only
        b_eq=(1 - cmdp.discount) * cmdp.start,
        bounds=(0, None),
        method="highs",
    )
    if answer.status == 2:
        return None
    if answer.status != 0:
        raise RuntimeError(f"HiGHS could not solve the linear program: {answer.message}")
    multipliers = -np.asarray(answer.ineqlin.marginals, dtype=float) if limited else np.zeros(cmdp.num_constraints)
    return np.maximum(np.asarray(answer.x), 0).reshape(S, A), multipliers


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
