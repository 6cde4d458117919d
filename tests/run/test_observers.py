import io

import numpy as np
import pytest

from gdpa import GDPA, MaxSteps, Progress, ProgressDisplay, Run, get_method, problems, solve
from gdpa.core.units import reference_at
from gdpa.run.observers import IterationLines
from gdpa.run.oracle import CountingOracle


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(*observers, steps=5, **options):
    own = problems.get("HS12")
    return solve(own.problem, own.x0, GDPA(), stop=MaxSteps(steps), observers=observers, **options)


def test_observers_see_every_step_in_order():
    seen = []
    run(lambda progress: seen.append((progress.step, progress.forwards, progress.backwards)))
    assert seen == [(1, 2, 1), (2, 3, 2), (3, 4, 3), (4, 5, 4), (5, 6, 5)]


def test_measuring_is_not_on_the_methods_account():
    def nosy(progress):
        progress.problem.evaluate(progress.state.x).pullback(np.zeros(1))
        progress.state.evaluation.pullback(np.zeros(1))

    plain, result = run(steps=10), run(nosy, steps=10)
    assert (result.forwards, result.backwards) == (plain.forwards, plain.backwards) == (11, 10)
    assert result.measuring.forwards == plain.measuring.forwards + 10
    assert result.measuring.backwards == plain.measuring.backwards + 20
    assert result.calls.forwards == 11 + result.measuring.forwards
    assert result.calls.backwards == 10 + result.measuring.backwards


def test_the_history_keeps_every_nth_step():
    assert run(record=2).history["step"].tolist() == [2, 4]
    assert run(record=0).history.columns == {}


def test_the_history_goes_on_where_a_run_was_cut():
    own, whole = problems.get("HS12"), run(steps=5).history
    rest = solve(own.problem, run=run(steps=3).run, stop=MaxSteps(5)).history
    for name in ("step", "forwards", "backwards", "objective", "stationarity", "feasibility", "slackness", "kkt"):
        assert rest[name].tolist() == whole[name].tolist(), name


def test_a_state_without_a_probe_is_no_row_of_the_history():
    own = problems.get("HS12")
    state = GDPA().init(own.problem, own.x0)
    run = Run(algorithm=GDPA(), state=state, start=reference_at(state.evaluation, own.x0), shape=(2, 1, 0))
    progress = Progress(CountingOracle(own.problem), run, 1e-4)
    progress.look()
    progress.keep_row()
    assert len(progress.record().history) == 0


def test_the_display_writes_one_line_on_a_terminal():
    stream = Terminal()
    run(ProgressDisplay(stream, interval=0.0))
    text = stream.getvalue()
    assert text.count("\r") == 6  # every step, and the last one again at the end
    assert text.endswith("s\n")
    assert text.count("\n") == 1
    assert text.splitlines()[-1].startswith("step        5")
    assert "relative KKT" in text


def test_the_display_ends_its_line_when_the_run_is_cut_short():
    def stop(progress):
        if progress.step == 3:
            raise StopIteration

    stream = Terminal()
    run(ProgressDisplay(stream, interval=3600.0), stop)
    assert stream.getvalue().endswith("\n")
    assert "step        3" in stream.getvalue().rpartition("\r")[2]


def test_the_display_can_watch_several_runs():
    stream = Terminal()
    display = ProgressDisplay(stream, interval=3600.0)
    run(display)
    run(display)
    own = problems.get("HS12")
    solve(own.problem, own.x0, GDPA(), stop=MaxSteps(5), observers=[display], best_of=2)
    assert stream.getvalue().count("\n") == 4


def test_the_bar_shows_the_digits_gained_and_never_goes_back():
    own, stream = problems.get("HS43"), Terminal()
    solve(own.problem, own.x0, observers=[ProgressDisplay(stream, interval=0.0)], tolerance=1e-6)
    bars = [line[line.index("[") : line.index("]") + 1] for line in stream.getvalue().split("\r")[1:]]
    lengths = [bar.count("#") for bar in bars]
    assert {len(bar) for bar in bars} == {22}
    assert lengths[0] == 0
    assert lengths[-1] == 20
    assert lengths == sorted(lengths)


def test_a_line_for_every_accepted_point_with_a_heading_every_twenty():
    stream = io.StringIO()
    history = run(IterationLines(stream), steps=45).history
    lines = stream.getvalue().splitlines()
    heading = lines[0].split()
    assert heading == list(IterationLines.COLUMNS)
    assert [i for i, line in enumerate(lines) if line.split() == heading] == [0, 21, 42]
    rows = np.array([line.split() for line in lines if line.split() != heading], dtype=float)
    columns = dict(zip(heading, rows.T, strict=True))
    for name in ("step", "forwards", "backwards"):
        assert columns[name].tolist() == history[name].tolist()
    assert columns["objective"] == pytest.approx(history["objective"], rel=1e-6)
    assert columns["penalty"] == pytest.approx(np.arange(1, 46) ** (1 / 3), rel=1e-2)  # beta_r = r^(1/3)


