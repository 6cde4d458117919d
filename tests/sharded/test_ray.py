"""Shards in two actors of Ray: the bits of one process, lost workers, and errors that name a shard."""

import os
import signal
import time

import numpy as np
import pytest

import gdpa
from gdpa import sharded
from tests.sharded.cases import DATA, Quadratic, quadratic

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    yield
    ray.shutdown()


class Ends(Quadratic):
    def sums(self, x):
        os._exit(1)


class Sleeps(Quadratic):
    def sums(self, x):
        time.sleep(60)


class Raises(Quadratic):
    def sums(self, x):
        raise KeyError("age")


def test_actors_give_the_bits_of_one_process_also_if_one_is_killed():
    local = gdpa.solve(sharded.problem(quadratic(2)), np.zeros(5), "GDPA", stop=gdpa.MaxSteps(12))
    problem = sharded.problem(quadratic(2), "ray")

    def kill(progress):
        if progress.step == 5:
            os.kill(problem.job.engine.processes()[1], signal.SIGKILL)

    remote = gdpa.solve(problem, np.zeros(5), "GDPA", stop=gdpa.MaxSteps(12), observers=kill)
    assert (remote.x == local.x).all()
    assert remote.steps == 12
    assert "2 shards (ray)" in problem.job.note()


@pytest.mark.parametrize(
    ("bad", "options", "message"),
    [
        (Raises, {}, "shard 1 failed in sums: KeyError: 'age'"),
        (Ends, {"restarts": 0}, "the worker of shard 1 was lost and 0 restarts did not help.*raise restarts"),
        pytest.param(
            Sleeps, {"timeout": 8.0}, "shard 1 gave no answer within 8 s.*raise timeout", marks=pytest.mark.campaign
        ),
    ],
)
def test_a_failing_actor_is_named(bad, options, message):
    problem = sharded.problem([Quadratic(DATA), bad(DATA)], sharded.Ray(**options))
    with pytest.raises(sharded.ShardError, match=message):
        gdpa.solve(problem, np.zeros(5))
