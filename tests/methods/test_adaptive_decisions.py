"""What AdaptiveGDPA does at a point: accept, refuse, change the phase, give up. Each case is decided by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from gdpa import REALS, AdaptiveGDPA, Box, Evaluation, Problem, Status, from_functions
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.core.problem import row_by_row
from gdpa.core.units import asymmetric_direction
from gdpa.methods.adaptive import Rules, restoration, sqp
from gdpa.methods.adaptive import method as adaptive
from gdpa.methods.adaptive.quasi_newton import QuasiNewton
from gdpa.methods.adaptive.restoration import Restoration, Stage
from gdpa.methods.adaptive.scaling import ScaledEvaluation, ScaledProblem, Scaling, common_lengths
from gdpa.methods.adaptive.sqp import SQP, DenseModel, Step, model_at
from gdpa.methods.adaptive.state import Monitor, Reference, Trial
from gdpa.numerics.lbfgs import LBFGS
from gdpa.numerics.sparse.matrix import read

RULES = Rules()
#: The shortest step, eps^(2/3).
SHORTEST = 2.0 ** (-52 * 2 / 3)


def line(offset=-1.0, domain=REALS, slope=1.0):
    """min x subject to slope x + offset <= 0."""
    J = np.full((1, 1), slope)
    return from_functions(
        lambda x: x[0], lambda x: J @ x + offset, gradient=lambda x: np.ones(1), jacobian=lambda x: J, domain=domain
    )


def at(problem, x=0.0, step="pullback", g=None, **changes):
    """The first state at x, with other scaled constraints if given."""
    state = AdaptiveGDPA(step=step).init(problem, np.full(1, x)).replaced(**changes)
    if g is None:
        return state
    return state.replaced(reference=state.reference._replace(constraints=np.full((1, 1), g)))


def scaled(problem, state):
    return ScaledProblem(problem, state.scaling)


def arrive(phase, problem, old, state, step="pullback"):
    """The phase's decision at an accepted point, with its next trial."""
    method, inner = AdaptiveGDPA(step=step), scaled(problem, state)
    state = phase.arrive(method, inner, old, state)
    return state.phase.plan(method, inner, state)


# A refused trial


def refuse(problem, state, rise, g=None):
    """The decision about a refused trial at which the scaled constraints are g."""
    now = problem.evaluate(state.x)
    if g is not None:
        now = Evaluation(now.objective, g / state.scaling.constraints, now.pullback)
    there = ScaledEvaluation(now, state.scaling, state.x)
    return AdaptiveGDPA()._refuse(scaled(problem, state), state, there, rise)


def refused(length, rise, **changes):
    problem = line()
    return refuse(problem, at(problem, trial=Trial(-np.ones(1), -1.0, length), **changes), rise)


def test_a_refused_trial_is_shortened():
    # q = -t + t^2 (1 + 1) through q(1) = 1: least at 1/4
    after = refused(1.0, 1.0)
    assert (after.trial.length, after.verdict) == (0.25, None)
    assert refused(1.0, math.nan).trial.length == 0.1


def test_a_step_is_given_up_below_the_shortest():
    assert refused(10.01 * SHORTEST, 1e9).verdict is None
    assert refused(9.99 * SHORTEST, 1e9).verdict is Status.STALLED
    culprit = refused(9.99 * SHORTEST, math.inf)
    assert culprit.verdict is Status.INVALID_NUMBER
    assert np.isnan(culprit.probe.gradient).all()


def test_a_matrix_with_pairs_is_given_up_before_the_run():
    pair = LBFGS().updated(np.ones(1), np.ones(1))
    after = refused(9.99 * SHORTEST, 1e9, curvature=pair)
    assert after.verdict is None
    assert after.curvature.pairs == 0
    assert after.trial.slope < 0


def test_a_violated_point_without_a_step_is_restored():
    assert isinstance(refused(9.99 * SHORTEST, 1e9, g=1.0).phase, Restoration)
    assert refused(9.99 * SHORTEST, 1e9, g=2.0**-26).verdict is Status.STALLED
    assert refused(9.99 * SHORTEST, 1e9, g=1.0, phase=Restoration(1.0)).verdict is Status.STALLED


