"""Shards on two gloo ranks of torchrun, and arrays that JAX spreads over two devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gdpa
from tests.sharded.cases import DATA, solution

ROOT = Path(__file__).parents[2]
#: Seconds for a job.
LIMIT = 300


def torchrun(folder, case, *options):
    """Run a case on two ranks and return their outcomes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", *options]
    command += ["-m", "tests.sharded.ranks", str(folder), case]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{case}-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
def test_two_ranks(tmp_path):
    outcomes = torchrun(tmp_path, "cases")
    first, second = outcomes
    assert first["interrupted"] == second["interrupted"]
    assert first["interrupted"][0] == "INTERRUPTED"
    assert 3 <= first["interrupted"][1] <= 4
    assert first["time"] == second["time"]
    assert first["time"][0] == "MAX_TIME"
    for found in outcomes:
        assert found["same bits"]
        assert found["raises"] == "shard 1 failed in sums: KeyError: 'age' (rank 1)"
        assert "shard 1 returned 4 sums and shard 0 returned 3" in found["one more"]
        assert "1 shards for 2 ranks" in found["few"]
        assert "differ in shards" in found["other data"]
        assert "differ in x" in found["other start"]
    assert len(list(tmp_path.glob("interrupted-*.gdpa"))) <= 3  # written by one rank


@pytest.mark.campaign
def test_a_killed_rank_ends_the_job_and_torchrun_resumes_to_the_same_bits(tmp_path):
    for found in torchrun(tmp_path, "resumed", "--max-restarts=3"):
        assert found["same bits"]
        assert found["restarts"] >= 1
    assert (tmp_path / "killed").exists()


def test_jax_spreads_rows_over_devices():
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    rows = jax.device_put(DATA, NamedSharding(Mesh(np.array(jax.devices()), ("rows",)), PartitionSpec("rows")))
    assert len(rows.sharding.device_set) == 2  # of this processor, by tests/conftest.py
    problem = gdpa.from_jax(lambda x: (((x - rows) ** 2).sum() / 2 / len(rows), (rows @ x - 1).mean()[None]))
    result = gdpa.solve(problem, jax.numpy.zeros(5), tolerance=1e-10)
    assert result.success
    np.testing.assert_allclose(result.x, solution(DATA)[0], rtol=1e-8)


def test_two_jobs_do_not_share_a_checkpoint(tmp_path):
    from gdpa import sharded
    from tests.sharded.cases import quadratic

    problem = sharded.problem(quadratic(2))

    def second(progress):
        gdpa.solve(problem, np.zeros(5), checkpoint=tmp_path / "run")

    with pytest.raises(BlockingIOError, match="another job saves here; wait until it has ended, or choose another"):
        gdpa.solve(problem, np.zeros(5), checkpoint=tmp_path / "run", observers=second)
    assert gdpa.solve(problem, np.zeros(5), checkpoint=tmp_path / "run").success
