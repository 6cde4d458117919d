"""The model's minimizer against SciPy on the same model, its optimality conditions, and descent of F_beta."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdpa.base.arrays import positive_part
from gdpa.numerics.lbfgs import LBFGS
from gdpa.numerics.model import model_step
from tests.libraries import scipy_minimize, to_numpy
from tests.numerics.test_lbfgs import convex_memory, dense


def instance(seed, d, m, pairs, boxed):
    rng = np.random.default_rng(seed)
    memory = convex_memory(rng, d, pairs)
    c, J, r = rng.normal(size=d) * 3, rng.normal(size=(m, d)), rng.normal(size=m)
    beta = float(10 ** rng.uniform(0, 3))
    bounds = None
    if boxed:
        lower, upper = -rng.uniform(0, 1, d), rng.uniform(0, 1, d)
        lower[rng.uniform(size=d) < 0.3] = 0.0
        upper[rng.uniform(size=d) < 0.3] = np.inf
        bounds = (lower, upper)
    return memory, c, J, r, beta, bounds


def model(memory, c, J, r, beta, equalities):
    B = dense(memory, len(c))

    def value(p):
        violation = positive_part(r + J @ p, equalities)
        return c @ p + p @ B @ p / 2 + beta / 2 * violation @ violation

    def gradient(p):
        return c + B @ p + beta * J.T @ positive_part(r + J @ p, equalities)

    return value, gradient


@given(
    seed=st.integers(0, 10_000),
    d=st.integers(1, 12),
    m=st.integers(0, 8),
    pairs=st.integers(0, 6),
    boxed=st.booleans(),
    data=st.data(),
)
def test_it_minimizes_the_model_and_descends(seed, d, m, pairs, boxed, data):
    memory, c, J, r, beta, bounds = instance(seed, d, m, pairs, boxed)
    equalities = data.draw(st.integers(0, m))
    step = model_step(memory, c, J, r, beta, equalities, bounds)
    p = step.direction
    value, gradient = model(memory, c, J, r, beta, equalities)
    lower, upper = bounds if bounds is not None else (-np.inf, np.inf)
    assert (p >= lower).all()
    assert (p <= upper).all()
    size = 1 + np.abs(c).max() + beta * np.abs(J).max(initial=0.0)
    residual = p - np.clip(p - gradient(p), lower, upper)
    assert np.abs(residual).max() <= 1e-7 * size
    np.testing.assert_allclose(
        step.multipliers, beta * positive_part(r + J @ p, equalities), atol=1e-6 * size, rtol=1e-6
    )
    # grad F_beta is the model's gradient at 0, so lower value means descent.
    assert value(p) <= value(0 * p) + 1e-9 * size
    assert gradient(0 * p) @ p <= value(p) - value(0 * p) + 1e-9 * size


@pytest.mark.parametrize("boxed", [False, True])
def test_against_scipy(boxed):
    memory, c, J, r, beta, bounds = instance(3, 7, 4, 5, boxed)
    value, gradient = model(memory, c, J, r, beta, 1)
    limits = None if bounds is None else list(zip(*bounds, strict=True))
    options = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 5000}
    reference = scipy_minimize(value, np.zeros(7), jac=gradient, method="L-BFGS-B", bounds=limits, options=options)
    np.testing.assert_allclose(model_step(memory, c, J, r, beta, 1, bounds).direction, reference.x, atol=1e-5)


def test_every_library_takes_the_same_step(library):
    memory, c, J, r, beta, bounds = instance(5, 6, 3, 4, True)
    expected = model_step(memory, c, J, r, beta, 1, bounds)
    own = memory._replace(ring=replace(memory.ring, data=library.array(memory.ring.data)), matrix=None)
    arrays = [library.array(a) for a in (c, J, r)]
    step = model_step(own, *arrays, beta, 1, tuple(library.array(b) for b in bounds))  # type: ignore[call-arg]
    np.testing.assert_allclose(to_numpy(step.direction), expected.direction, atol=1e-10)
    np.testing.assert_allclose(to_numpy(step.multipliers), expected.multipliers, atol=1e-8)


def test_parallel_pairs_do_no_harm():
    # Two pairs along one line make the small matrices singular.
    s = np.array([1.0, 0.0])
    memory = LBFGS().updated(s, 2 * s).updated(s, 2 * s)
    step = model_step(memory, np.array([-1.0, -1.0]), np.zeros((0, 2)), np.zeros(0), 1.0)
    np.testing.assert_allclose(step.direction, [0.5, 0.5], atol=1e-6)


@pytest.mark.parametrize("equalities", [0, 2])
@pytest.mark.parametrize("beta", [10.0, 1e8])
def test_of_many_rows_those_that_matter_are_found(beta, equalities):
    rng = np.random.default_rng(3)
    d, m = 20, 400
    memory, c, J = convex_memory(rng, d, 4), 30 * rng.normal(size=d), rng.normal(size=(m, d))
    r = rng.normal(size=m) - 3
    J[50:300] = J[50]  # one row 250 times
    r[50:300] = r[50]
    step = model_step(memory, c, J, r, beta, equalities)
    _, gradient = model(memory, c, J, r, beta, equalities)
    assert step.multipliers == pytest.approx(beta * positive_part(r + J @ step.direction, equalities), abs=1e-5)
    assert np.abs(c + dense(memory, d) @ step.direction + step.multipliers @ J).max() <= 1e-7 * np.abs(c).max()
    assert np.abs(gradient(step.direction)).max() <= 1e-5 * np.abs(c).max()
