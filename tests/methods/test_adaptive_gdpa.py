"""AdaptiveGDPA: hand arithmetic, certified answers, counts, resumption, precision, and honesty of success."""

import dataclasses
import itertools
import math
from functools import partial

import numpy as np
import pytest
from scipy.optimize import lsq_linear

from gdpa import (
    AdaptiveGDPA,
    Ball,
    Box,
    Evaluation,
    KKTBelow,
    MaxOracleCalls,
    MaxSteps,
    Problem,
    Product,
    Simplex,
    Status,
    UnsupportedProblemError,
    from_functions,
    minimize,
    problems,
    solve,
)
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.core.problem import row_by_row
from gdpa.methods.adaptive import Rules
from gdpa.methods.adaptive.restoration import Restoration
from gdpa.methods.adaptive.sqp import DenseModel, Step
from gdpa.methods.adaptive.state import Reference
from gdpa.numerics.lbfgs import LBFGS
from gdpa.run.oracle import CountingOracle
from tests.libraries import scipy_minimize, to_numpy
from tests.methods.adaptive_cases import INFEASIBLE, walk
from tests.stored import through_a_file

STEPS = ("pullback", "jacobian")
SOLVABLE = problems.names("solvable")


def line(library):
    """f = (x - 2)^2 / 2, g = x - 1; from x0 = 0 the scaled f is (x - 2)^2 / 4."""
    return library.problem(
        lambda stack, x: ((x[..., 0] - 2) ** 2 / 2, stack([x[..., 0] - 1])),
        lambda x: x - 2,
        lambda x: np.ones((1, 1)),
    )


# Two steps by hand


def test_one_pullback_steps_by_hand(library):
    # x = 0: f' = 1, g = -1, lambda = 0, beta = 10: w = [-10]_+ = 0, grad F = (0 - 2)/2 = -1, B = max(1, 1): p = 1.
    # 1. x = 1: F = 1/4 <= 1 - 1e-4, accepted. w = 0, grad F = -1/2. s = 1, y = 1/2 >= 0.2: B = 1/2, p = 1.
    #    max(g, -lambda/beta) = 0, so the multiplier stays.
    # 2. x = 2: F = 0 + 10/2 = 5 > max(1, 1/4), refused. Parabola through F(0) = 1/4, slope -1/2, F(1) = 5:
    #    t = (1/2)/(2 (19/4 + 1/2)) = 1/21 < 1/10, so t = 1/10.
    # 3. x = 1.1: F = 0.81/4 + 10/2 * 0.01 = 0.2525 <= 1, accepted. w = 10 * 0.1 = 1, grad F = -0.45 + 1 = 0.55.
    states = walk(AdaptiveGDPA(step="pullback"), line(library), library.array([0.0]), 3)
    assert [float(s.x[0]) for s in states] == [0.0, 1.0, 1.0, 1.1]
    assert [s.trial.length for s in states[:3]] == [1.0, 1.0, 0.1]
    assert [s.probe is None for s in states] == [True, False, True, False]
    assert float(states[1].trial.direction[0]) == pytest.approx(1.0)
    probe = states[3].probe  # in the user's units: lambda = w / s_f = 2, grad f + lambda = -0.9 + 2
    assert float(probe.multipliers[0]) == pytest.approx(2.0)
    assert float(probe.gradient[0]) == pytest.approx(1.1)


def test_steps_with_the_jacobian_by_hand(library):
    # x = 0: c = -1, J = 1, g = -1, B = 1. Dual: A = 1 + 1/10, b = g - J H c = -1 + 1 = 0: l = 0, p = 1.
    # 1. x = 1, accepted as above. lambda = 0; c = -1/2; s = 1, y = 1/2, B = 1/2, H = 2.
    #    A = 2 + 1/10, b = 0 + 2/2 = 1: l = 10/21, p = -2 (-1/2 + 10/21) = 1/21.
    # 2. x = 22/21, lambda = 10/21.
    method = AdaptiveGDPA(step="jacobian", rules=Rules(near=0.0))
    states = walk(method, line(library), library.array([0.0]), 2)
    assert [float(s.x[0]) for s in states] == pytest.approx([0.0, 1.0, 22 / 21])
    assert float(states[1].phase.multipliers[0]) == pytest.approx(10 / 21)
    assert float(states[2].lagrangian.multipliers[0]) == pytest.approx(10 / 21)
    assert float(states[2].multipliers[0]) == pytest.approx(20 / 21)  # in the user's units


