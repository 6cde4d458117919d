"""Runs in files: continued to the same end, refused if they belong elsewhere, kept through signals."""

import errno
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import gdpa
from gdpa import GDPA, AdaptiveGDPA, KKTBelow, MaxSteps, load_run, problems, save_run, solve, storage
from gdpa.run.saving import newest_run
from tests.stored import assert_same

HS43, DISC = problems.get("HS43"), problems.get("disc-product")
METHODS = [GDPA(alpha=0.01, beta=2.0), AdaptiveGDPA(), AdaptiveGDPA(step="pullback")]


def assert_same_end(a, b):
    """Two results that nobody can tell apart but by the clock and what was spent on reading them in."""
    assert (a.status, a.success, a.steps, a.forwards, a.backwards) == (
        b.status,
        b.success,
        b.steps,
        b.forwards,
        b.backwards,
    )
    for name in ("x", "multipliers", "x_last", "multipliers_last", "x_best_feasible", "x_average", "certificate"):
        assert_same(getattr(a, name), getattr(b, name))
    assert_same(a.state, b.state)
    for column in set(a.history) - {"seconds"}:
        assert_same(a.history[column], b.history[column])


@pytest.mark.parametrize("method", METHODS, ids=["gdpa", "adaptive", "pullback"])
@pytest.mark.parametrize("cut", [1, 7, 12])
def test_a_run_through_a_file_is_the_straight_run(method, cut, tmp_path):
    stop = (KKTBelow(1e-7), MaxSteps(40))
    straight = solve(HS43.problem, HS43.x0, method, stop=stop, tolerance=1e-7)
    first = solve(HS43.problem, HS43.x0, method, stop=(KKTBelow(1e-7), MaxSteps(cut)), tolerance=1e-7)
    save_run(tmp_path / "run", first.run)
    assert_same_end(straight, solve(HS43.problem, run=load_run(tmp_path / "run"), stop=stop, tolerance=1e-7))


def test_checkpoints_resume_to_the_same_end(tmp_path):
    options = {"algorithm": METHODS[0], "checkpoint": tmp_path / "run", "every": 10, "keep": 2}
    straight = solve(DISC.problem, DISC.x0, METHODS[0], stop=MaxSteps(75))
    solve(DISC.problem, DISC.x0, stop=MaxSteps(35), **options)
    assert newest_run(tmp_path / "run").step == 35
    assert len(list(tmp_path.iterdir())) == 2
    resumed = solve(DISC.problem, DISC.x0, stop=MaxSteps(75), resume=True, **options)
    assert_same_end(straight, resumed)
    # The finished run is there, too: nothing is left to do.
    again = solve(DISC.problem, DISC.x0, stop=MaxSteps(75), resume=True, **options)
    assert_same_end(straight, again)


def test_resume_starts_at_x0_if_nothing_was_saved(tmp_path):
    found = solve(DISC.problem, DISC.x0, checkpoint=tmp_path / "run", resume=True)
    assert found.success


def test_a_damaged_newest_file_is_passed_over(tmp_path):
    solve(DISC.problem, DISC.x0, METHODS[0], stop=MaxSteps(30), checkpoint=tmp_path / "run", every=10)
    newest = max(tmp_path.iterdir())
    newest.write_bytes(newest.read_bytes()[:-5])
    with pytest.warns(UserWarning, match=newest.name):
        assert newest_run(tmp_path / "run").step == 20


def test_runs_of_another_method_or_problem_are_refused(tmp_path):
    run = solve(DISC.problem, DISC.x0, METHODS[0], stop=MaxSteps(5)).run
    with pytest.raises(ValueError, match=r"run belongs to GDPA.* and cannot be continued by AdaptiveGDPA"):
        solve(DISC.problem, run=run, algorithm=AdaptiveGDPA())
    with pytest.raises(ValueError, match="run belongs to another problem: at its point f was"):
        solve(problems.get("disc-square").problem, run=run)
    with pytest.raises(ValueError, match=r"HS43 has 4 variables, got x of shape \(7,\)") as raised:
        solve(HS43.problem, run=solve(problems.get("HS100").problem, problems.get("HS100").x0, stop=MaxSteps(3)).run)
    assert "the point of the run, which has 7 coordinates: is it the same problem?" in raised.value.__notes__[0]
    with pytest.raises(ValueError, match="give x0 or run, not both"):
        solve(DISC.problem, DISC.x0, run=run)
    with pytest.raises(TypeError, match=r"run must be a Run, such as result\.run"):
        solve(DISC.problem, run=run.state)
    with pytest.raises(ValueError, match=r"resume=True continues from the files of checkpoint=\.\.\."):
        solve(DISC.problem, DISC.x0, resume=True)
    storage.save(tmp_path / "numbers", [1.0, 2.0])
    with pytest.raises(storage.DamagedFileError, match="numbers does not hold a run of gdpa but a list"):
        load_run(tmp_path / "numbers")
    (tmp_path / "foreign").write_bytes(b"PK\x03\x04 not ours")
    with pytest.raises(storage.DamagedFileError, match="foreign is not a file of gdpa"):
        load_run(tmp_path / "foreign")


