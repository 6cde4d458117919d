import numpy as np
import pytest

from gdpa import Evaluation, Problem
from gdpa.run.oracle import CountingOracle, Counts


def make(f=lambda x: x @ x, g=lambda x: x[:1], pull=lambda x: 2 * x, jacobian=None, **options):
    def evaluate(x):
        whole = None if jacobian is None else lambda: jacobian(x)
        return Evaluation(f(x), g(x), lambda w, objective=1.0: pull(x), whole)

    return CountingOracle(Problem(evaluate, **options))


def test_forwards_and_backwards_are_counted_apart():
    oracle = make()
    now = oracle.problem.evaluate(np.ones(2))
    assert oracle.method == Counts(forwards=1, backwards=0)
    now.pullback(np.zeros(1))
    now.pullback(np.zeros(1), objective=0.0)
    oracle.problem.evaluate(np.zeros(2))
    assert oracle.method == Counts(forwards=2, backwards=2)
    assert oracle.measuring == Counts()


def test_calls_off_account_are_charged_to_measuring():
    oracle = make()
    now = oracle.problem.evaluate(np.ones(2))
    with oracle:
        now.pullback(np.zeros(1))  # of an evaluation that the method made
        own = oracle.problem.evaluate(np.ones(2))
        with oracle:
            own.pullback(np.zeros(1))
        own.pullback(np.zeros(1))
    own.pullback(np.zeros(1))  # the method pulls back what measuring evaluated
    assert oracle.method == Counts(forwards=1, backwards=1)
    assert oracle.measuring == Counts(forwards=1, backwards=3)


def test_an_error_off_account_gives_the_account_back():
    oracle = make()
    with pytest.raises(ZeroDivisionError), oracle:
        raise ZeroDivisionError
    oracle.problem.evaluate(np.ones(2))
    assert (oracle.method, oracle.measuring) == (Counts(1, 0), Counts())


def test_a_jacobian_of_another_shape_is_refused():
    now = make(jacobian=lambda x: np.ones((3, 2))).problem.evaluate(np.ones(2))
    with pytest.raises(ValueError, match=r"jacobian has shape \(3, 2\), expected \(1, 2\)"):
        now.jacobian()


def test_a_jacobian_in_one_piece_counts_as_one_backward_and_once():
    oracle = make(g=lambda x: x, jacobian=lambda x: np.eye(2))
    now = oracle.problem.evaluate(np.ones(2))
    assert now.has_cheap_jacobian
    assert now.jacobian().tolist() == [[1.0, 0.0], [0.0, 1.0]]
    now.jacobian()
    assert oracle.method == Counts(forwards=1, backwards=1)


def test_a_jacobian_by_rows_counts_its_rows_once():
    oracle = make(g=lambda x: x)
    now = oracle.problem.evaluate(np.ones(2))
    assert not now.has_cheap_jacobian
    now.jacobian()
    now.jacobian()
    assert oracle.method.backwards == 2
    now.gradient()
    now.gradient()
    assert oracle.method.backwards == 3


@pytest.mark.parametrize(("jacobian", "backwards"), [(lambda x: np.eye(2), 2), (None, 3)])
def test_a_derivative_that_both_ask_for_is_charged_to_the_method(jacobian, backwards):
    oracle = make(g=lambda x: x, jacobian=jacobian)
    now = oracle.problem.evaluate(np.ones(2))
    with oracle:
        now.gradient()
        now.jacobian()
    assert (oracle.method, oracle.measuring) == (Counts(1, 0), Counts(0, backwards))
    for _ in range(2):
        now.gradient()
        now.jacobian()
        assert (oracle.method, oracle.measuring) == (Counts(1, backwards), Counts(0, 0))
    with oracle:
        now.gradient()
    assert (oracle.method, oracle.measuring) == (Counts(1, backwards), Counts(0, 0))


def test_what_is_no_evaluation_is_refused():
    oracle = CountingOracle(Problem(lambda x: (x @ x, x)))  # type: ignore[return-value]
    with pytest.raises(TypeError, match="evaluate must return an Evaluation, got tuple"):
        oracle.problem.evaluate(np.ones(2))


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