def test_a_stiff_step_with_the_jacobian_by_hand(library):
    # As above, but at x = 1 the violation is 0. The stiff model has A = 2 + 1e-8, so l = 1 / (2 + 1e-8), and
    # p = -2 (-1/2 + l) = 1e-8 / (2 + 1e-8) descends: grad F_beta = -1/2 there.
    states = walk(AdaptiveGDPA(step="jacobian"), line(library), library.array([0.0]), 2)
    assert float(states[1].trial.direction[0]) == pytest.approx(5e-9, rel=1e-6)
    assert float(states[2].lagrangian.multipliers[0]) == pytest.approx(0.5, rel=1e-7)
    assert states[2].lagrangian.beta == 10.0


def test_a_stiff_step_along_which_the_model_rises_is_not_taken():
    """min -x subject to x^2 <= 1 with a multiplier that is far too large: F_beta descends inwards, SQP outwards."""
    F, x = AugmentedLagrangian(np.array([5.0]), 10.0, 0.0, 0), np.array([0.9])
    model = DenseModel(-np.ones(1), 2 * x[None], x**2 - 1, 0.0, None, LBFGS())
    tried, plain = (model.step(F, Rules(near=near)).direction for near in (0.01, 0.0))
    gradient = -1 + 2 * x * (5 + 10 * (x**2 - 1))
    outwards = (1 - x**2) / (2 * x)  # to the linearized constraint
    assert (gradient * outwards)[0] > 0 > (gradient * plain)[0]
    assert tried.tolist() == plain.tolist()


@pytest.mark.parametrize("bounds", [None, (-np.ones(1), np.ones(1))], ids=["whole space", "box"])
def test_the_change_of_the_model_by_hand(bounds):
    # F = f + (([lambda + 10 g]_+)^2 - lambda^2) / 20 with lambda = 5, g = -0.2: (3^2 - 25) / 20. With p = 0.1, c = -1,
    # B = 1 and J = 2 f changes by -0.1 + 0.005 and g becomes 0: (5^2 - 25) / 20. Bp + c + J'l = 0 for l = 0.45.
    F = AugmentedLagrangian(np.array([5.0]), 10.0, 0.0, 0)
    model = DenseModel(-np.ones(1), np.array([[2.0]]), np.array([-0.2]), 0.0, bounds, LBFGS())
    assert model.change(F, Step(np.array([0.1]), np.array([0.45]), np.zeros(1), np.array([-0.1]))) == pytest.approx(
        -0.095 + 0.8
    )


def test_wrong_multipliers_do_not_shorten_stiff_steps():
    """A test of COBYQA: SQP steps from multipliers of zero descend on F_beta for a thousandth of their length only."""
    problem = from_functions(
        lambda x: x[0] ** 2 + x[1] ** 3,
        lambda x: np.array([x @ x - 25]),
        gradient=lambda x: np.array([2 * x[0], 3 * x[1] ** 2]),
        jacobian=lambda x: 2 * x[None],
        num_equalities=1,
    )
    result = solve(problem, np.array([4.95, 0.66]))
    assert result.success
    assert result.x == pytest.approx([math.sqrt(25 - 4 / 9), 2 / 3], abs=1e-5)
    assert result.forwards <= 12


