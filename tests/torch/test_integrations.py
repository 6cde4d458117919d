"""The examples run, and what they train keeps its limit. Frameworks that are not installed are skipped aloud."""

from __future__ import annotations

import difflib
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
INTEGRATIONS = EXAMPLES / "integrations"
#: Seconds for the example under torchrun, which takes about ten on an idle machine.
TORCHRUN_LIMIT = 240


def load(name):
    sys.path.insert(0, str(INTEGRATIONS))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(INTEGRATIONS))


def installed(name):
    return pytest.importorskip(name, reason=f"{name} is not installed: its integration is NOT tested here")


def keeps_its_limit(net, opt, x):
    with torch.no_grad():
        assert abs(net(x).mean().item() - 1) < 0.15  # the mean output is pushed to its floor of 1, not further
    assert opt.multipliers[0] > 0
    assert opt.dual_steps == 30 * 8 - 8


def run(*command, limit=300):
    """Run a program and return what it prints; one that does not end is killed with all its processes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, complaints = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, complaints
    return out


def test_the_twins_differ_in_one_line():
    under, without = (
        (EXAMPLES / f"{n}.py").read_text().splitlines() for n in ("train_under_budget", "train_unconstrained")
    )
    assert len(under) <= 40
    changed = [line for line in difflib.ndiff(without, under) if line[0] in "+-"]
    assert [line.split() for line in changed] == [
        ["-", "loss", "=", "f"],
        ["+", "loss", "=", "opt.lagrangian(f,", "g)"],
    ]


def test_the_line_makes_the_difference():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: the example is NOT tested here")
    assert " NO" not in run(EXAMPLES / "train_under_budget.py")
    assert " NO" in run(EXAMPLES / "train_unconstrained.py")


def test_torchrun_with_two_processes(capsys):
    # Restarts: gloo now and then aborts a worker as it leaves, after its work is done; torchrun is made for that.
    flags = ["--nproc-per-node", "2", "--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command = ["-m", "torch.distributed.run", *flags, INTEGRATIONS / "torchrun_ddp.py"]
    try:
        out = run(*command, limit=TORCHRUN_LIMIT)
    except subprocess.TimeoutExpired:  # gloo's rendezvous now and then hangs; twice in a row is an error
        with capsys.disabled():
            print(f"\ntorchrun did not end within {TORCHRUN_LIMIT} s (rendezvous of two ranks); started once more")
        out = run(*command, limit=TORCHRUN_LIMIT)
    assert "multipliers equal on all ranks: True" in out
    assert "yes" in out


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path):
    installed("lightning")
    model, x = load("lightning_module").main(str(tmp_path))
    keeps_its_limit(model.net, model.opt, x)
    state = torch.load(tmp_path / "last.ckpt", weights_only=False)["optimizer_states"][0]
    assert torch.equal(state["param_groups"][0]["multipliers"], model.opt.multipliers)


@pytest.mark.filterwarnings("ignore")
def test_hugging_face_trainer(tmp_path):
    installed("transformers")
    installed("accelerate")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net, opt, x = load("huggingface_trainer").main(str(tmp_path))
    keeps_its_limit(net, opt, x)


@pytest.mark.filterwarnings("ignore")
def test_accelerate():
    installed("accelerate")
    net, opt, x = load("accelerate_loop").main()
    keeps_its_limit(net, opt, x)