def test_the_lines_of_the_default_method_show_its_points():
    points = []
    own, stream = problems.get("HS100"), io.StringIO()

    def keep(progress):
        if progress.state.probe is not None:
            points.append((progress.state.probe.x, progress.residuals, progress.state.lagrangian.beta))

    solve(own.problem, own.x0, observers=[IterationLines(stream), keep])
    rows = np.array([line.split() for line in stream.getvalue().splitlines()[1:]], dtype=float)
    assert len(rows) == len(points)
    x = np.array([own.x0, *(point for point, _, _ in points)])
    assert rows[:, 2] == pytest.approx([r.feasibility for _, r, _ in points], rel=1e-2)
    assert rows[:, 3] == pytest.approx([r.stationarity for _, r, _ in points], rel=1e-2)
    assert rows[:, 4] == pytest.approx([beta for _, _, beta in points], rel=1e-2)
    assert rows[:, 5] == pytest.approx(np.abs(np.diff(x, axis=0)).max(axis=1), rel=1e-2)


def test_disp_chooses_lines_or_a_bar(capsys, monkeypatch):
    own = problems.get("HS12")

    def shown(disp):
        solve(own.problem, own.x0, GDPA(), stop=MaxSteps(3), disp=disp)
        return capsys.readouterr()

    assert shown(False) == ("", "")
    assert shown(True).out.count("\n") == shown("lines").out.count("\n") == 4
    bar = shown("bar")
    assert bar.out == ""
    assert bar.err.count("[") >= 2
    monkeypatch.setattr("gdpa.run.observers._in_notebook", lambda stream: True)
    notebook = shown(True)
    assert notebook.out == ""
    assert "relative KKT" in notebook.err
    with pytest.raises(ValueError, match="disp must be True, False, 'lines' or 'bar', got 'table'"):
        shown("table")


def test_several_runs_have_a_heading_each():
    own, stream = problems.get("HS12"), io.StringIO()
    lines = IterationLines(stream)
    for _ in range(2):
        solve(own.problem, own.x0, GDPA(), stop=MaxSteps(2), observers=[lines])
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == ["step", "1", "2", "step", "1", "2"]


def test_a_method_without_a_penalty_has_a_dash():
    own, stream = problems.get("HS12"), io.StringIO()
    solve(own.problem, own.x0, get_method("hibsa")(), stop=MaxSteps(1), observers=[IterationLines(stream)])
    assert stream.getvalue().splitlines()[1].split()[4] == "-"


def test_the_display_writes_nothing_about_a_run_without_steps():
    stream = Terminal()
    run(ProgressDisplay(stream), steps=0)
    assert stream.getvalue() == ""


def test_the_display_writes_into_a_notebook_once_a_second():
    class OutStream(io.StringIO):
        """As `ipykernel.iostream.OutStream`: no terminal."""

    OutStream.__module__ = "ipykernel.iostream"
    stream = OutStream()
    run(ProgressDisplay(stream, interval=0.0), steps=50)
    text = stream.getvalue()
    assert 2 <= text.count("\r") < 50
    assert text.endswith("\n")


def test_the_display_is_silent_elsewhere_unless_forced():
    stream = io.StringIO()
    run(ProgressDisplay(stream, interval=0.0))
    assert stream.getvalue() == ""
    run(ProgressDisplay(stream, interval=0.0, force=True))
    assert "step        1" in stream.getvalue()


def test_the_display_waits_between_two_writes():
    stream = Terminal()
    run(ProgressDisplay(stream, interval=3600.0), steps=50)
    assert stream.getvalue().count("\r") == 2  # the first step, and the end


def test_the_display_writes_to_standard_error_by_default(capsys):
    run(ProgressDisplay(force=True, interval=0.0), steps=1)
    assert "step" in capsys.readouterr().err


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_a_batch_records_one_value_each(shape):
    from gdpa import Evaluation, Problem

    own = Problem(
        lambda x: Evaluation((x**2).sum(-1), x[..., :1] - 1, lambda w, objective=1.0: 2 * x + w * np.array([1.0, 0.0]))
    )
    history = solve(own, np.ones((*shape, 2)), GDPA(), stop=MaxSteps(4)).history
    assert history["objective"].shape == (4, *shape)
    assert history["kkt"].shape == (4, *shape)
    assert history["step"].shape == (4,)


def test_one_observer_needs_no_list_and_a_wrong_one_is_named():
    hs, seen = problems.get("HS12"), []
    solve(hs.problem, hs.x0, stop=MaxSteps(3), observers=lambda progress: seen.append(progress.step))
    assert seen == [1, 2, 3]
    with pytest.raises(TypeError, match=r"observers must be functions of the Progress of a run, got \(3,\)"):
        solve(hs.problem, hs.x0, observers=[3])  # type: ignore[list-item]