def test_the_reference_value_is_exact_under_new_multipliers(rng):
    f, g = rng.normal(size=3), rng.normal(size=(3, 2))
    F = AugmentedLagrangian(np.array([0.5, 2.0]), 3.0, 0.1, 1)
    reference = Reference(f[:1], g[:1]).push(f[1], g[1], 2).push(f[2], g[2], 2)
    by_hand = []
    for fi, gi in zip(f, g, strict=True):
        q = gi + 0.9 * F.multipliers / 3.0
        q[0] = max(q[0], 0.0)
        by_hand.append(fi + 1.5 * q @ q - 0.81 * F.multipliers @ F.multipliers / 6)
    assert reference.values(1.0, F) == pytest.approx((by_hand[-1], by_hand[-2], max(by_hand[:-1])))


# Answers


@pytest.mark.parametrize("step", ["auto", *STEPS])
@pytest.mark.parametrize("name", SOLVABLE)
def test_every_certified_problem_to_six_digits(name, step):
    case = problems.get(name)
    result = solve(
        case.problem, case.x0, AdaptiveGDPA(step=step), tolerance=1e-6, stop=[KKTBelow(1e-6), MaxSteps(2000)]
    )
    assert result.success, result.message
    assert result.status is Status.CONVERGED
    f = float(case.problem.evaluate(case.solution).objective)
    assert result.objective == pytest.approx(f, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("beta", [1.0, 100.0])
@pytest.mark.parametrize("name", ["HS43", "HS65", "HS71", "HS113"])
def test_the_first_penalty_hardly_matters(name, beta):
    case = problems.get(name)
    assert solve(case.problem, case.x0, AdaptiveGDPA(beta=beta), tolerance=1e-6).success


@pytest.mark.parametrize("scale", [1e-3, 1e3])
@pytest.mark.parametrize("name", ["HS43", "HS65", "HS71", "HS100"])
def test_the_units_of_f_and_g_hardly_matter(name, scale):
    case = problems.get(name)

    def evaluate(x, s_f, s_g):
        f, g, pullback = case.problem.evaluate(x)
        return Evaluation(s_f * f, s_g * g, lambda w, objective=1.0: pullback(s_g * w, s_f * objective))

    units = np.ones(len(case.problem.evaluate(case.x0).constraints))
    units[0] = scale
    for s_f, s_g in ((scale, np.ones_like(units)), (1.0, units)):
        own = dataclasses.replace(case.problem, evaluate=partial(evaluate, s_f=s_f, s_g=s_g))
        assert solve(own, case.x0, AdaptiveGDPA(), tolerance=1e-6).success


def quadratic(domain, target, row, level):
    """min ||x - target||^2 / 2 subject to row'x <= level in X."""
    target, row = np.asarray(target), np.asarray(row)
    return from_functions(
        lambda x: (x - target) @ (x - target) / 2,
        lambda x: np.array([row @ x - level]),
        gradient=lambda x: x - target,
        jacobian=lambda x: row[None, :],
        domain=domain,
    )


@pytest.mark.parametrize(
    "domain",
    [Ball(1.0), Simplex(), Product([(2, Simplex()), (2, Box(0.0, 2.0))])],
    ids=["ball", "simplex", "product"],
)
def test_sets_that_are_no_boxes(domain):
    # Closed form by bisection on the one multiplier: x(l) = P_X(target - l row) solves the Lagrangian's problem.
    target, row, level = np.array([0.9, 0.4, 0.8, -0.3]), np.array([1.0, 0.2, 0.5, -1.0]), 0.5
    low, high = 0.0, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if row @ domain.project(target - middle * row) > level else (low, middle)
    result = solve(quadratic(domain, target, row, level), np.full(4, 0.25), AdaptiveGDPA(), tolerance=1e-8)
    assert result.success
    np.testing.assert_allclose(result.x, domain.project(target - high * row), atol=1e-6)
    assert float(result.multipliers[0]) == pytest.approx(high, abs=1e-5)


def test_without_constraints_it_is_a_quasi_newton_method():
    def rosenbrock(x):
        return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2

    def gradient(x):
        slope = 200 * (x[1] - x[0] ** 2)
        return np.array([-2 * x[0] * slope - 2 * (1 - x[0]), slope])

    result = solve(from_functions(rosenbrock, gradient=gradient), [-1.2, 1.0], AdaptiveGDPA(), tolerance=1e-8)
    np.testing.assert_allclose(result.x, [1.0, 1.0], atol=1e-5)
    assert result.forwards <= 100


def test_many_bounds_and_a_large_dimension():
    # min ||x - target||^2/2 on [0, 1]^d with a mean of at most 0.3: x = clip(target - l/d), found by bisection on l.
    d = 2_000
    target = np.linspace(-1.0, 2.0, d)
    problem = quadratic(Box(0.0, 1.0), target, np.full(d, 1.0 / d), 0.3)
    low, high = 0.0, 3.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(target - middle, 0, 1).mean() > 0.3 else (low, middle)
    for step in STEPS:
        result = solve(
            problem, np.full(d, 0.5), AdaptiveGDPA(step=step), tolerance=1e-6, stop=[KKTBelow(1e-6), MaxSteps(300)]
        )
        assert result.success
        np.testing.assert_allclose(result.x, np.clip(target - high, 0, 1), atol=1e-4)


# Libraries and precision


def curved(library, **kinds):
    """f = (x0 - 2)^2 + (x1 - 1)^2, g = (x0^2 - x1, x0 + x1 - 2): HS22."""
    return library.problem(
        lambda stack, x: (
            (x[..., 0] - 2) ** 2 + (x[..., 1] - 1) ** 2,
            stack([x[..., 0] ** 2 - x[..., 1], x[..., 0] + x[..., 1] - 2]),
        ),
        lambda x: 2 * (x - np.array([2.0, 1.0], dtype=x.dtype)),
        lambda x: np.array([[2 * x[0], -1.0], [1.0, 1.0]], dtype=x.dtype),
        **kinds,
    )


@pytest.mark.parametrize(("step", "domain"), [("pullback", Box(-3.0, 3.0)), ("jacobian", Ball(5.0))])
def test_every_library_takes_the_same_way(library, step, domain):
    reference = dataclasses.replace(library, name="numpy")
    method = AdaptiveGDPA(step=step)
    ours = walk(method, curved(library, domain=domain), library.array([2.0, 2.0]), 5)
    theirs = walk(method, curved(reference, domain=domain), reference.array([2.0, 2.0]), 5)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(to_numpy(a.x), b.x, rtol=1e-9, atol=1e-9)
    if step == "jacobian":
        result = solve(curved(library, domain=domain), library.array([2.0, 2.0]), method, tolerance=1e-6)
        np.testing.assert_allclose(to_numpy(result.x), [1.0, 1.0], atol=1e-5)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", SOLVABLE)
def test_single_precision_reaches_three_digits(name, step):
    import torch

    case = problems.get(name)

    def evaluate(x):
        f, g, pullback = case.problem.evaluate(x.numpy().astype(float))

        def single(a):
            return torch.as_tensor(np.asarray(a), dtype=torch.float32)

        def pull(w, objective=1.0):
            return single(pullback(w.numpy().astype(float), float(objective)))

        return Evaluation(single(f), single(g), pull)

    own = Problem(evaluate, domain=case.problem.domain, num_equalities=case.problem.num_equalities)
    x0 = torch.as_tensor(case.x0, dtype=torch.float32)
    result = solve(own, x0, AdaptiveGDPA(step=step), tolerance=1e-3, stop=[KKTBelow(1e-3), MaxSteps(2000)])
    assert result.success, result.message
    assert result.x.dtype == torch.float32


# Counts


@pytest.mark.parametrize("name", ["HS43", "HS76", "portfolio"])
def test_one_forward_a_trial_and_one_backward_an_accepted_point(name):
    case = problems.get(name)
    oracle = CountingOracle(row_by_row(case.problem))
    states = walk(AdaptiveGDPA(step="pullback"), oracle.problem, case.x0, 40)
    m = states[0].multipliers.shape[-1]
    assert not any(isinstance(s.phase, Restoration) for s in states)
    accepted = sum(s.probe is not None for s in states)
    ascents = sum(b.lagrangian is not a.lagrangian for a, b in itertools.pairwise(states))
    assert 0 < accepted <= 40
    assert ascents > 0
    assert oracle.method.forwards == 1 + 40
    assert oracle.method.backwards == (1 + m) + accepted + ascents


# Resumption


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ["HS43", "HS71", "HS76", "portfolio"])
def test_a_saved_run_goes_on_bit_for_bit(name, step, tmp_path):
    case = problems.get(name)
    method = AdaptiveGDPA(step=step)
    straight = walk(method, case.problem, case.x0, 24)
    for cut in (1, 5, 12, 23):
        state = through_a_file(straight[cut], tmp_path / "state")
        for expected in straight[cut + 1 :]:
            state = method.update(case.problem, state)
            assert (state.x == expected.x).all()
            assert (state.multipliers == expected.multipliers).all()