def test_a_refused_sqp_step_is_corrected_once_if_it_violates_more():
    problem = line()
    state = at(problem, step="jacobian")
    assert isinstance(state.phase, SQP)
    violated, equal = np.full(1, state.violation + 1.0), np.full(1, state.violation)
    worse = refuse(problem, state, 1.0, violated)
    assert worse.trial.correction is not None
    again = refuse(problem, worse, 1.0, violated)
    assert again.trial.correction is None
    assert again.trial.length == 0.5
    for values, rise in ((equal, 1.0), (violated, math.inf)):
        assert refuse(problem, state, rise, values).trial.correction is None
    shorter = state.replaced(trial=state.trial._replace(length=0.5))
    assert refuse(problem, shorter, 1.0, violated).trial.correction is None


# An accepted trial


def arrived(g=None, old=None, moved=True, objective=0.0, **changes):
    problem = line()
    state = at(problem, g=g, **changes)
    reference = state.reference._replace(objectives=np.full(1, objective))
    before = state.replaced(x=state.x + (1.0 if moved else 0.0), **(old or {}))
    return AdaptiveGDPA(step="pullback")._arrive(scaled(problem, state), before, state.replaced(reference=reference))


def test_an_objective_without_a_lower_bound_is_named():
    assert arrived(objective=-1e15).verdict is None
    assert arrived(objective=-1.01e15).verdict is Status.DIVERGING
    assert arrived(objective=-1.01e15, g=2.0**-26).verdict is Status.DIVERGING
    assert isinstance(arrived(objective=-1.01e15, g=1.0).phase, Restoration)


def test_the_phase_is_chosen_only_if_that_is_left_to_the_method(monkeypatch):
    chosen = []
    monkeypatch.setattr(AdaptiveGDPA, "_choose", lambda self, problem, state: chosen.append(1) or state)  # type: ignore[func-returns-value]
    problem = line()
    state = at(problem)
    for step, count in (("pullback", 0), ("auto", 1)):
        method = AdaptiveGDPA(step=step, rules=replace(RULES, few_rows=0))
        method._arrive(scaled(problem, state), state, state)
        assert len(chosen) == count


def test_twenty_points_in_one_place_stall():
    assert arrived(moved=True, old={"unmoved_points": 19}).unmoved_points == 0
    still = arrived(moved=False, old={"unmoved_points": 18})
    assert (still.unmoved_points, still.verdict) == (19, None)
    assert arrived(moved=False, old={"unmoved_points": 19}).verdict is Status.STALLED
    begun = arrived(moved=False, old={"unmoved_points": 19}, g=1.0)
    assert (type(begun.phase), begun.unmoved_points) == (Restoration, 0)


def test_a_violation_that_does_not_fall_is_restored():
    assert isinstance(arrived(g=1.0, monitor=Monitor(1.0, 20)).phase, Restoration)
    assert isinstance(arrived(g=1.0, monitor=Monitor(1.0, 19)).phase, QuasiNewton)
    assert isinstance(arrived(g=1.0, monitor=Monitor(1.0, 20, 1)).phase, QuasiNewton)
    assert isinstance(arrived(g=1.0, monitor=Monitor(2.0, 20)).phase, QuasiNewton)  # it has fallen


def test_the_reference_forgets_all_but_the_last_eight_points():
    state = at(line())
    many = Reference(np.arange(20.0), np.full((20, 1), -1.0))
    reference, _, _ = adaptive.assess(state.replaced(reference=many), scaled(line(), state).evaluate(state.x), RULES)
    assert reference.objectives.tolist() == [*range(12, 20), 0]  # and the new one


def test_a_forced_trial_is_accepted_whatever_its_merit():
    problem = line()
    state = at(problem, 0.25).replaced(trial=Trial(np.full(1, 5.0), 0.0, forced=True))
    inner = scaled(problem, state)
    reference, rise, accepted = adaptive.assess(state, inner.evaluate(np.full(1, 0.5)), RULES)
    assert accepted
    assert len(reference.objectives) == 1
    assert rise == pytest.approx(0.25 * state.scaling.objective)
    assert not adaptive.assess(state, inner.evaluate(np.full(1, np.nan)), RULES)[2]
    free = state.replaced(trial=state.trial._replace(forced=False))
    _, rise, accepted = adaptive.assess(free, inner.evaluate(np.full(1, 0.5)), RULES)
    assert not accepted
    assert rise == pytest.approx(0.25 * state.scaling.objective)


