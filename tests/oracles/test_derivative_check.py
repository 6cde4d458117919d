"""Wrong derivatives are named, right ones are not, and noise is told from both."""

from dataclasses import replace

import numpy as np
import pytest

from gdpa import (
    GDPA,
    AdaptiveGDPA,
    Box,
    DampedGDPA,
    Evaluation,
    Status,
    check_derivatives,
    from_functions,
    minimize,
    problems,
)
from gdpa.oracles.derivative_check import contradiction
from gdpa.run.loop import advise

SOLVABLE = problems.names("solvable")


def mutant(problem, change):
    """Return the problem with ``change(gradient, J)`` in place of its derivatives."""

    def evaluate(x):
        now = problem.evaluate(x)
        gradient, J = change(now.gradient().copy(), now.jacobian().copy())
        return Evaluation(
            now.objective, now.constraints, lambda w, objective=1.0: objective * gradient + w @ J, lambda: J
        )

    return replace(problem, evaluate=evaluate)


def points(name):
    """The source's start, the solution and random points of X."""
    test = problems.get(name)
    rng = np.random.default_rng(SOLVABLE.index(name) if name in SOLVABLE else 99)
    known = [test.x0] if test.solution is None else [test.x0, test.solution]
    return [test.problem.domain.project(p) for p in (*known, *(test.x0 + rng.normal(size=test.x0.shape) for _ in "ab"))]


@pytest.mark.parametrize("name", problems.names())
def test_right_derivatives_raise_no_alarm(name):
    for x in points(name):
        report = check_derivatives(problems.get(name).problem, x)
        assert report.ok, str(report)
        assert not report.unclear, str(report)
        assert "all" in str(report)


def sign(gradient, J, i, j):
    (gradient if i == 0 else J[i - 1])[j] *= -1
    return gradient, J


def factor(gradient, J, i, j):
    (gradient if i == 0 else J[i - 1])[j] /= 2
    return gradient, J


def row(gradient, J, i, j):
    """The gradient of f in place of a row of J, or the first row of J in place of the gradient."""
    if i == 0:
        return J[0].copy(), J
    J[i - 1] = gradient
    return gradient, J


MUTATIONS = {"wrong sign": sign, "the factor 2 is missing": factor, "this is the derivative of": row}


@pytest.mark.parametrize("name", SOLVABLE)
@pytest.mark.parametrize("cause", MUTATIONS)
def test_mutants_are_named(name, cause):
    # One mutant of each kind of the 17 certified problems: 51 in all. The entry is the largest of a random function.
    test, x = problems.get(name), points(name)[-1]
    now = test.problem.evaluate(x)
    true = np.concatenate([now.gradient()[None], now.jacobian()])
    rng = np.random.default_rng(len(name) + len(cause))
    i = int(rng.integers(len(true)))
    j = int(np.argmax(np.abs(true[i])))
    report = check_derivatives(mutant(test.problem, lambda c, J: MUTATIONS[cause](c, J, i, j)), x)
    function = "f" if i == 0 else test.problem.constraint_name(i - 1)
    assert not report.ok
    assert {entry.function for entry in report.wrong} == {function}
    [entry] = [entry for entry in report.wrong if entry.component == j] or report.wrong[:1]
    assert entry.difference == pytest.approx(true[i, entry.component], rel=1e-3, abs=1e-6)
    assert entry.cause.startswith(cause)
    if cause != "this is the derivative of":
        assert len(report.wrong) == 1
        assert entry.component == j
    assert str(entry) in str(report)


def test_two_rows_swapped():
    test = problems.get("HS43")
    report = check_derivatives(
        mutant(test.problem, lambda c, J: (c, J[[1, 0, 2]])), test.x0 + np.array([0.1, 0.2, 0.3, 0.4])
    )
    causes = {(entry.function, entry.cause) for entry in report.wrong}
    assert causes == {("g[0]", "this is the derivative of g[1]"), ("g[1]", "this is the derivative of g[0]")}


def square(gradient=lambda x: 2 * x, jacobian=None, f=lambda x: x @ x):
    A = np.array([[1.0, 2.0], [3.0, 4.0]])
    return from_functions(f, lambda x: A @ x, gradient=gradient, jacobian=jacobian or (lambda x: A))


