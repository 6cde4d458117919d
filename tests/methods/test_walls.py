"""A value that is not finite ends no run of GDPA or a baseline: the step to it is cut, a bounded number of times."""

import numpy as np
import pytest
import torch

from gdpa import GDPA, AdaptiveGDPA, Ball, Box, MaxSteps, Product, Simplex, Status, from_functions, from_torch, solve
from gdpa.base.sets import Reals
from gdpa.run.loop import CUTS, Shortened
from tests.methods.walls import LONG, WALLS, prepare, runs

EVERY_RUN = pytest.mark.parametrize(("name", "wall", "long"), runs())
EVERY_METHOD = pytest.mark.parametrize("name", LONG)


def same(a, b):
    """Equal to the last bit, in the point and in the account."""
    assert a.status is b.status
    assert (a.steps, a.cuts, a.forwards) == (b.steps, b.cuts, b.forwards)
    for name in ("x", "multipliers", "x_last", "multipliers_last", "x_average"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


@EVERY_RUN
def test_no_run_ends_at_a_wall_and_all_can_be_continued(name, wall, long):
    problem, x0, method = prepare(name, wall, long)
    result = solve(problem, x0, method, stop=MaxSteps(120))
    assert result.steps == 120
    assert result.status in (Status.MAX_STEPS, Status.CONVERGED)
    for numbers in (result.x, result.multipliers, result.x_last, result.multipliers_last, result.history["objective"]):
        assert np.isfinite(numbers).all()
    assert np.isfinite(result.objective)
    assert (np.diff(result.history["step"]) > 0).all()  # a repeated step has one row
    after = solve(problem, run=result.run, stop=MaxSteps(130), record=0)
    assert after.steps == 130
    assert after.status in (Status.MAX_STEPS, Status.CONVERGED)


@EVERY_METHOD
def test_steps_that_are_too_long_are_cut(name):
    cuts = {}
    for wall in WALLS:
        problem, x0, method = prepare(name, wall, long=True)
        cuts[wall] = solve(problem, x0, method, stop=MaxSteps(100), record=0).cuts
    assert max(cuts.values()) > 5, cuts


@pytest.mark.parametrize("check_every", [2, 7])
@EVERY_METHOD
def test_the_iterates_do_not_depend_on_how_often_the_loop_looks(name, check_every):
    problem, x0, method = prepare(name, "log", long=True)
    often = solve(problem, x0, method, stop=MaxSteps(70), record=0)
    seldom = solve(problem, x0, method, stop=MaxSteps(70), record=0, check_every=check_every)
    assert often.steps == seldom.steps == 70
    assert often.cuts == seldom.cuts > 0
    np.testing.assert_array_equal(often.x_last, seldom.x_last)


@pytest.mark.parametrize("check_every", [1, 5])
@EVERY_METHOD
def test_a_run_resumed_across_a_cut_equals_the_straight_one(name, check_every):
    problem, x0, method = prepare(name, "log", long=True)
    options = {"check_every": check_every, "record": 0}
    straight = solve(problem, x0, method, stop=MaxSteps(30), **options)
    assert straight.cuts > 0
    part = solve(problem, x0, method, stop=MaxSteps(check_every), **options)
    while part.steps < 30:  # cut at every look
        part = solve(problem, run=part.run, stop=MaxSteps(part.steps + check_every), **options)
    same(part, straight)


def nowhere(start):
    """Return x'x, finite at the start alone."""
    with_hole = lambda x: x @ x if np.array_equal(x, start) else np.nan  # noqa: E731
    return from_functions(
        with_hole, lambda x: x[:1] - 5, gradient=lambda x: 2 * x, jacobian=lambda x: np.array([[1.0, 0.0]])
    )


@EVERY_METHOD
def test_a_function_finite_at_the_start_alone_ends_the_run(name):
    start = np.array([1.0, 2.0])
    problem = nowhere(start)
    if name == "proximal-admm":
        problem = from_functions(
            lambda x: x @ x if np.array_equal(x, start) else np.nan,
            lambda x: x[:1] - 1,
            gradient=lambda x: 2 * x,
            jacobian=lambda x: np.array([[1.0, 0.0]]),
            num_equalities=1,
        )
    _, _, method = prepare(name, "log", long=True)
    result = solve(problem, start, method, stop=MaxSteps(1000))
    assert result.status is Status.INVALID_NUMBER
    assert "The objective is nan" in result.message
    assert result.cuts == CUTS
    assert result.forwards <= 5 * (CUTS + 1)
    np.testing.assert_array_equal(result.x, start)
    assert np.isfinite(result.run.state.x).all()
    again = solve(problem, run=result.run, stop=MaxSteps(1000))
    assert again.status is Status.INVALID_NUMBER


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_below_the_rounding_of_x_are_no_way_out(dtype):
    # One part in 1e7 of x is less than float32 resolves: a cut step that does not move is finite and proves nothing.
    start = torch.tensor([1.0, 2.0], dtype=dtype)
    problem = from_torch(lambda x: ((1.0 if torch.equal(x, start) else torch.nan) * (x @ x), x[:1] - 5))
    result = solve(problem, start, GDPA(alpha=1e-4), stop=MaxSteps(1000))
    assert result.status is Status.INVALID_NUMBER
    assert result.forwards < 100


def test_a_run_without_trouble_is_the_recursion_itself():
    problem, x0, method = prepare("gdpa", "sqrt", long=False)
    result = solve(problem, x0, method, stop=MaxSteps(150))
    state = method.init(problem, x0)
    for _ in range(150):
        state = method.update(problem, state)
    assert result.cuts == 0
    np.testing.assert_array_equal(result.x_last, state.x)


def test_the_adaptive_method_needs_no_cut_of_the_loop():
    own = WALLS["log"]
    result = solve(own.problem(), np.array(own.x0), AdaptiveGDPA())
    assert result.success
    assert result.cuts == 0


@pytest.mark.parametrize("whole", [Reals(), Box(0.0, 1.0), Simplex(), Ball(1.0)])
def test_a_cut_step_goes_its_share_of_the_way_inside_the_set(whole):
    rng = np.random.default_rng(0)
    anchor = whole.project(rng.normal(size=3))
    cut, far = Shortened(whole, anchor, 0.1), 5 * rng.normal(size=3)
    np.testing.assert_allclose(cut.project(far) - anchor, 0.1 * (whole.project(far) - anchor), atol=1e-15)
    np.testing.assert_allclose(whole.project(cut.project(far)), cut.project(far), atol=1e-15)
    assert cut.shortens
    assert Product([(3, cut), (1, Reals())]).shortens
    assert not whole.shortens
    np.testing.assert_array_equal(cut.tangent(anchor, far), whole.tangent(anchor, far))
