"""The points worth keeping, from probes made by hand."""

import numpy as np
import pytest

from gdpa.algorithms import Probe, State
from gdpa.kkt import Scale
from gdpa.problem import Evaluation, Problem
from gdpa.progress import DIVERGED, Progress


def look(progress, step, x, f, g, gradient, weight=1.0, multipliers=None):
    x, g, gradient = np.array(x), np.array(g), np.array(gradient)
    lam = np.zeros_like(g) if multipliers is None else np.array(multipliers)
    probe = Probe(x, lam, np.array(f), g, gradient, weight)
    progress.look(State(step=step, x=x, multipliers=lam, evaluation=None, probe=probe))


def start(x, tolerance=1e-4, scale=None):
    x = np.array(x)
    state = State(step=0, x=x, multipliers=np.zeros((*x.shape[:-1], 1)), evaluation=None, probe=None)
    # grad f = 0 everywhere, so that the scale alone gives the units
    problem = Problem(lambda x: Evaluation(x[..., 0], x[..., :1], lambda w, objective=1.0: 0 * x))
    return Progress(problem, state, Evaluation(None, None, None), scale or Scale(), tolerance)


def test_the_best_is_the_one_with_the_smallest_worst_residual():
    progress = start([0.0])
    look(progress, 1, [1.0], 5.0, [0.0], [0.3])
    look(progress, 2, [2.0], 4.0, [0.2], [0.0])
    look(progress, 3, [3.0], 3.0, [0.25], [0.1])
    assert progress.best.x.tolist() == [2.0]
    assert progress.kkt == pytest.approx(0.25)
    assert progress.last.x.tolist() == [3.0]


def test_the_best_feasible_is_the_lowest_within_the_tolerance():
    progress = start([0.0], tolerance=1e-2)
    look(progress, 1, [1.0], 5.0, [-1.0], [1.0])
    look(progress, 2, [2.0], 1.0, [0.02], [1.0])  # lower, but not feasible
    look(progress, 3, [3.0], 3.0, [0.009], [1.0])
    look(progress, 4, [4.0], 4.0, [-1.0], [1.0])
    assert progress.best_feasible.x.tolist() == [3.0]


def test_the_average_is_weighted():
    progress = start([0.0])
    look(progress, 1, [1.0], 0.0, [0.0], [1.0], weight=1.0)
    look(progress, 2, [4.0], 0.0, [0.0], [1.0], weight=3.0)
    look(progress, 3, [0.0], 0.0, [0.0], [1.0], weight=4.0)
    assert progress.average == pytest.approx([(1 + 12) / 8])


@pytest.mark.parametrize(
    "bad",
    [
        {"f": np.nan},
        {"f": np.inf},
        {"g": [np.nan]},
        {"g": [np.inf]},
        {"gradient": [np.nan]},
        {"gradient": [-np.inf]},
        {"multipliers": [np.nan]},
    ],
)
def test_what_is_not_finite_is_never_kept(bad):
    progress = start([0.0])
    look(progress, 1, [1.0], 5.0, [-1.0], [1.0])
    assert progress.finite
    with np.errstate(invalid="ignore"):
        look(progress, 2, **{"x": [2.0], "f": 1.0, "g": [-1.0], "gradient": [0.0], **bad})
    assert not progress.finite
    for kept in (progress.best, progress.best_feasible, progress.last):
        assert kept.x.tolist() == [1.0]
    assert progress.average.tolist() == [1.0]


def test_a_batch_keeps_the_best_of_each_member():
    progress = start([[0.0], [0.0]], tolerance=1e-2, scale=Scale(np.ones(2), np.ones(2)))
    look(progress, 1, [[1.0], [10.0]], [5.0, 5.0], [[-1.0], [1.0]], [[0.3], [0.1]])
    look(progress, 2, [[2.0], [20.0]], [4.0, 4.0], [[-1.0], [-1.0]], [[0.1], [0.5]])
    look(progress, 3, [[3.0], [30.0]], [4.5, 3.0], [[-1.0], [-1.0]], [[0.2], [0.9]])
    assert progress.best.x.tolist() == [[2.0], [20.0]]
    assert progress.best_feasible.x.tolist() == [[2.0], [30.0]]
    assert progress.kkt == pytest.approx(0.9)
    look(progress, 4, [[3.0], [30.0]], [4.5, np.nan], [[-1.0], [-1.0]], [[0.2], [0.9]])
    assert not progress.finite


def test_a_member_that_was_never_feasible_is_nan():
    progress = start([[0.0], [0.0]], scale=Scale(np.ones(2), np.ones(2)))
    look(progress, 1, [[1.0], [10.0]], [5.0, 5.0], [[-1.0], [1.0]], [[0.3], [0.1]])
    assert progress.best_feasible.x[0].tolist() == [1.0]
    assert np.isnan(progress.best_feasible.x[1]).all()


def test_divergence_is_measured_against_the_start():
    progress = start([10.0])
    look(progress, 1, [5 * DIVERGED], 0.0, [0.0], [1.0])
    assert not progress.diverged
    look(progress, 2, [-20 * DIVERGED], 0.0, [0.0], [1.0])
    assert progress.diverged
