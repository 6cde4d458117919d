import numpy as np
import pytest

from gdpa import Ball, Evaluation, Problem
from gdpa.core.problem import row_by_row, unit_vectors
from tests.libraries import to_numpy


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
    {"x_scale": 3.0},
    {"x_scale": [1e-9, 1e9]},
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
    ({"domain": "reals"}, TypeError, r"domain must be a gdpa\.ConvexSet, such as gdpa\.Box, got 'reals'"),
    ({"num_constraints": 2, "names": ("a",)}, ValueError, "names has 1 entries for 2 constraints; give one name each"),
    ({"names": ("a", "a")}, ValueError, r"names must differ from each other, got \('a', 'a'\)"),
    ({"x_scale": 0.0}, ValueError, r"x_scale must be one positive length or one for each coordinate of x, got 0\.0"),
    ({"x_scale": [1.0, -1.0]}, ValueError, r"x_scale must be one positive length .*, got \[1\.0, -1\.0\]"),
    ({"x_scale": [1.0, float("inf")]}, ValueError, r"x_scale must be one positive length .*inf\]"),
    ({"x_scale": float("nan")}, ValueError, "x_scale must be one positive length .* got nan"),
    ({"x_scale": [[1.0, 2.0]]}, ValueError, "x_scale must be one positive length or one for each coordinate"),
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


A = np.arange(6.0).reshape(2, 3)
C = np.array([10.0, 20.0, 30.0])


def linear(library, calls, cheap=False):
    """f = <C, x> and g = A x, which write down every derivative that is asked of them."""
    rows, c = library.array(A), library.array(C)

    def pullback(w, objective=1.0):
        calls.append((to_numpy(w).tolist(), objective))
        return objective * c + w @ rows

    def jacobian():
        calls.append("jacobian")
        return rows

    return Evaluation(library.array(0.0), library.array([0.0, 0.0]), pullback, jacobian if cheap else None)


def test_an_evaluation_unpacks_as_its_three_parts(library):
    now = linear(library, [])
    f, g, pullback = now
    assert f is now.objective
    assert g is now.constraints
    assert pullback is now.pullback


def test_the_jacobian_is_pulled_back_row_by_row(library):
    calls: list = []
    assert to_numpy(linear(library, calls).jacobian()).tolist() == A.tolist()
    assert calls == [([1.0, 0.0], 0.0), ([0.0, 1.0], 0.0)]


def test_the_jacobian_in_one_piece_is_asked_for_if_there_is_one(library):
    calls: list = []
    now = linear(library, calls, cheap=True)
    assert now.has_cheap_jacobian
    assert not linear(library, []).has_cheap_jacobian
    assert to_numpy(now.jacobian()).tolist() == A.tolist()
    assert calls == ["jacobian"]


def test_the_gradient_is_pulled_back_without_the_constraints(library):
    calls: list = []
    assert to_numpy(linear(library, calls).gradient()).tolist() == C.tolist()
    assert calls == [([0.0, 0.0], 1.0)]


@pytest.mark.parametrize("cheap", [False, True])
def test_each_derivative_is_computed_at_most_once(library, cheap):
    calls: list = []
    now = linear(library, calls, cheap)
    assert not now.knows_derivatives
    now.gradient()
    assert not now.knows_derivatives
    now.jacobian()
    assert now.knows_derivatives
    made = len(calls)
    assert made == (2 if cheap else 3)
    assert now.gradient() is now.gradient()
    assert now.jacobian() is now.jacobian()
    assert len(calls) == made


def test_two_points_do_not_share_their_derivatives():
    # x -> (x^2, [x^3]): the derivatives at 1 are 2 and 3, at 2 they are 4 and 12.
    def evaluate(x):
        return Evaluation(x[0] ** 2, x**3, lambda w, objective=1.0: 2 * objective * x + 3 * w * x**2)

    problem = Problem(evaluate)
    one, two = problem.evaluate(np.array([1.0])), problem.evaluate(np.array([2.0]))
    assert (one.gradient().tolist(), one.jacobian().tolist()) == ([2.0], [[3.0]])
    assert (two.gradient().tolist(), two.jacobian().tolist()) == ([4.0], [[12.0]])
    assert (one.gradient().tolist(), one.jacobian().tolist()) == ([2.0], [[3.0]])


def test_the_jacobian_of_a_batch_and_of_nothing(library):
    slopes = library.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    batch = Evaluation(library.array([0.0, 0.0]), library.array([[0.0], [0.0]]), lambda w, objective=1.0: w * slopes)
    assert to_numpy(batch.jacobian()).tolist() == [[[1.0, 2.0, 3.0]], [[4.0, 5.0, 6.0]]]
    empty = Evaluation(library.array(0.0), library.array([]), lambda w, objective=1.0: library.array([0.0, 0.0, 0.0]))
    assert tuple(empty.jacobian().shape) == (0, 3)


def test_without_constraints_the_gradient_is_all_there_is_to_know(library):
    now = Evaluation(library.array(0.0), library.array([]), lambda w, objective=1.0: library.array([1.0, 2.0]))
    now.gradient()
    assert now.knows_derivatives


def test_unit_vectors_have_the_type_and_the_leading_axes_of_the_constraints(library):
    g = library.array([[5.0, 6.0], [7.0, 8.0]], "float32")
    units = list(unit_vectors(g))
    assert [to_numpy(u).tolist() for u in units] == [[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2]
    assert {u.dtype for u in units} == {g.dtype}
    assert list(unit_vectors(library.array([]))) == []


def test_row_by_row_hides_the_jacobian_in_one_piece_and_nothing_else(library):
    calls: list = []
    problem = Problem(lambda x: linear(library, calls, cheap=True), num_constraints=2, num_equalities=1, x_scale=2.0)
    other = row_by_row(problem)
    assert to_numpy(other.evaluate(None).jacobian()).tolist() == A.tolist()
    assert calls == [([1.0, 0.0], 0.0), ([0.0, 1.0], 0.0)]
    assert (other.num_constraints, other.num_equalities, other.x_scale) == (2, 1, 2.0)
