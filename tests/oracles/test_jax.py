import numpy as np
import pytest

import gdpa
from gdpa import GDPA, MaxSteps, certify, from_jax, solve

jax = pytest.importorskip("jax")
jnp = jax.numpy


def function(x):
    a, b = x[..., 0], x[..., 1]
    return jnp.sin(a) * b, jnp.stack([a**2 - b, a * b, b**3], axis=-1)


def exact(a, b):
    return np.array([np.cos(a) * b, np.sin(a)]), np.array([[2 * a, -1.0], [b, a], [0.0, 3 * b**2]])


@pytest.mark.parametrize("jit", [True, False])
def test_the_pullback_is_one_weighted_backward(jit):
    now = from_jax(function, jit=jit).evaluate(jnp.array([0.3, -0.7]))
    gradient, J = exact(0.3, -0.7)
    w = jnp.array([2.0, -3.0, 0.5])
    assert np.asarray(now.pullback(w)) == pytest.approx(gradient + np.asarray(w) @ J)
    assert np.asarray(now.pullback(w, objective=0.0)) == pytest.approx(np.asarray(w) @ J)
    assert np.asarray(now.pullback(w, objective=0.5)) == pytest.approx(0.5 * gradient + np.asarray(w) @ J)
    assert np.asarray(now.jacobian()) == pytest.approx(J)


def test_a_batch_is_its_members():
    points = jnp.array([[0.3, -0.7], [1.1, 0.4]])
    weights = jnp.array([[2.0, -3.0, 0.5], [1.0, 1.0, 0.0]])
    own = from_jax(function)
    whole = own.evaluate(points).pullback(weights, jnp.array([1.0, 0.5]))
    for i, scale in enumerate((1.0, 0.5)):
        one = own.evaluate(points[i]).pullback(weights[i], scale)
        assert np.asarray(whole[i]) == pytest.approx(np.asarray(one))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_precision_is_kept(dtype):
    now = from_jax(function).evaluate(jnp.array([0.3, -0.7], dtype=dtype))
    assert now.objective.dtype == now.constraints.dtype == now.pullback(jnp.ones(3, dtype=dtype)).dtype == dtype


def test_the_function_is_traced_once_for_a_shape():
    traces = []

    def traced(x):
        traces.append(x.shape)
        return function(x)

    own = from_jax(traced)
    solve(own, jnp.array([0.3, -0.7]), GDPA(alpha=0.01), stop=MaxSteps(30))
    assert len(traces) == 1


def test_a_recorded_answer_is_certified_in_jax():
    own = from_jax(lambda x: ((x[0] - 2) ** 2 + (x[1] - 1) ** 2, jnp.stack([x[0] + x[1] - 2, x[0] ** 2 - x[1]])))
    certificate = certify(own, jnp.ones(2))
    assert np.asarray(certificate.multipliers) == pytest.approx([2 / 3, 2 / 3])
    assert certificate.holds(1e-8)


def test_the_front_door_loads_it_lazily():
    assert gdpa.from_jax is from_jax