# Which phase, if every row is a pass


def crowd(near, step, since=0, phase=None, m=31, d=1):
    """The choice with m constraints of which ``near`` may matter."""
    A = np.ones((m, d))
    problem = row_by_row(
        from_functions(lambda x: x.sum(), lambda x: A @ x - 9, gradient=lambda x: np.ones(d), jacobian=lambda x: A)
    )
    state = AdaptiveGDPA().init(problem, np.zeros(d))
    assert isinstance(state.phase, QuasiNewton)
    g = np.where(np.arange(m) < near, 0.0, -1.0)  # none has moved, so those on their boundary may matter
    state = state.replaced(step=step, phase_since=since, reference=Reference(np.zeros(2), np.array([g, g])))
    if phase is not None:
        state = state.replaced(phase=phase)
    return AdaptiveGDPA()._choose(scaled(problem, state), state)


def test_sqp_follows_when_its_trial_points_are_paid():
    # 20 points of k + 2 passes each, at 2 passes for each point of the quasi-Newton phase
    assert isinstance(crowd(0, 19).phase, QuasiNewton)
    assert isinstance(crowd(0, 20).phase, SQP)
    assert isinstance(crowd(3, 49).phase, QuasiNewton)
    assert isinstance(crowd(3, 50).phase, SQP)
    assert crowd(3, 50).phase_since == 50
    assert isinstance(crowd(3, 50, since=1).phase, QuasiNewton)
    assert isinstance(crowd(30, 320).phase, SQP)
    assert isinstance(crowd(31, 329).phase, QuasiNewton)
    assert isinstance(crowd(31, 330).phase, SQP)


def test_a_jacobian_too_large_is_not_formed(monkeypatch):
    monkeypatch.setattr(adaptive, "JACOBIAN_LIMIT", 61)
    assert isinstance(crowd(0, 20, d=2).phase, QuasiNewton)
    monkeypatch.setattr(adaptive, "JACOBIAN_LIMIT", 62)
    assert isinstance(crowd(0, 20, d=2).phase, SQP)


def test_sqp_goes_on_however_many_rows_matter():
    linearized = SQP(np.ones(1), np.ones((31, 1)), np.zeros(31))
    assert crowd(31, 10_000, phase=linearized).phase is linearized


# The penalty and the multipliers of an SQP step


def model(c, J=1.0, g=1.0, violation=None):
    violation = max(g, 0.0) if violation is None else violation
    return DenseModel(np.full(1, c), np.full((1, 1), J), np.full(1, g), violation, None, LBFGS())


def penalized(c, beta, violation=1.0, rules=RULES):
    near = replace(rules, near=0.0)
    F, step = model(c, violation=violation).penalize(AugmentedLagrangian(np.zeros(1), beta), near)
    return F.beta, float(step.direction[0])


def test_the_penalty_is_raised_until_a_quarter_of_the_violation_is_left():
    # p minimizes c p + p^2 / 2 + beta (1 + p)^2 / 2: p = -(c + beta) / (1 + beta), and 1 + p is left
    assert penalized(0.0, 3.0) == (3.0, pytest.approx(-0.75))  # a quarter
    assert penalized(0.0, 2.9) == (5.8, pytest.approx(-5.8 / 6.8))
    # c = -100: 9.2, 4.8, 2.5, 1.2 and 0.6 are left at 10, 20, 40, 80 and 160; four raises are all
    assert penalized(-100.0, 10.0) == (160.0, pytest.approx(-60 / 161))
    assert penalized(-100.0, 10.0, violation=1e-9)[0] == 10.0  # negligible
    assert penalized(-1e12, RULES.largest_beta)[0] == RULES.largest_beta


def test_a_stiff_model_is_tried_near_the_constraints_and_taken_if_the_merit_is_to_fall():
    def step(c, g, beta=10.0):
        F = AugmentedLagrangian(np.zeros(1), beta)
        return float(model(c, g=g).step(F, RULES).direction[0])

    # p = -(c + beta g) / (1 + beta), with beta = 1e8 if c p + p^2 / 2 + 5 (g + p)^2 - 5 g^2 is below 0: if c > -4.5 g
    assert step(-0.022, 0.005) == pytest.approx(-(5e5 - 0.022) / (1 + 1e8))
    assert step(-0.023, 0.005) == pytest.approx(-0.027 / 11)
    assert step(-0.022, 0.01) == pytest.approx(-0.078 / 11)  # not near
    assert step(-0.022, 0.005, beta=2e8) == pytest.approx(-(1e6 - 0.022) / (1 + 2e8))


