import numpy as np
import pytest

from gdpa.oracle import CountingOracle
from gdpa.problem import Evaluation, Problem


def make(f=lambda x: x @ x, g=lambda x: x[:1], pull=lambda x: 2 * x, **options):
    return CountingOracle(Problem(lambda x: Evaluation(f(x), g(x), lambda w, objective=1.0: pull(x)), **options))


def test_forwards_and_backwards_are_counted_apart():
    oracle = make()
    now = oracle.problem.evaluate(np.ones(2))
    assert (oracle.forwards, oracle.backwards) == (1, 0)
    now.pullback(np.zeros(1))
    now.pullback(np.zeros(1), objective=0.0)
    oracle.problem.evaluate(np.zeros(2))
    assert (oracle.forwards, oracle.backwards) == (2, 2)


def test_a_jacobian_of_another_shape_is_refused():
    oracle = make(jacobian=lambda x: np.ones((3, 2)))
    oracle.problem.evaluate(np.ones(2))
    with pytest.raises(ValueError, match=r"jacobian has shape \(3, 2\), expected \(1, 2\)"):
        oracle.problem.jacobian(np.ones(2))


def test_a_jacobian_counts_as_one_backward():
    oracle = make(jacobian=lambda x: np.array([[1.0, 0.0]]))
    assert oracle.problem.jacobian(np.ones(2)).tolist() == [[1.0, 0.0]]
    assert oracle.backwards == 1
    assert make().problem.jacobian is None


def test_all_else_about_the_problem_is_kept():
    inner = Problem(lambda x: Evaluation(x @ x, x, None), num_constraints=2, num_equalities=1, names=("a", "b"))
    outer = CountingOracle(inner).problem
    assert (outer.num_constraints, outer.num_equalities, outer.names) == (2, 1, ("a", "b"))
    assert outer.domain is inner.domain


BAD = [
    ({"f": lambda x: 1.0}, TypeError, r"the objective must be a floating-point array .*\(numpy\), got float 1\.0"),
    ({"f": lambda x: x}, ValueError, r"the objective has shape \(2,\), expected \(\): one number per problem"),
    ({"g": lambda x: x[0]}, ValueError, r"constraints have shape \(\), expected .*return a vector even for a single"),
    ({"g": lambda x: [1.0]}, TypeError, r"the constraints must be a floating-point array"),
    ({"g": lambda x: np.ones(1, dtype=int)}, TypeError, r"the constraints must be a floating-point array"),
    ({"g": lambda x: x[None]}, ValueError, r"constraints have shape \(1, 2\)"),
    ({"g": lambda x: x, "num_constraints": 3}, ValueError, "the constraints have length 2, expected 3"),
    ({"g": lambda x: x, "names": ("a",)}, ValueError, "names has 1 entries for 2 constraints"),
    ({"g": lambda x: x, "num_equalities": 3}, ValueError, "num_equalities must be .* num_constraints=2, got 3"),
]


@pytest.mark.parametrize(("options", "kind", "message"), BAD)
def test_what_comes_back_is_checked(options, kind, message):
    with pytest.raises(kind, match=message):
        make(**options).problem.evaluate(np.ones(2))


def test_a_pullback_of_the_wrong_shape_is_named():
    now = make(pull=lambda x: np.zeros(3)).problem.evaluate(np.ones(2))
    with pytest.raises(ValueError, match=r"the pullback returned shape \(3,\) for x of shape \(2,\)"):
        now.pullback(np.zeros(1))


def test_a_length_that_changes_is_named():
    oracle = make(g=lambda x: x[: 1 if x[0] > 0 else 2])
    oracle.problem.evaluate(np.ones(2))
    with pytest.raises(ValueError, match="the constraints have length 2, expected 1"):
        oracle.problem.evaluate(-np.ones(2))


def test_good_shapes_pass_with_leading_axes(library):
    def evaluate(x):
        return Evaluation(x[..., 0], x[..., :2], lambda w, objective=1.0: x)

    for start in ([1.0, 2.0, 3.0], [[1.0, 2.0, 3.0]], [[[1.0, 2.0, 3.0]] * 2] * 2):
        oracle = CountingOracle(Problem(evaluate))
        now = oracle.problem.evaluate(library.array(start))
        assert now.pullback(now.constraints).shape == library.array(start).shape