def test_what_cannot_be_saved_is_said_before_the_first_step(tmp_path):
    steps = []
    with pytest.raises(TypeError, match="cannot be stored"):
        solve(
            DISC.problem, DISC.x0, GDPA(alpha=lambda r: 0.1), stop=MaxSteps(5), checkpoint=tmp_path / "run",
            observers=[lambda progress: steps.append(progress.step)],
        )  # fmt: skip
    assert steps == []
    assert list(tmp_path.iterdir()) == []


SLOW = """
    import sys, time
    import numpy as np
    import gdpa

    def f(x):
        time.sleep(0.002)
        return x @ x

    problem = gdpa.from_functions(f, lambda x: 1 - x[:1], gradient=lambda x: 2 * x, jacobian=lambda x: -np.eye(1, 2))
    print("ready", flush=True)
    gdpa.solve(
        problem, np.array([3.0, 1.0]), gdpa.GDPA(alpha=1e-4, beta=1e-3), stop=gdpa.MaxSteps(100_000),
        checkpoint=sys.argv[1], every=1_000_000, tolerance=1e-12,
    )
"""


def test_sigterm_saves_and_ends_the_process(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SLOW), str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"  # or the end of its output, if it dies
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == -signal.SIGTERM  # ended by the signal, as anybody who sent it expects
    process.stdout.close()
    run = newest_run(tmp_path / "run")
    assert run.step > 0
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".gdpa"]
    problem = gdpa.from_functions(
        lambda x: x @ x, lambda x: 1 - x[:1], gradient=lambda x: 2 * x, jacobian=lambda x: -np.eye(1, 2)
    )
    assert solve(problem, run=run, stop=MaxSteps(run.step + 5)).steps == run.step + 5


def test_b10_full_disk_keeps_the_result(tmp_path, monkeypatch):
    saves = []

    def full(path, value):
        saves.append(path)
        if len(saves) > 2:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        storage.save(path, value)

    monkeypatch.setattr("gdpa.files.checkpoints.save", full)
    with pytest.raises(OSError, match="No space left") as raised:
        solve(DISC.problem, DISC.x0, METHODS[0], stop=MaxSteps(75), checkpoint=tmp_path / "run", every=10)
    partial = raised.value.partial_result
    straight = solve(DISC.problem, DISC.x0, METHODS[0], stop=MaxSteps(partial.steps))
    assert partial.steps == 20
    assert partial.x_last.tolist() == straight.x_last.tolist()
    assert len(saves) == 4  # at 0, at 10, twice refused


def test_b10_full_disk_at_the_last_save_keeps_the_result(tmp_path, monkeypatch):
    def full(path, value):
        if "-step-75" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        storage.save(path, value)

    monkeypatch.setattr("gdpa.files.checkpoints.save", full)
    with pytest.raises(OSError, match="No space left") as raised:
        solve(DISC.problem, DISC.x0, METHODS[0], stop=MaxSteps(75), checkpoint=tmp_path / "run", every=100)
    assert raised.value.partial_result.steps == 75


def test_b12_another_x0_is_not_resumed(tmp_path):
    options = {"algorithm": METHODS[0], "checkpoint": tmp_path / "run", "resume": True}
    first = solve(DISC.problem, DISC.x0, stop=MaxSteps(5), **options)
    with pytest.raises(ValueError, match=r"the saved run started at .* leave x0 out"):
        solve(DISC.problem, DISC.x0 + 0.5, stop=MaxSteps(9), **options)
    straight = solve(DISC.problem, DISC.x0, METHODS[0], stop=MaxSteps(9))
    assert first.steps == 5
    assert_same_end(straight, solve(DISC.problem, stop=MaxSteps(9), **options))


def test_n6_the_verdict_after_resuming_is_the_same(tmp_path):
    method = GDPA(alpha=0.05, beta=2.0)
    straight = solve(DISC.problem, DISC.x0, method, tolerance=1e-1, stop=MaxSteps(300))
    first = solve(DISC.problem, DISC.x0, method, tolerance=1e-1, stop=MaxSteps(120))
    save_run(tmp_path / "run", first.run)
    resumed = solve(DISC.problem, run=load_run(tmp_path / "run"), stop=MaxSteps(300))
    assert straight.success
    assert resumed.tolerance == 1e-1
    assert_same_end(straight, resumed)
