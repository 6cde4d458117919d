"""The formulas and decisions of AdaptiveGDPA by hand arithmetic, at their limits and on both sides of them."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from gdpa import REALS, AdaptiveGDPA, Ball, Box, Evaluation, Problem, from_functions
from gdpa.core.certificate import JACOBIAN_LIMIT
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.methods.adaptive import Rules
from gdpa.methods.adaptive import method as adaptive
from gdpa.methods.adaptive.quasi_newton import QuasiNewton, projected_gradient
from gdpa.methods.adaptive.scaling import (
    ScaledEvaluation,
    ScaledProblem,
    Scaling,
    common_lengths,
    drift,
    measures_rows,
    scaling_from,
)
from gdpa.methods.adaptive.sqp import begins_with_sqp
from gdpa.methods.adaptive.state import Monitor, Reference, Trial, largest_violation
from gdpa.numerics.lbfgs import LBFGS

RULES = Rules()
EPS = 2.0**-52


def call(f=0.0, g=(), gradient=(1.0, 0.0), J=None, cheap=False):
    """An oracle call with these values and derivatives."""
    g, gradient = np.array(g, dtype=float), np.array(gradient)
    J = np.zeros((len(g), len(gradient))) if J is None else np.array(J)
    pullback = lambda w, objective=1.0: objective * gradient + w @ J  # noqa: E731
    return Evaluation(np.asarray(f), g, pullback, (lambda: J) if cheap else None)


def linear(c, A, b, domain=REALS, equalities=0):
    """min c x subject to A x <= b."""
    c, A, b = (np.asarray(v, dtype=float) for v in (c, A, b))
    return from_functions(
        lambda x: c @ x, lambda x: A @ x - b, gradient=lambda x: c, jacobian=lambda x: A, domain=domain,
        num_equalities=equalities,
    )  # fmt: skip


FACTORS = ("reference_points", "beta_factor", "violation_left", "update_weight")
SHARES = ("adopted", "few_rows", "shove", "near")


@pytest.mark.parametrize("rule", [rule for rule in fields(Rules) if rule.metadata["off"] is not None])
def test_a_rule_is_off_at_the_value_that_changes_nothing(rule):
    """Factors and counts are off at 1, shares and allowances at 0, limits at infinity."""
    assert rule.metadata["off"] == (1 if rule.name in FACTORS else 0 if rule.name in SHARES else math.inf)


# Line search


def test_a_trial_is_accepted_up_to_its_share_of_the_promise_and_rounding():
    rules, trial = Rules(sufficient_decrease=0.25), Trial(np.ones(1), slope=-1.0)
    # 1 + 0.25 (-1) = 0.75
    assert trial.suffices(0.75, 0.5, 1.0, 0.0, rules)
    assert not trial.suffices(0.7501, 0.5, 1.0, 0.0, rules)
    # rounding 1/16 of the larger of |current| = 2 and |value|: 0.875
    assert trial.suffices(0.875, -2.0, 1.0, 1 / 16, rules)
    assert not trial.suffices(0.8751, -2.0, 1.0, 1 / 16, rules)
    assert trial.suffices(-4.0, 0.0, -4.0, 1 / 16, rules)  # -4.25 + 4/16


def test_the_next_length_minimizes_the_parabola_between_its_bounds():
    # q(0) = 0, q'(0) = -2, q(1/2) = 1/2: q = 6 t^2 - 2 t, least at 1/6
    assert Trial(np.ones(1), -2.0, 0.5).shorter(0.5, RULES) == pytest.approx(1 / 6)
    assert Trial(np.ones(1), -2.0, 0.5).shorter(100.0, RULES) == pytest.approx(0.05)  # a tenth
    assert Trial(np.ones(1), -2.0, 0.5).shorter(-0.5, RULES) == 0.25  # q = 2 t^2 - 2 t, least at 1/2: cut to a half
    assert Trial(np.ones(1), -1.0, 1.0).shorter(-1.0, RULES) == 0.1  # a straight line has no least value
    assert Trial(np.ones(1), -1.0, 1.0).shorter(-2.0, RULES) == 0.1  # nor has a parabola that opens downwards


def test_the_reference_is_the_largest_merit_before_the_newest():
    record = Reference(np.array([9.0, 3.0, 1.0]), np.array([[0.0], [0.0], [2.0]]))
    F = AugmentedLagrangian(np.zeros(1), 1.0)
    # 2 f + [g]_+^2 / 2: 18, 6, 2 + 2
    assert record.values(2.0, F) == (4.0, 6.0, 18.0)
    assert record.newest().objectives.tolist() == [1.0]
    longer = record.push(np.asarray(5.0), np.array([-1.0]), 2)
    assert longer.objectives.tolist() == [3.0, 1.0, 5.0]
    assert longer.constraints[-1].tolist() == [-1.0]


def test_trial_points():
    x, trial = np.array([1.0, 2.0]), Trial(np.array([4.0, -4.0]), -1.0, 0.25)
    assert trial.point(x).tolist() == [2.0, 1.0]
    assert Trial(np.array([4.0, -4.0]), -1.0).point(x).tolist() == [5.0, -2.0]
    assert trial._replace(correction=np.array([0.5, 0.5])).point(x).tolist() == [1.5, 2.5]


# Units


@pytest.mark.parametrize(
    ("f", "slope", "factor"),
    [
        (7.0, 4.0, 1 / 4),
        (7.0, 0.0, 1.0),  # no gradient: its own units
        (5.0, 1e-5, 1.0),  # flat
        (-0.005, 1e-5, 200.0),
        (0.0, 1e-5, 1e5),  # a matter of units
    ],
)
def test_the_unit_of_f(f, slope, factor):
    scaling = scaling_from((np.asarray(f), np.zeros(0)), slope, None)
    assert scaling.objective == pytest.approx(factor)
    assert scaling.constraints.tolist() == []


@pytest.mark.parametrize(
    ("g", "slope", "factor"),
    [
        (-7.0, 4.0, 1 / 4),
        (3.0, 0.0, 1 / 3),
        (0.0, 0.0, 1.0),
        (-5.0, 1e-4, 1.0),
        (-0.004, 1e-4, 250.0),
        (0.0, 1e-4, 1e4),
    ],
)
def test_the_unit_of_a_constraint(g, slope, factor):
    J = np.array([[slope, 0.0]])
    scaling = scaling_from((np.asarray(0.0), np.array([g])), 1.0, abs(J).max(axis=1))
    assert scaling.constraints == pytest.approx([factor])
    unscaled = scaling_from((np.asarray(0.0), np.array([g])), 1.0, None)
    assert unscaled.constraints.tolist() == [1.0]


def test_multipliers_and_derivatives_in_other_units():
    # f' = f / 2, g' = 4 g: lambda' = lambda s_f / s
    scaling, now = Scaling(0.5, np.array([4.0])), call(3.0, [2.0], [1.0, 6.0], [[1.0, 1.0]])
    assert scaling.scale(np.array([16.0])).tolist() == [2.0]
    assert scaling.unscale(np.array([2.0])).tolist() == [16.0]
    inner = ScaledEvaluation(now, scaling, np.zeros(2))
    assert (float(inner.objective), inner.constraints.tolist()) == (1.5, [8.0])
    assert inner.gradient().tolist() == [0.5, 3.0]
    assert inner.jacobian().tolist() == [[4.0, 4.0]]
    assert inner.pullback(np.array([2.0])).tolist() == [8.5, 11.0]  # grad f / 2 + 2 * 4 J
    assert inner.pullback(np.array([2.0]), 0.0).tolist() == [8.0, 8.0]
    probe = inner.probe(np.array([2.0]), np.array([8.5, 11.0]))
    assert (probe.multipliers.tolist(), probe.gradient.tolist()) == ([16.0], [17.0, 22.0])  # (1, 6) + 16 J


def change(s_f=1.0, s=1.0, f=0.0, g=0.0, c=1.0, J=1.0):
    """Return the factors for one constraint from scaled values and derivatives; None if its units suit."""
    row = np.array([[0.0, J]])
    scaling = Scaling(s_f, np.array([s]))
    found = drift(scaling, np.asarray(f), np.array([g]), np.array([c, 0.0]), row, RULES)
    return None if found is None else (found[0], *found[1].tolist())


def test_units_drift_beyond_a_factor_of_ten():
    assert change() is None
    assert change(J=10.0) is None
    assert change(c=10.0) is None
    assert change(J=16.0) == (1.0, 1 / 16)
    assert change(c=-16.0) == (1 / 16, 1.0)
    assert change(c=16.0, J=16.0) == (1 / 16, 1 / 16)
    assert change(c=2.0, J=16.0) == (1.0, 1 / 16)  # f keeps its unit
    assert change(c=16.0, J=2.0) == (1 / 16, 1.0)


def test_a_function_that_grows_flat_is_enlarged_up_to_its_own_units_only():
    assert change(c=0.1) is None
    assert change(J=0.1) is None
    assert change(c=1e-3) is None  # already in its own units
    assert change(J=1e-3) is None
    # units of 1/64, chosen where the gradient was 64; it is 1/16 now, and 1 is the largest unit
    assert change(s_f=1 / 64, c=1 / 1024) == (64.0, 1.0)
    assert change(s=1 / 64, J=1 / 1024) == (1.0, 64.0)
    # the gradient is 2 now, which asks for a unit of 1/2
    assert change(s_f=1 / 64, c=1 / 32) == (32.0, 1.0)
    assert change(s=1 / 64, J=1 / 32) == (1.0, 32.0)
    # what vanishes or was not evaluated tells nothing
    assert change(s_f=1 / 64, c=0.0) is None
    assert change(s=1 / 64, J=0.0) is None


def test_an_enlarged_function_is_taken_back_when_it_turns_out_to_be_flat():
    assert change(s_f=100.0) is None  # f = 0 beside a gradient of 1/100: a matter of units
    # f = 5 beside a gradient of 1/128: a unit of 1
    assert change(s_f=128.0, f=640.0) == (1 / 128, 1.0)
    # g = 5 beside a gradient of 1/1600 counts as 1
    assert change(s=1600.0, g=8000.0) == (1.0, 1 / 1600)
    # in the unit 1/64 g' = 1/8 is 8, so that a gradient of 1/1024 counts as 1; its own unit is 1
    assert change(s=1 / 64, g=1 / 8, J=2.0**-16) == (1.0, 64.0)


# Lengths


def found_lengths(x0, g=(), J=None, domain=REALS, x_scale=None, rules=RULES):
    x0 = np.array(x0, dtype=float)
    now = call(0.0, g, np.ones(len(x0)), np.zeros((len(g), len(x0))) if J is None else J)
    found = common_lengths(Problem(lambda x: now, domain=domain, x_scale=x_scale), x0, now, rules)
    return None if found is None else found.tolist()


def test_all_coordinates_have_one_length_a_power_of_two():
    assert found_lengths([1000.0, 1.0]) == [1024.0, 1024.0]
    assert found_lengths([-1000.0, 0.0]) == [1024.0, 1024.0]
    assert found_lengths([90.0, 1e-9]) is None  # the largest is within a factor of 100 of 1
    assert found_lengths([1e-3, 0.0]) == [2.0**-10, 2.0**-10]
    assert found_lengths([1e300]) == [2.0**255]
    assert found_lengths([1000.0], domain=Ball(1e4)) is None
    assert found_lengths([1000.0, 1.0], domain=Box(0.0, 1e4)) == [1024.0, 1024.0]
    assert found_lengths([1000.0, 1.0], x_scale=np.array([256.0, 1.0])) == [256.0, 1.0]  # stated


def test_at_zero_the_nearest_constraint_supplies_the_length():
    # distances 6600 / 11 and 512 / 2
    assert found_lengths([0.0, 0.0], [-6600.0, 512.0], [[10.0, 1.0], [0.0, -2.0]]) == [256.0, 256.0]
    assert found_lengths([0.0], [-2560.0, 0.0], [[10.0], [1.0]]) == [256.0]  # the second is on its boundary
    assert found_lengths([0.0], [-2560.0, -1.0], [[10.0], [0.0]]) == [256.0]  # the second has no slope
    assert found_lengths([0.0], [-1.0], [[0.0]]) is None
    assert found_lengths([0.0]) is None
    assert found_lengths([0.0], [-2560.0] * 31, [[10.0]] * 31) is None  # 31 rows are not worth their passes
    assert found_lengths([0.0], x_scale=256.0) == [256.0]


def test_lengths_follow_the_iterates_and_keep_the_step():
    # min (x - 1)^2 subject to x >= 0.5, from afar: D is 2^27 at first and 1 in the end
    far = from_functions(
        lambda x: (x[0] - 1) ** 2,
        lambda x: 0.5 - x,
        gradient=lambda x: 2 * (x - 1),
        jacobian=lambda x: -np.ones((1, 1)),
    )
    method = AdaptiveGDPA()
    state = method.init(far, np.array([1e8]))
    assert state.scaling.lengths.tolist() == [2.0**27]
    while state.scaling.lengths is not None:
        state = method.update(far, state)
        assert state.step < 20
    assert abs(state.x[0]) <= 100


def test_a_problem_in_other_lengths():
    D = np.array([4.0, 0.5])
    own = linear([1.0, 2.0], [[3.0, 4.0]], [1.0], Box(np.array([0.0, 0.0]), np.array([8.0, 8.0])))
    inner = ScaledProblem(own, Scaling(1.0, np.ones(1), D))
    assert inner.domain.bounds(D)[1].tolist() == [2.0, 16.0]
    now = inner.evaluate(np.array([0.25, 2.0]))  # x = (1, 1)
    assert float(now.objective) == 3.0
    assert now.constraints.tolist() == [6.0]
    assert now.gradient().tolist() == [4.0, 1.0]
    assert now.jacobian().tolist() == [[12.0, 2.0]]
    assert now.pullback(np.array([0.5])).tolist() == [10.0, 2.0]


def test_a_projected_step_is_as_long_as_the_matrix_says():
    # sigma = 4: p = -g / 4, and the bound cuts the second
    inner = ScaledProblem(Problem(call, domain=Box(0.0, 1.0)), Scaling(1.0, np.zeros(0)))
    trial = projected_gradient(inner, np.full(2, 0.5), np.array([1.0, 8.0]), LBFGS(sigma=4.0))
    assert trial.direction.tolist() == [-0.25, -0.5]
    assert trial.slope == -4.25


# Which phase


def test_rows_are_worth_their_passes_up_to_thirty():
    assert [measures_rows(call(g=[0.0] * m), RULES) for m in (0, 1, 30, 31)] == [False, True, True, False]
    assert measures_rows(call(g=[0.0] * 31, cheap=True), RULES)


def test_which_runs_begin_with_sqp():
    def begins(m=1, d=2, step="auto", domain=REALS, cheap=False, equalities=0):
        problem = Problem(print, domain=domain, num_equalities=equalities)
        return begins_with_sqp(problem, call(g=[0.0] * m, cheap=cheap), d, step, RULES)

    assert begins(30)
    assert not begins(31)
    assert begins(60, equalities=30)
    assert not begins(60, equalities=31)
    assert begins(31, cheap=True)
    assert begins(31, step="jacobian")
    assert not begins(1, step="pullback")
    assert not begins(0, step="jacobian")
    assert begins(domain=Box(0.0, 1.0))
    assert not begins(domain=Ball(1.0), step="jacobian")
    assert begins(10, JACOBIAN_LIMIT // 10, cheap=True)
    assert not begins(10, JACOBIAN_LIMIT // 10 + 1, cheap=True)


def test_a_move_is_more_than_ten_roundings():
    one = np.ones(2)
    assert not adaptive._moved(one - np.array([0.0, 10 * EPS]), one)
    assert adaptive._moved(one - np.array([0.0, 11 * EPS]), one)
    assert not adaptive._moved(4 * one - np.array([0.0, 40 * EPS]), 4 * one)
    assert adaptive._moved(np.zeros(1), np.full(1, 1e-300))


def adaptive_state(problem, x0, method=None, **changes):
    state = (method or AdaptiveGDPA(step="pullback")).init(problem, np.array(x0, dtype=float))
    return state.replaced(**changes)


def test_the_monitor():
    assert Monitor() == (math.inf, 0, 0)
    assert Monitor(3.0, 7, 2).reset() == (math.inf, 0, 2)
    assert Monitor(3.0, 7, 2).reset(1.0) == (1.0, 0, 2)
    for restorations, patience in ((0, 20), (1, 40), (3, 160)):
        assert Monitor(1.0, patience, restorations).is_out_of_patience(20)
        assert not Monitor(1.0, patience - 1, restorations).is_out_of_patience(20)
    state = adaptive_state(linear([1.0], [[1.0]], [0.0]), [1.0])  # g = 1 at the start

    def monitored(monitor, g=1.0):
        reference = state.reference._replace(constraints=np.array([[g]]))
        return adaptive._watch(state.replaced(monitor=monitor, reference=reference), RULES).monitor

    waiting = Monitor(1.2, 20)
    assert monitored(waiting) == (1.0, 0, 0)  # 1 is below 0.9 * 1.2
    assert monitored(waiting._replace(violation=1 / 0.9)) == (1 / 0.9, 20, 0)
    assert monitored(waiting._replace(points=19)) == (1.2, 19, 0)
    assert monitored(waiting, 2.0**-26) == (math.inf, 0, 0)
    assert monitored(waiting._replace(points=1), 2.0**-25) == (1.2, 1, 0)


def test_the_largest_violation():
    assert largest_violation(np.array([-1.0, 3.0, 2.0]), 0) == 3.0
    assert largest_violation(np.array([-1.0]), 0) == 0.0
    assert largest_violation(np.array([-4.0, 1.0, -3.0]), 1) == 3.0
    assert largest_violation(np.array([-4.0, 1.0, -3.0]), 2) == 3.0


# Multiplier updates of the quasi-Newton phase


def ascended(stationarity, g, lam, beta=4.0, last=math.inf, **changes):
    """One decision on a multiplier update at a point with this gradient of the merit."""
    problem = linear([1.0], [[1.0]], [0.0])
    state = adaptive_state(
        problem, [1.0], lagrangian=AugmentedLagrangian(np.array([lam]), beta), monitor=Monitor(5.0, 1),
        scaling=Scaling(1.0, np.ones(1)), gradient=np.array([stationarity]), **changes,
    )  # fmt: skip
    state = state.replaced(reference=state.reference._replace(constraints=np.array([[g]])))
    return state, QuasiNewton(last).ascend(ScaledProblem(problem, state.scaling), state, RULES)


def test_multipliers_move_when_x_is_nearly_stationary():
    # g = 1/2, lambda = 1, beta = 4: max(g, -lambda / beta) = 1/2
    before, after = ascended(0.75, 0.5, 1.0)
    assert after is before
    _, after = ascended(0.5, 0.5, 1.0)
    assert after.lagrangian == AugmentedLagrangian(np.array([3.0]), 4.0)  # 1 + 4/2
    assert after.multipliers.tolist() == [3.0]
    assert after.phase == QuasiNewton(0.5)
    assert after.monitor == (5.0, 5, 0)  # as four points
    assert after.gradient == pytest.approx([6.0])  # of F_beta with them: c + [lambda + beta g]_+ = 1 + 3 + 2


def test_nothing_moves_if_complementarity_holds():
    before, after = ascended(0.0, 0.0, 1.0)
    assert after is before


def test_the_penalty_doubles_unless_complementarity_has_halved():
    assert ascended(0.0, 0.5, 1.0, last=1.0)[1].lagrangian.beta == 4.0
    assert ascended(0.0, 0.5, 1.0, last=0.99)[1].lagrangian.beta == 8.0
    assert ascended(0.0, 0.5, 1.0, beta=RULES.largest_beta, last=0.5)[1].lagrangian.beta == RULES.largest_beta
    assert ascended(0.0, 0.5, 1.0, beta=RULES.largest_beta / 1.5, last=0.5)[1].lagrangian.beta == RULES.largest_beta


def test_outside_of_boxes_the_tangent_tells_what_is_stationary():
    # on the ball of radius 1 a projected step is at most 2 long, the gradient 1/2 is not
    ball = replace(linear([1.0], [[1.0]], [0.0]), domain=Ball(1.0))
    state = adaptive_state(ball, [0.0], gradient=np.array([8.0]), scaling=Scaling(1.0, np.ones(1)))
    state = state.replaced(reference=state.reference._replace(constraints=np.array([[2.0]])))
    assert QuasiNewton().ascend(ScaledProblem(ball, state.scaling), state, RULES) is state