def test_the_better_multipliers_of_an_sqp_step():
    problem, x = ScaledProblem(line(), Scaling(1.0, np.ones(1))), np.zeros(1)

    # c = -2, J = 1, g = 0: lambda = 2 leaves nothing, lambda = 1 leaves 1
    def fitted(own, c=-2.0, **values):
        step = Step(np.zeros(1), np.full(1, own), np.zeros(1), np.full(1, c + own))
        return sqp._fit_multipliers(problem, x, model(c, **values), step, RULES)

    lam, gradient, share = fitted(1.0, g=0.0)
    assert (lam.tolist(), gradient.tolist(), share) == ([2.0], [0.0], 0.0)
    same = fitted(2.0, g=0.0)
    assert (same[0].tolist(), same[2]) == ([2.0], 1.0)
    # no multipliers have a smaller residual than the violation, which is a tenth of this one
    kept = fitted(1.0, g=0.0, violation=0.1)
    assert (kept[0].tolist(), kept[1].tolist(), kept[2]) == ([1.0], [-1.0], 1.0)
    # slackness is a mean weighted by the multipliers. g = -1/2: lambda = 2 leaves |-4 + 2| = 2; of any others the
    # slackness is 1/2 however large they are
    lam, gradient, share = fitted(2.0, c=-4.0, g=-0.5)
    assert lam[0] > 2
    assert gradient == pytest.approx(lam - 4)
    assert share == pytest.approx(max(abs(lam[0] - 4), 0.5) / 2)


def test_a_full_sqp_step_takes_the_multipliers_of_the_model():
    problem = line()
    old = at(problem, step="jacobian")
    F = AugmentedLagrangian(np.full(1, 4.0), 40.0)

    def arrived(length, multipliers, beta=40.0):
        before = old.replaced(trial=Trial(-np.ones(1), -1.0, length))
        phase = SQP(old.phase.gradient, old.phase.jacobian, np.full(1, multipliers))
        state = old.replaced(x=old.x - length, lagrangian=F._replace(beta=beta), phase=phase, monitor=Monitor(1.0, 3))
        return arrive(phase, problem, before, state.replaced(evaluation=None), "jacobian")

    full = arrived(1.0, 2.0)
    assert full.multipliers == pytest.approx(old.scaling.unscale(np.full(1, 2.0)))
    assert full.lagrangian.beta == 40.0
    assert full.monitor.points == 4
    quarter = arrived(0.25, 2.0)
    assert quarter.multipliers == pytest.approx(old.scaling.unscale(np.full(1, 3.5)))  # 4 + (2 - 4) / 4
    assert quarter.lagrangian.beta == 20.0  # a short step: too stiff
    assert arrived(0.25, 2.0, beta=10.0).lagrangian.beta == 10.0  # not below the first
    assert arrived(0.25, 2.0, beta=10.5).lagrangian.beta == 10.0


def test_a_coordinate_beside_its_bound_stays_there_unless_the_problem_is_sparse():
    box, x = Box(0.0, 1.0), np.full(1, 2.0**-52)
    state = at(line(domain=box), 0.5, step="jacobian")
    inner = scaled(line(domain=box), state)
    assert state.phase.place(inner, x) is x
    sparse = replace(state.phase, jacobian=read(csr_array(np.eye(1)), "J"))
    assert sparse.place(inner, x).tolist() == [0.0]
    assert sparse.place(inner, 100 * x).tolist() == [100 * 2.0**-52]


def test_the_first_gradient_of_the_merit():
    # min x subject to 4 x - 2 <= 0 at x = 1: g' = 1/2 and J' = 1 in the unit 1/4, so 1 + 10 * 1/2
    own = from_functions(
        lambda x: x[0], lambda x: 4 * x - 2, gradient=lambda x: np.ones(1), jacobian=lambda x: np.full((1, 1), 4.0)
    )
    assert at(own, 1.0).gradient == pytest.approx([6.0])


