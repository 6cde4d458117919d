"""Problems with sparse Jacobians, from `solve` and `minimize` to the certificate, against independent answers."""

import pickle

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, brentq, linprog
from scipy.sparse import csr_array, eye_array

import gdpa
from benchmarks.ablation_cases import coupled
from benchmarks.banded.families import FAMILIES, LENGTH
from benchmarks.banded.solvers import problem_of, symmetric
from gdpa import KKTBelow, MaxSteps
from gdpa.numerics.sparse.matrix import SparseMatrix
from tests.libraries import NonlinearConstraint, diags_array


def solved(family, n, **more):
    case = FAMILIES[family](n)
    result = gdpa.solve(problem_of(case, **more), case.x0, tolerance=1e-6, record=0)
    assert result.success
    return case, result


@pytest.fixture
def never_dense(monkeypatch):
    """Fail if a sparse matrix is made dense."""

    def refuse(self, *args, **kwargs):
        raise AssertionError(f"a matrix of shape {self.shape} was made dense")

    monkeypatch.setattr(SparseMatrix, "toarray", refuse)
    monkeypatch.setattr(SparseMatrix, "__array__", refuse)


@pytest.mark.parametrize("exact", [False, True])
def test_a_chain_hangs_in_a_catenary(exact, never_dense):
    """y = a cosh((x - 1/2) / a) + b with 2 a sinh(1 / 2a) = LENGTH; the lowest joint lies a (cosh(1 / 2a) - 1) deep."""
    _, result = solved("chain", 1000, exact=exact)
    a = brentq(lambda a: 2 * a * np.sinh(1 / (2 * a)) - LENGTH, 0.1, 10)
    assert result.x[1::2].min() == pytest.approx(-a * (np.cosh(1 / (2 * a)) - 1), abs=1e-4)
    assert result.certificate.multipliers.min() > 0  # every link is taut


def test_a_string_over_an_obstacle_is_straight_off_it(never_dense):
    case, result = solved("obstacle", 600)
    x, psi = result.x, case.lower
    assert (x >= psi).all()
    touching = np.flatnonzero(x == psi)
    assert np.array_equal(touching, np.arange(touching[0], touching[-1] + 1))
    bends = np.abs(np.diff(np.concatenate([[0.0], x, [0.0]]), 2))
    free = np.setdiff1d(np.arange(600), touching)
    assert bends[free].max() < 1e-6 * bends[touching].max() * 600


def test_optimal_control_agrees_with_the_dense_step(never_dense, monkeypatch):
    case, result = solved("control", 120)
    monkeypatch.undo()
    dense = gdpa.from_functions(
        case.objective,
        case.constraints,
        gradient=case.gradient,
        jacobian=lambda x: problem_of(case).evaluate(x).jacobian().toarray(),
        num_equalities=case.equalities,
        domain=gdpa.Box(case.lower, case.upper),
    )
    other = gdpa.solve(dense, case.x0, tolerance=1e-6, record=0)
    assert other.success
    assert result.certificate.objective == pytest.approx(other.certificate.objective, rel=1e-5)
    assert gdpa.certify(dense, result.x).holds(1e-5)


def test_without_second_derivatives_pairs_of_gradients_do():
    """An objective that couples all variables leaves limited-memory BFGS, with the same sparse step."""
    n = 80
    i = np.arange(n - 1)
    indices, ends = np.stack([i, i + 1], axis=1).ravel(), 2 * np.arange(n)
    problem = gdpa.from_functions(
        lambda x: (np.sum(x) - n) ** 2 / n + x @ x / 2,
        lambda x: x[:-1] ** 2 + x[1:] ** 2 - 1,
        gradient=lambda x: 2 * (np.sum(x) - n) / n + x,
        jacobian=lambda x: csr_array((2 * np.stack([x[:-1], x[1:]], axis=1).ravel(), indices, ends), shape=(n - 1, n)),
    )
    result = gdpa.solve(problem, np.full(n, 0.1), tolerance=1e-6)
    assert result.success
    assert problem.evaluate(result.x).hessian(np.zeros(n - 1)) is None
    assert problem.evaluate(result.x).jacobian().shape == (n - 1, n)