@pytest.mark.parametrize(
    ("problem", "cause"),
    [
        (square(jacobian=lambda x: np.array([[1.0, 3.0], [2.0, 4.0]])), "the Jacobian is transposed"),
        (square(gradient=lambda x: np.array([0.0, 2 * x[1]])), "it is zero: a term is missing, or the value is cut"),
        (square(gradient=lambda x: 6 * x), "the factor 3 is too much"),
        (square(gradient=lambda x: -x), "the factor 2 is missing and the sign is wrong"),
        (square(gradient=lambda x: 2.5 * x), "off by the factor 0.8"),
        (square(gradient=lambda x: np.array([1.0, 2 * x[1]]), f=lambda x: x[1] ** 2), r"f does not depend on x[0]"),
        (square(gradient=lambda x: 2 * x * np.nan), "it is not a finite number"),
    ],
)
def test_the_cause_is_told(problem, cause):
    report = check_derivatives(problem, np.array([0.3, 0.7]))
    assert {entry.cause[: len(cause)] for entry in report.wrong} == {cause}


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_units_do_not_matter(scale):
    exact = from_functions(
        lambda x: scale * np.exp(x[0]) * x[1], gradient=lambda x: scale * np.exp(x[0]) * np.array([x[1], 1])
    )
    wrong = from_functions(
        lambda x: scale * np.exp(x[0]) * x[1], gradient=lambda x: scale * np.exp(x[0]) * np.array([x[1], -1])
    )
    x = np.array([0.3, 0.7])
    assert check_derivatives(exact, x).ok
    assert [entry.component for entry in check_derivatives(wrong, x).wrong] == [1]


def test_noise_is_told_from_a_wrong_derivative():
    def noisy(x):
        return float(np.float32(np.sin(x[0]) + x[1] ** 2))

    def gradient(x):
        return np.array([np.cos(x[0]), 2 * x[1]])

    x = np.array([0.4, 1.3])
    assert check_derivatives(from_functions(noisy, gradient=gradient), x).ok
    assert not check_derivatives(from_functions(noisy, gradient=lambda x: -gradient(x)), x).ok
    rounded = from_functions(lambda x: round(noisy(x), 3), gradient=gradient)
    assert check_derivatives(rounded, x).ok
    wrong = check_derivatives(from_functions(lambda x: round(noisy(x), 3), gradient=lambda x: -gradient(x)), x)
    assert {entry.cause for entry in wrong.wrong} == {"wrong sign"}


def test_a_kink_has_many_slopes():
    def hinge(slope):
        return from_functions(lambda x: max(0.0, x[0]), gradient=lambda x: np.array([slope]))

    for slope in (0.0, 0.5, 1.0):
        assert check_derivatives(hinge(slope), np.zeros(1)).ok
    assert not check_derivatives(hinge(-1.0), np.zeros(1)).ok


def test_differences_stay_in_the_box_and_around_holes():
    from gdpa import Box

    def root(slope, domain):
        return from_functions(lambda x: np.sqrt(x).sum(), gradient=lambda x: slope / np.sqrt(x), domain=domain)

    visited = []
    box = Box(np.array([0.25, 0.0]), np.array([0.25, 1.0]))
    problem = root(0.5, box)
    watched = replace(problem, evaluate=lambda x: visited.append(x) or problem.evaluate(x))  # type: ignore[func-returns-value]
    report = check_derivatives(watched, np.array([0.25, 1.0]))
    assert report.ok
    assert report.unclear == (("f", 0),)  # no room along a fixed variable
    assert "Not to be judged by differences, which are noise there: d f / d x[0]." in str(report)
    assert all((box.project(x) == x).all() for x in visited)
    assert not check_derivatives(root(-0.5, box), np.array([0.25, 1.0])).ok
    with np.errstate(invalid="ignore"):  # without a box it looks beyond the edge, and sees NaN there
        report = check_derivatives(root(0.5, Box(-1.0, 1.0)), np.array([1e-7, 0.5]))
    assert report.ok


