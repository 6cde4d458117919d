"""The limited-memory matrix against the dense BFGS formula."""

import numpy as np
import pytest

from gdpa.numerics.dense import solve_symmetric
from gdpa.numerics.lbfgs import LBFGS
from tests.libraries import to_numpy


def dense(memory, dimension):
    """B by the textbook's recursion, one pair after the other."""
    B = memory.sigma * np.eye(dimension)
    for s, y in zip(memory.steps, memory.changes, strict=True):
        s, y = to_numpy(s), to_numpy(y)
        Bs = B @ s
        B = B - np.outer(Bs, Bs) / (s @ Bs) + np.outer(y, y) / (s @ y)
    return B


def convex_memory(rng, dimension, pairs, limit=20, array=np.asarray):
    A = rng.normal(size=(dimension, dimension))
    hessian = A @ A.T + np.eye(dimension)
    memory = LBFGS(limit=limit)
    for _ in range(pairs):
        s = rng.normal(size=dimension)
        memory = memory.updated(array(s), array(hessian @ s))
    return memory


@pytest.mark.parametrize("pairs", [0, 1, 3, 7])
def test_products_are_those_of_the_dense_formula(rng, pairs, library):
    memory = convex_memory(rng, 6, pairs, array=library.array)
    assert len(memory.steps) == pairs
    B = dense(memory, 6)
    v = rng.normal(size=6)
    np.testing.assert_allclose(to_numpy(memory.product(library.array(v))), B @ v, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(
        to_numpy(memory.inverse_product(library.array(v))), np.linalg.solve(B, v), rtol=1e-9, atol=1e-9
    )


def test_the_newest_pair_satisfies_the_secant_equation(rng):
    memory = convex_memory(rng, 8, 5)
    np.testing.assert_allclose(memory.product(memory.steps[-1]), memory.changes[-1], atol=1e-10)
    np.testing.assert_allclose(memory.inverse_product(memory.changes[-1]), memory.steps[-1], atol=1e-10)


def test_only_the_newest_pairs_are_kept(rng):
    memory = convex_memory(rng, 4, 9, limit=3)
    assert len(memory.steps) == len(memory.changes) == 3


def test_the_length_of_a_pair_does_not_matter(rng):
    s, y = np.array([1.0, 2.0, 0.5]), np.array([3.0, 1.0, 0.0])
    small, large = LBFGS().updated(1e-9 * s, 1e-9 * y), LBFGS().updated(s, y)
    np.testing.assert_allclose(small.steps[0], large.steps[0])
    np.testing.assert_allclose(small.changes[0], large.changes[0])


@pytest.mark.parametrize("curvature", [-3.0, 0.0, 0.1])
def test_powells_damping_keeps_the_matrix_positive_definite(curvature):
    # B = I and s = e_1, s'y < 0.2: the damped y has s'y = 0.2 exactly and B stays positive definite.
    s = np.array([1.0, 0.0])
    memory = LBFGS().updated(s, curvature * s)
    assert memory.changes[0] @ s == pytest.approx(0.2)
    assert np.linalg.eigvalsh(dense(memory, 2)).min() > 0


def test_curvature_above_a_fifth_is_taken_as_it_is():
    s = np.array([1.0, 0.0])
    memory = LBFGS().updated(s, np.array([0.3, 0.7]))
    assert memory.changes[0].tolist() == [0.3, 0.7]


def test_steps_along_a_flat_direction_grow_but_only_while_they_do_not_shrink():
    s = np.array([1.0, 0.0])
    growing = memory = LBFGS()
    for k in range(4):
        growing = growing.updated(2.0**k * s, 0 * s)
    assert s @ growing.inverse_product(s) == pytest.approx(5.0**4)
    for k in range(4):
        memory = memory.updated(4.0**-k * s, 0 * s)
    assert s @ memory.inverse_product(s) == pytest.approx(5.0)


def test_a_spectral_step_has_the_curvature_of_the_last_pair_or_a_fifth_of_the_one_before():
    s = np.array([1.0, 2.0])
    memory = LBFGS().spectral(s, 3 * s)
    assert memory.sigma == pytest.approx(3.0)
    assert memory.spectral(s, -s).sigma == pytest.approx(0.6)
    assert LBFGS().spectral(s, 1e-30 * s).sigma == 2.0**-26


def test_a_step_of_length_zero_is_no_news():
    memory = LBFGS(sigma=3.0)
    assert memory.updated(np.zeros(2), np.zeros(2)) is memory


def test_small_systems_are_solved_whatever_their_units(rng):
    A = rng.normal(size=(4, 4))
    A = A @ A.T + np.eye(4)
    units = np.array([1e-8, 1.0, 1e5, 1e9])
    b = rng.normal(size=4)
    y = solve_symmetric(A * np.outer(units, units), b * units)
    np.testing.assert_allclose(y * units, np.linalg.solve(A, b), rtol=1e-9)


def test_products_of_the_rows_are_kept_up_to_date():
    rng = np.random.default_rng(3)
    A = rng.normal(size=(60, 60))
    memory = LBFGS(limit=4)
    for _ in range(9):
        s = rng.normal(size=60)
        memory = memory.updated(s, A @ A.T @ s)
        np.testing.assert_allclose(memory.gram, memory.rows @ memory.rows.T, rtol=1e-12)
    scaled = memory.rescaled(0.5)
    np.testing.assert_allclose(scaled.gram, scaled.rows @ scaled.rows.T, rtol=1e-12)
    np.testing.assert_allclose(scaled.product(np.ones(60)), 0.5 * memory.product(np.ones(60)), rtol=1e-9)


@pytest.mark.parametrize(("moderate", "sigma"), [(False, 80.2), (True, np.sqrt(16.04))])
def test_a_damped_pair_of_a_lagrangian_leaves_a_moderate_sigma(moderate, sigma):
    # B = I, s = e_1, y = (-0.6, 8): theta = 0.8 / 1.6, so the damped y is (0.2, 4).
    memory = LBFGS().updated(np.array([1.0, 0.0]), np.array([-0.6, 8.0]), moderate=moderate)
    np.testing.assert_allclose(memory.changes[0], [0.2, 4.0], rtol=1e-12)
    assert memory.sigma == pytest.approx(sigma)
    np.testing.assert_allclose(memory.product(np.array([1.0, 0.0])), [0.2, 4.0], rtol=1e-10)  # the secant equation
