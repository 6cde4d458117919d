"""Finite differences that never leave a box and never take noise for a derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gdpa.base.arrays import machine_eps
from gdpa.base.text import warn_user
from gdpa.base.typing import Vector
from gdpa.numerics.sparse.matrix import Pattern, SparseMatrix

#: The schemes by the names SciPy gives them.
SCHEMES = ("2-point", "3-point", "cs")
#: A change of this many roundings of the value, or fewer, is noise ...
NOISE = 4.0
#: ... and one of this many is not.
CLEAR = 100.0
#: Steps relative to max(1, |x|) for a second look at a function that did not change, after the cube root of eps.
LEVELS = (1e-3, 1e-1, 1.0)
#: Values that all have this many decimal digits or fewer were rounded; by chance a double has them once in 1e7.
DIGITS = 8
#: A central difference is made near a bound if the step need not be shortened by more than this.
SHORTEST = 1e-3
EPS_SINGLE, EPS_DOUBLE = float(np.finfo(np.float32).eps), float(np.finfo(float).eps)


class FiniteDifferenceWarning(UserWarning):
    """Derivatives are approximated by finite differences, possibly inaccurately."""


def precision(value: Any) -> float:
    """Return the relative precision of a function's answer, by its dtype; double for anything but floats."""
    array = np.asarray(value)
    return max(machine_eps(array) if array.dtype.kind in "fc" else 0.0, EPS_DOUBLE)


def scheme_and_steps(x: Vector, scheme: str, relative_step: Any, precision: float) -> tuple[str, Vector, float]:
    """Return the scheme to use, the step along every coordinate and the eps of the values, see `derivative`."""
    own = float(np.finfo(x.dtype).eps)
    eps = max(own, precision)
    if scheme == "2-point" and eps > own:
        scheme = "3-point"
    default = eps ** (1 / 3 if scheme == "3-point" else 1 / 2) * np.maximum(1.0, np.abs(x))
    step = default if relative_step is None else np.abs(relative_step) * np.abs(x)
    return scheme, np.where(step > 0, step, default), eps


def derivative(
    function: Callable[[Vector], Vector],
    x: Vector,
    at: Vector,
    scheme: str = "2-point",
    lower: Any = -np.inf,
    upper: Any = np.inf,
    relative_step: Any = None,
    precision: float = 0.0,
    name: str = "the function",
) -> Vector:
    """Return the Jacobian of ``function`` at ``x`` by finite differences, of shape (len(at), d).

    Args:
        function: x -> vector.
        x: the point, inside the bounds.
        at: ``function(x)``, already known.
        scheme: "2-point" costs d evaluations and keeps about half the digits; "3-point" costs 2d and keeps two thirds;
            "cs" (complex step) costs d and keeps all of them, for functions that accept complex x.
        lower, upper: steps turn round at a bound. A coordinate whose bounds leave no room gets a zero derivative.
        relative_step: the step over |x|; default: sqrt(eps) max(1, |x|), for "3-point" the cube root of eps.
        precision: the eps of the values, see `precision`, if larger than the eps of x. "2-point" becomes "3-point"
            then, because a step of sqrt(eps) would bias the derivative.
        name: how the warning calls the function.

    A row that is no larger than rounding gets a second look: one evaluation farther away, and wider differences if
    those see more. A row of values that were rounded (to three decimals, to whole numbers), and one that is all noise
    even then, is NaN, with a `FiniteDifferenceWarning`: it never looks like a stationary point. A row that does not
    change at all is zero.

    >>> square = lambda x: np.array([x @ x])
    >>> derivative(square, np.array([3.0]), np.array([9.0]), "cs").tolist()
    [[6.0]]
    """
    lower, upper = np.broadcast_to(lower, x.shape), np.broadcast_to(upper, x.shape)
    scheme, step, eps = scheme_and_steps(x, scheme, relative_step, precision)
    jacobian, values = _sweep(function, x, at, scheme, lower, upper, step)
    if scheme == "cs":
        dropped = ~jacobian.any(axis=1)  # the function may have dropped the imaginary part
        if dropped.any():
            real = derivative(function, x, at, "3-point", lower, upper, relative_step, precision, name)
            jacobian[dropped] = real[dropped]
        return jacobian
    with np.errstate(all="ignore"):
        samples = np.concatenate([at[:, None], values], axis=1).astype(float)
        change = np.abs(samples[:, 1:] - samples[:, :1]).max(axis=1, initial=0.0)
        doubtful = change <= NOISE * eps * np.abs(samples).max(axis=1)
        doubtful |= (_rounded(samples, eps) | (_is_single(samples) & (eps < EPS_SINGLE))) & (change > 0)
    if doubtful.any() and values.size:
        widest = float((step / np.maximum(1.0, np.abs(x))).max())
        _look_again(function, x, samples, jacobian, doubtful, (lower, upper), widest, eps, name)
    return jacobian


