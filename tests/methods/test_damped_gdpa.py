"""DampedGDPA against hand arithmetic, certified answers, and the invariances it promises."""

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdpa import (
    GDPA,
    Box,
    Constant,
    DampedGDPA,
    Evaluation,
    MaxSteps,
    Problem,
    certify,
    get_method,
    load_run,
    problems,
    save_run,
    solve,
)
from gdpa.methods.damped_gdpa import SCALING_LIMIT
from gdpa.run.oracle import CountingOracle, Counts
from tests.libraries import Library, to_numpy
from tests.methods.hand_problem import hand_problem

# f = (x0 - 4)^2 / 2 + (x1 - 1)^2 / 2,   g = (x0^2 - 1, x0 + x1 - 3)


def run(problem, x0, method, steps):
    states = [method.init(problem, x0)]
    for _ in range(steps):
        states.append(method.update(problem, states[-1]))
    return states


def two_steps(library, x0=(0.0, 0.0), num_equalities=0, domain=None, steps=2, **options):
    kinds = {"num_equalities": num_equalities, **({} if domain is None else {"domain": domain})}
    plain = {"alpha": 0.5, "beta": 1.0, "theta": 0.5, "smoothing": 0.0, "tail": 0.0, "scaled": False}
    method = DampedGDPA(**plain | options)
    states = run(hand_problem(library, **kinds), library.array(x0), method, steps)
    return [(to_numpy(s.x).tolist(), to_numpy(s.multipliers).tolist()) for s in states[1:]], states


def test_three_damped_steps_by_hand(library):
    # r = 1 at (0, 0), lambda 0: g = (-1, -3), w = 0, grad f = (-4, -1): x_2 = (2, 1/2), g(x_2) = (3, -1/2)
    #   lambda_2 = 0 + ([(3, -1/2)]_+ - 0)/2 = (3/2, 0)
    # r = 2: w = [(3/2 + 3, 0 - 1/2)]_+ = (9/2, 0), gradient (-2, -1/2) + 9/2 (4, 0) = (16, -1/2)
    #   x_3 = (2 - 8, 1/2 + 1/4) = (-6, 3/4), g(x_3) = (35, -6 + 3/4 - 3)
    #   lambda_3 = 3/2 + ((3/2 + 35) - 3/2)/2 = 19, and 0
    # r = 3: w = [(19 + 35, 0 - 33/4)]_+ = (54, 0), gradient (-10, -1/4) + 54 (-12, 0) = (-658, -1/4)
    #   x_4 = (-6 + 329, 3/4 + 1/8) = (323, 7/8), g(x_4) = (323^2 - 1, 323 + 7/8 - 3)
    #   lambda_4 = 19 + ((19 + 104328) - 19)/2 = 52183, and (320 + 7/8)/2
    found, states = two_steps(library, steps=3)
    assert found == [([2.0, 0.5], [1.5, 0.0]), ([-6.0, 0.75], [19.0, 0.0]), ([323.0, 0.875], [52183.0, 160.4375])]
    assert to_numpy(states[2].probe.multipliers).tolist() == [4.5, 0.0]
    assert to_numpy(states[2].probe.gradient).tolist() == [16.0, -0.5]
    assert to_numpy(states[2].average).tolist() == [1.0, 0.25]  # the mean of the points left: (0, 0) and (2, 1/2)


def test_two_steps_with_every_option_by_hand(library):
    # momentum 1/2, smoothing 1/2, tau 1/2, tail 1; ghat_1 = g(0, 0) = (-1, -3)
    # r = 1: w = 0: x_2 = (2, 1/2) as before (x_1 - x_0 = 0); ghat_2 = ((-1, -3) + (3, -1/2))/2 = (1, -7/4)
    #   lambda_2 = ([ghat_2]_+)/2 = (1/2, 0)
    # r = 2: w = [(1/4 + 1, -7/4)]_+ = (5/4, 0), gradient (-2, -1/2) + 5/4 (4, 0) = (3, -1/2)
    #   x_3 = (2, 1/2) - (3/2, -1/4) + ((2, 1/2) - (0, 0))/2 = (3/2, 1); g(x_3) = (5/4, -1/2)
    #   ghat_3 = ((1, -7/4) + (5/4, -1/2))/2 = (9/8, -9/8)
    #   lambda_3 = 1/2 + (1/4 + 9/8 - 1/2)/2 = 15/16, and 0
    found, states = two_steps(library, momentum=0.5, smoothing=0.5, tau=0.5, tail=1.0)
    assert found == [([2.0, 0.5], [0.5, 0.0]), ([1.5, 1.0], [0.9375, 0.0])]
    assert to_numpy(states[2].average) == pytest.approx([4 / 3, 1 / 3])  # (1 (0, 0) + 2 (2, 1/2)) / 3


