import numpy as np
import pytest

from gdpa.arrays import to_numpy
from gdpa.problem import Evaluation, Problem, jacobian
from gdpa.sets import Ball


def evaluate(x):
    return Evaluation(x @ x, x[:2], lambda w, objective=1.0: 2 * objective * x)


GOOD = [
    {},
    {"num_constraints": 2},
    {"num_constraints": 0},
    {"num_constraints": 2, "num_equalities": 2},
    {"num_equalities": 1},
    {"num_constraints": 2, "names": ("a", "b")},
    {"names": ("a", "b"), "domain": Ball(1.0)},
]
BAD = [
    ({"evaluate": 3}, TypeError, "evaluate must be callable, got 3; pass a function x -> Evaluation"),
    ({"num_constraints": -1}, ValueError, "num_constraints must be a nonnegative integer or None, got -1"),
    ({"num_constraints": 1.5}, ValueError, r"num_constraints must be a nonnegative integer or None, got 1\.5"),
    (
        {"num_equalities": -1},
        ValueError,
        "num_equalities must be an integer between 0 and num_constraints=None, got -1",
    ),
    (
        {"num_constraints": 1, "num_equalities": 2},
        ValueError,
        "num_equalities must be an integer between 0 and num_constraints=1, got 2",
    ),
    ({"domain": "reals"}, TypeError, r"domain must be a ConvexSet of gdpa\.sets, got 'reals'"),
    ({"num_constraints": 2, "names": ("a",)}, ValueError, "names has 1 entries for 2 constraints; give one name each"),
    ({"names": ("a", "a")}, ValueError, r"names must differ from each other, got \('a', 'a'\)"),
]


@pytest.mark.parametrize("options", GOOD)
def test_good_problems_pass(options):
    Problem(evaluate, **options)


@pytest.mark.parametrize(("options", "kind", "message"), BAD)
def test_bad_problems_say_what_is_wrong(options, kind, message):
    with pytest.raises(kind, match=message):
        Problem(**{"evaluate": evaluate, **options})


def test_constraints_have_names_for_messages():
    assert Problem(evaluate).constraint_name(1) == "g[1]"
    assert Problem(evaluate, names=("budget", "risk")).constraint_name(1) == "risk"


def test_the_jacobian_is_pulled_back_row_by_row(library):
    A = np.arange(6.0).reshape(2, 3)
    rows = library.array(A)
    calls = []

    def pullback(w, objective=1.0):
        calls.append((to_numpy(w).tolist(), objective))
        return w @ rows

    assert (
        to_numpy(jacobian(Evaluation(library.array(0.0), library.array([0.0, 0.0]), pullback))).tolist() == A.tolist()
    )
    assert calls == [([1.0, 0.0], 0.0), ([0.0, 1.0], 0.0)]


def test_the_jacobian_of_a_batch_and_of_nothing(library):
    slopes = library.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    batch = Evaluation(library.array([0.0, 0.0]), library.array([[0.0], [0.0]]), lambda w, objective=1.0: w * slopes)
    assert to_numpy(jacobian(batch)).tolist() == [[[1.0, 2.0, 3.0]], [[4.0, 5.0, 6.0]]]
    empty = Evaluation(library.array(0.0), library.array([]), lambda w, objective=1.0: library.array([0.0, 0.0, 0.0]))
    assert tuple(jacobian(empty).shape) == (0, 3)
