"""The limited-memory matrix against the dense BFGS formula."""

import pickle
from concurrent.futures import ThreadPoolExecutor

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


def test_products_of_the_pairs_are_kept_up_to_date(library):
    rng = np.random.default_rng(3)
    A = rng.normal(size=(120, 120))
    memory = LBFGS(limit=4)
    for k in range(9):
        s = rng.normal(size=120)
        memory = memory.updated(library.array(s), library.array(A @ A.T @ s)).rescaled(2.0 - k % 3 / 2)
        Z = np.stack([to_numpy(v) for v in (*memory.steps, *memory.changes)])
        np.testing.assert_allclose(memory.gram, Z @ Z.T, rtol=1e-11, atol=1e-11)
        v = rng.normal(size=120)
        np.testing.assert_allclose(to_numpy(memory.product(library.array(v))), dense(memory, 120) @ v, rtol=1e-8)
    assert to_numpy(memory.rescaled(0.5).product(library.array(v))) == pytest.approx(0.5 * dense(memory, 120) @ v)


@pytest.mark.parametrize("dimension", [4, 120])
def test_a_matrix_stays_what_it_was_whatever_follows(rng, library, dimension):
    """Matrices that follow each other share one array; any of them may have successors."""

    def numbers(memory):
        return [to_numpy(a).tolist() for a in (*memory.steps, *memory.changes, memory.product(ones), memory.gram)]

    def pair():
        s = rng.normal(size=dimension)
        return library.array(s), library.array(3 * s + 0.1 * rng.normal(size=dimension))

    ones = library.array(np.ones(dimension))
    known = [LBFGS(limit=3)]
    expected = [numbers(known[0])]
    for k in range(24):
        before = known[int(rng.integers(len(known)))] if k > 8 else known[-1]
        known.append(before.updated(*pair()) if k % 5 else pickle.loads(pickle.dumps(before.rescaled(2.0))))
        expected.append(numbers(known[-1]))
        if k % 7 == 6:  # the places of values that are gone are used again
            del known[:3], expected[:3]
        assert [numbers(memory) for memory in known] == expected


def test_successive_matrices_share_one_array(rng):
    A = rng.normal(size=(120, 120))
    memory, arrays = LBFGS(limit=3), set()
    for _ in range(12):
        s = rng.normal(size=120)
        memory = memory.updated(s, A @ A.T @ s)  # the one before is alive until the new one is known
        arrays.add(id(memory.ring.data))
    assert len(arrays) == 1


def test_a_matrix_of_torchs_inference_mode_continues_outside_it():
    torch = pytest.importorskip("torch")
    s, y = torch.ones(3), torch.tensor([1.0, 2.0, 3.0])
    with torch.inference_mode():
        inside = LBFGS().updated(1 * s, 1 * y)
    again = inside.updated(y, s).updated(s, y)
    assert again.pairs == 3
    expected = LBFGS().updated(s, y).updated(y, s).updated(s, y)
    assert again.product(s).tolist() == expected.product(s).tolist()


def test_threads_may_continue_from_one_matrix(rng):
    def follow(k):
        s = np.full(20_000, 1.0)
        s[k] = 2.0
        return memory.updated(s, (k + 1) * s)

    memory = LBFGS(limit=2).updated(np.ones(20_000), np.ones(20_000))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(follow, range(64)))
    for k, one in enumerate(found):
        np.testing.assert_allclose(one.changes[-1], (k + 1) * one.steps[-1], rtol=1e-12)


@pytest.mark.parametrize(("moderate", "sigma"), [(False, 80.2), (True, np.sqrt(16.04))])
def test_a_damped_pair_of_a_lagrangian_leaves_a_moderate_sigma(moderate, sigma):
    # B = I, s = e_1, y = (-0.6, 8): theta = 0.8 / 1.6, so the damped y is (0.2, 4).
    memory = LBFGS().updated(np.array([1.0, 0.0]), np.array([-0.6, 8.0]), moderate=moderate)
    np.testing.assert_allclose(memory.changes[0], [0.2, 4.0], rtol=1e-12)
    assert memory.sigma == pytest.approx(sigma)
    np.testing.assert_allclose(memory.product(np.array([1.0, 0.0])), [0.2, 4.0], rtol=1e-10)  # the secant equation
