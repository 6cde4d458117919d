"""Sparse matrices of a fixed pattern: arithmetic, patterns, groups of columns, and what is refused."""

import numpy as np
import pytest
from scipy.sparse import coo_array, csc_array, csr_array, csr_matrix, diags_array, eye_array, random_array

from gdpa import Box, from_functions
from gdpa.base.arrays import row_sizes
from gdpa.numerics.differences import GroupedDifferences
from gdpa.numerics.sparse.matrix import Pattern, products, read, transposed, union


@pytest.fixture
def matrix():
    return random_array((7, 5), density=0.4, rng=np.random.default_rng(1), format="csr")


@pytest.mark.parametrize("kind", [csr_array, csr_matrix, csc_array, coo_array, lambda a: a.toarray()])
def test_every_kind_of_matrix_is_read(matrix, kind):
    assert np.array_equal(read(kind(matrix)).toarray(), matrix.toarray())


def test_products_and_scalings_are_those_of_the_dense_matrix(matrix):
    sparse, dense, rng = read(matrix), matrix.toarray(), np.random.default_rng(0)
    v, w = rng.standard_normal(5), rng.standard_normal(7)
    np.testing.assert_allclose(sparse @ v, dense @ v)
    np.testing.assert_allclose(w @ sparse, w @ dense)
    np.testing.assert_allclose((v * sparse).toarray(), v * dense)
    np.testing.assert_allclose((w[:, None] * sparse).toarray(), w[:, None] * dense)
    np.testing.assert_allclose((sparse / w[:, None]).toarray(), dense / w[:, None])
    np.testing.assert_allclose(row_sizes(sparse), np.abs(dense).max(axis=1))
    turned, places = transposed(sparse.pattern)
    again = csr_array((sparse.data[places], turned.indices, turned.indptr), shape=turned.shape)
    assert np.array_equal(again.toarray(), dense.T)
    both = products(sparse.pattern)
    ones = csr_array((np.ones(len(both.indices)), both.indices, both.indptr), shape=both.shape)
    assert np.array_equal(ones.toarray() != 0, ((dense != 0).T.astype(int) @ (dense != 0)) + np.eye(5) != 0)


def test_explicit_zeros_stay_entries_and_duplicates_are_added():
    zeros = csr_array(([1.0, 0.0], ([0, 0], [0, 1])), shape=(1, 2))
    assert len(read(zeros).data) == 2
    twice = csr_matrix((np.array([1.0, 2.0]), np.array([0, 0]), np.array([0, 2])), shape=(1, 1))
    assert read(twice).data.tolist() == [3.0]


def test_a_matrix_fits_into_a_larger_pattern(matrix):
    sparse = read(matrix)
    full = read(np.ones((7, 5))).pattern
    assert np.array_equal(sparse.within(full, "J").toarray(), matrix.toarray())
    square = read(np.eye(3))
    assert len(union(square.pattern, read(np.ones((3, 3))).pattern).indices) == 9


def test_index_arrays_that_point_outside_are_refused():
    broken = csr_array(np.eye(3))
    broken.indices[1] = 7
    with pytest.raises(
        ValueError, match=r"the jac, a sparse matrix of shape \(3, 3\), has wrong index arrays: .*correct"
    ):
        read(broken, "the jac")
    outside = coo_array(np.eye(3))
    outside.coords[0][0] = 9
    with pytest.raises(ValueError, match="an index is not between 0 and 2"):
        read(outside, "the jac")


def test_other_shapes_and_numbers_are_refused():
    with pytest.raises(ValueError, match=r"A must have shape \(2, 3\), got \(3, 3\): one row per value"):
        read(csr_array(np.eye(3)), "A", (2, 3))
    with pytest.raises(TypeError, match="A must hold real numbers, got a sparse matrix of dtype complex128"):
        read(csr_array(np.eye(3) * 1j), "A")
    with pytest.raises(ValueError, match=r"would have 10000000000 entries as a dense one.*attribute csr"):
        np.asarray(read(diags_array([np.ones(100_000)], offsets=[0], format="csr")))


def band(n, width):
    return read(diags_array([np.ones(n - abs(k)) for k in range(-width, width + 1)], offsets=range(-width, width + 1)))


@pytest.mark.parametrize(("n", "width"), [(10, 0), (50, 1), (200, 3)])
def test_a_band_takes_as_many_groups_as_it_is_wide(n, width):
    assert GroupedDifferences(band(n, width).pattern).num_groups == 2 * width + 1


@pytest.mark.parametrize("seed", range(5))
def test_columns_of_a_group_share_no_row(seed):
    pattern = read(random_array((30, 40), density=0.1, rng=np.random.default_rng(seed), format="csr")).pattern
    differences = GroupedDifferences(pattern)
    for group in range(differences.num_groups):
        rows = pattern.rows[differences.group_of[pattern.indices] == group]
        assert len(set(rows.tolist())) == len(rows)


@pytest.mark.parametrize("scheme", ["2-point", "3-point", "cs"])
def test_grouped_differences_find_the_jacobian_inside_the_bounds(scheme):
    n = 40
    lower, upper = np.zeros(n), np.full(n, 1.0)
    x = np.linspace(0, 1, n)
    calls = []

    def function(y):
        assert (np.real(y) >= lower).all()
        assert (np.real(y) <= upper).all()
        calls.append(y)
        return y[1:] * y[:-1] ** 2

    truth = np.zeros((n - 1, n))
    i = np.arange(n - 1)
    truth[i, i], truth[i, i + 1] = 2 * x[:-1] * x[1:], x[:-1] ** 2
    pattern = read(csr_array((np.ones(2 * n - 2), (np.r_[i, i], np.r_[i, i + 1])), shape=(n - 1, n))).pattern
    J = GroupedDifferences(pattern)(function, x, function(x), scheme, Box(lower, upper))
    np.testing.assert_allclose(J.toarray(), truth, atol=1e-6)
    assert len(calls) - 1 == {"2-point": 2, "3-point": 4, "cs": 2}[scheme]


