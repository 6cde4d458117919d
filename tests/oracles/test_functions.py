import numpy as np
import pytest

from gdpa import Box, FiniteDifferenceWarning, from_functions


def rosenbrock(x):
    return (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2


def curve(x):
    return np.array([x[0] ** 3 - x[1], np.sin(x[0]) + x[1] ** 2])


def exact_gradient(x):
    return np.array([-2 * (1 - x[0]) - 400 * x[0] * (x[1] - x[0] ** 2), 200 * (x[1] - x[0] ** 2)])


def exact_jacobian(x):
    return np.array([[3 * x[0] ** 2, -1.0], [np.cos(x[0]), 2 * x[1]]])


X = np.array([0.3, -0.7])


def test_the_pullback_is_the_weighted_sum_of_the_derivatives():
    own = from_functions(rosenbrock, curve, gradient=exact_gradient, jacobian=exact_jacobian)
    now = own.evaluate(X)
    w = np.array([2.0, -3.0])
    assert float(now.objective) == pytest.approx(rosenbrock(X))
    assert now.constraints == pytest.approx(curve(X))
    assert now.pullback(w) == pytest.approx(exact_gradient(X) + w @ exact_jacobian(X))
    assert now.pullback(w, objective=0.5) == pytest.approx(0.5 * exact_gradient(X) + w @ exact_jacobian(X))
    assert now.pullback(w, objective=0.0) == pytest.approx(w @ exact_jacobian(X))
    assert now.pullback(0 * w) == pytest.approx(exact_gradient(X))


def test_missing_derivatives_are_said_aloud_and_approximated():
    with pytest.warns(FiniteDifferenceWarning) as said:
        own = from_functions(rosenbrock, curve)
    assert [str(w.message).split(":")[0] for w in said] == ["no gradient given", "no jacobian given"]
    now = own.evaluate(X)
    assert now.pullback(np.zeros(2)) == pytest.approx(exact_gradient(X), rel=1e-5)
    assert now.jacobian() == pytest.approx(exact_jacobian(X), abs=1e-6)


@pytest.mark.parametrize("missing", ["gradient", "jacobian"])
def test_only_what_is_missing_is_said(missing):
    both = {"gradient": exact_gradient, "jacobian": exact_jacobian}
    del both[missing]
    with pytest.warns(FiniteDifferenceWarning, match=f"no {missing} given") as said:
        from_functions(rosenbrock, curve, **both)
    assert len(said) == 1


def test_without_constraints_no_jacobian_is_missed():
    own = from_functions(rosenbrock, gradient=exact_gradient)
    now = own.evaluate(X)
    assert now.constraints.shape == (0,)
    assert now.pullback(np.zeros(0)) == pytest.approx(exact_gradient(X))
    assert now.jacobian().shape == (0, 2)


def test_every_function_is_called_once_a_point():
    calls = []

    def counted(name, function):
        def call(x):
            calls.append(name)
            return function(x)

        return call

    own = from_functions(
        counted("f", rosenbrock),
        counted("g", curve),
        gradient=counted("df", exact_gradient),
        jacobian=counted("dg", exact_jacobian),
    )
    now = own.evaluate(X)
    assert calls == ["f", "g"]
    for w in ([0.0, 0.0], [1.0, 0.0], [0.5, 0.5]):
        now.pullback(np.array(w))
    assert sorted(calls) == ["df", "dg", "f", "g"]


def test_derivatives_not_asked_for_are_not_computed():
    def forbidden(x):
        raise AssertionError("not needed")

    own = from_functions(rosenbrock, curve, gradient=exact_gradient, jacobian=forbidden)
    own.evaluate(X).pullback(np.zeros(2))
    own = from_functions(rosenbrock, curve, gradient=forbidden, jacobian=exact_jacobian)
    own.evaluate(X).pullback(np.ones(2), objective=0.0)


def test_differences_stay_in_the_box():
    seen = []

    def root(x):
        seen.append(x.copy())
        return np.sqrt(x) + np.sqrt(1 - x)  # defined on [0, 1] alone

    with pytest.warns(FiniteDifferenceWarning):
        problem = from_functions(lambda x: root(x).sum(), lambda x: root(x) - 2, domain=Box(0.0, 1.0))
    x = np.array([1.0, 0.25])
    now = problem.evaluate(x)
    slope = 0.5 / np.sqrt(x[1]) - 0.5 / np.sqrt(1 - x[1])
    assert now.gradient()[1] == pytest.approx(slope, rel=1e-6)
    assert now.jacobian()[1] == pytest.approx([0.0, slope], rel=1e-6)
    assert np.isfinite(now.gradient()).all()
    assert all(((point >= 0) & (point <= 1)).all() for point in seen)


def test_single_precision_stays_single():
    own = from_functions(rosenbrock, curve, gradient=exact_gradient, jacobian=exact_jacobian)
    now = own.evaluate(X.astype(np.float32))
    assert now.objective.dtype == now.constraints.dtype == np.float32
    assert now.pullback(np.ones(2, dtype=np.float32)).dtype == np.float32


@pytest.mark.parametrize("value", [3.0, [3.0], np.array([[3.0]])])
def test_one_number_may_come_in_any_shape(value):
    own = from_functions(lambda x: value, gradient=lambda x: x)
    assert own.evaluate(X).objective.shape == ()
    assert float(own.evaluate(X).objective) == 3.0


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"objective": lambda x: x}, r"objective must return one number, got shape \(2,\)"),
        ({"constraints": lambda x: x[0]}, r"constraints must return a vector, got shape \(\); wrap a single value"),
        ({"constraints": lambda x: x[None]}, r"constraints must return a vector, got shape \(1, 2\)"),
        ({"gradient": lambda x: x[:1]}, r"gradient must return shape \(2,\), got \(1,\)"),
        ({"jacobian": lambda x: x}, r"jacobian must return shape \(2, 2\), got \(2,\)"),
    ],
)
def test_wrong_shapes_are_named(parts, message):
    good = {"objective": rosenbrock, "constraints": curve, "gradient": exact_gradient, "jacobian": exact_jacobian}
    own = from_functions(**{**good, **parts})
    with pytest.raises(ValueError, match=message):
        own.evaluate(X).pullback(np.ones(2))


def test_the_other_parts_of_a_problem_pass_through():
    from gdpa import NonNegative

    domain = NonNegative()
    own = from_functions(
        rosenbrock, curve, gradient=exact_gradient, jacobian=exact_jacobian,
        num_equalities=1, domain=domain, names=("a", "b"),
    )  # fmt: skip
    assert (own.num_equalities, own.domain, own.names) == (1, domain, ("a", "b"))