@pytest.mark.parametrize("differences", [False, True])
def test_minimize_keeps_constraints_sparse(differences, never_dense):
    """min sum (x_i - a_i)^2 with links x_i^2 + x_{i+1}^2 <= 1 and a linear band, by a Jacobian or by its pattern."""
    n = 90
    rng = np.random.default_rng(0)
    a = rng.uniform(-1, 1, n)
    i = np.arange(n - 1)
    pattern = csr_array((np.ones(2 * n - 2), (np.r_[i, i], np.r_[i, i + 1])), shape=(n - 1, n))

    def jacobian(x):
        return csr_array((2 * np.r_[x[:-1], x[1:]], (np.r_[i, i], np.r_[i, i + 1])), shape=(n - 1, n))

    keywords = {"jac": "2-point", "finite_diff_jac_sparsity": pattern} if differences else {"jac": jacobian}
    links = NonlinearConstraint(lambda x: x[:-1] ** 2 + x[1:] ** 2, -np.inf, 1, **keywords)
    band = LinearConstraint(diags_array([np.ones(n - 1), -np.ones(n - 1)], offsets=[0, 1], shape=(n - 1, n)), -0.5, 0.5)  # type: ignore[list-item]
    found = gdpa.minimize(
        lambda x: np.sum((x - a) ** 2),
        np.zeros(n),
        jac=lambda x: 2 * (x - a),
        constraints=[links, band],
        bounds=Bounds(-0.9, 0.9),
        tol=1e-6,
    )
    assert found.success
    assert found.constr_violation <= 1e-9
    # Convex: the projection of a on a convex set satisfies (a - x)'(y - x) <= 0 for every y in it; 0 is in it.
    assert (a - found.x) @ (0 - found.x) <= 1e-6
    total = found.grad + found.v[0] @ jacobian(found.x) + found.v[1] @ band.A + found.v[2]
    assert np.abs(total).max() < 1e-5


def test_a_linear_program_agrees_with_highs():
    n = 100
    rng = np.random.default_rng(1)
    c = rng.uniform(0.5, 1.5, n)
    A = diags_array([np.ones(n), rng.uniform(0.2, 1, n - 1)], offsets=[0, 1], shape=(n, n), format="csr")
    truth = linprog(-c, A_ub=A, b_ub=np.ones(n), bounds=(0, 1))
    found = gdpa.minimize(
        lambda x: -c @ x,
        np.full(n, 0.1),
        jac=lambda x: -c,
        constraints=LinearConstraint(A, -np.inf, 1.0),
        bounds=Bounds(0, 1),
        tol=1e-6,
    )
    assert found.success
    assert found.fun == pytest.approx(truth.fun, rel=1e-5)


def test_a_hessian_that_does_not_change_is_asked_for_once():
    """A quadratic objective under linear constraints."""
    n = 80
    rng = np.random.default_rng(2)
    t, calls = rng.standard_normal(n), []
    A = diags_array([np.ones(n - 1), -np.ones(n - 1)], offsets=[0, 1], shape=(n - 1, n), format="csr")
    problem = gdpa.from_functions(
        lambda x: (x - t) @ (x - t) / 2,
        lambda x: A @ x - 0.1,
        gradient=lambda x: x - t,
        jacobian=lambda x: A,
        hessian=lambda x, w: calls.append(x) or eye_array(n, format="csr"),  # type: ignore[func-returns-value]
    )
    result = gdpa.solve(problem, np.zeros(n), tolerance=1e-8, record=0)
    assert result.success
    assert result.steps > 1
    assert len(calls) == 1


@pytest.mark.parametrize(("seed", "n"), [(6, 100), (3, 200)])
def test_concave_variables_do_not_hold_up_the_others(seed, n):
    """A shift of the whole Hessian by what its most concave variable needs took more than 1,000 and 50 steps."""
    problem, x0 = coupled(seed, n)
    result = gdpa.solve(problem, x0, tolerance=1e-6, record=0, stop=(KKTBelow(1e-6), MaxSteps(40)))
    assert result.success


def test_an_exact_hessian_is_used_and_no_other_call_is_made():
    case = FAMILIES["chain"](200)
    calls = []

    def hess(x):
        calls.append(x)
        return symmetric(case, case.hessian(x, np.zeros(101)))

    m = len(case.constraints(case.x0))
    rows, columns = case.pattern
    links = NonlinearConstraint(
        case.constraints,
        -np.inf,
        0,
        jac=lambda x: csr_array((case.jacobian(x), (rows, columns)), shape=(m, 200)),
        hess=lambda x, v: symmetric(case, case.hessian(x, v)),
    )
    found = gdpa.minimize(case.objective, case.x0, jac=case.gradient, hess=hess, constraints=links, tol=1e-6)
    assert found.success
    assert calls
    assert found.nfev <= found.nit + 6  # differences would take as many a step


def test_small_problems_take_the_dense_path_bit_for_bit():
    A = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    answers = []
    for matrix in (A, csr_array(A)):
        constraint = LinearConstraint(matrix, -np.inf, 1.0)
        answers.append(gdpa.minimize(lambda x: np.sum((x - 2) ** 2), np.zeros(3), constraints=constraint))
    assert np.array_equal(answers[0].x, answers[1].x)
    assert answers[0].nfev == answers[1].nfev


