"""The actor-critic under budgets: its estimates by hand, and environments whose best policy is known."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
gymnasium = pytest.importorskip("gymnasium")

from examples.actor_critic import ActorCritic, Batch, Players  # noqa: E402
from examples.cartpole import CostlyCartPole  # noqa: E402
from gdpa.paper.records import RecordFile  # noqa: E402


class Gamble(gymnasium.Env):  # type: ignore[name-defined]
    """One step an episode: action 1 earns 1 and costs 1, action 0 nothing. With budget c the best P(1) is c."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.ones(1, dtype=np.float32), {}

    def step(self, action):
        return np.ones(1, dtype=np.float32), float(action), True, False, {"costs": np.array([float(action)])}


SMALL = {"num_envs": 64, "horizon": 1, "width": 8, "lr": 1e-2, "critic_lr": 1e-2, "critic_steps": 1}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_budget_decides_the_policy():
    trained = ActorCritic(Gamble, {"risk": 0.3}, entropy=0.3, **SMALL).train(500)
    rows = trained.rows[-200:]
    assert np.mean([row["cost risk"] for row in rows]) == pytest.approx(0.3, abs=0.03)
    # max p + h H(p) subject to p <= 0.3, h the weight of the entropy H: lambda = 1 + h log(0.7 / 0.3).
    expected = 1 + 0.3 * np.log(0.7 / 0.3)
    assert np.mean([row["multiplier risk"] for row in rows]) == pytest.approx(expected, abs=0.1)


def test_without_the_budget_it_is_exceeded():
    trained = ActorCritic(Gamble, {"risk": 0.3}, constrained=False, **SMALL).train(200)
    result = trained.evaluate(episodes=500)
    assert result["return"] == result["cost risk"] > 0.9
    assert {row["multiplier risk"] for row in trained.rows} == {0.0}


def test_budgets_count_after_the_warm_up_only():
    rows = ActorCritic(Gamble, {"risk": 0.0}, warmup=20, **SMALL).train(60).rows
    assert all(row["multiplier risk"] == 0 for row in rows[:20])
    assert rows[-1]["multiplier risk"] > 0


def test_advantages_by_hand():
    # Two steps; a critic of the constant 1, hence values 1 / (1 - gamma) = 2; gamma 0.5, lambda 0.5, rewards 1 and 3.
    method = ActorCritic(Gamble, {"risk": 1.0}, discount=0.5, trace=0.5, critic_steps=0)

    def critic(x):
        return torch.ones(*x.shape[:-1], 2)

    signals = torch.tensor([[[1.0, 0.0]], [[3.0, 1.0]]])
    flags = torch.zeros(2, 1, dtype=torch.bool)
    batch = Batch(
        torch.zeros(2, 1, 1), torch.zeros(2, 1, dtype=torch.long), signals, torch.zeros(2, 1, 1), flags, flags
    )
    # delta = c + 0.5 * 2 - 2: reward (0, 2), cost (-1, 0); A_1 = delta_1, A_0 = delta_0 + 0.25 A_1.
    expected = torch.tensor([[[0.5, -1.0]], [[2.0, 0.0]]])
    torch.testing.assert_close(method._learn_values(critic, None, batch), expected)
    ended = torch.tensor([[True], [False]])
    # Termination after the first step: nothing ahead of it, nothing carried over it.
    expected[0] = torch.tensor([[-1.0, -2.0]])
    over = Batch(batch.observations, batch.actions, signals, batch.following, ended, flags)
    torch.testing.assert_close(method._learn_values(critic, None, over), expected)
    # Truncation keeps the value ahead and stops the sum.
    expected[0] = torch.tensor([[0.0, -1.0]])
    cut = Batch(batch.observations, batch.actions, signals, batch.following, flags, ended)
    torch.testing.assert_close(method._learn_values(critic, None, cut), expected)