def test_torch_and_jax():
    torch = pytest.importorskip("torch")
    from gdpa import from_torch

    class Wrong(torch.autograd.Function):  # type: ignore[name-defined]
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * x

    for dtype in (torch.float64, torch.float32):
        x = torch.tensor([0.3, 0.7, -1.2], dtype=dtype)
        right = from_torch(lambda x: (torch.exp(x).sum(), torch.stack([x @ x - 1, x[0] * x[1]])))
        assert check_derivatives(right, x).ok
        wrong = check_derivatives(from_torch(lambda x: (torch.exp(x).sum(), Wrong.apply(x)[1:])), x).wrong
        assert [(e.function, e.component, e.cause) for e in wrong] == [
            ("g[0]", 1, "the factor 2 is missing"),
            ("g[1]", 2, "the factor 2 is missing"),
        ]
    jax = pytest.importorskip("jax")
    from gdpa import from_jax

    right = from_jax(lambda x: (jax.numpy.exp(x).sum(), x[:1] * x[1:2]))
    assert check_derivatives(right, jax.numpy.array([0.3, 0.7])).ok

    @jax.custom_jvp
    def cube(x):
        return x**3

    cube.defjvp(lambda primals, tangents: (primals[0] ** 3, -3 * primals[0] ** 2 * tangents[0]))
    report = check_derivatives(from_jax(lambda x: (cube(x).sum(), x[:1])), jax.numpy.array([0.3, 0.7]))
    assert {(e.function, e.cause) for e in report.wrong} == {("f", "wrong sign")}


def test_bad_points():
    problem = square()
    assert check_derivatives(problem, [0.3, 0.7]).ok
    with pytest.raises(ValueError, match=r"x must be one point of shape \(d,\), got shape \(1, 2\)"):
        check_derivatives(problem, np.zeros((1, 2)))


def test_long_reports_are_cut():
    problem = from_functions(lambda x: x @ x, gradient=lambda x: -2 * x)
    report = check_derivatives(problem, np.arange(1.0, 31.0))
    assert len(report.wrong) == 30
    assert "... and 10 more, see .wrong" in str(report)


# In minimize and solve


def test_minimize_checks_on_request():
    def fun(x):
        return (x[0] - 2) ** 2 + x[1] ** 2

    def right(x):
        return np.array([2 * (x[0] - 2), 2 * x[1]])

    disc = {"type": "ineq", "fun": lambda x: 1 - x @ x, "jac": lambda x: 2 * x}
    good = {**disc, "jac": lambda x: -2 * x}
    assert minimize(fun, [0.5, 0.5], jac=right, constraints=good, options={"check": True}).success
    with pytest.raises(ValueError, match=r"(?s)Derivatives: 2 of 4 .*d constraints\['fun'\].*wrong sign"):
        minimize(fun, [0.5, 0.5], jac=right, constraints=disc, options={"check": True})
    with pytest.raises(ValueError, match=r"d f / d x\[1\]: given -1, difference 1: wrong sign"):
        minimize(fun, [0.5, 0.5], jac=lambda x: right(x) * [1, -1], constraints=good, options={"check": True})
    assert minimize(fun, [0.5, 0.5], constraints={"type": "ineq", "fun": disc["fun"]}, options={"check": True}).success


def test_a_stall_on_a_wrong_gradient_says_so():
    # Newcomer's case: the sign of jac is wrong.
    found = minimize(lambda x: (x[0] - 2) ** 2 + x[1] ** 2, [0.5, 0.5], jac=lambda x: -2 * (x - [2, 0]))
    assert not found.success
    assert found.result.status is Status.STALLED
    assert "The values along the last direction contradict the derivatives" in found.message
    assert "see gdpa.check_derivatives" in found.message
    assert "precision" not in found.message


@pytest.mark.parametrize("name", SOLVABLE)
def test_a_stall_on_right_gradients_speaks_of_precision(name):
    test = problems.get(name)
    text = advise(Status.STALLED, AdaptiveGDPA(), test.problem, test.solution, test.multipliers, None, 1)
    assert text == "The tolerance may be below what the precision of the problem's numbers allows"
    text = advise(Status.STALLED, AdaptiveGDPA(), test.problem, test.solution, test.multipliers, None, 1, 0.1)
    assert text.startswith("The residuals are too large for rounding")


def test_a_stall_far_outside_the_constraints_names_them_and_not_the_precision():
    # |x| + |y - 2x| + 1 = 0 has no solution. The run ends in the kink at y = 2x, where differences have no meaning.
    rows = {"type": "eq", "fun": lambda x: abs(x[0]) + 1 + abs(x[1] - 2 * x[0])}
    found = minimize(lambda x: 0.0, [0.7, 2.0], constraints=rows)
    assert not found.success
    assert "precision" not in found.message
    assert "Most violated" in found.message


