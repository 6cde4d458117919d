"""The sparse step against its optimality conditions, dense algebra and SciPy."""

import numpy as np
import pytest
from scipy.optimize import lsq_linear
from scipy.sparse import csr_array, random_array

from gdpa.numerics.lbfgs import LBFGS
from gdpa.numerics.sparse import factor
from gdpa.numerics.sparse.factor import KKT, Augmented, with_low_rank
from gdpa.numerics.sparse.interior import interior_point
from gdpa.numerics.sparse.matrix import read
from gdpa.numerics.sparse.model import sparse_least_squares, sparse_model_step
from gdpa.numerics.sparse.program import Quadratic, SparseModel
from tests.libraries import diags_array


def program(seed, d=8, m=5):
    """Return B, c, J, r, beta and bounds of a random convex model; some bounds are met at zero or missing."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((d, d))
    B = 0.1 * A @ A.T + 0.1 * np.eye(d)
    J = rng.standard_normal((m, d)) * (rng.random((m, d)) < 0.6)
    lower = -rng.random(d) * (rng.random(d) < 0.7)
    upper = np.where(rng.random(d) < 0.5, np.inf, rng.random(d) + 1e-3)
    return B, rng.standard_normal(d), J, rng.standard_normal(m), 10.0 ** rng.integers(0, 6), (lower, upper)


def residuals(B, c, J, r, beta, p_eq, bounds, p, multipliers):
    """Return how far p is from the minimizer: the projected gradient, and the multipliers' formula."""
    values = r + J @ p
    expected = beta * values
    split = len(r) - p_eq
    expected[:split] = np.maximum(expected[:split], 0.0)
    gradient = c + B @ p + J.T @ expected
    return np.abs(p - np.clip(p - gradient, *bounds)).max(), np.abs(multipliers - expected).max() / beta


@pytest.mark.parametrize("equalities", [0, 2])
@pytest.mark.parametrize("seed", range(12))
def test_the_step_is_the_minimizer(seed, equalities):
    B, c, J, r, beta, bounds = program(seed)
    step = sparse_model_step(Quadratic(read(B)), c, read(csr_array(J)), r, beta, equalities, bounds)
    assert (step.direction >= bounds[0]).all()
    assert (step.direction <= bounds[1]).all()
    assert max(residuals(B, c, J, r, beta, equalities, bounds, *step)) < 1e-7 * max(1.0, beta * 1e-3)


@pytest.mark.parametrize("seed", range(6))
def test_the_interior_point_method_finds_it_too(seed):
    B, c, J, r, beta, bounds = program(seed)
    is_equality = np.arange(5) >= 4
    inner = interior_point(SparseModel(Quadratic(read(B)), c, read(csr_array(J)), r, beta, is_equality, *bounds))
    step = sparse_model_step(Quadratic(read(B)), c, read(csr_array(J)), r, beta, 1, bounds)
    np.testing.assert_allclose(inner.p, step.direction, atol=1e-6)


@pytest.mark.parametrize("pairs", [0, 1, 4])
def test_limited_memory_bfgs_is_a_sparse_matrix_and_a_low_rank(pairs):
    rng = np.random.default_rng(pairs)
    _, c, J, r, beta, bounds = program(pairs)
    curvature = LBFGS()
    for _ in range(pairs):
        s = rng.standard_normal(8)
        curvature = curvature.updated(s, s * np.arange(1, 9))
    B = np.stack([curvature.product(e) for e in np.eye(8)])
    step = sparse_model_step(Quadratic.of(curvature, None, 8), c, read(csr_array(J)), r, beta, 0, bounds)
    assert max(residuals(B, c, J, r, beta, 0, bounds, *step)) < 1e-7 * max(1.0, beta * 1e-3)


def test_an_indefinite_matrix_is_shifted_until_the_step_descends():
    rng = np.random.default_rng(0)
    d = 60
    B = diags_array([np.full(d - 1, 2.0), rng.uniform(-3, 3, d), np.full(d - 1, 2.0)], offsets=[-1, 0, 1])  # type: ignore[list-item]
    c = rng.standard_normal(d)
    J = read(csr_array(random_array((20, d), density=0.05, rng=rng)))
    step = sparse_model_step(Quadratic(read(B.tocsr())), c, J, -np.ones(20), 10.0, 0, (np.full(d, -1.0), np.ones(d)))
    assert c @ step.direction < 0