def test_the_step_follows_the_policy_gradient():
    method = ActorCritic(Gamble, {"risk": 0.5}, entropy=0.0)
    actor = torch.nn.Linear(1, 2, bias=False)
    torch.nn.init.zeros_(actor.weight)
    ones, flags = torch.ones(2, 1, 1), torch.zeros(2, 1, dtype=torch.bool)
    batch = Batch(ones, torch.tensor([[1], [0]]), torch.zeros(2, 1, 2), ones, flags, flags)
    advantages = torch.tensor([[[3.0, 0.0]], [[1.0, 0.0]]])
    method._improve(actor, torch.optim.SGD(actor.parameters(), lr=1.0), batch, advantages, torch.zeros(1))
    # grad log pi = onehot - (1/2, 1/2); the mean of A grad log pi is (3 (-1/2, 1/2) + (1/2, -1/2)) / 2 = (-1/2, 1/2).
    torch.testing.assert_close(actor.weight.detach(), torch.tensor([[-0.5], [0.5]]))


def test_players_count_episodes_and_keep_the_last_observation():
    actor = torch.nn.Linear(5, 2)
    players = Players([CostlyCartPole() for _ in range(2)], 2, seed=0)
    batch = players.play(actor, 200)
    ends = int((batch.terminated | batch.truncated).sum())
    assert ends == len(players.finished) > 0
    t, i = (int(v) for v in torch.nonzero(batch.terminated)[0])
    outside = (batch.following[t, i, 0].abs() > 2.4) | (batch.following[t, i, 2].abs() > 0.2094)
    assert outside  # the state that ended the episode, not the next one's start
    first = int(torch.nonzero(batch.terminated[:, i])[0])
    assert players.finished[0] <= first + 1
    assert batch.signals[..., 0].sum() == sum(players.finished) + players._returns.sum()


def test_cart_pole_costs():
    env = CostlyCartPole(margin=0.0)
    env.reset(seed=0)
    costs = [env.step(action)[4]["costs"].tolist() for action in (0, 0, 1, 0)]
    assert costs == [[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    observation, info = env.reset(seed=1)
    assert observation[4] == 0
    assert info["costs"].tolist() == [0.0, 0.0]
    assert env.step(1)[4]["costs"][1] == 0  # the first force of an episode switches nothing
    assert env.step(1)[0][4] == 1


def test_training_repeats_with_its_seed():
    method = ActorCritic(CostlyCartPole, {"position": 0.1, "switching": 0.3}, num_envs=2, horizon=8, width=4)
    first, second, other = (method.train(12, seed).rows for seed in (3, 3, 4))
    assert str(first) == str(second)
    assert str(first) != str(other)


def test_the_example_ends_on_a_signal_and_continues(tmp_path):
    script = Path(__file__).parents[4] / "examples" / "safe_cartpole.py"
    command = [sys.executable, str(script), "--updates", "2", "--seeds", "1", "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        first = process.stdout.readline()  # one run is over, and others follow
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=300)
    assert "'seed': 0" in first
    finished = RecordFile(tmp_path / "records.jsonl").rows()
    assert process.returncode == -signal.SIGTERM
    assert f"{len(finished)} finished runs are recorded in {tmp_path / 'records.jsonl'}" in said
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    rows = RecordFile(tmp_path / "records.jsonl").rows()
    assert rows[: len(finished)] == finished
    assert [(row["method"], row["seed"]) for row in rows] == [("GDPA", 0), ("plain policy gradient", 0)]
    assert len(rows[0]["columns"]["update"]) == 2
    assert (tmp_path / "learning-curves.png").is_file()


def test_costs_of_the_wrong_length():
    with pytest.raises(ValueError, match=r"one number per budget \(1\), got shape \(2,\)"):
        ActorCritic(CostlyCartPole, {"position": 0.1}, num_envs=1, horizon=2).train(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budgets": {}}, "budgets must name at least one cost"),
        ({"budgets": {"risk": float("nan")}}, r"budgets\['risk'\] must be a finite number, got nan"),
        ({"budgets": {"risk": 0.1}, "horizon": 0}, "num_envs and horizon must be positive, got 16 and 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ActorCritic(Gamble, **arguments)
