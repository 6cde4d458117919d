"""Derivatives against differences: which entry is wrong, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gdpa.base.arrays import from_numpy, is_floating, machine_eps, max_norm, namespace, to_float64
from gdpa.base.sets import Box
from gdpa.base.typing import Array
from gdpa.core.problem import Evaluation, Problem
from gdpa.core.units import FEW_ROWS, asymmetric_direction, roundings
from gdpa.numerics.dense import Matrix
from gdpa.numerics.differences import CLEAR, LEVELS, NOISE

#: Relative errors of a derivative up to this are not reported.
TOLERANCE = 1e-4
#: Values that bend by this many roundings on a short step, and hardly more on a longer one, are noisy.
NOISY = 1e3
#: The second step is this many times the first.
WIDER = 8.0
#: Further steps for values of few digits, before the widest of `gdpa.numerics.differences`.
COARSE = (1e-3, 1e-2)
#: Two steps disagree by less than this share of the derivative, or a wider pair is tried.
AGREED = 0.1
#: Two steps that disagree by more than this times the derivative prove nothing: it is too steep here, or noise.
DISAGREED = 2.0
#: The factors that a message calls by their name: whole numbers up to this one.
LARGEST_FACTOR = 12
#: How many wrong entries a report prints.
SHOWN = 20


class WrongEntry(NamedTuple):
    """An entry of a derivative that the differences contradict, and the likely mistake.

    ``function`` is "f" or the name of a constraint, ``component`` the j of d/dx_j.
    """

    function: str
    component: int
    given: float
    difference: float
    cause: str

    def __str__(self) -> str:
        where = f"d {self.function} / d x[{self.component}]"
        return f"{where}: given {self.given:.6g}, difference {self.difference:.6g}: {self.cause}"


@dataclass(frozen=True)
class DerivativeReport:
    """The outcome of `check_derivatives` for all ``entries``: those that are ``wrong``, and those that are ``unclear``.

    Of an unclear one, (function, component), the differences are all noise, or not a number.
    """

    wrong: tuple[WrongEntry, ...]
    unclear: tuple[tuple[str, int], ...]
    entries: int

    @property
    def ok(self) -> bool:
        """Whether no entry is wrong."""
        return not self.wrong

    def __str__(self) -> str:
        known, more = self.entries - len(self.unclear), len(self.wrong) - SHOWN
        lines = [f"Derivatives: {len(self.wrong)} of {known} entries contradict the differences of the values."]
        if self.ok:
            lines = [f"Derivatives: all {known} entries agree with the differences of the values."]
        lines += [f"  {entry}" for entry in self.wrong[:SHOWN]]
        lines += [f"  ... and {more} more, see .wrong"] if more > 0 else []
        if self.unclear:
            shown = ", ".join(f"d {name} / d x[{j}]" for name, j in self.unclear[:3])
            rest = f" and {len(self.unclear) - 3} more" if len(self.unclear) > 3 else ""
            lines.append(f"  Not to be judged by differences, which are noise there: {shown}{rest}.")
        return "\n".join(lines)


def check_derivatives(problem: Problem, x: Array) -> DerivativeReport:
    r"""Compare grad f(x) and every row of J(x) with central differences of the values, entry by entry.

    .. math:: D_{ij}(h) = (v_i(x + h e_j) - v_i(x - h e_j)) / 2h, \qquad v = (f, g_1, ..., g_m)

    The difference at two steps h separates noise from a wrong derivative: an entry is wrong if it differs from D by
    more than D differs from itself. The steps suit the precision of x, and grow if the values have fewer digits. They
    stay inside a box; at a kink every slope between the one-sided differences is accepted.

    Args:
        problem: f, g and their derivatives, of NumPy, torch or JAX.
        x: one point, of shape (d,); it is projected on X, as `gdpa.solve` does with a start.

    Returns:
        A `DerivativeReport`: ``report.ok``, ``report.wrong``, and a text that names the wrong entries. It raises
        nothing. The cost is 4d + 1 forward passes (up to 10d + 1 if the values are noisy) and the derivatives at ``x``.

    Example:
        >>> from gdpa import from_functions
        >>> disc = from_functions(lambda x: x[0] * x[1], lambda x: np.array([x @ x - 1]), names=("disc",),
        ...     gradient=lambda x: np.array([x[1], -x[0]]), jacobian=lambda x: np.array([[x[0], x[1]]]))
        >>> print(check_derivatives(disc, np.array([3.0, 2.0])))
        Derivatives: 3 of 4 entries contradict the differences of the values.
          d f / d x[1]: given -3, difference 3: wrong sign
          d disc / d x[0]: given 3, difference 6: the factor 2 is missing
          d disc / d x[1]: given 2, difference 4: the factor 2 is missing
    """
    if not is_floating(x):
        x = np.asarray(x, dtype=float)
    if x.ndim != 1:
        raise ValueError(f"x must be one point of shape (d,), got shape {tuple(x.shape)}; check one point at a time")
    x = problem.domain.project(x)
    now = problem.evaluate(x)
    names = ["f", *(problem.constraint_name(i) for i in range(now.constraints.shape[-1]))]
    given = np.concatenate([to_float64(now.gradient())[None], to_float64(now.jacobian()).reshape(-1, x.shape[-1])])
    with np.errstate(all="ignore"):
        slope, allowed, is_wrong, is_unclear = _judge(problem, x, now, given)
    wrong = tuple(
        WrongEntry(names[i], j, given[i, j], slope[i, j], _name_cause(given, slope, allowed, names, i, j))
        for i, j in np.argwhere(is_wrong).tolist()
    )
    unclear = tuple((names[i], j) for i, j in np.argwhere(is_unclear).tolist())
    return DerivativeReport(wrong, unclear, given.size)


def _judge(problem: Problem, x: Array, now: Evaluation, given: Matrix) -> tuple[Matrix, Matrix, Any, Any]:
    """Judge every entry by the first pair of steps that agree on it, or by the pair that agrees best.

    Return the best difference of every entry, how far off it may be, which entries are wrong, and which are unclear.
    """
    eps = machine_eps(x)
    at, scale = _values(now), np.maximum(1.0, np.abs(to_float64(x)))
    best = np.full((4, *given.shape), np.nan)  # the lower, higher and central difference, and how far off it may be
    least, settled = np.full(given.shape, np.inf), np.zeros(given.shape, dtype=bool)
    first = eps ** (1 / 3)
    steps = [first, WIDER * first, *(level for level in (*COARSE, LEVELS[1]) if level > 2 * WIDER * first)]
    near, near_size = _slopes(problem, x, at, steps[0] * scale)
    for step in steps[1:]:
        far, far_size = _slopes(problem, x, at, step * scale)
        rounding = 2 * eps**0.5 * np.maximum(near_size, far_size)[:, None] / scale
        off = 5 * np.abs(near[2] - far[2]) + rounding
        noise = NOISE * eps * far_size[:, None]
        # The values stand still though the derivative is not zero: they may be rounded.
        blind = (far[3] <= noise) & (np.abs(given) * step * scale > CLEAR * noise) & (step < steps[-1])
        share = off / (np.abs(near[2]) + rounding)
        better = ~settled & ~blind & (share < least)
        best, least = np.where(better, [*near[:3], off], best), np.where(better, share, least)
        low, high, slope, allowed = best
        size = np.fmax(np.abs(given), np.abs(slope))
        settled = np.isfinite(slope) & (allowed <= np.maximum(AGREED * size, 2 * rounding))
        if settled.all():
            break
        near, near_size = far, far_size
    distance = np.maximum(given - high, low - given)
    wrong = ~np.isfinite(given) | ((distance > allowed + TOLERANCE * size) & (least <= DISAGREED))
    return slope, allowed, wrong, ~wrong & ~settled


def _slopes(problem: Problem, x: Array, at: Matrix, step: Matrix) -> tuple[Matrix, Matrix]:
    """Return the lower, higher and central differences and the changes along every coordinate; sizes of the values."""
    host, sides, size = to_float64(x), [], np.abs(at)
    lower, upper = map(to_float64, problem.domain.bounds(x)) if isinstance(problem.domain, Box) else (-np.inf, np.inf)
    for sign in (1.0, -1.0):
        moved = np.clip(host + sign * step, lower, upper)
        columns = []
        for j, to in enumerate(moved.tolist()):
            point = host.copy()
            point[j] = to
            y = from_numpy(point, x)
            room = float(to_float64(y)[j]) - host[j]  # the step as it was rounded
            values = _values(problem.evaluate(y)) if abs(room) > step[j] / 2 else np.full(at.shape, np.nan)
            size = np.fmax(size, np.abs(values))
            columns.append((values - at) / room if room else np.full(at.shape, np.nan))
        sides.append(np.stack(columns, axis=1))
    low, high = np.fmin(*sides), np.fmax(*sides)
    central = np.where(np.isfinite(sides[0]) & np.isfinite(sides[1]), (sides[0] + sides[1]) / 2, low)
    return np.stack([low, high, central, np.fmax(*np.abs(sides)) * step]), size


def _name_cause(given: Matrix, slope: Matrix, allowed: Matrix, names: list[str], i: int, j: int) -> str:
    """Return the likely cause of a wrong entry (i, j) of (grad f, J)."""

    def same(a: Any, b: Any, rows: Any = i, columns: Any = slice(None)) -> bool:
        off = np.nan_to_num(allowed[rows, columns], nan=0.0, posinf=0.0)
        return bool(np.all(np.abs(a - b) <= off + 10 * TOLERANCE * np.maximum(np.abs(a), np.abs(b))))

    a, b = given[i, j], slope[i, j]
    if not np.isfinite(a):
        return "it is not a finite number"
    J, D = given[1:], slope[1:]
    if i and J.shape[0] == J.shape[1] > 1 and same(J, D.T, slice(1, None)):
        return "the Jacobian is transposed"
    if np.count_nonzero(given[i]) and given.shape[1] > 1:
        for k in range(len(names)):
            if k != i and same(given[i], slope[k]):
                return f"this is the derivative of {names[k]}"
    if same(a, -b, i, j):
        return "wrong sign"
    if a == 0:
        return "it is zero: a term is missing, or the value is cut off from x"
    if abs(b) <= allowed[i, j] <= AGREED * abs(a):
        return f"{names[i]} does not depend on x[{j}]"
    sign = " and the sign is wrong" if b / a < 0 else ""
    for ratio, fault in ((abs(b / a), "missing"), (abs(a / b) if b else 0.0, "too much")):
        whole = round(min(ratio, LARGEST_FACTOR + 1))
        if 2 <= whole <= LARGEST_FACTOR and abs(ratio / whole - 1) <= 10 * TOLERANCE:
            return f"the factor {whole} is {fault}{sign}"
    return f"off by the factor {b / a:.4g}"


def find_contradiction(problem: Problem, x: Array, multipliers: Array, now: Evaluation | None = None) -> str:
    """Return a sentence if values contradict derivatives: of the Lagrangian, or of the constraints by themselves.

    Inactive constraints have no part in the Lagrangian, and a wrong factor in J is hidden by multipliers.
    """
    now = problem.evaluate(x) if now is None else now
    if found := contradiction(problem, x, multipliers, now):
        return found
    m = now.constraints.shape[-1]
    return contradiction(problem, x, asymmetric_direction(now.constraints), now, objective=0.0) if m else ""


def contradiction(
    problem: Problem, x: Array, weights: Array, now: Evaluation | None = None, objective: float = 1.0
) -> str:
    """Return a sentence if a value is noisy, or if ``objective f + <weights, g>`` contradicts its gradient, or "".

    It looks along the steepest descent, at four forward passes, one backward pass, and the derivatives at ``x``.
    """
    if x.ndim != 1:
        return ""
    xp, eps = namespace(x), machine_eps(x)
    now = problem.evaluate(x) if now is None else now
    at, terms = _values(now), _term_roundings(x, now)
    w, gradient = np.concatenate([[objective], to_float64(weights)]), now.pullback(weights, objective)
    scale = xp.maximum(xp.ones_like(x), xp.abs(x))
    direction = problem.domain.tangent(x, -gradient)
    longest = float(max_norm(direction / scale))
    direction = scale * asymmetric_direction(x) if not longest > 0 else direction / longest
    found = []
    for step in (eps ** (1 / 3), WIDER * eps ** (1 / 3)):
        ahead, behind = (problem.domain.project(x + sign * step * direction) for sign in (1.0, -1.0))
        before, after = (_values(problem.evaluate(y)) for y in (behind, ahead))
        promised = float(xp.sum(gradient * (ahead - behind))) / (2 * step)
        with np.errstate(all="ignore"):
            change = (after - before) @ w / (2 * step)
            noise = CLEAR * eps * float(np.abs(after) @ np.abs(w)) / step
            bend = np.abs(after - 2 * at + before)
        found.append((change, promised, noise, bend))
    (change, promised, noise, bend), (wider, _, _, wide_bend) = found
    # A smooth function bends 64 times as much on the longer step, and one with a kink 8 times; noise does not grow.
    noisy = (w != 0) & (bend > NOISY * (terms + eps * np.abs(at))) & (wide_bend < WIDER / 2 * bend)
    if noisy.any():
        i = int(np.argmax(np.where(noisy, bend, 0.0)))
        name = "f" if i == 0 else problem.constraint_name(i - 1)
        return (
            f"The values of {name} are noisy, about {bend[i] / 2:.0e}, and no point can be judged more exactly; loosen "
            'the tolerance, or use DampedGDPA, see "Fixed steps and noise" in the documentation'
        )
    off = AGREED * max(abs(change), abs(promised)) + 5 * abs(change - wider) + noise
    if not abs(change - promised) > off:
        return ""
    return (
        f"The values along the last direction contradict the derivatives (slope {change:.2g} by differences, "
        f"{promised:.2g} by the gradient): one of them may be wrong, see gdpa.check_derivatives (in minimize, the "
        "option check)"
    )


def _term_roundings(x: Array, now: Evaluation) -> Matrix:
    """Return the roundings of the terms of f and g, which values near 0 do not show; infinite if J costs too much."""
    m = now.constraints.shape[-1]
    of_f = machine_eps(x) * np.abs(to_float64(now.gradient())) @ np.abs(to_float64(x))
    known = now.has_cheap_jacobian or m <= FEW_ROWS
    return np.concatenate([[of_f], to_float64(roundings(x, now)) if known and m else np.full(m, np.inf)])


def _values(now: Evaluation) -> Matrix:
    """Return (f, g_1, ..., g_m) on the host."""
    return np.concatenate([to_float64(now.objective).reshape(1), to_float64(now.constraints)])