def test_two_steps_with_an_equality_by_hand(library):
    # The second constraint keeps its sign. r = 1: w = (0, -3), gradient (-4, -1) - 3 (1, 1) = (-7, -4), x_2 = (7/2, 2)
    #   g(x_2) = (45/4, 5/2), lambda_2 = (45/8, 5/4)
    # r = 2: w = (135/8, 15/4), gradient (-1/2, 1) + (7 * 135/8 + 15/4, 15/4) = (971/8, 19/4)
    #   x_3 = (7/2 - 971/16, 2 - 19/8) = (-915/16, -3/8); g_1(x_3) = -915/16 - 3/8 - 3 = -969/16
    #   lambda_3 = (45/8 + ((915/16)^2 - 1)/2, 5/4 - 969/32)
    found, _ = two_steps(library, num_equalities=1)
    second = [45 / 8 + ((915 / 16) ** 2 - 1) / 2, 5 / 4 - 969 / 32]
    assert found == [([3.5, 2.0], [45 / 8, 1.25]), ([-915 / 16, -0.375], second)]


def test_two_steps_in_a_box_forget_the_momentum_the_wall_took(library):
    # r = 1: (2, 1/2) is projected on (1, 1/2). g = (0, -3/2), lambda_2 = 0.
    # r = 2: grad f = (-3, -1/2): x_3 = P((1, 1/2) + (3/2, 1/4) + ((1, 1/2) - (0, 0))/2) = (1, 1)
    found, _ = two_steps(library, domain=Box(0.0, 1.0), momentum=0.5)
    assert found == [([1.0, 0.5], [0.0, 0.0]), ([1.0, 1.0], [0.0, 0.0])]


def test_the_scales_by_hand(library):
    # At (3, 1): grad f = (-1, 0), so s_f = 1; g = (8, 1), gradients (6, 0) and (1, 1): s = (1/6, 1).
    # At (0, -40): grad f = (-4, -41), s_f = 1/41; g = (-1, -43), gradients 0 and (1, 1): s = (1/0.1, 1/4.3).
    problem = hand_problem(library)
    method = DampedGDPA(beta=2.0)
    state = method.init(problem, library.array([3.0, 1.0]))
    assert float(state.unit) == 1
    assert to_numpy(state.beta) == pytest.approx([2 / 36, 2.0])
    state = method.init(problem, library.array([0.0, -40.0]))
    assert float(state.unit) == pytest.approx(1 / 41)
    assert to_numpy(state.beta) == pytest.approx([2 * 41 * 100, 2 * 41 / 4.3**2])
    batch = method.init(problem, library.array([[3.0, 1.0], [0.0, -40.0]]))
    assert to_numpy(batch.beta) == pytest.approx(np.array([[2 / 36, 2.0], [8200.0, 82 / 4.3**2]]))


def test_a_constraint_that_vanishes_with_its_gradient_keeps_its_units():
    problem = Problem(lambda x: Evaluation(x @ x, x[:1] ** 2, lambda w, objective=1.0: 2 * (objective + w[0]) * x))
    assert DampedGDPA(beta=2.0).init(problem, np.zeros(1)).beta.tolist() == [2.0]