def test_a_run_saved_in_the_feasibility_phase_goes_on_bit_for_bit(tmp_path):
    case = next(c for c in INFEASIBLE if c.name == "two discs")
    method, problem = AdaptiveGDPA(), case.problem()
    straight = walk(method, problem, case.start(), 160)
    inside = [i for i, s in enumerate(straight) if isinstance(s.phase, Restoration) and s.verdict is None]
    assert inside
    for cut in (inside[0] - 1, inside[0], inside[-1]):
        state = through_a_file(straight[cut], tmp_path / "state")
        for expected in straight[cut + 1 : cut + 10]:
            state = method.update(problem, state)
            assert bool((state.x == expected.x).all())


def test_states_are_not_changed_by_an_update():
    case = problems.get("HS43")
    method = AdaptiveGDPA()
    state = walk(method, case.problem, case.x0, 5)[-1]
    before = [np.copy(a) for a in (state.x, state.gradient, *state.curvature.steps, state.reference.constraints)]
    again = [method.update(case.problem, state).x for _ in range(2)]
    assert (again[0] == again[1]).all()
    for a, b in zip(
        before, (state.x, state.gradient, *state.curvature.steps, state.reference.constraints), strict=True
    ):
        assert (a == b).all()


# Verdicts and honesty


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", SOLVABLE)
def test_success_holds_for_an_independent_judge(name, step):
    case = problems.get(name)
    result = solve(
        case.problem, case.x0, AdaptiveGDPA(step=step), tolerance=1e-5, stop=[KKTBelow(1e-5), MaxOracleCalls(500)]
    )
    assert result.success
    x, p = result.x, case.problem.num_equalities
    now = case.problem.evaluate(x)
    g, m = now.constraints, len(now.constraints)
    split = m - p
    assert max(np.maximum(g[:split], 0).max(initial=0.0), np.abs(g[split:]).max(initial=0.0)) <= 1e-5
    assert np.abs(x - case.problem.domain.project(x)).max() <= 1e-12
    if not isinstance(case.problem.domain, (Ball, Simplex)):
        # Multipliers by SciPy's bounded least squares over the coordinates off their bounds.
        J = np.stack([now.pullback(row, objective=0.0) for row in np.eye(m)])
        grad = now.pullback(np.zeros(m))
        inner = np.ones(len(x), dtype=bool)
        if isinstance(case.problem.domain, Box):
            lower, upper = case.problem.domain.bounds(x)
            inner = (x > lower + 1e-7) & (x < upper - 1e-7)
        near = (g > -1e-4) | (np.arange(m) >= split)
        lowest = np.where(np.arange(m) < split, 0.0, -np.inf)[near]
        if near.any() and inner.any():
            fit = lsq_linear(J[near][:, inner].T, -grad[inner], bounds=(lowest, np.inf))
            assert np.abs(fit.fun).max() <= 1e-4 * max(1.0, np.abs(grad).max())