def test_what_the_loop_sees_is_in_the_lengths_of_the_user():
    own, x0 = line(-900.0), np.full(1, 1000.0)
    state = AdaptiveGDPA(step="jacobian").init(own, x0)
    assert state.scaling.lengths.tolist() == [1024.0]
    assert state.x.tolist() == state.probe.x.tolist() == [1000.0]
    assert state.probe.gradient == pytest.approx(1 + state.probe.multipliers)


def test_restoration_minimizes_the_violation_alone():
    penalty = Restoration(1.0).penalty(at(line(), g=0.5))
    assert penalty.multipliers.tolist() == [0.0]
    points = Reference(np.full(2, 7.0), np.array([[3.0], [2.0]]))
    assert points.values(0.0, penalty) == (2.0, 4.5, 4.5)


def test_the_second_probe_is_a_hundredth_of_x_in_a_fixed_direction():
    problem, state = restoring(3.0, 2.0, 0.0)
    p = Restoration(1.0, Stage.AFTER_SHOVE).plan(AdaptiveGDPA(), scaled(problem, state), state).trial.direction
    assert p == pytest.approx(0.04 * asymmetric_direction(state.x))


def test_restoration_ends_with_multipliers_of_zero_also_on_the_boundary():
    problem, state = restoring(1.0, 0.0, 1.0)
    after = state.phase.end(AdaptiveGDPA(step="pullback"), scaled(problem, state), state)
    assert after.lagrangian.multipliers.tolist() == [0.0]


def test_the_first_state_counts_from_zero():
    state = at(line(), 0.5)
    assert (state.step, state.phase_since, state.unmoved_points) == (0, 0, 0)
    assert AdaptiveGDPA(step="pullback").update(line(), state).step == 1


def test_the_first_probe_is_a_step_as_long_as_x():
    # J' = 2^-23 beside g' = 2: the slope is flat, and a step along it is 1 + |x| long
    problem = line(2.0, slope=2.0**-23)
    state = at(problem, 3.0, phase=Restoration(1.0))
    after = arrive(state.phase, problem, state, state)
    assert after.phase == Restoration(1.0, Stage.AFTER_SLOPE, state.violation)
    assert after.trial.direction == pytest.approx([-4.0])


def test_rows_far_from_active_are_not_pulled_back():
    A, asked = np.eye(3), []

    def evaluate(x):
        def pullback(w, objective=1.0):
            asked.append(w.tolist())
            return objective * np.ones(3) + w @ A

        return Evaluation(x.sum(), A @ x - np.array([1.0, 5.0, 5.0]), pullback)

    problem = Problem(evaluate, num_constraints=3, num_equalities=1)
    state = AdaptiveGDPA(step="jacobian").init(problem, np.zeros(3))
    g = np.array([[-1.0, -5.0, -5.0], [-2.0, -5.0, -5.0]])  # a change of 1, less than 2 and 5
    state = state.replaced(reference=Reference(np.zeros(2), g), scaling=state.scaling._replace(constraints=np.ones(3)))
    for multipliers, values, wanted in (
        ([0.0, 0.0, 0.0], g, [[0, 0, 1]]),
        ([0.5, 0.0, 0.0], g, [[1, 0, 0], [0, 0, 1]]),
        ([0.0, 0.0, 0.0], g + np.array([1.0, 0.0, 0.0]), [[1, 0, 0], [0, 0, 1]]),  # as near as the change
    ):
        asked.clear()
        F = state.lagrangian._replace(multipliers=np.array(multipliers))
        new = state.replaced(lagrangian=F, reference=Reference(np.zeros(2), values))
        SQP.enter(scaled(problem, new), new.replaced(evaluation=None))
        assert [w for w in asked if any(w)] == wanted


# Restoration


def restoring(x, g, gradient, **changes):
    problem = line(0.0)
    return problem, at(problem, x, g=g, gradient=np.full(1, gradient), phase=Restoration(1.0), **changes)


def test_what_is_flat():
    def flat(x, g, gradient, share=2.0**-20):
        problem, state = restoring(x, g, gradient)
        return restoration._is_flat(scaled(problem, state), state, 1 + x, Rules(stationary=share))

    # |grad| (1 + |x|) <= share v min(v, 1)
    assert flat(3.0, 2.0, 2.0**-21)
    assert not flat(3.0, 2.0, 2.0**-21 + 2.0**-30)
    assert flat(1.0, 0.5, 2.0**-23)
    assert not flat(1.0, 0.5, 2.0**-23 + 2.0**-30)
    # what no precision tells is flat: 10 eps^(3/4), here about 1.8e-11
    assert flat(0.0, 1.0, 1.8e-11, share=0.0)
    assert not flat(0.0, 1.0, 1.9e-11, share=0.0)


