"""The small dual program against SciPy's bounded least squares."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import NonlinearConstraint, lsq_linear, nnls

import gdpa
from gdpa.numerics import qp
from gdpa.numerics.qp import nonnegative_least_squares, nonnegative_qp


def instance(seed, m, rank):
    rng = np.random.default_rng(seed)
    J = rng.normal(size=(m, rank))
    return J @ J.T + 1e-2 * np.eye(m), rng.normal(size=m) * 3


@given(seed=st.integers(0, 10_000), m=st.integers(1, 25), rank=st.integers(1, 30), data=st.data())
def test_it_is_the_minimizer(seed, m, rank, data):
    A, b = instance(seed, m, rank)
    equalities = data.draw(st.integers(0, m))
    solution = nonnegative_qp(A, b, equalities)
    root = np.linalg.cholesky(A).T  # l'Al/2 - b'l = ||R l - R^-T b||^2 / 2 + constant
    lower = np.where(np.arange(m) < m - equalities, 0.0, -np.inf)
    reference = lsq_linear(root, np.linalg.solve(root.T, b), bounds=(lower, np.inf), method="bvls", tol=1e-14)
    np.testing.assert_allclose(solution, reference.x, atol=1e-7 * (1 + np.abs(reference.x).max()))


@pytest.mark.parametrize(("m", "rank"), [(1, 1), (3, 2), (60, 31), (300, 151), (900, 3)])
def test_optimality_conditions(m, rank):
    A, b = instance(m, m, rank)
    solution = nonnegative_qp(A, b)
    gradient = A @ solution - b
    scale = np.abs(b).max()
    assert solution.min() >= 0
    assert gradient.min() >= -1e-9 * scale
    assert np.abs(solution * gradient).max() <= 1e-8 * scale * (1 + solution.max())


@pytest.mark.parametrize("shift", [0.0, -50.0])  # with -50 nothing but the free components matters
def test_many_components_with_free_ones(shift):
    A, b = instance(3, 250, 6)
    b[:-4] += shift
    solution = nonnegative_qp(A, b, num_equalities=4)
    gradient = A @ solution - b
    scale = np.abs(b).max()
    assert solution[:-4].min() >= 0
    assert np.abs(gradient[-4:]).max() <= 1e-9 * scale
    assert gradient[:-4].min() >= -1e-9 * scale
    assert np.abs(solution * gradient).max() <= 1e-8 * scale * (1 + np.abs(solution).max())


def test_free_components_solve_the_linear_system():
    A, b = instance(7, 6, 4)
    np.testing.assert_allclose(nonnegative_qp(A, b, num_equalities=6), np.linalg.solve(A, b), rtol=1e-9)


def test_no_constraint_at_all():
    assert nonnegative_qp(np.zeros((0, 0)), np.zeros(0)).shape == (0,)


@pytest.mark.parametrize(("m", "free"), [(150, 0), (400, 0), (400, 3)])
def test_many_rows_of_least_squares(m, free):
    """Slacks of all sizes, some rows twice, against Lawson and Hanson's algorithm on the whole problem."""
    rng = np.random.default_rng(m + free)
    D, slack, b = rng.normal(size=(m, 30)), 10.0 ** rng.uniform(-4, 2, m), rng.normal(size=30)
    slack[rng.random(m) < 0.05] = 0.0
    slack[m - free :] = 0.0
    D[10:20] = D[:10]

    def value(y):
        return np.sum((D.T @ y - b) ** 2) + np.sum((slack * y) ** 2)

    y = nonnegative_least_squares(D, slack, b, free)
    A = np.vstack([D.T, np.diag(slack)])
    whole, _ = nnls(np.hstack([A, -A[:, m - free :]]), np.concatenate([b, np.zeros(m)]), maxiter=10_000)
    whole[m - free : m] -= whole[m:]
    assert y[: m - free].min() >= 0
    assert value(y) <= value(whole[:m]) * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize("slack", [0.0, 1e-3, 1.0])
def test_parallel_rows_share_one_multiplier(slack):
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(60, 8))
    D = np.concatenate([rows, rows, 3 * rows[:30]])  # three times as long: another unit of the same constraint
    slacks, b = slack * np.linalg.norm(D, axis=1), rng.normal(size=8)
    y = nonnegative_least_squares(D, slacks, b)
    whole = np.concatenate([D.T, np.diag(slacks)])
    right = np.concatenate([b, np.zeros(len(D))])
    assert y.min() >= 0
    assert np.linalg.norm(whole @ y - right) <= nnls(whole, right)[1] + 1e-9
    assert y[:60] == pytest.approx(y[60:120], abs=1e-9)


def test_b14_a_program_of_300_variables_and_3000_rows_ends():
    rng = np.random.default_rng(0)
    A, b, c = rng.standard_normal((3000, 300)), np.abs(rng.standard_normal(3000)) + 0.1, rng.standard_normal(300)
    rows = NonlinearConstraint(lambda x: A @ x - b, -np.inf, 0, jac=lambda x: A)
    result = gdpa.minimize(lambda x: x @ x / 2 - 10 * c @ x, np.zeros(300), jac=lambda x: x - 10 * c, constraints=rows)
    assert result.success
    slack = b - A @ result.x
    assert slack.min() >= -1e-6
    active = slack <= 1e-6
    force, residual = nnls(A[active].T, 10 * c - result.x)  # grad f + A' lambda = 0 with lambda >= 0: the minimizer
    assert active.sum() <= 310
    assert residual <= 1e-5 * np.linalg.norm(10 * c)
    assert force.max() > 0


@pytest.fixture
def columns(monkeypatch):
    """The numbers of columns that SciPy's solver is given."""
    found = []

    def recorded(matrix, right, **options):
        found.append(matrix.shape[1])
        assert found[-1] <= 600, "a working set that grows by 100 until it holds all positive components"
        return nnls(matrix, right, **options)

    monkeypatch.setattr(qp, "scipy_nnls", lambda: recorded)
    return found


def test_b14_a_run_ended_on_its_way_has_its_multipliers_soon(columns):
    """Ctrl-C waits for the multipliers of the last point: 52 CPU seconds while `nnls` was given 1,700 columns."""
    rng = np.random.default_rng(0)
    A, b, c = rng.standard_normal((3000, 300)), np.abs(rng.standard_normal(3000)) + 0.1, rng.standard_normal(300)
    rows = NonlinearConstraint(lambda x: A @ x - b, -np.inf, 0, jac=lambda x: A)
    points = []

    def end(x):
        points.append(x)
        if len(points) == 10:
            raise StopIteration

    found = gdpa.minimize(
        lambda x: (x - 3 * c) @ (x - 3 * c) / 2, 0 * c, jac=lambda x: x - 3 * c, constraints=rows, callback=end
    )
    assert found.nit == 10
    assert found.multipliers.min() >= 0
    assert columns


@pytest.mark.parametrize("least", [0.0, 1e-12])
def test_b14_least_squares_on_a_path_of_penalties(least, columns):
    """Rows of a point at which more are active than it has coordinates, judged by the conditions of a minimizer."""
    rng = np.random.default_rng(1)
    D, b = rng.standard_normal((3000, 300)), rng.standard_normal(300)
    slack = np.abs(D @ rng.standard_normal(300)) / 10
    slack[:500] = least * rng.random(500)
    y = nonnegative_least_squares(D, slack, b)
    slope = D @ (D.T @ y - b) + slack**2 * y
    assert y.min() >= 0
    assert slope.min() >= -1e-8
    assert np.abs(slope[y > 0]).max() <= 1e-8