def test_a_shift_leaves_curvature_that_is_enough():
    """B = diag(-1, 5): the second coordinate takes its Newton step -10 / 5, the first one descends."""
    step = sparse_model_step(
        Quadratic(read(np.diag([-1.0, 5.0]))), np.array([1.0, 10.0]), read(np.zeros((0, 2))), np.zeros(0), 1.0
    )
    assert step.direction[0] < -1
    assert step.direction[1] == pytest.approx(-2.0, rel=1e-3)


def test_no_shift_is_made_if_the_active_rows_make_the_model_convex():
    """min -2 p - p^2 / 2 with p <= 0.5 penalized by beta: -2 - p + l = 0 and l = beta (p - 0.5)."""
    beta = 1e3
    J = read([[1.0]])
    step = sparse_model_step(Quadratic(read([[-1.0]])), np.array([-2.0]), J, np.array([-0.5]), beta, 0, None)
    p = (2 + beta / 2) / (beta - 1)
    assert step.direction.tolist() == pytest.approx([p])
    assert step.multipliers.tolist() == pytest.approx([2 + p])


@pytest.mark.parametrize("seed", range(6))
def test_a_step_nearby_changes_the_way_and_not_the_minimizer(seed):
    B, c, J, r, beta, bounds = program(seed)
    given = Quadratic(read(B)), c, read(csr_array(J)), r
    near = sparse_model_step(*given, beta / 2, 1, bounds)
    steps = [sparse_model_step(*given, beta, 1, bounds, near=other) for other in (None, near)]
    np.testing.assert_allclose(steps[1].direction, steps[0].direction, atol=1e-9)


def test_long_rows_have_no_part_in_the_test_of_definiteness(monkeypatch):
    monkeypatch.setattr(factor, "LONGEST", 2)
    H, J = read(np.diag([-1.0, 1.0, 1.0])), read([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    test = Augmented(H.pattern, J.pattern)
    assert test.is_positive_definite(H, J, np.zeros(3), np.array([0.0, 9.0]))
    assert not test.is_positive_definite(H, J, np.zeros(3), np.array([9.0, 0.0]))


@pytest.mark.parametrize("widest", [60, 0])
def test_factorizations_agree_with_dense_algebra(widest, monkeypatch):
    """By the banded factorization and, with no band allowed, by SuperLU."""
    monkeypatch.setattr(factor, "WIDEST_BAND", widest)
    rng = np.random.default_rng(3)
    d, m = 30, 12
    H = diags_array([rng.standard_normal(d - 1), 4 + rng.random(d)], offsets=[-1, 0])
    H = read((H + H.T).tocsr())
    J = read(csr_array(random_array((m, d), density=0.1, rng=rng)))
    a, b = rng.random(d), rng.random(m) + 0.1
    whole = np.block([[H.toarray() + np.diag(a), J.toarray().T], [J.toarray(), -np.diag(b)]])
    right = rng.standard_normal(d + m)
    solve = KKT(H.pattern, J.pattern).factor(H, J, a, b)
    assert solve is not None
    np.testing.assert_allclose(whole @ solve(right), right, atol=1e-9)
    W, K = rng.standard_normal((d + m, 2)), np.array([[9.0, 1.0], [1.0, 7.0]])
    both = with_low_rank(solve, W, K)
    np.testing.assert_allclose((whole - W @ np.linalg.solve(K, W.T)) @ both(right), right, atol=1e-8)
    for shift in (-8.0, -2.0, 0.0):
        w = rng.random(m)
        matrix = H.toarray() + shift * np.eye(d) + J.toarray().T @ np.diag(w) @ J.toarray()
        found = Augmented(H.pattern, J.pattern).is_positive_definite(H, J, np.full(d, shift), w)
        assert found == bool(np.linalg.eigvalsh(matrix).min() > 0)


@pytest.mark.parametrize("seed", range(5))
def test_least_squares_agree_with_scipy(seed):
    rng = np.random.default_rng(seed)
    D = rng.standard_normal((6, 10)) * (rng.random((6, 10)) < 0.5) * 10.0 ** rng.integers(-2, 3, (6, 1))
    slack, b = np.where(rng.random(6) < 0.5, 0.0, rng.random(6)), rng.standard_normal(10)
    lower = np.where(np.arange(6) >= 4, -np.inf, 0.0)
    truth = lsq_linear(np.vstack([D.T, np.diag(slack)]), np.concatenate([b, np.zeros(6)]), (lower, np.inf), tol=1e-14)
    y = sparse_least_squares(read(csr_array(D)), slack, b, num_equalities=2)
    assert (y[:4] >= 0).all()

    def value(y):
        return np.sum((D.T @ y - b) ** 2) + np.sum((slack * y) ** 2)

    assert value(y) <= value(truth.x) + 1e-9
