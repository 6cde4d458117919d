"""The small program in C and its dual against the optimality conditions of the model, and the path without either."""

import numpy as np
import pytest

from gdpa.numerics import model
from gdpa.numerics.lbfgs import LBFGS
from gdpa.numerics.model import dual_qp, elastic_qp, model_step
from gdpa.numerics.qp import WORKING_SET


def program(seed, d, m, boxed):
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((d, d))
    bounds = (-rng.random(d), rng.random(d)) if boxed else None
    return (
        root @ root.T + np.eye(d),
        rng.standard_normal(d),
        rng.standard_normal((m, d)),
        rng.standard_normal(m),
        bounds,
    )


@pytest.mark.parametrize("way", ["daqp", "daqp in a box", "dual"])
@pytest.mark.parametrize("beta", [1.0, 1e3, 1e6])
@pytest.mark.parametrize(("d", "m", "p"), [(1, 1, 0), (4, 5, 2), (10, 8, 0), (20, 30, 5), (3, 0, 0)])
def test_it_is_stationary_for_the_model(d, m, p, beta, way):
    B, c, J, r, bounds = program(d + m, d, m, way == "daqp in a box")
    found = dual_qp(B, c, J, r, beta, p) if way == "dual" else elastic_qp(B, c, J, r, beta, p, bounds)
    assert found is not None
    step, multipliers = found
    shortfall = r + J @ step
    shortfall[: m - p] = np.maximum(shortfall[: m - p], 0.0)
    assert multipliers == pytest.approx(beta * shortfall, rel=1e-5, abs=1e-6)
    gradient = c + B @ step + multipliers @ J
    moved = step - gradient if bounds is None else np.clip(step - gradient, *bounds)
    assert step == pytest.approx(moved, abs=1e-6)


@pytest.mark.parametrize("boxed", [False, True])
def test_the_library_and_the_compact_form_take_the_same_step(boxed, monkeypatch):
    rng = np.random.default_rng(3)
    curvature = LBFGS()
    for _ in range(6):
        s = rng.standard_normal(5)
        curvature = curvature.updated(s, s + 0.3 * rng.standard_normal(5))
    _, c, J, r, bounds = program(1, 5, 4, boxed)
    ours = model_step(curvature, c, J, r, 100.0, 1, bounds)
    monkeypatch.setattr(model, "elastic_qp", lambda *_: None)
    monkeypatch.setattr(model, "dual_qp", lambda *_: None)
    slow = model_step(curvature, c, J, r, 100.0, 1, bounds)
    assert ours.direction == pytest.approx(slow.direction, abs=1e-8)
    assert ours.multipliers == pytest.approx(slow.multipliers, abs=1e-6)


def test_it_gives_up_on_large_programs_numbers_that_are_not_finite_and_without_the_library(monkeypatch):
    B, c, J, r, _ = program(0, 3, 2, False)
    assert elastic_qp(B, c * np.nan, J, r, 10.0, 0, None) is None
    assert elastic_qp(-B, c, J, r, 10.0, 0, None) is None
    wide = np.zeros((1, WORKING_SET + 1))
    assert elastic_qp(np.eye(wide.shape[1]), wide[0], wide, r[:1], 10.0, 0, None) is None
    assert dual_qp(B, c * np.nan, J, r, 10.0, 0) is None
    assert dual_qp(-B, c, J, r, 10.0, 0) is None
    monkeypatch.setattr(model, "_library", lambda: None)
    assert elastic_qp(B, c, J, r, 10.0, 0, None) is None


def test_the_matrix_is_the_one_of_the_compact_form():
    rng = np.random.default_rng(5)
    small = LBFGS(limit=4)
    for _ in range(9):
        s = rng.standard_normal(6)
        small = small.updated(s, 2 * s + 0.5 * rng.standard_normal(6))
    compact = small._replace(matrix=None)
    columns = np.stack([compact.product(e) for e in np.eye(6)], axis=1)
    assert small.matrix == pytest.approx(columns, abs=1e-9)
    assert small.rescaled(3.0).matrix == pytest.approx(3 * columns, abs=1e-8)
    assert small.rescaled(3.0)._replace(matrix=None).product(np.ones(6)) == pytest.approx(3 * columns @ np.ones(6))
    long = np.ones(WORKING_SET + 1)
    assert LBFGS().updated(long, long).matrix is None