def _sweep(
    function: Callable[[Vector], Vector], x: Vector, at: Vector, scheme: str, lower: Any, upper: Any, step: Vector
) -> tuple[Vector, Vector]:
    """Return the Jacobian by differences with these steps, and all the values it was made of, one column each."""
    least = 8 * np.finfo(x.dtype).eps * np.maximum(1.0, np.abs(x))  # less room than this is rounding
    out = np.zeros((at.shape[0], x.shape[0]), dtype=x.dtype)
    values: list[Vector] = []

    def moved(i: int, distance: float) -> tuple[Vector, float]:
        y = x.copy()
        y[i] = min(max(x[i] + distance, lower[i]), upper[i])
        values.append(function(y))
        return values[-1], y[i] - x[i]  # the step as it was rounded

    for i in range(x.shape[0]):
        h, above, below = step[i], upper[i] - x[i], x[i] - lower[i]
        if max(above, below) <= least[i]:
            continue
        if scheme == "cs":
            y = x.astype(complex)
            y[i] += 1j * h
            out[:, i] = np.imag(function(y)) / h
        elif scheme == "2-point":
            value, h = moved(i, h if h <= above else -h if h <= below else above if above >= below else -below)
            out[:, i] = (value - at) / h
        elif h <= above and h <= below:
            (right, near), (left, far) = moved(i, h), moved(i, -h)
            out[:, i] = (right - left) / (near - far)
        else:  # second order from one side
            room = above if above >= below else -below
            h = min(h, abs(room) / 2) * np.sign(room)
            (one, near), (two, far) = moved(i, h), moved(i, 2 * h)
            slope_near, slope_far = (one - at) / near, (two - at) / far
            out[:, i] = (slope_near * far - slope_far * near) / (far - near)
    return out, np.stack(values, axis=1) if values else np.zeros((at.shape[0], 0))


def _look_again(
    function: Callable[[Vector], Vector], x: Vector, samples: Vector, jacobian: Vector, doubtful: Vector,
    box: tuple[Vector, Vector], first: float, eps: float, name: str,
) -> None:  # fmt: skip
    """Decide about the doubtful rows by values farther away, and write the known entries into ``jacobian``."""
    at, size = samples[:, 0], np.maximum(1.0, np.abs(x))
    direction = size * np.sin(np.arange(1, x.shape[0] + 1) ** 2)  # no coordinate is left out, no two are alike
    coarse, single, faint, dim = (np.zeros(len(at), dtype=bool) for _ in range(4))
    for level in (eps ** (1 / 3), *LEVELS):
        if not doubtful.any():
            break
        if level <= 2 * first:
            continue
        try:
            value = function(np.clip(x + level * direction, *box).astype(x.dtype))
        except (ArithmeticError, ValueError):  # the function is not defined there
            break
        samples = np.concatenate([samples, np.asarray(value, dtype=float)[:, None]], axis=1)
        with np.errstate(all="ignore"):
            noise = eps * np.abs(samples).max(axis=1)
            change = np.abs(samples[:, -1] - at)
            moves = change > NOISE * noise
            coarse |= doubtful & moves & _rounded(samples, eps)
            single |= doubtful & moves & ~coarse & _is_single(samples) & (eps < EPS_SINGLE)
            doubtful &= ~coarse & ~single
            dim = moves
            clear = doubtful & (change > CLEAR * noise)
            # A change in proportion would have shown at the first step: the derivative is as small as it looked.
            hidden = clear & (change * first / level <= NOISE * noise)
        doubtful &= ~clear
        if hidden.any():
            wider = _sweep(function, x, at, "3-point", *box, level * size)[0]
            faint |= hidden & (np.abs(wider) * level * size <= noise[:, None]).all(axis=1)
            jacobian[hidden] = wider[hidden]
    if single.any():
        jacobian[single] = derivative(function, x, at, "3-point", *box, precision=EPS_SINGLE, name=name)[single]
    blind = coarse | faint | (doubtful & dim)
    if blind.any():
        jacobian[blind] = np.nan
        row = int(np.argmax(blind))
        entry = f"value {row} of {name}" if len(at) > 1 else name
        reason = "is rounded to a few digits" if coarse[row] else "changes by less than its rounding"
        warn_user(
            f"no derivative of {entry} can be seen: it {reason} around {at[row]:.6g}, so differences are all noise; "
            "return more digits, subtract a constant, or pass the derivative",
            FiniteDifferenceWarning,
        )


