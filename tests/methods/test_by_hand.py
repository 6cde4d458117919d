"""Three steps of every method against arithmetic worked by hand, fixed points, and GDPA's limits against GDPA.

The problem is min (x - 2)^2 / 2 subject to x - 1 <= 0 from x = 2: grad f = x - 2, g = x - 1, J = 1.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import log
from typing import Any

import numpy as np
import pytest

from gdpa import (
    GDA,
    GDPA,
    IPPP,
    IQRC,
    LIPAL,
    PDD,
    PPL,
    Constant,
    DirectionalDecomposition,
    HiBSA,
    IALMLi,
    IALMSahin,
    LinearizedALM,
    Penalty,
    ProximalADMM,
    SmoothedGDA,
    SwitchingSubgradient,
    from_functions,
    problems,
)
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.methods.nested import FixedMomentum

HALF, ONE = Constant(0.5), Constant(1.0)
INNER = FixedMomentum(alpha=0.25, momentum=0.5, max_steps=2)


def problem(num_equalities: int = 0) -> Any:
    return from_functions(
        lambda x: (x[0] - 2) ** 2 / 2,
        lambda x: x - 1,
        gradient=lambda x: x - 2,
        jacobian=lambda x: np.ones((1, 1)),
        num_equalities=num_equalities,
    )


def three_steps(method: Any, x0: float = 2.0, num_equalities: int = 0) -> list[Any]:
    given = problem(num_equalities)
    states = [method.init(given, np.array([x0]))]
    for _ in range(3):
        states.append(method.update(given, states[-1]))
    return states[1:]


def check(states: list[Any], x: list[float], multipliers: list[float], within: float = 1e-15) -> None:
    assert [float(s.x[0]) for s in states] == pytest.approx(x, abs=within)
    assert [float(s.multipliers[0]) for s in states] == pytest.approx(multipliers, abs=within)


def test_gdpa() -> None:
    # 1: q = 0/2 + 1 = 1;         x = 2 - (0 + 1)/2 = 1.5;             lambda = 0 + 0.5
    # 2: q = 0.25 + 0.5 = 0.75;   x = 1.5 - (-0.5 + 0.75)/2 = 1.375;   lambda = 0.25 + 0.375
    # 3: q = 0.3125 + 0.375;      x = 1.375 - (-0.625 + 0.6875)/2;     lambda = 0.3125 + 0.34375
    check(three_steps(GDPA(HALF, ONE, tau=0.5)), [1.5, 1.375, 1.34375], [0.5, 0.625, 0.65625])


def test_penalty() -> None:
    # 1: x = 2 - (0 + 1)/2 = 1.5;   lambda = 0.5
    # 2: x = 1.5 - (-0.5 + 0.5)/2 = 1.5, the minimizer of (x - 2)^2/2 + (x - 1)^2/2, where it stays;   lambda = 0.5
    check(three_steps(Penalty(HALF, ONE)), [1.5, 1.5, 1.5], [0.5, 0.5, 0.5])


def test_linearized_alm() -> None:
    # 1: q = 1;               x = 1.5;                           lambda = 0.5
    # 2: q = 0.5 + 0.5 = 1;   x = 1.5 - (-0.5 + 1)/2 = 1.25;     lambda = 0.5 + 0.25
    # 3: q = 0.75 + 0.25 = 1; x = 1.25 - (-0.75 + 1)/2 = 1.125;  lambda = 0.75 + 0.125
    check(three_steps(LinearizedALM(HALF, ONE)), [1.5, 1.25, 1.125], [0.5, 0.75, 0.875])


def test_ppl() -> None:
    # rho = 1/(1 + 1) = 1/2, gain = delta/(1 + (w - mu)^2), delta = 1/2, 1/4, 1/8.
    # 1: w = 1/2;                   x = 2 - (0 + 1/2)/2 = 1.75;                 mu = 0 + (1/2)/(5/4) (1/2) = 0.2
    # 2: w = 0.2 + 0.375 = 0.575;   x = 1.75 - (-0.25 + 0.575)/2 = 1.5875;      mu = 0.2 + 0.25/1.140625 (0.375)
    # 3: w = mu + 0.29375 = mu + c; x = 1.5875 - (-0.4125 + w)/2;               mu = mu + 0.125/(1 + c^2) c
    second = 0.2 + 0.25 / 1.140625 * 0.375
    x = [1.75, 1.5875, 1.5875 - (second + 0.29375 - 0.4125) / 2]
    mu = [0.2, second, second + 0.125 / (1 + 0.29375**2) * 0.29375]
    check(three_steps(PPL(eta=0.5, alpha=1.0, beta=1.0, delta=0.5, decay=0.5)), x, mu)


def test_switching_subgradient() -> None:
    # 1: g = 1 > 0.1, Polyak: x = 2 - 1 = 1;   pushed 1, pulled 0
    # 2: g = 0, on f: x = 1 + 1/2 = 1.5;       pulled 1/2: lambda = 1/(1/2)
    # 3: g = 1/2, Polyak: x = 1;               pushed 3/2: lambda = (3/2)/(1/2)
    method = SwitchingSubgradient(HALF, Constant(0.1), memory=1.0)
    check(three_steps(method), [1.0, 1.5, 1.0], [0.0, 2.0, 3.0])


def test_lipal() -> None:
    # (1/beta + eta) w = (1 - tau) lambda/beta + g - eta grad f with beta = 1, eta = tau = 1/2; x = x - (grad f + w)/2.
    # 1: 1.5 w = 0 + 1 - 0;                   w = 2/3;     x = 2 - 1/3 = 5/3
    # 2: 1.5 w = 1/3 + 2/3 + 1/6 = 7/6;       w = 7/9;     x = 5/3 - (-1/3 + 7/9)/2 = 13/9
    # 3: 1.5 w = 7/18 + 4/9 + 5/18 = 10/9;    w = 20/27;   x = 13/9 - (-5/9 + 20/27)/2 = 73/54
    # g is linear, so lambda = lambda/2 + g(x) each time, as GDPA's.
    states = three_steps(LIPAL(ONE, tau=0.5, eta=0.5))
    check(states, [5 / 3, 13 / 9, 73 / 54], [2 / 3, 7 / 9, 20 / 27], within=1e-11)
    for before, after in pairwise(states):
        assert after.multipliers == pytest.approx(before.multipliers / 2 + after.x - 1)


def test_directional_decomposition() -> None:
    # From 2: w = g - grad f = 1 each time, s = -(grad f + 1) = 1 - x = -1, -1/2, -1/4; half of it is taken.
    check(three_steps(DirectionalDecomposition(eta=0.5)), [1.5, 1.25, 1.125], [1.0, 1.0, 1.0], within=1e-11)
    # From -4, g + s = -5 + 6 > 0 asks for w = 1, s = 5. A merit step of length 1 then reaches x = 1 and stays there.
    check(three_steps(DirectionalDecomposition(), x0=-4.0), [1.0, 1.0, 1.0], [1.0, 1.0, 1.0], within=1e-11)


#: Members of the family without a bias, and methods of linearized constraints. A switching method has no fixed point.
UNBIASED = [PPL(), PPL(decay=0.999), LinearizedALM(), LIPAL(tau=0.0, eta=0.05), DirectionalDecomposition(eta=0.1)]


@pytest.mark.parametrize("method", UNBIASED, ids=repr)
@pytest.mark.parametrize("name", ["disc-product", "HS14", "HS43"])
def test_KKT_points_are_fixed_points(method: Any, name: str) -> None:
    known = problems.get(name)
    state = method.init(known.problem, known.solution)
    state = replace(state, multipliers=known.multipliers)
    after = method.update(known.problem, state)
    np.testing.assert_allclose(after.x, known.solution, atol=1e-7)
    np.testing.assert_allclose(after.multipliers, known.multipliers, atol=1e-6)


@pytest.mark.parametrize("method", UNBIASED, ids=repr)
@pytest.mark.parametrize("name", ["disc-product", "HS14"])
def test_fixed_points_are_KKT_points(method: Any, name: str) -> None:
    """Where a step moves neither x nor the multipliers, the residuals of the problem vanish."""
    known = problems.get(name)
    after = method.init(known.problem, known.x0)
    for _ in range(3000):
        state, after = after, method.update(known.problem, after)
    np.testing.assert_allclose(after.x, state.x, rtol=0, atol=1e-9)
    np.testing.assert_allclose(after.multipliers, state.multipliers, rtol=0, atol=1e-8)
    now, w = known.problem.evaluate(after.x), after.multipliers
    slack = AugmentedLagrangian(w, 1.0, num_equalities=known.problem.num_equalities).complementarity(now.constraints)
    np.testing.assert_allclose(now.pullback(w), 0, atol=1e-6)
    np.testing.assert_allclose(slack, 0, atol=1e-6)


def test_gda() -> None:
    # 1: x = 2 - (0 + 0)/2 = 2;     lambda = 0 + g(2) = 1
    # 2: x = 2 - (0 + 1)/2 = 1.5;   lambda = 1 + g(2) = 2, for it looks at the old x
    # 3: x = 1.5 - (-0.5 + 2)/2;    lambda = 2 + g(1.5)
    check(three_steps(GDA(alpha=0.5, beta=1.0, augmentation=0.0)), [2.0, 1.5, 0.75], [1.0, 2.0, 2.5])


def test_gda_on_the_augmented_lagrangian() -> None:
    # 1: w = 0 + 1 = 1;       x = 2 - (0 + 1)/2 = 1.5;                   lambda = max(g, -lambda)/2 = 0.5
    # 2: w = 0.5 + 0.5 = 1;   x = 1.5 - (-0.5 + 1)/2 = 1.25;             lambda = 0.5 + 0.5/2 = 0.75
    # 3: w = 0.75 + 0.25;     x = 1.25 - (-0.75 + 1)/2;                  lambda = 0.75 + 0.25/2
    check(three_steps(GDA(alpha=0.5, beta=0.5, augmentation=1.0)), [1.5, 1.25, 1.125], [0.5, 0.75, 0.875])


def test_hibsa() -> None:
    # 1: x = 2 - 0/2 = 2;          lambda = (0 + 1)/(1 + 1) = 0.5
    # 2: x = 2 - 0.5/2 = 1.75;     lambda = (0.5 + 0.75)/2 = 0.625
    # 3: x = 1.75 - (-0.25 + 0.625)/2;   lambda = (0.625 + 0.5625)/2
    method = HiBSA(rho=1.0, gamma=ONE, b=Constant(2.0), augmentation=0.0)
    check(three_steps(method), [2.0, 1.75, 1.5625], [0.5, 0.625, 0.59375])


def test_smoothed_gda() -> None:
    # 1: x = 2 - (0 + 0 + 0)/2 = 2;         lambda = 0 + 1 = 1;       z = 2
    # 2: x = 2 - (0 + 1 + 0)/2 = 1.5;       lambda = 1 + 0.5 = 1.5;   z = 2 + (1.5 - 2)/2 = 1.75
    # 3: x = 1.5 - (-0.5 + 1.5 - 0.25)/2;   lambda = 1.5 + 0.125;     z = 1.75 + (1.125 - 1.75)/2
    states = three_steps(SmoothedGDA(alpha=1.0, prox=1.0, beta=0.5, step=0.5, augmentation=0.0))
    check(states, [2.0, 1.5, 1.125], [1.0, 1.5, 1.625])
    assert [float(s.center[0]) for s in states] == [2.0, 1.75, 1.4375]


def test_proximal_admm() -> None:
    # 1: y = 0.5;      x = 2 - (0 + 0.5 + 1 + 0)/4 = 1.625;                      z = 2 - 0.375/2 = 1.8125
    # 2: y = 0.8125;   grad K = -0.375 + 0.8125 + 0.625 - 0.1875 = 0.875;
    #    x = 1.625 - 0.21875 = 1.40625;                                          z = (1.8125 + 1.40625)/2 = 1.609375
    # 3: y = 1.015625; grad K = -0.59375 + 1.015625 + 0.40625 - 0.203125 = 0.625;
    #    x = 1.40625 - 0.15625 = 1.25;                                           z = (1.609375 + 1.25)/2
    states = three_steps(ProximalADMM(gamma=1.0, alpha=0.5, prox=1.0, beta=0.5, step=0.25), num_equalities=1)
    check(states, [1.625, 1.40625, 1.25], [0.5, 0.8125, 1.015625])
    assert [float(s.center[0]) for s in states] == [1.8125, 1.609375, 1.4296875]


# The inner steps of the next three, on (x - 2)^2/2 + [x - 1]_+^2/2 with step 1/4 and momentum 1/2:
# 1: gradient at 2 is 0 + 1;   x = 1.75;   v = 1.75 + (1.75 - 2)/2 = 1.625
# 2: gradient at 1.625 is -0.375 + 0.625 = 0.25;   x = 1.625 - 0.0625 = 1.5625, the last step the solver may take
# 3: without momentum, at 1.5625, where grad f is -0.4375 and g is 0.5625, on the next subproblem


def test_pdd() -> None:
    # Outer: h = 0.5625 <= eta = 0.9 g(2) = 0.9, so lambda = 0 + h/1; rho stays and eta = 0.9 h.
    states = three_steps(PDD(rho=1.0, epsilon=1e-9, inner=INNER))
    # 3: gradient -0.4375 + (0.5625 + 0.5625) = 0.6875
    check(states, [1.75, 1.5625, 1.5625 - 0.6875 / 4], [0.0, 0.5625, 0.5625])
    assert (states[1].rho, states[1].eta) == (1.0, 0.9 * 0.5625)
    # With eta = g(2)/2 = 0.5 < h it is rho's turn: 0.6 * 1. 3: gradient -0.4375 + 0.5625/0.6 = 0.5
    states = three_steps(PDD(rho=1.0, epsilon=1e-9, shrink=0.5, inner=INNER))
    check(states, [1.75, 1.5625, 1.4375], [0.0, 0.0, 0.0])
    assert states[1].rho == 0.6


@pytest.mark.parametrize("slack", [False, True])
def test_ialm_sahin(slack: bool) -> None:
    # Outer k = 1: sigma = log^2(2) / (2 log^2(3)), relative to this first violation 0.5625. A slack would stay at 0:
    # its gradient is the positive weight.
    # 3: beta_2 = 2, so the gradient is -0.4375 + y + 2 * 0.5625.
    states = three_steps(IALMSahin(beta=1.0, sigma=1.0, slack=slack, inner=INNER))
    y = 0.5625 * log(2) ** 2 / (2 * log(3) ** 2)
    check(states, [1.75, 1.5625, 1.5625 - (0.6875 + y) / 4], [0.0, y, y])
    assert (states[1].outer, states[1].inner.count) == (1, 0)


# The inner steps of the next two, with (x - 2)^2/2 added:
# 1: as above;   2: gradient at 1.625 is -0.375 + 0.625 - 0.375 = -0.125;   x = 1.625 + 0.03125 = 1.65625
# 3: without momentum, at 1.65625, where grad f is -0.34375 and g is 0.65625, around this point


def test_ialm_li() -> None:
    # 2 rho |x - 2| = 0.34375 > epsilon/2: another proximal step, around 1.65625, of gradient -0.34375 + 0.65625 ...
    states = three_steps(IALMLi(beta=1.0, rho=0.5, inner=INNER))
    check(states, [1.75, 1.65625, 1.65625 - 0.3125 / 4], [0.0, 0.0, 0.0])
    assert (states[1].middle, states[1].outer, float(states[1].center[0])) == (1, 0, 1.65625)
    # ... unless that was the last: y = 0 + w_0 min(1, gamma_0 = ||c||/||c||) c, beta = 3;
    # then the gradient is -0.34375 + (1 + 3) 0.65625.
    states = three_steps(IALMLi(beta=1.0, growth=3.0, rho=0.5, max_middle=1, inner=INNER))
    check(states, [1.75, 1.65625, 1.65625 - 2.28125 / 4], [0.0, 0.65625, 0.65625])
    assert (states[1].middle, states[1].outer, states[1].beta) == (0, 1, 3.0)


def test_ippp() -> None:
    # The multipliers are the weights [g]_+ where the gradients were taken: g(2) = 1 and g(1.625) = 0.625.
    # gamma |x - 2| = 0.34375 <= eps_0 = 1 ends the stage. (The first step's residual 8 * 0.25 = 2 exceeds eps_0.)
    # 3: beta_1 = 3: weight 1.96875, gradient -0.34375 + 1.96875 = 1.625
    states = three_steps(IPPP(beta=1.0, gamma=1.0, inner=INNER))
    check(states, [1.75, 1.65625, 1.25], [1.0, 0.625, 1.96875])
    assert (states[0].outer, states[1].outer, float(states[1].center[0])) == (0, 1, 1.65625)


def test_iqrc() -> None:
    method = IQRC(rho=1.0, gamma=0.5, steps=2, growth=0, tolerance=0.0)  # gamma_k = 1/(k + 2)
    # From 2, infeasible. k = 0: G = 1 > 0, zeta = 1 + 0;   z = 2 - 1/2 = 1.5
    # k = 1: G = 0.5 + 0.125 > 0, zeta = 1 - 0.5;   z = 1.5 - 0.5/3 = 4/3. I is empty: x_1 = z_2, no multiplier.
    # Then k = 0 around 4/3: G = 1/3 > 0, zeta = 1;   z = 4/3 - 1/2
    check(three_steps(method), [1.5, 4 / 3, 5 / 6], [0.0, 0.0, 0.0])
    # From 0, feasible. k = 0: G = -1, zeta = -2 + 0;   z = 0 + 2/2 = 1
    # k = 1: G = 0 + 0.5 > 0, zeta = 1 + 1;   z = 1 - 2/3. I = {0}: x_1 = z_0 = 0, lambda = (1 + 1)/(0 + 1) = 2.
    states = three_steps(method, x0=0.0)
    # Then k = 0 as before, from 0 again.
    check(states, [1.0, 0.0, 1.0], [0.0, 2.0, 2.0])
    assert (states[1].outer, states[1].inner, float(states[1].center[0])) == (1, 0, 0.0)


@pytest.mark.parametrize(("limit", "tau"), [(Penalty, 1 - 1e-13), (LinearizedALM, 1e-13)])
@pytest.mark.parametrize("gate", [True, False])
def test_the_ablations_are_the_limits_of_gdpa(limit: Any, tau: float, gate: bool) -> None:
    known = problems.get("HS43")
    ends = []
    for method in (limit(alpha=0.005, beta=0.5, gate=gate), GDPA(alpha=0.005, beta=0.5, tau=tau, gate=gate)):
        state = method.init(known.problem, known.x0)
        for _ in range(50):
            state = method.update(known.problem, state)
        ends.append(state)
    np.testing.assert_allclose(ends[0].x, ends[1].x, rtol=1e-8)
    np.testing.assert_allclose(ends[0].multipliers, ends[1].multipliers, rtol=1e-8, atol=1e-10)
    assert ends[0].probe.weight == ends[1].probe.weight
