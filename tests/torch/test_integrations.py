"""The examples run, and what they train keeps its limit. Frameworks that are not installed are skipped aloud."""

from __future__ import annotations

import difflib
import os
import runpy
import signal
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks.faults import ranks

pytestmark = pytest.mark.no_cover
EXAMPLES = Path(__file__).parents[2] / "examples"
INTEGRATIONS = EXAMPLES / "integrations"


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
    assert opt.dual_steps == 60 * 8


def run(*command, limit=300, **variables):
    """Run a program and return what it prints; one that does not end is killed with all its processes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **variables}
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


def test_the_line_makes_the_difference(capsys):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: the example is NOT tested here")
    said = []
    for name in ("train_under_budget", "train_unconstrained"):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        said.append(" NO" in capsys.readouterr().out)
    assert said == [False, True]


def test_torchrun_with_two_processes(capsys):
    def report(text):
        with capsys.disabled():
            print(f"\n{text}")

    out = ranks.output_with_retry(ranks.torchrun(INTEGRATIONS / "torchrun_ddp.py"), ranks.TORCHRUN_LIMIT, report)
    assert "multipliers equal on all ranks: True" in out
    assert "yes" in out


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path):
    installed("lightning")
    model, x, trainer = load("lightning_module").main(str(tmp_path))
    keeps_its_limit(model.net, model.opt, x)
    state = torch.load(tmp_path / "last.ckpt", weights_only=False)["optimizer_states"][0]
    assert torch.equal(state["param_groups"][0]["multipliers"], model.opt.multipliers)
    logged = trainer.callback_metrics  # by LogReport, at the last batch of 480
    assert logged["constraints/mean/multiplier"].item() == pytest.approx(model.opt.multipliers[0].item())
    assert logged["constraints/objective"].item() == pytest.approx(model.opt.snapshot().objective)


@pytest.mark.filterwarnings("ignore")
def test_hugging_face_trainer(tmp_path):
    installed("transformers")
    installed("accelerate")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net, opt, x, trainer = load("huggingface_trainer").main(str(tmp_path))
    keeps_its_limit(net, opt, x)
    assert trainer.state.log_history[0]["constraints/mean/multiplier"] > 0


@pytest.mark.filterwarnings("ignore")
def test_accelerate():
    installed("accelerate")
    net, opt, x = load("accelerate_loop").main()
    keeps_its_limit(net, opt, x)


def test_post_training_under_limits_on_kl_length_and_cost():
    """On fresh completions: the reference is outside two limits, the trained policy near or within all three."""
    grpo = load("grpo_limits")
    policy, reference, _ = grpo.main()
    torch.manual_seed(1)
    found = {}
    with torch.no_grad():
        for name, model in (("trained", policy), ("reference", reference)):
            tokens, mask = grpo.generate(model, torch.randint(3, grpo.VOCABULARY, (4000,)))
            gap = grpo.log_probabilities(model, tokens) - grpo.log_probabilities(reference, tokens)
            kl = ((gap * mask).sum(1) / mask.sum(1)).mean().item()
            rude = (tokens[:, 1:] == grpo.RUDE).any(1).float().mean().item()
            found[name] = {"kl": kl, "length": mask.sum(1).float().mean().item(), "rude": rude}
    assert found["reference"]["length"] > 8.5
    assert found["reference"]["rude"] > 0.4
    assert found["trained"]["length"] <= 7.0 * 1.1
    assert found["trained"]["rude"] <= 0.1 * 1.5
    assert 0.05 < found["trained"]["kl"] <= 0.3 * 1.25


@pytest.mark.parametrize("steps", [100, pytest.param(600, marks=pytest.mark.campaign)])
@pytest.mark.filterwarnings("ignore")
def test_trl_grpo_under_limits(tmp_path, steps):
    """The multipliers rise, and the mean length falls to its limit of 6; the example meets all in 1,000 steps."""
    installed("trl")
    opt, trainer = load("trl_grpo").main(str(tmp_path), steps=steps)
    assert opt.dual_steps > 0
    assert opt.report()["kl"].value > 0  # the reference stayed where it was
    assert opt.report()["length"].multiplier > 0
    lengths = [entry["completions/mean_length"] for entry in trainer.state.log_history if "reward" in entry]
    assert lengths[0] > 8
    if steps == 600:
        assert sum(lengths[-10:]) / 10 <= 6.0 * 1.1
    assert any("constraints/length/value" in entry for entry in trainer.state.log_history)


def test_deepspeed():
    if find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed: its integration is NOT tested here")
    out = run(INTEGRATIONS / "deepspeed_engine.py", DS_ACCELERATOR="cpu")
    row = next(line for line in out.splitlines() if line.startswith("mean "))
    assert row.endswith("yes")
    assert float(row.split()[4]) > 0  # the multiplier


@pytest.mark.parametrize("path", sorted(INTEGRATIONS.glob("*.py")), ids=lambda path: path.name)
def test_an_example_says_how_to_start_it(path):
    head = path.read_text().split('"""')[1]
    assert "Start it with" in head
    assert f"examples/integrations/{path.name}" in head
