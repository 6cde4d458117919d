"""GDPA against hand arithmetic, its own fixed point, and the properties the paper's formulas promise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdpa import GDPA, Box, Constant, Evaluation, MaxSteps, Power, Problem, problems, solve
from gdpa.base.arrays import norm
from gdpa.run.oracle import CountingOracle, Counts
from tests.libraries import Library, to_numpy
from tests.methods.hand_problem import hand_problem

# f = (x0 - 4)^2 / 2 + (x1 - 1)^2 / 2,   g = (x0^2 - 1, x0 + x1 - 3)


def halving(r):
    return 1 / 2**r  # alpha_1 = 1/2, alpha_2 = 1/4


def counting(r):
    return float(r)  # beta_1 = 1, beta_2 = 2


def two_steps(library, **options):
    kinds = {key: options.pop(key) for key in ("num_equalities", "domain") if key in options}
    problem = hand_problem(library, **kinds)
    method = GDPA(alpha=halving, beta=counting, tau=0.5, **options)
    states = [method.init(problem, library.array([0.0, 0.0]))]
    for _ in range(2):
        states.append(method.update(problem, states[-1]))
    return [(to_numpy(s.x).tolist(), to_numpy(s.multipliers).tolist()) for s in states[1:]]


def test_two_gated_steps_by_hand(library):
    # r = 1 at x = (0, 0), lambda = (0, 0), beta = 1, alpha = 1/2, tau = 1/2:
    #   g = (-1, -3), q = 0/2 + g = (-1, -3), [q]_+ = 0, S_1 = {};   grad f = (-4, -1)
    #   x_2 = (0, 0) + (4, 1)/2 = (2, 1/2);   nothing is in S_1, so lambda_2 = (0, 0)
    # r = 2 at x = (2, 1/2), beta = 2, alpha = 1/4:
    #   g = (4 - 1, 2 + 1/2 - 3) = (3, -1/2), q = (6, -1), [q]_+ = (6, 0), S_2 = {0}
    #   grad f = (-2, -1/2), J^T (6, 0) = 6 (4, 0) = (24, 0), sum (22, -1/2)
    #   x_3 = (2 - 22/4, 1/2 + 1/8) = (-7/2, 5/8);   g(x_3) = (49/4 - 1, -7/2 + 5/8 - 3) = (45/4, -47/8)
    #   lambda_3 = (0/2 + 2 * 45/4, 0) = (45/2, 0)
    assert two_steps(library) == [([2.0, 0.5], [0.0, 0.0]), ([-3.5, 0.625], [22.5, 0.0])]


def test_two_ungated_steps_by_hand(library):
    # The gate is closed in step 1, so here the first multiplier is already g_0(x_2) = 3: lambda_2 = (3, 0).
    # r = 2: q = (3/2 + 6, -1), [q]_+ = (15/2, 0);   gradient (-2, -1/2) + 15/2 (4, 0) = (28, -1/2)
    #   x_3 = (2 - 7, 5/8) = (-5, 5/8);   g(x_3) = (24, -5 + 5/8 - 3) = (24, -59/8)
    #   lambda_3 = (3/2 + 2 * 24, [2 * -59/8]_+) = (99/2, 0)
    assert two_steps(library, gate=False) == [([2.0, 0.5], [3.0, 0.0]), ([-5.0, 0.625], [49.5, 0.0])]


def test_two_steps_with_an_equality_by_hand(library):
    # The second constraint is an equality: its weight keeps its sign and it always passes the gate.
    # r = 1: q = (-1, -3), w = (0, -3);   gradient (-4, -1) + (0, 0) - 3 (1, 1) = (-7, -4)
    #   x_2 = (7/2, 2);   g(x_2) = (49/4 - 1, 5/2);   lambda_2 = (0, 0/2 + 5/2) = (0, 5/2)
    # r = 2: q = (2 * 45/4, 5/4 + 5) = (45/2, 25/4) = w;   grad f = (-1/2, 1)
    #   J^T w = (7 * 45/2 + 25/4, 25/4) = (655/4, 25/4);   gradient (653/4, 29/4)
    #   x_3 = (7/2 - 653/16, 2 - 29/16) = (-597/16, 3/16)
    #   g(x_3) = ((597/16)^2 - 1, -594/16 - 3) = (356153/256, -321/8)
    #   lambda_3 = (2 * 356153/256, 5/4 - 321/4) = (356153/128, -79)
    expected = [([3.5, 2.0], [0.0, 2.5]), ([-597 / 16, 3 / 16], [356153 / 128, -79.0])]
    assert two_steps(library, num_equalities=1) == expected


def test_two_steps_in_a_box_by_hand(library):
    # r = 1: (2, 1/2) is projected on [0, 1]^2: x_2 = (1, 1/2), lambda_2 = 0.
    # r = 2: g = (0, -3/2), q = (0, -3): S_2 = {}, for q > 0 is strict;   grad f = (-3, -1/2)
    #   x_3 = P(1 + 3/4, 1/2 + 1/8) = (1, 5/8), lambda_3 = 0
    assert two_steps(library, domain=Box(0.0, 1.0)) == [([1.0, 0.5], [0.0, 0.0]), ([1.0, 0.625], [0.0, 0.0])]


def test_numbers_are_the_initial_steps_of_the_papers_schedules():
    method = GDPA(alpha=0.3, beta=2.0)
    assert method.alpha == Power(0.3, -1 / 3)
    assert method.beta == Power(2.0, 1 / 3)


def test_the_defaults_follow_the_papers_schedules():
    # alpha_r = alpha_0 r^(-1/3) and beta_r = beta_0 r^(1/3) at r = 1 and 8
    method, tuned = GDPA(), GDPA.tuned()
    assert [method.alpha(r) for r in (1, 8)] == pytest.approx([0.01, 0.005])
    assert [method.beta(r) for r in (1, 8)] == pytest.approx([1.0, 2.0])
    assert (method.tau, method.gate) == (0.1, True)
    assert [tuned.alpha(1), tuned.beta(1), tuned.tau] == [0.01, 1.0, 0.01]


def test_a_thousand_iterations_cost_1001_forwards_and_1000_backwards(library):
    oracle = CountingOracle(hand_problem(library))
    method = GDPA(alpha=0.01, beta=0.1)
    steps = 1000 if library.name == "numpy" else 50
    state = method.init(oracle.problem, library.array([0.0, 0.0]))
    for _ in range(steps):
        state = method.update(oracle.problem, state)
    assert oracle.method == Counts(steps + 1, steps)


def test_the_loop_reports_the_same_count():
    own = problems.get("HS43")
    result = solve(own.problem, own.x0, GDPA(alpha=0.01, beta=0.1), stop=MaxSteps(1000))
    assert (result.steps, result.forwards, result.backwards) == (1000, 1001, 1000)
    assert result.history["forwards"].tolist() == list(range(2, 1002))
    assert result.history["backwards"].tolist() == list(range(1, 1001))


@pytest.mark.parametrize(("name", "tau"), [("HS43", 0.1), ("disc-square", 0.5)])
def test_with_constant_beta_it_stands_still_at_the_predicted_violation(name, tau):
    own = problems.get(name)
    beta = 2.0
    method = GDPA(Constant(0.002), Constant(beta), tau)
    result = solve(own.problem, own.x0, method, stop=MaxSteps(12_000), record=0, check_every=1000)
    x, lam = result.x_last, result.multipliers_last
    now = own.problem.evaluate(x)
    assert own.multipliers is not None
    active = own.multipliers > 0
    assert np.linalg.norm(now.pullback(lam)) < 1e-8
    assert now.constraints[active] == pytest.approx(tau * lam[active] / beta, abs=1e-9)
    assert (lam[~active] == 0).all()
    # The point minimizes f + beta/(2 tau) ||g_+||^2 and is not feasible.
    assert (now.constraints[active] > 0).all()


# Properties, on random smooth problems: f = |x - c|^2/2 + sin terms, g = A x + |x|^2/2 - b.


def random_problem(seed, m, d, dtype="float64"):
    rng = np.random.default_rng(seed)
    A, b, c = rng.normal(size=(m, d)).astype(dtype), rng.normal(size=m).astype(dtype), rng.normal(size=d).astype(dtype)

    def evaluate(x):
        f = ((x - c) ** 2).sum(-1) / 2 + np.sin(x).sum(-1)
        g = (A * x[..., None, :]).sum(-1) + ((x**2).sum(-1) / 2)[..., None] - b

        def pullback(w, objective=1.0):
            total = (w[..., None] * A).sum(-2) + w.sum(-1)[..., None] * x
            return np.asarray(objective, dtype=x.dtype)[..., None] * ((x - c) + np.cos(x)) + total

        return Evaluation(np.asarray(f), g, pullback)

    return Problem(evaluate), (A, b, c)


seeds = st.integers(0, 10_000)
sizes = st.integers(1, 4)
taus = st.floats(0.05, 0.95)


@given(seed=seeds, m=sizes, d=sizes, tau=taus, beta=st.floats(0.1, 3), gate=st.booleans())
def test_multipliers_are_nonnegative_and_bounded(seed, m, d, tau, beta, gate):
    problem, _ = random_problem(seed, m, d)
    method = GDPA(alpha=0.02, beta=beta, tau=tau, gate=gate)
    state = method.init(problem, np.full(d, 1.5))
    G = 0.0
    for r in range(1, 41):
        state = method.update(problem, state)
        G = max(G, float(norm(np.maximum(state.evaluation.constraints, 0))) ** 2)
        assert (state.multipliers >= 0).all()
        assert norm(state.multipliers) <= method.beta(r) * np.sqrt(G) / tau * (1 + 1e-12)


@given(seed=seeds, m=st.integers(2, 5), tau=taus, order=st.randoms(use_true_random=False))
def test_permuting_the_constraints_permutes_the_multipliers(seed, m, tau, order):
    d = 3
    problem, _ = random_problem(seed, m, d)
    permutation = np.array(order.sample(range(m), m))

    def permuted(x):
        f, g, pullback = problem.evaluate(x)
        back = np.argsort(permutation)
        return Evaluation(f, g[permutation], lambda w, objective=1.0: pullback(w[back], objective))

    method = GDPA(alpha=0.02, tau=tau)
    one = solve(problem, np.ones(d), method, stop=MaxSteps(30))
    other = solve(Problem(permuted), np.ones(d), method, stop=MaxSteps(30))
    assert other.x_last == pytest.approx(one.x_last, rel=1e-12, abs=1e-12)
    assert other.multipliers_last == pytest.approx(one.multipliers_last[permutation], rel=1e-12, abs=1e-12)


def run_states(problem, x0, method, steps):
    state = method.init(problem, x0)
    for _ in range(steps):
        state = method.update(problem, state)
    return to_numpy(state.x), to_numpy(state.multipliers)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["numpy", "torch"])
@given(seed=seeds, tau=taus, gate=st.booleans())
def test_a_batch_is_so_many_single_runs(name, dtype, seed, tau, gate):
    library = Library(name)
    problem = hand_problem(library)
    starts = np.random.default_rng(seed).normal(size=(2, 3, 2)).round(3)
    method = GDPA(alpha=0.02, beta=0.5, tau=tau, gate=gate)
    x, lam = run_states(problem, library.array(starts, dtype), method, 12)
    assert x.dtype == lam.dtype == dtype
    assert lam.shape == (2, 3, 2)
    tolerance = 1e-4 if dtype == "float32" else 1e-11
    for index in np.ndindex(2, 3):
        x_one, lam_one = run_states(problem, library.array(starts[index], dtype), method, 12)
        assert x[index] == pytest.approx(x_one, rel=tolerance, abs=tolerance)
        assert lam[index] == pytest.approx(lam_one, rel=tolerance, abs=tolerance)


def test_float64_runs_agree_across_libraries():
    ends = []
    for name in ("numpy", "torch", "jax"):
        library = Library(name)
        problem = hand_problem(library, domain=Box(-2.0, 2.0))
        ends.append(run_states(problem, library.array([0.3, -0.2]), GDPA(alpha=0.02, beta=0.5), 100))
    for x, lam in ends[1:]:
        assert x == pytest.approx(ends[0][0], rel=1e-12)
        assert lam == pytest.approx(ends[0][1], rel=1e-11, abs=1e-13)


def test_the_probe_is_the_lagrangian_gradient_at_the_point_left():
    own = problems.get("HS43")
    method = GDPA(alpha=0.01, beta=0.5)
    state = method.init(own.problem, own.x0)
    for _ in range(20):
        before, state = state, method.update(own.problem, state)
        probe = state.probe
        assert probe.x is before.x
        assert probe.weight == 1 / method.beta(state.step)
        expected = own.problem.evaluate(before.x).pullback(probe.multipliers)
        assert probe.gradient == pytest.approx(expected, rel=1e-14)


BAD = [
    ({"tau": -0.1}, ValueError, r"tau must lie in \[0, 1\], got -0\.1"),
    ({"tau": 1.5}, ValueError, r"tau must lie in \[0, 1\], got 1\.5"),
    ({"tau": float("nan")}, ValueError, r"tau must lie in \[0, 1\], got nan"),
    ({"tau": "0.1"}, ValueError, r"tau must lie in \[0, 1\], got '0.1'"),
    ({"alpha": 0.0}, ValueError, r"alpha must be a positive finite number, got 0\.0"),
    ({"alpha": -1.0}, ValueError, r"alpha must be a positive finite number, got -1\.0"),
    ({"alpha": float("inf")}, ValueError, "alpha must be a positive finite number, got inf"),
    ({"beta": None}, TypeError, "beta must be a number or a schedule r -> number, got None"),
    ({"beta": 0}, ValueError, "beta must be a positive finite number, got 0"),
    ({"beta": float("nan")}, ValueError, "beta must be a positive finite number, got nan"),
    ({"beta": "1"}, TypeError, "beta must be a number or a schedule r -> number, got '1'"),
]


@pytest.mark.parametrize(("options", "kind", "message"), BAD)
def test_bad_parameters_are_named(options, kind, message):
    with pytest.raises(kind, match=message):
        GDPA(**options)


@pytest.mark.parametrize("options", [{"tau": 0.5}, {"alpha": 1}, {"beta": 3}, {"alpha": halving, "beta": counting}])
def test_good_parameters_pass(options):
    GDPA(**options)