def test_the_end_of_restoration():
    problem, state = restoring(1.0, 1.0, 1.0, monitor=Monitor(0.5, 9, 2))
    state = state.replaced(lagrangian=AugmentedLagrangian(np.array([3.0]), 4.0, 0.5))
    method, inner = AdaptiveGDPA(step="pullback"), scaled(problem, state)
    after = state.phase.end(method, inner, state)
    assert after.lagrangian == AugmentedLagrangian(np.array([0.0]), 8.0, 0.5)
    assert after.monitor == (math.inf, 0, 3)
    assert after.phase == QuasiNewton()
    state = state.replaced(lagrangian=state.lagrangian._replace(beta=RULES.largest_beta))
    assert state.phase.end(method, inner, state).lagrangian.beta == 1e8
    begun = Restoration.enter(inner, state)
    assert begun.phase == Restoration(1.0)
    assert begun.probe is None


def restored(g, stage, *before, entry=1.0, flat=True, monitor=None, unmoved=0):
    """The decision at a point of restoration; a constraint without a slope leaves every point flat."""
    problem = line(g, slope=0.0 if flat else 1.0)
    changes = {"phase": Restoration(entry, stage, *before), "monitor": monitor or Monitor(), "gradient": np.zeros(1)}
    state = at(problem, g=g, unmoved_points=unmoved, **changes)
    return arrive(state.phase, problem, state, state)


def test_restoration_stalls_at_a_point_that_it_does_not_leave():
    assert restored(1.0, Stage.DESCENDING, flat=False, unmoved=19).verdict is None
    assert restored(1.0, Stage.DESCENDING, flat=False, unmoved=20).verdict is Status.STALLED
    assert restored(1.0, Stage.DESCENDING, unmoved=20).phase.stage == Stage.AFTER_SLOPE  # flat: a probe follows
    assert restored(1.0, Stage.AFTER_SLOPE, 1.0, 5, flat=False, unmoved=20).verdict is None  # probes have a count


def test_restoration_ends_at_a_tenth_of_its_first_violation():
    assert isinstance(restored(0.25, Stage.DESCENDING, flat=False).phase, QuasiNewton)
    assert isinstance(restored(0.26, Stage.DESCENDING, flat=False).phase, Restoration)
    assert isinstance(restored(2.0**-26, Stage.DESCENDING, entry=1e-9, flat=False).phase, QuasiNewton)
    assert isinstance(restored(2.0**-25, Stage.DESCENDING, entry=1e-9, flat=False).phase, Restoration)


def test_a_flat_point_is_probed_twice_before_the_verdict():
    first = restored(1.0, Stage.DESCENDING)
    assert first.phase == Restoration(1.0, Stage.AFTER_SLOPE, 1.0, 0)
    waiting = restored(1.0, Stage.AFTER_SLOPE, 1.0, 18)
    assert waiting.phase == Restoration(1.0, Stage.AFTER_SLOPE, 1.0, 19)
    shoved = restored(1.0, Stage.AFTER_SLOPE, 1.0, 19)
    assert shoved.phase == Restoration(1.0, Stage.AFTER_SHOVE, 1.0, 0)
    assert shoved.trial.forced
    assert 0 < np.abs(shoved.trial.direction).max() <= 0.01
    assert restored(1.0, Stage.AFTER_SHOVE, 1.0, 18).verdict is None
    assert restored(1.0, Stage.AFTER_SHOVE, 1.0, 19).verdict is Status.LOCALLY_INFEASIBLE


def test_a_way_down_ends_the_probe():
    assert restored(0.9, Stage.AFTER_SLOPE, 1.0, 19).phase == Restoration(1.0)
    assert restored(0.91, Stage.AFTER_SLOPE, 1.0, 19).phase == Restoration(1.0, Stage.AFTER_SHOVE, 0.91)
    assert restored(0.9, Stage.AFTER_SHOVE, 1.0, 19).verdict is None


