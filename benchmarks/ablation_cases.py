"""The problems that rules of AdaptiveGDPA are judged on: development problems and generated families.

None of them is among the 144 problems of `benchmarks.nonlinear` that no method was tuned on.
"""

# mypy: disable-error-code="misc"
# (mypy infers no type for a lambda with a default argument)

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from benchmarks.banded.families import FAMILIES
from benchmarks.banded.solvers import problem_of
from gdpa import Box, Evaluation, Problem, Result, Status, from_functions, problems
from gdpa.core.problem import row_by_row

#: Statuses that are never right if the problem has a solution.
FALSE_ALARMS = (Status.LOCALLY_INFEASIBLE, Status.DIVERGING, Status.INVALID_NUMBER)


class Case(NamedTuple):
    """A problem with its start, the step it is solved by, when a result is right, and its limits."""

    name: str
    make: Callable[[], tuple[Problem, Any]]
    step: str = "auto"
    is_right: Callable[[Result], bool] = lambda result: result.success
    forwards: int = 500
    tolerance: float = 1e-6
    is_sparse: bool = False


def in_units(problem: Problem, x0: Any, f: float = 1.0, g: float = 1.0, x: float = 1.0) -> tuple[Problem, Any]:
    """Return the problem with f, its first constraint and its first variable in other units."""
    first = np.arange(len(x0)) == 0
    D, units = np.where(first, x, 1.0), np.ones(len(problem.evaluate(x0).constraints))
    units[:1] = g

    def evaluate(z: Any) -> Evaluation:
        now = problem.evaluate(D * z)

        def pullback(w: Any, objective: Any = 1.0) -> Any:
            return D * now.pullback(units * w, f * objective)

        return Evaluation(f * now.objective, units * now.constraints, pullback)

    domain: Any = problem.domain
    if hasattr(domain, "lower"):
        domain = replace(domain, lower=domain.lower / D, upper=domain.upper / D)
    return replace(problem, evaluate=evaluate, domain=domain), x0 / D


def hock_schittkowski() -> Iterator[Case]:
    """The certified problems: from three starts, in other units, and by both steps."""
    for i, name in enumerate(problems.names("solvable")):
        case = problems.get(name)
        for k in range(3):
            move = 0.5 * k * (1 + np.abs(case.x0)) * np.random.default_rng([i, k]).standard_normal(len(case.x0))
            start = case.problem.domain.project(case.x0 + move)
            yield Case(f"{name}, start {k}", lambda p=case.problem, x=start: (p, x))
        yield Case(f"{name}, pullback", lambda p=case.problem, x=case.x0: (p, x), "pullback")
        yield Case(f"{name}, to 1e-9", lambda p=case.problem, x=case.x0: (p, x), tolerance=1e-9)
        yield Case(f"{name}, f * 1000", lambda p=case.problem, x=case.x0: in_units(p, x, f=1e3))
        yield Case(f"{name}, g_0 / 1000", lambda p=case.problem, x=case.x0: in_units(p, x, g=1e-3))
        if name not in ("portfolio", "ball-product"):
            yield Case(f"{name}, x_0 * 1000", lambda p=case.problem, x=case.x0: in_units(p, x, x=1e3))


def _quadratics(rng: np.random.Generator, m: int, d: int, convexity: float) -> tuple[Any, Any, Any]:
    """Return random A (m, d, d), b (m, d) and a point at which values are prescribed."""
    A = rng.standard_normal((m, d, d)) / np.sqrt(d)
    return (A + A.transpose(0, 2, 1)) / 2 + convexity * np.eye(d), rng.standard_normal((m, d)), rng.standard_normal(d)


def _program(A: Any, b: Any, r: Any, Q: Any, t: Any, equalities: int = 0) -> Problem:
    """Return min (x - t)'Q(x - t)/2 + sum cos x_j subject to x'A_i x/2 + b_i'x <= r_i."""
    return from_functions(
        lambda x: (x - t) @ Q @ (x - t) / 2 + np.cos(x).sum(),
        lambda x: (A @ x) @ x / 2 + b @ x - r,
        gradient=lambda x: Q @ (x - t) - np.sin(x),
        jacobian=lambda x: A @ x + b,
        num_equalities=equalities,
    )


def qcqp(seed: int, d: int, m: int) -> tuple[Problem, Any]:
    """Return a nonconvex quadratic program inside a ball, feasible by construction."""
    rng = np.random.default_rng([1, seed])
    A, b, inside = _quadratics(rng, m, d, 0.0)
    A[0], b[0] = np.eye(d), 0.0
    values = (A @ inside) @ inside / 2 + b @ inside
    Q = _quadratics(rng, 1, d, 0.0)[0][0]
    return _program(A, b, values + rng.exponential(size=m), Q, 2 * rng.standard_normal(d)), 2 * rng.standard_normal(d)