def test_undamped_and_unscaled_it_is_gdpa_with_constant_steps_and_no_gate():
    own = problems.get("HS43")
    ours = DampedGDPA(alpha=0.002, beta=0.5, theta=1.0, tau=0.1, smoothing=0.0, scaled=False)
    theirs = GDPA(Constant(0.002), Constant(0.5), 0.1, gate=False)
    one, other = (run(own.problem, own.x0, method, 200)[-1] for method in (ours, theirs))
    assert one.x == pytest.approx(other.x, rel=1e-12)
    assert one.multipliers == pytest.approx(other.multipliers, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "smoothing": 0.9}])
def test_one_forward_and_one_backward_per_update(library, options):
    oracle = CountingOracle(hand_problem(library))
    method = DampedGDPA(alpha=0.001, **options)
    state = method.init(oracle.problem, library.array([0.0, 0.0]))
    assert oracle.method == Counts(1, 3)  # grad f and two constraints, for the scales
    for _ in range(20):
        state = method.update(oracle.problem, state)
    assert oracle.method == Counts(21, 23)


def test_many_constraints_are_not_measured_one_by_one():
    m = SCALING_LIMIT + 1

    def evaluate(x):
        return Evaluation(50 * x @ x, 7 * x[0] - np.ones(m), lambda w, objective=1.0: 100 * objective * x + 7 * w.sum())

    oracle = CountingOracle(Problem(evaluate))
    state = DampedGDPA(beta=1.0).init(oracle.problem, np.ones(1))
    assert oracle.method == Counts(1, 1)
    assert state.beta == pytest.approx(np.full(m, 100.0))  # s_i = 1, s_f = 1/100


def test_a_problem_without_constraints_is_plain_descent():
    problem = Problem(lambda x: Evaluation(x @ x / 2, x[:0], lambda w, objective=1.0: objective * x))
    state = run(problem, np.array([1.0]), DampedGDPA(alpha=0.5), 3)[-1]
    assert state.x.tolist() == [0.125]


MOMENTUM = DampedGDPA(alpha=0.003, beta=3.0, theta=0.03, momentum=0.9, smoothing=0.0)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *((name, DampedGDPA()) for name in ("HS11", "HS12", "HS14", "HS22", "HS43", "HS76", "portfolio")),
        *((name, MOMENTUM) for name in ("disc-product", "HS65", "box-corner")),
    ],
)
def test_it_finds_the_certified_answer(name, method):
    own = problems.get(name)
    result = solve(own.problem, own.x0, method, tolerance=1e-3, record=0, check_every=50)
    assert result.success, result.message
    assert certify(own.problem, result.x, result.multipliers).holds(1e-3)
    assert result.x == pytest.approx(own.solution, abs=0.05)


@pytest.mark.parametrize("name", ["HS12", "HS22", "HS43", "HS76"])
def test_the_defaults_stand_still_at_the_answer_and_its_multipliers(name):
    own = problems.get(name)
    state = run(own.problem, own.solution, DampedGDPA(), 1)[0]
    state = replace(state, multipliers=own.multipliers)
    after = DampedGDPA().update(own.problem, state)
    assert after.x == pytest.approx(own.solution, abs=1e-7)
    assert after.multipliers == pytest.approx(own.multipliers, abs=1e-6)


def test_tau_leaves_the_violation_it_is_said_to_leave():
    own = problems.get("HS12")
    tau = 0.2
    state = run(own.problem, own.x0, DampedGDPA(tau=tau), 4000)[-1]
    assert own.problem.evaluate(state.x).constraints == pytest.approx(tau * state.multipliers / state.beta, rel=1e-6)


# Properties, on random smooth problems: f = |x - c|^2/2 + sin terms, g = A x + |x|^2/2 - b.


def random_problem(seed, m, d, factors=None):
    rng = np.random.default_rng(seed)
    A, b, c = rng.normal(size=(m, d)), rng.normal(size=m), rng.normal(size=d)
    factors = np.ones(m) if factors is None else np.asarray(factors)

    def evaluate(x):
        f = ((x - c) ** 2).sum(-1) / 2 + np.sin(x).sum(-1)
        g = factors * ((A * x[..., None, :]).sum(-1) + ((x**2).sum(-1) / 2)[..., None] - b)

        def pullback(w, objective=1.0):
            v = factors * w
            total = (v[..., None] * A).sum(-2) + v.sum(-1)[..., None] * x
            return np.asarray(objective)[..., None] * ((x - c) + np.cos(x)) + total

        return Evaluation(np.asarray(f), g, pullback)

    return Problem(evaluate)