def test_the_first_plateau_is_left_to_the_objective():
    assert isinstance(restored(1.0, Stage.AFTER_SHOVE, 1.0, 0).phase, QuasiNewton)
    assert isinstance(restored(1.0, Stage.AFTER_SHOVE, 1.0, 0, monitor=Monitor(restorations=1)).phase, Restoration)
    assert isinstance(restored(1.0, Stage.AFTER_SHOVE, 1.0, 1).phase, Restoration)
    assert isinstance(restored(1.0, Stage.AFTER_SLOPE, 1.0, 0).phase, Restoration)


# Rows that were not evaluated, and lengths of variables


def test_a_row_of_zeros_has_the_multiplier_of_its_violation():
    problem = ScaledProblem(line(), Scaling(1.0, np.ones(3)))
    F, J = AugmentedLagrangian(np.zeros(3), 4.0), np.array([[1.0], [0.0], [0.0]])
    step = model_at(problem, np.zeros(1), at(line()), np.ones(1), J, np.array([-9.0, 0.5, -0.5]), 0.5).minimize(F)
    assert step.multipliers == pytest.approx([0.0, 2.0, 0.0])
    assert step.direction == pytest.approx([-1.0])


def test_a_problem_in_lengths_by_hand():
    # x = D z: the gradient gets the factor D, the Hessian D on both sides, the bounds 1 / D
    D, H = np.array([4.0, 0.5]), np.array([[1.0, 2.0], [2.0, 3.0]])
    now = Evaluation(
        np.asarray(1.0), np.zeros(0), lambda w, objective=1.0: objective * np.ones(2), hessian=lambda *_: H
    )
    problem = Problem(lambda x: now, num_constraints=0, domain=Box(np.array([-8.0, -2.0]), np.array([4.0, 3.0])))
    inner = ScaledProblem(problem, Scaling(1.0, np.zeros(0), D))
    assert inner.domain.bounds(D)[0].tolist() == [-2.0, -4.0]
    assert inner.domain.bounds(D)[1].tolist() == [1.0, 6.0]
    there = inner.evaluate(np.ones(2))
    assert there.gradient().tolist() == [4.0, 0.5]
    assert there.hessian(np.zeros(0)).toarray().tolist() == [[16.0, 4.0], [4.0, 0.75]]


def test_the_distance_to_a_constraint_is_the_length_of_a_start_at_zero():
    # 1/2 - x / 1024 <= 0 is 512 away, which is a power of two
    problem = line(offset=0.5, slope=-1 / 1024)
    x0 = np.zeros(1)
    assert common_lengths(problem, x0, problem.evaluate(x0), RULES).tolist() == [512.0]


@pytest.mark.parametrize(
    ("step", "reviews", "violation", "residual", "renewed"),
    [
        (59, 0, 1.0, 0.0, False),
        (60, 0, 1.0, 1.0, True),
        (67, 0, 1.0, 0.5, True),  # the trials 60 to 66 were refused
        (60, 0, 0.5, 1.0, False),  # the constraints are not the obstacle
        (179, 1, 1.0, 0.0, False),
        (181, 1, 1.0, 0.5, True),
        (181, 1, 0.5, 1.0, False),
    ],
)
def test_lengths_of_the_columns_follow_if_the_violation_holds_a_run_up(step, reviews, violation, residual, renewed):
    # J = (1, 1/1024): the second variable has the length 1024
    J = np.array([[1.0, 1 / 1024]])
    c = np.array([1.0, 0.0])
    problem = from_functions(
        lambda x: x[0], lambda x: J @ x - 1, gradient=lambda x: c, jacobian=lambda x: J, num_equalities=1
    )
    method = AdaptiveGDPA()
    state = method.init(problem, np.zeros(2))
    assert state.phase.linearizes
    assert state.scaling.lengths is None
    reference = state.reference._replace(constraints=np.full((1, 1), violation))
    probe = state.probe._replace(gradient=np.array([residual, 0.0]))
    state = state.replaced(step=step, reviews=reviews, reference=reference, probe=probe)
    new = method._in_suitable_lengths(scaled(problem, state), state)
    assert (new.scaling.lengths is not None) == renewed
    assert new.reviews == reviews + (step >= 60 * 3**reviews)
    if renewed:
        assert new.scaling.lengths.tolist() == [1.0, 1024.0]
        again = method._in_suitable_lengths(scaled(problem, new), new.replaced(step=10**6))
        assert again.scaling is new.scaling  # once only