def equations(seed: int, d: int, m: int) -> tuple[Problem, Any]:
    """Return a strongly curved objective under quadratic equations that have a solution."""
    rng = np.random.default_rng([2, seed])
    A, b, root = _quadratics(rng, m, d, 0.0)
    r = (A @ root) @ root / 2 + b @ root
    return _program(A, b, r, np.eye(d), 2 * rng.standard_normal(d), m), root + rng.standard_normal(d)


def overdetermined(seed: int, d: int) -> tuple[Problem, Any]:
    """Return more equations than variables: no point satisfies them."""
    rng = np.random.default_rng([3, seed])
    A, b, _ = _quadratics(rng, 2 * d, d, 1.0)
    return _program(A, b, 3 * rng.standard_normal(2 * d), np.eye(d), np.zeros(d), 2 * d), rng.standard_normal(d)


def disc_and_half_space(seed: int, d: int) -> tuple[Problem, Any]:
    """Return constraints that exclude each other by a gap of 1, beside others that do not matter."""
    rng = np.random.default_rng([4, seed])
    a = rng.standard_normal(d)
    a /= np.linalg.norm(a)
    A, b, _ = _quadratics(rng, 4, d, 2.0)
    A[0], b[0], A[1], b[1] = np.eye(d), 0.0, 0.0, -a
    r = np.array([0.5, -2.0, 30.0, 30.0])
    return _program(A, b, r, np.eye(d), rng.standard_normal(d), 0), rng.standard_normal(d)


def network(seed: int, hidden: int = 6) -> tuple[Problem, Any]:
    """Return a classifier of three classes: the loss of class 0 under limits on those of 1 and 2, rows by passes."""
    rng = np.random.default_rng([5, seed])
    labels = np.arange(60) % 3
    centers = rng.standard_normal((3, 4))
    points = np.hstack([centers[labels] + rng.standard_normal((60, 4)), np.ones((60, 1))])
    one_hot = np.eye(3)[labels]
    shares = one_hot / one_hot.sum(axis=0)  # (60, 3): the weights that average over a class
    sizes = 5 * hidden

    def evaluate(x: Any) -> Evaluation:
        V, W = x[:sizes].reshape(5, hidden), x[sizes:].reshape(hidden, 3)
        h = np.tanh(points @ V)
        z = h @ W
        z = z - z.max(axis=1, keepdims=True)
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        losses = -(shares * np.log(p[np.arange(60), labels])[:, None]).sum(axis=0)

        def pullback(w: Any, objective: Any = 1.0) -> Any:
            weights = shares @ np.array([objective, *w])
            back = weights[:, None] * (p - one_hot)
            inner = points.T @ ((back @ W.T) * (1 - h**2))
            return np.concatenate([inner.ravel(), (h.T @ back).ravel()]) + objective * 0.1 * x

        return Evaluation(losses[0] + 0.05 * x @ x, losses[1:] - 0.6, pullback)

    return Problem(evaluate, num_constraints=2), 0.5 * rng.standard_normal(sizes + 3 * hidden)


def crowded(m: int, tight: int, d: int = 40) -> tuple[Problem, Any]:
    """Return a nonconvex program whose rows cost a pass each; all but a few of its constraints have much room."""
    rng = np.random.default_rng([6, m, tight])
    t, c = 2 * rng.standard_normal(d), np.exp(rng.uniform(-2, 2, d))
    A, B = rng.standard_normal((m, d)) / np.sqrt(d), rng.random((m, d)) / (2 * np.sqrt(d))
    limits = np.where(np.arange(m) < tight, 1.0, 30.0)
    problem = from_functions(
        lambda x: c @ (x - t) ** 2 / 2,
        lambda x: 2 * A @ x + np.sin(3 * A @ x) / 3 + B @ x**2 - limits,
        gradient=lambda x: c * (x - t),
        jacobian=lambda x: (2 + np.cos(3 * A @ x))[:, None] * A + 2 * B * x,
    )
    return row_by_row(problem), np.zeros(d)


def plateau(start: float) -> tuple[Problem, Any]:
    """Return min x^2/2 subject to 1/(1 + e^x) <= 0.1, whose constraint is flat far to the left."""

    def evaluate(x: Any) -> Evaluation:
        e = np.exp(-np.abs(x))
        value, slope = np.where(x > 0, e, 1) / (1 + e), e / (1 + e) ** 2
        return Evaluation(x @ x / 2, value - 0.1, lambda w, objective=1.0: objective * x - w * slope)

    return Problem(evaluate, num_constraints=1), np.array([start])


def steep_start(x0: tuple[float, float, float]) -> tuple[Problem, Any]:
    """Return Hock and Schittkowski 66 without its bounds, whose constraints are steep at some starts."""
    c = np.array([-0.8, 0.0, 0.2])
    problem = from_functions(
        lambda x: c @ x + 1e-3 * x @ x,
        lambda x: np.array([np.exp(x[0]) - x[1], np.exp(x[1]) - x[2], x[2] - 10]),
        gradient=lambda x: c + 2e-3 * x,
        jacobian=lambda x: np.array([[np.exp(x[0]), -1.0, 0.0], [0.0, np.exp(x[1]), -1.0], [0.0, 0.0, 1.0]]),
    )
    return problem, np.array(x0)