def _is_single(samples: Vector) -> Vector:
    """Return which rows hold numbers of single precision only."""
    return np.asarray((samples.astype(np.float32) == samples).all(axis=1))


def _rounded(samples: Vector, eps: float) -> Vector:
    """Return which rows hold only numbers of few decimal digits, counted from the largest of them."""
    digits = min(DIGITS, int(-np.log10(400 * eps)))  # the eps of the values leaves no more to tell by
    size = np.abs(samples).max(axis=1)
    quantum = 10.0 ** (np.ceil(np.log10(np.where(size > 0, size, 1.0))) - digits)
    multiples = samples / quantum[:, None]
    return np.asarray((np.abs(multiples - np.round(multiples)) <= 4 * eps * np.abs(multiples)).all(axis=1))


class GroupedDifferences:
    """Differences of a function with a sparse Jacobian: columns without a common row are found together.

    A banded Jacobian takes as many evaluations as its band is wide, whatever the number of variables. The groups of one
    pattern are found once.

    References:
        A. R. Curtis, M. J. D. Powell and J. K. Reid, "On the estimation of sparse Jacobian matrices", IMA J. Applied
        Mathematics 13 (1974).

    >>> from gdpa.numerics.sparse.matrix import read
    >>> differences = GroupedDifferences(read(np.eye(3)).pattern)
    >>> calls = []
    >>> square = lambda x: calls.append(1) or x * x
    >>> x = np.array([1.0, 2.0, 3.0])
    >>> differences(square, x, x * x, "3-point").data.round(6).tolist(), len(calls)
    ([2.0, 4.0, 6.0], 2)
    """

    def __init__(self, pattern: Pattern) -> None:
        from scipy.optimize._numdiff import group_columns  # SciPy documents it, and exports it from there alone

        self.pattern = pattern
        self.group_of = np.asarray(group_columns(pattern.csr(), order=np.arange(pattern.shape[1])))
        self.num_groups = int(self.group_of.max(initial=-1)) + 1

    def __call__(
        self,
        function: Callable[[Vector], Vector],
        x: Vector,
        at: Vector,
        scheme: str = "2-point",
        lower: Any = -np.inf,
        upper: Any = np.inf,
        relative_step: Any = None,
        precision: float = 0.0,
        step: Any = None,
    ) -> SparseMatrix:
        """Return the Jacobian at ``x``; with the arguments of `derivative`.

        ``step`` are absolute steps instead of the usual ones. At a bound "3-point" is a difference to one side.
        """
        pattern = self.pattern
        lower, upper = np.broadcast_to(lower, x.shape), np.broadcast_to(upper, x.shape)
        scheme, usual, _ = scheme_and_steps(x, scheme, relative_step, precision)
        step = usual if step is None else step
        near, far = np.minimum(upper - x, x - lower), np.maximum(upper - x, x - lower)
        if scheme == "3-point":  # a shorter step to both sides is better than one to one side
            step = np.where(near >= SHORTEST * step, np.minimum(step, near), step)
        step = np.minimum(step, far)
        forth = np.where(x + step <= upper, step, -step)
        back = np.where((x + step <= upper) & (x - step >= lower), -step, 0.0)
        data = np.zeros(len(pattern.indices))
        for group in range(self.num_groups):
            chosen = self.group_of == group
            mine = chosen[pattern.indices]
            rows, columns = pattern.rows[mine], pattern.indices[mine]
            if scheme == "cs":
                change = np.imag(function(x + 1j * np.where(chosen, step, 0.0)))
                data[mine] = change[rows] / step[columns]
                continue
            there = np.clip(x + np.where(chosen, forth, 0.0), lower, upper)
            value, start, here = function(there), x, at
            if scheme == "3-point":
                start = np.clip(x + np.where(chosen, back, 0.0), lower, upper)
                here = function(start)
            moved = (there - start)[columns]
            change = (value - here)[rows]
            data[mine] = np.divide(change, moved, out=np.zeros_like(change), where=moved != 0)
        return SparseMatrix(pattern, data)