def test_a_tolerance_below_rounding_stalls_or_runs_out_but_is_no_success():
    case = problems.get("HS100")  # its solution is no vector of short binary fractions, so rounding is left
    with np.errstate(all="ignore"):
        result = solve(case.problem, case.x0, AdaptiveGDPA(), tolerance=1e-300, stop=[KKTBelow(1e-300), MaxSteps(300)])
    assert result.status in (Status.STALLED, Status.MAX_STEPS)
    assert not result.success
    assert max(result.certificate.relative) < 1e-8


def test_small_coordinates_beside_a_large_one_are_not_called_still():
    # Rosenbrock's function in units of 1e-4 beside a coordinate of 1e4, whose rounding in float32 is ten such units.
    unit = np.float32(1e-4)

    def gradient(x):
        u, v = x[:2] / unit
        return np.stack([-400 * u * (v - u * u) - 2 * (1 - u), 200 * (v - u * u), x[2] - 10_000])

    def value(x):
        u, v = x[:2] / unit
        return unit * (100 * (v - u * u) ** 2 + (1 - u) ** 2) + (x[2] - 10_000) ** 2 / 2

    problem = from_functions(value, lambda x: x[:0], gradient=gradient, jacobian=lambda x: np.zeros((0, 3), x.dtype))
    result = solve(problem, np.array([-1.2e-4, 1e-4, 1e4], dtype=np.float32), tolerance=1e-3)
    assert result.success
    assert result.x[:2] / unit == pytest.approx(np.ones(2), rel=1e-2)