def test_a_central_difference_at_a_bound_is_exact_for_squares():
    x = np.array([1.0, -2.0, 0.0, 5.0])
    for lower, upper in ((x, np.inf), (-np.inf, x), (x - 1e-9, x + 1.0)):
        J = GroupedDifferences(read(np.eye(4)).pattern)(np.square, x, np.square(x), "3-point", Box(lower, upper))
        assert np.abs(J.data - 2 * x).max() < 1e-8


def rosenbrock(n, **more):
    """Return the chained Rosenbrock function, whose Hessian is tridiagonal, and that Hessian."""

    def gradient(x):
        out, inner = np.zeros(n), x[1:] - x[:-1] ** 2
        out[1:] += 200 * inner
        out[:-1] -= 400 * x[:-1] * inner + 2 * (1 - x[:-1])
        return out

    def hessian(x):
        main = np.zeros(n)
        main[1:] += 200
        main[:-1] += 1200 * x[:-1] ** 2 - 400 * x[1:] + 2
        return np.diag(main) + np.diag(-400 * x[:-1], 1) + np.diag(-400 * x[:-1], -1)

    def value(x):
        return np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    return from_functions(value, gradient=gradient, **more), hessian


def test_a_hessian_by_differences_is_the_hessian():
    n = 60
    problem, hessian = rosenbrock(n, hessian_sparsity=band(n, 1).csr)
    x = np.random.default_rng(0).standard_normal(n)
    H = problem.evaluate(x).hessian(np.zeros(0), 2.0)
    np.testing.assert_allclose(H.toarray(), 2 * hessian(x), atol=1e-6 * np.abs(hessian(x)).max())


@pytest.mark.parametrize(("grid", "sides"), [(1.0, 1), (1e-5, 2)])
def test_differences_are_central_if_third_derivatives_matter(grid, sides):
    """f = sum exp(x / h) h^2: its second derivatives exp(x / h) change by the share 1e-7 / h over a difference."""
    n, calls = 60, []
    problem = from_functions(
        lambda x: calls.append(x) or grid**2 * np.sum(np.exp(x / grid)),  # type: ignore[func-returns-value]
        gradient=lambda x: grid * np.exp(x / grid),
        hessian_sparsity=eye_array(n, format="csr"),
    )
    x = grid * np.linspace(-1, 1, n)
    now = problem.evaluate(x)
    now.hessian(np.zeros(0))
    before = len(calls)
    H = now.hessian(np.zeros(0))
    assert len(calls) - before == now.hessian_passes == sides  # one group of columns
    np.testing.assert_allclose(H.toarray(), np.diag(np.exp(x / grid)), rtol=1e-4)


def test_a_guessed_pattern_is_kept_if_the_start_is_on_bounds():
    n = 60
    i = np.arange(n - 1)
    problem = from_functions(
        lambda x: np.sum(np.cos(x)),
        lambda x: x[1:] * x[:-1] - 1,
        gradient=lambda x: -np.sin(x),
        jacobian=lambda x: csr_array((np.r_[x[1:], x[:-1]], (np.r_[i, i], np.r_[i, i + 1])), shape=(n - 1, n)),
        domain=Box(0.0, np.inf),
    )
    x = np.where(np.arange(n) % 3 == 0, 0.0, 1.0)
    H = problem.evaluate(x).hessian(np.full(n - 1, 5.0))
    truth = np.diag(-np.cos(x)) + np.diag(np.full(n - 1, 5.0), 1) + np.diag(np.full(n - 1, 5.0), -1)
    np.testing.assert_allclose(H.toarray(), truth, atol=1e-5)


def test_a_guessed_pattern_that_does_not_hold_is_given_up():
    """Every variable is coupled with every other by f, and no two by g."""
    n = 60
    coupled = from_functions(
        lambda x: np.sum(x) ** 2,
        lambda x: x**2 - 1,
        gradient=lambda x: np.full(n, 2 * np.sum(x)),
        jacobian=lambda x: diags_array([2 * x], offsets=[0], format="csr"),
    )
    x = np.linspace(0.1, 1, n)
    assert coupled.evaluate(x).hessian(np.zeros(n)) is None
    separable = from_functions(
        lambda x: np.sum(x**4),
        lambda x: x**2 - 1,
        gradient=lambda x: 4 * x**3,
        jacobian=lambda x: diags_array([2 * x], offsets=[0], format="csr"),
    )
    H = separable.evaluate(x).hessian(np.ones(n))
    np.testing.assert_allclose(H.toarray(), np.diag(12 * x**2 + 2), atol=1e-5)


def test_a_pattern_of_another_shape_is_refused():
    problem = from_functions(lambda x: x @ x, gradient=lambda x: 2 * x, hessian_sparsity=np.eye(3))
    with pytest.raises(ValueError, match=r"the sparsity of the hessian must have shape \(60, 60\), got \(3, 3\)"):
        problem.evaluate(np.ones(60)).hessian(np.zeros(0))


def test_patterns_know_their_entries():
    pattern = Pattern(np.array([0, 1]), np.array([0, 1, 2]), (2, 2))
    assert pattern.rows.tolist() == [0, 1]
    assert pattern.is_same(read(np.eye(2)).pattern)
    assert not pattern.is_same(read(np.ones((2, 2))).pattern)