def generated() -> Iterator[Case]:
    """Random families, by both steps."""

    def infeasible(result: Result) -> bool:
        return result.status is Status.LOCALLY_INFEASIBLE

    for step in ("auto", "pullback"):
        for seed in range(10):
            d = (4, 8, 16)[seed % 3]
            yield Case(f"qcqp {seed}, {step}", lambda s=seed, d=d: qcqp(s, d, d), step)
            yield Case(f"equations {seed}, {step}", lambda s=seed, d=d: equations(s, d, d // 2), step)
        for seed in range(4):
            yield Case(f"overdetermined {seed}, {step}", lambda s=seed: overdetermined(s, 4), step, infeasible)
            yield Case(f"disc {seed}, {step}", lambda s=seed: disc_and_half_space(s, 3 + s), step, infeasible)
            yield Case(f"network {seed}, {step}", lambda s=seed: network(s), step, tolerance=1e-2)
        for start in (-5.0, -12.0, -16.0, -20.0):
            yield Case(f"plateau {start:g}, {step}", lambda s=start: plateau(s), step)
        for x0 in ((10.6, 19.9, 10.0), (3.0, 12.0, 8.0), (5.0, 5.0, 5.0)):
            yield Case(f"steep {x0[1]:g}, {step}", lambda x=x0: steep_start(x), step)
    for m, tight in ((20, 5), (50, 5), (50, 30), (150, 5), (150, 70), (150, 20)):
        yield Case(f"crowded {m} / {tight}", lambda m=m, tight=tight: crowded(m, tight))


def wide_networks() -> Iterator[Case]:
    """Networks to an accuracy that takes hundreds of steps, rows by passes."""
    for seed in range(11, 15):
        yield Case(f"wide network {seed}", lambda s=seed: network(s, 12), tolerance=1e-4, forwards=4000)


def coupled(seed: int, n: int) -> tuple[Problem, Any]:
    """Return a nonconvex program under two inequalities for each pair of neighbors and bounds, J tridiagonal."""
    rng = np.random.default_rng([7, seed])
    t, a, b = 2 * rng.standard_normal(n), rng.uniform(0.5, 2, n - 1), rng.standard_normal(n - 1)
    k = np.arange(n - 1)
    rows = np.concatenate([k, k, n - 1 + k, n - 1 + k])
    columns = np.concatenate([k, k + 1, k, k + 1])

    def jacobian(x: Any) -> Any:
        entries = np.concatenate([2 * a * x[:-1], np.ones(n - 1), -np.cos(x[:-1]), b])
        return csr_array((entries, (rows, columns)), shape=(2 * n - 2, n))

    problem = from_functions(
        lambda x: (x - t) @ (x - t) / 2 + np.cos(3 * x).sum() / 3,
        lambda x: np.concatenate([a * x[:-1] ** 2 + x[1:] - 1, b * x[1:] - np.sin(x[:-1]) - 0.5]),
        gradient=lambda x: x - t - np.sin(3 * x),
        jacobian=jacobian,
        domain=Box(np.full(n, -1.5), np.full(n, 2.0)),
    )
    return problem, rng.standard_normal(n)


def banded() -> Iterator[Case]:
    """The families of `benchmarks.banded` with few variables, Hessians by grouped differences and given."""
    for name, family in FAMILIES.items():
        for n in (120, 480):
            for exact in (False, True):
                label = f"{name} {n}, {'given' if exact else 'differences'}"
                yield Case(
                    label, lambda f=family, n=n, e=exact: (problem_of(f(n), e), f(n).x0), forwards=2000, is_sparse=True
                )
    for seed in range(6):
        yield Case(f"coupled {seed}", lambda s=seed: coupled(s, 200), forwards=2000, is_sparse=True)


def verdicts() -> Iterator[Case]:
    """The problems of tests/methods/test_adaptive_verdicts.py, by both steps."""
    from tests.methods import adaptive_cases as known

    expected: list[tuple[Any, Callable[[Result], bool], int]] = [
        (known.INFEASIBLE, lambda result: result.status is Status.LOCALLY_INFEASIBLE, 500),
        (known.UNBOUNDED, lambda result: result.status is Status.DIVERGING, 500),
        (known.AWKWARD, lambda result: result.status not in FALSE_ALARMS, 150),
        (known.HOLES, lambda result: result.success, 500),
        (known.WALLS, lambda result: result.status is Status.INVALID_NUMBER, 500),
    ]
    for group, is_right, forwards in expected:
        for case in group:
            for step in ("auto", "pullback"):
                yield Case(f"{case.name}, {step}", lambda c=case: (c.problem(), c.start()), step, is_right, forwards)


def all_cases() -> list[Case]:
    """Return every problem, in a fixed order."""
    return [*hock_schittkowski(), *generated(), *wide_networks(), *banded(), *verdicts()]