def test_no_step_left_is_called_stalled():
    # The gradient lies: no step along it descends, however short.
    problem = from_functions(lambda x: abs(x[0]) ** 0.5, gradient=lambda x: np.array([-1.0]))
    result = solve(problem, [0.0], AdaptiveGDPA(), tolerance=1e-6)
    assert result.status is Status.STALLED
    assert not result.success


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beta": 0.0}, "beta must be a positive finite number, got 0.0"),
        ({"beta": math.nan}, "beta must be"),
        ({"memory": 0}, "memory must be an integer of at least 1, got 0"),
        ({"memory": 2.5}, "memory must be"),
        ({"step": "newton"}, "step must be 'auto', 'pullback' or 'jacobian', got 'newton'"),
    ],
)
def test_bad_parameters(arguments, message):
    with pytest.raises(ValueError, match=message):
        AdaptiveGDPA(**arguments)


def test_a_batch_is_refused():
    case = problems.get("HS12")
    with pytest.raises(UnsupportedProblemError, match=r"x0 has shape \(3, 2\), a batch of problems"):
        AdaptiveGDPA().init(case.problem, np.zeros((3, 2)))


def test_middle_sizes_keep_as_many_pairs_as_variables(rng):
    """An ill-conditioned QP with equalities: at most 1.5 times the evaluations of SLSQP, which has the whole matrix."""
    d, m = 72, 12
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    H, b = (Q * np.logspace(0, 4, d)) @ Q.T, rng.standard_normal(d)
    A, r = rng.standard_normal((m, d)), rng.standard_normal(m)
    solution = np.linalg.solve(np.block([[H, A.T], [A, np.zeros((m, m))]]), np.concatenate([b, r]))[:d]
    rows = {"type": "eq", "fun": lambda x: A @ x - r, "jac": lambda x: A}
    asked = {"x0": np.zeros(d), "jac": lambda x: H @ x - b, "constraints": rows, "options": {"maxiter": 2000}}
    ours = minimize(lambda x: x @ H @ x / 2 - b @ x, **asked)
    theirs = scipy_minimize(lambda x: x @ H @ x / 2 - b @ x, method="SLSQP", tol=1e-12, **asked)
    assert ours.success
    assert np.abs(ours.x - solution).max() < 1e-6
    assert ours.nfev <= 1.5 * theirs.nfev