def test_a_run_is_stored_and_continued_as_if_it_had_not_stopped(tmp_path):
    case = FAMILIES["control"](150)
    problem = problem_of(case)
    straight = gdpa.solve(problem, case.x0, stop=MaxSteps(8))
    first = gdpa.solve(problem, case.x0, stop=MaxSteps(4))
    gdpa.save_run(tmp_path / "run", first.run)
    second = gdpa.solve(problem, run=gdpa.load_run(tmp_path / "run"), stop=MaxSteps(8))
    assert second.steps == 8
    np.testing.assert_allclose(second.x_last, straight.x_last, rtol=1e-12, atol=1e-12)
    assert pickle.loads(pickle.dumps(straight)).steps == 8


N = 60


def quadratic(jacobian, **more):
    return gdpa.from_functions(lambda x: x @ x, lambda x: x**2 - 1, gradient=lambda x: 2 * x, jacobian=jacobian, **more)


def test_a_jacobian_of_the_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"jacobian must have shape \(60, 60\), got \(59, 60\): one row per value"):
        gdpa.solve(quadratic(lambda x: eye_array(N - 1, N, format="csr")), np.ones(N))


def test_a_pattern_that_changes_is_refused():
    def jacobian(x):
        return diags_array([2 * x, 0.1 * np.ones(N - 1)], offsets=[0, 1], format="csr") if x[0] != 1 else eye_array(N)

    with pytest.raises(ValueError, match=r"the jacobian has the entry \(0, 1\), which it did not have at the first"):
        gdpa.solve(quadratic(jacobian), np.ones(N))


def test_numbers_that_are_not_finite_are_named():
    A = eye_array(N, format="csr")
    A.data[7] = np.nan
    with pytest.raises(ValueError, match=r"constraints\.A must be a finite matrix, got nan at \(7, 7\); correct"):
        gdpa.minimize(lambda x: x @ x, np.ones(N), constraints=LinearConstraint(A, 0, 1))
    with pytest.raises(ValueError, match=r"the Jacobian of the constraints is not finite at the start x0"):
        gdpa.solve(quadratic(lambda x: A), np.ones(N))
    found = gdpa.minimize(
        lambda x: x @ x,
        np.ones(N),
        jac=lambda x: 2 * x,
        constraints=NonlinearConstraint(lambda x: x, 0, 1, jac=lambda x: A),
    )
    assert not found.success
    assert "the derivative of constraints.fun is not finite" in found.message


def test_a_sparsity_of_the_wrong_shape_is_refused():
    wrong = eye_array(N - 1, N, format="csr")
    with pytest.raises(ValueError, match=r"jacobian_sparsity must have shape \(60, 60\), got \(59, 60\)"):
        gdpa.solve(quadratic(None, jacobian_sparsity=wrong), np.ones(N))
    constraint = NonlinearConstraint(lambda x: x, 0, 1, finite_diff_jac_sparsity=wrong)
    with pytest.raises(ValueError, match=r"finite_diff_jac_sparsity of constraints\.fun must have shape \(60, 60\)"):
        gdpa.minimize(lambda x: x @ x, np.ones(N), constraints=constraint)


def test_a_dense_hessian_of_a_large_problem_is_used():
    found = gdpa.minimize(lambda x: np.cosh(x).sum(), np.ones(N), jac=np.sinh, hess=lambda x: np.diag(np.cosh(x)))
    assert found.success
    assert found.nit <= 8  # Newton's method


def test_fixed_variables_leave_a_sparse_problem():
    n = 100
    lower, upper = np.full(n, -2.0), np.full(n, 2.0)
    lower[::10] = upper[::10] = 0.5
    i = np.arange(n - 1)
    pattern = csr_array((np.ones(2 * n - 2), (np.r_[i, i], np.r_[i, i + 1])), shape=(n - 1, n))
    links = NonlinearConstraint(
        lambda x: x[:-1] ** 2 + x[1:] ** 2, -np.inf, 1, finite_diff_jac_sparsity=pattern, jac="3-point"
    )
    found = gdpa.minimize(
        lambda x: np.sum((x - 1) ** 2),
        np.zeros(n),
        jac=lambda x: 2 * (x - 1),
        constraints=links,
        bounds=Bounds(lower, upper),
        tol=1e-6,
    )
    assert found.success
    assert (found.x[::10] == 0.5).all()
    assert (found.x[1::10] <= np.sqrt(0.75) + 1e-6).all()


def test_what_is_still_unused_is_said():
    constraint = NonlinearConstraint(lambda x: x, 0, 1, hess=lambda x, v: eye_array(2))
    with pytest.warns(RuntimeWarning, match=r"uses Hessian information \(hess\) only if"):
        gdpa.minimize(lambda x: x @ x, np.ones(2), constraints=constraint)