seeds = st.integers(0, 10_000)
sizes = st.integers(1, 4)
shares = st.floats(0, 0.95)


@given(
    seed=seeds, m=st.integers(1, 4), d=st.integers(1, 4), theta=st.floats(0.01, 1), mu=shares, rho=shares, tau=shares
)
def test_multipliers_are_nonnegative(seed, m, d, theta, mu, rho, tau):
    method = DampedGDPA(alpha=0.01, theta=theta, momentum=mu, smoothing=rho, tau=tau)
    for state in run(random_problem(seed, m, d), np.full(d, 1.5), method, 40)[1:]:
        assert (state.multipliers >= 0).all()
        assert (state.probe.multipliers >= 0).all()


@given(seed=seeds, exponents=st.lists(st.floats(-3, 3), min_size=3, max_size=3), mu=st.sampled_from([0.0, 0.9]))
def test_the_units_of_a_constraint_do_not_matter(seed, exponents, mu):
    factors = 10 ** np.array(exponents)
    method = DampedGDPA(alpha=0.003, momentum=mu, smoothing=0.5)
    plain, other = (run(random_problem(seed, 3, 2, f), np.full(2, 1.5), method, 60) for f in (np.ones(3), factors))
    for a, b in zip(plain, other, strict=True):
        assert b.x == pytest.approx(a.x, rel=1e-9, abs=1e-9)
        assert factors * b.multipliers == pytest.approx(a.multipliers, rel=1e-9, abs=1e-9)


def test_without_scaling_the_units_do_matter():
    method = DampedGDPA(alpha=1e-4, scaled=False)
    ends = [run(random_problem(0, 3, 2, f), np.full(2, 1.5), method, 60)[-1].x for f in (np.ones(3), np.full(3, 10.0))]
    assert np.abs(ends[0] - ends[1]).max() > 1e-3


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_a_batch_is_so_many_single_runs(name):
    library = Library(name)
    problem = hand_problem(library, domain=Box(-2.0, 5.0))
    method = DampedGDPA(momentum=0.5, smoothing=0.5)
    starts = np.random.default_rng(0).normal(size=(2, 3, 2)) * 3
    whole = run(problem, library.array(starts), method, 15)[-1]
    for index in np.ndindex(2, 3):
        one = run(problem, library.array(starts[index]), method, 15)[-1]
        for field in ("x", "multipliers", "average", "smoothed", "beta"):
            found, expected = to_numpy(getattr(whole, field))[index], to_numpy(getattr(one, field))
            assert found == pytest.approx(expected, rel=1e-11, abs=1e-11), field


def test_float64_runs_agree_across_libraries_and_float32_stays_float32():
    ends = []
    for name in ("numpy", "torch", "jax"):
        library = Library(name)
        problem = hand_problem(library, domain=Box(-2.0, 2.0))
        state = run(problem, library.array([0.3, -0.2]), MOMENTUM, 100)[-1]
        ends.append((to_numpy(state.x), to_numpy(state.multipliers)))
        single = run(problem, library.array([0.3, -0.2], "float32"), MOMENTUM, 3)[-1]
        for field in ("x", "multipliers", "average", "smoothed", "beta"):
            assert to_numpy(getattr(single, field)).dtype == np.float32, (name, field)
    for x, multipliers in ends[1:]:
        assert x == pytest.approx(ends[0][0], rel=1e-11)
        assert multipliers == pytest.approx(ends[0][1], rel=1e-10, abs=1e-12)


def test_the_probe_and_the_average():
    own = problems.get("HS43")
    method = DampedGDPA(tail=2.0)
    states = run(own.problem, own.x0, method, 20)
    for before, state in itertools.pairwise(states):
        assert state.probe.x is before.x
        assert state.probe.weight == state.step**2
        assert state.probe.gradient == pytest.approx(own.problem.evaluate(before.x).pullback(state.probe.multipliers))
    weights = np.arange(1, 21) ** 2.0
    expected = weights @ np.array([s.x for s in states[:-1]]) / weights.sum()
    assert states[-1].average == pytest.approx(expected, rel=1e-12)
    result = solve(own.problem, own.x0, method, stop=MaxSteps(20))
    assert result.x_average == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("tail", [0.0, 8.0])
