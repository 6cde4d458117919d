import numpy as np
import pytest

from gdpa import GDPA, Evaluation, History, MaxSteps, Problem, Status, problems, solve


@pytest.fixture(scope="module")
def result():
    own = problems.get("HS43")
    return solve(own.problem, own.x0, GDPA(alpha=0.01, beta=0.5), stop=MaxSteps(50))


def test_every_status_is_its_own_sentence():
    sentences = [status.value for status in Status]
    assert len(set(sentences)) == len(sentences) == len(Status.__members__)
    assert all(sentence.endswith(".") and len(sentence) > 20 for sentence in sentences)


def test_a_result_reads_well(result):
    lines = repr(result).splitlines()
    assert lines[0] == "Result of GDPA: no success"
    assert Status.MAX_STEPS.value in lines[1]
    assert [line.split()[0] for line in lines[2:7]] == ["objective", "x", "residuals", "cost", "constraint"]
    calls = result.calls
    assert f"50 steps, {calls.forwards} forwards, {calls.backwards} backwards (51 and 50 by the method)" in lines[5]
    assert [line.split()[0] for line in lines[7:]] == ["g[0]", "g[1]", "g[2]"]


def test_the_objective_has_scipys_name_too(result):
    assert result.fun == result.objective == result.certificate.objective


def test_a_long_vector_is_cut_short_in_print():
    from gdpa import from_functions

    big = from_functions(lambda x: x @ x, gradient=lambda x: 2 * x)
    text = repr(solve(big, np.ones(1000), GDPA(), stop=MaxSteps(1)))
    assert len(text) < 1000
    assert "..." in text


def test_the_history_is_columns_of_equal_length(result):
    history = result.history
    assert len(history) == 9
    assert set(history) == {
        "step", "forwards", "backwards", "seconds", "objective", "stationarity", "feasibility", "slackness", "kkt",
    }  # fmt: skip
    assert {len(column) for column in history.values()} == {50}
    assert (np.diff(history["seconds"]) >= 0).all()
    assert repr(history).startswith("History(50 rows of step, forwards, ")
    assert repr(History()) == "History(0 rows of )"
    with pytest.raises(KeyError):
        history["nonsense"]


def test_the_history_holds_the_papers_residuals_of_the_step():
    own = problems.get("HS43")
    seen = []
    method = GDPA(alpha=0.01, beta=0.5)

    def watch(progress):
        seen.append(progress.state.probe)

    history = solve(own.problem, own.x0, method, stop=MaxSteps(20), observers=[watch]).history
    for i, probe in enumerate(seen):
        now = own.problem.evaluate(probe.x)
        assert history["objective"][i] == now.objective
        assert history["stationarity"][i] == pytest.approx(np.linalg.norm(now.pullback(probe.multipliers)))
        assert history["feasibility"][i] == pytest.approx(np.linalg.norm(np.maximum(now.constraints, 0)))
        assert history["slackness"][i] == pytest.approx(np.abs(probe.multipliers * now.constraints).sum())


def test_the_history_becomes_a_data_frame(result):
    assert isinstance(result.history, dict)  # what pandas and polars ask
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(result.history)
    assert list(frame.columns) == list(result.history)
    assert frame.shape == (50, 9)
    assert frame["kkt"].to_numpy() == pytest.approx(result.history["kkt"])


def test_a_batch_prints_without_a_table():
    own = Problem(
        lambda x: Evaluation((x**2).sum(-1), x[..., :1] - 1, lambda w, objective=1.0: 2 * x + w * np.array([1.0, 0.0]))
    )
    result = solve(own, np.ones((3, 2)), GDPA(), stop=MaxSteps(2))
    assert "multipliers" in repr(result)
    assert "constraint " not in repr(result)
    assert result._repr_html_().count("<table>") == 1


def test_the_plot_shows_what_was_recorded(result):
    plt = pytest.importorskip("matplotlib.pyplot")
    axes = result.plot()
    assert [line.get_label() for line in axes.lines] == ["stationarity", "feasibility", "slackness", "relative KKT"]
    assert axes.lines[0].get_xdata().tolist() == list(range(1, 51))
    assert axes.lines[0].get_ydata() == pytest.approx(result.history["stationarity"])
    assert axes.get_yscale() == "log"
    own = plt.figure().add_subplot()
    assert result.plot(own) is own
    plt.close("all")


def test_low_items_a_plot_of_few_steps_has_a_plain_axis_and_a_title():
    plt = pytest.importorskip("matplotlib.pyplot")
    own = problems.get("HS43")
    few, many = (solve(own.problem, own.x0, GDPA(), stop=MaxSteps(steps)).plot() for steps in (8, 50))
    assert (few.get_xscale(), many.get_xscale()) == ("linear", "log")
    assert few.get_title() == "Result of GDPA: no success"
    plt.close("all")


def test_a_plot_of_nothing_says_so():
    own = problems.get("HS43")
    with pytest.raises(ValueError, match=r"nothing was recorded; run solve with record=1"):
        solve(own.problem, own.x0, GDPA(), stop=MaxSteps(3), record=0).plot()