def test_a_verdict_on_a_wrong_jacobian_says_so():
    # 1 <= x <= 3, with the derivative of one side wrong by its sign: stationary at x = 2, infeasible nowhere.
    test = from_functions(
        lambda x: x @ x,
        lambda x: np.array([1 - x[0], x[0] - 3]),
        gradient=lambda x: 2 * x,
        jacobian=lambda x: np.array([[1.0], [1.0]]),
    )
    text = advise(Status.LOCALLY_INFEASIBLE, AdaptiveGDPA(), test, np.array([0.5]), np.zeros(2), None, 1)
    assert text.startswith("The values along the last direction contradict the derivatives")
    right = problems.get("disjoint-discs")
    text = advise(Status.LOCALLY_INFEASIBLE, AdaptiveGDPA(), right.problem, right.x0, np.zeros(2), None, 1)
    assert text == ""


def test_advice_is_about_parameters_that_the_method_has():
    test = problems.get("HS12")
    for algorithm, diverging, steps in (
        (GDPA(alpha=0.1), "Or the step is too long: reduce alpha or beta", "Or try AdaptiveGDPA, which tunes itself"),
        (DampedGDPA(), None, "Or try AdaptiveGDPA, which tunes itself"),
        (AdaptiveGDPA(), "", ""),
    ):
        said = advise(Status.DIVERGING, algorithm, test.problem, test.x0, test.multipliers, None, 1)
        assert said == diverging or diverging is None
        assert all(hasattr(algorithm, name) for name in ("alpha", "beta") if name in said)
        assert advise(Status.MAX_STEPS, algorithm, test.problem, test.x0, test.multipliers, None, 1) == steps
    assert advise(Status.CONVERGED, AdaptiveGDPA(), test.problem, test.x0, test.multipliers, None, 1) == ""


def test_the_hint_costs_a_few_forwards():
    calls = []

    def f(x):
        calls.append(x)
        return x @ x

    problem = from_functions(f, gradient=lambda x: -2 * x)
    assert contradiction(problem, np.array([1.0, 2.0]), np.zeros(0)).startswith("The values along")
    assert len(calls) == 5
    assert contradiction(from_functions(f, gradient=lambda x: 2 * x), np.array([1.0, 2.0]), np.zeros(0)) == ""
    assert contradiction(from_functions(f, gradient=lambda x: 2 * x), np.zeros(2), np.zeros(0)) == ""
    assert contradiction(problem, np.zeros((3, 2)), np.zeros((3, 0))) == ""


@pytest.mark.parametrize("name", SOLVABLE)
def test_no_right_gradient_is_doubted(name):
    test = problems.get(name)
    for x in points(name):
        now = test.problem.evaluate(x)
        for weights in (np.zeros_like(now.constraints), np.ones_like(now.constraints)):
            assert contradiction(test.problem, x, weights) == ""


@pytest.mark.parametrize(("factor", "status"), [(-1.0, 7), (0.5, 9)])
def test_n3_a_wrong_jacobian_of_a_constraint_is_named(factor, status):
    disc = {"type": "ineq", "fun": lambda x: 1 - x @ x, "jac": lambda x: -2 * factor * x}
    found = minimize(
        lambda x: (x[0] - 2) ** 2 + x[1] ** 2,
        [0.5, 0.5],
        jac=lambda x: np.array([2 * (x[0] - 2), 2 * x[1]]),
        constraints=disc,
        options={"maxiter": 150},
    )
    assert found.status == status
    assert "contradict the derivatives" in found.message


def test_n12_noise_is_called_noise_and_no_gradient_is_blamed():
    """f + 1e-3 rand without derivatives: the differences, not a gradient of the user, contradict the values."""
    rng = np.random.default_rng(0)
    disc = {"type": "ineq", "fun": lambda x: 1 - x @ x}
    result = minimize(
        lambda x: (x[0] - 2) ** 2 + x[1] ** 2 + 1e-3 * rng.random(),
        [0.5, 0.5],
        constraints=disc,
        options={"maxiter": 300},
    )
    assert not result.success
    assert "The values of f are noisy, about" in result.message
    assert 1e-5 < float(result.message.partition("noisy, about ")[2].split(",")[0]) < 3e-3
    assert "gradient" not in result.message


@pytest.mark.parametrize("x", [[0.0, 0.0], [1.0, 0.0], [1e-7, -1e-7], [0.3, -1.0]])
def test_n12_a_kink_or_a_bound_is_not_noise(x):
    def signs(x):
        return np.where(x >= 0, 1.0, -1.0)

    kink = from_functions(lambda x: np.abs(x).sum(), gradient=signs, domain=Box(-1, 1))
    assert "noisy" not in contradiction(kink, np.array(x), np.zeros(0))