def test_the_average_removes_noise(tail):
    """f = x^2/2 with gradient noise: the last point has variance alpha/(2 - alpha), averages have less."""
    rng = np.random.default_rng(0)

    def evaluate(x):
        noise = rng.normal(size=x.shape)
        return Evaluation((x**2).sum(-1) / 2, x[..., :0], lambda w, objective=1.0: objective * (x + noise))

    method = DampedGDPA(alpha=0.2, tail=tail, scaled=False)
    state = run(Problem(evaluate), np.zeros((400, 1)), method, 1000)[-1]
    assert np.var(state.x) == pytest.approx(0.2 / 1.8, rel=0.3)
    assert np.var(state.average) < 0.15 * np.var(state.x)


def test_stopped_saved_and_continued_is_the_same_run_bit_for_bit(tmp_path):
    own = problems.get("HS43")
    method = DampedGDPA(momentum=0.9, alpha=0.003, smoothing=0.3)
    whole = solve(own.problem, own.x0, method, stop=MaxSteps(60)).state
    save_run(tmp_path / "run", solve(own.problem, own.x0, method, stop=MaxSteps(25)).run)
    rest = solve(own.problem, run=load_run(tmp_path / "run"), stop=MaxSteps(60)).state
    assert rest.step == whole.step == 60
    for field in ("x", "multipliers", "previous", "smoothed", "average", "unit", "beta"):
        assert getattr(rest, field).tobytes() == getattr(whole, field).tobytes(), field
    assert rest.total == whole.total


def test_it_is_registered_and_travels():
    assert get_method("damped-gdpa") is DampedGDPA
    assert pickle.loads(pickle.dumps(DampedGDPA(theta=0.5))) == DampedGDPA(theta=0.5)
    assert DampedGDPA.tuned() == DampedGDPA()


NAN = float("nan")
BAD = [
    ({"alpha": 0.0}, ValueError, r"alpha must be a positive finite number, got 0\.0"),
    ({"alpha": None}, TypeError, "alpha must be a number or a schedule r -> number, got None"),
    ({"beta": -1.0}, ValueError, r"beta must be a positive finite number, got -1\.0"),
    ({"beta": "1"}, ValueError, "beta must be a positive finite number, got '1'"),
    ({"theta": 0.0}, ValueError, r"theta must be a positive finite number, got 0\.0"),
    ({"theta": 1.5}, ValueError, r"theta must lie in \(0, 1\], got 1\.5"),
    ({"tau": -0.1}, ValueError, r"tau must lie in \[0, 1\), got -0\.1"),
    ({"tau": 1.0}, ValueError, r"tau must lie in \[0, 1\), got 1\.0"),
    ({"momentum": 1.0}, ValueError, r"momentum must lie in \[0, 1\), got 1\.0"),
    ({"momentum": NAN}, ValueError, r"momentum must lie in \[0, 1\), got nan"),
    ({"smoothing": 1}, ValueError, r"smoothing must lie in \[0, 1\), got 1"),
    ({"smoothing": True}, ValueError, r"smoothing must lie in \[0, 1\), got True"),
    ({"tail": -1.0}, ValueError, r"tail must be a finite number of at least 0, got -1\.0"),
    ({"scaled": 1}, TypeError, "scaled must be True or False, got 1"),
]


@pytest.mark.parametrize(("options", "kind", "message"), BAD)
def test_bad_parameters_are_named(options, kind, message):
    with pytest.raises(kind, match=message):
        DampedGDPA(**options)


@pytest.mark.parametrize(
    "options", [{"theta": 1}, {"tau": 0.5}, {"momentum": 0}, {"alpha": lambda r: 1 / r}, {"tail": 0}, {"scaled": False}]
)
def test_good_parameters_pass(options):
    DampedGDPA(**options)
