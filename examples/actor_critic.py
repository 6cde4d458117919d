"""A small actor-critic under budgets: policies as networks, costs from ``info``, multipliers by `gdpa.torch`.

For `safe_cartpole.py`, and for any environment that puts a vector of costs into ``info["costs"]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gdpa.torch
from gdpa.base.checks import is_number

Env = Any
Rows = list[dict[str, float]]


@dataclass(frozen=True)
class ActorCritic:
    r"""``max`` return subject to ``mean cost per step <= budget`` for each cost that ``info["costs"]`` reports.

    One update plays ``horizon`` steps in ``num_envs`` copies of the environment and takes one step of the policy along

    .. math:: \nabla f + \sum_i w_i \nabla g_i, \qquad \nabla f = -E[A_r \nabla\log\pi], \quad
              \nabla g_i = E[A_{c_i} \nabla\log\pi]

    where the advantages A of the reward and of every cost come from one critic with a head for each
    (generalized advantage estimation), and the weights w from `gdpa.torch.constrain` around Adam: the value of
    g_i is a running mean of the cost per step minus its budget.

    Args:
        make_env: returns a Gymnasium environment with a vector observation, discrete actions and ``info["costs"]``, a
            vector with one number per budget, after every step.
        budgets: name -> largest mean cost per step, in the order of ``info["costs"]``.
        constrained: ``False`` ignores the budgets (plain policy gradient) but still measures the costs.
        warmup: updates before the budgets count. A policy that cannot do its task yet may learn to fail early instead:
            an episode that has ended costs nothing.
        num_envs, horizon: steps of an update are ``num_envs * horizon``.
        lr, critic_lr: Adam's steps; the policy's falls linearly to a tenth.
        critic_steps: how often the critic is fitted to the targets of a batch.
        dual_rate: of `gdpa.torch.constrain`.
        smoothing: the share of the old in the running mean of the costs, which is the value of g. One batch sees only a
            piece of each episode, and copies of an environment tend to be in the same piece.
        discount, trace: gamma, and lambda of the advantage estimates.
        entropy: weight of the policy's entropy in f, for exploration.
        width: of the two hidden layers.

    References:
        Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning", ICML 2016; Schulman et al.,
        "High-Dimensional Continuous Control Using Generalized Advantage Estimation", ICLR 2016.
    """

    make_env: Callable[[], Env]
    budgets: Mapping[str, float]
    constrained: bool = True
    warmup: int = 0
    num_envs: int = 16
    horizon: int = 64
    lr: float = 3e-3
    critic_lr: float = 3e-3
    critic_steps: int = 8
    dual_rate: float = 1.0
    smoothing: float = 0.9
    discount: float = 0.99
    trace: float = 0.95
    entropy: float = 0.01
    width: int = 64

    def __post_init__(self) -> None:
        if not self.budgets:
            raise ValueError("budgets must name at least one cost, got none")
        for name, value in self.budgets.items():
            if not (is_number(value) and np.isfinite(value)):
                raise ValueError(f"budgets[{name!r}] must be a finite number, got {value!r}")
        if self.num_envs < 1 or self.horizon < 1:
            raise ValueError(f"num_envs and horizon must be positive, got {self.num_envs} and {self.horizon}")

    def train(self, updates: int, seed: int = 0, report: Callable[[dict[str, float]], None] | None = None) -> Trained:
        """Train for ``updates`` updates and return the policy with one row per update."""
        torch.manual_seed(seed)
        players = Players([self.make_env() for _ in range(self.num_envs)], len(self.budgets), seed)
        size, actions = players.observations.shape[1], int(players.envs[0].action_space.n)
        actor, critic = _network(size, self.width, actions), _network(size, self.width, 1 + len(self.budgets))
        base = torch.optim.Adam(actor.parameters(), lr=self.lr)
        optimizer = gdpa.torch.constrain(base, list(self.budgets), self.dual_rate, rule="damped")
        critic_optimizer = torch.optim.Adam(critic.parameters(), lr=self.critic_lr)
        rows: Rows = []
        smooth: Tensor | None = None
        for update in range(updates):
            batch = players.play(actor, self.horizon)
            advantages = self._learn_values(critic, critic_optimizer, batch)
            for group in base.param_groups:
                group["lr"] = self.lr * (1 - 0.9 * update / updates)
            row: dict[str, float] = {"update": update + 1, "steps": (update + 1) * self.num_envs * self.horizon}
            free = not self.constrained or update < self.warmup
            costs = batch.signals[..., 1:].mean((0, 1))
            smooth = costs if smooth is None else self.smoothing * smooth + (1 - self.smoothing) * costs
            row |= self._improve(actor, base if free else optimizer, batch, advantages, smooth)
            row |= {f"cost {name}": float(cost) for name, cost in zip(self.budgets, smooth, strict=True)}
            row["return"] = float(np.mean(players.finished[-50:])) if players.finished else float("nan")
            rows.append(row)
            if report is not None:
                report(row)
        return Trained(actor, self, rows)

    def _learn_values(self, critic: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
        """Return advantages (T, N, 1 + m) by generalized advantage estimation, and fit the critic to their targets."""
        scale = 1 / (1 - self.discount)  # the critic's outputs are values times 1 - gamma, of the size of its signals
        with torch.no_grad():
            predicted = scale * critic(batch.observations)
            ahead = scale * critic(batch.following) * (~batch.terminated)[..., None]
            delta = batch.signals + self.discount * ahead - predicted
            advantages = torch.zeros_like(delta)
            carried = torch.zeros_like(delta[0])
            for t in reversed(range(len(delta))):
                goes_on = (~(batch.terminated[t] | batch.truncated[t]))[:, None]
                carried = delta[t] + self.discount * self.trace * goes_on * carried
                advantages[t] = carried
            targets = (predicted + advantages) / scale
        for _ in range(self.critic_steps):
            optimizer.zero_grad()
            (critic(batch.observations) - targets).square().mean().backward()
            optimizer.step()
        return advantages

    def _improve(
        self, actor: nn.Module, optimizer: Any, batch: Batch, advantages: Tensor, costs: Tensor
    ) -> dict[str, float]:
        """Take one step of the policy and return the multipliers."""
        log_policy = torch.log_softmax(actor(batch.observations), -1)
        score = log_policy.gather(-1, batch.actions[..., None])
        gains = (score * advantages).mean((0, 1))
        entropy = -(log_policy.exp() * log_policy).sum(-1).mean()
        f = -gains[0] - self.entropy * entropy
        # The value is the smoothed cost, the gradient is the policy gradient of it.
        limits = torch.tensor(list(self.budgets.values()))
        g = costs - limits + gains[1:] - gains[1:].detach()
        optimizer.zero_grad()
        constrained = isinstance(optimizer, gdpa.torch.ConstrainedOptimizer)
        loss = optimizer.lagrangian(f, dict(zip(self.budgets, g, strict=True))) if constrained else f
        loss.backward()
        optimizer.step()
        multipliers = optimizer.multipliers.tolist() if constrained else [0.0] * len(self.budgets)
        return {f"multiplier {name}": value for name, value in zip(self.budgets, multipliers, strict=True)}


@dataclass
class Trained:
    """A trained policy (observations -> logits), its method, and a row per update: steps, return, costs, prices."""

    actor: nn.Module
    method: ActorCritic
    rows: Rows = field(default_factory=list)

    def evaluate(self, episodes: int = 50, seed: int = 1_000_000) -> dict[str, float]:
        """Return the mean return and the mean costs per step over fresh episodes of the (random) policy."""
        torch.manual_seed(seed)
        players = Players([self.method.make_env() for _ in range(min(episodes, 16))], len(self.method.budgets), seed)
        totals, steps = np.zeros(len(self.method.budgets)), 0
        while len(players.finished) < episodes:
            batch = players.play(self.actor, 100)
            totals += batch.signals[..., 1:].sum((0, 1)).numpy()
            steps += batch.signals.shape[0] * batch.signals.shape[1]
        costs = {f"cost {name}": float(total / steps) for name, total in zip(self.method.budgets, totals, strict=True)}
        return {"return": float(np.mean(players.finished)), **costs}


@dataclass(frozen=True)
class Batch:
    """Played episodes: leading axes are time T and environment N."""

    observations: Tensor
    actions: Tensor
    signals: Tensor  # (T, N, 1 + m): the reward, then the costs
    following: Tensor  # the observation after the step, also if the episode ended with it
    terminated: Tensor
    truncated: Tensor


class Players:
    """Copies of an environment, played side by side; an episode that ends is followed by the next."""

    def __init__(self, envs: Sequence[Env], num_costs: int, seed: int) -> None:
        self.envs, self.num_costs = list(envs), num_costs
        starts = [env.reset(seed=seed + i)[0] for i, env in enumerate(self.envs)]
        self.observations = np.stack(starts).astype(np.float32)
        self.finished: list[float] = []
        self._returns = np.zeros(len(self.envs))

    def play(self, actor: nn.Module, horizon: int) -> Batch:
        """Play ``horizon`` steps in every environment with actions drawn from the policy."""
        N, size = self.observations.shape
        observations, following = (np.zeros((horizon, N, size), dtype=np.float32) for _ in range(2))
        actions = np.zeros((horizon, N), dtype=np.int64)
        signals = np.zeros((horizon, N, 1 + self.num_costs), dtype=np.float32)
        terminated, truncated = (np.zeros((horizon, N), dtype=bool) for _ in range(2))
        for t in range(horizon):
            observations[t] = self.observations
            with torch.no_grad():
                policy = torch.softmax(actor(torch.from_numpy(self.observations)), -1)
                actions[t] = torch.multinomial(policy, 1)[:, 0].numpy()
            for i, env in enumerate(self.envs):
                after, reward, terminated[t, i], truncated[t, i], info = env.step(int(actions[t, i]))
                costs = np.asarray(info["costs"], dtype=np.float32)
                if costs.shape != (self.num_costs,):
                    raise ValueError(
                        f'info["costs"] must have one number per budget ({self.num_costs}), got shape {costs.shape}'
                    )
                signals[t, i, 0], signals[t, i, 1:], following[t, i] = reward, costs, after
                self._returns[i] += reward
                if terminated[t, i] or truncated[t, i]:
                    self.finished.append(float(self._returns[i]))
                    self._returns[i] = 0.0
                    after = env.reset()[0]
                self.observations[i] = after
        arrays = (observations, actions, signals, following, terminated, truncated)
        return Batch(*(torch.from_numpy(array) for array in arrays))


def _network(inputs: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs)
    )
