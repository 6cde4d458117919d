"""A constrained Markov decision process with finitely many states and actions, and its exact evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg.lapack import dgetrf, dgetrs

from gdpa.base.checks import check_share
from gdpa.base.typing import Vector

#: The cost of a transition: cost(s, a, s', reward, done).
Cost = Callable[[int, int, int, float, bool], float]
#: How far a row of probabilities may be from summing to one.
ROW_TOLERANCE = 1e-8


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
        arrays = {"transitions": P}
        for name, value, axes, shape in (
            ("rewards", self.rewards, "(states, actions)", (S, A)),
            ("utilities", u, "(m, states, actions)", (m, S, A)),
            ("thresholds", self.thresholds, "(m,)", (m,)),
            ("start", rho, "(states,)", (S,)),
        ):
            arrays[name] = _finite(name, value)
            if arrays[name].shape != shape:
                hint = "; write a single utility as utility[None]" if name == "utilities" else ""
                raise ValueError(f"{name} must have shape {axes} = {shape}, got {arrays[name].shape}{hint}")
        for name in ("transitions", "start"):
            _check_distributions(name, arrays[name])
        check_share(discount=self.discount)  # at 1 the sum of rewards need not converge
        if self.names is not None and len(self.names) != m:
            raise ValueError(f"names has {len(self.names)} entries for {m} utilities; give one name each")
        for name, value in arrays.items():
            value.setflags(write=False)
            object.__setattr__(self, name, value)

    @classmethod
    def from_gymnasium(
        cls,
        env: Any,
        costs: Mapping[str, Cost],
        budgets: Mapping[str, float],
        discount: float = 0.99,
        start: Any = None,
    ) -> TabularCMDP:
        """Return the CMDP of a Gymnasium environment that publishes its transitions as ``env.unwrapped.P``.

        ``max V_r`` subject to ``V_cost <= budget`` for each cost, discounted. Each cost is the utility -cost with
        the threshold -budget.

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
        for s in range(S):
            for a in range(A):
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
    """Return the index of the first True, if there is one; that of a scalar is ()."""
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
    P = generator.uniform(size=(num_states * num_actions, num_states))
    P /= P.sum(axis=1, keepdims=True)
    rewards = generator.uniform(size=(num_states, num_actions))
    utilities = generator.uniform(size=(len(thresholds), num_states, num_actions))
    return TabularCMDP(
        P.reshape(num_states, num_actions, num_states), rewards, utilities, thresholds, discount=discount
    )
