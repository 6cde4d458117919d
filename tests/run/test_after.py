"""A run that goes on after a similar problem: ``solve(problem, after=result)`` and ``minimize(..., after=result)``."""

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, NonlinearConstraint

from gdpa import GDPA, AdaptiveGDPA, Box, from_functions, minimize, problems, solve
from tests.libraries import to_numpy


def disc(library, radius):
    """min (x - 2)^2 + y^2 with x^2 + y^2 <= radius^2: (radius, 0), multiplier (2 - radius) / radius."""
    return library.problem(
        lambda stack, x: ((x[0] - 2) ** 2 + x[1] ** 2, stack([x[0] ** 2 + x[1] ** 2 - radius**2])),
        lambda x: 2 * (x - np.array([2.0, 0.0])),
        lambda x: 2 * x[None, :],
    )


@pytest.mark.parametrize("name", problems.names("solvable"))
def test_the_same_problem_is_over_at_once(name):
    own = problems.get(name)
    first = solve(own.problem, own.x0)
    again = solve(own.problem, after=first)
    assert again.success
    assert (again.steps, again.forwards) == (0, 1)
    assert again.x.tolist() == first.x.tolist()


@pytest.mark.parametrize(
    "constraints",
    [(), NonlinearConstraint(lambda x: x @ x, -np.inf, 1.0, jac=lambda x: 2 * x), LinearConstraint([[1.0, 1.0]], 1, 1)],
    ids=["none", "inequality", "equality"],
)
@pytest.mark.parametrize("bounds", [None, Bounds(-0.5, 0.9)])
def test_minimize_takes_two_evaluations_for_the_same_problem(constraints, bounds):
    given = {"constraints": constraints, "bounds": bounds, "jac": lambda x: np.array([2 * (x[0] - 2), 4 * x[1] ** 3])}
    first = minimize(lambda x: (x[0] - 2) ** 2 + x[1] ** 4, [0.3, 0.4], **given)
    again = minimize(lambda x: (x[0] - 2) ** 2 + x[1] ** 4, after=first, **given)
    assert first.success
    assert again.success
    assert again.nfev <= 2
    assert again.x.tolist() == first.x.tolist()


def test_another_limit_is_met_with_the_arrays_of_every_library(library):
    first = solve(disc(library, 1.0), library.array([0.5, 0.5]))
    warm = solve(disc(library, 1.1), after=first)
    assert warm.success
    assert type(warm.x) is type(first.x)
    np.testing.assert_allclose(to_numpy(warm.x), [1.1, 0.0], atol=1e-5)
    np.testing.assert_allclose(to_numpy(warm.multipliers), [0.9 / 1.1], atol=1e-4)
    if library.name == "numpy":
        assert warm.forwards < solve(disc(library, 1.1), library.array([0.5, 0.5])).forwards


def test_a_path_of_limits_takes_fewer_evaluations_than_separate_runs(rng):
    # min |A x - b|^2 with |x|^2 <= t: ridge regression, whose solution is (A'A + lambda I)^-1 A'b
    A, b = rng.normal(size=(30, 8)), rng.normal(size=30)
    H, c = A.T @ A, A.T @ b
    weights = np.geomspace(0.5, 20.0, 8)
    points = [np.linalg.solve(H + w * np.eye(8), c) for w in weights]
    warm, cold, before = 0, 0, None

    def within(t):
        return lambda z: np.array([z @ z - t]) / 2

    for w, x in zip(weights, points, strict=True):
        problem = from_functions(
            lambda z: z @ H @ z / 2 - c @ z,
            within(x @ x),
            gradient=lambda z: H @ z - c,
            jacobian=lambda z: z[None],
        )
        alone = solve(problem, np.zeros(8))
        before = alone if before is None else solve(problem, after=before)
        np.testing.assert_allclose(before.x, x, atol=1e-5)
        np.testing.assert_allclose(before.multipliers, [w], rtol=1e-3)
        warm, cold = warm + before.forwards, cold + alone.forwards
    assert warm <= 0.8 * cold


def test_a_start_of_ones_own_is_taken_with_the_state_of_the_other_run(library):
    first = solve(disc(library, 1.0), library.array([0.5, 0.5]))
    found = solve(disc(library, 0.9), library.array([0.2, 0.1]), after=first)
    assert to_numpy(found.run.start.x).tolist() == [0.2, 0.1]
    assert found.success


def test_a_method_without_more_state_takes_point_and_multipliers(library):
    method = GDPA(alpha=0.1, beta=5.0, tau=0.01)
    first = solve(disc(library, 1.0), library.array([0.5, 0.5]), method, tolerance=1e-2)
    assert first.success
    again = solve(disc(library, 1.0), after=first, tolerance=1e-2)
    assert again.success
    assert again.algorithm == method
    assert again.steps == 0


def test_bounds_and_fixed_variables_are_those_of_the_new_problem():
    given = {"constraints": LinearConstraint([[1.0, 1.0, 1.0]], 1, 1), "jac": lambda x: 2 * x}
    first = minimize(lambda x: x @ x, [0.3, 0.3, 0.1], bounds=Bounds([0, 0, 0.1], [1, 1, 0.1]), **given)
    moved = minimize(lambda x: x @ x, [0.3, 0.3, 0.2], bounds=Bounds([0, 0.5, 0.2], [1, 1, 0.2]), after=first, **given)
    np.testing.assert_allclose(moved.x, [0.3, 0.5, 0.2], atol=1e-6)
    assert moved.success


def line(d, m):
    return from_functions(
        lambda x: x @ x,
        lambda x: x[:m] - 1,
        gradient=lambda x: 2 * x,
        jacobian=lambda x: np.eye(m, d),
        domain=Box(-9, 9),
    )


def test_another_shape_another_method_and_other_starts_are_refused():
    first = solve(line(3, 2), np.ones(3))
    with pytest.raises(ValueError, match="earlier one had 2"):
        solve(line(3, 1), after=first)
    with pytest.raises(ValueError, match="after belongs to a problem with 3 variables"):
        solve(line(4, 2), np.ones(4), after=first)
    with pytest.raises(ValueError, match="after is a result of AdaptiveGDPA"):
        solve(line(3, 2), algorithm=GDPA(alpha=0.1), after=first)
    with pytest.raises(ValueError, match="after is a result of AdaptiveGDPA"):
        minimize(lambda x: x @ x, np.ones(3), method="gdpa", after=first)
    for more in ({"run": first.run}, {"multipliers0": np.zeros(2)}, {"best_of": 2}):
        with pytest.raises(ValueError, match=f"give it without {next(iter(more))}"):
            solve(line(3, 2), after=first, **more)
    with pytest.raises(TypeError, match="after must be the Result"):
        solve(line(3, 2), after=np.ones(3))
    with pytest.raises(TypeError, match="float32"):
        solve(line(3, 2), np.ones(3, dtype=np.float32), after=first)
    with pytest.raises(TypeError, match="x0 is missing"):
        minimize(lambda x: x @ x)
    assert solve(line(3, 2), algorithm=AdaptiveGDPA(), after=first).success
