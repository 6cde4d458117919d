"""The slack form: the same problem with equalities, and the way back."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdpa import NonNegative, Problem, add_slacks, certify, problems
from gdpa.core.slack import SlackForm


def test_every_satisfied_inequality_starts_as_an_equality() -> None:
    known = problems.get("HS43")
    form, z0 = add_slacks(known.problem, known.x0)
    x, s = form.split(z0)
    np.testing.assert_array_equal(x, known.x0)
    g = known.problem.evaluate(known.x0).constraints
    np.testing.assert_array_equal(s, np.maximum(-g, 0))
    np.testing.assert_array_equal(form.problem.evaluate(z0).constraints, np.maximum(g, 0))


def test_equalities_get_no_slack_and_names_stay() -> None:
    known = problems.get("HS71")  # one inequality, one equality, a box
    form, z0 = add_slacks(known.problem, known.x0)
    assert form.num_slacks == 1
    assert z0.shape == (5,)
    assert form.problem.num_equalities == 2
    projected = form.problem.domain.project(np.full(5, -3.0))
    np.testing.assert_array_equal(projected, [1.0, 1.0, 1.0, 1.0, 0.0])


def test_the_pullback_is_the_gradient(rng: Any) -> None:
    known = problems.get("HS71")
    form, z0 = add_slacks(known.problem, known.x0)
    z = z0 + rng.uniform(0, 1, 5)
    w = rng.normal(size=2)

    def lagrangian(z: Any) -> float:
        e = form.problem.evaluate(z)
        return float(0.7 * e.objective + w @ e.constraints)

    differences = [(lagrangian(z + 1e-6 * e) - lagrangian(z - 1e-6 * e)) / 2e-6 for e in np.eye(5)]
    np.testing.assert_allclose(form.problem.evaluate(z).pullback(w, 0.7), differences, rtol=1e-6, atol=1e-6)


def test_both_forms_have_the_same_multipliers() -> None:
    for name in ("HS43", "HS71", "HS76", "box-corner"):
        known = problems.get(name)
        form, _ = add_slacks(known.problem, known.x0)
        z = form.lift(known.solution, known.problem.evaluate(known.solution).constraints)
        certificate = certify(form.problem, z)
        assert certificate.holds(1e-5)
        np.testing.assert_allclose(certificate.multipliers, known.multipliers, atol=1e-4)


def test_without_inequalities_it_is_the_problem_itself() -> None:
    problem = Problem(print, num_constraints=2, num_equalities=2, domain=NonNegative())
    assert SlackForm(problem, 3, 2).problem is problem
