import numpy as np
import pytest

from gdpa import namespace
from gdpa.base.arrays import (
    LONG_ROW,
    all_finite,
    dot,
    from_numpy,
    is_floating,
    max_norm,
    norm,
    positive_part,
    products,
    to_numpy,
)
from tests.libraries import Library

VALUES = [[1.0, -2.0, 0.5, -0.0], [-1.0, 3.0, -4.0, 2.0]]


def test_the_namespace_makes_arrays_of_the_same_library(library):
    x = library.array(VALUES)
    assert type(namespace(x).zeros_like(x)) is type(x)


@pytest.mark.parametrize("num_equalities", [0, 1, 2, 4])
def test_positive_part_clips_all_but_the_last_equalities(library, num_equalities):
    expected = np.array(VALUES)
    split = 4 - num_equalities
    expected[:, :split] = np.maximum(expected[:, :split], 0)
    assert to_numpy(positive_part(library.array(VALUES), num_equalities)).tolist() == expected.tolist()


def test_norms_act_on_the_last_axis(library):
    x = library.array(VALUES)
    assert to_numpy(norm(x)) == pytest.approx(np.linalg.norm(VALUES, axis=1))
    assert to_numpy(max_norm(x)).tolist() == [2.0, 4.0]
    assert float(norm(x[0])) == pytest.approx(np.linalg.norm(VALUES[0]))


def test_the_largest_of_nothing_is_zero_and_a_nan_is_not_lost(library):
    assert float(max_norm(library.array([]))) == 0.0
    assert np.isnan(float(max_norm(library.array([1.0, np.nan, 3.0]))))
    assert np.isnan(float(norm(library.array([1.0, np.nan, 3.0]))))


@pytest.mark.parametrize("worst", [0.0, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("d", [4, LONG_ROW + 1])
def test_sizes_and_finiteness_do_not_depend_on_the_length(library, d, worst, rng):
    rows = rng.normal(size=(2, d))
    rows[1, d // 2] += worst
    for v in (rows, rows[0], rows[1]):
        np.testing.assert_array_equal(to_numpy(max_norm(library.array(v))), np.abs(v).max(axis=-1))
        assert all_finite(library.array(v)) == bool(np.isfinite(v).all())


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_products_are_those_of_extended_precision(library, dtype, k, rng):
    a, b = (rng.normal(size=(rows, LONG_ROW + 7)).astype(dtype) for rows in (3, k))
    expected = a.astype(np.longdouble) @ b.astype(np.longdouble).T
    sizes = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)
    found = products(library.array(a, dtype), library.array(b, dtype))
    double = dtype == "float64" or not library.name.startswith("jax")
    assert (abs(found - expected) <= (1e-14 if double else 1e-6) * sizes).all()
    assert dot(library.array(a[0], dtype), library.array(b[0], dtype)) == pytest.approx(
        float(expected[0, 0]), abs=(1e-14 if dtype == "float64" else 1e-6) * float(sizes[0, 0])
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_there_and_back_keeps_values_library_and_precision(library, dtype):
    x = library.array(VALUES, dtype)
    back = from_numpy(to_numpy(x), like=x)
    assert type(back) is type(x)
    assert back.dtype == x.dtype
    assert to_numpy(back).tolist() == VALUES


def test_to_numpy_leaves_the_graph():
    torch = pytest.importorskip("torch")
    x = torch.ones(2, requires_grad=True)
    assert to_numpy(x * 2).tolist() == [2.0, 2.0]


def test_only_real_floating_arrays_count_as_floating(library):
    assert is_floating(library.array([1.0]))
    assert not is_floating(library.array([1], "int32"))
    assert not is_floating(library.array([1.0], "complex64"))
    assert not is_floating([1.0])
    assert not is_floating(None)
    assert not is_floating(Library("numpy"))


def test_long_products_of_single_precision_are_summed_in_double():
    torch = pytest.importorskip("torch")
    n = 3 * LONG_ROW + 5
    row = torch.full((1, n), 0.1, dtype=torch.float32)
    exact = n * float(np.float32(0.1)) ** 2
    assert products(row, row).item() == pytest.approx(exact, rel=1e-12)
    assert dot(row[0], row[0]) == pytest.approx(exact, rel=1e-7)  # each product is rounded once
