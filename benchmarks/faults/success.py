"""Random problems in ordinary and odd units: is `success` ever true at a point that is no KKT point?

The certificate here is written apart from the library. Each problem is drawn in ordinary units, in which its data, its
start and its solution have the size of 1. The solver gets it in the user's units: f and each g_i multiplied, x scaled
or turned. Its answer is taken back to ordinary units and judged there by `is_kkt`.

If each coordinate has a unit of its own, the points must tell it: docs/certificate.md says that nothing else can. The
judge then measures coordinate j by its length ``max(|x_j|, |x_j - x0_j|)``, at most 1. Answers that fail if all lengths
are 1, as they were drawn, are counted apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import Bounds, NonlinearConstraint, nnls

import gdpa
from benchmarks.faults.line import Line, Row, numbered, seed_of, total

Vector = np.ndarray[Any, np.dtype[Any]]

KINDS = ("quadratic", "nonconvex", "quadratically constrained", "exponential", "degenerate", "equality", "infeasible")
#: Problems in one record, and in all.
BATCH, PROBLEMS = 50, 1000
#: What the independent certificate asks for in ordinary units; the solver is asked for 1e-6 in its own measure.
TOLERANCE = 1e-4
MAXITER = 300


@dataclass(frozen=True)
class Drawn:
    """A problem in ordinary units: ``f``, ``g <= 0``, ``h = 0``, each with derivatives, in a box."""

    kind: str
    f: Callable[[Vector], float]
    grad: Callable[[Vector], Vector]
    g: Callable[[Vector], Vector]
    jac: Callable[[Vector], Vector]
    equalities: int
    start: Vector
    lower: Vector
    upper: Vector
    feasible: bool = True


def draw(seed: int) -> Drawn:
    """Return problem ``seed``; the kinds take turns."""
    rng = np.random.default_rng([17, seed])
    kind = KINDS[seed % len(KINDS)]
    d, m = int(rng.integers(2, 9)), int(rng.integers(1, 8))
    start, center = rng.standard_normal(d), rng.standard_normal(d)
    root = rng.standard_normal((d, d)) / d**0.5
    H = root @ root.T + (0.1 if kind != "degenerate" else 0.0) * np.eye(d)
    if kind == "nonconvex":
        H -= rng.uniform(0.5, 1.5) * np.eye(d)
    A, b = rng.standard_normal((m, d)), rng.uniform(0.1, 1.0, m)
    lower, upper = np.full(d, -np.inf), np.full(d, np.inf)
    if kind == "nonconvex" or rng.random() < 0.3:
        lower, upper = np.full(d, -2.0), np.full(d, 2.0)
    equalities, feasible = 0, kind != "infeasible"

    def quadratic(x: Vector) -> float:
        return float((x - center) @ H @ (x - center) / 2)

    def slope(x: Vector) -> Vector:
        return np.asarray(H @ (x - center))

    f, grad = quadratic, slope
    inside = rng.uniform(-0.5, 0.5, d)  # a point that meets the constraints
    b = b + A @ inside
    if kind == "exponential":
        B, c = rng.standard_normal((m, d)) / d**0.5, rng.standard_normal((3, d)) / d**0.5
        level = np.exp(B @ inside) + rng.uniform(0.1, 1.0, m)

        def f(x: Vector) -> float:
            return float(np.exp(c @ x).sum() + 0.1 * x @ x)

        def grad(x: Vector) -> Vector:
            return np.asarray(np.exp(c @ x) @ c + 0.2 * x)

        def g(x: Vector) -> Vector:
            return np.asarray(np.exp(B @ x) - level)

        def jac(x: Vector) -> Vector:
            return np.asarray(np.exp(B @ x)[:, None] * B)

    elif kind == "quadratically constrained":
        centers, radius = rng.standard_normal((m, d)), rng.uniform(0.2, 1.0, m)
        radius = radius + ((inside - centers) ** 2).sum(axis=1)

        def g(x: Vector) -> Vector:
            return np.asarray(((x - centers) ** 2).sum(axis=1) - radius)

        def jac(x: Vector) -> Vector:
            return np.asarray(2 * (x - centers))

    else:
        if kind == "degenerate":  # rows twice, sums of rows, and some active at the center where f has its minimum
            A, b = np.vstack([A, A[:1], A.sum(axis=0)]), np.append(b, [b[0], b.sum()])
            b = np.where(rng.random(len(b)) < 0.3, A @ center, b)
        elif kind == "equality":
            equalities = min(m, d - 1)
            A = A[:equalities]
            b = A @ inside
        elif kind == "infeasible":
            A, b = np.vstack([A, -A[:1]]), np.append(b, -b[0] - rng.uniform(0.5, 2.0))

        def g(x: Vector) -> Vector:
            return np.asarray(A @ x - b)

        def jac(x: Vector) -> Vector:
            return np.asarray(A)

    return Drawn(kind, f, grad, g, jac, equalities, start, lower, upper, feasible)


@dataclass(frozen=True)
class Units:
    """The user's f is ``f`` times the ordinary one, g_i ``g_i`` times, and x is ``turn`` times the ordinary x."""

    f: float
    g: Vector
    turn: Vector
    mixed: bool = False  # each coordinate of x has a unit of its own


