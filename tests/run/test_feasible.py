"""Answers feasible to rounding: by the problem's own values at the returned point."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import NonlinearConstraint

from gdpa import (
    GDPA,
    Box,
    Evaluation,
    KKTBelow,
    MaxSteps,
    Problem,
    Status,
    certify,
    from_torch,
    minimize,
    problems,
    solve,
)
from gdpa.base.sets import Reals

SOLVABLE = [name for name in problems.names() if problems.get(name).kind == "solvable"]
UNITS = [(1.0, 1.0), (1e-6, 1.0), (1.0, 1e3), (1e-6, 1e3)]


def in_units(problem, of_g, of_x):
    """Return the problem with every g_i multiplied by ``of_g`` and x by ``of_x``."""
    domain = problem.domain
    if isinstance(domain, Box):
        domain = Box(of_x * np.asarray(domain.lower), of_x * np.asarray(domain.upper))

    def evaluate(x):
        now = problem.evaluate(x / of_x)
        return Evaluation(
            now.objective,
            of_g * now.constraints,
            lambda w, objective=1.0: now.pullback(of_g * w, objective) / of_x,
            lambda: of_g / of_x * now.jacobian(),
        )

    return replace(problem, evaluate=evaluate, domain=domain)


def cases():
    for name in SOLVABLE:
        for of_g, of_x in UNITS:
            if of_x == 1 or isinstance(problems.get(name).problem.domain, (Reals, Box)):
                yield name, of_g, of_x


@pytest.mark.parametrize(("name", "of_g", "of_x"), list(cases()))
def test_no_violation_is_left_and_the_certificate_holds(name, of_g, of_x):
    own = problems.get(name)
    problem = in_units(own.problem, of_g, of_x)
    result = solve(problem, of_x * own.x0, feasible=True, record=0)
    assert result.success, result.message
    assert result.restored.reached
    g = problem.evaluate(result.x).constraints
    split = len(g) - problem.num_equalities
    assert g[:split].max(initial=-np.inf) <= 0
    # An equality is met to 100 roundings of its terms, each at most |J| |x| in size.
    sizes = np.abs(problem.evaluate(result.x).jacobian()[split:]) @ (np.abs(result.x) + np.abs(of_x * own.x0))
    assert (np.abs(g[split:]) <= 1e-13 * sizes).all()
    np.testing.assert_allclose(problem.domain.project(result.x), result.x, rtol=1e-15, atol=1e-15)
    assert certify(problem, result.x, snap=0.0).holds(result.tolerance)
    assert result.objective == pytest.approx(float(own.problem.evaluate(own.solution).objective), rel=1e-5, abs=1e-5)


def test_the_result_says_what_was_done():
    hs = problems.get("HS12")
    rough = solve(hs.problem, hs.x0, stop=KKTBelow(1e-2), tolerance=1e-2)
    result = solve(hs.problem, hs.x0, stop=KKTBelow(1e-2), tolerance=1e-2, feasible=True)
    assert rough.restored is None
    assert rough.constraints[0] > 1e-8
    assert result.restored.before == rough.constraints[0]
    assert result.restored.after <= 0
    assert f"Restored: the violation of {rough.constraints[0]:.1e}" in result.message
    assert result.run.state.x == pytest.approx(rough.run.state.x, abs=0)  # the run goes on from its own point


def test_what_cannot_be_reached_is_said_and_no_success():
    own = problems.get("disjoint-discs")
    result = solve(own.problem, own.x0, feasible=True)
    assert result.status is Status.LOCALLY_INFEASIBLE
    assert not result.success
    assert not result.restored.reached
    assert "Not restored: a violation of" in result.message
    assert result.restored.after == pytest.approx(max(own.problem.evaluate(result.x).constraints), rel=1e-12)


def test_an_answer_that_does_not_certify_any_more_is_no_success():
    # |x| <= 1e-3 by a double root: feasible to rounding lies far from where the tolerance lets the run stop.
    problem = from_torch(lambda x: (x[0] + x[1] ** 2, torch.stack([x[0] ** 2])))
    stop = [KKTBelow(1e-2), MaxSteps(100)]
    result = solve(problem, torch.ones(2, dtype=torch.float64), stop=stop, tolerance=1e-2, feasible=True)
    assert result.success == (result.restored.reached and result.certificate.holds(1e-2))


def test_single_precision():
    problem = from_torch(lambda x: (-x.sum(), torch.stack([x @ x - 2])))
    result = solve(problem, torch.tensor([0.3, 0.6], dtype=torch.float32), feasible=True)
    assert result.success
    assert float(result.x @ result.x - 2) <= 0


@pytest.mark.parametrize("upper", [2.0, 2e-6])
def test_minimize_takes_it_as_an_option(upper):
    scale = upper / 2
    disc = NonlinearConstraint(lambda x: scale * (x @ x), -np.inf, upper, jac=lambda x: 2 * scale * x[None])
    call = {"jac": lambda x: -x[::-1], "constraints": disc}
    found = minimize(lambda x: -x[0] * x[1], [0.4, 0.9], **call, options={"feasible": True})
    plain = minimize(lambda x: -x[0] * x[1], [0.4, 0.9], **call, options={"feasible": False})
    assert found.success
    assert ("Restored" in found.message) == (plain.maxcv > 0)
    assert scale * (found.x @ found.x) <= upper
    assert found.maxcv == 0.0
    assert found.fun == pytest.approx(-1, abs=1e-6)
    assert plain.result.restored is None


def test_a_batch_is_refused_before_the_first_step():
    batch = Problem(
        lambda x: Evaluation((x**2).sum(-1), x[..., :1] - 1, lambda w, objective=1.0: 2 * objective * x),
    )
    with pytest.raises(ValueError, match="feasible must be False for a batch"):
        solve(batch, np.zeros((3, 2)), GDPA(), feasible=True)