def odd_units(drawn: Drawn, seed: int) -> Units:
    """Return ordinary units for every other problem, else odd ones, 1e-6 to 1e6."""
    rng = np.random.default_rng([18, seed])
    d, m = len(drawn.start), len(drawn.g(drawn.start))
    if seed // len(KINDS) % 2 == 0:
        return Units(1.0, np.ones(m), np.eye(d))
    mixed = bool(rng.random() >= 0.5 or np.isfinite(drawn.lower).any())
    if not mixed:  # turned, in one unit of length
        turn = np.linalg.qr(rng.standard_normal((d, d)))[0] * 10 ** rng.uniform(-6, 6)
    else:  # a unit of its own for each coordinate
        turn = np.diag(10 ** (rng.uniform(-4, 4) + rng.uniform(-2, 2, d)))
    return Units(10 ** rng.uniform(-6, 6), 10 ** rng.uniform(-6, 6, m), np.asarray(turn), mixed)


def is_kkt(drawn: Drawn, x: Vector, lengths: Vector, tolerance: float = TOLERANCE) -> bool:
    """Tell whether ``x`` is a KKT point to ``tolerance``, in ordinary units.

    With the constraints and bounds that are active to within the tolerance, multipliers must exist, nonnegative for
    inequalities, such that ``max_j L_j |grad f + J_A^T lambda|_j <= t max(1, max_j L_j |grad f|_j)``.
    """
    if not np.isfinite(x).all():
        return False
    g, grad, J, p = drawn.g(x), drawn.grad(x), drawn.jac(x), drawn.equalities
    outside = max(np.max(drawn.lower - x), np.max(x - drawn.upper))
    violation = max(np.max(np.abs(g[:p]), initial=0.0), np.max(g[p:], initial=0.0), outside)
    if not (np.isfinite(g).all() and np.isfinite(grad).all() and violation <= tolerance):
        return False
    active, eye = J[p:][g[p:] >= -tolerance], np.eye(len(x))
    at_bounds = [-eye[x - drawn.lower <= tolerance], eye[drawn.upper - x <= tolerance]]
    columns = lengths[:, None] * np.vstack([J[:p], -J[:p], active, *at_bounds]).T  # an equality pushes both ways
    grad = lengths * grad
    size = np.linalg.norm(columns, axis=0)
    columns = columns / np.where(size > 0, size, 1.0)
    weights = nnls(columns, -grad)[0] if columns.shape[1] else np.zeros(0)
    return bool(np.abs(grad + columns @ weights).max() <= tolerance * max(1.0, np.abs(grad).max()))


def posed(drawn: Drawn, units: Units) -> dict[str, Any]:
    """Return the arguments of `gdpa.minimize` for the problem in the user's units."""
    back = np.linalg.inv(units.turn)
    p = drawn.equalities
    low = np.where(np.arange(len(units.g)) < p, 0.0, -np.inf)
    constraint = NonlinearConstraint(
        lambda x: units.g * drawn.g(back @ x), low, 0.0, jac=lambda x: units.g[:, None] * (drawn.jac(back @ x) @ back)
    )
    bounds = None
    if np.isfinite(drawn.lower).any():  # the turn is diagonal then
        scale = np.diag(units.turn)
        bounds = Bounds(scale * drawn.lower, scale * drawn.upper)
    return {
        "fun": lambda x: units.f * drawn.f(back @ x),
        "x0": units.turn @ drawn.start,
        "jac": lambda x: units.f * (drawn.grad(back @ x) @ back),
        "constraints": [constraint],
        "bounds": bounds,
        "options": {"maxiter": MAXITER},
    }


def judged(seed: int) -> tuple[bool, bool, bool]:
    """Return whether problem ``seed`` ended with success, whether the certificate holds, and with lengths of 1."""
    drawn = draw(seed)
    units = odd_units(drawn, seed)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of values that overflow on the way
        found = gdpa.minimize(**posed(drawn, units))
    x = np.linalg.solve(units.turn, found.x)
    ones = np.ones(len(x))
    lengths = np.minimum(1.0, np.maximum(np.abs(x), np.abs(x - drawn.start))) if units.mixed else ones
    holds, drawn_holds = (drawn.feasible and is_kkt(drawn, x, one) for one in (lengths, ones))
    return bool(found.success), holds, drawn_holds


def run(case: str, folder: Path) -> Row:
    first = seed_of(case) * BATCH
    return run_problems(range(first, first + BATCH))


def run_problems(seeds: range) -> Row:
    outcomes = {seed: judged(seed) for seed in seeds}
    wrong = [seed for seed, (success, holds, _) in outcomes.items() if success and not holds]
    hidden = [seed for seed, (success, _, holds) in outcomes.items() if success and not holds]
    feasible = [seed for seed in seeds if draw(seed).feasible]
    return {
        "problems": len(outcomes),
        "feasible": len(feasible),
        "successes": sum(success for success, *_ in outcomes.values()),
        "wrong": len(wrong),
        "hidden": len(hidden),
        "ok": not wrong,
        "note": f"problems {wrong}" if wrong else "",
    }


def found(rows: list[Row]) -> str:
    return (
        f"{total(rows, 'wrong')} of {total(rows, 'problems')} "
        f"({total(rows, 'successes')} successes among {total(rows, 'feasible')} feasible problems); "
        f"{total(rows, 'hidden')} if coordinates have lengths that no point tells"
    )


LINE = Line(
    "`success` true with an independent certificate failing, random problems of ordinary and odd units",
    "0 of 1000",
    lambda short: numbered("problems", 1 if short else PROBLEMS // BATCH),
    run,
    found,
)
